use super::*;

fn side(value: f64, batch: f64) -> RoundSample {
    RoundSample {
        value,
        costs: vec![("floodgate", value / 1_000.0)],
        incomplete: 1,
        batches: vec![("gate", batch), ("ledger", 60.0)],
        ..RoundSample::default()
    }
}

#[test]
fn a_row_has_medians_ratios_of_pairs_and_the_columns_of_the_header() {
    let round = |a, b, batch| Round { product: side(a, batch), baseline: Some(side(b, 1.0)) };
    let rounds = [(4e4, 2e4, 10.0), (9e4, 3e4, 31.25), (4e4, 4e4, 40.0)];
    let rounds = rounds.map(|(a, b, batch)| round(a, b, batch)).to_vec();
    let row = Row::of("S1", &Results { rounds, remark: Some("remark".to_owned()) }).unwrap();
    let ratio = row.ratio.unwrap();
    assert_eq!((ratio.min, ratio.median, ratio.max), (1.0, 2.0, 3.0));
    assert_eq!(row.incomplete, (3, 3));
    let line = row.markdown();
    assert_eq!(line.matches('|').count(), 12);
    assert!(line.contains("40,000/s") && line.contains("aim met"), "{line}");
    assert!(line.contains("| gate 31.2, ledger 60.0 | 40.0 / 30.0 |"), "{line}");
    assert_eq!(row.remarks().len(), 3);
}

fn row(id: &str, rounds: &[(f64, Option<f64>)]) -> Option<Row> {
    let round = |&(product, baseline): &(f64, Option<f64>)| Round {
        product: product.into(),
        baseline: baseline.map(RoundSample::from),
    };
    Row::of(id, &Results { rounds: rounds.iter().map(round).collect(), remark: None })
}

#[test]
fn a_number_needs_no_yardstick() {
    let number = row("S2", &[(3.0, None)]).unwrap();
    assert_eq!((number.ratio, number.yardstick, number.verdict), (None, None, "floor met"));
    assert!(row("S2", &[]).is_none());
}

#[test]
fn a_yardstick_that_measured_nothing_voids_its_row() {
    for nothing in [0.0, f64::INFINITY] {
        let row = row("S13", &[(3.0, Some(2.0)), (3.0, Some(nothing))]).unwrap();
        assert_eq!((row.ratio, row.verdict), (None, "void"));
    }
}

#[test]
fn a_latency_of_requests_without_an_answer_meets_no_aim() {
    let row = row("S13", &[(f64::INFINITY, Some(2.0))]).unwrap();
    assert_eq!(row.verdict, "below floor");
    assert!(row.markdown().contains("| unanswered | 2.0 µs |"), "{}", row.markdown());
}

#[test]
fn a_busy_generator_is_named_on_either_side() {
    let side = |own_cores| RoundSample { own_us: 5.0, own_cores, ..RoundSample::from(1.0) };
    let rounds = vec![Round { product: side(0.5), baseline: Some(side(0.95)) }];
    let row = Row::of("S1", &Results { rounds, remark: None }).unwrap();
    let line = row.markdown();
    assert!(line.ends_with("| 5.0 µs, 0.50 cores / 5.0 µs, 0.95 cores |"), "{line}");
    assert_eq!(row.remarks(), ["* S1: the generator of the yardstick used 0.95 cores."]);
}
