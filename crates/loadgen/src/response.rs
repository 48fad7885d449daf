use super::plan::{Answer, TransportError};

/// Most headers of a response; a response beyond any of these limits is malformed.
const HEADERS_MAX: usize = 64;
/// Most bytes of status line and headers.
const HEAD_MAX: usize = 64 * 1024;
/// Most bytes of the body, and of its encoded form.
const BODY_MAX: usize = 64 * 1024 * 1024;

/// Incremental HTTP/1.x response parser over one growing buffer.
///
/// Bytes are appended to [`Self::buffer`]; [`Self::advance`] parses them and returns whether the
/// response is complete, [`Self::answer`] returns it and [`Self::reset`] discards it.
#[derive(Debug, Default)]
pub(super) struct ResponseReader {
    buffer: Vec<u8>,
    head: Option<Head>,
    /// Offset of the next chunk in `buffer`.
    cursor: usize,
    /// The joined chunks; unused for other framings.
    joined: Vec<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Head {
    status: u16,
    replayed: bool,
    keep_alive: bool,
    body_at: usize,
    framing: Framing,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Framing {
    Length(usize),
    Chunked,
    UntilClose,
}

impl ResponseReader {
    /// The buffer to which received bytes are appended.
    pub(super) fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.buffer
    }

    /// Parses the received bytes; true when the response is complete.
    pub(super) fn advance(&mut self) -> Result<bool, TransportError> {
        let head = match self.head {
            Some(head) => head,
            None => match self.parse_head()? {
                Some(head) => head,
                None => return Ok(false),
            },
        };
        match head.framing {
            Framing::Length(length) => Ok(self.buffer.len() - head.body_at >= length),
            Framing::Chunked => self.join_chunks(),
            Framing::UntilClose if self.buffer.len() > BODY_MAX => Err(TransportError::Malformed),
            Framing::UntilClose => Ok(false),
        }
    }

    /// Whether the response is complete now that the server has closed the connection.
    pub(super) fn is_complete_at_close(&self) -> bool {
        self.head.is_some_and(|head| head.framing == Framing::UntilClose)
    }

    /// The complete response; `None` before it has been parsed.
    pub(super) fn answer(&self) -> Option<Answer<'_>> {
        let head = self.head?;
        let raw = self.buffer.get(head.body_at..).unwrap_or_default();
        let body = match head.framing {
            Framing::Length(length) => raw.get(..length)?,
            Framing::Chunked => &self.joined,
            Framing::UntilClose => raw,
        };
        Some(Answer { status: head.status, replayed: head.replayed, body })
    }

    /// Discards the response; true if the connection can be reused.
    ///
    /// Bytes after the response mean that client and server disagree about its end, so the
    /// connection must be closed.
    pub(super) fn reset(&mut self) -> bool {
        let reusable = self.head.is_some_and(|head| {
            let end = match head.framing {
                Framing::Length(length) => head.body_at + length,
                Framing::Chunked => self.cursor,
                Framing::UntilClose => return false,
            };
            head.keep_alive && end == self.buffer.len()
        });
        self.buffer.clear();
        self.joined.clear();
        self.head = None;
        self.cursor = 0;
        reusable
    }

    fn parse_head(&mut self) -> Result<Option<Head>, TransportError> {
        loop {
            let Some(head) = parse_head(&self.buffer)? else {
                return match self.buffer.len() {
                    0..=HEAD_MAX => Ok(None),
                    _ => Err(TransportError::Malformed),
                };
            };
            // An interim response (100 Continue, 103 Early Hints) precedes the final one.
            if (100..200).contains(&head.status) {
                self.buffer.drain(..head.body_at);
                continue;
            }
            self.cursor = head.body_at;
            self.head = Some(head);
            return Ok(Some(head));
        }
    }

    fn join_chunks(&mut self) -> Result<bool, TransportError> {
        loop {
            let rest = self.buffer.get(self.cursor..).unwrap_or_default();
            let (line, size) = match httparse::parse_chunk_size(rest) {
                Ok(httparse::Status::Complete(parsed)) => parsed,
                Ok(httparse::Status::Partial) => return Ok(false),
                Err(_) => return Err(TransportError::Malformed),
            };
            let Ok(length) = usize::try_from(size) else {
                return Err(TransportError::Malformed);
            };
            if length == 0 {
                return Ok(self.skip_trailers(line));
            }
            if length > BODY_MAX || self.joined.len() + length > BODY_MAX {
                return Err(TransportError::Malformed);
            }
            let Some(chunk) = rest.get(line..line + length + 2) else { return Ok(false) };
            let Some((data, b"\r\n")) = chunk.split_at_checked(length) else {
                return Err(TransportError::Malformed);
            };
            self.joined.extend_from_slice(data);
            self.cursor += line + length + 2;
        }
    }

    /// Skips the last chunk's size line of `line` bytes and the trailer up to an empty line; false
    /// if the trailer is incomplete.
    fn skip_trailers(&mut self, line: usize) -> bool {
        let from = self.cursor + line;
        let rest = self.buffer.get(from..).unwrap_or_default();
        if rest.starts_with(b"\r\n") {
            self.cursor = from + 2;
            return true;
        }
        match rest.windows(4).position(|window| window == b"\r\n\r\n") {
            Some(at) => {
                self.cursor = from + at + 4;
                true
            }
            None => false,
        }
    }
}

fn parse_head(bytes: &[u8]) -> Result<Option<Head>, TransportError> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut response = httparse::Response::new(&mut headers);
    let body_at = match response.parse(bytes) {
        Ok(httparse::Status::Complete(body_at)) => body_at,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(_) => return Err(TransportError::Malformed),
    };
    let status = response.code.ok_or(TransportError::Malformed)?;
    let mut head = Head {
        status,
        replayed: false,
        keep_alive: response.version == Some(1),
        body_at,
        framing: Framing::UntilClose,
    };
    for header in response.headers.iter() {
        read_header(&mut head, header.name, header.value)?;
    }
    if matches!(status, 100..200 | 204 | 304) {
        head.framing = Framing::Length(0);
    }
    Ok(Some(head))
}

fn read_header(head: &mut Head, name: &str, value: &[u8]) -> Result<(), TransportError> {
    // The lengths of the four names differ, so at most one comparison is needed.
    match name.len() {
        14 if name.eq_ignore_ascii_case("content-length") => {
            let length = std::str::from_utf8(value).ok().and_then(|text| text.trim().parse().ok());
            let length: usize = length.ok_or(TransportError::Malformed)?;
            if length > BODY_MAX {
                return Err(TransportError::Malformed);
            }
            if head.framing != Framing::Chunked {
                head.framing = Framing::Length(length);
            }
        }
        17 if name.eq_ignore_ascii_case("transfer-encoding")
            && value.to_ascii_lowercase().ends_with(b"chunked") =>
        {
            head.framing = Framing::Chunked;
        }
        10 if name.eq_ignore_ascii_case("connection") => {
            if value.eq_ignore_ascii_case(b"close") {
                head.keep_alive = false;
            } else if value.eq_ignore_ascii_case(b"keep-alive") {
                head.keep_alive = true;
            }
        }
        19 if name.eq_ignore_ascii_case("idempotent-replayed") => {
            head.replayed = value.eq_ignore_ascii_case(b"true");
        }
        _ => {}
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parses `bytes` in pieces of `step`; returns the answer and whether the connection is
    /// reusable.
    fn read(bytes: &[u8], step: usize) -> Option<(u16, bool, Vec<u8>, bool)> {
        let mut reader = ResponseReader::default();
        let mut done = false;
        for piece in bytes.chunks(step) {
            reader.buffer().extend_from_slice(piece);
            done = reader.advance().ok()?;
        }
        if !done && !reader.is_complete_at_close() {
            return None;
        }
        let answer = reader.answer()?;
        let (status, replayed, body) = (answer.status, answer.replayed, answer.body.to_vec());
        Some((status, replayed, body, reader.reset()))
    }

    fn read_in_all_steps(bytes: &[u8]) -> Option<(u16, bool, Vec<u8>, bool)> {
        let whole = read(bytes, bytes.len());
        for step in 1..bytes.len() {
            assert_eq!(read(bytes, step), whole, "in pieces of {step}");
        }
        whole
    }

    #[test]
    fn a_body_with_content_length_is_read() {
        let bytes =
            b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nIdempotent-Replayed: true\r\n\r\nhello";
        assert_eq!(read_in_all_steps(bytes), Some((200, true, b"hello".to_vec(), true)));
    }

    #[test]
    fn chunks_with_extension_and_trailer_are_read() {
        let bytes = b"HTTP/1.1 409 Conflict\r\ntransfer-encoding: chunked\r\n\r\n\
            3;x=y\r\nabc\r\n10\r\n0123456789abcdef\r\n0\r\nx-sum: 1\r\n\r\n";
        let body = b"abc0123456789abcdef".to_vec();
        assert_eq!(read_in_all_steps(bytes), Some((409, false, body, true)));
    }

    #[test]
    fn chunks_without_trailer_are_read() {
        let bytes = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n";
        assert_eq!(read_in_all_steps(bytes), Some((200, false, b"ok".to_vec(), true)));
    }

    #[test]
    fn interim_answers_are_skipped() {
        let bytes = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n";
        assert_eq!(read_in_all_steps(bytes), Some((204, false, Vec::new(), true)));
    }

    #[test]
    fn a_body_without_length_ends_at_close() {
        let bytes = b"HTTP/1.0 200 OK\r\n\r\nthe end";
        assert_eq!(read(bytes, 7), Some((200, false, b"the end".to_vec(), false)));
    }

    #[test]
    fn connection_close_prevents_reuse() {
        let bytes = b"HTTP/1.1 503 Busy\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
        assert_eq!(read_in_all_steps(bytes), Some((503, false, Vec::new(), false)));
    }

    #[test]
    fn surplus_bytes_prevent_reuse() {
        let bytes = b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\nok";
        assert_eq!(read(bytes, bytes.len()), Some((200, false, b"o".to_vec(), false)));
    }

    #[test]
    fn malformed_responses_are_rejected() {
        for bytes in [
            &b"SSH-2.0-OpenSSH\r\n"[..],
            b"HTTP/1.1 200 OK\r\ncontent-length: many\r\n\r\n",
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\nabc\r\n",
        ] {
            let mut reader = ResponseReader::default();
            reader.buffer().extend_from_slice(bytes);
            assert_eq!(reader.advance(), Err(TransportError::Malformed));
        }
    }
}
