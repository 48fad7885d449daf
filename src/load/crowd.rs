//! The crowd of a flash sale: unique buyers, some of whom click twice.

use std::net::SocketAddr;
use std::sync::Arc;

use parking_lot::Mutex;

use super::plan::{Answer, Load, LoadError, Outcome, TransportError, Until};
use super::progress::ProgressFn;
use super::report::Report;
use super::request::{BuyRequest, json_string_member};
use super::run::run;

/// Buyers that share one pattern of double clicks.
const BLOCK: u64 = 100;

/// A crowd that buys one unit each of one SKU.
#[derive(Clone)]
pub struct Crowd {
    /// Address of the public listener.
    pub target: SocketAddr,
    /// Ticket path, or the sale's id where the sale asks for no ticket.
    pub path_id: String,
    /// SKU that all want.
    pub sku_id: String,
    /// How many buyers come.
    pub buyers: u64,
    /// Id of the first buyer; the others follow it number by number.
    pub first_buyer: u64,
    /// How many buyers of each hundred click twice, 0 to 100. The second click is the same
    /// request, sent at about the same moment over another connection.
    pub double_click_percent: u8,
    /// Connections the crowd shares.
    pub connections: usize,
    /// Called about ten times a second.
    pub progress: Option<ProgressFn>,
}

/// What became of one click.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CrowdAnswer {
    /// Who clicked.
    pub buyer_id: u64,
    /// Status and content of the answer; the error when the outcome is unknown.
    pub result: Result<Clicked, TransportError>,
}

/// The answer to one click.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Clicked {
    /// HTTP status.
    pub status: u16,
    /// Marked as a repeat of an earlier answer.
    pub replayed: bool,
    /// Member `request_id`: of the accepted request, or of the earlier one that stands in the way.
    pub request_id: Option<String>,
    /// Member `state`: `queued`, `success` or `unknown` for an accepted request.
    pub state: Option<String>,
    /// Problem code of a refusal.
    pub code: Option<String>,
}

impl CrowdAnswer {
    /// Request id that the server acknowledged: 200 or 202, and a known outcome.
    pub fn accepted(&self) -> Option<&str> {
        let clicked = self.result.as_ref().ok()?;
        let known = clicked.state.as_deref() != Some("unknown");
        let accepted = matches!(clicked.status, 200 | 202) && known;
        clicked.request_id.as_deref().filter(|_| accepted)
    }

    /// Whether the click may or may not have bought something.
    pub fn is_unknown(&self) -> bool {
        match &self.result {
            Ok(clicked) => clicked.state.as_deref() == Some("unknown"),
            Err(error) => *error != TransportError::Connect,
        }
    }
}

/// What the whole crowd saw.
#[derive(Debug, Clone)]
pub struct CrowdRun {
    /// Counts and latencies.
    pub report: Report,
    /// One entry for each click, in the order the answers came.
    pub answers: Vec<CrowdAnswer>,
}

impl CrowdRun {
    /// Distinct acknowledged request ids, sorted. Each must end as exactly one order, recorded
    /// failure or dead letter.
    pub fn accepted_ids(&self) -> Vec<&str> {
        let mut ids: Vec<_> = self.answers.iter().filter_map(CrowdAnswer::accepted).collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    /// Clicks whose outcome is not known.
    pub fn unknown(&self) -> impl Iterator<Item = &CrowdAnswer> {
        self.answers.iter().filter(|answer| answer.is_unknown())
    }
}

impl Crowd {
    /// A crowd of `buyers` from buyer 1 on, of whom 20 % click twice, over 128 connections.
    pub fn new(target: SocketAddr, path_id: &str, sku_id: &str, buyers: u64) -> Self {
        Self {
            target,
            path_id: path_id.to_owned(),
            sku_id: sku_id.to_owned(),
            buyers,
            first_buyer: 1,
            double_click_percent: 20,
            connections: 128,
            progress: None,
        }
    }

    /// Requests the crowd sends, second clicks included.
    pub fn clicks(&self) -> u64 {
        let percent = self.percent();
        let (blocks, rest) = (self.buyers / BLOCK, self.buyers % BLOCK);
        blocks * (BLOCK + percent) + rest + rest.min(percent)
    }

    /// Buyer of click number `seq`: the first `percent` buyers of each block have two in a row.
    fn buyer(&self, seq: u64) -> u64 {
        let percent = self.percent();
        let (block, place) = (seq / (BLOCK + percent), seq % (BLOCK + percent));
        let in_block = if place < 2 * percent { place / 2 } else { place - percent };
        self.first_buyer + block * BLOCK + in_block
    }

    fn percent(&self) -> u64 {
        u64::from(self.double_click_percent).min(BLOCK)
    }

    /// Sends the crowd through the gate and waits until each click has ended.
    ///
    /// # Errors
    /// [`LoadError`] when the generator cannot run; never for what the server does.
    pub async fn run(self) -> Result<CrowdRun, LoadError> {
        let capacity = usize::try_from(self.clicks()).unwrap_or(0);
        let answers = Arc::new(Mutex::new(Vec::with_capacity(capacity)));
        let buy = BuyRequest::new(self.target, &self.path_id, &self.sku_id, 1);
        let crowd = Arc::new(self);
        let (asking, observing, seen) = (crowd.clone(), crowd.clone(), answers.clone());
        let load = Load {
            observer: Some(Arc::new(move |seq, outcome| {
                let buyer_id = observing.buyer(seq);
                let result = match outcome {
                    Outcome::Answered(answer) => Ok(Clicked::read(answer)),
                    Outcome::Unknown(error) => Err(*error),
                    Outcome::Unsent => Err(TransportError::Connect),
                };
                seen.lock().push(CrowdAnswer { buyer_id, result });
            })),
            until: Until::Requests(crowd.clicks()),
            connections: crowd.connections,
            progress: crowd.progress.clone(),
            ..Load::new(
                crowd.target,
                Arc::new(move |seq, buffer| buy.write(asking.buyer(seq), None, buffer)),
            )
        };
        let report = run(load).await?;
        let answers = std::mem::take(&mut *answers.lock());
        Ok(CrowdRun { report, answers })
    }
}

impl Clicked {
    fn read(answer: &Answer<'_>) -> Self {
        let member = |name| json_string_member(answer.body, name).map(str::to_owned);
        Self {
            status: answer.status,
            replayed: answer.replayed,
            request_id: member(b"request_id"),
            state: member(b"state"),
            code: if answer.status >= 400 { member(b"code") } else { None },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn every_buyer_clicks_once_or_twice() {
        for (buyers, percent) in [(1, 20), (19, 20), (250, 20), (100, 0), (330, 100), (7, 0)] {
            let target = SocketAddr::from(([127, 0, 0, 1], 1));
            let mut crowd = Crowd::new(target, "1", "1", buyers);
            crowd.double_click_percent = percent;
            crowd.first_buyer = 1_000;
            let mut clicks = BTreeMap::new();
            for seq in 0..crowd.clicks() {
                *clicks.entry(crowd.buyer(seq)).or_insert(0_u64) += 1;
            }
            assert!(clicks.keys().copied().eq(1_000..1_000 + buyers), "{buyers} {percent}");
            assert!(clicks.values().all(|count| (1..=2).contains(count)), "{buyers} {percent}");
            let doubled = clicks.values().filter(|count| **count == 2).count() as u64;
            assert_eq!(doubled, crowd.clicks() - buyers);
        }
    }

    #[test]
    fn only_known_acceptances_count() {
        let click = |status, body: &'static str| {
            let answer = Answer { status, replayed: false, body: body.as_bytes() };
            CrowdAnswer { buyer_id: 1, result: Ok(Clicked::read(&answer)) }
        };
        let queued = click(202, r#"{"request_id":"5","state":"queued"}"#);
        let unknown = click(202, r#"{"request_id":"6","state":"unknown"}"#);
        let refused = click(409, r#"{"code":"already-purchased","request_id":"5"}"#);
        let lost = CrowdAnswer { buyer_id: 1, result: Err(TransportError::Timeout) };
        let accepted = [&queued, &unknown, &refused, &lost].map(CrowdAnswer::accepted);
        assert_eq!(accepted, [Some("5"), None, None, None]);
        let doubtful = [&queued, &unknown, &refused, &lost].map(CrowdAnswer::is_unknown);
        assert_eq!(doubtful, [false, true, false, true]);
    }
}
