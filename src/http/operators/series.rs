//! Operators' route for the samples of this process, which the charts of the page draw.

use actix_web::{HttpResponse, web};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::http::buyers::views::{no_store_json, rfc3339};
use crate::http::middleware::body::SentTime;
use crate::http::state::State;
use crate::observe::series::{EVERY_MS, SERIES, Sample, Series};

/// Part of the history.
#[derive(Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct SeriesQuery {
    /// `at` of the last sample that the reader has; default: the whole last hour.
    #[param(value_type = Option<String>, format = DateTime)]
    since: Option<SentTime>,
}

/// Samples of this process.
#[derive(Serialize, ToSchema)]
pub struct SeriesView {
    /// Milliseconds between two samples.
    every_ms: u64,
    /// `{name, kind}`; the kind is `counter` or `gauge`.
    #[schema(value_type = Vec<Object>)]
    series: &'static [Series],
    /// Oldest first.
    samples: Vec<SampleView>,
}

/// The values of one moment.
#[derive(Serialize, ToSchema)]
pub struct SampleView {
    #[schema(format = DateTime)]
    at: String,
    /// In the order of `series`.
    values: Vec<f64>,
}

/// Samples of the last hour, one a second.
#[utoipa::path(
    get, path = "/admin/v1/series",
    operation_id = "adminListSamples", tag = "operators", params(SeriesQuery),
    responses((status = 200, description = "after `since`", body = SeriesView)),
)]
pub async fn list(state: State, query: web::Query<SeriesQuery>) -> HttpResponse {
    let samples = state.deps.actors.history.since(query.since.map_or(0, |since| since.0));
    let view = |sample: Sample| SampleView { at: rfc3339(sample.at_ms), values: sample.values };
    let samples = samples.into_iter().map(view).collect();
    no_store_json(SeriesView { every_ms: EVERY_MS, series: SERIES, samples })
}
