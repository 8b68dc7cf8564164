//! A configuration whose sealed values a box cannot open.

/// The stable code of a start that waits for a key.
pub const CODE: &str = "config_key";
