//! Bodies: bytes in memory, or a file that nobody changes after it was written.

use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use hyper::body::Bytes;
use s3s::checksum::ChecksumHasher;
use s3s::crypto::{Checksum as _, Md5};
use s3s::dto::{Checksum, StreamingBlob};

/// How much of a file is read at a time.
const CHUNK: u64 = 1024 * 1024;

/// An object's or a part's content.
#[derive(Debug, Clone)]
pub(super) enum Body {
    /// In memory; clones share it.
    Memory(Bytes),
    /// In a file; clones share it, and the last one of a body that is no longer wanted removes it.
    File(Arc<BodyFile>),
}

#[derive(Debug)]
pub(super) struct BodyFile {
    path: PathBuf,
    length: u64,
    /// Whether the file stays when the last user is gone: set while an object on disk names it.
    kept: AtomicBool,
}

impl Drop for BodyFile {
    fn drop(&mut self) {
        if !*self.kept.get_mut() {
            // A file that stays behind is swept at the next start.
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl Body {
    /// Bytes.
    pub(super) fn len(&self) -> u64 {
        match self {
            Self::Memory(bytes) => bytes.len() as u64,
            Self::File(file) => file.length,
        }
    }

    /// Says whether the body's file, if it has one, outlives this process.
    pub(super) fn keep(&self, kept: bool) {
        if let Self::File(file) = self {
            file.kept.store(kept, Ordering::Relaxed);
        }
    }

    /// The bytes of `range`, which lies within the body.
    pub(super) fn read(&self, range: Range<u64>) -> io::Result<Bytes> {
        match self {
            Self::Memory(bytes) => Ok(bytes.slice(as_usize(range.start)..as_usize(range.end))),
            Self::File(file) => {
                let mut source = File::open(&file.path)?;
                source.seek(SeekFrom::Start(range.start))?;
                let mut bytes = vec![0; as_usize(range.end - range.start)];
                source.read_exact(&mut bytes)?;
                Ok(bytes.into())
            }
        }
    }

    /// The bytes of `range` as an answer's body.
    pub(super) fn stream(&self, range: Range<u64>) -> StreamingBlob {
        let body = self.clone();
        let starts = range.clone().step_by(as_usize(CHUNK));
        let chunks = starts.map(move |start| body.read(start..range.end.min(start + CHUNK)));
        StreamingBlob::wrap(futures::stream::iter(chunks))
    }
}

fn as_usize(number: u64) -> usize {
    usize::try_from(number).expect("this runs on 64-bit machines")
}

/// Makes bodies: in memory, or as files of a folder.
#[derive(Debug)]
pub(super) struct Vault {
    folder: Option<PathBuf>,
    next: AtomicU64,
}

impl Vault {
    /// Bodies go into `folder`, numbered from `next`; into memory when there is none.
    pub(super) fn new(folder: Option<PathBuf>, next: u64) -> Self {
        Self { folder, next: AtomicU64::new(next) }
    }

    /// A number that no body and no object of this store has had.
    pub(super) fn next_id(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// The body that an earlier run left as number `id`.
    pub(super) fn existing(&self, id: u64) -> io::Result<Body> {
        let path = self.path(id).ok_or(io::ErrorKind::NotFound)?;
        let length = fs::metadata(&path)?.len();
        Ok(Body::File(Arc::new(BodyFile { path, length, kept: AtomicBool::new(true) })))
    }

    /// A body to be written piece by piece, hashed on the way.
    pub(super) fn writer(&self, sums: ChecksumHasher) -> io::Result<Writer> {
        let id = self.next_id();
        let sink = match self.path(id) {
            None => Sink::Memory(Vec::new()),
            Some(path) => Sink::File(File::create_new(&path)?, path),
        };
        Ok(Writer { id, sink: Some(sink), length: 0, md5: Md5::new(), sums })
    }

    /// A body of these pieces of others, without any checksum but MD5.
    pub(super) fn join<'a>(&self, pieces: impl IntoIterator<Item = (&'a Body, Range<u64>)>) -> io::Result<Written> {
        let mut writer = self.writer(ChecksumHasher::default())?;
        for (body, range) in pieces {
            for start in range.clone().step_by(as_usize(CHUNK)) {
                writer.write(&body.read(start..range.end.min(start + CHUNK))?)?;
            }
        }
        Ok(writer.finish())
    }

    /// A second body with the same content, without copying a byte.
    pub(super) fn share(&self, body: &Body) -> io::Result<(u64, Body)> {
        let id = self.next_id();
        let body = match (body, self.path(id)) {
            (Body::File(file), Some(path)) => {
                fs::hard_link(&file.path, &path)?;
                Body::File(Arc::new(BodyFile { path, length: file.length, kept: AtomicBool::new(false) }))
            }
            (Body::Memory(_), _) | (Body::File(_), None) => body.clone(),
        };
        Ok((id, body))
    }

    fn path(&self, id: u64) -> Option<PathBuf> {
        Some(self.folder.as_ref()?.join(format!("{id:016x}")))
    }
}

enum Sink {
    Memory(Vec<u8>),
    File(File, PathBuf),
}

/// A body under way. Dropped unfinished, it leaves nothing.
pub(super) struct Writer {
    id: u64,
    sink: Option<Sink>,
    length: u64,
    md5: Md5,
    sums: ChecksumHasher,
}

/// A finished body with what was computed on the way.
pub(super) struct Written {
    pub(super) id: u64,
    pub(super) body: Body,
    pub(super) md5: [u8; 16],
    pub(super) sums: Checksum,
}

impl Writer {
    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.md5.update(bytes);
        self.sums.update(bytes);
        self.length += bytes.len() as u64;
        match &mut self.sink {
            Some(Sink::Memory(buffer)) => buffer.extend_from_slice(bytes),
            Some(Sink::File(file, _)) => file.write_all(bytes)?,
            None => {}
        }
        Ok(())
    }

    pub(super) fn finish(mut self) -> Written {
        let body = match self.sink.take() {
            Some(Sink::File(_, path)) => {
                Body::File(Arc::new(BodyFile { path, length: self.length, kept: AtomicBool::new(false) }))
            }
            Some(Sink::Memory(buffer)) => Body::Memory(buffer.into()),
            None => Body::Memory(Bytes::new()),
        };
        let md5 = std::mem::replace(&mut self.md5, Md5::new()).finalize();
        let sums = std::mem::take(&mut self.sums).finalize();
        Written { id: self.id, body, md5, sums }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if let Some(Sink::File(_, path)) = &self.sink {
            let _ = fs::remove_file(path);
        }
    }
}
