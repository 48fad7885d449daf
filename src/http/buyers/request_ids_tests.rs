use std::collections::HashSet;

use super::*;
use crate::domain::{Policy, samples};

const KEY: &[u8] = b"0123456789abcdef0123456789abcdef";
const NOW_MS: i64 = 1_800_000_000_000;

fn ids() -> RequestIds {
    RequestIds::new(KEY, 5, 3_600_000)
}

fn sale(id: &str) -> SaleId {
    id.parse().unwrap()
}

fn buyer(number: u64) -> BuyerId {
    BuyerId::new(number).unwrap()
}

#[test]
fn a_derived_number_is_constant_per_buyer_sku_and_sale() {
    let ids = ids();
    let first = ids.derive(&sale("s1"), SkuNo(7), buyer(42));
    assert_eq!(first, ids.derive(&sale("s1"), SkuNo(7), buyer(42)));
    // Independent of the process number and of the ttl.
    assert_eq!(first, RequestIds::new(KEY, 9, 1).derive(&sale("s1"), SkuNo(7), buyer(42)));
    assert_ne!(first, ids.derive(&sale("s1"), SkuNo(7), buyer(43)));
    assert_ne!(first, ids.derive(&sale("s1"), SkuNo(8), buyer(42)));
    assert_ne!(first, ids.derive(&sale("s2"), SkuNo(7), buyer(42)));
}

#[test]
fn the_next_number_depends_on_the_ended_order_and_its_buyer() {
    let ids = ids();
    let first = ids.derive(&sale("s1"), SkuNo(7), buyer(42));
    let second = ids.next(first, &sale("s1"), SkuNo(7), buyer(42));
    let third = ids.next(second, &sale("s1"), SkuNo(7), buyer(42));
    let others = [
        ids.next(first, &sale("s1"), SkuNo(7), buyer(43)),
        ids.next(first, &sale("s1"), SkuNo(8), buyer(42)),
        ids.next(first, &sale("s2"), SkuNo(7), buyer(42)),
    ];
    let distinct: HashSet<_> = others.into_iter().chain([first, second, third]).collect();
    assert_eq!(distinct.len(), 6);
    let elsewhere = RequestIds::new(KEY, 9, 1);
    assert_eq!(elsewhere.next(first, &sale("s1"), SkuNo(7), buyer(42)), second);
}

#[test]
fn numbers_and_signatures_do_not_change_between_versions() {
    // Computed with Python's hmac.
    let ids = ids();
    let number = RequestId::new(123_456_789).unwrap();
    assert_eq!(
        (
            ids.derive(&sale("sale-1"), SkuNo(1), buyer(42)).get(),
            ids.sign(number, &sale("sale-1"), SkuNo(1), buyer(42)).as_str(),
            ids.next(number, &sale("sale-1"), SkuNo(1), buyer(42)).get(),
        ),
        (5_934_081_836_311_088_237, "123456789-1-s3vwthWAITUgiRRS", 9_200_057_914_138_289_474)
    );
}

#[test]
fn issued_numbers_increase_when_the_clock_goes_back() {
    let ids = ids();
    let mut last = ids.issue(NOW_MS);
    for now_ms in [NOW_MS, NOW_MS + 1, NOW_MS - 60_000, 0, -1, NOW_MS + 2, NOW_MS] {
        let next = ids.issue(now_ms);
        assert!(next > last, "{next} after {last} at {now_ms}");
        last = next;
    }
}

#[test]
fn an_exhausted_millisecond_borrows_from_the_next() {
    let ids = ids();
    assert_eq!(ids.expires_at_ms(ids.issue(NOW_MS)), NOW_MS + 3_600_000);
    let numbers: HashSet<_> = (1..10_000).map(|_| ids.issue(NOW_MS)).collect();
    assert_eq!(numbers.len(), 9_999);
    let ahead_ms = ids.expires_at_ms(ids.issue(NOW_MS)) - 3_600_000 - NOW_MS;
    assert_eq!(ahead_ms, 156, "10,000 numbers are 156 milliseconds and a bit");
}

/// As in a crash loop of some hours beside a process that keeps running.
#[test]
fn processes_that_are_thousands_of_starts_apart_do_not_share_a_number() {
    let issue = |process: u16| {
        let ids = RequestIds::new(KEY, process, 1);
        (0..200).map(move |_| ids.issue(NOW_MS)).collect::<Vec<_>>()
    };
    let starts = [5, 5 + 1024, 5 + 4096, 5 + 32_768, u16::MAX];
    let numbers: Vec<_> = starts.into_iter().flat_map(issue).collect();
    let distinct: HashSet<_> = numbers.iter().collect();
    assert_eq!(distinct.len(), numbers.len());
}

#[test]
fn threads_never_share_a_number() {
    let ids = ids();
    let issue = || (0..20_000).map(|_| ids.issue(NOW_MS)).collect::<Vec<_>>();
    let numbers: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(issue)).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(numbers.iter().collect::<HashSet<_>>().len(), numbers.len());
}

#[test]
fn a_clock_outside_the_41_bits_still_yields_ids() {
    assert!(ids().issue(i64::MIN).get() > 0);
    assert!(ids().issue(i64::MAX).get() <= ID_MAX);
}

#[test]
fn a_request_that_ended_undecided_names_the_id_that_buys_again() {
    let (ids, sale) = (ids(), sale("s1"));
    let failed = ids.derive(&sale, SkuNo(7), buyer(42));
    let again = |policy, reason| {
        let sku = Sku { no: SkuNo(7), policy, ..samples::sku() };
        ids.again(failed, &reason, &sale, &sku, buyer(42))
    };
    let one = Policy::OnePerBuyer { max_quantity: 1 };
    let next = ids.next(failed, &sale, SkuNo(7), buyer(42));
    let next = Some(ids.sign(next, &sale, SkuNo(7), buyer(42)));
    for reason in [Refusal::CancelledByBuyer, Refusal::QueueTimeout, Refusal::Discarded] {
        assert_eq!(again(one, reason), next, "{reason:?}");
        assert_eq!(again(Policy::Unlimited { max_quantity: 1 }, reason), None, "ids are issued");
    }
    for reason in [Refusal::SoldOut, Refusal::Barred, Refusal::RequestIdReused] {
        assert_eq!(again(one, reason), None, "{reason:?} was decided");
    }
}
