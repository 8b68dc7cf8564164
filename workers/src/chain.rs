//! Errors for people.

use std::error::Error;

/// An error with its causes, in one line.
pub(crate) fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text.push_str(": ");
        text.push_str(&inner.to_string());
        cause = inner.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_tells_its_causes_from_the_outside_in() {
        let error = anyhow::anyhow!("no route").context("connect").context("reach the queue");
        assert_eq!(chain(error.as_ref()), "reach the queue: connect: no route");
    }
}
