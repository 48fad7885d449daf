//! A letter becomes a message again, or says why it cannot. Pure.

use bytes::Bytes;

use crate::broker::{Headers, Message, Route};
use crate::domain::{DeadLetter, DeadLetterContent, OrderIntent};
use crate::messages::envelope;
use crate::messages::envelope::{EnvelopeFlaw, MalformedEnvelope};
use crate::services::dead_letters::headers::DeadLetterHeaders;
use crate::stock::BucketKey;

/// A letter that can go on its way again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplayableLetter {
    /// What is in it.
    pub intents: Vec<OrderIntent>,
    /// What to publish.
    pub message: Message,
}

/// Opens a letter and addresses it anew: to the queue of its first intent, with fresh headers, so
/// that its attempts count from the start.
///
/// # Errors
/// Why it cannot be replayed: its end is missing, it is another party's, or a part of it cannot be
/// read.
pub fn ready(
    whole: &DeadLetterContent,
    installation: &str,
    queues: u16,
    now_ms: i64,
) -> Result<ReplayableLetter, MalformedEnvelope> {
    if whole.is_cut() {
        let (kept, all) = (whole.body.len(), whole.letter.body_bytes);
        let what = format!("only the first {kept} of its {all} bytes were kept");
        return Err(MalformedEnvelope::new(EnvelopeFlaw::Body, what));
    }
    let body = Bytes::copy_from_slice(&whole.body);
    let headers = DeadLetterHeaders::read(&whole.letter.headers).headers();
    address(&headers, body, installation, queues, now_ms)
}

/// Addresses a message anew.
pub fn address(
    headers: &Headers,
    body: Bytes,
    installation: &str,
    queues: u16,
    now_ms: i64,
) -> Result<ReplayableLetter, MalformedEnvelope> {
    let intents = intents_of(headers, &body, installation)?;
    let first = intents
        .first()
        .ok_or_else(|| MalformedEnvelope::new(EnvelopeFlaw::Body, "nothing is in it"))?;
    let route = Route::orders_of(BucketKey { sku: first.sku, bucket: first.bucket }, queues);
    let headers = envelope::headers(&body, installation, now_ms)?;
    Ok(ReplayableLetter { message: Message { route, headers, body }, intents })
}

/// The intents of a message of which all can be read.
pub fn intents_of(
    headers: &Headers,
    body: &Bytes,
    installation: &str,
) -> Result<Vec<OrderIntent>, MalformedEnvelope> {
    let parts = envelope::open(headers, body, installation)?;
    let num_parts = parts.len();
    let read: Vec<_> = parts.into_iter().map(|part| part.read).collect();
    let num_broken = read.iter().filter(|read| read.is_err()).count();
    read.into_iter().collect::<Result<_, _>>().map_err(|why: MalformedEnvelope| {
        let what = format!("{num_broken} of its {num_parts} intents cannot be read: {why}");
        MalformedEnvelope::new(why.flaw, what)
    })
}

/// The intents that end in a kept letter: all of it, or none where a part cannot be read.
#[must_use]
pub fn ending_in(letter: &DeadLetter, body: Vec<u8>, installation: &str) -> Vec<OrderIntent> {
    let headers = DeadLetterHeaders::read(&letter.headers).headers();
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

    fn letter(headers: &DeadLetterHeaders, body: &[u8]) -> DeadLetterContent {
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
        DeadLetterContent { letter, body: body.to_vec(), requests: Vec::new() }
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
    fn a_letter_goes_to_the_queue_of_its_first_intent_as_if_it_were_new() {
        let (_, body) = envelope(&[intent(7), intent(8)]);
        let ready = ready(&letter(&ours(), &body), INSTALLATION, 4, 77).unwrap();
        assert_eq!(ready.intents, [intent(7), intent(8)]);
        let Message { route, headers, body: sent } = ready.message;
        assert_eq!((route, sent), (Route::Orders(3), body));
        assert_eq!((headers.message_id.as_str(), headers.attempts), ("7-2", 0));
        assert_eq!((headers.sent_at_ms, headers.reason), (Some(77), None));
    }

    #[test]
    fn what_cannot_be_replayed_says_why() {
        let (_, body) = envelope(&[intent(7), intent(8)]);
        let why = |letter: &DeadLetterContent| ready(letter, INSTALLATION, 4, 0).unwrap_err().what;
        let mut cut = letter(&ours(), &body);
        cut.letter.body_bytes += 1;
        let lengths = format!("the first {} of its {} bytes", body.len(), body.len() + 1);
        assert!(why(&cut).contains(&lengths), "{}", why(&cut));
        let mut broken = body.to_vec();
        broken[INTENT_BYTES + 19] = 99;
        let broken = why(&letter(&ours(), &broken));
        assert!(broken.contains("1 of its 2 intents cannot be read"), "{broken}");
        let newer = DeadLetterHeaders { version: Some(2), ..ours() };
        assert!(why(&letter(&newer, &body)).contains("newer"));
        let foreign = DeadLetterHeaders { installation: Some("x".to_owned()), ..ours() };
        assert!(why(&letter(&foreign, &body)).contains("belongs to"));
        assert!(why(&letter(&DeadLetterHeaders::default(), b"hello")).contains("no content type"));
        assert!(why(&letter(&ours(), b"")).contains("no whole number"));
    }
}
