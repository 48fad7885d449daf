use super::*;
use crate::domain::{BuyerId, samples};

#[test]
fn all_keys_of_a_bucket_share_one_hash_tag() {
    let keys = BucketKeys::new("fg", SkuNo(12), BucketNo(3));
    assert_eq!(keys.bucket(), "fg:{12:3}:bucket");
    assert_eq!(keys.requests(2), "fg:{12:3}:requests:2");
    assert_eq!(keys.buyers(3), "fg:{12:3}:buyers:3");
    assert_eq!(keys.claimed("node/1"), "fg:{12:3}:claimed:node/1");
    let others = [keys.unsettled(), keys.outbox(), keys.moves(), keys.claimants()];
    for key in others {
        assert!(key.starts_with("fg:{12:3}:"), "{key}");
    }
}

#[test]
fn the_number_of_pages_is_a_power_of_two() {
    let pages_of =
        |initial, buckets| Pages::of_sku(&Sku { initial, buckets, ..samples::sku() }).all().end;
    let table = [(1, 1, 1), (96, 1, 1), (97, 1, 2), (1_000, 8, 2), (100_000, 8, 256)];
    for (initial, buckets, pages) in table {
        assert_eq!(pages_of(initial, buckets), pages, "{initial} in {buckets}");
    }
    assert_eq!(pages_of(1_000_000_000, 1), 4_096);
    assert_eq!(pages_of(0, 0), 1);
}

#[test]
fn the_page_of_an_id_never_changes() {
    let pages = [1, 2, 3, 1 << 62].map(|id| Pages(64).page_of(id));
    assert_eq!(pages, [60, 6, 18, 29]);
}

#[test]
fn the_buyers_of_one_bucket_use_all_its_pages_evenly() {
    for buckets in [1, 7, 8, 64] {
        let mut sizes = [0_u32; 32];
        let at_home = (1..)
            .filter(|id| BucketNo::home_of(BuyerId::new(*id).unwrap(), buckets).0 == 0)
            .take(32 * 96);
        for buyer in at_home {
            sizes[usize::from(Pages(32).page_of(buyer))] += 1;
        }
        let (least, most) = (sizes.iter().min().unwrap(), sizes.iter().max().unwrap());
        assert!(*least > 48 && *most < 160, "{buckets} buckets: {least} to {most}");
    }
}

#[test]
fn an_installation_has_eight_digits() {
    assert_eq!(Installation(0xa1).to_string(), "000000a1");
}
