//! Trace of one request, in the format of W3C Trace Context (level 1):
//! `traceparent: 00-<32 hex trace id>-<16 hex parent id>-<2 hex flags>`.
//!
//! A valid header continues the caller's trace; otherwise a new trace starts.

use std::fmt::Write as _;

use actix_web::http::header::{HeaderMap, HeaderName, HeaderValue};

use crate::domain::TraceId;

/// Name of the request and the response header.
pub const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// Length of version 00 of the header.
const TEXT_LEN: usize = 55;

/// Trace id and flags of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceContext {
    pub trace: TraceId,
    /// The caller's flags; bit 0: sampled.
    pub(super) flags: u8,
}

impl TraceContext {
    /// The trace in the request's header, or a new one.
    #[must_use]
    pub fn of(headers: &HeaderMap) -> Self {
        headers
            .get(TRACEPARENT)
            .and_then(|value| Self::read(value.as_bytes()))
            .unwrap_or_else(Self::new_root)
    }

    /// A new trace with a random id that is never zero.
    #[must_use]
    pub fn new_root() -> Self {
        Self { trace: TraceId(fastrand::u128(1..)), flags: 0 }
    }

    /// Parses the header as specified: lower case only, no all-zero id, version ff is invalid, and
    /// a later version may have more fields after the flags.
    fn read(text: &[u8]) -> Option<Self> {
        let head = text.get(..TEXT_LEN)?;
        let rest = text.get(TEXT_LEN..)?;
        let version = u8::try_from(hex(head.get(..2)?)?).ok()?;
        let is_rest_valid =
            if version == 0 { rest.is_empty() } else { rest.is_empty() || rest.starts_with(b"-") };
        let has_dashes = [2, 35, 52].iter().all(|at| head.get(*at) == Some(&b'-'));
        if version == 0xff || !is_rest_valid || !has_dashes {
            return None;
        }
        let trace = hex(head.get(3..35)?)?;
        let parent = hex(head.get(36..52)?)?;
        let flags = u8::try_from(hex(head.get(53..)?)?).ok()?;
        (trace != 0 && parent != 0).then_some(Self { trace: TraceId(trace), flags })
    }

    /// The response header: trace and flags of the request, with a new span id.
    #[must_use]
    pub fn header(&self) -> HeaderValue {
        let mut text = String::with_capacity(TEXT_LEN);
        let span = fastrand::u64(1..);
        // Writing into a string does not fail; hexadecimal digits are always a header value.
        let _ = write!(text, "00-{}-{span:016x}-{:02x}", self.trace, self.flags & 1);
        HeaderValue::try_from(text).unwrap_or_else(|_| HeaderValue::from_static(""))
    }
}

/// The number in lower-case hexadecimal digits.
fn hex(digits: &[u8]) -> Option<u128> {
    digits.iter().try_fold(0, |number, digit| {
        let value = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            _ => return None,
        };
        Some(number << 4 | u128::from(value))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const VALID: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn read(text: &str) -> Option<TraceContext> {
        TraceContext::read(text.as_bytes())
    }

    #[test]
    fn a_valid_trace_is_continued() {
        let context = read(VALID).unwrap();
        assert_eq!(context.trace.to_string(), "0af7651916cd43dd8448eb211c80319c");
        let shown = context.header();
        let shown = shown.to_str().unwrap();
        assert_eq!(read(shown).unwrap(), context);
        assert_eq!((&shown[..36], &shown[52..]), (&VALID[..36], &VALID[52..]));
        assert_ne!(&shown[36..52], &VALID[36..52], "the span is ours");
    }

    #[test]
    fn what_the_specification_calls_invalid_starts_a_new_trace() {
        let invalid = [
            "",
            "00",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0x",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
            "00_0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01more",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-é",
        ];
        for text in invalid {
            assert_eq!(read(text), None, "{text:?}");
        }
    }

    #[test]
    fn a_later_version_may_have_more_fields() {
        assert!(read("01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more").is_some());
        assert!(read("cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01").is_some());
    }

    #[test]
    fn new_traces_differ() {
        assert_ne!(TraceContext::new_root(), TraceContext::new_root());
    }
}
