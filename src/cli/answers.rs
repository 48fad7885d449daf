//! `floodgate audit --answers FILE`: compares what buyers were told with the ledger.
//!
//! The file has one JSON object per line, for each attempt of a purchase and each read of a status:
//! `docs/operate/audit.md` describes its members.

use std::collections::{HashMap, HashSet};
use std::io::{BufRead, BufReader, ErrorKind};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use secrecy::ExposeSecret;
use serde::Deserialize;
use serde_json::{Value as Json, json};

use super::audit::could_not_tell;
use super::exit::CommandFailure;
use crate::config::Settings;
use crate::db::{Ledger, Visitor};
use crate::domain::{BuyerId, DeadLetterNo, Failure, Order, RequestId, Sale, Sku};
use crate::http::buyers::request_ids::RequestIds;
use crate::services::audit::answers::{
    AnswerCase, AnswerRule, Attempt, Bought, Record, RecordedAs, RequestKey, RequestName, compare,
};
use crate::services::dead_letters::replay;
use crate::tier;

/// Findings that are listed; the others are only counted.
const LISTED_MAX: usize = 100;

/// Dead letters per read; each may be a megabyte.
const DEAD_LETTERS_PER_READ: u32 = 32;

/// One line of the file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct AnswerLine {
    sale_id: String,
    buyer_id: String,
    /// The SKU, where the client sent no request id; of a sale with one SKU it may be missing.
    sku_id: Option<String>,
    /// The request id that the client sent.
    sent_id: Option<String>,
    /// False: the client got no connection.
    #[serde(default = "yes")]
    sent: bool,
    /// By a clock that all lines share, microseconds.
    began_us: u64,
    ended_us: u64,
    /// Missing or null: no answer.
    status: Option<u16>,
    /// Whether the answer had `Idempotent-Replayed: true`.
    #[serde(default)]
    replayed: bool,
    /// The answer's body.
    #[serde(default)]
    body: AnswerBody,
}

fn yes() -> bool {
    true
}

#[derive(Debug, Default, Deserialize)]
struct AnswerBody {
    request_id: Option<String>,
    state: Option<String>,
    code: Option<String>,
    order: Option<OrderBody>,
}

#[derive(Debug, Deserialize)]
struct OrderBody {
    quantity: u32,
    placed_at: String,
}

impl AnswerLine {
    fn read(line: &str) -> Result<Attempt, String> {
        let line: Self = serde_json::from_str(line).map_err(|error| error.to_string())?;
        let buyer = line.buyer_id.parse().map_err(|error| format!("buyer_id: {error}"))?;
        let body = line.body;
        let order = body.order.map(|order| {
            let placed_at = chrono::DateTime::parse_from_rfc3339(&order.placed_at);
            let placed_at = placed_at.map_err(|error| format!("placed_at: {error}"))?;
            let (quantity, placed_at_ms) = (order.quantity, placed_at.timestamp_millis());
            Ok::<_, String>(Bought { quantity, placed_at_ms })
        });
        let is_refusal = line.status.is_some_and(|status| status >= 400);
        Ok(Attempt {
            request: RequestKey {
                sale: line.sale_id.into(),
                buyer,
                name: match line.sent_id {
                    Some(id) => RequestName::Id(id.into()),
                    None => RequestName::Sku(line.sku_id.unwrap_or_default().into()),
                },
            },
            began: Duration::from_micros(line.began_us),
            ended: Duration::from_micros(line.ended_us),
            is_sent: line.sent,
            status: line.status,
            replayed: line.replayed,
            request_id: body.request_id,
            state: body.state.filter(|_| !is_refusal),
            code: body.code.filter(|_| is_refusal),
            order: order.transpose()?,
        })
    }
}

/// Compares the answers in a file with the ledger of the settings. The report has the members
/// `holds`, `num_answers`, `num_purged` (answers of purged sales, which are not compared),
/// `num_findings` and `findings`.
pub async fn check(file: &Path, settings: &Settings) -> Result<Json, CommandFailure> {
    let mut attempts = read_file(file)?;
    let num_answers = attempts.len();
    let ledger = tier::open_ledger_for_reading(settings);
    let ledger = ledger.map_err(|error| could_not_tell(&error))?;
    let read = read_ledger(ledger.as_ref(), settings, &attempts).await;
    ledger.close().await;
    let (sales, records) = read.map_err(|error| could_not_tell(error.as_ref()))?;
    for sale in sales {
        if sale.retention.is_purged() {
            attempts.retain(|attempt| *attempt.request.sale != *sale.id.as_str());
        }
        name_skus(&sale, &mut attempts)?;
    }
    let found = compare(attempts.iter(), &records);
    let listed: Vec<Json> = found.iter().take(LISTED_MAX).map(describe).collect();
    Ok(json!({
        "holds": found.is_empty(),
        "num_answers": num_answers,
        "num_purged": num_answers - attempts.len(),
        "num_findings": found.len(),
        "findings": listed,
    }))
}

fn read_file(file: &Path) -> Result<Vec<Attempt>, CommandFailure> {
    let failed = |what: String, remedy| {
        let problem = format!("could not tell: {}: {what}", file.display());
        CommandFailure::unclear(problem, remedy)
    };
    let opened = std::fs::File::open(file);
    let opened = opened.map_err(|error| failed(error.to_string(), "check the path"))?;
    let mut attempts = Vec::new();
    for (no, line) in (1_u64..).zip(BufReader::new(opened).lines()) {
        let faulty = |fault: String| {
            let remedy = "each line is one answer, see docs/operate/audit.md";
            failed(format!("line {no}: {fault}"), remedy)
        };
        let line = line.map_err(|error| match error.kind() {
            ErrorKind::IsADirectory => failed(error.to_string(), "name a file"),
            _ => faulty(error.to_string()),
        })?;
        if !line.trim().is_empty() {
            attempts.push(AnswerLine::read(&line).map_err(faulty)?);
        }
    }
    if attempts.is_empty() {
        return Err(failed("holds no answers".to_owned(), "name the file that has them"));
    }
    Ok(attempts)
}

/// Gives the SKU of a sale with one SKU to its attempts without SKU and request id.
fn name_skus(sale: &Sale, attempts: &mut [Attempt]) -> Result<(), CommandFailure> {
    let of_sale = attempts.iter_mut().filter(|attempt| *attempt.request.sale == *sale.id.as_str());
    for Attempt { request, .. } in of_sale {
        if request.name == RequestName::Sku("".into()) {
            let [sku] = &sale.skus[..] else {
                let problem = format!("could not tell: sale {} has several SKUs", sale.id);
                let remedy = "add sku_id to each line without sent_id";
                return Err(CommandFailure::unclear(problem, remedy));
            };
            request.name = RequestName::Sku(sku.id.as_str().into());
        }
    }
    Ok(())
}

fn describe((rule, case): &(AnswerRule, AnswerCase<'_>)) -> Json {
    let ids = case.attempts.iter().filter_map(|attempt| attempt.request_id.as_deref());
    let ids: HashSet<&str> = ids.chain(case.request.name.id()).collect();
    json!({
        "rule": rule.name(),
        "sale_id": case.request.sale,
        "buyer_id": case.request.buyer.to_string(),
        "request_ids": ids,
        "statuses": case.attempts.iter().map(|attempt| attempt.status).collect::<Vec<_>>(),
        "ledger": match case.record.map(|record| record.outcome) {
            None => "nothing",
            Some(RecordedAs::Order(_)) => "order",
            Some(RecordedAs::Failure) => "failure",
            Some(RecordedAs::DeadLetter) => "dead_letter",
        },
    })
}

/// Reads the ledger's records of the buyers in the file.
struct RecordReader<'a> {
    ledger: &'a dyn Ledger,
    request_ids: RequestIds,
    /// By sale.
    buyers: HashMap<String, HashSet<u64>>,
    records: Vec<Record>,
}

/// The sales, and what the ledger has of the buyers in the file.
async fn read_ledger(
    ledger: &dyn Ledger,
    settings: &Settings,
    attempts: &[Attempt],
) -> anyhow::Result<(Vec<Sale>, Vec<Record>)> {
    let key = match &settings.auth.signing_key {
        Some(key) => key.expose_secret().as_bytes().to_vec(),
        None => ledger.secret("request-ids").await?,
    };
    let mut buyers: HashMap<String, HashSet<u64>> = HashMap::new();
    for Attempt { request, .. } in attempts {
        buyers.entry(request.sale.to_string()).or_default().insert(request.buyer);
    }
    let request_ids = RequestIds::new(&key, 0, 1);
    let mut reader = RecordReader { ledger, request_ids, buyers, records: Vec::new() };
    let sales = ledger.sales().await?;
    for sale in &sales {
        for sku in &sale.skus {
            reader.read_sku(sale, sku).await?;
        }
    }
    reader.read_dead_letters(&sales).await?;
    // Again: one that was purged meanwhile is not compared.
    Ok((ledger.sales().await?, reader.records))
}

impl RecordReader<'_> {
    fn add(&mut self, sale: &Sale, sku: &Sku, key: (RequestId, BuyerId), outcome: RecordedAs) {
        let (request, buyer) = key;
        self.records.push(Record {
            sale: sale.id.to_string(),
            sku: sku.id.to_string(),
            buyer: buyer.get(),
            request_id: self.request_ids.sign(request, &sale.id, sku.no, buyer),
            outcome,
        });
    }

    async fn read_sku(&mut self, sale: &Sale, sku: &Sku) -> anyhow::Result<()> {
        let Some(buyers) = self.buyers.get(sale.id.as_str()).cloned() else { return Ok(()) };
        let wanted = buyers.clone();
        let (visit, orders) = collector(move |one: &Order| wanted.contains(&one.buyer.get()));
        self.ledger.scan_orders(sku.no, visit).await?;
        for order in orders.lock().drain(..) {
            let (quantity, placed_at_ms) = (order.quantity, order.placed_at_ms);
            let outcome = RecordedAs::Order(Bought { quantity, placed_at_ms });
            self.add(sale, sku, (order.request, order.buyer), outcome);
        }
        let (visit, failures) = collector(move |one: &Failure| buyers.contains(&one.buyer.get()));
        self.ledger.scan_failures(sku.no, visit).await?;
        for failure in failures.lock().drain(..) {
            self.add(sale, sku, (failure.request, failure.buyer), RecordedAs::Failure);
        }
        Ok(())
    }

    async fn read_dead_letters(&mut self, sales: &[Sale]) -> anyhow::Result<()> {
        let wanted = sales.iter().filter(|sale| self.buyers.contains_key(sale.id.as_str()));
        let skus: Vec<_> = wanted.flat_map(|sale| &sale.skus).map(|sku| sku.no).collect();
        let mut after = DeadLetterNo(0);
        while !skus.is_empty() {
            let read = self.ledger.holding_dead_letters(skus.clone(), after, DEAD_LETTERS_PER_READ);
            let dead_letters = read.await?;
            let Some((last, _)) = dead_letters.last() else { return Ok(()) };
            after = last.no;
            let reader = tier::envelope_reader(self.ledger).await?;
            for (dead_letter, body) in dead_letters {
                for intent in replay::intents_held_by(&dead_letter, body, &reader) {
                    let found = sales.iter().find_map(|sale| {
                        Some((sale, sale.skus.iter().find(|sku| sku.no == intent.sku)?))
                    });
                    let Some((sale, sku)) = found else { continue };
                    let buyers = self.buyers.get(sale.id.as_str());
                    if buyers.is_some_and(|buyers| buyers.contains(&intent.buyer.get())) {
                        let key = (intent.request, intent.buyer);
                        self.add(sale, sku, key, RecordedAs::DeadLetter);
                    }
                }
            }
        }
        Ok(())
    }
}

/// A visitor, and the wanted rows that it collects.
fn collector<T: Send + 'static>(
    is_wanted: impl Fn(&T) -> bool + Send + 'static,
) -> (Visitor<T>, Arc<Mutex<Vec<T>>>) {
    let rows = Arc::new(Mutex::new(Vec::new()));
    let visited = Arc::clone(&rows);
    let visit = Box::new(move |row| {
        if is_wanted(&row) {
            visited.lock().push(row);
        }
        true
    });
    (visit, rows)
}
