//! Request bodies: read with a size limit and a deadline, parsed without copying.

use std::borrow::Cow;
use std::convert::Infallible;
use std::fmt;
use std::future::{Ready, ready};
use std::marker::PhantomData;
use std::pin::pin;
use std::time::Duration;

use actix_web::dev::Payload;
use actix_web::error::PayloadError;
use actix_web::http::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderMap};
use actix_web::web::{Bytes, BytesMut};
use actix_web::{FromRequest, HttpRequest};
use chrono::{DateTime, Datelike};
use futures_util::{FutureExt, StreamExt};
use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeOwned, Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::problem::{Problem, ProblemCode};

/// Longest wait for a whole body.
const BODY_DEADLINE: Duration = Duration::from_secs(5);

/// A call whose body is not read yet.
pub struct UnreadCall {
    pub request: HttpRequest,
    payload: Payload,
}

impl FromRequest for UnreadCall {
    type Error = Infallible;
    type Future = Ready<Result<Self, Infallible>>;

    fn from_request(request: &HttpRequest, payload: &mut Payload) -> Self::Future {
        ready(Ok(Self { request: request.clone(), payload: payload.take() }))
    }
}

impl UnreadCall {
    /// The body.
    pub async fn body<T: DeserializeOwned>(&mut self, max: usize) -> Result<T, Problem> {
        let bytes = read(Payload::take(&mut self.payload), max).await?;
        parse(self.request.headers(), &bytes)
    }

    /// The body; the default for an empty one, and for `null`.
    pub async fn optional_body<T: DeserializeOwned + Default>(
        &mut self,
        max: usize,
    ) -> Result<T, Problem> {
        let bytes = read(Payload::take(&mut self.payload), max).await?;
        if bytes.is_empty() {
            return Ok(T::default());
        }
        let sent: Option<JsonObject<T>> = parse_json(self.request.headers(), &bytes)?;
        Ok(sent.map(|object| object.0).unwrap_or_default())
    }
}

/// Reads a whole body of at most `max` bytes, up to the deadline. A body in one chunk, the usual
/// case, is not copied and arms no timer.
pub async fn read(payload: Payload, max: usize) -> Result<Bytes, Problem> {
    read_or(ProblemCode::InvalidRequest, payload, max).await
}

/// As [`read`], but a body that is too large is `too_large`.
pub async fn read_or(
    too_large: ProblemCode,
    payload: Payload,
    max: usize,
) -> Result<Bytes, Problem> {
    in_time(collect(too_large, payload, max)).await?
}

/// Awaits a body up to the deadline.
pub async fn in_time<T>(read: impl Future<Output = T>) -> Result<T, Problem> {
    let mut read = pin!(read);
    if let Some(whole) = read.as_mut().now_or_never() {
        return Ok(whole);
    }
    tokio::time::timeout(BODY_DEADLINE, read)
        .await
        .map_err(|_elapsed| Problem::invalid("the body did not arrive in time"))
}

async fn collect(
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

fn oversize(code: ProblemCode, max: usize) -> Problem {
    Problem::from(code).with_detail(format!("the body is larger than {max} bytes"))
}

async fn next_chunk(payload: &mut Payload) -> Result<Option<Bytes>, Problem> {
    let chunk = payload.next().await;
    chunk.transpose().map_err(|error: PayloadError| {
        Problem::invalid(format!("the body could not be read: {error}"))
    })
}

/// Parses a body, which must be a JSON object of type `application/json`, not compressed.
pub fn parse<'b, T: Deserialize<'b>>(headers: &HeaderMap, body: &'b [u8]) -> Result<T, Problem> {
    parse_json::<JsonObject<T>>(headers, body).map(|object| object.0)
}

fn parse_json<'b, T: Deserialize<'b>>(headers: &HeaderMap, body: &'b [u8]) -> Result<T, Problem> {
    if !is_json(headers) {
        return Err(Problem::invalid("Content-Type must be application/json"));
    }
    if headers.get(CONTENT_ENCODING).is_some_and(|coding| coding != "identity") {
        return Err(Problem::invalid("Content-Encoding is not supported: send plain JSON"));
    }
    serde_json::from_slice(body).map_err(|error| {
        // Only a body that is refused is read again, for the name of the member.
        let mut again = serde_json::Deserializer::from_slice(body);
        let located = serde_path_to_error::deserialize::<_, T>(&mut again).err();
        Problem::invalid(located.map_or(format!("body: {error}"), |at| format!("body: {at}")))
    })
}

/// A value that is sent as a JSON object. A derived `Deserialize` also takes an array, whose items
/// are the members by position: their order would be part of the interface.
pub struct JsonObject<T>(pub T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for JsonObject<T> {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        struct Members<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for Members<T> {
            type Value = JsonObject<T>;

            fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
                to.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, members: A) -> Result<Self::Value, A::Error> {
                T::deserialize(MapAccessDeserializer::new(members)).map(JsonObject)
            }
        }

        input.deserialize_map(Members(PhantomData))
    }
}

/// A time of RFC 3339, in epoch milliseconds.
#[derive(Debug, Clone, Copy)]
pub struct SentTime(pub i64);

impl<'de> Deserialize<'de> for SentTime {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        let text = Cow::<'de, str>::deserialize(input)?;
        let time = DateTime::parse_from_rfc3339(&text).ok().map(|time| time.to_utc());
        // RFC 3339 has no other years: such a time could not be sent back.
        let time = time.filter(|time| (0..=9999).contains(&time.year()));
        let needed = "a time such as 2026-11-11T00:00:00Z is needed";
        time.map(|time| Self(time.timestamp_millis())).ok_or_else(|| D::Error::custom(needed))
    }
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

/// What an operator says of a verb; at most 1000 characters.
#[derive(Default, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct VerbBody {
    /// Stands in the log beside who did it; of a discarded dead letter, it is the note, too.
    pub reason: Option<String>,
}
