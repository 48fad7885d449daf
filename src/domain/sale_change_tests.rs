use super::*;
use crate::domain::{OrderIntent, SkuHistory, samples};

fn sale(epoch: i64, phase: Phase) -> Sale {
    Sale { starts_at_ms: 10, ends_at_ms: 20, phase, epoch: Epoch(epoch), ..samples::sale() }
}

fn priced(price: i64) -> SaleChange {
    let none = SkuChange {
        id: samples::sku().id,
        title: None,
        price: Some(price),
        limit: None,
        max_quantity: None,
        payment_window_s: None,
    };
    SaleChange { skus: vec![none], ..SaleChange::default() }
}

fn changed(sale: &Sale, change: &SaleChange, now_ms: i64) -> Sale {
    match sale.changed(change, now_ms) {
        SaleChanged::Changed(sale) => sale,
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_intent_is_valid_under_the_terms_of_its_own_epoch() {
    let before = sale(1, Phase::Open);
    let after = changed(&changed(&before, &priced(200), 1_000), &priced(300), 2_000);
    assert_eq!((after.epoch, after.skus[0].price), (Epoch(3), 300));
    for (epoch, price) in [(1, 100), (2, 200), (3, 300)] {
        for amount in [100, 200, 300] {
            let epoch = Epoch(epoch);
            let intent = OrderIntent { epoch, amount, slot: 1, ..samples::intent(1) };
            let found = intent.contradiction(&after.skus[0], after.epoch);
            assert_eq!(found.is_none(), amount == price, "{epoch:?} {amount}: {found:?}");
        }
    }
}

#[test]
fn only_other_terms_of_an_opened_sale_are_another_epoch() {
    let title = SaleChange { title: Some("New".to_owned()), ..SaleChange::default() };
    assert_eq!(changed(&sale(1, Phase::Open), &title, 5).epoch, Epoch(1));
    assert_eq!(changed(&sale(1, Phase::Open), &priced(100), 5).epoch, Epoch(1));
    let draft = changed(&sale(0, Phase::Draft), &priced(7), 5);
    assert_eq!((draft.epoch, draft.skus[0].price), (Epoch(0), 7));
    assert_eq!(draft.skus[0].history, SkuHistory::default());
    assert_eq!(sale(1, Phase::Closed).changed(&title, 5), SaleChanged::Closed);
}

#[test]
fn an_earlier_end_of_an_opened_sale_is_another_epoch() {
    let until = |epoch, ends_at_ms| Sale { ends_at_ms, ..sale(epoch, Phase::Open) };
    let to = |ends_at_ms| SaleChange { ends_at_ms: Some(ends_at_ms), ..SaleChange::default() };
    for (epoch, ends_at_ms, expected) in
        [(1, 9_000, 2), (1, 10_000, 1), (1, 11_000, 1), (0, 9_000, 0)]
    {
        let after = changed(&until(epoch, 10_000), &to(ends_at_ms), 5);
        assert_eq!(after.epoch, Epoch(expected), "{ends_at_ms}");
    }
    let both = SaleChange { ends_at_ms: Some(9_000), ..priced(200) };
    assert_eq!(changed(&until(1, 10_000), &both, 5).epoch, Epoch(2), "with other terms: once");
}

#[test]
fn every_fault_of_a_change_is_named() {
    let mut change = priced(-1);
    change.ends_at_ms = Some(10);
    change.skus.push(SkuChange { limit: Some(3), price: None, ..change.skus[0].clone() });
    change.skus.push(SkuChange { id: "none".parse().unwrap(), ..change.skus[0].clone() });
    let SaleChanged::Faults(faults) = sale(1, Phase::Open).changed(&change, 5) else {
        panic!("accepted")
    };
    let expected = ["ends_at", "price", "occurs twice", "policy.limit", "does not offer"];
    for part in expected {
        assert!(faults.iter().any(|fault| fault.contains(part)), "{part}: {faults:?}");
    }
}
