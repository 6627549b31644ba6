//! Server-sent events: the wire of a streamed answer.
//!
//! The status is sent before the first token, so an error that comes later is an event of its own,
//! after which the stream ends without `[DONE]`.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Duration;

use axum::http::{HeaderName, HeaderValue};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream;

use crate::answers::{Answers, Piece, Totals};

/// How often a silent stream shows that it lives, while a request waits or a long prompt is read.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// How an endpoint words its stream; each string is one event's JSON.
pub(crate) trait Wording: Send + 'static {
    /// The events before the first token.
    fn opening(&mut self) -> Vec<String>;
    /// The events of one piece.
    fn piece(&mut self, piece: Piece) -> Vec<String>;
    /// The event with the usage of the whole call, if it was asked for.
    fn usage(&mut self, totals: Totals) -> Option<String>;
}

struct Writer<W> {
    answers: Answers,
    wording: W,
    ready: VecDeque<String>,
    ended: bool,
}

/// Streams the answers; a client that leaves drops and thereby cancels them.
pub(crate) fn respond(answers: Answers, mut wording: impl Wording) -> Response {
    let writer = Writer {
        ready: wording.opening().into(),
        answers,
        wording,
        ended: false,
    };
    let events = stream::unfold(writer, |mut writer| async {
        let data = writer.next().await?;
        Some((Ok::<_, Infallible>(Event::default().data(data)), writer))
    });
    let sse = Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE));
    let mut response = sse.into_response();
    // Proxies that collect answers would defeat the stream.
    let name = HeaderName::from_static("x-accel-buffering");
    response
        .headers_mut()
        .insert(name, HeaderValue::from_static("no"));
    response
}

impl<W: Wording> Writer<W> {
    async fn next(&mut self) -> Option<String> {
        loop {
            if let Some(data) = self.ready.pop_front() {
                return Some(data);
            }
            if self.ended {
                return None;
            }
            match self.answers.next().await {
                Some(Ok(piece)) => self.ready.extend(self.wording.piece(piece)),
                Some(Err(error)) => {
                    self.ready.push_back(error.json().to_string());
                    self.ended = true;
                }
                None => {
                    self.ready.extend(self.wording.usage(self.answers.totals()));
                    self.ready.push_back("[DONE]".to_owned());
                    self.ended = true;
                }
            }
        }
    }
}
