//! Which host a request is for.

use http::header::HOST;
use http::request::Parts;
use http::uri::Authority;

/// The host, in lower case, without its port and without a dot at its end; `None` where the request names none, or more
/// than one. A request whose target is a whole URL means the host of that (RFC 9112, 3.2.2).
pub(super) fn of(head: &Parts) -> Option<String> {
    let mut named = head.headers.get_all(HOST).iter();
    let (first, second) = (named.next(), named.next());
    if second.is_some() {
        return None;
    }
    match head.uri.authority() {
        Some(authority) => plain(authority.as_str()),
        None => plain(first?.to_str().ok()?),
    }
}

fn plain(authority: &str) -> Option<String> {
    let authority: Authority = authority.trim().parse().ok()?;
    // Names and passwords have no place here.
    if authority.as_str().contains('@') {
        return None;
    }
    let host = authority.host();
    let host = host.strip_suffix('.').unwrap_or(host);
    (!host.is_empty()).then(|| host.to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn host(target: &str, headers: &[&str]) -> Option<String> {
        let request = headers.iter().fold(Request::get(target), |request, value| request.header(HOST, *value));
        of(&request.body(()).unwrap().into_parts().0)
    }

    #[test]
    fn case_port_and_a_last_dot_make_no_other_host() {
        for same in ["a.example", "A.Example", "a.example:8080", "A.EXAMPLE:80", "a.example.", "a.example.:443"] {
            assert_eq!(host("/", &[same]).as_deref(), Some("a.example"), "{same}");
        }
        assert_eq!(host("/", &["[::1]:80"]).as_deref(), Some("[::1]"));
        assert_eq!(host("http://b.example:1/x", &["a.example"]).as_deref(), Some("b.example"));
    }

    #[test]
    fn none_several_and_nonsense_name_no_host() {
        for bad in
            [&[][..], &["a.example", "b.example"], &[""], &["."], &[":80"], &["a b"], &["me@a.example"], &["a/b"]]
        {
            assert_eq!(host("/", bad), None, "{bad:?}");
        }
    }
}
