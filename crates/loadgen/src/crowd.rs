//! The crowd of a flash sale: unique buyers, some of whom send their request twice.

use std::net::SocketAddr;
use std::sync::Arc;

use indicatif::ProgressBar;
use parking_lot::Mutex;

use super::plan::{Load, LoadError, Outcome, TransportError, Until};
use super::report::Report;
use super::request::{BuyRequest, json_string_member};
use super::run::run;

/// One buyer in so many clicks twice. The second click is the same request, sent at about the same
/// time over another connection.
const DOUBLE_CLICK_EVERY: u64 = 5;
/// Connections shared by the crowd.
const CONNECTIONS: usize = 128;

/// The outcome of one click.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Click {
    pub buyer_id: u64,
    /// The request id that the server acknowledged with 200 or 202 and a known outcome.
    pub accepted: Option<String>,
    /// The outcome is unknown: the click may have bought a unit.
    pub is_unknown: bool,
}

/// The outcomes of a crowd's run.
#[derive(Debug, Clone)]
pub struct CrowdRun {
    pub report: Report,
    /// One entry per click, in the order of the answers.
    pub clicks: Vec<Click>,
}

impl CrowdRun {
    /// The distinct acknowledged request ids, sorted. Each must become exactly one order, recorded
    /// failure or dead letter.
    pub fn accepted_ids(&self) -> Vec<&str> {
        let mut ids: Vec<_> =
            self.clicks.iter().filter_map(|click| click.accepted.as_deref()).collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    }
}

/// Sends a crowd's clicks and waits until each has ended: `buyers` buyers, with ids from 1 on, buy
/// one unit each of one SKU, and 20 % of them click twice. `path_id` is the ticket path, or the
/// sale's id if the sale requires no ticket.
///
/// # Errors
/// [`LoadError`] if the generator cannot run; answers and transport errors are results.
pub async fn run_crowd(
    target: SocketAddr,
    path_id: &str,
    sku_id: &str,
    buyers: u64,
    progress: Option<ProgressBar>,
) -> Result<CrowdRun, LoadError> {
    let clicks = Arc::new(Mutex::new(Vec::new()));
    let buy = BuyRequest::new(target, path_id, sku_id, 1);
    let observed = clicks.clone();
    let load = Load {
        observer: Some(Arc::new(move |seq, outcome| {
            observed.lock().push(Click::new(buyer(seq), outcome));
        })),
        until: Until::Requests(clicks_of(buyers)),
        connections: CONNECTIONS,
        progress,
        ..Load::new(target, Arc::new(move |seq, buffer| buy.write(buyer(seq), None, buffer)))
    };
    let report = run(load).await?;
    let clicks = std::mem::take(&mut *clicks.lock());
    Ok(CrowdRun { report, clicks })
}

/// The number of requests, second clicks included.
fn clicks_of(buyers: u64) -> u64 {
    buyers + buyers.div_ceil(DOUBLE_CLICK_EVERY)
}

/// The buyer of click `seq`: the first buyer of each group has two in a row.
fn buyer(seq: u64) -> u64 {
    let (group, offset) = (seq / (DOUBLE_CLICK_EVERY + 1), seq % (DOUBLE_CLICK_EVERY + 1));
    1 + group * DOUBLE_CLICK_EVERY + offset.saturating_sub(1)
}

impl Click {
    fn new(buyer_id: u64, outcome: &Outcome<'_>) -> Self {
        let (mut accepted, mut is_unknown) = (None, false);
        match outcome {
            Outcome::Answered(answer) => {
                is_unknown = json_string_member(answer.body, b"state") == Some("unknown");
                if matches!(answer.status, 200 | 202) && !is_unknown {
                    accepted = json_string_member(answer.body, b"request_id").map(str::to_owned);
                }
            }
            Outcome::Unknown(error) => is_unknown = *error != TransportError::Connect,
            Outcome::Unsent => {}
        }
        Self { buyer_id, accepted, is_unknown }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::Answer;

    #[test]
    fn every_buyer_clicks_once_or_twice() {
        for buyers in [1, 4, 5, 19, 250] {
            let mut clicks = BTreeMap::new();
            for seq in 0..clicks_of(buyers) {
                *clicks.entry(buyer(seq)).or_insert(0_u64) += 1;
            }
            assert!(clicks.keys().copied().eq(1..=buyers), "{buyers}");
            assert!(clicks.values().all(|count| (1..=2).contains(count)), "{buyers}");
            let doubled = clicks.values().filter(|count| **count == 2).count() as u64;
            assert_eq!(doubled, buyers.div_ceil(5));
        }
    }

    #[test]
    fn only_known_acceptances_count() {
        let click = |status, body: &'static str| {
            let answer = Answer { status, replayed: false, body: body.as_bytes() };
            Click::new(1, &Outcome::Answered(answer))
        };
        let queued = click(202, r#"{"request_id":"5","state":"queued"}"#);
        let unknown = click(202, r#"{"request_id":"6","state":"unknown"}"#);
        let refused = click(409, r#"{"code":"already-purchased","request_id":"5"}"#);
        let lost = Click::new(1, &Outcome::Unknown(TransportError::Timeout));
        let clicks = [queued, unknown, refused, lost];
        let accepted = clicks.each_ref().map(|click| click.accepted.as_deref());
        assert_eq!(accepted, [Some("5"), None, None, None]);
        assert_eq!(clicks.map(|click| click.is_unknown), [false, true, false, true]);
    }
}
