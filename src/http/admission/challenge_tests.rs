use prometheus_client::metrics::counter::Counter;

use super::*;
use crate::domain::samples;
use crate::http::admission::rate_table::RateTable;
use crate::runtime::clock::now_monotonic;

const NOW_MS: i64 = 1_800_000_000_000;

fn challenges(kinds: &[ChallengeKind]) -> Challenges {
    let settings = TicketSettings {
        challenges: kinds.to_vec(),
        work_bits: 8,
        challenge_ttl_s: 120,
        ticket_ttl_s: 600,
    };
    Challenges::new(Signer::new(b"0123456789abcdef0123456789abcdef"), settings)
}

fn both() -> Challenges {
    challenges(&[ChallengeKind::Arithmetic, ChallengeKind::Work])
}

fn buyer(number: u64) -> BuyerId {
    BuyerId::new(number).unwrap()
}

/// The answers from 0 on that yield a ticket.
fn solve(challenges: &Challenges, id: &str, sale: &Sale, buyer: BuyerId) -> Vec<String> {
    let answers = (0..5_000).map(|answer: u32| answer.to_string());
    answers
        .filter(|answer| challenges.redeem(id, answer, sale, buyer, NOW_MS, |_| true).is_some())
        .collect()
}

#[test]
fn each_kind_is_solved_by_its_answer_and_by_no_other() {
    let (challenges, sale) = (both(), samples::sale());
    for kind in [ChallengeKind::Arithmetic, ChallengeKind::Work] {
        let issued = challenges.issue(kind, &sale, buyer(1), NOW_MS);
        assert_eq!(issued.expires_at_ms, NOW_MS + 120_000);
        assert_eq!(issued.task.svg.is_some(), kind == ChallengeKind::Arithmetic);
        assert_eq!(issued.task.work.is_some(), kind == ChallengeKind::Work);
        let right = solve(&challenges, &issued.challenge_id, &sale, buyer(1));
        match kind {
            ChallengeKind::Arithmetic => assert_eq!(right.len(), 1),
            // One answer in 256: about 20 of 5,000.
            ChallengeKind::Work => assert!((1..100).contains(&right.len()), "{}", right.len()),
        }
        assert_eq!(solve(&challenges, &issued.challenge_id, &sale, buyer(2)), [""; 0]);
        let other = Sale { id: "other".parse().unwrap(), ..sale.clone() };
        assert_eq!(solve(&challenges, &issued.challenge_id, &other, buyer(1)), [""; 0]);
    }
}

#[test]
fn a_challenge_yields_one_ticket_until_it_expires() {
    let (challenges, sale) = (both(), samples::sale());
    let issued = challenges.issue(ChallengeKind::Arithmetic, &sale, buyer(1), NOW_MS);
    let id = &issued.challenge_id;
    let answer = solve(&challenges, id, &sale, buyer(1)).pop().unwrap();
    let at = |ms| challenges.redeem(id, &answer, &sale, buyer(1), NOW_MS + ms, |_| true);
    let ticket = at(0).unwrap();
    assert_eq!(i64::from(ticket.expires_s) * 1000, NOW_MS + 720_000);
    assert_eq!(at(119_999), Some(ticket), "the same at any time");
    assert_eq!(at(120_000), None);
    let too_often = challenges.redeem(id, &answer, &sale, buyer(1), NOW_MS, |number| {
        assert_eq!(number, ticket.number);
        false
    });
    assert_eq!(too_often, None);
    let again = challenges.issue(ChallengeKind::Arithmetic, &sale, buyer(1), NOW_MS);
    assert_ne!(again.challenge_id, *id);
}

#[test]
fn only_offered_kinds_are_issued() {
    let work = challenges(&[ChallengeKind::Work]);
    assert_eq!(work.kind(None), Some(ChallengeKind::Work));
    assert_eq!(work.kind(Some(ChallengeKind::Arithmetic)), None);
    assert_eq!(both().kind(None), Some(ChallengeKind::Arithmetic));
    assert_eq!(both().kind(Some(ChallengeKind::Work)), Some(ChallengeKind::Work));
}

#[test]
fn a_challenge_is_answered_three_times_in_its_life() {
    let (rate, now) = (both().attempts(), now_monotonic());
    let table = RateTable::new(now, Counter::default());
    let answered = |after_s| {
        let at = now + Duration::from_secs(after_s);
        table.take(7, rate, at).is_ok()
    };
    assert_eq!([0, 0, 0, 0, 119].map(answered), [true, true, true, false, false]);
}
