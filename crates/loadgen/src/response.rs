//! HTTP/1.1 responses with a length, as Floodgate and the yardstick send them. Another framing is
//! malformed.

use std::ops::Range;

use super::plan::{Answer, TransportError};

/// Most headers of a response; a response beyond either limit is malformed.
const HEADERS_MAX: usize = 64;
/// Most bytes of a head, and of a body.
const BYTES_MAX: usize = 64 * 1024 * 1024;

/// A complete response.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Response {
    status: u16,
    replayed: bool,
    /// Whether the connection can send another request. Bytes after the response mean that client
    /// and server disagree about its end.
    pub(super) is_reusable: bool,
    /// Where the body is in the received bytes.
    body: Range<usize>,
}

impl Response {
    /// The answer, from the same bytes that were parsed.
    pub(super) fn answer<'a>(&self, received: &'a [u8]) -> Answer<'a> {
        let body = received.get(self.body.clone()).unwrap_or_default();
        Answer { status: self.status, replayed: self.replayed, body }
    }
}

/// Parses all bytes received so far; `None` if the response is incomplete. Nearly every response
/// comes with one read, and is parsed once.
pub(super) fn parse(received: &[u8]) -> Result<Option<Response>, TransportError> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut response = httparse::Response::new(&mut headers);
    let begin = match response.parse(received) {
        Ok(httparse::Status::Complete(begin)) => begin,
        Ok(httparse::Status::Partial) if received.len() <= BYTES_MAX => return Ok(None),
        _ => return Err(TransportError::Malformed),
    };
    let status = response.code.ok_or(TransportError::Malformed)?;
    let mut length = matches!(status, 204 | 304).then_some(0);
    let (mut replayed, mut is_kept) = (false, response.version == Some(1));
    for header in response.headers.iter() {
        let (name, value) = (header.name, header.value);
        // The lengths of the names differ, so at most one comparison is needed.
        match name.len() {
            14 if name.eq_ignore_ascii_case("content-length") && length.is_none() => {
                length = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
            }
            10 if name.eq_ignore_ascii_case("connection") => {
                is_kept &= !value.eq_ignore_ascii_case(b"close");
            }
            19 if name.eq_ignore_ascii_case("idempotent-replayed") => {
                replayed = value.eq_ignore_ascii_case(b"true");
            }
            _ => {}
        }
    }
    let length = length.filter(|length| *length <= BYTES_MAX).ok_or(TransportError::Malformed)?;
    let end = begin + length;
    let is_reusable = is_kept && end == received.len();
    let response = Response { status, replayed, is_reusable, body: begin..end };
    Ok((end <= received.len()).then_some(response))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_response_is_read_in_pieces_of_any_size() {
        type Expected = (u16, bool, &'static [u8], bool);
        let cases: [(&[u8], Expected); 4] = [
            (
                b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nIdempotent-Replayed: true\r\n\r\nhello",
                (200, true, b"hello", true),
            ),
            (b"HTTP/1.1 204 No Content\r\n\r\n", (204, false, b"", true)),
            (
                b"HTTP/1.1 503 Busy\r\nconnection: close\r\ncontent-length: 0\r\n\r\n",
                (503, false, b"", false),
            ),
            (b"HTTP/1.0 200 OK\r\ncontent-length: 1\r\n\r\na", (200, false, b"a", false)),
        ];
        for (bytes, (status, replayed, body, is_reusable)) in cases {
            for end in 0..bytes.len() {
                assert_eq!(parse(&bytes[..end]), Ok(None));
            }
            let response = parse(bytes).unwrap().unwrap();
            assert_eq!(response.answer(bytes), Answer { status, replayed, body });
            assert_eq!(response.is_reusable, is_reusable);
        }
    }

    #[test]
    fn surplus_bytes_prevent_reuse() {
        let bytes = b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\nok";
        let response = parse(bytes).unwrap().unwrap();
        assert_eq!((response.answer(bytes).body, response.is_reusable), (&b"o"[..], false));
    }

    #[test]
    fn malformed_responses_are_rejected() {
        for bytes in [
            &b"SSH-2.0-OpenSSH\r\n"[..],
            b"HTTP/1.1 200 OK\r\ncontent-length: many\r\n\r\n",
            b"HTTP/1.1 200 OK\r\ncontent-length: 18446744073709551615\r\n\r\n",
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        ] {
            assert_eq!(parse(bytes), Err(TransportError::Malformed));
        }
    }
}
