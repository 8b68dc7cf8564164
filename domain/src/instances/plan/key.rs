//! The keys of a replica: `<level, 4 hex digits>/<min txid>-<max txid>.ltx` below the prefix.

use std::fmt;

/// A transaction number of a replicated database, from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Txid(pub u64);

impl Txid {
    /// Reads its 16 hexadecimal digits.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let digits = text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        u64::from_str_radix(text, 16).ok().filter(|_| digits).map(Self)
    }
}

impl fmt::Display for Txid {
    /// 16 hexadecimal digits, as in litestream's keys and its `-txid` option.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// A compaction level: 0 holds the raw files, 9 the snapshots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Level(u8);

impl Level {
    /// The level of raw files, one for each upload.
    pub const RAW: Self = Self(0);
    /// The level of snapshots, which reach from the first transaction on.
    pub const SNAPSHOT: Self = Self(9);
    /// How many levels exist.
    pub const COUNT: usize = 10;

    /// The level with this number, if there is one.
    #[must_use]
    pub const fn new(number: u8) -> Option<Self> {
        if number as usize >= Self::COUNT { None } else { Some(Self(number)) }
    }

    /// What its keys begin with, behind the replica's prefix.
    #[must_use]
    pub fn prefix(self) -> String {
        format!("{:04x}/", self.0)
    }

    /// 0 to 9, as an index.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// One object of a replica, read from its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplicaKey {
    /// The compaction level.
    pub level: Level,
    /// The first transaction in the file.
    pub min: Txid,
    /// The last transaction in the file, at least `min`.
    pub max: Txid,
}

impl ReplicaKey {
    /// Reads the name of a raw object within its level.
    #[must_use]
    pub fn of_raw(name: &str) -> Option<Self> {
        Self::parse(&format!("{}{name}", Level::RAW.prefix()))
    }

    /// Its name within its level.
    #[must_use]
    pub fn name(&self) -> String {
        format!("{}-{}.ltx", self.min, self.max)
    }

    /// Reads the part of a key behind the prefix; `None` for anything but litestream's exact layout.
    #[must_use]
    pub fn parse(suffix: &str) -> Option<Self> {
        let bytes = suffix.as_bytes();
        // 4 digits, '/', 16 digits, '-', 16 digits, ".ltx"
        if bytes.len() != 42 || bytes[4] != b'/' || bytes[21] != b'-' || &bytes[38..] != b".ltx" {
            return None;
        }
        let level = u8::try_from(hex(&bytes[..4])?).ok().and_then(Level::new)?;
        let (min, max) = (Txid(hex(&bytes[5..21])?), Txid(hex(&bytes[22..38])?));
        (min.0 >= 1 && min <= max).then_some(Self { level, min, max })
    }
}

/// Lower-case hexadecimal only: litestream writes no other, and two spellings would be two keys for one file.
fn hex(digits: &[u8]) -> Option<u64> {
    digits.iter().try_fold(0_u64, |value, digit| {
        let nibble = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            _ => return None,
        };
        Some(value << 4 | u64::from(nibble))
    })
}

/// Which keys of a prefix take part in the mirror.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyRule {
    /// The objects of one litestream replica and nothing else (M-112).
    Litestream,
    /// Every key, in one rank: for prefixes of plain files.
    Everything,
}

/// What a rule says of one key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyPlace {
    /// Takes part. Higher ranks are copied first; `replica` tells the transactions where there are any.
    Mirrored {
        /// 0 to 9.
        rank: u8,
        /// What the key says, for a replica's object.
        replica: Option<ReplicaKey>,
    },
    /// A lease, lock or marker: neither copied, counted as a difference, nor deleted.
    Ignored,
    /// Data in a layout that this rule does not know. Mirroring the rest would lose it or mix two formats, so the
    /// prefix is refused.
    Foreign {
        /// What the key breaks, in words for an operator.
        rule: &'static str,
    },
}

/// What a key of an older litestream breaks.
const NO_GENERATIONS: &str =
    "generations/ is the layout of litestream before 0.5, which is not mirrored: let litestream 0.5 make a new replica";
/// What any other key of litestream's data breaks.
const LAYOUT: &str = "a file .ltx is named <level>/<first txid>-<last txid>.ltx: the level 0000 to 0009, both txids of 16 \
                      hexadecimal digits in lower case, from 1 on and in order";

impl KeyRule {
    /// Places the part of a key behind its prefix.
    ///
    /// [`KeyRule::Litestream`]: the exact layout takes part; anything else that ends in `.ltx`, and the trees of
    /// litestream 0.3 (`generations/`), are foreign; the rest (`lock.json`, folder markers) is ignored.
    #[must_use]
    pub fn place(self, suffix: &str) -> KeyPlace {
        match self {
            Self::Everything => KeyPlace::Mirrored { rank: 0, replica: None },
            Self::Litestream => match ReplicaKey::parse(suffix) {
                Some(key) => KeyPlace::Mirrored { rank: key.level.0, replica: Some(key) },
                None if suffix.starts_with("generations/") => KeyPlace::Foreign { rule: NO_GENERATIONS },
                None if suffix.ends_with(".ltx") => KeyPlace::Foreign { rule: LAYOUT },
                None => KeyPlace::Ignored,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(level: u8, min: u64, max: u64) -> String {
        format!("{level:04x}/{min:016x}-{max:016x}.ltx")
    }

    #[test]
    fn a_replica_key_tells_level_and_transactions() {
        let key = ReplicaKey::parse(&name(9, 1, 0x2a)).unwrap();
        assert_eq!(key, ReplicaKey { level: Level::SNAPSHOT, min: Txid(1), max: Txid(42) });
        assert_eq!(key.max.to_string(), "000000000000002a");
        assert!(ReplicaKey::parse(&name(0, u64::MAX, u64::MAX)).is_some());
    }

    #[test]
    fn whatever_deviates_from_the_layout_is_not_a_replica_key() {
        let good = name(1, 16, 31);
        for bad in [
            name(10, 1, 2),         // a level that does not exist
            name(1, 0, 2),          // transactions begin at 1
            name(1, 3, 2),          // reversed
            good.to_uppercase(),    // another spelling
            format!("{good}.tmp"),  // longer
            good[1..].to_owned(),   // shorter
            good.replace('-', "_"), // separator
            good.replace('/', "-"), // no folder
            format!("x{}", &good[1..]),
            "é".repeat(21), // 42 bytes that are no ASCII
            String::new(),
        ] {
            assert_eq!(ReplicaKey::parse(&bad), None, "{bad}");
        }
    }

    #[test]
    fn markers_are_ignored_and_unknown_data_is_foreign() {
        let place = |suffix: &str| KeyRule::Litestream.place(suffix);
        for marker in ["lock.json", "0000/", "", "lease", "0000/lock.json", ".keep"] {
            assert_eq!(place(marker), KeyPlace::Ignored, "{marker}");
        }
        for (foreign, rule) in [
            ("generations/0123456789abcdef/snapshots/00000000.snapshot.lz4", NO_GENERATIONS),
            ("generations/0123456789abcdef/x.ltx", NO_GENERATIONS),
            ("000a/x.ltx", LAYOUT),
            ("db/0000/y.ltx", LAYOUT),
        ] {
            assert_eq!(place(foreign), KeyPlace::Foreign { rule }, "{foreign}");
        }
        assert!(matches!(place(&name(3, 1, 2)), KeyPlace::Mirrored { rank: 3, replica: Some(_) }));
        assert_eq!(KeyRule::Everything.place("lock.json"), KeyPlace::Mirrored { rank: 0, replica: None });
    }
}
