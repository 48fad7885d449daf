//! A strict reader of answers: what is not HTTP/1.1 to the letter is an error.

use std::io::{BufRead, BufReader, ErrorKind, Read};
use std::net::TcpStream;

/// Longest answer that is read: more than the largest file.
const BODY_BYTES_MAX: usize = 8 << 20;

/// One answer.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    /// Whether the server closes the connection afterwards.
    pub closes: bool,
}

impl Answer {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

/// Why there is no answer.
#[derive(Debug)]
#[expect(dead_code, reason = "the texts are for the message of a failing test")]
pub enum NoAnswer {
    /// The connection was closed before its first byte.
    Closed,
    /// The connection was reset, or closed inside of the answer.
    Cut(String),
    /// Neither an answer nor a close within the time limit of the socket.
    Hang,
    /// The bytes are no HTTP.
    Malformed(String),
}

impl From<std::io::Error> for NoAnswer {
    fn from(error: std::io::Error) -> Self {
        match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => Self::Hang,
            _ => Self::Cut(error.to_string()),
        }
    }
}

/// Why a body has fewer bytes than announced.
fn cut(read: std::io::Result<usize>, got: usize, length: usize, closes: bool) -> NoAnswer {
    let text = format!("{got} of {length} bytes, {read:?}, closes: {closes}");
    match read.map_err(NoAnswer::from) {
        Err(NoAnswer::Hang) => NoAnswer::Hang,
        _ => NoAnswer::Cut(text),
    }
}

fn malformed(what: impl Into<String>) -> NoAnswer {
    NoAnswer::Malformed(what.into())
}

/// Reads the next answer; interim ones (1xx) are skipped.
pub fn read(stream: &mut BufReader<TcpStream>, is_head: bool) -> Result<Answer, NoAnswer> {
    loop {
        let answer = read_one(stream, is_head)?;
        if answer.status >= 200 {
            return Ok(answer);
        }
    }
}

fn read_one(stream: &mut BufReader<TcpStream>, is_head: bool) -> Result<Answer, NoAnswer> {
    if stream.fill_buf()?.is_empty() {
        return Err(NoAnswer::Closed);
    }
    let first = line(stream)?;
    let rest = first.strip_prefix("HTTP/1.1 ").or_else(|| first.strip_prefix("HTTP/1.0 "));
    let status = rest.and_then(|rest| rest.get(..3)).and_then(|digits| digits.parse().ok());
    let status: u16 = status.ok_or_else(|| malformed(format!("status line {first:?}")))?;
    let mut headers = Vec::new();
    loop {
        let text = line(stream)?;
        if text.is_empty() {
            break;
        }
        headers.push(header(&text)?);
    }
    let find = |name: &str| headers.iter().find(|(known, _)| known == name).map(|(_, value)| value);
    let is_chunked = find("transfer-encoding").is_some_and(|value| value == "chunked");
    let length: Option<usize> = match find("content-length") {
        Some(value) => Some(value.parse().map_err(|_error| malformed("content-length"))?),
        None => None,
    };
    if is_chunked && length.is_some() {
        return Err(malformed("both content-length and chunks"));
    }
    let mut closes = find("connection").is_some_and(|value| value.eq_ignore_ascii_case("close"));
    let mut body = Vec::new();
    if is_head || status < 200 || [204, 304].contains(&status) {
        // No body, whatever the headers say of it.
    } else if is_chunked {
        chunks(stream, &mut body)?;
    } else if let Some(length) = length {
        if length > BODY_BYTES_MAX {
            return Err(malformed(format!("a body of {length} bytes")));
        }
        let read = stream.take(length as u64).read_to_end(&mut body);
        if body.len() < length {
            return Err(cut(read, body.len(), length, closes));
        }
    } else {
        closes = true;
        stream.read_to_end(&mut body)?;
    }
    Ok(Answer { status, headers, body, closes })
}

/// One line without its end, which must be CR LF.
fn line(stream: &mut BufReader<TcpStream>) -> Result<String, NoAnswer> {
    let mut bytes = Vec::new();
    stream.read_until(b'\n', &mut bytes)?;
    let Some(text) = bytes.strip_suffix(b"\r\n") else {
        return Err(NoAnswer::Cut(format!("the line {:?}", String::from_utf8_lossy(&bytes))));
    };
    String::from_utf8(text.to_vec()).map_err(|error| malformed(error.to_string()))
}

fn header(text: &str) -> Result<(String, String), NoAnswer> {
    let (name, value) = text.split_once(':').ok_or_else(|| malformed(text))?;
    let is_name = !name.is_empty()
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
    if !is_name || value.bytes().any(|byte| byte < b' ' && byte != b'\t') {
        return Err(malformed(text));
    }
    Ok((name.to_ascii_lowercase(), value.trim().to_owned()))
}

fn chunks(stream: &mut BufReader<TcpStream>, body: &mut Vec<u8>) -> Result<(), NoAnswer> {
    loop {
        let size = line(stream)?;
        let size = usize::from_str_radix(&size, 16).map_err(|_error| malformed(size))?;
        let start = body.len();
        body.resize(start + size, 0);
        stream.read_exact(&mut body[start..])?;
        let end = line(stream)?;
        if !end.is_empty() {
            return Err(malformed(format!("after a chunk: {end:?}")));
        }
        if size == 0 {
            return Ok(());
        }
    }
}
