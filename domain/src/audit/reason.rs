//! Why somebody acts, in words that whoever meets the act later can read.

/// Longest reason that an operator can give, in characters.
pub const MAX_REASON_CHARS: usize = 1000;

/// A reason has more than [`MAX_REASON_CHARS`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("must have at most {MAX_REASON_CHARS} characters")]
pub struct TooLong;

/// A reason without the white space around it; `None` where nothing of it can be seen: that is none.
///
/// The one place that says what a reason is, for everyone who takes one.
///
/// # Errors
/// [`TooLong`].
pub fn reason(text: &str) -> Result<Option<&str>, TooLong> {
    let text = text.trim();
    if text.chars().all(is_unseen) {
        return Ok(None);
    }
    if text.chars().count() > MAX_REASON_CHARS { Err(TooLong) } else { Ok(Some(text)) }
}

/// White space, control characters, and what Unicode calls default ignorable: characters that show nothing by themselves.
/// (`DefaultIgnorableCodePoint` of Unicode 16, and the Braille pattern without a dot.)
fn is_unseen(c: char) -> bool {
    c.is_whitespace()
        || c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}'..='\u{1160}' | '\u{17b4}'..='\u{17b5}'
            | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
            | '\u{2800}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fff8}'
            | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_of_which_nothing_can_be_seen_is_none() {
        let unseen =
            ["", " \t\r\n", "\u{2003}", "\u{a0}\u{3000}", "\u{200b}", "\u{feff}", "\u{2060}", "\u{200d}\u{fe0f}"];
        for text in
            unseen.into_iter().chain(["\u{ad} \u{202e}", "\u{3164}", "\u{2800}", "\u{0}\u{7f}\u{85}", "\u{e0020}"])
        {
            assert_eq!(reason(text), Ok(None), "{text:?}");
        }
        for text in ["x", ".", "й", "原", "\u{200b}x", "\u{2764}\u{fe0f}", "नहीं"] {
            assert_eq!(reason(text), Ok(Some(text)), "{text:?}");
        }
        assert_eq!(reason("\u{2003} the disk \u{2003}"), Ok(Some("the disk")));
    }

    #[test]
    fn a_reason_is_bounded_in_characters_without_the_space_around_it() {
        let longest = "é".repeat(MAX_REASON_CHARS);
        assert_eq!(reason(&format!(" {longest} ")), Ok(Some(longest.as_str())));
        assert_eq!(reason(&format!("{longest}é")), Err(TooLong));
    }
}
