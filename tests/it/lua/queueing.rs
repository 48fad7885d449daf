//! Accepted intents on their way into list and stream, and the count of what is queued.

use floodgate::domain::{
    Epoch, Order, OrderIntent, OrderState, Phase, Refusal, RequestStatus, Reservation, Verdict,
};
use floodgate::redis::scripts::record::RequestRecord;
use floodgate::redis::scripts::settle::SettleOutcome;
use floodgate::redis::scripts::{
    BucketFence, EntryLimits, Error, OpenBucket, OutboxArgs, ReadQueued, Release, ReserveBatch,
    Settle, intent,
};
use floodgate::stock::LoaderToken;

use super::rig::{KINDS, LOADER, OUTBOXES, Shop, Wire, refused, sku};
use super::scenarios::policies;
use crate::support::offers::{ANY, ONE};
use crate::support::servers::redis::Redis;

fn outboxes(envelope_max: usize, entries_max: u64) -> [OutboxArgs; 2] {
    let entries = EntryLimits { envelope_max, entries_max };
    [OutboxArgs::List(entries), OutboxArgs::Stream(entries)]
}

/// For each outbox, a SKU of its own on a fresh server.
fn each(outboxes: [OutboxArgs; 2], mut test: impl FnMut(&mut Wire, &Shop, OutboxArgs)) {
    for outbox in outboxes {
        let redis = Redis::start();
        let mut wire = Wire::new(&redis);
        let shop = Shop::open(&redis, &mut wire, sku(1, ONE, 200), 100);
        test(&mut wire, &shop, outbox);
    }
}

fn asks(shop: &Shop, numbers: std::ops::Range<u64>) -> Vec<Reservation> {
    numbers.map(|no| shop.ask(no, no, 1)).collect()
}

fn packed(shop: &Shop, asks: &[Reservation]) -> Vec<u8> {
    asks.iter().flat_map(|ask| intent::pack(&ask.intent(&shop.sku))).collect()
}

/// So many are accepted, then so many find no room.
fn accepted_then_full(accepted: usize, full: usize) -> Vec<Verdict> {
    [vec![Verdict::Reserved; accepted], vec![Verdict::Full; full]].concat()
}

#[test]
fn a_batch_leaves_exactly_what_was_accepted() {
    each(OUTBOXES, |wire, shop, outbox| {
        let [a, b, c] = [shop.ask(1, 1, 2), shop.ask(2, 2, 3), shop.ask(3, 3, 1)];
        let (other, over) = (shop.ask(1, 4, 2), shop.ask(5, 5, 99));
        shop.reserve_into(wire, outbox, &[a, other, b, over, a]);
        shop.reserve_into(wire, outbox, &[a, other, b, over]);
        assert_eq!(shop.reserve_into(wire, outbox, &[c]), [Verdict::Reserved]);
        let expected = [packed(shop, &[a, b]), packed(shop, &[c])];
        assert_eq!(shop.entries(wire, 0, outbox), expected);
        let counts = shop.counts(wire, 0);
        assert_eq!((counts.num_queued, counts.num_kept), (3, 0), "the entry is the record");
    });
}

#[test]
fn a_batch_is_cut_into_envelopes_and_two_batches_share_none() {
    for envelope_max in [1, 2, 4, 5, 64] {
        each(outboxes(envelope_max, 1_000), |wire, shop, outbox| {
            let (first, second) = (asks(shop, 1..11), asks(shop, 11..14));
            // A repeat in between leaves no gap.
            let mut batch = first.clone();
            batch.insert(3, first[0]);
            shop.reserve_into(wire, outbox, &batch);
            shop.reserve_into(wire, outbox, &second);
            let chunks = first.chunks(envelope_max).chain(second.chunks(envelope_max));
            let expected: Vec<_> = chunks.map(|chunk| packed(shop, chunk)).collect();
            assert_eq!(shop.entries(wire, 0, outbox), expected, "{envelope_max}");
        });
    }
}

#[test]
fn thousands_of_entries_wait_and_keep_their_order() {
    for outbox in outboxes(1, 10_000) {
        let redis = Redis::start();
        let mut wire = Wire::new(&redis);
        let shop = Shop::open(&redis, &mut wire, sku(1, ANY, 12_000), 6_000);
        let all = asks(&shop, 1..5_001);
        for batch in all.chunks(1_000) {
            shop.reserve_into(&mut wire, outbox, batch);
        }
        let expected: Vec<_> = all.iter().map(|ask| packed(&shop, &[*ask])).collect();
        assert!(shop.entries(&mut wire, 0, outbox) == expected, "{outbox:?}");
    }
}

#[test]
fn a_full_outbox_accepts_no_more_than_has_room() {
    each(outboxes(3, 2), |wire, shop, outbox| {
        let all = asks(shop, 1..9);
        assert_eq!(shop.reserve_into(wire, outbox, &all), accepted_then_full(6, 2));
        assert_eq!(shop.counts(wire, 0).left.stock, 94);
        // What needs no room is answered as ever.
        let over = [shop.ask(20, 20, 95), shop.ask(1, 1, 2)];
        let batch = [&all[..1], &over, &all[7..]].concat();
        let expected = [
            Verdict::Repeat(RequestStatus::Queued),
            Verdict::Short,
            Verdict::Refused(Refusal::RequestIdReused),
            Verdict::Full,
        ];
        let before = wire.digest();
        assert_eq!(shop.reserve_into(wire, outbox, &batch), expected);
        assert_eq!(wire.digest(), before, "nothing was written");
        // A relay has taken one entry.
        let key = shop.buckets[0].outbox();
        match outbox {
            OutboxArgs::List(_) => drop(wire.cmd(&["LPOP", &key])),
            _ => drop(wire.cmd(&["XTRIM", &key, "MAXLEN", "1"])),
        }
        let more = asks(shop, 30..35);
        assert_eq!(shop.reserve_into(wire, outbox, &more), accepted_then_full(3, 2));
        assert_eq!(shop.reserve_into(wire, outbox, &more[3..]), accepted_then_full(0, 2));
        let counts = shop.counts(wire, 0);
        assert_eq!((counts.num_queued, counts.left.stock), (9, 91));
        shop.turn(wire, 0, Phase::Paused, Epoch(1));
        let refusal = Verdict::Refused(Refusal::NotStarted);
        assert_eq!(shop.reserve_into(wire, outbox, &all[7..]), [refusal], "full or not");
    });
}

#[test]
fn dead_letters_that_wait_count_as_entries() {
    each(outboxes(3, 2), |wire, shop, outbox| {
        wire.cmd(&["RPUSH", &shop.buckets[0].dead(), "letter"]);
        let all = asks(shop, 1..6);
        assert_eq!(shop.reserve_into(wire, outbox, &all), accepted_then_full(3, 2));
        wire.cmd(&["DEL", &shop.buckets[0].dead()]);
        assert_eq!(shop.reserve_into(wire, outbox, &all[3..]), accepted_then_full(2, 0));
    });
}

#[test]
fn an_outbox_that_is_too_full_already_accepts_nothing() {
    // Somebody has lowered the limit, also to nothing.
    each(outboxes(1, 5), |wire, shop, outbox| {
        shop.reserve_into(wire, outbox, &asks(shop, 1..6));
        for lower in [3, 0] {
            let [list, stream] = outboxes(1, lower);
            let lowered = if matches!(outbox, OutboxArgs::List(_)) { list } else { stream };
            let verdicts = shop.reserve_into(wire, lowered, &asks(shop, 6..8));
            assert_eq!(verdicts, accepted_then_full(0, 2));
        }
    });
}

#[test]
fn a_stream_without_another_id_takes_nothing() {
    let [_, outbox] = outboxes(2, 1_000);
    each([outbox; 2], |wire, shop, outbox| {
        let last = format!("{0}-{0}", u64::MAX);
        wire.cmd(&["XADD", &shop.buckets[0].outbox(), &last, "intents", "x"]);
        let before = wire.digest();
        let batch = asks(shop, 1..6);
        let door = ReserveBatch { outbox, ..shop.reserving(0, &batch) };
        assert!(wire.send(&door.call()).is_err());
        assert_eq!(wire.digest(), before);
    });
}

#[test]
fn what_is_queued_is_counted_on_every_path() {
    let redis = Redis::start();
    let mut wire = Wire::new(&redis);
    let kinds = policies().into_iter().flat_map(|policy| KINDS.map(|outbox| (policy, outbox)));
    for (no, (policy, outbox)) in (1..).zip(kinds) {
        let shop = Shop::open(&redis, &mut wire, sku(no, policy, 200), 100);
        let wire = &mut wire;
        let queued = |wire: &mut Wire| shop.counts(wire, 0).num_queued;
        assert_eq!(queued(wire), 0);
        let all = asks(&shop, 1..8);
        shop.reserve_into(wire, outbox, &all);
        assert_eq!(queued(wire), 7);
        shop.reserve_into(wire, outbox, &all);
        assert_eq!(queued(wire), 7, "repeats");
        let order = |ask: &Reservation| shop.order(ask);
        // The same order twice in one batch, and a settled one again.
        shop.settle(wire, 0, &[order(&all[0]), order(&all[1]), order(&all[0])]);
        assert_eq!(queued(wire), 5);
        assert_eq!(shop.settle(wire, 0, &[order(&all[0])]), [SettleOutcome::Repeat]);
        assert_eq!(queued(wire), 5);
        let ended = Order { state: OrderState::TimedOut, ..order(&shop.ask(31, 31, 1)) };
        let adopted = [order(&shop.ask(30, 30, 1)), ended];
        assert_eq!(shop.settle(wire, 0, &adopted), [SettleOutcome::Adopted; 2]);
        assert_eq!(queued(wire), 5, "never queued");
        let refuse = |ask: &Reservation, reason| refused(ask, reason);
        let twice = [refuse(&all[2], Refusal::Ended), refuse(&all[2], Refusal::Ended)];
        assert_eq!(
            shop.release(wire, 0, &twice).items,
            [SettleOutcome::Now, SettleOutcome::Repeat]
        );
        shop.release(wire, 0, &[refuse(&all[3], Refusal::SoldOut)]);
        assert_eq!(queued(wire), 3);
        let others =
            [refuse(&all[0], Refusal::Ended), refuse(&shop.ask(40, 40, 1), Refusal::Ended)];
        let notes = shop.release(wire, 0, &others).items;
        assert_eq!(notes, [SettleOutcome::Contradicts, SettleOutcome::Unknown]);
        assert_eq!(shop.settle(wire, 0, &[order(&all[2])]), [SettleOutcome::Contradicts]);
        let mistaken = Order { quantity: 9, ..order(&all[4]) };
        assert_eq!(shop.settle(wire, 0, &[mistaken]), [SettleOutcome::Mismatch]);
        assert_eq!(queued(wire), 3);
        assert_eq!(requests(wire, &shop), [5, 6, 7]);
        shop.settle(wire, 0, &all[4..].iter().map(order).collect::<Vec<_>>());
        assert_eq!(queued(wire), 0);
        shop.reserve_into(wire, outbox, &asks(&shop, 50..52));
        // A load keeps what is queued, and its loader says how many they are.
        assert_eq!(shop.load_begin(wire, 0, LoaderToken(1)), Ok(vec![50, 51]));
        let open = OpenBucket { num_queued: 2, ..shop.opening(0, LoaderToken(1), 98) };
        assert_eq!(open.parse(wire.send(&open.call()).unwrap()), Ok(true));
        assert_eq!(queued(wire), 2);
        assert_eq!(shop.settle(wire, 0, &[order(&shop.ask(50, 50, 1))]), [SettleOutcome::Now]);
        assert_eq!(queued(wire), 1);
    }
}

/// The numbers of the queued requests.
fn requests(wire: &mut Wire, shop: &Shop) -> Vec<u64> {
    let door = shop.queued(0);
    let found = door.parse(wire.send(&door.call()).unwrap()).unwrap();
    let mut numbers: Vec<_> =
        found.requests.into_iter().map(|found| found.unwrap().0.get()).collect();
    numbers.sort_unstable();
    numbers
}

#[test]
fn a_count_that_cannot_be_is_refused() {
    let redis = Redis::start();
    let mut wire = Wire::new(&redis);
    let shop = Shop::open(&redis, &mut wire, sku(1, ANY, 200), 100);
    let all = asks(&shop, 1..4);
    shop.reserve(&mut wire, 0, &all);
    wire.cmd(&["HSET", &shop.buckets[0].bucket(), "queued", "1"]);
    let before = wire.digest();
    let corrupt = Err(Error::Corrupt { what: "queued".to_owned() });
    let (keys, fence, policy) = (&shop.buckets[0], &shop.fence, ANY);
    let orders: Vec<_> = all.iter().map(|ask| shop.order(ask)).collect();
    let settle = Settle { keys, fence, policy, orders: &orders };
    assert_eq!(settle.parse(wire.send(&settle.call()).unwrap()), corrupt);
    let refused: Vec<_> = all.iter().map(|ask| refused(ask, Refusal::Ended)).collect();
    let release = Release { keys, fence, policy, refused: &refused };
    assert_eq!(release.parse(wire.send(&release.call()).unwrap()), corrupt);
    assert_eq!(wire.digest(), before);
}

#[test]
fn queued_requests_are_read_page_by_page_whatever_the_server() {
    each(OUTBOXES, |wire, shop, outbox| {
        let all = asks(shop, 1..60);
        shop.reserve_into(wire, outbox, &all);
        shop.settle(wire, 0, &[shop.order(&all[9])]);
        shop.release(wire, 0, &[refused(&all[10], Refusal::Ended)]);
        let queued: Vec<OrderIntent> = all
            .iter()
            .filter(|ask| ![10, 11].contains(&ask.request.get()))
            .map(|ask| ask.intent(&shop.sku))
            .collect();
        let elsewhere = BucketFence { server: "elsewhere".into(), ..shop.fence.clone() };
        for shop in [shop, &Shop { fence: elsewhere, ..shop.clone() }] {
            let mut found = Vec::new();
            for page in 0..shop.buckets[0].pages() {
                let door = ReadQueued { pages: page..page + 1, ..shop.queued(0) };
                let pages = door.parse(wire.send(&door.call()).unwrap()).unwrap();
                assert_eq!(pages.epoch.0, 1);
                found.extend(pages.requests.into_iter().map(Result::unwrap));
            }
            found.sort_by_key(|(request, _)| *request);
            let expected =
                queued.iter().map(|intent| (intent.request, RequestRecord::queued(intent)));
            assert_eq!(found, expected.collect::<Vec<_>>());
        }
    });
}

#[test]
fn a_bucket_that_is_being_loaded_tells_what_is_queued() {
    each(OUTBOXES, |wire, shop, outbox| {
        let all = asks(shop, 1..9);
        shop.reserve_into(wire, outbox, &all);
        shop.settle(wire, 0, &[shop.order(&all[3])]);
        let expected = [1, 2, 3, 5, 6, 7, 8];
        let loader = LoaderToken(LOADER.0 + 1);
        assert_eq!(shop.hold(wire, 0, loader), Ok(true));
        assert_eq!(requests(wire, shop), expected, "held");
        assert_eq!(shop.clear(wire, 0, loader), Ok(expected.to_vec()));
        assert_eq!(requests(wire, shop), expected, "cleared");
    });
}
