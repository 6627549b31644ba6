//! Whether a client takes what it is sent.
//!
//! The engine never waits for a client: a stream's events queue up in a channel that has room for
//! the whole answer, and hyper takes them as the socket takes bytes. The kernel holds little for a
//! connection ([`SEND_BUFFER`]), so a client that stops reading stops the socket soon. When the
//! socket took nothing for the stall timeout, the connection is closed; that drops its answers,
//! which cancels them, and they count as stalled.

use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_io_timeout::TimeoutStream;

use crate::metrics::Metrics;
use crate::state::AppState;

/// What the kernel may hold of what a client has not read, in bytes; Linux takes twice as much,
/// its own bookkeeping included. A socket is writable again when a third of it is free, so less
/// would find slow readers earlier and more would hide stalled ones longer.
pub(crate) const SEND_BUFFER: u32 = 32 << 10;

/// The client at the other end of a connection, known to the requests on it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reader(Arc<AtomicBool>);

impl Reader {
    /// Whether it took nothing for so long that its connection was given up.
    pub(crate) fn has_stalled(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    /// True at the first call only.
    fn stall(&self) -> bool {
        !self.0.swap(true, Ordering::AcqRel)
    }
}

/// Requests that came over no connection of ours have a reader that never stalls.
impl FromRequestParts<AppState> for Reader {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &AppState) -> Result<Self, Infallible> {
        Ok(parts.extensions.get().cloned().unwrap_or_default())
    }
}

/// A connection that gives up when its client stalls, and says so.
pub(crate) struct Watched<S> {
    stream: Pin<Box<TimeoutStream<S>>>,
    reader: Reader,
    metrics: Arc<Metrics>,
}

impl<S: AsyncRead + AsyncWrite> Watched<S> {
    /// Gives up after `patience` without a byte taken.
    pub(crate) fn new(stream: S, patience: Duration, metrics: Arc<Metrics>) -> Self {
        let mut stream = TimeoutStream::new(stream);
        stream.set_write_timeout(Some(patience));
        Self {
            stream: Box::pin(stream),
            reader: Reader::default(),
            metrics,
        }
    }

    pub(crate) fn reader(&self) -> Reader {
        self.reader.clone()
    }

    fn note(&self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Err(error)) = &written
            && error.kind() == io::ErrorKind::TimedOut
            && self.reader.stall()
        {
            self.metrics.stalled();
        }
        written
    }
}

impl<S: AsyncRead + AsyncWrite> AsyncRead for Watched<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.stream.as_mut().poll_read(context, buffer)
    }
}

impl<S: AsyncRead + AsyncWrite> AsyncWrite for Watched<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = self.stream.as_mut().poll_write(context, bytes);
        self.note(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = self.stream.as_mut().poll_write_vectored(context, slices);
        self.note(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream.as_mut().poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream.as_mut().poll_shutdown(context)
    }
}
