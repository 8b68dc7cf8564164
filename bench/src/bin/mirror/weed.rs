//! Rounds over real objects on SeaweedFS.

use std::sync::Mutex;
use std::time::Duration;

use anyhow::Context as _;
use async_trait::async_trait;
use aws_sdk_s3::Client;
use aws_sdk_s3::config::{BehaviorVersion, Builder, Credentials, Region};
use aws_sdk_s3::primitives::ByteStream;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use sandbox::seaweed::{Options, Weed};
use tokio_util::sync::CancellationToken;
use workers::mirror::{MemoryJournal, Mirror, Observer, Pair, PassReport, Place, RecordError, RoundProgress, Settings};
use workers::objects::{CopyLimits, Endpoint, LimitSettings, ObjectStore, Tuning};

use crate::figures;
use crate::peers::Peer;

const SOURCE: &str = "source";
const TARGET: &str = "target";
const HOST: &str = "bench.example";

/// When the first round of a pass was over: what programs that list once would call their time.
#[derive(Debug, Default)]
struct FirstRound(Mutex<Option<Duration>>);

#[async_trait]
impl Observer for FirstRound {
    async fn round(&self, progress: &RoundProgress) -> Result<(), RecordError> {
        if progress.finished
            && let Ok(mut first) = self.0.lock()
        {
            first.get_or_insert(progress.elapsed);
        }
        Ok(())
    }
}

pub async fn measure(keys: u64, runs: usize, peers: &[Peer]) -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let options = Options {
        dir: folder.path().to_owned(),
        buckets: [SOURCE, TARGET].into_iter().chain(peers.iter().map(Peer::name)).map(str::to_owned).collect(),
        identities: vec![],
    };
    let weed = Weed::start(options).await.context("start SeaweedFS")?;
    let admin = client(&weed);
    let mut replica = Replica::new(keys);
    println!("{keys} objects on SeaweedFS; a pass ends with a listing that proves its result");
    put_all(&admin, &replica.all(), "first").await?;
    let mirror = mirror(&weed).await?;
    let mut journal = MemoryJournal::default();

    // One after the other over the same objects: what ran at another time is no comparison.
    let beside = async |what: &str| {
        for peer in peers {
            let target = format!("{}/moves/{HOST}", peer.name());
            peer.run(what, &weed, &format!("{SOURCE}/instances/{HOST}"), &target).await?;
        }
        anyhow::Ok(())
    };
    for run in 0..runs {
        for bucket in [TARGET].into_iter().chain(peers.iter().map(Peer::name)) {
            empty(&admin, bucket).await?;
        }
        journal = MemoryJournal::default();
        // Whoever comes first meets a store that has rested.
        if run % 2 == 0 {
            pass("full", &mirror, &journal).await?;
            beside("full").await?;
        } else {
            beside("full").await?;
            pass("full", &mirror, &journal).await?;
        }
    }
    for _ in 0..runs {
        pass("no change", &mirror, &journal).await?;
        beside("no change").await?;
    }
    let half = usize::try_from(keys / 200)?.max(1);
    for run in 0..runs {
        // Half of one per cent gets another content, half of one per cent is new, and a quarter of one is pruned.
        put_all(&admin, &replica.some(2, run * half, half), &format!("content of run {run}")).await?;
        put_all(&admin, &replica.grow(half), "new").await?;
        let prune = half / 2;
        for key in replica.some(1, run * prune, prune) {
            admin
                .delete_object()
                .bucket(SOURCE)
                .key(format!("instances/{HOST}/{key}"))
                .send()
                .await
                .context("prune")?;
        }
        pass("1 % changed", &mirror, &journal).await?;
        beside("1 % changed").await?;
    }
    Ok(())
}

/// The keys of a replica as a busy day leaves them: snapshots, two compacted levels, raw files with a tail that
/// nothing else covers yet.
struct Replica {
    levels: [Vec<String>; 4],
    newest: u64,
}

impl Replica {
    fn new(keys: u64) -> Self {
        let (wide, narrow, snapshots) = (keys / 10, keys * 2 / 5, 10);
        let compacted = wide * 50;
        let level = |level: u8, width: u64, count: u64| -> Vec<String> {
            (0..count).rev().map(|n| ltx(level, compacted - (n + 1) * width + 1, compacted - n * width)).collect()
        };
        let raw = keys - wide - narrow - snapshots;
        let newest = compacted + 20;
        let raw = (newest + 1 - raw..=newest).map(|txid| ltx(0, txid, txid)).collect();
        let snapshots = (1..=snapshots).map(|n| ltx(9, 1, compacted / snapshots * n)).collect();
        Self { levels: [raw, level(1, 10, narrow), level(2, 50, wide), snapshots], newest }
    }

    fn all(&self) -> Vec<String> {
        self.levels.concat()
    }

    fn some(&self, level: usize, skip: usize, take: usize) -> Vec<String> {
        self.levels[level].iter().skip(skip).take(take).cloned().collect()
    }

    fn grow(&mut self, count: usize) -> Vec<String> {
        (0..count)
            .map(|_| {
                self.newest += 1;
                ltx(0, self.newest, self.newest)
            })
            .collect()
    }
}

fn ltx(level: u8, min: u64, max: u64) -> String {
    format!("{level:04x}/{min:016x}-{max:016x}.ltx")
}

fn client(weed: &Weed) -> Client {
    let admin = weed.admin();
    let config = Builder::new()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::new("us-east-1"))
        .endpoint_url(weed.endpoint())
        .force_path_style(true)
        .credentials_provider(Credentials::new(&admin.access_key, &admin.secret_key, None, None, "bench"))
        .http_client(aws_smithy_http_client::Builder::new().build_http())
        .build();
    Client::from_conf(config)
}

async fn put_all(admin: &Client, names: &[String], content: &str) -> anyhow::Result<()> {
    stream::iter(names)
        .map(|name| {
            let body = ByteStream::from(format!("{content}: {name}").into_bytes());
            admin.put_object().bucket(SOURCE).key(format!("instances/{HOST}/{name}")).body(body).send()
        })
        .buffer_unordered(32)
        .try_for_each(|_| std::future::ready(Ok(())))
        .await
        .context("put objects")
}

async fn empty(admin: &Client, bucket: &str) -> anyhow::Result<()> {
    let mut pages = admin.list_objects_v2().bucket(bucket).into_paginator().send();
    while let Some(page) = pages.next().await {
        let keys = page
            .context("list what is to be deleted")?
            .contents
            .unwrap_or_default()
            .into_iter()
            .filter_map(|it| it.key);
        stream::iter(keys)
            .map(|key| admin.delete_object().bucket(bucket).key(key).send())
            .buffer_unordered(32)
            .try_for_each(|_| std::future::ready(Ok(())))
            .await
            .context("delete objects")?;
    }
    Ok(())
}

async fn mirror(weed: &Weed) -> anyhow::Result<Mirror> {
    let admin = weed.admin();
    let endpoint = Endpoint {
        url: Some(weed.endpoint()),
        region: "us-east-1".to_owned(),
        force_path_style: true,
        credentials: workers::objects::Credentials::Static {
            access_key: admin.access_key.clone(),
            secret_key: admin.secret_key.clone().into(),
            session_token: None,
        },
    };
    let store = ObjectStore::open(&endpoint, Tuning::default(), CopyLimits::new(LimitSettings::default())).await;
    let place = |bucket: &str| Place { store: store.clone(), bucket: bucket.to_owned() };
    let pairs = vec![Pair::of_instance(HOST)?];
    Ok(Mirror { source: place(SOURCE), target: place(TARGET), pairs, settings: Settings::default() })
}

async fn pass(what: &str, mirror: &Mirror, journal: &MemoryJournal) -> anyhow::Result<PassReport> {
    figures::forget_peak()?;
    let (first, before) = (FirstRound::default(), figures::cpu());
    let report = mirror.pass(journal, &first, &CancellationToken::new()).await?;
    let cpu = figures::cpu().saturating_sub(before);
    let first = first.0.into_inner().ok().flatten().unwrap_or_default();
    println!("{}", figures::line(what, &report, first, cpu)?);
    Ok(report)
}
