//! Checks of the buckets on one server: whose they are, and whether the ledger is behind them.

use super::super::{Check, check};
use super::{Expected, reason};
use crate::domain::{Epoch, Phase, SkuNo};
use crate::redis::transport::health::{FoundBuckets, Server, ServerFacts, ServerRole};

pub(super) fn buckets(facts: &ServerFacts, expected: &Expected<'_>, cli: &str) -> Check {
    let check = check("redis buckets");
    let found = match &facts.buckets {
        Ok(found) => found,
        Err(error) => {
            let remedy = "allow this user `+scan +hmget` on keys that begin with the namespace";
            return check.warn(format!("cannot be looked for: {}", reason(error))).remedy(remedy);
        }
    };
    let by_installation = &found.by_installation;
    let total: u64 = by_installation.values().map(|buckets| buckets.count).sum();
    let ours = expected.ledger.as_ref().map(Option::as_ref);
    let ours = ours.map(|ledger| ledger.map_or("", |ledger| &*ledger.installation));
    let foreign = |name: &&String| ours.is_ok_and(|ours| ours != name.as_str() || name.is_empty());
    let others: Vec<_> = by_installation.keys().filter(foreign).collect();
    let of = |name: &&String| by_installation.get(*name);
    let num_foreign: u64 = others.iter().filter_map(of).map(|buckets| buckets.count).sum();
    let unreadable = by_installation.get("").map(|buckets| buckets.key.as_str());
    let names: Vec<_> = others.iter().map(|name| format!("{name:?}")).collect();
    let owner = match ours {
        Ok("") => "another ledger: ours does not exist yet".to_owned(),
        ours => format!("another ledger ({}, ours is {:?})", names.join(", "), ours.unwrap_or("")),
    };
    let unknown_owner = if ours.is_err() { ", owner unknown without the ledger" } else { "" };
    let partial = if found.is_complete { "" } else { " (not all keys were scanned)" };
    let stale = match found.opened_elsewhere {
        0 => String::new(),
        count => format!("; {count} from before its last start are reloaded from the ledger"),
    };
    check
        .when(unreadable.is_some() && others.len() == 1 && !matches!(ours, Ok("")))
        .fail(format!(
            "{num_foreign} of {total} under our namespace have no readable epoch{partial}"
        ))
        .remedy(format!(
            "`{cli} UNLINK '{}'`, then run the doctor again; accepted requests are kept",
            unreadable.unwrap_or_default()
        ))
        .when(num_foreign > 0)
        .fail(format!("{num_foreign} of {total} under our namespace belong to {owner}{partial}"))
        .remedy(
            "give this installation a `namespace` of its own; delete the keys only if that other \
             ledger is gone for good",
        )
        .ok(format!("{total} under our namespace{unknown_owner}{stale}{partial}"))
}

/// Fails when buckets of ours are in a later epoch than the ledger, which refuses all buyers.
pub(super) fn epochs(facts: &ServerFacts, expected: &Expected<'_>) -> Check {
    let check = check("redis epochs");
    let (Ok(found), Ok(Some(ledger))) = (&facts.buckets, &expected.ledger) else { return check };
    let Some(ours) = found.by_installation.get(&ledger.installation) else { return check };
    let latest = |sku: i32| {
        let (epoch, phase) = ours.latest.get(&sku)?;
        Some((Epoch(*epoch), Phase::from_db(i16::try_from(*phase).ok()?)?))
    };
    let Some((sale, epoch)) = ledger.behind(latest) else { return check };
    let (id, epoch, ours) = (&sale.id, epoch.0, sale.epoch.0);
    check
        .fail(format!(
            "buckets of sale {id} are in epoch {epoch}, the ledger in {ours}: it was restored \
             from an older backup, and their buyers read `busy`"
        ))
        .remedy(format!("`floodgate sale open {id}` continues above both"))
}

/// Fails when buckets of a sale that is open and has begun are on no server: all its buyers, or
/// those of some buckets, read `busy`. No finding if a master or a bucket could not be read.
pub(super) fn missing(servers: &[Server], expected: &Expected<'_>, now_ms: i64) -> Check {
    let check = check("redis loads");
    let Ok(Some(ledger)) = &expected.ledger else { return check };
    let masters = servers.iter().filter(|server| server.part != ServerRole::Replica);
    let found = masters.map(|server| server.seen.as_ref().ok()?.buckets.as_ref().ok());
    let Some(found) = found.collect::<Option<Vec<_>>>() else { return check };
    let loaded = |sku: SkuNo| -> u16 {
        let ours = found.iter().filter_map(|it| it.by_installation.get(&ledger.installation));
        ours.filter_map(|ours| ours.loaded.get(&sku.0)).sum()
    };
    let selling = ledger.sales.iter().filter(|sale| {
        sale.phase == Phase::Open && (sale.starts_at_ms..sale.ends_at_ms).contains(&now_ms)
    });
    let mut lacking = selling.filter_map(|sale| {
        let sku = sale.skus.iter().find(|sku| loaded(sku.no) < sku.buckets)?;
        Some((sale, sku, loaded(sku.no)))
    });
    let Some((sale, sku, count)) = lacking.next() else { return check };
    let is_readable = |it: &FoundBuckets| it.is_complete && !it.by_installation.contains_key("");
    check
        .when(found.iter().all(|it| is_readable(it)))
        .fail(format!(
            "{count} of {} buckets of SKU {} of the open sale {} are loaded: buyers read `busy`",
            sku.buckets, sku.id, sale.id
        ))
        .remedy(
            "start a process with role = \"maintenance\" or \"all\": it loads them from the ledger \
             in seconds; where one runs, its log says why it cannot",
        )
}
