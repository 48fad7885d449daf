//! The crowd of a flash sale: unique buyers, some of whom send their request twice.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use parking_lot::Mutex;

use super::generator::run;
use super::plan::{Load, LoadError, Outcome, TransportError, Until};
use super::report::Report;
use super::request::{BuyRequest, json_string_member};

/// One buyer in so many clicks twice. The second click is the same request, sent at about the same
/// time over another connection.
const DOUBLE_CLICK_EVERY: u64 = 5;
/// Connections shared by the crowd.
const CONNECTIONS: usize = 128;

/// The outcomes of a crowd's run.
#[derive(Debug, Clone, Default)]
pub struct CrowdRun {
    pub report: Report,
    /// The request ids that the server acknowledged with 200 or 202 and a known outcome, with their
    /// buyers. Each must become exactly one order, recorded failure or dead letter.
    pub accepted: BTreeMap<String, u64>,
    /// Clicks whose outcome is unknown: each may have bought a unit.
    pub unknown: u64,
}

/// Sends a crowd's clicks and waits until each has ended: `buyers` buyers, with ids from 1 on, buy
/// one unit each of one SKU, and 20 % of them click twice. `path_id` is the ticket path, or the
/// sale's id if the sale requires no ticket.
pub async fn run_crowd(
    target: SocketAddr,
    path_id: &str,
    sku_id: &str,
    buyers: u64,
    progress: Option<&'static str>,
) -> Result<CrowdRun, LoadError> {
    let crowd = Arc::new(Mutex::new(CrowdRun::default()));
    let buy = BuyRequest::new(target, path_id, sku_id, 1);
    let observed = crowd.clone();
    let load = Load {
        observer: Some(Arc::new(move |seq, outcome| observed.lock().count(buyer(seq), outcome))),
        until: Until::Requests(clicks_of(buyers)),
        connections: CONNECTIONS,
        progress,
        ..Load::new(target, Arc::new(move |seq, buffer| buy.write(buyer(seq), None, buffer)))
    };
    let report = run(load).await?;
    Ok(CrowdRun { report, ..std::mem::take(&mut *crowd.lock()) })
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

impl CrowdRun {
    fn count(&mut self, buyer: u64, outcome: &Outcome<'_>) {
        match outcome {
            Outcome::Answered(answer) => {
                let id = json_string_member(answer.body, b"request_id");
                if answer.is_unknown() {
                    self.unknown += 1;
                } else if let (200 | 202, Some(id)) = (answer.status, id) {
                    self.accepted.insert(id.to_owned(), buyer);
                }
            }
            Outcome::Unknown(TransportError::Connect) | Outcome::Unsent => {}
            Outcome::Unknown(_) => self.unknown += 1,
        }
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
        let mut crowd = CrowdRun::default();
        for (status, body) in [
            (202, r#"{"request_id":"5","state":"queued"}"#),
            (202, r#"{"request_id":"6","state":"unknown"}"#),
            (409, r#"{"code":"already-purchased","request_id":"7"}"#),
        ] {
            let answer = Answer { status, replayed: false, body: body.as_bytes() };
            crowd.count(1, &Outcome::Answered(answer));
        }
        for error in [TransportError::Timeout, TransportError::Connect] {
            crowd.count(1, &Outcome::Unknown(error));
        }
        assert_eq!(crowd.accepted, BTreeMap::from([("5".to_owned(), 1)]));
        assert_eq!(crowd.unknown, 2);
    }
}
