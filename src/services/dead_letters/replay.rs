//! Builds the message that replays a dead letter. Pure functions.

use bytes::Bytes;

use crate::broker::{Headers, Message, Route};
use crate::domain::{BucketKey, DeadLetter, DeadLetterContent, OrderIntent};
use crate::messages::envelope;
use crate::messages::envelope::{EnvelopeFlaw, MalformedEnvelope};
use crate::services::dead_letters::headers::DeadLetterHeaders;

/// A dead letter that can be replayed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplayableDeadLetter {
    pub intents: Vec<OrderIntent>,
    /// The message to publish.
    pub message: Message,
}

/// Builds the message: to the queue of its first intent, with new headers, so that attempts are
/// counted from zero.
///
/// # Errors
/// Why it cannot be replayed: the body is truncated, belongs to another installation, or has a
/// malformed intent.
pub fn prepare(
    content: &DeadLetterContent,
    installation: &str,
    queues: u16,
    now_ms: i64,
) -> Result<ReplayableDeadLetter, MalformedEnvelope> {
    if content.is_cut() {
        let (kept, all) = (content.body.len(), content.dead_letter.body_bytes);
        let what = format!("only the first {kept} of its {all} bytes were kept");
        return Err(MalformedEnvelope::new(EnvelopeFlaw::Body, what));
    }
    let body = Bytes::copy_from_slice(&content.body);
    let headers = DeadLetterHeaders::read(&content.dead_letter.headers).headers();
    new_message(&headers, body, installation, queues, now_ms)
}

fn new_message(
    headers: &Headers,
    body: Bytes,
    installation: &str,
    queues: u16,
    now_ms: i64,
) -> Result<ReplayableDeadLetter, MalformedEnvelope> {
    let intents = intents_of(headers, &body, installation)?;
    let first = intents
        .first()
        .ok_or_else(|| MalformedEnvelope::new(EnvelopeFlaw::Body, "nothing is in it"))?;
    let route = Route::orders_of(BucketKey { sku: first.sku, bucket: first.bucket }, queues);
    let headers = envelope::headers(&body, installation, now_ms)?;
    Ok(ReplayableDeadLetter { message: Message { route, headers, body }, intents })
}

/// All intents of a message.
///
/// # Errors
/// The first malformed intent, with the number of all.
pub fn intents_of(
    headers: &Headers,
    body: &Bytes,
    installation: &str,
) -> Result<Vec<OrderIntent>, MalformedEnvelope> {
    let parts = envelope::decode(headers, body, installation)?;
    let num_parts = parts.len();
    let read: Vec<_> = parts.into_iter().map(|part| part.read).collect();
    let num_broken = read.iter().filter(|read| read.is_err()).count();
    read.into_iter().collect::<Result<_, _>>().map_err(|why: MalformedEnvelope| {
        let what = format!("{num_broken} of its {num_parts} intents cannot be read: {why}");
        MalformedEnvelope::new(why.flaw, what)
    })
}

/// The intents whose end state is a stored dead letter: all intents, or none if one is malformed.
#[must_use]
pub fn intents_ending_in(
    dead_letter: &DeadLetter,
    body: Vec<u8>,
    installation: &str,
) -> Vec<OrderIntent> {
    let headers = DeadLetterHeaders::read(&dead_letter.headers).headers();
    intents_of(&headers, &body.into(), installation).unwrap_or_default()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::domain::{
        BucketNo, DeadLetterNo, DeadLetterOrigin, DeadLetterState, SkuNo, samples,
    };
    use crate::redis::scripts::intent::{INTENT_BYTES, pack_into};

    pub(crate) const INSTALLATION: &str = "0badcafe";

    pub(crate) fn intent(request: u64) -> OrderIntent {
        OrderIntent { sku: SkuNo(5), bucket: BucketNo(2), ..samples::intent(request) }
    }

    /// A message as the relay publishes it.
    pub(crate) fn envelope(intents: &[OrderIntent]) -> (Headers, Bytes) {
        let mut body = Vec::new();
        for intent in intents {
            pack_into(intent, &mut body);
        }
        (envelope::headers(&body, INSTALLATION, 1).unwrap(), body.into())
    }

    fn content(headers: &DeadLetterHeaders, body: &[u8]) -> DeadLetterContent {
        let letter = DeadLetter {
            no: DeadLetterNo(1),
            origin: DeadLetterOrigin::Consumer,
            reason: String::new(),
            attempts: 9,
            message_id: String::new(),
            headers: serde_json::to_string(headers).unwrap(),
            body_bytes: body.len() as u64,
            dead_at_ms: 0,
            arrivals: 1,
            state: DeadLetterState::Open,
            changed_at_ms: 0,
            note: None,
        };
        DeadLetterContent { dead_letter: letter, body: body.to_vec(), requests: Vec::new() }
    }

    fn ours() -> DeadLetterHeaders {
        DeadLetterHeaders {
            content_type: Some(envelope::CONTENT_TYPE.to_owned()),
            version: Some(envelope::VERSION),
            installation: Some(INSTALLATION.to_owned()),
            ..DeadLetterHeaders::default()
        }
    }

    #[test]
    fn a_replay_goes_to_the_queue_of_its_first_intent_with_new_headers() {
        let (_, body) = envelope(&[intent(7), intent(8)]);
        let replay = prepare(&content(&ours(), &body), INSTALLATION, 4, 77).unwrap();
        assert_eq!(replay.intents, [intent(7), intent(8)]);
        let Message { route, headers, body: sent } = replay.message;
        assert_eq!((route, sent), (Route::Orders(3), body));
        assert_eq!((headers.message_id.as_str(), headers.attempts), ("7-2", 0));
        assert_eq!((headers.sent_at_ms, headers.reason), (Some(77), None));
    }

    #[test]
    fn the_error_states_why_it_cannot_be_replayed() {
        let (_, body) = envelope(&[intent(7), intent(8)]);
        let why =
            |content: &DeadLetterContent| prepare(content, INSTALLATION, 4, 0).unwrap_err().what;
        let mut cut = content(&ours(), &body);
        cut.dead_letter.body_bytes += 1;
        let lengths = format!("the first {} of its {} bytes", body.len(), body.len() + 1);
        assert!(why(&cut).contains(&lengths), "{}", why(&cut));
        let mut broken = body.to_vec();
        broken[INTENT_BYTES + 19] = 99;
        let broken = why(&content(&ours(), &broken));
        assert!(broken.contains("1 of its 2 intents cannot be read"), "{broken}");
        let newer = DeadLetterHeaders { version: Some(2), ..ours() };
        assert!(why(&content(&newer, &body)).contains("newer"));
        let foreign = DeadLetterHeaders { installation: Some("x".to_owned()), ..ours() };
        assert!(why(&content(&foreign, &body)).contains("belongs to"));
        assert!(why(&content(&DeadLetterHeaders::default(), b"hello")).contains("no content type"));
        assert!(why(&content(&ours(), b"")).contains("no whole number"));
    }
}
