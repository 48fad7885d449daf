//! Operators' route for the feed of order events.

use std::time::Duration;

use actix_web::http::header::{CONTENT_TYPE, HeaderValue};
use actix_web::{HttpResponse, web};
use serde::Deserialize;

use crate::db;
use crate::http::buyers::views::page_limit;
use crate::http::middleware::problem::{Handled, Problem, ProblemCode};
use crate::http::state::State;
use crate::services::order_feed::{CloudEvent, FeedError};

const LIMIT_DEFAULT: u32 = 100;
const LIMIT_MAX: u32 = 1_000;
const WAIT_MAX_MS: u64 = 30_000;

/// The batch format of CloudEvents 1.0.
const BATCH_TYPE: &str = "application/cloudevents-batch+json";

/// Page of the feed.
#[derive(Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct OrderEventsQuery {
    /// `sequence` of the last event that the reader has; default 0, before the first.
    #[param(minimum = 0)]
    after: Option<i64>,
    /// Most events in the answer: 1 to 1000, default 100.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
    /// How long to wait for an event if there is none, in milliseconds: at most 30000, default 0.
    #[param(maximum = 30000)]
    wait_ms: Option<u64>,
}

/// Changes of orders and failures of accepted requests, in their order. An empty page: no more.
#[utoipa::path(
    get, path = "/admin/v1/order-events",
    operation_id = "adminListOrderEvents", tag = "operators", params(OrderEventsQuery),
    responses((status = 200, description = "events after `after`, ascending",
        body = [CloudEvent], content_type = "application/cloudevents-batch+json")),
)]
pub async fn list(state: State, query: web::Query<OrderEventsQuery>) -> Handled {
    let after = query.after.unwrap_or(0);
    if after < 0 {
        return Err(Problem::invalid("after must not be negative"));
    }
    let limit = page_limit(query.limit, LIMIT_DEFAULT, LIMIT_MAX)?;
    let wait_ms = query.wait_ms.unwrap_or(0);
    if wait_ms > WAIT_MAX_MS {
        return Err(Problem::invalid(format!("wait_ms must be at most {WAIT_MAX_MS}")));
    }
    check_end(&state, after).await?;
    let (wait, goes_on) = (Duration::from_millis(wait_ms), || state.is_ready());
    let events = state.deps.order_feed.page(after, limit, wait, goes_on).await?;
    Ok(HttpResponse::Ok()
        .insert_header((CONTENT_TYPE, HeaderValue::from_static(BATCH_TYPE)))
        .json(events))
}

/// Refuses an `after` beyond the last number. Numbers never fall, unless the ledger is restored:
/// the next events then have numbers that the reader takes for read.
async fn check_end(state: &State, after: i64) -> Result<(), Problem> {
    let (operation, deps) = ("reading the end of the feed", &state.deps);
    let mut end = db::with_timeout(operation, deps.ledger.last_feed_no()).await?;
    if after > end {
        // Committed events may have no number yet.
        end = db::with_timeout(operation, deps.order_feed.number()).await?;
    }
    if after <= end {
        return Ok(());
    }
    Err(Problem::invalid(format!(
        "the feed ends at {end}: after a restore of the ledger set the reader back to where the \
         feed ended then"
    )))
}

impl From<FeedError> for Problem {
    fn from(error: FeedError) -> Self {
        match error {
            FeedError::Ledger(error) => error.into(),
            FeedError::UnknownSku(_) => {
                Self::from(ProblemCode::Busy).with_detail(error.to_string())
            }
        }
    }
}
