//! Who may ask: API keys, and the names under which the server may be addressed.
//!
//! Both are checked before any route, so a new route is closed unless it is listed here. Keys are kept
//! as SHA-256 digests and compared in constant time, all of them for each request. A name that is not
//! this machine's own is how a page in a browser reaches a server that listens on this machine alone
//! (DNS rebinding), so there only names of this machine are taken.

use std::convert::Infallible;
use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use axum::extract::{FromRequestParts, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use forthwith_core::request::MAX_CACHE_SALT;
use forthwith_core::units::TenantId;
use sha2::{Digest, Sha256};
use subtle::{ConditionallySelectable, ConstantTimeEq};

use crate::cors::Origin;
use crate::error::ApiError;
use crate::state::AppState;

/// What answers without a key: whether the server lives and is ready.
const OPEN: [&str; 3] = ["/health", "/live", "/ready"];
/// The largest file of keys, in bytes, and the most keys.
const MAX_FILE: u64 = 1 << 20;
const MAX_KEYS: usize = 4096;
/// The shortest and the longest key, and the longest label.
const KEY_BYTES: std::ops::RangeInclusive<usize> = 16..=512;
const MAX_LABEL: usize = 64;

/// A file of API keys cannot be used. Keys are never quoted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeyFileError {
    /// The system refused it.
    #[error("cannot read {}: {reason}", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        reason: std::io::Error,
    },
    /// A line is wrong.
    #[error("{}, line {line}: {problem}", .path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The line's number, from 1 on.
        line: usize,
        /// What is wrong and what would be right.
        problem: String,
    },
    /// The file as a whole is wrong.
    #[error("{}: {problem}", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong and what would be right.
        problem: String,
    },
}

/// API keys with labels.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct ApiKeys(Vec<Key>);

#[derive(Clone, PartialEq, Eq)]
struct Key {
    label: String,
    digest: [u8; 32],
}

impl fmt::Debug for ApiKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} keys", self.0.len())
    }
}

impl ApiKeys {
    /// Reads a file with a label and a key on each line, blanks between them; lines that are empty or begin
    /// with `#` are skipped.
    ///
    /// # Errors     [`KeyFileError`], one line that names the file and the line, never a key
    pub fn read(path: &Path) -> Result<Self, KeyFileError> {
        let unreadable = |reason| KeyFileError::Read {
            path: path.to_owned(),
            reason,
        };
        let size = std::fs::metadata(path).map_err(unreadable)?.len();
        let whole = |problem: String| KeyFileError::File {
            path: path.to_owned(),
            problem,
        };
        if size > MAX_FILE {
            return Err(whole(format!("{size} bytes, allowed are {MAX_FILE}")));
        }
        let text = std::fs::read_to_string(path).map_err(unreadable)?;
        let keys = Self::parse(&text).map_err(|(line, problem)| KeyFileError::Line {
            path: path.to_owned(),
            line,
            problem,
        })?;
        match keys.0.len() {
            1..=MAX_KEYS => Ok(keys),
            0 => Err(whole(
                "no keys; write a label and a key on a line".to_owned(),
            )),
            count => Err(whole(format!("{count} keys, allowed are {MAX_KEYS}"))),
        }
    }

    fn parse(text: &str) -> Result<Self, (usize, String)> {
        let mut keys = Vec::<Key>::new();
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let key = Key::parse(line).map_err(|problem| (index + 1, problem))?;
            if let Some(other) = keys.iter().find(|other| other.clashes(&key)) {
                let problem = format!("the label or the key of `{}` again", other.label);
                return Err((index + 1, problem));
            }
            keys.push(key);
        }
        Ok(Self(keys))
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The number of the key, from 1 on, or 0: every key is compared, whichever fits.
    fn find(&self, presented: &[u8]) -> u32 {
        let digest: [u8; 32] = Sha256::digest(presented).into();
        let mut found = 0;
        for (number, key) in (1..).zip(&self.0) {
            found.conditional_assign(&number, key.digest.ct_eq(&digest));
        }
        found
    }
}

impl Key {
    fn parse(line: &str) -> Result<Self, String> {
        let mut words = line.split_whitespace();
        let (Some(label), Some(key), None) = (words.next(), words.next(), words.next()) else {
            return Err("expected a label and a key, with a blank between them".to_owned());
        };
        let plain =
            |character: char| character.is_ascii_alphanumeric() || "_-.".contains(character);
        if label.len() > MAX_LABEL || !label.chars().all(plain) {
            return Err(format!(
                "a label has letters, digits, `_`, `-` and `.`, at most {MAX_LABEL}"
            ));
        }
        if !KEY_BYTES.contains(&key.len()) || !key.bytes().all(|byte| byte.is_ascii_graphic()) {
            let (least, most) = (KEY_BYTES.start(), KEY_BYTES.end());
            return Err(format!("a key has {least} to {most} characters of ASCII"));
        }
        Ok(Self {
            label: label.to_owned(),
            digest: Sha256::digest(key).into(),
        })
    }

    fn clashes(&self, other: &Self) -> bool {
        self.label == other.label || bool::from(self.digest.ct_eq(&other.digest))
    }
}

/// The rules of a server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccessRules {
    /// Who may ask; everybody if there are none.
    pub keys: ApiKeys,
    /// Names besides this machine's own under which the server may be addressed. Without any, a server
    /// that listens to others takes every name.
    pub hosts: Vec<String>,
    /// Pages that may ask from a browser; none without any.
    pub origins: Vec<Origin>,
}

/// Whom a request comes from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Caller {
    /// Who shares the engine with others by what was served.
    pub(crate) tenant: TenantId,
    /// The key's label, where callers may not see each other's traces in the cache.
    apart: Option<String>,
}

impl Caller {
    /// The salt of what this caller caches: with several keys, each has its own.
    pub(crate) fn salt(&self, asked: Option<Vec<u8>>) -> Option<Vec<u8>> {
        let Some(label) = &self.apart else {
            return asked;
        };
        let asked = asked.unwrap_or_default();
        if asked.len() > MAX_CACHE_SALT {
            // As it is, so that it is refused.
            return Some(asked);
        }
        let mut digest = Sha256::new();
        digest.update(label);
        digest.update([0]);
        digest.update(asked);
        Some(digest.finalize().to_vec())
    }
}

/// A state that knows its caller.
pub(crate) struct Asked(pub(crate) AppState);

impl FromRequestParts<AppState> for Asked {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<Self, Infallible> {
        let caller = parts.extensions.get::<Caller>().cloned();
        Ok(Self(state.on_behalf_of(caller.unwrap_or_default())))
    }
}

/// Lets a request pass, or answers in its place.
pub(crate) async fn check(
    State(state): State<AppState>,
    mut request: Request,
    next: Next,
) -> Response {
    let (rules, headers) = (state.access(), request.headers());
    if !rules.takes_host(state.is_local(), headers) {
        let message = "the server does not go by this name; \
                       add it with --allowed-host or address the server by its own";
        let refusal = ApiError::new(StatusCode::FORBIDDEN, message).coded("host_not_allowed");
        return refusal.into_response();
    }
    if !rules.keys.is_empty() && !OPEN.contains(&request.uri().path()) {
        let presented = presented(headers);
        let found = presented.map_or(0, |key| rules.keys.find(key));
        let Some(key) = (found as usize).checked_sub(1).map(|at| &rules.keys.0[at]) else {
            return unauthorized(presented.is_some());
        };
        let apart = (rules.keys.len() > 1).then(|| key.label.clone());
        request.extensions_mut().insert(Caller {
            tenant: TenantId::new(found.into()),
            apart,
        });
    }
    next.run(request).await
}

/// The key that a request shows. Of several, servers on its way may each have read another, so none counts.
fn presented(headers: &HeaderMap) -> Option<&[u8]> {
    let only = |name: HeaderName| {
        let mut values = headers.get_all(name).into_iter();
        let value = values.next().map(HeaderValue::as_bytes);
        (value, values.next().is_some())
    };
    let (plain, plainly_more) = only(HeaderName::from_static("x-api-key"));
    let (bearer, more) = only(header::AUTHORIZATION);
    if more || plainly_more {
        return None;
    }
    if plain.is_some() {
        return plain;
    }
    let value = bearer?;
    let (scheme, key) = value.split_at_checked(7)?;
    scheme
        .eq_ignore_ascii_case(b"bearer ")
        .then(|| key.trim_ascii())
}

fn unauthorized(presented: bool) -> Response {
    let message = if presented {
        "the API key is not known"
    } else {
        "an API key is needed; send the header `Authorization: Bearer KEY`"
    };
    let refusal = ApiError::new(StatusCode::UNAUTHORIZED, message).coded("invalid_api_key");
    let mut response = refusal.into_response();
    let scheme = HeaderValue::from_static("Bearer");
    response
        .headers_mut()
        .insert(header::WWW_AUTHENTICATE, scheme);
    response
}

impl AccessRules {
    /// Whether a request may use its `Host` header. One without goes by no name.
    fn takes_host(&self, local: bool, headers: &HeaderMap) -> bool {
        let Some(host) = headers.get(header::HOST) else {
            return true;
        };
        let name = host.to_str().map(name_of).unwrap_or_default();
        if self.hosts.is_empty() && !local {
            return true;
        }
        let address = name.trim_start_matches('[').trim_end_matches(']');
        let own = name.eq_ignore_ascii_case("localhost")
            || address
                .parse::<IpAddr>()
                .is_ok_and(|address| address.is_loopback() || !local);
        own || self
            .hosts
            .iter()
            .any(|host| host.eq_ignore_ascii_case(name))
    }
}

/// A host without its port.
fn name_of(host: &str) -> &str {
    let port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
    match host.rsplit_once(':') {
        Some((name, digits)) if port(digits) && (!name.contains(':') || name.ends_with(']')) => {
            name
        }
        _ => host,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: &str = "# ours\nann  sk-0123456789abcdef\n\nbob sk-fedcba9876543210 \n";

    #[test]
    fn keys_are_found_by_what_they_are() {
        let keys = ApiKeys::parse(TWO).unwrap();
        assert_eq!(keys.find(b"sk-0123456789abcdef"), 1);
        assert_eq!(keys.find(b"sk-fedcba9876543210"), 2);
        for wrong in ["", "sk-0123456789abcde", "sk-0123456789abcdef ", "ann"] {
            assert_eq!(keys.find(wrong.as_bytes()), 0, "{wrong:?}");
        }
        assert_eq!(format!("{keys:?}"), "2 keys");
    }

    #[test]
    fn wrong_lines_are_told_without_their_keys() {
        let secret = "sk-0123456789abcdef";
        for (text, line) in [
            (format!("ann {secret} more"), 1),
            (format!("\n{secret}"), 2),
            (format!("a:b {secret}"), 1),
            (format!("ann {secret}\nann sk-fedcba9876543210"), 2),
            (format!("ann {secret}\nbob {secret}"), 2),
            ("ann short".to_owned(), 1),
            (format!("ann {secret}é"), 1),
        ] {
            let (at, problem) = ApiKeys::parse(&text).unwrap_err();
            assert_eq!(at, line, "{problem}");
            assert!(!problem.contains(secret), "{problem}");
        }
    }

    #[test]
    fn names_that_are_not_this_machines_are_refused_where_only_it_listens() {
        let takes = |hosts: &[&str], local, host: &str| {
            let hosts = hosts.iter().map(|&host| host.to_owned()).collect();
            let rules = AccessRules {
                keys: ApiKeys::default(),
                hosts,
                origins: Vec::new(),
            };
            let mut headers = HeaderMap::new();
            headers.insert(header::HOST, host.parse().unwrap());
            rules.takes_host(local, &headers)
        };
        for host in [
            "localhost",
            "LOCALHOST:8080",
            "127.0.0.1:1",
            "127.9.9.9",
            "[::1]:8080",
            "[::1]",
        ] {
            assert!(takes(&[], true, host), "{host}");
        }
        for host in [
            "evil.test",
            "evil.test:8080",
            "localhost.evil.test",
            "10.0.0.1",
            "",
        ] {
            assert!(!takes(&[], true, host), "{host}");
            assert!(takes(&[], false, host), "{host}");
        }
        assert!(takes(&["llm.lan"], true, "llm.lan:80") && takes(&["llm.lan"], false, "LLM.lan"));
        assert!(
            !takes(&["llm.lan"], false, "evil.test") && takes(&["llm.lan"], false, "10.0.0.1:80")
        );
    }

    #[test]
    fn callers_with_keys_of_their_own_share_no_cache() {
        let caller = |label: Option<&str>| Caller {
            tenant: TenantId::default(),
            apart: label.map(str::to_owned),
        };
        let asked = || Some(b"x".to_vec());
        assert_eq!(caller(None).salt(asked()), asked());
        assert_eq!(caller(None).salt(None), None);
        let salts = [
            caller(Some("ann")).salt(None),
            caller(Some("ann")).salt(asked()),
            caller(Some("bob")).salt(asked()),
        ];
        assert!(salts[0] != salts[1] && salts[1] != salts[2]);
        assert!(salts.iter().flatten().all(|salt| salt.len() == 32));
        let long = vec![0; MAX_CACHE_SALT + 1];
        assert_eq!(caller(Some("ann")).salt(Some(long.clone())), Some(long));
    }
}
