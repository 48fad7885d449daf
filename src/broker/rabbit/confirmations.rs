//! The outcome of each message of one publish call. Pure.
//!
//! The client library delivers a returned message with the next confirmation on the channel, not
//! with its own. So returns may be missing until every confirmation of a call has arrived, and only
//! then is an acknowledged message certainly in a queue. Each message carries a number that
//! identifies its return.

use super::super::PublishOutcome;

/// Progress of one message.
#[derive(Debug, Clone, PartialEq, Eq)]
enum ConfirmState {
    NotSent,
    InFlight,
    /// Acknowledged by the broker, which may have returned it.
    Acknowledged,
    /// Rejected or returned, with the reason.
    Refused(String),
    /// Sent, and no confirmation will come.
    Lost(String),
}

/// The messages of one call, numbered consecutively.
#[derive(Debug)]
pub(super) struct Confirmations {
    first: u64,
    states: Vec<ConfirmState>,
    /// Why sending stopped.
    halt: Option<String>,
    any_returned: bool,
    /// A return has no matching message.
    any_unmatched: bool,
}

impl Confirmations {
    /// `count` messages, numbered from `first`.
    pub(super) fn new(first: u64, count: usize) -> Self {
        let states = vec![ConfirmState::NotSent; count];
        Self { first, states, halt: None, any_returned: false, any_unmatched: false }
    }

    /// Stops sending. The first reason is kept.
    pub(super) fn halt(&mut self, reason: &str) {
        self.halt.get_or_insert_with(|| reason.to_owned());
    }

    pub(super) fn is_halted(&self) -> bool {
        self.halt.is_some()
    }

    pub(super) fn any_returned(&self) -> bool {
        self.any_returned
    }

    pub(super) fn sent(&mut self, index: usize) {
        self.set(index, ConfirmState::InFlight);
    }

    pub(super) fn acknowledged(&mut self, index: usize) {
        // Its return may have arrived with an earlier confirmation.
        if self.states.get(index) == Some(&ConfirmState::InFlight) {
            self.set(index, ConfirmState::Acknowledged);
        }
    }

    pub(super) fn refused(&mut self, index: usize, reason: &str) {
        self.set(index, ConfirmState::Refused(reason.to_owned()));
    }

    /// Records a message that the broker returned.
    pub(super) fn returned(&mut self, number: Option<u64>, reason: &str) {
        self.any_returned = true;
        let index = number.and_then(|number| number.checked_sub(self.first));
        let index = index.and_then(|index| usize::try_from(index).ok());
        match index.filter(|index| *index < self.states.len()) {
            Some(index) => self.refused(index, reason),
            None => self.any_unmatched = true,
        }
    }

    pub(super) fn lost(&mut self, index: usize, reason: &str) {
        if !matches!(self.states.get(index), Some(ConfirmState::Refused(_))) {
            self.set(index, ConfirmState::Lost(reason.to_owned()));
        }
    }

    fn set(&mut self, index: usize, state: ConfirmState) {
        if let Some(current) = self.states.get_mut(index) {
            *current = state;
        }
    }

    /// The outcomes. Messages in flight count as unknown.
    pub(super) fn into_outcomes(self) -> Vec<PublishOutcome> {
        let is_unconfirmed =
            |state: &ConfirmState| matches!(state, ConfirmState::InFlight | ConfirmState::Lost(_));
        let is_complete = !self.any_unmatched && !self.states.iter().any(is_unconfirmed);
        let halt = self.halt.unwrap_or_else(|| "nothing was sent".to_owned());
        let outcome = |state| match state {
            ConfirmState::NotSent => PublishOutcome::NotSent { reason: halt.clone() },
            ConfirmState::InFlight => {
                PublishOutcome::Unknown { reason: "no confirmation came".to_owned() }
            }
            ConfirmState::Acknowledged if is_complete => PublishOutcome::Confirmed,
            ConfirmState::Acknowledged => PublishOutcome::Unknown {
                reason: "missing confirmations may carry a return".to_owned(),
            },
            ConfirmState::Refused(reason) => PublishOutcome::Refused { reason },
            ConfirmState::Lost(reason) => PublishOutcome::Unknown { reason },
        };
        self.states.into_iter().map(outcome).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all_sent(count: usize) -> Confirmations {
        let mut confirmations = Confirmations::new(100, count);
        (0..count).for_each(|index| confirmations.sent(index));
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
        assert!(late.any_returned());
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
        confirmations.lost(1, "the channel closed");
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
        confirmations.sent(0);
        confirmations.acknowledged(0);
        confirmations.halt("blocked");
        confirmations.halt("another reason");
        assert!(confirmations.is_halted());
        let outcomes = confirmations.into_outcomes();
        assert_eq!(outcomes[0], PublishOutcome::Confirmed);
        assert_eq!(outcomes[2], PublishOutcome::NotSent { reason: "blocked".into() });
    }
}
