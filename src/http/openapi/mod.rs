//! The OpenAPI documents, one for each listener, and the page that renders that of its listener.
//!
//! Handlers annotate their successful answers. What follows from the route tables (refusals,
//! security) and from the names (formats of ids and times) is added to them here, so that no route
//! lacks it.

mod completion;
mod formats;
pub mod problem_view;

use std::borrow::Cow;
use std::sync::{Arc, LazyLock};

use actix_web::http::header::{
    CACHE_CONTROL, CONTENT_ENCODING, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName,
    HeaderValue, LOCATION, REFERRER_POLICY,
};
use actix_web::{HttpRequest, HttpResponse, web};
use serde_json::Value;
use utoipa::OpenApi;
use utoipa_swagger_ui::Config;

use self::completion::completed;
use super::routes::{INTERNAL, InternalPaths, PUBLIC, PublicPaths};
use crate::http::middleware::embedded::{JSON, Text};
use crate::http::middleware::problem::{Handled, ProblemCode};

static PUBLIC_TEXT: LazyLock<Text> = LazyLock::new(|| Text::new(JSON, public().to_string()));
static INTERNAL_TEXT: LazyLock<Text> = LazyLock::new(|| Text::new(JSON, internal().to_string()));

static PAGE: LazyLock<Arc<Config<'static>>> =
    LazyLock::new(|| Arc::new(Config::from("../openapi.json").try_it_out_enabled(true)));

/// Of the documents, and of the redirect, which clients would else keep for good.
const FOR_A_MINUTE: (HeaderName, HeaderValue) =
    (CACHE_CONTROL, HeaderValue::from_static("max-age=60"));

/// Swagger UI sets styles of elements; all else is as on every page.
const PAGE_POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; \
     img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; \
     frame-ancestors 'none'",
);

/// The document of the public listener.
fn public() -> Value {
    let description = "Sells a limited stock to a crowd: the interface for buyers, on the \
        listener `http.bind`.";
    completed(PublicPaths::openapi(), "Floodgate", description, PUBLIC)
}

/// The document of the internal listener.
fn internal() -> Value {
    let description = "The interface for operators, probes and collectors, on the listener \
        `internal.bind`.";
    completed(InternalPaths::openapi(), "Floodgate, internal", description, INTERNAL)
}

/// The OpenAPI document of the public listener.
#[utoipa::path(
    get, path = "/openapi.json", operation_id = "readOpenapi", tag = "documents",
    responses(
        (status = 200, description = "OpenAPI 3.1", body = Object, headers(("ETag" = String))),
    ),
)]
pub async fn public_document(request: HttpRequest) -> HttpResponse {
    PUBLIC_TEXT.respond(&request, FOR_A_MINUTE.1)
}

/// The OpenAPI document of the internal listener.
#[utoipa::path(
    get, path = "/openapi.json", operation_id = "readInternalOpenapi", tag = "documents",
    responses(
        (status = 200, description = "OpenAPI 3.1", body = Object, headers(("ETag" = String))),
    ),
)]
pub async fn internal_document(request: HttpRequest) -> HttpResponse {
    INTERNAL_TEXT.respond(&request, FOR_A_MINUTE.1)
}

/// Redirects to `/docs/`: the page's relative links need the slash.
#[utoipa::path(
    get, path = "/docs", operation_id = "redirectToDocs", tag = "documents",
    responses((status = 308, description = "to /docs/", headers(("Location" = String)))),
)]
pub async fn to_page() -> HttpResponse {
    HttpResponse::PermanentRedirect()
        .insert_header((LOCATION, "/docs/"))
        .insert_header(FOR_A_MINUTE)
        .finish()
}

/// The page that renders the document of this listener, and its assets.
#[utoipa::path(
    get, path = "/docs/{file}", operation_id = "showDocs", tag = "documents",
    params(("file" = String, Path, description = "empty for the page itself")),
    responses((status = 200, description = "the page or the file", content(
        ("text/html"), ("text/css"), ("text/javascript"), ("image/png"), ("application/json"),
    ))),
)]
pub async fn page(file: web::Path<String>) -> Handled {
    let found = utoipa_swagger_ui::serve(&file, Arc::clone(&PAGE)).map_err(|error| {
        tracing::error!(%error, "openapi page: not rendered");
        ProblemCode::Internal
    })?;
    let file = found.ok_or(ProblemCode::NotFound)?;
    let mut answer = HttpResponse::Ok();
    answer
        .insert_header((CONTENT_TYPE, file.content_type))
        .insert_header((CACHE_CONTROL, HeaderValue::from_static("public, max-age=3600")))
        .insert_header((CONTENT_SECURITY_POLICY, PAGE_POLICY))
        .insert_header((REFERRER_POLICY, HeaderValue::from_static("no-referrer")));
    if file.gzpipped {
        answer.insert_header((CONTENT_ENCODING, HeaderValue::from_static("gzip")));
    }
    Ok(match file.bytes {
        // Not copied: a client that reads slowly holds a reference, not a mebibyte.
        Cow::Borrowed(bytes) => answer.body(web::Bytes::from_static(bytes)),
        Cow::Owned(bytes) => answer.body(bytes),
    })
}

#[cfg(test)]
#[path = "documents_tests.rs"]
mod tests;
