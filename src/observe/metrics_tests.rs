use std::collections::BTreeSet;

use super::*;
use crate::runtime::progress::ChildState;

/// The names in the first column of the table in `docs/operate/metrics.md`.
fn documented() -> BTreeSet<&'static str> {
    include_str!("../../docs/operate/metrics.md")
        .lines()
        .filter_map(|line| line.strip_prefix("| `floodgate_"))
        .filter_map(|rest| rest.split_once('`'))
        .map(|(name, _)| name)
        .collect()
}

fn report(kind: &'static str, restarts: u64, panics: u64, stalls: u64) -> ChildReport {
    ChildReport {
        name: kind.to_owned(),
        kind,
        state: ChildState::Up,
        restarts,
        panics,
        stalls,
        steps: 0,
        last_exit: None,
    }
}

#[test]
fn the_table_of_metrics_lists_every_metric_and_no_other() {
    let metrics = Metrics::default();
    metrics.http_requests.get_or_create(&RouteStatus { route: "/", status: 200 }).inc();
    metrics.http_request_duration.get_or_create(&RouteLabel { route: "/" }).observe(1.0);
    metrics.buy.get_or_create(&OutcomeLabel { outcome: "placed" }).inc();
    metrics.rate_limited.get_or_create(&ReasonLabel { reason: "buyer-second" }).inc();
    metrics.event_streams_refused.get_or_create(&ReasonLabel { reason: "buyer" }).inc();
    let sku = SaleSku { sale: "s".to_owned(), sku: "k".to_owned() };
    metrics.stock_left.get_or_create(&sku).set(1);
    metrics.ledger_refused(&Refusal::SoldOut);
    metrics.dead_letter(DeadLetterOrigin::Relay);
    metrics.dead_letters(DeadLetterCounts::default());
    metrics.ledger_error(ErrorClass::Retry);
    metrics.stock_error(&stock::Error::NotLoaded(crate::domain::SkuNo(1)));
    metrics.actors(&[report("stock_gate", 0, 0, 0)]);
    metrics.relay_failures.get_or_create(&KindLabel { kind: "dead" }).inc();
    metrics.consumer_poison(EnvelopeFlaw::Body);
    metrics.consumer_in_flight(0, 1);
    metrics.repair(AuditVerdict::Leak, RepairOutcome::Compensated);
    metrics.requests_ended.get_or_create(&ReasonLabel { reason: "queue-timeout" }).inc();
    metrics.webhooks_rejected.get_or_create(&ReasonLabel { reason: "signature" }).inc();
    metrics.secret_reloads.get_or_create(&OutcomeLabel { outcome: "kept" }).inc();
    metrics.due_hints.get_or_create(&OutcomeLabel { outcome: "published" }).inc();
    metrics.payment_messages.get_or_create(&OutcomeLabel { outcome: "applied" }).inc();
    metrics.late_payments.get_or_create(&OutcomeLabel { outcome: "applied" }).inc();
    metrics.reconcile_blocked.get_or_create(&ReasonLabel { reason: "outbox" }).set(0);

    let text = metrics.exposition();
    let exposed: BTreeSet<_> = text
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE floodgate_"))
        .filter_map(|rest| rest.split_once(' '))
        .map(|(name, kind)| match kind {
            "counter" => format!("{name}_total"),
            "info" => format!("{name}_info"),
            _ => name.to_owned(),
        })
        .collect();
    assert_eq!(exposed.iter().map(String::as_str).collect::<BTreeSet<_>>(), documented());
    assert!(text.ends_with("# EOF\n"));
}

#[test]
fn restarts_are_counted_by_kind_and_reason() {
    let metrics = Metrics::default();
    metrics.actors(&[report("stock_gate", 3, 1, 1), report("stock_gate", 2, 2, 0)]);
    let text = metrics.exposition();
    for (reason, total) in [("panicked", 3), ("stalled", 1), ("stopped", 1)] {
        let labels = format!("{{kind=\"stock_gate\",reason=\"{reason}\"}}");
        let line = format!("floodgate_actor_restarts_total{labels} {total}\n");
        assert!(text.contains(&line), "{line}{text}");
    }
}

#[test]
fn two_registries_are_independent() {
    let (one, other) = (Metrics::default(), Metrics::default());
    one.orders_placed.inc();
    assert!(one.exposition().contains("floodgate_orders_placed_total 1\n"));
    assert!(other.exposition().contains("floodgate_orders_placed_total 0\n"));
}
