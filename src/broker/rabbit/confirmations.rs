//! The outcome of each message of one batch. Pure.
//!
//! The client library delivers a returned message with the next confirmation on the channel, not
//! with its own. So returns may be missing until every confirmation of a batch has arrived, and
//! only then is an acknowledged message certainly in a queue. Each message carries a number that
//! identifies its return.

use super::super::PublishOutcome;

/// The messages of one batch, numbered consecutively.
#[derive(Debug)]
pub(super) struct Confirmations {
    first: u64,
    /// `Unknown` while in flight. `Confirmed` once the broker has acknowledged the message, which
    /// it may have returned.
    outcomes: Vec<PublishOutcome>,
    /// A return has no matching message.
    any_unmatched: bool,
}

impl Confirmations {
    /// `count` messages, numbered from `first`.
    pub(super) fn new(first: u64, count: usize) -> Self {
        let reason = "nothing was sent".to_owned();
        let outcomes = vec![PublishOutcome::NotSent { reason }; count];
        Self { first, outcomes, any_unmatched: false }
    }

    /// Sets why the remaining messages are not sent.
    pub(super) fn halt(&mut self, reason: &str) {
        for outcome in &mut self.outcomes {
            if let PublishOutcome::NotSent { reason: unsent } = outcome {
                reason.clone_into(unsent);
            }
        }
    }

    pub(super) fn acknowledged(&mut self, index: usize) {
        self.set(index, PublishOutcome::Confirmed);
    }

    pub(super) fn refused(&mut self, index: usize, reason: &str) {
        self.set(index, PublishOutcome::Refused { reason: reason.to_owned() });
    }

    /// Records a message that was sent and has no confirmation.
    pub(super) fn unknown(&mut self, index: usize, reason: &str) {
        self.set(index, PublishOutcome::Unknown { reason: reason.to_owned() });
    }

    /// Records a message that the broker returned.
    pub(super) fn returned(&mut self, number: Option<u64>, reason: &str) {
        let index = number.and_then(|number| number.checked_sub(self.first));
        let index = index.and_then(|index| usize::try_from(index).ok());
        match index.filter(|index| *index < self.outcomes.len()) {
            Some(index) => self.refused(index, reason),
            None => self.any_unmatched = true,
        }
    }

    /// A refusal is final: a return may arrive before the message's own confirmation.
    fn set(&mut self, index: usize, outcome: PublishOutcome) {
        let current = self.outcomes.get_mut(index);
        if let Some(current) = current.filter(|it| !matches!(it, PublishOutcome::Refused { .. })) {
            *current = outcome;
        }
    }

    /// The outcomes. Messages in flight count as unknown.
    pub(super) fn into_outcomes(self) -> Vec<PublishOutcome> {
        let is_unknown = |one: &PublishOutcome| matches!(one, PublishOutcome::Unknown { .. });
        let is_complete = !self.any_unmatched && !self.outcomes.iter().any(is_unknown);
        let outcome = |outcome| match outcome {
            PublishOutcome::Confirmed if !is_complete => PublishOutcome::Unknown {
                reason: "missing confirmations may carry a return".to_owned(),
            },
            certain => certain,
        };
        self.outcomes.into_iter().map(outcome).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all_sent(count: usize) -> Confirmations {
        let mut confirmations = Confirmations::new(100, count);
        (0..count).for_each(|index| confirmations.unknown(index, "in flight"));
        confirmations
    }

    fn codes(confirmations: Confirmations) -> String {
        let code = |outcome: &PublishOutcome| match outcome {
            PublishOutcome::Confirmed => 'c',
            PublishOutcome::Refused { .. } => 'r',
            PublishOutcome::NotSent { .. } => 'n',
            PublishOutcome::Unknown { .. } => 'u',
        };
        confirmations.into_outcomes().iter().map(code).collect()
    }

    #[test]
    fn a_return_counts_for_its_own_message_whichever_confirmation_brings_it() {
        let mut early = all_sent(3);
        early.returned(Some(102), "NO_ROUTE");
        (0..3).for_each(|index| early.acknowledged(index));
        assert_eq!(codes(early), "ccr");

        let mut late = all_sent(3);
        (0..3).for_each(|index| late.acknowledged(index));
        late.returned(Some(100), "NO_ROUTE");
        assert_eq!(codes(late), "rcc");
    }

    #[test]
    fn while_a_confirmation_is_missing_nothing_is_confirmed() {
        for miss in 0..3 {
            let mut confirmations = all_sent(3);
            (0..3)
                .filter(|index| *index != miss)
                .for_each(|index| confirmations.acknowledged(index));
            assert_eq!(codes(confirmations), "uuu");
        }
    }

    #[test]
    fn a_refusal_is_certain_despite_missing_confirmations() {
        let mut confirmations = all_sent(3);
        confirmations.refused(0, "nack");
        confirmations.returned(Some(101), "NO_ROUTE");
        confirmations.unknown(1, "the channel closed");
        assert_eq!(codes(confirmations), "rru");
    }

    #[test]
    fn a_return_that_nobody_knows_makes_all_confirmations_doubtful() {
        for number in [None, Some(99), Some(102), Some(u64::MAX)] {
            let mut confirmations = all_sent(2);
            confirmations.returned(number, "NO_ROUTE");
            (0..2).for_each(|index| confirmations.acknowledged(index));
            assert_eq!(codes(confirmations), "uu", "{number:?}");
        }
    }

    #[test]
    fn an_unsent_message_is_certainly_in_no_queue() {
        let mut confirmations = Confirmations::new(1, 3);
        confirmations.unknown(0, "in flight");
        confirmations.acknowledged(0);
        confirmations.halt("blocked");
        let outcomes = confirmations.into_outcomes();
        assert_eq!(outcomes[0], PublishOutcome::Confirmed);
        assert_eq!(outcomes[2], PublishOutcome::NotSent { reason: "blocked".into() });
    }
}
