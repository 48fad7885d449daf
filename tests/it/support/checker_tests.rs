//! Every rule of the checker finds a planted violation and accepts the similar legal histories.

use std::time::Duration;

use floodgate::services::audit::answers;

use super::checker::{Attempt, Bought, History, RequestKey, RequestName, Verdict};
use super::orders::{Orders, Record, RecordedAs};

const ORDER: Bought = Bought { quantity: 2, placed_at_ms: 1_000 };
const STOCK: u64 = 10;

/// Sequential attempts of one request, and the ledger's records.
struct Planted {
    named: bool,
    now: Duration,
    history: History,
    ledger: Orders,
}

impl Planted {
    fn new(named: bool) -> Self {
        let (now, history) = (Duration::ZERO, History::default());
        Self { named, now, history, ledger: Orders::default() }
    }

    /// Adds an attempt of one second, with this status.
    fn attempt(&mut self, status: Option<u16>) -> &mut Attempt {
        let (began, ended) = (self.now, self.now + Duration::from_secs(1));
        self.now = ended + Duration::from_secs(1);
        let of_sku = || RequestName::Sku("sku".into());
        let name = if self.named { RequestName::Id("7-1-x".into()) } else { of_sku() };
        let answer = answers::Attempt {
            request: RequestKey { sale: "sale".into(), buyer: 42, name },
            began,
            ended,
            is_sent: true,
            status,
            replayed: false,
            request_id: None,
            state: None,
            code: None,
            order: None,
        };
        self.history.purchases.push(Attempt { purchase: 0, answer });
        self.history.purchases.last_mut().unwrap()
    }

    fn busy(&mut self) -> &mut Self {
        self.attempt(Some(503));
        self
    }

    fn unanswered(&mut self) -> &mut Self {
        self.attempt(None);
        self
    }

    fn refused(&mut self, status: u16, replayed: bool) -> &mut Self {
        self.attempt(Some(status)).replayed = replayed;
        self
    }

    fn state(&mut self, status: u16, state: &str) -> &mut Self {
        let attempt = self.attempt(Some(status));
        attempt.state = Some(state.to_owned());
        attempt.request_id = Some("7-1-x".to_owned());
        self
    }

    fn bought(&mut self, order: Bought) -> &mut Self {
        self.state(200, "success");
        self.history.purchases.last_mut().unwrap().order = Some(order);
        self
    }

    /// Makes the last attempt overlap with the one before.
    fn overlapping(&mut self) -> &mut Self {
        let purchases = &mut self.history.purchases;
        let before = purchases[purchases.len() - 2].began;
        purchases.last_mut().unwrap().began = before;
        self
    }

    fn recorded_as(&mut self, outcome: RecordedAs) -> &mut Self {
        let request_id = "7-1-x".to_owned();
        let [sale, sku] = ["sale", "sku"].map(str::to_owned);
        self.ledger.add(Record { sale, sku, buyer: 42, request_id, outcome });
        self
    }

    fn check(&self) -> Verdict {
        self.history.check(0, &self.ledger, STOCK)
    }

    fn assert_clean(&self) {
        let verdict = self.check();
        assert!(verdict.is_clean(), "{verdict}");
    }
}

/// Runs a test for both kinds of requests: with an issued id, and with one derived from the buyer.
fn for_both_kinds(test: impl Fn(Planted)) {
    for named in [false, true] {
        test(Planted::new(named));
    }
}

#[test]
fn a_promise_without_an_end_is_lost() {
    for_both_kinds(|mut planted| {
        planted.state(202, "queued");
        assert_eq!(planted.check().lost, 1);
        planted.recorded_as(RecordedAs::DeadLetter).assert_clean();
    });
    for_both_kinds(|mut planted| {
        planted.bought(ORDER);
        let verdict = planted.check();
        assert_eq!((verdict.lost, verdict.is_clean()), (1, false));
    });
    for_both_kinds(|mut planted| planted.state(202, "unknown").assert_clean());
}

#[test]
fn two_orders_of_one_request_are_duplicated() {
    for_both_kinds(|mut planted| {
        planted.bought(ORDER).recorded_as(RecordedAs::Order(ORDER)).assert_clean();
        planted.recorded_as(RecordedAs::Order(ORDER));
        assert_eq!(planted.check().duplicated, 1);
    });
}

#[test]
fn units_beyond_the_stock_are_oversold() {
    for_both_kinds(|mut planted| {
        let many = Bought { quantity: 11, ..ORDER };
        planted.bought(many).recorded_as(RecordedAs::Order(many));
        assert_eq!(planted.check().oversold, 1);
    });
}

#[test]
fn an_order_behind_only_busy_answers_is_a_ghost() {
    for outcome in [RecordedAs::Order(ORDER), RecordedAs::Failure, RecordedAs::DeadLetter] {
        for_both_kinds(|mut planted| {
            planted.busy().busy().recorded_as(outcome);
            let verdict = planted.check();
            assert_eq!((verdict.ghosts, verdict.is_clean()), (1, false), "{outcome:?}");
        });
    }
    // A refused request may be a recorded failure, but not an order.
    for_both_kinds(|mut planted| {
        planted.busy().refused(409, false).recorded_as(RecordedAs::Failure).assert_clean();
    });
    for_both_kinds(|mut planted| {
        planted.busy().refused(409, false).recorded_as(RecordedAs::Order(ORDER));
        assert_eq!(planted.check().ghosts, 1);
    });
}

#[test]
fn an_attempt_without_an_answer_may_have_bought() {
    for_both_kinds(|mut planted| {
        planted.busy().unanswered().recorded_as(RecordedAs::Order(ORDER)).assert_clean();
    });
    for_both_kinds(|mut planted| {
        planted.busy().state(202, "unknown").recorded_as(RecordedAs::Order(ORDER)).assert_clean();
    });
    // Without a connection nothing was sent.
    for_both_kinds(|mut planted| {
        planted.busy().attempt(None).is_sent = false;
        planted.recorded_as(RecordedAs::Order(ORDER));
        assert_eq!(planted.check().ghosts, 1);
    });
}

#[test]
fn a_refusal_after_a_promise_is_a_denial() {
    for status in [403, 404, 409, 410, 422] {
        for_both_kinds(|mut planted| {
            planted
                .state(202, "queued")
                .refused(status, false)
                .recorded_as(RecordedAs::Order(ORDER));
            let verdict = planted.check();
            assert_eq!((verdict.denials, verdict.is_clean()), (1, false), "{status}");
        });
        // The attempt was in flight when the promise was received.
        for_both_kinds(|mut planted| {
            planted.state(202, "queued").refused(status, false).overlapping();
            planted.recorded_as(RecordedAs::Order(ORDER)).assert_clean();
        });
        // A refusal leaves no record: the request may be accepted later.
        for_both_kinds(|mut planted| {
            planted.refused(status, false).bought(ORDER).recorded_as(RecordedAs::Order(ORDER));
            planted.assert_clean();
        });
    }
    for_both_kinds(|mut planted| {
        planted.bought(ORDER).busy().state(202, "unknown").unanswered().bought(ORDER);
        planted.recorded_as(RecordedAs::Order(ORDER)).assert_clean();
    });
}

#[test]
fn denials_are_found_among_the_later_checks_too() {
    for_both_kinds(|mut planted| {
        planted.state(202, "queued").refused(404, false).recorded_as(RecordedAs::Order(ORDER));
        let check = planted.history.purchases.pop().unwrap();
        planted.history.checked.push(check);
        assert_eq!(planted.check().denials, 1);
    });
}

#[test]
fn a_recorded_failure_is_an_end_and_no_denial() {
    for_both_kinds(|mut planted| {
        planted.state(202, "queued").refused(409, true).state(200, "failed");
        planted.recorded_as(RecordedAs::Failure).assert_clean();
    });
}

/// In tier `ledger`, a refusal leaves no record.
#[test]
fn a_repeat_shares_the_refusal_of_an_attempt_beside_it_and_of_no_other() {
    for_both_kinds(|mut planted| {
        planted.refused(409, false).refused(409, true);
        assert_eq!(planted.check().ends, 1);
        planted.history.purchases[1].began = planted.history.purchases[0].began;
        planted.check().assert_clean();
    });
}

type Plant = fn(&mut Planted) -> &mut Planted;

#[test]
fn two_ends_of_one_request_are_found() {
    let other = Bought { placed_at_ms: 1_001, ..ORDER };
    let wrong: [(Plant, Option<RecordedAs>); 7] = [
        (|p| p.bought(ORDER).bought(Bought { placed_at_ms: 1_001, ..ORDER }), None),
        (|p| p.bought(ORDER), Some(RecordedAs::Order(other))),
        (|p| p.bought(ORDER).refused(409, true), Some(RecordedAs::Failure)),
        (|p| p.refused(409, true).bought(ORDER), Some(RecordedAs::Order(ORDER))),
        (|p| p.state(200, "failed"), Some(RecordedAs::Order(ORDER))),
        (|p| p.bought(ORDER), Some(RecordedAs::DeadLetter)),
        (|p| p.state(200, "failed"), None),
    ];
    for (index, (plant, outcome)) in wrong.into_iter().enumerate() {
        for_both_kinds(|mut planted| {
            plant(&mut planted);
            if let Some(outcome) = outcome {
                planted.recorded_as(outcome);
            }
            let verdict = planted.check();
            assert_eq!((verdict.ends, verdict.is_clean()), (1, false), "{index}: {verdict}");
        });
    }
}

#[test]
fn requests_of_other_buyers_and_sales_are_checked_separately() {
    let mut planted = Planted::new(false);
    planted.bought(ORDER).refused(409, false).recorded_as(RecordedAs::Order(ORDER));
    assert_eq!(planted.check().denials, 1);
    let last = planted.history.purchases.last_mut().unwrap();
    last.request.buyer = 43;
    planted.assert_clean();
    let last = planted.history.purchases.last_mut().unwrap();
    (last.request.buyer, last.request.sale) = (42, "other".into());
    planted.assert_clean();
}

#[test]
#[should_panic(expected = "ghosts=1")]
fn a_verdict_that_is_not_clean_panics() {
    let mut planted = Planted::new(true);
    planted.busy().recorded_as(RecordedAs::Order(ORDER));
    planted.check().assert_clean();
}

#[test]
fn a_derived_id_that_is_sent_names_the_same_request() {
    let with_id = |planted: &mut Planted| {
        let name = RequestName::Id("7-1-x".into());
        planted.history.purchases.last_mut().unwrap().request.name = name;
    };
    let mut denied = Planted::new(false);
    denied.state(202, "queued").refused(404, false);
    with_id(&mut denied);
    denied.recorded_as(RecordedAs::Order(ORDER));
    assert_eq!(denied.check().denials, 1);

    let mut bought = Planted::new(false);
    bought.bought(ORDER);
    with_id(&mut bought);
    bought.busy().recorded_as(RecordedAs::Order(ORDER)).assert_clean();
}

#[test]
fn the_id_of_another_buyer_is_refused_and_no_ghost() {
    let mut planted = Planted::new(true);
    planted.bought(ORDER).refused(403, false).recorded_as(RecordedAs::Order(ORDER));
    planted.history.purchases.last_mut().unwrap().request.buyer = 43;
    planted.assert_clean();
}
