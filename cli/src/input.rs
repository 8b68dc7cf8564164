//! What a command reads from a file or from stdin, bounded.

use std::fs::File;
use std::io::{Read, stdin};
use std::path::Path;

use anyhow::Context as _;

use crate::exit::{Ending, Exit};

/// Reads all of `path`, or of stdin where it is `-`.
///
/// # Errors
/// What cannot be read, is no UTF-8, or has more than `limit` bytes.
pub(crate) fn read(path: &Path, limit: u64) -> anyhow::Result<String> {
    let (name, source): (String, Box<dyn Read>) = if path.as_os_str() == "-" {
        ("stdin".to_owned(), Box::new(stdin()))
    } else {
        let name = path.display().to_string();
        let file =
            File::open(path).map_err(|error| Ending { exit: Exit::Usage, message: format!("read {name}: {error}") })?;
        (name, Box::new(file))
    };
    read_from(source, &name, limit)
}

fn read_from(source: impl Read, name: &str, limit: u64) -> anyhow::Result<String> {
    let mut bytes = Vec::new();
    // One byte more than may come tells a source that is too large from one that just fits.
    source.take(limit + 1).read_to_end(&mut bytes).with_context(|| format!("read {name}"))?;
    if bytes.len() as u64 > limit {
        return Err(Ending { exit: Exit::Usage, message: format!("{name} is larger than {limit} bytes") }.into());
    }
    String::from_utf8(bytes).map_err(|_| Ending { exit: Exit::Usage, message: format!("{name} is not UTF-8") }.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_large_is_refused_and_never_cut() {
        assert_eq!(read_from(b"1234".as_slice(), "it", 4).unwrap(), "1234");
        let refused = read_from(b"12345".as_slice(), "it", 4).unwrap_err();
        assert_eq!(refused.to_string(), "it is larger than 4 bytes");
        assert!(read_from([0xff].as_slice(), "it", 4).is_err());
    }
}
