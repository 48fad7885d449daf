//! The unacknowledged deliveries of one subscription: which can be acknowledged, and how. Pure.
//!
//! Completed deliveries at the front of the window are acknowledged by one frame with `multiple`
//! set. Behind a stuck delivery (it waits for the ledger, the catalog or its own transaction, or
//! its dead letter is unconfirmed), completed deliveries are acknowledged one by one, so that one
//! bad order does not block the rest.

use std::collections::BTreeMap;

#[derive(Debug, Clone, Copy)]
struct UnackedDelivery {
    /// Parts that are not completed.
    num_open: usize,
    is_stuck: bool,
    /// Publish time, epoch milliseconds; `None`: a foreign message.
    sent_at_ms: Option<i64>,
}

/// Unacknowledged deliveries, by delivery tag.
#[derive(Debug, Default)]
pub struct AckWindow {
    deliveries: BTreeMap<u64, UnackedDelivery>,
    /// Publish time of the last delivery that has one.
    last_sent_ms: Option<i64>,
}

impl AckWindow {
    /// Adds a delivery of one part; [`Self::split`] changes the number of parts.
    pub fn add(&mut self, tag: u64, sent_at_ms: Option<i64>) {
        let delivery = UnackedDelivery { num_open: 1, is_stuck: false, sent_at_ms };
        self.deliveries.insert(tag, delivery);
        self.last_sent_ms = sent_at_ms.or(self.last_sent_ms);
    }

    /// Sets the number of parts of a delivery, none of which may be completed yet. Each part is
    /// completed separately.
    pub fn split(&mut self, tag: u64, parts: usize) {
        if let Some(delivery) = self.deliveries.get_mut(&tag) {
            delivery.num_open = parts;
        }
    }

    /// Completes one part of the delivery.
    pub fn complete_part(&mut self, tag: u64) {
        if let Some(delivery) = self.deliveries.get_mut(&tag) {
            delivery.num_open = delivery.num_open.saturating_sub(1);
        }
    }

    /// Marks a delivery that may stay unacknowledged for long.
    pub fn mark_stuck(&mut self, tag: u64) {
        if let Some(delivery) = self.deliveries.get_mut(&tag) {
            delivery.is_stuck = true;
        }
    }

    /// Removes the deliveries that can be acknowledged now. Returns the last of the completed ones
    /// at the front, to be acknowledged first and with all before it, then those to be acknowledged
    /// one by one.
    pub fn take_acks(&mut self) -> (Option<u64>, Vec<u64>) {
        let (mut up_to, mut singly) = (None, Vec::new());
        while let Some(first) = self.deliveries.first_entry() {
            if first.get().num_open > 0 {
                break;
            }
            up_to = Some(first.remove_entry().0);
        }
        if self.deliveries.first_key_value().is_some_and(|(_, oldest)| oldest.is_stuck) {
            self.deliveries.retain(|tag, delivery| {
                let is_open = delivery.num_open > 0;
                if !is_open {
                    singly.push(*tag);
                }
                is_open
            });
        }
        (up_to, singly)
    }

    /// Publish time of the oldest unacknowledged delivery, or of the last delivery.
    pub fn watermark(&self) -> Option<i64> {
        self.deliveries.values().filter_map(|it| it.sent_at_ms).min().or(self.last_sent_ms)
    }

    pub fn len(&self) -> usize {
        self.deliveries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.deliveries.is_empty()
    }
}

#[cfg(test)]
#[path = "ack_window_tests.rs"]
mod tests;
