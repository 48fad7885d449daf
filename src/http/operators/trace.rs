//! Trace of one request for operators: every stage between gate and ledger that has a record of it.

use std::pin::pin;
use std::time::Duration;

use actix_web::{HttpResponse, web};
use futures_util::{FutureExt, StreamExt, stream};

use super::dead_letter_filter::request_number;
use super::trace_stages::{StageView, TraceFindings, TraceView, next_step};
use crate::db;
use crate::domain::{BucketKey, DeadLetterFilter, DeadLetterNo, RecordState, RequestId, TraceId};
use crate::http::buyers::request_ids::RequestIds;
use crate::http::middleware::problem::{Handled, Problem, ProblemCode};
use crate::http::state::{HttpDeps, State};
use crate::messages::envelope;
use crate::outbox::{self, EntryLocation};
use crate::stock;
use crate::tier::Pipeline;

/// Longest search of the gates.
const GATES_DEADLINE: Duration = Duration::from_secs(5);

/// Buckets that are asked at once.
const BUCKETS_AT_ONCE: usize = 16;

/// Most unsettled requests of a SKU among which the trace of one is looked up.
const UNSETTLED_MAX: u64 = 10_000;

/// Every stage that has a record of one request.
#[utoipa::path(
    get, path = "/admin/v1/requests/{request_id}/trace",
    operation_id = "adminTraceRequest", tag = "operators",
    params(("request_id" = String, Path,
        description = "as the buyer has it, its number, or `message_id` of a dead letter")),
    responses((status = 200, description = "in the order of the flow", body = TraceView)),
)]
pub async fn trace(request_id: web::Path<String>, state: State) -> Handled {
    // The signature is not verified: operators may read every request.
    let (deps, sent) = (&state.deps, RequestIds::read(&request_id));
    let request = request_number(&request_id)?;
    let mut findings = TraceFindings { sku: sent.map(|id| id.sku_no), ..TraceFindings::default() };
    let query = read_ledger(deps, request, &mut findings);
    let ledger = db::with_timeout("a trace", query).await;
    let gates = in_time(read_gates(deps, request, &mut findings)).await;
    if let (Some(pipeline), Some(key)) = (&deps.pipeline, findings.queued_in)
        && let Err(error) = read_outbox(pipeline, key, request, &mut findings).await
    {
        findings.unavailable.push(StageView::unavailable("outbox", &error));
    }
    let ledger = match ledger {
        Ok(()) => {
            let query = read_dead_letters(deps, request, &mut findings);
            db::with_timeout("a trace", query).await
        }
        failed => failed,
    };
    // A store that cannot be read becomes a stage, so that it is no proof of absence. A result of
    // the ledger is final: unavailable gates are then irrelevant.
    if let (Err(error), None) = (&gates, &findings.ledger) {
        findings.unavailable.push(StageView::unavailable("gate", error));
    }
    if let Err(error) = &ledger {
        findings.unavailable.push(StageView::unavailable("ledger", error));
    }
    let (sale_id, sku_id) = findings.sku.and_then(|sku| deps.names_of(sku)).unzip();
    let mut view = TraceView {
        request: request.to_string(),
        sale_id,
        sku_id,
        buyer_id: findings.buyer.map(|buyer| buyer.to_string()),
        trace_id: findings.trace.map(|trace| trace.to_string()),
        took_ms: findings.took_ms(),
        stages: findings.stages(),
        next: String::new(),
    };
    view.next = next_step(&view.stages);
    if view.stages.is_empty() {
        let detail = "No gate, no row of the ledger and no dead letter has this request.";
        let problem = Problem::from(ProblemCode::NotFound).with_detail(detail);
        return Err(problem.with("request_id", view.request));
    }
    Ok(HttpResponse::Ok().json(view))
}

/// Limits a search of the gates to [`GATES_DEADLINE`].
async fn in_time(
    search: impl Future<Output = Result<(), stock::Error>>,
) -> Result<(), stock::Error> {
    let elapsed = |_| {
        let reason = format!("no answer within {} s", GATES_DEADLINE.as_secs());
        Err(stock::Error::Unavailable { reason })
    };
    tokio::time::timeout(GATES_DEADLINE, search).await.unwrap_or_else(elapsed)
}

/// Adds the order or the recorded failure.
async fn read_ledger(
    deps: &HttpDeps,
    request: RequestId,
    findings: &mut TraceFindings,
) -> Result<(), db::Error> {
    if let Some(timeline) = deps.ledger.order_timeline(request).await? {
        findings.add_order(&timeline);
    } else if let Some(failure) = deps.ledger.failure(request).await? {
        findings.add_failure(&failure);
    }
    Ok(())
}

/// Adds the dead letters of the request. One that cannot be read hides nothing else.
async fn read_dead_letters(
    deps: &HttpDeps,
    request: RequestId,
    findings: &mut TraceFindings,
) -> Result<(), db::Error> {
    let filter = DeadLetterFilter::with(request);
    let mut dead_letters = Vec::new();
    for (no, dead_letter) in deps.ledger.dead_letter_page(filter, u32::MAX).await? {
        match dead_letter {
            Ok(dead_letter) => dead_letters.push(dead_letter),
            Err(error) => {
                let unread = StageView::unavailable("dead_letter", &error);
                findings.unavailable.push(unread.with_dead_letter(no));
            }
        }
    }
    findings.add_dead_letters(&dead_letters);
    if let (None, Some(newest)) = (findings.trace, dead_letters.first()) {
        findings.trace = trace_in(deps, newest.no, request).await?;
    }
    Ok(())
}

/// Adds what the gate has of the request, which is searched in the buckets of its SKU, or of all
/// SKUs if that is not known.
async fn read_gates(
    deps: &HttpDeps,
    request: RequestId,
    findings: &mut TraceFindings,
) -> Result<(), stock::Error> {
    let (all, known_sku) = (deps.catalog.all(), findings.sku);
    let skus = all.iter().filter(|it| it.has_buckets()).flat_map(|sale| &sale.skus);
    let keys = skus
        .filter(|sku| known_sku.is_none_or(|no| no == sku.no))
        .flat_map(|sku| BucketKey::all_of(sku));
    let stock = &deps.stock;
    let found = first_found(keys, |key| stock.record(key, request, None)).await?;
    let Some((key, record)) = found else { return Ok(()) };
    findings.sku = Some(key.sku);
    findings.add_gate_record(&record);
    let is_queued = matches!(record.state, RecordState::Queued { .. });
    if !is_queued || findings.ledger.is_some() {
        return Ok(());
    }
    findings.queued_in = Some(key);
    // Where there is no outbox, the bucket itself has the trace.
    if deps.pipeline.is_none() && stock.num_unsettled(key.sku).await? <= UNSETTLED_MAX {
        let open = stock.unsettled(key).await?;
        let intent = open.iter().find(|intent| intent.request == request);
        findings.trace = intent.and_then(|intent| intent.trace.known());
    }
    Ok(())
}

/// The first bucket that has something; [`BUCKETS_AT_ONCE`] are asked at a time.
async fn first_found<T, F>(
    keys: impl Iterator<Item = BucketKey>,
    ask: impl Fn(BucketKey) -> F,
) -> Result<Option<(BucketKey, T)>, stock::Error>
where
    F: Future<Output = Result<Option<T>, stock::Error>>,
{
    let ask = |key| ask(key).map(move |answer| (key, answer));
    let mut answers = pin!(stream::iter(keys.map(ask)).buffer_unordered(BUCKETS_AT_ONCE));
    let mut not_loaded = None;
    while let Some((key, answer)) = answers.next().await {
        match answer {
            Ok(Some(found)) => return Ok(Some((key, found))),
            Ok(None) => {}
            Err(error @ stock::Error::NotLoaded(_)) => not_loaded = not_loaded.or(Some(error)),
            Err(error) => return Err(error),
        }
    }
    // A bucket that is not loaded may have accepted the request before.
    not_loaded.map_or(Ok(None), Err)
}

/// Adds the pipeline stage of a request that its gate has as queued and the ledger does not have.
async fn read_outbox(
    pipeline: &Pipeline,
    key: BucketKey,
    request: RequestId,
    findings: &mut TraceFindings,
) -> Result<(), outbox::Error> {
    let found = pipeline.outbox.find(key, request).await?;
    findings.trace = findings.trace.or_else(|| found.as_ref()?.trace.known());
    findings.pipeline.push(match found.map(|found| found.location) {
        Some(EntryLocation::Waiting) => StageView::new("outbox", "waits for a relay", "queued"),
        Some(EntryLocation::Claimed { worker }) => StageView {
            holder: Some(worker),
            ..StageView::new("relay", "is being published", "queued")
        },
        // Queues cannot be searched. A request in no other stage is in a queue, or was lost there
        // and will be submitted to the ledger.
        None => StageView::new("broker", "is in a queue, or unacknowledged", "queued"),
    });
    Ok(())
}

/// The trace of a request in the body of a dead letter.
async fn trace_in(
    deps: &HttpDeps,
    no: DeadLetterNo,
    request: RequestId,
) -> Result<Option<TraceId>, db::Error> {
    let content = deps.ledger.dead_letter(no).await?;
    let intents = content.map(|content| envelope::intents_in(&content.body)).unwrap_or_default();
    let intent = intents.iter().find(|intent| intent.request == request);
    Ok(intent.and_then(|intent| intent.trace.known()))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::domain::{BucketNo, SkuNo};

    fn keys(num: u16) -> impl Iterator<Item = BucketKey> {
        (0..num).map(|no| BucketKey { sku: SkuNo(1), bucket: BucketNo(no) })
    }

    #[tokio::test]
    async fn sixteen_buckets_are_asked_at_once_and_none_after_the_request_is_found() {
        let (open, most, asked) = (Cell::new(0), Cell::new(0), Cell::new(0));
        let ask = async |key: BucketKey| {
            asked.set(asked.get() + 1);
            open.set(open.get() + 1);
            most.set(most.get().max(open.get()));
            tokio::task::yield_now().await;
            open.set(open.get() - 1);
            Ok((key.bucket == BucketNo(100)).then_some("found"))
        };
        let found = first_found(keys(10_000), &ask).await.unwrap();
        assert_eq!(found.map(|(key, what)| (key.bucket.0, what)), Some((100, "found")));
        assert_eq!(most.get(), BUCKETS_AT_ONCE);
        assert!(asked.get() < 200, "{} buckets", asked.get());
    }

    #[tokio::test]
    async fn a_bucket_that_is_not_loaded_is_no_proof() {
        let ask = async |key: BucketKey| match key.bucket.0 {
            3 => Err(stock::Error::NotLoaded(key.sku)),
            no => Ok((no == 7).then_some(no)),
        };
        assert_eq!(first_found(keys(7), &ask).await, Err(stock::Error::NotLoaded(SkuNo(1))));
        assert_eq!(first_found(keys(8), &ask).await.unwrap().map(|(_, no)| no), Some(7));
    }

    #[tokio::test(start_paused = true)]
    async fn a_search_without_an_end_is_ended() {
        let error = in_time(std::future::pending()).await.unwrap_err();
        assert!(error.to_string().contains("no answer within 5 s"), "{error}");
    }
}
