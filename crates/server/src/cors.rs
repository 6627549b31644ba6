//! Which pages in browsers may read answers (CORS, <https://fetch.spec.whatwg.org/#http-cors-protocol>).

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use axum::http::{HeaderValue, Method, header};
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};

/// How long a browser may go on by what it was told.
const MAX_AGE: Duration = Duration::from_mins(10);

/// The origin of a page: a scheme, a name and a port, as browsers send it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin(HeaderValue);

/// A text is not an origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected an origin, like https://app.example.com or http://localhost:3000; name each one")]
pub struct OriginError;

impl FromStr for Origin {
    type Err = OriginError;

    fn from_str(text: &str) -> Result<Self, OriginError> {
        let text = text.trim().to_ascii_lowercase();
        let (scheme, place) = text.split_once("://").ok_or(OriginError)?;
        let (name, port) = match place.rsplit_once(':') {
            Some((name, port)) if !port.ends_with(']') => (name, Some(port)),
            _ => (place, None),
        };
        let named = |c: char| c.is_ascii_alphanumeric() || "-._[]:".contains(c);
        let is_port = |port: &str| {
            let digits = port.bytes().all(|byte| byte.is_ascii_digit());
            digits && port.parse::<u16>().is_ok_and(|port| port > 0)
        };
        let fits = !name.is_empty() && name.chars().all(named) && port.is_none_or(is_port);
        if !fits || !scheme.bytes().all(|byte| byte.is_ascii_alphanumeric()) || scheme.is_empty() {
            return Err(OriginError);
        }
        // A browser leaves out the port that the scheme has anyway.
        let usual = matches!(
            (scheme, port),
            ("http", Some("80")) | ("https", Some("443"))
        );
        let sent = if usual {
            format!("{scheme}://{name}")
        } else {
            text.clone()
        };
        HeaderValue::from_str(&sent)
            .map(Self)
            .map_err(|_| OriginError)
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.to_str().unwrap_or_default())
    }
}

/// Answers what browsers ask before a page's request, and lets these pages read the answers. Without
/// origins there is no such layer and no header. Pages send their key in a header, never a cookie, so
/// credentials are not allowed.
pub(crate) fn layer(origins: &[Origin]) -> Option<CorsLayer> {
    let allowed = origins.iter().map(|origin| origin.0.clone());
    (!origins.is_empty()).then(|| {
        CorsLayer::new()
            .allow_origin(AllowOrigin::list(allowed))
            .allow_methods([Method::GET, Method::POST])
            // Clients add headers of their own, as `x-stainless-os`.
            .allow_headers(AllowHeaders::mirror_request())
            .expose_headers([header::RETRY_AFTER])
            .max_age(MAX_AGE)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_are_as_browsers_send_them() {
        let read = |text: &str| text.parse::<Origin>().map(|origin| origin.to_string());
        for (text, sent) in [
            ("https://app.example.com", "https://app.example.com"),
            (" HTTP://LocalHost:3000", "http://localhost:3000"),
            ("https://a.b:443", "https://a.b"),
            ("http://a.b:80", "http://a.b"),
            ("http://a.b:443", "http://a.b:443"),
            ("http://[::1]:3000", "http://[::1]:3000"),
            ("http://[::1]", "http://[::1]"),
            ("tauri://localhost", "tauri://localhost"),
        ] {
            assert_eq!(read(text).as_deref(), Ok(sent), "{text}");
        }
        for text in [
            "",
            "*",
            "null",
            "app.example.com",
            "https://",
            "https://a.b/",
            "https://a.b/c",
            "https://*.b",
            "https://a.b:",
            "https://a.b:0",
            "https://a.b:99999",
            "https://u@a.b",
            "https://a b",
            "https://a,https://b",
        ] {
            assert_eq!(read(text), Err(OriginError), "{text}");
        }
    }
}
