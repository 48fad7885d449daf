//! Builds the message that replays a dead letter. Pure functions.

use bytes::Bytes;

use crate::broker::{Headers, Message, Route};
use crate::domain::{BucketKey, DeadLetter, DeadLetterContent, OrderIntent};
use crate::messages::envelope;
use crate::messages::envelope::{EnvelopeFlaw, EnvelopeReader, MalformedEnvelope};
use crate::services::dead_letters::new_dead_letter::DeadLetterHeaders;

/// Builds the message: to the queue of its first intent, with new headers, so that attempts are
/// counted from zero; a payment event with its own, to its queue. Either has the time of the
/// replay: the ledger tells a message that fails again from a copy of its dead letter by it.
pub fn prepare(
    content: &DeadLetterContent,
    reader: &EnvelopeReader,
    queues: u16,
    now_ms: i64,
) -> Result<Message, MalformedEnvelope> {
    if content.is_cut() {
        let (kept, all) = (content.body.len(), content.dead_letter.body_bytes);
        let what = format!("only the first {kept} of its {all} bytes were kept");
        return Err(MalformedEnvelope::new(EnvelopeFlaw::Body, what));
    }
    let body = Bytes::copy_from_slice(&content.body);
    let stored = DeadLetterHeaders::read(&content.dead_letter.headers);
    if stored.is_payment() {
        let message_id = content.dead_letter.message_id.clone();
        let sent_at_ms = Some(now_ms);
        let headers = Headers { message_id, origin: None, sent_at_ms, ..stored.message };
        return Ok(Message { route: Route::Payments, headers, body });
    }
    let intents = verified_intents(&stored.message, &body, reader)?;
    let first = intents
        .first()
        .ok_or_else(|| MalformedEnvelope::new(EnvelopeFlaw::Body, "the message has no intents"))?;
    let route = Route::orders_of(BucketKey { sku: first.sku, bucket: first.bucket }, queues);
    let headers = envelope::headers(&body, &reader.installation, now_ms);
    Ok(Message { route, headers, body })
}

/// All intents of a message, their signatures verified.
///
/// # Errors
/// The first malformed intent, with the number of all.
pub fn verified_intents(
    headers: &Headers,
    body: &Bytes,
    reader: &EnvelopeReader,
) -> Result<Vec<OrderIntent>, MalformedEnvelope> {
    let read = reader.decode(headers, body)?;
    let num_parts = read.len();
    let num_broken = read.iter().filter(|read| read.is_err()).count();
    read.into_iter().collect::<Result<_, _>>().map_err(|why: MalformedEnvelope| {
        let what = format!("{num_broken} of its {num_parts} intents cannot be read: {why}");
        MalformedEnvelope::new(why.flaw, what)
    })
}

/// The intents that a stored dead letter holds: all of its intents, or none if one is malformed.
pub fn intents_held_by(
    dead_letter: &DeadLetter,
    body: Vec<u8>,
    reader: &EnvelopeReader,
) -> Vec<OrderIntent> {
    let stored = DeadLetterHeaders::read(&dead_letter.headers);
    verified_intents(&stored.message, &body.into(), reader).unwrap_or_default()
}
