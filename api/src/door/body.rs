//! Bodies: JSON that says each thing once and nothing unknown.

use std::fmt;

use axum::extract::{FromRequest, Request};
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use serde::de::{self, DeserializeOwned, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};
use serde_path_to_error::Segment;
use wire::{Code, FieldError};

use super::failure::Failure;
use super::shape::Shaped;

/// Largest body of a request.
pub const MAX_BODY_BYTES: usize = 1024 * 1024;
/// Largest body of a batch (Q-021).
pub const MAX_BATCH_BYTES: usize = 32 * 1024 * 1024;

/// A body of at most `LIMIT` bytes, taken whole but not yet judged: a route that must first look whether its subject
/// exists parses it afterwards.
#[derive(Debug)]
pub struct Body<const LIMIT: usize = MAX_BODY_BYTES> {
    taken: Result<bytes::Bytes, Failure>,
    is_json: bool,
    announced: bool,
}

impl<S: Send + Sync, const LIMIT: usize> FromRequest<S> for Body<LIMIT> {
    type Rejection = Failure;

    async fn from_request(request: Request, _: &S) -> Result<Self, Self::Rejection> {
        let mut types = request.headers().get_all(CONTENT_TYPE).iter();
        let (first, second) = (types.next(), types.next());
        let is_json = second.is_none() && first.and_then(|value| value.to_str().ok()).is_some_and(announces_json)
            // What is compressed would be read as it is, and refused for the wrong reason.
            && request.headers().get_all(CONTENT_ENCODING).iter().all(|coding| coding == "identity");
        let announced = first.is_some();
        let length = request.headers().get(CONTENT_LENGTH).and_then(|value| value.to_str().ok());
        let declared: Option<usize> = length.and_then(|text| text.parse().ok());
        let taken = if declared.is_some_and(|length| length > LIMIT) {
            Err(too_large(LIMIT))
        } else {
            match Limited::new(request.into_body(), LIMIT).collect().await {
                Ok(body) => Ok(body.to_bytes()),
                Err(error) if error.downcast_ref::<LengthLimitError>().is_some() => Err(too_large(LIMIT)),
                Err(error) => {
                    let detail = "The body broke off before its end: send it again.";
                    Err(Failure::new(Code::MalformedRequest, detail).caused_by(&*error))
                }
            }
        };
        Ok(Self { taken, is_json, announced })
    }
}

impl<const LIMIT: usize> Body<LIMIT> {
    /// Reads the body as `T`, and gives the plain JSON beside it.
    ///
    /// # Errors
    /// `body_too_large`, `wrong_content_type`, `malformed_request`, and `validation_failed` for a text that the
    /// database cannot keep.
    pub fn parse<T: DeserializeOwned>(self) -> Result<(Value, T), Failure> {
        let bytes = self.taken?;
        if !self.is_json {
            let detail = "Send the body as JSON, uncompressed, with the header `Content-Type: application/json`.";
            return Err(Failure::new(Code::WrongContentType, detail));
        }
        read(&bytes)
    }

    /// As [`Body::parse`], where no body at all stands for every default.
    ///
    /// # Errors
    /// As [`Body::parse`].
    pub fn parse_or_default<T: DeserializeOwned + Default>(self) -> Result<T, Failure> {
        if !self.announced && self.taken.as_ref().is_ok_and(|bytes| bytes.is_empty()) {
            return Ok(T::default());
        }
        self.parse().map(|(_, value)| value)
    }
}

fn announces_json(content_type: &str) -> bool {
    let mut parts = content_type.split(';').map(str::trim);
    let is_json = parts.next().is_some_and(|essence| essence.eq_ignore_ascii_case("application/json"));
    is_json && parts.all(|part| part.eq_ignore_ascii_case("charset=utf-8"))
}

fn too_large(limit: usize) -> Failure {
    Failure::new(Code::BodyTooLarge, format!("The body is larger than the {limit} bytes that this route takes."))
}

fn read<T: DeserializeOwned>(bytes: &[u8]) -> Result<(Value, T), Failure> {
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let strict = <Strict as de::Deserialize>::deserialize(&mut reader).and_then(|value| reader.end().map(|()| value));
    let Strict(value) = strict.map_err(|error| malformed(format!("The body is no valid JSON: {error}.")))?;
    if let Some(pointer) = find_nul(&value, &mut String::new()) {
        return Err(Failure::field(pointer, "the character U+0000 cannot be kept: leave it out"));
    }
    if !value.is_object() {
        return Err(malformed("The body must be a JSON object.".to_owned()));
    }
    let typed = serde_path_to_error::deserialize(Shaped(&value)).map_err(|error| {
        let pointer: Option<String> = error.path().iter().map(step).collect();
        let cause = error.into_inner();
        let Some(pointer) = pointer.filter(|pointer| !pointer.is_empty()) else {
            return malformed(format!("The body has the wrong shape: {cause}."));
        };
        let detail = format!("The body has the wrong shape at {pointer}: {cause}.");
        malformed(detail).with_errors(vec![FieldError {
            pointer: Some(pointer),
            parameter: None,
            detail: cause.to_string(),
        }])
    })?;
    Ok((value, typed))
}

/// One step of a JSON pointer; `None` where nobody knows its name.
fn step(segment: &Segment) -> Option<String> {
    match segment {
        Segment::Seq { index } => Some(format!("/{index}")),
        Segment::Map { key } => Some(format!("/{}", escape(key))),
        Segment::Enum { variant } => Some(format!("/{}", escape(variant))),
        Segment::Unknown => None,
    }
}

fn malformed(detail: String) -> Failure {
    Failure::new(Code::MalformedRequest, detail)
}

/// Where a text contains U+0000, which PostgreSQL keeps neither as text nor in JSON.
fn find_nul(value: &Value, pointer: &mut String) -> Option<String> {
    let mut inside = |name: &str, value: &Value| {
        let length = pointer.len();
        pointer.push('/');
        pointer.push_str(&escape(name));
        let found = find_nul(value, pointer);
        pointer.truncate(length);
        found
    };
    match value {
        Value::String(text) => text.contains('\0').then(|| pointer.clone()),
        Value::Array(items) => items.iter().enumerate().find_map(|(i, item)| inside(&i.to_string(), item)),
        Value::Object(fields) => match fields.keys().find(|name| name.contains('\0')) {
            Some(name) => Some(format!("{pointer}/{}", shown(name))),
            None => fields.iter().find_map(|(name, field)| inside(name, field)),
        },
        Value::Null | Value::Bool(_) | Value::Number(_) => None,
    }
}

/// A name with U+0000 as a pointer can show it.
fn shown(name: &str) -> String {
    escape(&name.replace('\0', "\\u0000"))
}

/// A name as a JSON pointer writes it (RFC 6901).
#[must_use]
pub fn escape(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}

/// A JSON value in which no object names a field twice, at any depth: `serde_json` alone would keep the last one.
struct Strict(Value);

impl<'de> de::Deserialize<'de> for Strict {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(StrictVisitor).map(Self)
    }
}

struct StrictVisitor;

impl<'de> Visitor<'de> for StrictVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(Strict(item)) = access.next_element()? {
            items.push(item);
        }
        Ok(Value::Array(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut fields = Map::new();
        while let Some(name) = access.next_key::<String>()? {
            let Strict(value) = access.next_value()?;
            if fields.contains_key(&name) {
                return Err(de::Error::custom(format!("the field {name:?} is given twice in one object")));
            }
            fields.insert(name, value);
        }
        Ok(Value::Object(fields))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[derive(Debug, serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Taken {
        #[expect(dead_code, reason = "only its shape is of interest")]
        a: Vec<i64>,
    }

    fn code(text: &str) -> Option<Code> {
        read::<Taken>(text.as_bytes()).err().map(|failure| failure.code())
    }

    #[test]
    fn what_is_doubled_unknown_or_trailing_is_refused() {
        assert_eq!(code(r#"{"a": [1]}"#), None);
        for bad in
            ["", "{", "[]", r#"{"a": [1], "a": [2]}"#, r#"{"a": [1], "b": 2}"#, r#"{"a": [1]} {}"#, r#"{"a": 1}"#]
        {
            assert_eq!(code(bad), Some(Code::MalformedRequest), "{bad}");
        }
        assert!(read::<Taken>(br#"[[1]]"#).is_err(), "an array is not taken for the fields in their order");
        assert!(read::<Value>(br#"{"a": [{"b": {"c": 1, "c": 1}}]}"#).is_err(), "at every depth");
        assert!(read::<Value>("[".repeat(100_000).as_bytes()).is_err(), "depth is bounded");
    }

    #[test]
    fn a_wrong_type_is_named_by_its_place() {
        let failure = read::<Taken>(br#"{"a": [1, "x"]}"#).expect_err("a text is no number");
        assert!(failure.problem().detail.contains("at /a/1:"), "{}", failure.problem().detail);
        assert_eq!(failure.problem().errors[0].pointer.as_deref(), Some("/a/1"));
    }

    /// A name that is passed over.
    #[derive(PartialEq, Eq, PartialOrd, Ord)]
    struct Unread;

    impl<'de> de::Deserialize<'de> for Unread {
        fn deserialize<D: Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
            Ok(Self)
        }
    }

    #[test]
    fn a_place_whose_name_nobody_read_is_not_named() {
        let failure = read::<BTreeMap<Unread, i64>>(br#"{"a": "x"}"#).err().expect("a text is no number");
        assert!(failure.problem().detail.starts_with("The body has the wrong shape: "), "{}", failure.problem().detail);
        assert!(failure.problem().errors.is_empty());
    }

    #[test]
    fn a_text_that_the_database_cannot_keep_is_named() {
        let failure = read::<Value>(b"{\"a\": [{\"x/y\": \"\\u0000\"}]}").expect_err("U+0000 is refused");
        assert_eq!(failure.problem().errors[0].pointer.as_deref(), Some("/a/0/x~1y"));
        let failure = read::<Value>(b"{\"a\": [{\"x\\u0000\": 1}]}").expect_err("in a name too");
        assert_eq!(failure.problem().errors[0].pointer.as_deref(), Some("/a/0/x\\u0000"));
    }
}
