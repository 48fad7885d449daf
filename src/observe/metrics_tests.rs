use super::*;
use crate::runtime::progress::ChildState;

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
