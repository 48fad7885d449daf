//! Metrics of the reconciler.

use std::collections::BTreeMap;

use crate::observe::metrics::{Metrics, ReasonLabel};

/// Why a bucket cannot be reconciled completely.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Blocked {
    /// Its order queue has no running consumer.
    NoConsumer,
    /// The consumers of its order queue are far behind, or a delivery is unacknowledged for long.
    ConsumersBehind,
    /// The watermark of its order queue cannot be read.
    Watermark,
    /// Its outbox cannot be read.
    Outbox,
    /// A page of its records cannot be read completely.
    Records,
    /// The ledger does not answer.
    Ledger,
    /// Results cannot be written to the bucket.
    Results,
    /// The broker did not confirm a republished request.
    Broker,
}

impl Blocked {
    const ALL: [Self; 8] = [
        Self::NoConsumer,
        Self::ConsumersBehind,
        Self::Watermark,
        Self::Outbox,
        Self::Records,
        Self::Ledger,
        Self::Results,
        Self::Broker,
    ];

    /// The label value.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::NoConsumer => "no_consumer",
            Self::ConsumersBehind => "consumers_behind",
            Self::Watermark => "watermark",
            Self::Outbox => "outbox",
            Self::Records => "records",
            Self::Ledger => "ledger",
            Self::Results => "results",
            Self::Broker => "broker",
        }
    }
}

impl Metrics {
    /// Sets the number of blocked buckets by reason.
    pub(super) fn set_reconcile_blocked(&self, buckets: impl Iterator<Item = Blocked>) {
        let mut counts: BTreeMap<Blocked, i64> = Blocked::ALL.map(|reason| (reason, 0)).into();
        for reason in buckets {
            *counts.entry(reason).or_default() += 1;
        }
        for (reason, count) in counts {
            let reason = ReasonLabel { reason: reason.as_str() };
            self.reconcile_blocked.get_or_create(&reason).set(count);
        }
    }

    /// Counts results that were written to their bucket.
    pub(super) fn reconcile_matched(&self, num_requests: usize) {
        self.reconcile_matched.inc_by(num_requests as u64);
    }

    /// Counts lost requests that were published again.
    pub(super) fn reconcile_republished(&self, num_requests: usize) {
        self.reconcile_republished.inc_by(num_requests as u64);
    }
}
