//! What the address of a page asks for.

use axum::extract::{FromRequestParts, Query};
use http::request::Parts;
use serde::de::DeserializeOwned;
use serde::de::value::{self, MapDeserializer};

use super::failure::Failure;

/// A query, taken as the pages write it: what is doubled or unknown is refused, never ignored. Every value is a text.
pub(super) struct Address<T>(pub(super) T);

impl<S: Sync, T: DeserializeOwned> FromRequestParts<S> for Address<T> {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Failure> {
        let pairs = Query::<Vec<(String, String)>>::try_from_uri(&parts.uri);
        let Query(pairs) =
            pairs.map_err(|_| Failure::Invalid("The query of the address cannot be read.".to_owned()))?;
        read(pairs).map(Self).map_err(|cause| {
            Failure::Invalid(format!("The address asks for something that this page does not know: {cause}."))
        })
    }
}

/// The cause stands alone, without the place in the text that a reader of whole queries puts before it.
fn read<T: DeserializeOwned>(pairs: Vec<(String, String)>) -> Result<T, value::Error> {
    T::deserialize(MapDeserializer::new(pairs.into_iter()))
}
