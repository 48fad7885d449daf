//! What became of the messages of one call. Pure.
//!
//! The client library hands a returned message out with whichever confirmation comes next, not with
//! its own: only when every confirmation of a call has come is it certain that no return is still
//! to come, and only then is a confirmed message one that some queue has. Returns are told apart by
//! the number that each message carries.

use super::super::PublishOutcome;

/// How far one message is.
#[derive(Debug, Clone, PartialEq, Eq)]
enum ConfirmState {
    /// Nothing was sent.
    Waiting,
    /// It was sent.
    Flying,
    /// The broker has it, or has returned it.
    Acknowledged,
    /// The broker did not take it.
    Refused(String),
    /// It was sent, and what became of it will not be known.
    Lost(String),
}

/// One call: its messages have consecutive numbers.
#[derive(Debug)]
pub(super) struct Confirmations {
    first: u64,
    fates: Vec<ConfirmState>,
    /// Why no more messages are sent.
    halt: Option<String>,
    any_returned: bool,
    /// Something came back that nobody can match.
    any_strange: bool,
}

impl Confirmations {
    /// `count` messages, numbered from `first`.
    pub(super) fn new(first: u64, count: usize) -> Self {
        let fates = vec![ConfirmState::Waiting; count];
        Self { first, fates, halt: None, any_returned: false, any_strange: false }
    }

    /// No further message is sent, for this reason; the first one counts.
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
        self.set(index, ConfirmState::Flying);
    }

    pub(super) fn acknowledged(&mut self, index: usize) {
        // Its return may have come with the confirmation of another one.
        if self.fates.get(index) == Some(&ConfirmState::Flying) {
            self.set(index, ConfirmState::Acknowledged);
        }
    }

    pub(super) fn refused(&mut self, index: usize, reason: &str) {
        self.set(index, ConfirmState::Refused(reason.to_owned()));
    }

    /// The broker returned the message of this number.
    pub(super) fn returned(&mut self, number: Option<u64>, reason: &str) {
        self.any_returned = true;
        let index = number.and_then(|number| number.checked_sub(self.first));
        let index = index.and_then(|index| usize::try_from(index).ok());
        match index.filter(|index| *index < self.fates.len()) {
            Some(index) => self.refused(index, reason),
            None => self.any_strange = true,
        }
    }

    pub(super) fn lost(&mut self, index: usize, reason: &str) {
        if !matches!(self.fates.get(index), Some(ConfirmState::Refused(_))) {
            self.set(index, ConfirmState::Lost(reason.to_owned()));
        }
    }

    fn set(&mut self, index: usize, fate: ConfirmState) {
        if let Some(place) = self.fates.get_mut(index) {
            *place = fate;
        }
    }

    /// The results, once nothing more is waited for. What still flies is lost.
    pub(super) fn close(self) -> Vec<PublishOutcome> {
        let open =
            |fate: &ConfirmState| matches!(fate, ConfirmState::Flying | ConfirmState::Lost(_));
        let certain = !self.any_strange && !self.fates.iter().any(open);
        let halt = self.halt.unwrap_or_else(|| "nothing was sent".to_owned());
        let result = |fate| match fate {
            ConfirmState::Waiting => PublishOutcome::NotSent { reason: halt.clone() },
            ConfirmState::Flying => {
                PublishOutcome::Unknown { reason: "no confirmation came".to_owned() }
            }
            ConfirmState::Acknowledged if certain => PublishOutcome::Confirmed,
            ConfirmState::Acknowledged => PublishOutcome::Unknown {
                reason: "a return may be among the confirmations that did not come".to_owned(),
            },
            ConfirmState::Refused(reason) => PublishOutcome::Refused { reason },
            ConfirmState::Lost(reason) => PublishOutcome::Unknown { reason },
        };
        self.fates.into_iter().map(result).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(count: usize) -> Confirmations {
        let mut tally = Confirmations::new(100, count);
        (0..count).for_each(|index| tally.sent(index));
        tally
    }

    fn kinds(tally: Confirmations) -> String {
        let letter = |sent: &PublishOutcome| match sent {
            PublishOutcome::Confirmed => 'c',
            PublishOutcome::Refused { .. } => 'r',
            PublishOutcome::NotSent { .. } => 'n',
            PublishOutcome::Unknown { .. } => 'u',
        };
        tally.close().iter().map(letter).collect()
    }

    #[test]
    fn a_return_counts_for_its_own_message_whichever_confirmation_brings_it() {
        let mut early = sent(3);
        early.returned(Some(102), "NO_ROUTE");
        (0..3).for_each(|index| early.acknowledged(index));
        assert_eq!(kinds(early), "ccr");

        let mut late = sent(3);
        (0..3).for_each(|index| late.acknowledged(index));
        late.returned(Some(100), "NO_ROUTE");
        assert!(late.any_returned());
        assert_eq!(kinds(late), "rcc");
    }

    #[test]
    fn while_a_confirmation_is_missing_nothing_is_confirmed() {
        for miss in 0..3 {
            let mut tally = sent(3);
            (0..3).filter(|index| *index != miss).for_each(|index| tally.acknowledged(index));
            assert_eq!(kinds(tally), "uuu");
        }
    }

    #[test]
    fn a_refusal_is_certain_whatever_is_missing() {
        let mut tally = sent(3);
        tally.refused(0, "nack");
        tally.returned(Some(101), "NO_ROUTE");
        tally.lost(1, "the channel closed");
        assert_eq!(kinds(tally), "rru");
    }

    #[test]
    fn a_return_that_nobody_knows_makes_all_confirmations_doubtful() {
        for number in [None, Some(99), Some(102), Some(u64::MAX)] {
            let mut tally = sent(2);
            tally.returned(number, "NO_ROUTE");
            (0..2).for_each(|index| tally.acknowledged(index));
            assert_eq!(kinds(tally), "uu", "{number:?}");
        }
    }

    #[test]
    fn what_was_never_sent_is_certainly_not_there() {
        let mut tally = Confirmations::new(1, 3);
        tally.sent(0);
        tally.acknowledged(0);
        tally.halt("blocked");
        tally.halt("another reason");
        assert!(tally.is_halted());
        let results = tally.close();
        assert_eq!(results[0], PublishOutcome::Confirmed);
        assert_eq!(results[2], PublishOutcome::NotSent { reason: "blocked".into() });
    }
}
