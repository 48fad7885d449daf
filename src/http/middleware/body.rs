//! Request bodies: read with a size limit and a deadline, parsed without copying.

use std::time::Duration;

use actix_web::HttpRequest;
use actix_web::error::PayloadError;
use actix_web::http::header::{CONTENT_TYPE, HeaderMap};
use actix_web::web::{Bytes, BytesMut, Payload};
use futures_util::{FutureExt, StreamExt};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::problem::{Problem, ProblemCode};

/// Longest wait for the next chunk of a body.
const CHUNK_DEADLINE: Duration = Duration::from_secs(10);

/// Reads a whole body of at most `max` bytes. A body in one chunk, the usual case, is not copied
/// and arms no timer.
///
/// # Errors
/// `invalid-request` if the body is too large, too slow or incomplete.
pub async fn read(payload: Payload, max: usize) -> Result<Bytes, Problem> {
    read_or(ProblemCode::InvalidRequest, payload, max).await
}

/// As [`read`], but a body that is too large is `too_large`.
pub async fn read_or(
    too_large: ProblemCode,
    mut payload: Payload,
    max: usize,
) -> Result<Bytes, Problem> {
    let check_length = |len| if len <= max { Ok(()) } else { Err(oversize(too_large, max)) };
    let Some(first) = next_chunk(&mut payload).await? else { return Ok(Bytes::new()) };
    check_length(first.len())?;
    let Some(second) = next_chunk(&mut payload).await? else { return Ok(first) };
    let mut whole = BytesMut::from(first);
    let mut chunk = Some(second);
    while let Some(bytes) = chunk {
        check_length(whole.len().saturating_add(bytes.len()))?;
        whole.extend_from_slice(&bytes);
        chunk = next_chunk(&mut payload).await?;
    }
    Ok(whole.freeze())
}

/// Reads and parses a body; the default for an empty one.
pub async fn optional<T: DeserializeOwned + Default>(
    request: &HttpRequest,
    payload: Payload,
    max: usize,
) -> Result<T, Problem> {
    let bytes = read(payload, max).await?;
    if bytes.is_empty() { Ok(T::default()) } else { parse(request.headers(), &bytes) }
}

fn oversize(code: ProblemCode, max: usize) -> Problem {
    Problem::from(code).with_detail(format!("the body is larger than {max} bytes"))
}

async fn next_chunk(payload: &mut Payload) -> Result<Option<Bytes>, Problem> {
    let chunk = match payload.next().now_or_never() {
        Some(chunk) => chunk,
        None => tokio::time::timeout(CHUNK_DEADLINE, payload.next())
            .await
            .map_err(|_elapsed| Problem::invalid("the body did not arrive in time"))?,
    };
    chunk.transpose().map_err(|error: PayloadError| {
        Problem::invalid(format!("the body could not be read: {error}"))
    })
}

/// Parses a JSON body.
///
/// # Errors
/// `invalid-request` if `Content-Type` is not `application/json` or the body does not parse.
pub fn parse<'b, T: Deserialize<'b>>(headers: &HeaderMap, body: &'b [u8]) -> Result<T, Problem> {
    if !is_json(headers) {
        return Err(Problem::invalid("Content-Type must be application/json"));
    }
    serde_json::from_slice(body).map_err(|error| Problem::invalid(format!("body: {error}")))
}

fn is_json(headers: &HeaderMap) -> bool {
    const JSON: &[u8] = b"application/json";
    headers.get(CONTENT_TYPE).is_some_and(|value| {
        let value = value.as_bytes();
        let has_prefix =
            value.get(..JSON.len()).is_some_and(|name| name.eq_ignore_ascii_case(JSON));
        has_prefix && matches!(value.get(JSON.len()), None | Some(b';' | b' '))
    })
}
