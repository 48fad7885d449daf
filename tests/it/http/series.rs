//! The samples that the operators' charts draw.

use chrono::DateTime;
use reqwest::StatusCode;
use serde_json::Value as Json;

use super::{fresh, problem};
use crate::support::TestApp;
use crate::support::wait::until;

async fn samples(app: &TestApp, query: &str) -> Vec<Json> {
    let url = format!("http://{}/admin/v1/series{query}", app.internal);
    let answer = app.client.get(url).send().await.unwrap();
    assert_eq!(answer.status(), StatusCode::OK, "{answer:?}");
    let view: Json = answer.json().await.unwrap();
    let num_series = view["series"].as_array().unwrap().len();
    let samples = view["samples"].as_array().unwrap().clone();
    assert!(samples.iter().all(|sample| sample["values"].as_array().unwrap().len() == num_series));
    samples
}

#[tokio::test]
async fn a_reader_gets_the_samples_after_its_last_one() {
    let app = fresh();
    let two = async || Some(samples(&app, "").await).filter(|samples| samples.len() >= 2);
    let first = until("two samples", two).await;
    let at = |sample: &Json| sample["at"].as_str().unwrap().to_owned();
    let times: Vec<_> = first.iter().map(at).collect();
    assert!(times.iter().all(|at| DateTime::parse_from_rfc3339(at).is_ok()), "{times:?}");
    assert!(times.is_sorted(), "{times:?}");
    let later = samples(&app, &format!("?since={}", times[0])).await;
    assert_eq!(at(&later[0]), times[1]);
    let number = app.client.get(format!("http://{}/admin/v1/series?since=0", app.internal));
    problem(number.send().await.unwrap(), 400, "invalid-request").await;
}
