//! A connection that no client can hold: the accepted stream with two clocks and a read budget.
//!
//! actix-http limits the time for the first head of a connection and the idle time between
//! requests. It limits neither later heads, nor bodies that no handler reads, nor writes. Here:
//!
//! | limit | starts with | ends with |
//! |---|---|---|
//! | [`READ_MAX`] | the first byte after a finished write | the next finished write |
//! | [`WRITE_MAX`] | a peer that takes no more bytes | [`PROGRESS`] bytes taken, or all |
//! | [`BYTES_MAX`] read | the first byte after a finished write | the next finished write |
//! | [`CLOSE_MAX`] | the close of our half of the connection | the close of the client's half |
//!
//! While a request is in progress, [`READ_MAX`] is paused. While the client does not take its
//! answers, nothing more is read from it; nor is more than a little of what it sends in advance
//! (see [`super::turns`]).
//! A *finished write* is one of everything that was to be sent: an answer, or a chunk of a stream.
//! A connection beyond a limit is cut. One that is closed while the client sends is closed in
//! stages (RFC 9112, section 9.6): what the client still sends is read and thrown away until it has
//! closed its half, because the kernel answers unread bytes with a reset, at which the client loses
//! the end of its answer. One timer per connection is set at most once in
//! [`READ_MAX`], not once per request: when it fires early it is set again.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};

use super::crowd::OpenConnection;
use super::turns::ConnectionRequests;
use crate::runtime::clock::now_of_timers;

/// Longest time from the first byte of a request to its answer, while none is in progress.
pub const READ_MAX: Duration = Duration::from_secs(20);

/// Longest time in which a peer takes less than [`PROGRESS`] bytes of an answer.
pub const WRITE_MAX: Duration = Duration::from_secs(10);

/// Bytes that a peer must take within [`WRITE_MAX`].
pub const PROGRESS: usize = 16 * 1024;

/// Most bytes that are read without a finished write: above the largest `http.body_max_bytes`
/// with its head.
pub const BYTES_MAX: usize = 512 * 1024;

/// Longest time for a client to take the rest of its answer and close its half of a connection,
/// once ours is closed.
pub const CLOSE_MAX: Duration = Duration::from_secs(5);

/// Longest time without a finished write, or in the close, of a connection that was accepted while
/// its listener was crowded.
const CROWDED_MAX: Duration = Duration::from_secs(1);

/// A stream with clocks.
#[derive(Debug)]
pub struct GuardedStream<T> {
    io: T,
    requests: ConnectionRequests,
    /// When the read clock ends, if it runs.
    read_until: Option<Instant>,
    /// When the write clock ends, if it runs.
    write_until: Option<Instant>,
    bytes_read: usize,
    /// Bytes taken since the write clock was set.
    progress: usize,
    timer: Option<Pin<Box<Sleep>>>,
    /// Our half is closed.
    is_closing: bool,
    /// The client sent more than was read before the close.
    sends_on: bool,
    seat: OpenConnection,
}

impl<T> GuardedStream<T> {
    pub fn new(io: T, seat: OpenConnection) -> Self {
        Self {
            io,
            requests: ConnectionRequests::default(),
            read_until: idle_until(&seat),
            write_until: None,
            bytes_read: 0,
            progress: 0,
            timer: None,
            is_closing: false,
            sends_on: false,
            seat,
        }
    }

    /// For the service that answers the requests.
    pub fn requests(&self) -> ConnectionRequests {
        self.requests.clone()
    }

    /// The first end of the clocks that run.
    fn deadline(&self) -> Option<Instant> {
        self.read_until.into_iter().chain(self.write_until).min()
    }

    /// Sets the timer if a clock runs and none is set; fails if a clock has ended.
    fn check(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        while let Some(deadline) = self.deadline() {
            let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(deadline)));
            if timer.deadline() > deadline {
                timer.as_mut().reset(deadline);
            }
            if timer.as_mut().poll(cx).is_pending() {
                return Ok(());
            }
            let fired = timer.deadline();
            if !self.requests.is_none() && self.write_until.is_none() {
                // A request is in progress: its answer ends the clock, or the next check.
                self.read_until = Some(fired + READ_MAX);
            } else if fired >= deadline {
                return Err(io::ErrorKind::TimedOut.into());
            }
            // The clock was set anew since the timer was.
            self.timer = None;
        }
        Ok(())
    }

    fn record_read(&mut self, num_bytes: usize) -> io::Result<()> {
        if num_bytes == 0 {
            return Ok(());
        }
        self.requests.record_read(num_bytes);
        self.bytes_read += num_bytes;
        if self.bytes_read > BYTES_MAX {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "too much without an answer"));
        }
        if self.read_until.is_none() {
            self.read_until = Some(now_of_timers() + READ_MAX);
        }
        Ok(())
    }

    /// `taken` bytes of `offered` were written; `None`: the peer takes no more.
    fn record_written(&mut self, taken: Option<usize>, offered: usize) {
        match taken {
            Some(taken) if taken == offered => {
                (self.read_until, self.write_until) = (idle_until(&self.seat), None);
                (self.bytes_read, self.progress) = (0, 0);
            }
            taken => {
                self.progress += taken.unwrap_or_default();
                if self.write_until.is_none() || self.progress >= PROGRESS {
                    self.write_until = Some(now_of_timers() + WRITE_MAX);
                    self.progress = 0;
                }
            }
        }
    }
}

/// How long a connection may be idle: while the listener is crowded, a moment; else as long as
/// actix-http allows.
fn idle_until(seat: &OpenConnection) -> Option<Instant> {
    seat.is_crowded.then(|| now_of_timers() + CROWDED_MAX)
}

impl<T: AsyncRead + Unpin> GuardedStream<T> {
    /// Throws away what the client still sends, until it has closed its half or a limit is reached.
    /// Waits only for a client that sent more than was read.
    fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut bytes = [0; 4096];
        self.sends_on |= self.requests.has_unread_body();
        while self.bytes_read <= BYTES_MAX {
            let mut buffer = ReadBuf::new(&mut bytes);
            match Pin::new(&mut self.io).poll_read(cx, &mut buffer) {
                Poll::Ready(Ok(())) if !buffer.filled().is_empty() => {
                    self.bytes_read += buffer.filled().len();
                    self.sends_on = true;
                }
                Poll::Ready(_) => return Poll::Ready(()),
                Poll::Pending if !self.sends_on || self.check(cx).is_err() => {
                    return Poll::Ready(());
                }
                Poll::Pending => return Poll::Pending,
            }
        }
        Poll::Ready(())
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for GuardedStream<T> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if !this.requests.may_read(cx, this.write_until.is_some()) {
            this.check(cx)?;
            return Poll::Pending;
        }
        let before = buffer.filled().len();
        let read = Pin::new(&mut this.io).poll_read(cx, buffer);
        if read.is_pending() {
            this.requests.record_end();
        }
        this.record_read(buffer.filled().len() - before)?;
        this.check(cx)?;
        read
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncWrite for GuardedStream<T> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.io).poll_write(cx, buffer);
        match &written {
            Poll::Ready(Ok(taken)) => this.record_written(Some(*taken), buffer.len()),
            Poll::Ready(Err(_)) => {}
            Poll::Pending => this.record_written(None, buffer.len()),
        }
        this.check(cx)?;
        written
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.requests.end_turn(cx, this.write_until.is_some());
        this.check(cx)?;
        Pin::new(&mut this.io).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if !this.is_closing {
            this.check(cx)?;
            ready!(Pin::new(&mut this.io).poll_shutdown(cx))?;
            this.is_closing = true;
            // No request is waited for any more: only the write clock runs.
            let until = idle_until(&this.seat).unwrap_or_else(|| now_of_timers() + CLOSE_MAX);
            (this.read_until, this.write_until) = (None, Some(until));
        }
        this.poll_close(cx).map(Ok)
    }
}

#[cfg(test)]
#[path = "stream_tests.rs"]
mod tests;
