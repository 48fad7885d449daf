//! The page of the demo payment provider; there is none with other providers.

use actix_web::http::header::{
    CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderValue, LOCATION, REFERRER_POLICY,
};
use actix_web::{FromRequest, HttpRequest, HttpResponse, web};
use serde::Deserialize;
use utoipa::ToSchema;

use super::storefront::assets_folder;
use crate::http::middleware::body;
use crate::http::middleware::embedded::HTML;
use crate::http::middleware::problem::{Handled, NO_STORE, Problem, ProblemCode};
use crate::http::state::State;
use crate::payment::demo::{DemoAction, DemoPress, PAGE};

/// No scripts or images, and styles of and forms to this server only.
const POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; style-src 'self'; form-action 'self'; base-uri 'none'; \
     frame-ancestors 'none'",
);

/// The form of a button.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DemoForm {
    action: DemoAction,
}

/// The page of a payment of the demo provider.
#[utoipa::path(
    get, path = "/demo-pay/{payment_id}", operation_id = "showDemoPayment", tag = "demo",
    responses((status = 200, description = "the page", body = String, content_type = "text/html")),
)]
pub async fn show(payment_id: web::Path<String>, state: State) -> Handled {
    let demo = state.deps.payments.as_ref().and_then(|payments| payments.demo.as_ref());
    let style = format!("../{}/store.css", assets_folder());
    let page = demo.and_then(|demo| demo.page(&payment_id, &style)).ok_or(ProblemCode::NotFound)?;
    Ok(HttpResponse::Ok()
        .insert_header(NO_STORE)
        .insert_header((CONTENT_TYPE, HeaderValue::from_static(HTML)))
        .insert_header((CONTENT_SECURITY_POLICY, POLICY))
        .insert_header((REFERRER_POLICY, HeaderValue::from_static("no-referrer")))
        .body(page))
}

/// A button of the page; then the page again. The shop hears of it from the webhooks.
#[utoipa::path(
    post, path = "/demo-pay/{payment_id}", operation_id = "pressDemoButton", tag = "demo",
    request_body(content = DemoForm, content_type = "application/x-www-form-urlencoded"),
    responses((status = 303, description = "to the page", headers(("Location" = String)))),
)]
pub async fn press(
    request: HttpRequest,
    payment_id: web::Path<String>,
    payload: web::Payload,
    state: State,
) -> Handled {
    let mut payload = payload.into_inner();
    let form = body::in_time(web::Form::<DemoForm>::from_request(&request, &mut payload)).await?;
    let form = form.map_err(|error| Problem::invalid(error.to_string()))?;
    let demo = state.deps.payments.as_ref().and_then(|payments| payments.demo.as_ref());
    let demo = demo.ok_or(ProblemCode::NotFound)?;
    match demo.press(&payment_id, form.action) {
        DemoPress::Done => Ok(HttpResponse::SeeOther()
            .insert_header((LOCATION, format!("{PAGE}{payment_id}")))
            .finish()),
        DemoPress::NotPossible => Err(Problem::from(ProblemCode::NotPayable)
            .with_detail("The payment is not in a state for this button.")),
        DemoPress::Busy => Err(Problem::from(ProblemCode::Busy)
            .with_detail("Too many webhooks wait to be sent. Try again later.")),
        DemoPress::UnknownPayment => Err(ProblemCode::NotFound.into()),
    }
}
