//! HTTP/1.x responses with a length, in chunks, or until the server closes the connection.

use std::ops::Range;

use super::plan::{Answer, TransportError};

/// Most headers of a response; a response beyond either limit is malformed.
const HEADERS_MAX: usize = 64;
/// Most bytes of a response as received.
const BYTES_MAX: usize = 64 * 1024 * 1024;

/// A complete response.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Response {
    status: u16,
    replayed: bool,
    /// Whether the connection can send another request. Bytes after the response mean that client
    /// and server disagree about its end.
    pub(super) is_reusable: bool,
    body: Body,
}

#[derive(Debug, PartialEq, Eq)]
enum Body {
    /// These of the received bytes.
    Received(Range<usize>),
    /// Joined chunks.
    Joined(Vec<u8>),
}

impl Response {
    /// The answer, from the same bytes that were parsed.
    pub(super) fn answer<'a>(&'a self, received: &'a [u8]) -> Answer<'a> {
        let body = match &self.body {
            Body::Received(range) => received.get(range.clone()).unwrap_or_default(),
            Body::Joined(body) => body,
        };
        Answer { status: self.status, replayed: self.replayed, body }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Framing {
    Length(usize),
    Chunked,
    UntilClose,
}

/// Parses all bytes received so far; `None` if the response is incomplete. Nearly every response
/// comes with one read, and is parsed once.
pub(super) fn parse(received: &[u8], is_closed: bool) -> Result<Option<Response>, TransportError> {
    if received.len() > BYTES_MAX {
        return Err(TransportError::Malformed);
    }
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut response = httparse::Response::new(&mut headers);
    let Some(begin) = complete(response.parse(received))? else { return Ok(None) };
    let status = response.code.ok_or(TransportError::Malformed)?;
    let rest = received.get(begin..).unwrap_or_default();
    // An interim response (100 Continue, 103 Early Hints) precedes the final one.
    if (100..200).contains(&status) {
        let response = parse(rest, is_closed)?;
        return Ok(response.map(|response| response.moved_by(begin)));
    }
    let (mut framing, mut replayed) = (Framing::UntilClose, false);
    let mut is_kept = response.version == Some(1);
    for header in response.headers.iter() {
        let (name, value) = (header.name, header.value);
        // The lengths of the four names differ, so at most one comparison is needed.
        match name.len() {
            14 if name.eq_ignore_ascii_case("content-length") && framing != Framing::Chunked => {
                let length = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
                framing = Framing::Length(length.ok_or(TransportError::Malformed)?);
            }
            17 if name.eq_ignore_ascii_case("transfer-encoding")
                && value.to_ascii_lowercase().ends_with(b"chunked") =>
            {
                framing = Framing::Chunked;
            }
            10 if name.eq_ignore_ascii_case("connection") => {
                is_kept = !value.eq_ignore_ascii_case(b"close")
                    && (is_kept || value.eq_ignore_ascii_case(b"keep-alive"));
            }
            19 if name.eq_ignore_ascii_case("idempotent-replayed") => {
                replayed = value.eq_ignore_ascii_case(b"true");
            }
            _ => {}
        }
    }
    if matches!(status, 204 | 304) {
        framing = Framing::Length(0);
    }
    let (body, end) = match framing {
        Framing::Length(length) if length <= rest.len() => {
            (Body::Received(begin..begin + length), length)
        }
        Framing::Length(length) if length > BYTES_MAX => return Err(TransportError::Malformed),
        Framing::UntilClose if is_closed => {
            is_kept = false;
            (Body::Received(begin..received.len()), rest.len())
        }
        Framing::Chunked => match join_chunks(rest)? {
            Some((body, end)) => (Body::Joined(body), end),
            None => return Ok(None),
        },
        Framing::Length(_) | Framing::UntilClose => return Ok(None),
    };
    let is_reusable = is_kept && end == rest.len();
    Ok(Some(Response { status, replayed, is_reusable, body }))
}

impl Response {
    fn moved_by(mut self, offset: usize) -> Self {
        if let Body::Received(range) = &mut self.body {
            *range = range.start + offset..range.end + offset;
        }
        self
    }
}

/// Joins chunks; returns the body and the length of its encoded form with the trailer.
fn join_chunks(bytes: &[u8]) -> Result<Option<(Vec<u8>, usize)>, TransportError> {
    let (mut joined, mut at) = (Vec::new(), 0);
    loop {
        let rest = bytes.get(at..).unwrap_or_default();
        let Some((line, size)) = complete(httparse::parse_chunk_size(rest))? else {
            return Ok(None);
        };
        if size == 0 {
            // The trailer, if any, ends with an empty line; the size's own line end may begin it.
            let from = at + line - 2;
            let rest = bytes.get(from..).unwrap_or_default();
            let end = rest.windows(4).position(|window| window == b"\r\n\r\n");
            return Ok(end.map(|end| (joined, from + end + 4)));
        }
        let length = usize::try_from(size).ok().filter(|length| *length <= BYTES_MAX);
        let length = length.ok_or(TransportError::Malformed)?;
        let Some(chunk) = rest.get(line..line + length + 2) else { return Ok(None) };
        let Some((data, b"\r\n")) = chunk.split_at_checked(length) else {
            return Err(TransportError::Malformed);
        };
        joined.extend_from_slice(data);
        at += line + length + 2;
    }
}

fn complete<T, E>(parsed: Result<httparse::Status<T>, E>) -> Result<Option<T>, TransportError> {
    match parsed {
        Ok(httparse::Status::Complete(parsed)) => Ok(Some(parsed)),
        Ok(httparse::Status::Partial) => Ok(None),
        Err(_) => Err(TransportError::Malformed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parses `bytes` as they come in pieces of `step`; returns status, whether the answer is a
    /// replay, its body, and whether the connection is reusable.
    fn read(bytes: &[u8], step: usize) -> Option<(u16, bool, Vec<u8>, bool)> {
        let ends = (0..bytes.len()).step_by(step).skip(1).chain([bytes.len()]);
        let mut read = ends.map(|end| parse(&bytes[..end], false).unwrap());
        let found = read.find_map(|response| response).or_else(|| parse(bytes, true).unwrap())?;
        let answer = found.answer(bytes);
        Some((answer.status, answer.replayed, answer.body.to_vec(), found.is_reusable))
    }

    #[test]
    fn every_framing_is_read_in_pieces_of_any_size() {
        type Expected = (u16, bool, &'static [u8], bool);
        let cases: [(&[u8], Expected); 6] = [
            (
                b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nIdempotent-Replayed: true\r\n\r\nhello",
                (200, true, b"hello", true),
            ),
            (
                b"HTTP/1.1 409 Conflict\r\ntransfer-encoding: chunked\r\n\r\n\
                  3;x=y\r\nabc\r\n10\r\n0123456789abcdef\r\n0\r\nx-sum: 1\r\n\r\n",
                (409, false, b"abc0123456789abcdef", true),
            ),
            (
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
                (200, false, b"ok", true),
            ),
            (
                b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n",
                (204, false, b"", true),
            ),
            (b"HTTP/1.0 200 OK\r\n\r\nthe end", (200, false, b"the end", false)),
            (
                b"HTTP/1.1 503 Busy\r\nconnection: close\r\ncontent-length: 0\r\n\r\n",
                (503, false, b"", false),
            ),
        ];
        for (bytes, (status, replayed, body, is_reusable)) in cases {
            for step in 1..=bytes.len() {
                let expected = Some((status, replayed, body.to_vec(), is_reusable));
                assert_eq!(read(bytes, step), expected, "in pieces of {step}");
            }
        }
    }

    #[test]
    fn surplus_bytes_prevent_reuse() {
        let bytes = b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\nok";
        assert_eq!(read(bytes, bytes.len()), Some((200, false, b"o".to_vec(), false)));
        let interim =
            b"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
        assert_eq!(read(interim, 1), Some((200, false, b"ok".to_vec(), true)));
    }

    #[test]
    fn malformed_responses_are_rejected() {
        for bytes in [
            &b"SSH-2.0-OpenSSH\r\n"[..],
            b"HTTP/1.1 200 OK\r\ncontent-length: many\r\n\r\n",
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\nabc\r\n",
        ] {
            assert_eq!(parse(bytes, false), Err(TransportError::Malformed));
        }
    }
}
