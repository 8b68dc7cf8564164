//! Queries: what the API's description lists is what is taken; everything else is refused, never ignored.

use std::collections::HashMap;

use serde::de::DeserializeOwned;
use utoipa::openapi::OpenApi;
use utoipa::openapi::path::ParameterIn;
use wire::Code;

use super::failure::Failure;

/// Longest query, in bytes.
const MAX_QUERY_BYTES: usize = 4096;

/// The parameters that each route takes, by method and path.
pub type Queries = HashMap<(&'static str, String), Vec<String>>;

/// Reads the parameters of every route out of the API's description.
#[must_use]
pub fn described(openapi: &OpenApi) -> Queries {
    let mut queries = Queries::new();
    for (path, item) in &openapi.paths.paths {
        for (method, operation) in crate::openapi::operations(item) {
            let names = crate::openapi::parameters(operation)
                .filter(|parameter| parameter.parameter_in == ParameterIn::Query)
                .map(|parameter| parameter.name.clone())
                .collect();
            queries.insert((method, path.clone()), names);
        }
    }
    queries
}

/// Refuses parameters that are unknown, doubled or unreadable.
///
/// # Errors
/// `invalid_query`.
pub fn check(queries: &Queries, method: &str, path: &str, query: Option<&str>) -> Result<(), Failure> {
    let Some(query) = query.filter(|query| !query.is_empty()) else { return Ok(()) };
    if query.len() > MAX_QUERY_BYTES {
        return Err(invalid(format!("The query is longer than {MAX_QUERY_BYTES} bytes.")));
    }
    let method = if method == "HEAD" { "GET" } else { method };
    let known = queries.iter().find(|((m, p), _)| *m == method && p == path).map(|(_, names)| names.as_slice());
    let known = known.unwrap_or_default();
    let mut seen: Vec<String> = Vec::new();
    let pairs: Vec<(String, String)> = parse(query)?;
    for (name, value) in pairs {
        if !known.contains(&name) {
            let takes = if known.is_empty() { "takes none".to_owned() } else { format!("takes {}", known.join(", ")) };
            return Err(invalid(format!("The query parameter {name:?} is unknown; this route {takes}.")));
        }
        if value.contains('\0') {
            return Err(invalid(format!("The query parameter {name:?} contains the character U+0000.")));
        }
        if seen.contains(&name) {
            return Err(invalid(format!("The query parameter {name:?} is given twice: give it once.")));
        }
        seen.push(name);
    }
    Ok(())
}

/// Reads the query of a route.
///
/// # Errors
/// `invalid_query` for a value that is not of the parameter's type.
pub fn read<T: DeserializeOwned>(uri: &http::Uri) -> Result<T, Failure> {
    parse(uri.query().unwrap_or_default())
}

fn parse<T: DeserializeOwned>(query: &str) -> Result<T, Failure> {
    // Only the query is looked at; the rest of the address is a placeholder.
    let uri = http::Uri::builder().path_and_query(format!("/?{query}")).build();
    let uri = uri.map_err(|error| invalid(format!("The query cannot be read: {error}.")))?;
    axum::extract::Query::<T>::try_from_uri(&uri)
        .map(|axum::extract::Query(value)| value)
        .map_err(|rejection| invalid(format!("{}.", rejection.body_text().trim_end_matches('.'))))
}

fn invalid(detail: String) -> Failure {
    Failure::new(Code::InvalidQuery, detail)
}
