use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;

use super::plan::{Answer, TransportError};
use super::response::ResponseReader;
use super::timer::LazyTimer;
use crate::clock;

/// Read at once; an answer of the server is far smaller.
const READ_SIZE: usize = 8 * 1024;
/// Pause between two attempts to connect, so that a server that is down is not hammered.
pub(super) const CONNECT_PAUSE: Duration = Duration::from_millis(20);

/// One keep-alive connection that is opened when needed and again after the server closed it.
///
/// A request is never sent twice: when a connection breaks under it, its outcome is unknown and
/// the caller decides.
pub(super) struct Connection {
    target: SocketAddr,
    connect_timeout: Duration,
    answer_timeout: Duration,
    stream: Option<TcpStream>,
    reader: ResponseReader,
    timer: LazyTimer,
}

impl Connection {
    pub(super) fn new(
        target: SocketAddr,
        connect_timeout: Duration,
        answer_timeout: Duration,
    ) -> Self {
        let (stream, reader) = (None, ResponseReader::default());
        let timer = LazyTimer::new(clock::now_monotonic());
        Self { target, connect_timeout, answer_timeout, stream, reader, timer }
    }

    /// Opens the connection ahead of the first request.
    pub(super) async fn open(&mut self) -> Result<(), TransportError> {
        if !self.finish_previous() {
            self.stream = Some(connect(self.target, self.connect_timeout).await?);
        }
        Ok(())
    }

    /// Sends `request` at `now` and reads the whole answer, which [`Self::answer`] then lends.
    pub(super) async fn exchange(
        &mut self,
        request: &[u8],
        now: Instant,
    ) -> Result<(), TransportError> {
        self.open().await?;
        let Some(stream) = self.stream.as_mut() else { return Err(TransportError::Connect) };
        self.timer.set(now + self.answer_timeout);
        let sent = write(stream, request, &mut self.timer).await;
        let result = match sent {
            Ok(()) => read_answer(stream, &mut self.reader, &mut self.timer).await,
            Err(error) => Err(error),
        };
        if result.is_err() {
            self.stream = None;
        }
        result
    }

    /// The answer of the exchange that just succeeded.
    pub(super) fn answer(&self) -> Result<Answer<'_>, TransportError> {
        self.reader.answer().ok_or(TransportError::Malformed)
    }

    /// Forgets the previous answer; true when its connection can be used again.
    fn finish_previous(&mut self) -> bool {
        let fresh = self.reader.is_empty();
        if !self.reader.reset() && !fresh {
            self.stream = None;
        }
        self.stream.is_some()
    }
}

/// Connects, trying again until `patience` is over.
pub(super) async fn connect(
    target: SocketAddr,
    patience: Duration,
) -> Result<TcpStream, TransportError> {
    let attempts = async {
        loop {
            if let Ok(stream) = TcpStream::connect(target).await
                && stream.set_nodelay(true).is_ok()
            {
                return stream;
            }
            tokio::time::sleep(CONNECT_PAUSE).await;
        }
    };
    tokio::time::timeout(patience, attempts).await.map_err(|_elapsed| TransportError::Connect)
}

async fn write(
    stream: &mut TcpStream,
    request: &[u8],
    timer: &mut LazyTimer,
) -> Result<(), TransportError> {
    let mut writing = pin!(stream.write_all(request));
    poll_fn(|context| {
        if let Poll::Ready(written) = writing.as_mut().poll(context) {
            return Poll::Ready(written.map_err(|_broken| TransportError::Write));
        }
        timer.poll(context).map(|()| Err(TransportError::Timeout))
    })
    .await
}

async fn read_answer(
    stream: &mut TcpStream,
    reader: &mut ResponseReader,
    timer: &mut LazyTimer,
) -> Result<(), TransportError> {
    poll_fn(|context| match poll_answer(stream, reader, context) {
        Poll::Ready(result) => Poll::Ready(result),
        Poll::Pending => timer.poll(context).map(|()| Err(TransportError::Timeout)),
    })
    .await
}

/// Reads until the answer is complete. `poll_read` is used because it remembers a short read and
/// so saves the system call that would only say "nothing more".
pub(super) fn poll_answer<S: AsyncRead + Unpin>(
    stream: &mut S,
    reader: &mut ResponseReader,
    context: &mut Context<'_>,
) -> Poll<Result<(), TransportError>> {
    loop {
        let mut bytes = [std::mem::MaybeUninit::<u8>::uninit(); READ_SIZE];
        let mut chunk = ReadBuf::uninit(&mut bytes);
        match Pin::new(&mut *stream).poll_read(context, &mut chunk) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(Err(_)) => return Poll::Ready(Err(TransportError::Read)),
            Poll::Ready(Ok(())) => {}
        }
        let received = chunk.filled();
        if received.is_empty() {
            let complete = reader.close();
            return Poll::Ready(if complete { Ok(()) } else { Err(TransportError::Closed) });
        }
        reader.buffer().extend_from_slice(received);
        match reader.advance() {
            Ok(true) => return Poll::Ready(Ok(())),
            Ok(false) => {}
            Err(error) => return Poll::Ready(Err(error)),
        }
    }
}
