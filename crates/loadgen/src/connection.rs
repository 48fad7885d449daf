use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, ReadBuf};
use tokio::net::TcpStream;

use super::plan::TransportError;
use super::response::ResponseReader;

/// Bytes of one read; the server's responses are far smaller.
const READ_SIZE: usize = 8 * 1024;
/// Pause between two attempts to connect, so that a server that is down is not hammered.
pub(super) const CONNECT_PAUSE: Duration = Duration::from_millis(20);

/// Connects, with retries until `timeout` has passed.
pub(super) async fn connect(
    target: SocketAddr,
    timeout: Duration,
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
    tokio::time::timeout(timeout, attempts).await.map_err(|_elapsed| TransportError::Connect)
}

/// Reads until the answer is complete. `TcpStream::poll_read` clears its readiness after a short
/// read, which saves the system call that would only return `WouldBlock`.
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
            let is_complete = reader.is_complete_at_close();
            return Poll::Ready(if is_complete { Ok(()) } else { Err(TransportError::Closed) });
        }
        reader.buffer().extend_from_slice(received);
        match reader.advance() {
            Ok(true) => return Poll::Ready(Ok(())),
            Ok(false) => {}
            Err(error) => return Poll::Ready(Err(error)),
        }
    }
}
