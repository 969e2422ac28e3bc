//! API keys.

use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use sha2::{Digest, Sha256};
use subtle::{Choice, ConstantTimeEq};

const API_KEY: &str = "x-api-key";

/// The server's API keys, as hashes: all of the same length, so that comparison times reveal nothing.
#[derive(Clone)]
pub(crate) struct Keys(Vec<[u8; 32]>);

impl Keys {
    pub(crate) fn new(keys: &[String]) -> Self {
        Self(keys.iter().map(|key| Sha256::digest(key.as_bytes()).into()).collect())
    }

    /// Whether these headers have one of the keys; without keys every request is accepted.
    pub(crate) fn accept(&self, headers: &HeaderMap) -> bool {
        if self.0.is_empty() {
            return true;
        }
        let bearer =
            headers.get(AUTHORIZATION).and_then(|value| value.as_bytes().split_at_checked(7));
        let bearer = bearer.filter(|(scheme, _)| scheme.eq_ignore_ascii_case(b"bearer "));
        // Anthropic's clients send a different header.
        let given = match (bearer, headers.get(API_KEY)) {
            (Some((_, key)), _) => key,
            (None, Some(key)) => key.as_bytes(),
            (None, None) => return false,
        };
        let given: [u8; 32] = Sha256::digest(given).into();
        // Every key is compared, even after a match.
        self.0.iter().fold(Choice::from(0), |any, key| any | key.ct_eq(&given)).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    #[test]
    fn one_of_the_keys_opens() {
        let keys = Keys::new(&["first".to_owned(), "second".to_owned()]);
        let check = |value: &'static str, want: bool| {
            let mut headers = HeaderMap::new();
            headers.insert(AUTHORIZATION, HeaderValue::from_static(value));
            assert_eq!(keys.accept(&headers), want, "{value}");
        };
        check("Bearer first", true);
        check("bearer second", true);
        for wrong in
            ["first", "Bearer firs", "Bearer first2", "Bearer ", "Basic first", "Bearer", ""]
        {
            check(wrong, false);
        }
        let mut headers = HeaderMap::new();
        headers.insert(API_KEY, HeaderValue::from_static("second"));
        assert!(keys.accept(&headers));
        headers.insert(API_KEY, HeaderValue::from_static("third"));
        assert!(!keys.accept(&headers));
        assert!(!keys.accept(&HeaderMap::new()));
        assert!(Keys::new(&[]).accept(&HeaderMap::new()));
    }
}
