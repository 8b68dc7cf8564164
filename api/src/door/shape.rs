//! Reading a type out of JSON in which only an object is an object, at any depth.
//!
//! What serde derives for a struct takes an array for its fields in their order, too. The description of the API promises
//! an object there, and an array would bring every field that is added later under another name.

use serde::Deserializer;
use serde::de::value::{MapDeserializer, SeqDeserializer};
use serde::de::{Error as _, IntoDeserializer, Unexpected, Visitor};
use serde::forward_to_deserialize_any;
use serde_json::{Error, Value};

/// As the value itself, but that it gives no array where a struct is wanted.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shaped<'a>(pub(super) &'a Value);

impl<'de> Deserializer<'de> for Shaped<'de> {
    type Error = Error;

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        if self.0.is_array() {
            return Err(Error::invalid_type(Unexpected::Seq, &"an object"));
        }
        self.deserialize_any(visitor)
    }

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.0 {
            Value::Array(items) => {
                let mut items = SeqDeserializer::new(items.iter().map(Shaped));
                let taken = visitor.visit_seq(&mut items)?;
                items.end().map(|()| taken)
            }
            Value::Object(fields) => {
                let mut fields =
                    MapDeserializer::new(fields.iter().map(|(name, value)| (name.as_str(), Shaped(value))));
                let taken = visitor.visit_map(&mut fields)?;
                fields.end().map(|()| taken)
            }
            plain @ (Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_)) => {
                plain.deserialize_any(visitor)
            }
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        if self.0.is_null() { visitor.visit_none() } else { visitor.visit_some(self) }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    /// Bodies have words of a list alone: what a variant held would be read as serde reads it, arrays for objects included.
    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        let what = match self.0 {
            Value::String(_) => return self.0.deserialize_enum(name, variants, visitor),
            Value::Null => Unexpected::Unit,
            Value::Bool(flag) => Unexpected::Bool(*flag),
            Value::Number(_) => Unexpected::Other("a number"),
            Value::Array(_) => Unexpected::Seq,
            Value::Object(_) => Unexpected::Map,
        };
        Err(Error::invalid_type(what, &"a word of a list, which holds no data of its own"))
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct seq tuple
        tuple_struct map identifier ignored_any
    }
}

impl<'de> IntoDeserializer<'de, Error> for Shaped<'de> {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use serde_json::json;

    use super::*;

    #[derive(Debug, PartialEq, Deserialize)]
    struct Inner {
        a: i64,
    }

    #[derive(Debug, PartialEq, Deserialize)]
    struct Outer {
        one: Option<Inner>,
        many: Vec<Inner>,
        pair: (i64, String),
        word: Word,
        number: f64,
        any: Value,
    }

    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(rename_all = "snake_case")]
    enum Word {
        Here,
    }

    fn outer() -> Value {
        json!({"one": {"a": 1}, "many": [{"a": 2}], "pair": [3, "x"], "word": "here", "number": 4, "any": [[5]]})
    }

    #[derive(Debug, Deserialize)]
    #[serde(rename_all = "snake_case")]
    enum Laden {
        Empty,
        #[expect(dead_code, reason = "it is never taken")]
        Full(Inner),
    }

    #[test]
    fn a_word_of_a_list_holds_no_data() {
        assert!(matches!(Laden::deserialize(Shaped(&json!("empty"))), Ok(Laden::Empty)));
        for bad in [json!({"full": {"a": 1}}), json!({"full": [1]}), json!({"empty": null}), json!(["empty"]), json!(1)]
        {
            let refused = Laden::deserialize(Shaped(&bad)).expect_err("a word is a text");
            assert!(refused.to_string().contains("holds no data of its own"), "{bad}: {refused}");
        }
    }

    #[test]
    fn an_array_is_refused_where_an_object_is_wanted_and_taken_where_it_is_one() {
        let read = |value: &Value| Outer::deserialize(Shaped(value));
        assert_eq!(read(&outer()).ok(), Outer::deserialize(&outer()).ok());
        assert!(read(&outer()).is_ok_and(|read| read.one == Some(Inner { a: 1 })));
        let with = |name: &str, value: Value| {
            let mut changed = outer();
            changed[name] = value;
            changed
        };
        assert!(read(&with("one", Value::Null)).is_ok_and(|read| read.one.is_none()));
        for (name, bad) in [("one", json!([1])), ("many", json!([{"a": 2}, [2]])), ("many", json!([[]]))] {
            let bad = with(name, bad);
            let refused = read(&bad).expect_err("an array is no object");
            assert!(refused.to_string().contains("expected an object"), "{bad}: {refused}");
        }
        assert!(read(&json!([{"a": 1}, [{"a": 2}], [3, "x"], "here", 4, []])).is_err());
        assert!(read(&with("pair", json!([3, "x", 4]))).is_err(), "nothing is left over");
        assert!(read(&with("word", json!("there"))).is_err() && read(&with("number", json!("4"))).is_err());
    }
}
