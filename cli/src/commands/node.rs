//! `leasehold node`

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use domain::ids::NodeId;
use secrecy::{ExposeSecret as _, SecretString};
use uuid::Uuid;
use wire::{ControlPlane, EnrolmentToken, EnrolmentTokenRequest, Fingerprint, NewNode, Node, Reason};
use workers::node::enrolment::{self, EnrolError, Kept, Outcome};

use super::Context;
use crate::exit::{Ending, Exit};
use crate::output::{details, moment, or_dash, table};
use crate::{input, parse, runtime};

mod reports;

/// How long the machine waits for an answer.
const TIMEOUT: Duration = Duration::from_secs(30);
/// The largest secret that is read from stdin; one has 68 bytes.
const MAX_SECRET_BYTES: u64 = 4096;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Make a node's record, which its machine then becomes by an enrolment token
    #[command(after_help = "Example: leasehold node create box-1 --region eu --hostname box-1.example.com")]
    Create(Create),
    /// List the nodes, by identity
    #[command(after_help = "Example: leasehold node list --region eu")]
    List(List),
    /// Show one node
    #[command(after_help = "Example: leasehold node show 01890a5d-ac96-774b-bcce-b302099a8057")]
    Show {
        /// The node's id
        #[arg(value_parser = parse::id)]
        id: Uuid,
    },
    /// Issue an enrolment token for a node, or revoke the outstanding one
    #[command(after_help = "Examples:\n  \
        (umask 077; leasehold node token 01890a5d-ac96-774b-bcce-b302099a8057 > box-1.token)\n  \
        leasehold node token 01890a5d-ac96-774b-bcce-b302099a8057 --revoke --reason 'sent to the wrong machine'\n\n\
        The secret alone goes to stdout, once; it is kept nowhere. What it does not carry is said on stderr.\n\
        The node's outstanding token stops working as another is issued.")]
    Token(Token),
    /// Enrol this machine: run it on the machine that becomes the node
    #[command(after_help = "Examples:\n  \
        leasehold node enrol --token-file box-1.token --identity-folder /var/lib/leasehold/identity --api https://fleet.example.com\n  \
        ssh … leasehold node enrol --token-file - --identity-folder … --api … < box-1.token\n\n\
        The machine makes its key here and sends the public half. Where it was enrolled already, it says so and the\n\
        token is not spent. Where an answer was lost, --node tries the key that was sent before another is made.\n\
        The secret is taken from a file that its owner alone may read, or from stdin: others of a machine see arguments\n\
        and variables.")]
    Enrol(Enrol),
    /// Show what a node reported last that it owns, and how old that is
    #[command(after_help = "Example: leasehold node report 01890a5d-ac96-774b-bcce-b302099a8057\n\n\
        The record is a backup: nothing decides from it, and the node is right where they differ. A node that never\n\
        reported is not one that reported nothing.")]
    Report {
        /// The node's id
        #[arg(value_parser = parse::id)]
        id: Uuid,
    },
    /// Show what a rebuilt node is given: what is wanted of it, beside what it reported last
    #[command(after_help = "Example: leasehold node rebuild 01890a5d-ac96-774b-bcce-b302099a8057\n\n\
        Both are of one moment. Where the node never reported, a rebuilt one removes nothing.")]
    Rebuild {
        /// The node's id
        #[arg(value_parser = parse::id)]
        id: Uuid,
    },
}

#[derive(Debug, clap::Args)]
pub(crate) struct Create {
    /// Who the machine is; unique, and the same after it was rebuilt
    identity: String,
    /// The code of the region that it stands in
    #[arg(long, value_name = "CODE")]
    region: String,
    /// Its host name
    #[arg(long, value_name = "NAME")]
    hostname: String,
    /// Its name for people
    #[arg(long, value_name = "NAME")]
    display_name: Option<String>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct List {
    /// Only nodes of this region
    #[arg(long, value_name = "CODE")]
    region: Option<String>,
    /// Nodes of one page, 1 to 200
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=200))]
    limit: Option<u16>,
    /// Where the page begins, as the page before said
    #[arg(long)]
    cursor: Option<String>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Token {
    /// The node's id
    #[arg(value_parser = parse::id)]
    id: Uuid,
    /// How long the token works, 60 to 604800 seconds; an hour where it is not named
    #[arg(long, value_name = "SECONDS", conflicts_with = "revoke")]
    expires_in_seconds: Option<u32>,
    /// Revoke the outstanding token instead
    #[arg(long)]
    revoke: bool,
    /// Why it is revoked, for the audit trail
    #[arg(long, requires = "revoke")]
    reason: Option<String>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Enrol {
    /// The file with the token's secret, of mode 0600; - for stdin
    #[arg(long, value_name = "PATH")]
    token_file: PathBuf,
    /// Where the machine keeps its key and who it is; made where it is not there
    #[arg(long, value_name = "PATH")]
    identity_folder: PathBuf,
    /// Where the API is; off this machine, an https:// address
    #[arg(long, value_name = "URL")]
    api: String,
    /// SHA-256 of the certificate that the API shows: another server is refused before anything is sent
    #[arg(long, value_name = "SHA256", value_parser = fingerprint)]
    fingerprint: Option<Fingerprint>,
    /// The node that this machine perhaps is already, where an answer was lost
    #[arg(long, value_name = "ID", value_parser = parse::id)]
    node: Option<Uuid>,
}

fn fingerprint(text: &str) -> Result<Fingerprint, String> {
    Fingerprint::parse(text).ok_or_else(|| "a fingerprint has 64 hexadecimal digits, perhaps with colons".to_owned())
}

pub(crate) fn run(context: &Context, command: Command) -> anyhow::Result<Exit> {
    match command {
        Command::Create(args) => create(context, args)?,
        Command::List(args) => list(context, &args)?,
        Command::Show { id } => {
            let api = context.api()?;
            let node = runtime::run(api.call_about(&format!("node {id}"), |client| client.node(id)))?;
            context.output.show(&node, shown)?;
        }
        Command::Token(args) if args.revoke => revoke(context, &args)?,
        Command::Token(args) => issue(context, &args)?,
        Command::Enrol(args) => enrol(context, &args)?,
        Command::Report { id } => reports::report(context, id)?,
        Command::Rebuild { id } => reports::rebuild(context, id)?,
    }
    Ok(Exit::Ok)
}

fn create(context: &Context, args: Create) -> anyhow::Result<()> {
    let api = context.api()?;
    let new = NewNode {
        identity: args.identity,
        region: args.region,
        hostname: args.hostname,
        display_name: args.display_name,
    };
    let node = runtime::run(api.call(|client| client.create_node(&new, None)))?.value;
    context.output.show(&node, |node| format!("{}  {}", node.id, node.identity))
}

fn list(context: &Context, args: &List) -> anyhow::Result<()> {
    let api = context.api()?;
    let asked = api.call(|client| client.nodes(args.region.as_deref(), args.limit, args.cursor.as_deref()));
    context.output.page(&runtime::run(asked)?, "no nodes", |nodes| {
        table(
            &["id", "identity", "region", "lifecycle", "heard", "incarnation", "enrolled", "token until"],
            nodes.iter().map(|node| {
                [
                    node.id.to_string(),
                    node.identity.clone(),
                    node.region.clone(),
                    node.lifecycle.clone(),
                    heard(node),
                    node.incarnation.to_string(),
                    moment(node.enrolled_at),
                    moment(node.token_expires_at),
                ]
            }),
        )
    })
}

fn heard(node: &Node) -> String {
    match node.seen_at {
        None => "never".to_owned(),
        Some(_) if node.live => "lately".to_owned(),
        at => moment(at),
    }
}

fn shown(node: &Node) -> String {
    details(&[
        ("id", node.id.to_string()),
        ("identity", node.identity.clone()),
        ("hostname", or_dash(node.hostname.as_deref().unwrap_or_default())),
        ("display name", or_dash(node.display_name.as_deref().unwrap_or_default())),
        ("region", node.region.clone()),
        ("lifecycle", node.lifecycle.clone()),
        ("enabled", if node.enabled { "yes" } else { "no" }.to_owned()),
        ("heard", heard(node)),
        ("generation", node.generation.to_string()),
        ("incarnation", node.incarnation.to_string()),
        ("enrolled", moment(node.enrolled_at)),
        ("token until", moment(node.token_expires_at)),
        ("created", moment(Some(node.created_at))),
    ])
}

fn issue(context: &Context, args: &Token) -> anyhow::Result<()> {
    let api = context.api()?;
    let request = EnrolmentTokenRequest { expires_in_seconds: args.expires_in_seconds };
    let about = format!("node {}", args.id);
    let call = api.call_about(&about, |client| client.issue_enrolment_token(args.id, &request, None));
    let issued = runtime::run(call)?.value;
    let secret = issued.secret.as_ref().context("the API told no secret")?;
    if !context.output.is_json() {
        // Not on stdout, which carries the secret and nothing else: it goes to a file.
        let _ = std::io::stderr().write_all(carries(&issued).as_bytes());
    }
    context.output.show(&issued, |_| secret.expose_secret().to_owned())
}

/// What a token carries, and what it does not: nothing that looks complete and is not (E16).
fn carries(issued: &EnrolmentToken) -> String {
    let ControlPlane { api_url, certificate_sha256, signing_key_id } = &issued.control_plane;
    let or_missing = |value: &Option<String>, why: &str| value.clone().unwrap_or_else(|| format!("missing: {why}"));
    let told = details(&[
        ("token", issued.id.to_string()),
        ("node", issued.node_id.to_string()),
        ("works until", format!("{} UTC, once", moment(Some(issued.expires_at)))),
        ("in place of", or_dash(&issued.superseded.map(|id| id.to_string()).unwrap_or_default())),
    ]);
    let beside = details(&[
        ("API URL", or_missing(api_url, "set api.public_url, or tell the machine yourself")),
        (
            "certificate SHA-256",
            or_missing(certificate_sha256, "set api.certificate_sha256, or tell the machine yourself"),
        ),
        ("signing key id", or_missing(signing_key_id, "this version of the control plane signs nothing")),
    ]);
    format!(
        "{told}\n\nThe secret on stdout enrols one machine as this node, and carries nothing else.\nThe machine needs beside it:\n\n{beside}\n"
    )
}

fn revoke(context: &Context, args: &Token) -> anyhow::Result<()> {
    let api = context.api()?;
    let reason = Reason { reason: args.reason.clone() };
    let about = format!("node {}", args.id);
    let revoked = runtime::run(api.call_about(&about, |client| client.revoke_enrolment_token(args.id, &reason)))?;
    context.output.show(&revoked, |revoked| match revoked.revoked {
        Some(token) => format!("{token} is revoked"),
        None => "there was no outstanding token".to_owned(),
    })
}

fn enrol(context: &Context, args: &Enrol) -> anyhow::Result<()> {
    // Without the settings of operators: this machine has no key, and its API is the one that is named.
    context.settings(Vec::new())?;
    let secret = secret(&args.token_file)?;
    let client = match args.fingerprint {
        Some(fingerprint) => wire::Client::pinned(&args.api, TIMEOUT, fingerprint)?,
        None => wire::Client::with_timeout(&args.api, None, TIMEOUT)?,
    };
    let done = enrolment::enrol(&client, &args.identity_folder, &secret, args.node.map(NodeId));
    let pinned = |error: anyhow::Error| match error.downcast_ref() {
        Some(wire::Error::Unreachable { .. }) if args.fingerprint.is_some() => {
            error.context("speak with nobody but the server of --fingerprint")
        }
        _ => error,
    };
    let outcome = runtime::run(async { done.await.map_err(|error| pinned(ending(error))) })?;
    let (kept, told) = match &outcome {
        Outcome::Enrolled(kept) => (kept, "enrolled: the token is spent"),
        Outcome::Proven(kept) => (kept, "was enrolled already: nothing was sent, and no token spent"),
    };
    context.output.show(kept, |kept| enrolled(kept, told, &args.identity_folder))
}

fn enrolled(kept: &Kept, told: &str, folder: &Path) -> String {
    let unsaid = |value: &Option<String>| value.clone().unwrap_or_else(|| "the API did not say".to_owned());
    details(&[
        ("this machine", told.to_owned()),
        ("node", kept.node_id.to_string()),
        ("incarnation", kept.incarnation.to_string()),
        ("public key", kept.public_key.clone()),
        ("API URL", unsaid(&kept.api_url)),
        ("certificate SHA-256", unsaid(&kept.certificate_sha256)),
        ("signing key id", unsaid(&kept.signing_key_id)),
        ("kept in", folder.display().to_string()),
    ])
}

/// The secret, from stdin or from a file that its owner alone may read.
fn secret(path: &Path) -> anyhow::Result<SecretString> {
    let usage = |message: String| Ending { exit: Exit::Usage, message };
    let text = if path.as_os_str() == "-" {
        secrecy::zeroize::Zeroizing::new(input::read(path, MAX_SECRET_BYTES)?)
    } else {
        let found = enrolment::read_secret(path).map_err(ending)?;
        found.ok_or_else(|| usage(format!("there is no file {}", path.display())))?
    };
    let secret = text.trim();
    if secret.is_empty() || secret.contains(char::is_whitespace) {
        return Err(usage("what was given is not the secret of an enrolment token alone".to_owned()).into());
    }
    Ok(SecretString::from(secret))
}

/// With the exit code that fits.
fn ending(error: EnrolError) -> anyhow::Error {
    let exit = match error {
        // As every verb tells what the API said.
        EnrolError::Api(error) => return error.into(),
        EnrolError::File { .. } => return error.into(),
        EnrolError::Open { .. } | EnrolError::NotPrivate => Exit::Denied,
        EnrolError::Malformed(_) => Exit::Usage,
    };
    Ending { exit, message: error.to_string() }.into()
}
