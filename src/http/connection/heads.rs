//! The heads of a connection, a few at a time.
//!
//! actix-http decodes all that it has read, and a decoded request takes several KiB, however few
//! bytes it has. So of what a client sends in advance it gets [`HEADS_MAX`] heads, and the next
//! after the requests have ended; the rest waits here as the bytes that it is.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use actix_web::web::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::turns::ConnectionRequests;

/// Heads that actix-http gets while a request is in progress, with that of the request.
pub const HEADS_MAX: usize = 8;

/// A stream that withholds heads.
#[derive(Debug)]
pub struct HeadByHead<T> {
    io: T,
    requests: ConnectionRequests,
    /// Was read, and is not given yet.
    rest: Bytes,
}

impl<T> HeadByHead<T> {
    /// `requests` are those of the stream.
    pub fn new(io: T, requests: ConnectionRequests) -> Self {
        Self { io, requests, rest: Bytes::new() }
    }

    pub fn requests(&self) -> ConnectionRequests {
        self.requests.clone()
    }

    /// How many of these bytes may be given now: up to the last byte of the first head that is too
    /// many, so that the body of the one before is complete.
    fn num_given(&self, bytes: &[u8]) -> usize {
        let Some(num_heads) = self.requests.num_heads_wanted(HEADS_MAX) else { return 0 };
        let mut end = 0;
        for number in 0..=num_heads {
            let rest = bytes.get(end..).unwrap_or_default();
            let Some(head) = end_of_head(rest) else { return bytes.len() };
            self.requests.has_given_head();
            end += head;
            if number == num_heads {
                return end - 1;
            }
        }
        end
    }
}

/// The position after the first empty line. One of a body counts as well.
fn end_of_head(bytes: &[u8]) -> Option<usize> {
    let mut at = 0;
    loop {
        at += bytes.get(at..)?.iter().position(|byte| *byte == b'\n')? + 1;
        match bytes.get(at..)? {
            [b'\n', ..] => return Some(at + 1),
            [b'\r', b'\n', ..] => return Some(at + 2),
            _ => {}
        }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for HeadByHead<T> {
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
            let num_given = this.num_given(this.rest.get(..length).unwrap_or_default());
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

impl<T: AsyncWrite + Unpin> AsyncWrite for HeadByHead<T> {
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
