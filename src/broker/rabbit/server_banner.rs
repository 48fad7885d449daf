//! Product and version of the broker, which the client library does not expose.

use std::time::Duration;

use lapin::types::AMQPValue;
use lapin::types::parsing::parse_field_table;
use lapin::uri::AMQPUri;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The protocol header of AMQP 0-9-1.
const HEADER: &[u8; 8] = b"AMQP\x00\x00\x09\x01";
/// Type, channel, length.
const FRAME_HEAD_BYTES: usize = 7;
/// Class and method of `connection.start`, and the protocol version. The property table follows.
const START_HEAD_BYTES: usize = 6;
/// Sanity limit; the frame has some hundred bytes.
const BANNER_BYTES_MAX: usize = 64 * 1024;

/// Product and version; `None` if the broker does not send them within `limit`.
pub(super) async fn read(uri: &AMQPUri, limit: Duration) -> Option<String> {
    let banner =
        tokio::time::timeout(limit, read_start_frame(&uri.authority.host, uri.authority.port));
    product_and_version(&banner.await.ok()??)
}

/// The content of the broker's first frame, `connection.start`.
async fn read_start_frame(host: &str, port: u16) -> Option<Vec<u8>> {
    let mut socket = TcpStream::connect((host, port)).await.ok()?;
    socket.write_all(HEADER).await.ok()?;
    let mut head = [0; FRAME_HEAD_BYTES];
    socket.read_exact(&mut head).await.ok()?;
    let length = u32::from_be_bytes(*head.last_chunk::<4>()?);
    let length = usize::try_from(length).ok().filter(|length| *length <= BANNER_BYTES_MAX)?;
    let mut content = vec![0; length];
    socket.read_exact(&mut content).await.ok()?;
    Some(content)
}

fn product_and_version(start: &[u8]) -> Option<String> {
    let (_, properties) = parse_field_table(start.get(START_HEAD_BYTES..)?).ok()?;
    let property = |name: &str| match properties.inner().get(name) {
        Some(AMQPValue::LongString(text)) => Some(text.to_string()),
        _ => None,
    };
    Some(format!("{} {}", property("product")?, property("version")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn product_and_version_are_read_from_a_complete_start_frame_only() {
        let pair = |name: &str, value: &str| {
            let mut bytes = vec![u8::try_from(name.len()).unwrap()];
            bytes.extend_from_slice(name.as_bytes());
            bytes.push(b'S');
            bytes.extend_from_slice(&u32::try_from(value.len()).unwrap().to_be_bytes());
            bytes.extend_from_slice(value.as_bytes());
            bytes
        };
        let pairs = [pair("product", "RabbitMQ"), pair("version", "3.10.8")].concat();
        let mut start = vec![0, 10, 0, 10, 0, 9];
        start.extend_from_slice(&u32::try_from(pairs.len()).unwrap().to_be_bytes());
        start.extend_from_slice(&pairs);
        assert_eq!(product_and_version(&start).unwrap(), "RabbitMQ 3.10.8");
        for end in 0..start.len() {
            assert_eq!(product_and_version(&start[..end]), None);
        }
    }
}
