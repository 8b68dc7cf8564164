//! Canonical JSON and SHA-256: equal values have equal digests, whatever the order of their fields was.

use serde_json::Value;
use sha2::{Digest as _, Sha256};

/// SHA-256 of bytes.
#[must_use]
pub fn sha256(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

/// `N` bytes from their hexadecimal digits in lower case: one spelling for one value. `None` for any other text.
#[must_use]
pub fn from_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    // `decode_to_slice` would take capitals as well.
    if text.bytes().any(|b| b.is_ascii_uppercase()) {
        return None;
    }
    let mut bytes = [0; N];
    hex::decode_to_slice(text, &mut bytes).ok().map(|()| bytes)
}

/// SHA-256 of a value's canonical JSON.
#[must_use]
pub fn of_json(value: &Value) -> [u8; 32] {
    sha256(canonical(value).as_bytes())
}

/// JSON without white space and with every object's fields in the order of their names' bytes.
#[must_use]
pub fn canonical(value: &Value) -> String {
    match value {
        Value::Object(fields) => {
            let mut names: Vec<&String> = fields.keys().collect();
            names.sort();
            let inner: Vec<String> = names
                .into_iter()
                .map(|name| format!("{}:{}", Value::from(name.as_str()), canonical(&fields[name])))
                .collect();
            format!("{{{}}}", inner.join(","))
        }
        Value::Array(items) => {
            let inner: Vec<String> = items.iter().map(canonical).collect();
            format!("[{}]", inner.join(","))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn bytes_have_one_spelling() {
        assert_eq!(from_hex::<2>("00af"), Some([0, 0xaf]));
        for bad in ["", "00", "00AF", "00a", "00af00", "00ag", "é0a"] {
            assert_eq!(from_hex::<2>(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn the_order_of_fields_does_not_change_a_digest() {
        let one: Value = serde_json::from_str(r#"{"b":[1,{"y":2,"x":3}],"a":"é\n"}"#).expect("valid");
        let two = json!({"a": "é\n", "b": [1, {"x": 3, "y": 2}]});
        assert_eq!(of_json(&one), of_json(&two));
        assert_eq!(canonical(&one), r#"{"a":"é\n","b":[1,{"x":3,"y":2}]}"#);
        assert_ne!(of_json(&one), of_json(&json!({"a": "é\n", "b": [1, {"x": 3, "y": 3}]})));
    }
}
