//! The heads of a connection, a few at a time.
//!
//! actix-http decodes all that it has read, and a decoded request takes several KiB, however few
//! bytes it has. So of what a client sends in advance it gets
//! [`HEADS_MAX`](super::turns::HEADS_MAX) heads, and the next after the requests have ended; the
//! rest waits here as the bytes that it is.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use actix_web::web::Bytes;
use memchr::memchr_iter;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::turns::ConnectionRequests;

/// Whether a line, or a part of one, has no text.
fn is_empty(line: &[u8]) -> bool {
    line.iter().all(|byte| *byte == b'\r')
}

/// A stream that withholds heads.
#[derive(Debug)]
pub struct LimitedHeads<T> {
    io: T,
    requests: ConnectionRequests,
    /// Was read, and is not given yet.
    rest: Bytes,
    /// Whether the line of the last byte that was given has been empty so far.
    is_line_empty: bool,
}

impl<T> LimitedHeads<T> {
    /// `requests` are those of the stream.
    pub fn new(io: T, requests: ConnectionRequests) -> Self {
        Self { io, requests, rest: Bytes::new(), is_line_empty: true }
    }

    pub fn requests(&self) -> ConnectionRequests {
        self.requests.clone()
    }

    /// How many of these bytes may be given now: all before the last byte of the first head that is
    /// too many, so that the body of the one before is complete. An empty line ends a head,
    /// wherever reads cut it; those of bodies count as well.
    fn num_given(&mut self, bytes: &[u8]) -> usize {
        let Some(mut num_heads) = self.requests.num_heads_wanted() else { return 0 };
        let mut line_start = 0;
        for line_end in memchr_iter(b'\n', bytes) {
            let line = bytes.get(line_start..line_end).unwrap_or_default();
            if self.is_line_empty && is_empty(line) {
                self.requests.has_given_head();
                let Some(left) = num_heads.checked_sub(1) else {
                    // Counted: it does not end a head once more.
                    self.is_line_empty = false;
                    return line_end;
                };
                num_heads = left;
            }
            self.is_line_empty = true;
            line_start = line_end + 1;
        }
        self.is_line_empty &= is_empty(bytes.get(line_start..).unwrap_or_default());
        bytes.len()
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for LimitedHeads<T> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let num_given = if this.rest.is_empty() {
            let before = buffer.filled().len();
            ready!(Pin::new(&mut this.io).poll_read(cx, buffer))?;
            let read = buffer.filled().get(before..).unwrap_or_default();
            if read.is_empty() {
                return Poll::Ready(Ok(()));
            }
            let num_given = this.num_given(read);
            this.rest = Bytes::copy_from_slice(read.get(num_given..).unwrap_or_default());
            buffer.set_filled(before + num_given);
            num_given
        } else {
            this.requests.begin_turn();
            let length = this.rest.len().min(buffer.remaining());
            let num_given = this.num_given(&this.rest.slice(..length));
            buffer.put_slice(&this.rest.split_to(num_given));
            num_given
        };
        if num_given == 0 {
            // The end of the requests in progress wakes the connection.
            this.requests.withhold();
            return Poll::Pending;
        }
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for LimitedHeads<T> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().io).poll_write(cx, buffer)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_shutdown(cx)
    }
}
