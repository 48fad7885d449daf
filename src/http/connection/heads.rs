//! The heads of a connection, one at a time.
//!
//! actix-http decodes all that it has read, and a decoded request takes several KiB, however few
//! bytes it has. So of what a client sends in advance it gets no more than the first head, and the
//! next one after the request has ended; the rest waits here as the bytes that it is.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use actix_web::web::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::turns::ConnectionRequests;

/// A stream whose reads end with a head.
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

    /// How many of these bytes may be given now.
    fn num_given(&self, bytes: &[u8]) -> usize {
        if !self.requests.may_begin() {
            return 0;
        }
        let head = end_of_head(bytes);
        if head.is_some() {
            self.requests.has_begun_reading();
        }
        head.unwrap_or(bytes.len())
    }
}

/// The position after the first empty line.
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
            let length = this.rest.len().min(buffer.remaining());
            let num_given = this.num_given(this.rest.get(..length).unwrap_or_default());
            buffer.put_slice(&this.rest.split_to(num_given));
            num_given
        };
        if num_given == 0 {
            // The end of the turn or of the request wakes the connection.
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
