//! One page for people, of as many pages of the API as it takes.

use wire::{DEFAULT_LIMIT, Page};

/// Asks until there are as many items as `limit` (the API's default where none) or the list ends: with filters the API
/// may answer a short or an empty page that is not the last.
///
/// # Errors
/// The first of `ask`.
pub(crate) async fn filled<T>(
    limit: Option<u16>,
    cursor: Option<String>,
    mut ask: impl AsyncFnMut(u16, Option<String>) -> anyhow::Result<Page<T>>,
) -> anyhow::Result<Page<T>> {
    let mut missing = limit.unwrap_or(DEFAULT_LIMIT);
    let mut whole = Page { items: Vec::new(), next_cursor: cursor };
    loop {
        let page = ask(missing, whole.next_cursor.take()).await?;
        missing = missing.saturating_sub(u16::try_from(page.items.len()).unwrap_or(u16::MAX));
        whole.items.extend(page.items);
        whole.next_cursor = page.next_cursor;
        if missing == 0 || whole.next_cursor.is_none() {
            return Ok(whole);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers these pages one after the other, and tells what was asked.
    fn list(limit: u16, pages: &[(&[u8], Option<&str>)]) -> (Page<u8>, Vec<(u16, Option<String>)>) {
        let (mut pages, mut asked) = (pages.iter(), Vec::new());
        let whole = crate::runtime::run(filled(Some(limit), None, async |missing, cursor| {
            asked.push((missing, cursor));
            let (items, next) = pages.next().expect("a page more than there are was asked for");
            Ok(Page { items: items.to_vec(), next_cursor: next.map(str::to_owned) })
        }));
        (whole.expect("a page"), asked)
    }

    #[test]
    fn short_and_empty_pages_are_gone_past_until_the_page_is_full() {
        let (whole, asked) = list(3, &[(&[], Some("a")), (&[1], Some("b")), (&[2, 3], Some("c"))]);
        assert_eq!((whole.items, whole.next_cursor.as_deref()), (vec![1, 2, 3], Some("c")));
        assert_eq!(asked, [(3, None), (3, Some("a".to_owned())), (2, Some("b".to_owned()))]);
    }

    #[test]
    fn the_end_of_the_list_ends_a_page_that_is_not_full() {
        let (whole, asked) = list(3, &[(&[1], Some("a")), (&[], None)]);
        assert_eq!((whole.items, whole.next_cursor), (vec![1], None));
        assert_eq!(asked.len(), 2);
    }
}
