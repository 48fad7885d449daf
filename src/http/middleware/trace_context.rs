//! Trace of one request, in the format of W3C Trace Context (level 1):
//! `traceparent: 00-<32 hex trace id>-<16 hex parent id>-<2 hex flags>`.
//!
//! A valid header continues the caller's trace; otherwise a new trace starts.

use actix_web::http::header::{HeaderMap, HeaderName, HeaderValue};

use crate::domain::TraceId;

/// Name of the request and the response header.
pub const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// Trace id and flags of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceContext {
    pub trace: TraceId,
    /// The caller's flags; bit 0: sampled.
    pub(super) flags: u8,
}

impl TraceContext {
    /// The trace in the request's header, or a new one.
    pub fn of(headers: &HeaderMap) -> Self {
        headers
            .get(TRACEPARENT)
            .and_then(|value| Self::read(value.to_str().ok()?))
            .unwrap_or_else(Self::new_root)
    }

    /// A new trace with a random id that is never zero.
    pub fn new_root() -> Self {
        Self { trace: TraceId(fastrand::u128(1..)), flags: 0 }
    }

    /// Parses the header as specified: lower case only, no all-zero id, version ff is invalid, and
    /// a later version may have more fields after the flags.
    fn read(text: &str) -> Option<Self> {
        let mut fields = text.splitn(5, '-');
        let mut field = |len| fields.next().filter(|digits| digits.len() == len).and_then(hex);
        let (version, trace, parent, flags) = (field(2)?, field(32)?, field(16)?, field(2)?);
        let has_more = fields.next().is_some();
        if version == 0xff || (version == 0 && has_more) || trace == 0 || parent == 0 {
            return None;
        }
        Some(Self { trace: TraceId(trace), flags: u8::try_from(flags).ok()? })
    }

    /// The response header: trace and flags of the request, with a new span id.
    pub fn header(&self) -> HeaderValue {
        let span = fastrand::u64(1..);
        let text = format!("00-{}-{span:016x}-{:02x}", self.trace, self.flags & 1);
        // Hexadecimal digits are always a header value.
        HeaderValue::try_from(text).unwrap_or_else(|_| HeaderValue::from_static(""))
    }
}

/// The number in lower-case hexadecimal digits.
fn hex(digits: &str) -> Option<u128> {
    let is_lower_hex = digits.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'));
    is_lower_hex.then(|| u128::from_str_radix(digits, 16).ok()).flatten()
}
