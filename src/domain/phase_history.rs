//! The changes of a sale's phase, and when a request could be accepted under each opening.

use super::ids::Epoch;
use super::sale::Phase;

/// One change of a sale's phase, or of its epoch by a change of the sale.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PhaseChange {
    pub epoch: Epoch,
    pub phase: Phase,
    /// When the ledger had it, epoch milliseconds.
    pub changed_at_ms: i64,
    /// When no bucket was in an earlier phase any more, by every trusted clock; `None`: not known
    /// yet.
    pub applied_at_ms: Option<i64>,
}

impl PhaseChange {
    fn pair(&self) -> (Epoch, Phase) {
        (self.epoch, self.phase)
    }
}

/// The changes of a sale's phase, ascending by (epoch, phase).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PhaseHistory(Vec<PhaseChange>);

impl PhaseHistory {
    pub fn new(mut changes: Vec<PhaseChange>) -> Self {
        changes.sort_by_key(PhaseChange::pair);
        Self(changes)
    }

    /// Why a request that arrived at this time cannot have been accepted under this epoch;
    /// `None`: it can.
    ///
    /// No process knows an epoch before its opening: a time before it is that of a clock that
    /// stepped, or of a request whose intent was lost and which was sent again under the next one.
    pub fn fault(&self, epoch: Epoch, placed_at_ms: i64) -> Option<String> {
        let Some(last_ms) = self.sold_until(epoch) else {
            return Some(format!("accepted under epoch {}, which the sale never had", epoch.0));
        };
        (placed_at_ms > last_ms).then(|| {
            format!(
                "accepted at {placed_at_ms} under epoch {}, which sold until {last_ms}",
                epoch.0
            )
        })
    }

    /// When the last bucket stopped selling under an opening, epoch milliseconds: when a later
    /// change was applied to all of them. `None`: the sale had no such opening.
    ///
    /// A ledger that was restored from a backup lacks rows: an opening before the first row, or
    /// between two rows, may have sold until the next.
    fn sold_until(&self, epoch: Epoch) -> Option<i64> {
        let opening = (epoch, Phase::Open);
        let is_known = self.0.iter().any(|change| change.epoch == epoch);
        let is_opened = self.0.iter().any(|change| change.pair() == opening);
        let later = || self.0.iter().filter(|change| change.pair() > opening);
        let is_lost = epoch >= Epoch(1) && !is_known && later().next().is_some();
        let applied = later().filter_map(|change| change.applied_at_ms);
        (is_opened || is_lost).then(|| applied.min().unwrap_or(i64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(epoch: i64, phase: Phase, changed_at_ms: i64, applied: Option<i64>) -> PhaseChange {
        PhaseChange { epoch: Epoch(epoch), phase, changed_at_ms, applied_at_ms: applied }
    }

    /// Opened at 100,000 and 300,000; paused at 200,000, which the buckets had at 210,000.
    fn history(last: Option<PhaseChange>) -> PhaseHistory {
        let mut changes = vec![
            change(2, Phase::Open, 300_000, Some(301_000)),
            change(1, Phase::Paused, 200_000, Some(210_000)),
            change(1, Phase::Open, 100_000, Some(101_000)),
        ];
        changes.extend(last);
        PhaseHistory::new(changes)
    }

    #[test]
    fn an_opening_sells_until_the_buckets_have_the_next_change() {
        let history = history(None);
        for (epoch, at_ms, is_accepted) in [
            (1, 100_000, true),
            (1, 210_000, true),
            (1, 210_001, false),
            (1, 300_000, false),
            (2, 300_000, true),
            (2, 150_000, true), // Sent again after the second opening.
            (2, i64::MAX, true),
            (0, 300_000, false),
            (3, 400_000, false),
        ] {
            let fault = history.fault(Epoch(epoch), at_ms);
            assert_eq!(fault.is_none(), is_accepted, "{epoch} {at_ms}: {fault:?}");
            assert!(fault.is_none_or(|fault| fault.contains(&format!("under epoch {epoch}, "))));
        }
    }

    #[test]
    fn a_change_that_is_not_applied_yet_ends_nothing() {
        let history = history(Some(change(2, Phase::Closed, 400_000, None)));
        assert_eq!(history.fault(Epoch(2), 500_000), None);
    }

    #[test]
    fn openings_without_a_row_sold_until_the_next_one() {
        let history = history(Some(change(6, Phase::Paused, 600_000, Some(601_000))));
        assert_eq!(history.fault(Epoch(4), 500_000), None, "lost by a restored ledger");
        assert!(history.fault(Epoch(4), 601_001).is_some());
        assert!(history.fault(Epoch(6), 600_000).is_some(), "raised, never opened");
        let first = PhaseHistory::new(vec![change(3, Phase::Open, 100_000, Some(100_000))]);
        assert_eq!(first.fault(Epoch(2), 5), None, "lost before the first row");
        assert!(first.fault(Epoch(2), 100_001).is_some());
        assert!(PhaseHistory::default().fault(Epoch(1), 5).is_some(), "never opened");
    }
}
