//! Difference sets of any size in bounded memory: a little in memory, the rest in one temporary file a set.

use std::io::{self, BufReader, BufWriter, Read, Seek, Write};
use std::path::PathBuf;

use tempfile::SpooledTempFile;

/// Bytes that a set may hold in memory before it moves to a file.
const IN_MEMORY: usize = 128 * 1024;

/// Longest string in a record. S3's keys end at 1,024 bytes, `ETag`s are shorter.
const MAX_TEXT: u32 = 16 * 1024;

/// One key of a difference set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Record {
    /// The part of the key behind the prefix.
    pub(super) key: String,
    /// The source's `ETag`; empty for deletes.
    pub(super) etag: String,
    /// Bytes.
    pub(super) size: u64,
}

/// A set being written, in key order.
pub(super) struct Spill {
    writer: BufWriter<SpooledTempFile>,
    len: u64,
}

impl Spill {
    /// An empty set. The file, once needed, is nameless in `folder` (or the system's): it goes with the process.
    pub(super) fn new(folder: Option<&PathBuf>) -> Self {
        let file = match folder {
            Some(folder) => tempfile::spooled_tempfile_in(IN_MEMORY, folder),
            None => tempfile::spooled_tempfile(IN_MEMORY),
        };
        Self { writer: BufWriter::new(file), len: 0 }
    }

    pub(super) fn push(&mut self, key: &str, etag: &str, size: u64) -> io::Result<()> {
        for text in [key, etag] {
            let len = u32::try_from(text.len()).ok().filter(|len| *len <= MAX_TEXT);
            let len = len.ok_or_else(|| io::Error::other("a key longer than S3 allows"))?;
            self.writer.write_all(&len.to_le_bytes())?;
            self.writer.write_all(text.as_bytes())?;
        }
        self.writer.write_all(&size.to_le_bytes())?;
        self.len += 1;
        Ok(())
    }

    /// The set from its beginning. May be asked for again once the reader is gone.
    pub(super) fn read(&mut self) -> io::Result<Records<'_>> {
        self.writer.flush()?;
        let file = self.writer.get_mut();
        file.rewind()?;
        Ok(Records { reader: BufReader::new(file), left: self.len })
    }
}

/// The records of a set, in the order in which they were pushed.
pub(super) struct Records<'a> {
    reader: BufReader<&'a mut SpooledTempFile>,
    left: u64,
}

impl Records<'_> {
    fn text(&mut self) -> io::Result<String> {
        let mut len = [0; 4];
        self.reader.read_exact(&mut len)?;
        let len = u32::from_le_bytes(len);
        if len > MAX_TEXT {
            return Err(io::Error::other("a damaged spill file"));
        }
        let mut text = vec![0; len as usize];
        self.reader.read_exact(&mut text)?;
        String::from_utf8(text).map_err(io::Error::other)
    }

    fn record(&mut self) -> io::Result<Record> {
        let (key, etag) = (self.text()?, self.text()?);
        let mut size = [0; 8];
        self.reader.read_exact(&mut size)?;
        Ok(Record { key, etag, size: u64::from_le_bytes(size) })
    }
}

impl Iterator for Records<'_> {
    type Item = io::Result<Record>;

    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        Some(self.record())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_larger_than_memory_reads_back_twice_in_order() {
        let folder = tempfile::tempdir().unwrap();
        let mut spill = Spill::new(Some(&folder.path().to_path_buf()));
        let record = |n: u64| Record { key: format!("0000/é {n:060}"), etag: format!("e{n}"), size: n };
        for n in 0..5_000 {
            let Record { key, etag, size } = record(n);
            spill.push(&key, &etag, size).unwrap();
        }
        assert_eq!(spill.len, 5_000);
        for _ in 0..2 {
            let mut count = 0;
            for (n, read) in (0..).zip(spill.read().unwrap()) {
                assert_eq!(read.unwrap(), record(n));
                count += 1;
            }
            assert_eq!(count, 5_000);
        }
        assert!(spill.writer.get_ref().is_rolled(), "it went to a file");
    }

    #[test]
    fn a_text_beyond_every_key_is_refused() {
        assert!(Spill::new(None).push(&"k".repeat(20_000), "", 0).is_err());
    }
}
