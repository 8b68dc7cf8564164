//! A record to create.

use std::collections::BTreeMap;

use super::Error;
use super::record::{InstanceKind, Role};
use super::sealed;
use crate::ids::{AppName, Host, RegionCode};

/// Most variables of an instance's environment.
pub const MAX_ENV: usize = 200;
/// Most bytes of all its names and values together.
pub const MAX_ENV_BYTES: usize = 64 * 1024;
/// Most regions that keep a readable copy.
pub const MAX_REPLICA_REGIONS: usize = 16;
/// Longest backing, placement and pool, in characters.
pub const MAX_WORD_CHARS: usize = 63;

/// A record to create.
#[derive(Debug, Clone, PartialEq)]
pub struct NewInstance {
    /// The application that it belongs to.
    pub app: AppName,
    /// Its host name.
    pub host: Host,
    /// What it is.
    pub kind: InstanceKind,
    /// What runs it.
    pub backing: String,
    /// Whether it is written, or follows another.
    pub role: Role,
    /// How its boxes are chosen: `None` by its region, or `fleet`.
    pub placement: Option<String>,
    /// The pool of boxes that it is bound to; empty for none.
    pub pool: String,
    /// Whether it may be parked.
    pub hibernate: bool,
    /// Where it may be written; a dormant region is allowed by name.
    pub region: RegionCode,
    /// Regions that keep a readable copy.
    pub replica_regions: Vec<RegionCode>,
    /// The tenant's own environment of the child.
    pub env: BTreeMap<String, String>,
}

impl NewInstance {
    /// An exec-backed original without anything special.
    #[must_use]
    pub fn new(app: AppName, host: Host, region: RegionCode) -> Self {
        Self {
            app,
            host,
            kind: InstanceKind::Instance,
            backing: "exec".to_owned(),
            role: Role::Original,
            placement: None,
            pool: String::new(),
            hibernate: true,
            region,
            replica_regions: Vec::new(),
            env: BTreeMap::new(),
        }
    }

    /// Checks every bound.
    ///
    /// # Errors
    /// [`Error::Invalid`] with the field and its rule.
    pub fn check(&self) -> Result<(), Error> {
        let invalid = |field, rule| Err(Error::Invalid { field, rule });
        if !is_word(&self.backing) {
            return invalid("backing", "must have 1 to 63 lower-case letters, digits and dashes");
        }
        if self.placement.as_ref().is_some_and(|p| p != "fleet") {
            return invalid("placement", "must be null or \"fleet\"");
        }
        if !self.pool.is_empty() && !is_word(&self.pool) {
            return invalid("pool", "must be empty or have 1 to 63 lower-case letters, digits and dashes");
        }
        if self.replica_regions.len() > MAX_REPLICA_REGIONS {
            return invalid("replica_regions", "at most 16");
        }
        check_environment(&self.env)
    }
}

/// Checks every bound of an environment.
///
/// # Errors
/// [`Error::Invalid`] with the rule.
pub(super) fn check_environment(env: &BTreeMap<String, String>) -> Result<(), Error> {
    let invalid = |rule| Err(Error::Invalid { field: "env", rule });
    if env.len() > MAX_ENV {
        return invalid("at most 200 variables");
    }
    if let Some(rule) = env.keys().find_map(|name| check_variable(name).err()) {
        return invalid(rule);
    }
    if env.values().any(|value| value.contains('\0')) {
        return invalid("a value holds no NUL");
    }
    if env.values().any(|value| sealed::is_sealed(value) && sealed::check(value).is_err()) {
        return invalid(
            "a value that begins with age: must go on with the base64, on one line, of an age file that is sealed to \
             recipients (age1…)",
        );
    }
    if env.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>() > MAX_ENV_BYTES {
        return invalid("at most 65536 bytes of names and values");
    }
    Ok(())
}

/// Whether an environment may name a variable so.
///
/// # Errors
/// The rule that it breaks.
pub fn check_variable(name: &str) -> Result<(), &'static str> {
    if !is_variable(name) {
        Err("a name has 1 to 255 letters, digits and underscores and begins with no digit")
    } else if is_the_boxs(name) {
        Err("CARLOS_REGION, LD_PRELOAD, LD_LIBRARY_PATH and LEASEHOLD_* are set by the box alone")
    } else {
        Ok(())
    }
}

/// Names by which a tenant could tell its application another region, or its process other code.
fn is_the_boxs(name: &str) -> bool {
    matches!(name, "CARLOS_REGION" | "LD_PRELOAD" | "LD_LIBRARY_PATH") || name.starts_with("LEASEHOLD_")
}

fn is_word(text: &str) -> bool {
    (1..=MAX_WORD_CHARS).contains(&text.len())
        && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
}

fn is_variable(name: &str) -> bool {
    (1..=255).contains(&name.len())
        && !name.as_bytes()[0].is_ascii_digit()
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}
