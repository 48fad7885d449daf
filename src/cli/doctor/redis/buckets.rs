//! Checks of the buckets on one server: whose they are, and whether the ledger is behind them.

use super::super::Check;
use super::{Expected, reason};
use crate::domain::{Epoch, Phase, SkuNo};
use crate::redis::transport::health::{FoundBuckets, Server, ServerFacts, ServerRole};

pub(super) fn buckets(facts: &ServerFacts, expected: &Expected<'_>, cli: &str) -> Check {
    let name = "redis buckets";
    let found = match &facts.buckets {
        Ok(found) => found,
        Err(error) => {
            let reason = reason(error);
            return check! { name;
                Warn "cannot be looked for: {reason}"
                -> "allow this user `+scan +hmget` on keys that begin with the namespace"
            };
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
    let is_alone = others.len() == 1 && !matches!(ours, Ok(""));
    let unreadable = by_installation.get("").filter(|_| is_alone).map(|buckets| &buckets.key);
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
    check! { name;
        let Some(key) = unreadable =>
            Fail "{num_foreign} of {total} under our namespace have no readable epoch{partial}"
            -> "`{cli} UNLINK '{key}'`, then run the doctor again; accepted requests are kept";
        num_foreign > 0 =>
            Fail "{num_foreign} of {total} under our namespace belong to {owner}{partial}"
            -> "give this installation a `namespace` of its own; delete the keys only if that \
                other ledger is gone for good";
        else => Ok "{total} under our namespace{unknown_owner}{stale}{partial}"
    }
}

/// Fails when buckets of ours are in a later epoch than the ledger, which refuses all buyers.
pub(super) fn epochs(facts: &ServerFacts, expected: &Expected<'_>) -> Check {
    let (Ok(found), Ok(Some(ledger))) = (&facts.buckets, &expected.ledger) else { return None };
    let ours = found.by_installation.get(&ledger.installation)?;
    let latest = |sku: i32| {
        let (epoch, phase) = ours.latest.get(&sku)?;
        Some((Epoch(*epoch), Phase::from_db(i16::try_from(*phase).ok()?)?))
    };
    let (sale, epoch) = ledger.behind(latest)?;
    let (id, epoch, ours) = (&sale.id, epoch.0, sale.epoch.0);
    check! { "redis epochs";
        Fail "buckets of sale {id} are in epoch {epoch}, the ledger in {ours}: it was restored \
              from an older backup, and their buyers read `busy`"
        -> "`floodgate sale open {id}` continues above both"
    }
}

/// Fails when buckets of a sale that is open and has begun are on no server: all its buyers, or
/// those of some buckets, read `busy`. No finding if a master or a bucket could not be read.
pub(super) fn missing(servers: &[Server], expected: &Expected<'_>, now_ms: i64) -> Check {
    let Ok(Some(ledger)) = &expected.ledger else { return None };
    let masters = servers.iter().filter(|server| server.part != ServerRole::Replica);
    let found = masters.map(|server| server.seen.as_ref().ok()?.buckets.as_ref().ok());
    let found = found.collect::<Option<Vec<_>>>()?;
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
    let (sale, sku, count) = lacking.next()?;
    let (sale, sku, total) = (&sale.id, &sku.id, sku.buckets);
    let is_readable = |it: &FoundBuckets| it.is_complete && !it.by_installation.contains_key("");
    check! { "redis loads";
        found.iter().all(|it| is_readable(it)) =>
            Fail "{count} of {total} buckets of SKU {sku} of the open sale {sale} are loaded: \
                  buyers read `busy`"
            -> "start a process with role = \"maintenance\" or \"all\": it loads them from the \
                ledger in seconds; where one runs, its log says why it cannot";
    }
}
