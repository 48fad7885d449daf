//! Operators' route for the samples of this process, which the charts of the page draw.

use actix_web::{HttpResponse, web};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::http::buyers::views::no_store_json;
use crate::http::state::State;
use crate::observe::series::{EVERY_MS, SERIES, Sample, Series};

/// Part of the history.
#[derive(Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct SeriesQuery {
    /// `at_ms` of the last sample that the reader has; default 0: the whole last hour.
    since: Option<i64>,
}

/// Samples of this process.
#[derive(Serialize, ToSchema)]
pub struct SeriesView {
    /// Milliseconds between two samples.
    every_ms: u64,
    /// `{name, kind}`; the kind is `counter` or `gauge`.
    #[schema(value_type = Vec<Object>)]
    series: &'static [Series],
    /// `{at_ms, values}`, oldest first; the values are in the order of `series`.
    #[schema(value_type = Vec<Object>)]
    samples: Vec<Sample>,
}

/// Samples of the last hour, one a second.
#[utoipa::path(
    get, path = "/admin/v1/series",
    operation_id = "adminListSamples", tag = "operators", params(SeriesQuery),
    responses((status = 200, description = "after `since`", body = SeriesView)),
)]
pub async fn list(state: State, query: web::Query<SeriesQuery>) -> HttpResponse {
    let samples = state.deps.actors.history.since(query.since.unwrap_or(0));
    no_store_json(SeriesView { every_ms: EVERY_MS, series: SERIES, samples })
}
