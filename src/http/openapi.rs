//! The OpenAPI document, and the page that renders it.
//!
//! Handlers annotate their successful answers. Refusals and security are added from the route
//! tables, so that no route lacks them.

use std::sync::{Arc, LazyLock};

use actix_web::http::header::{
    CACHE_CONTROL, CONTENT_ENCODING, CONTENT_TYPE, HeaderValue, LOCATION,
};
use actix_web::{HttpResponse, web};
use utoipa::OpenApi;
use utoipa::openapi::path::Operation;
use utoipa::openapi::security::{
    ApiKey, ApiKeyValue, HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme,
};
use utoipa::openapi::{ContentBuilder, OpenApi as Document, Ref, ResponseBuilder};
use utoipa_swagger_ui::Config;

use super::routes::{Described, INTERNAL, PUBLIC, RouteAccess, RouteEntry};
use crate::http::middleware::problem::{Handled, ProblemCode};

static TEXT: LazyLock<web::Bytes> = LazyLock::new(|| {
    let text = serde_json::to_vec(&described()).unwrap_or_default();
    web::Bytes::from(text)
});

static PAGE: LazyLock<Arc<Config<'static>>> =
    LazyLock::new(|| Arc::new(Config::from("/openapi.json").try_it_out_enabled(true)));

/// The complete document.
pub fn described() -> Document {
    let mut document = Described::openapi();
    for entry in PUBLIC.iter().chain(INTERNAL) {
        if let Some(operation) = operation(&mut document, entry) {
            add_security(operation, entry.access);
            add_refusals(operation, entry);
        }
    }
    let bearer = || SecurityScheme::Http(HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build());
    let trusted = SecurityScheme::ApiKey(ApiKey::Header(ApiKeyValue::new("X-Buyer-Id")));
    let components = document.components.get_or_insert_default();
    components.add_security_scheme("buyer", bearer());
    components.add_security_scheme("buyer_header", trusted);
    components.add_security_scheme("operator", bearer());
    document
}

fn operation<'d>(document: &'d mut Document, entry: &RouteEntry) -> Option<&'d mut Operation> {
    // Without the regular expressions of actix-web patterns.
    let item = document.paths.paths.get_mut(&entry.path.replace(":.*}", "}"))?;
    match entry.method {
        "GET" => item.get.as_mut(),
        "DELETE" => item.delete.as_mut(),
        _ => item.post.as_mut(),
    }
}

fn add_security(operation: &mut Operation, access: RouteAccess) {
    let schemes: &[&str] = match access {
        RouteAccess::Open => return,
        RouteAccess::Buyer => &["buyer", "buyer_header"],
        RouteAccess::Admin => &["operator"],
    };
    let one_of = schemes.iter().map(|name| SecurityRequirement::new(*name, [] as [&str; 0]));
    operation.security = Some(one_of.collect());
}

fn add_refusals(operation: &mut Operation, entry: &RouteEntry) {
    let by_access: &[ProblemCode] = match entry.access {
        RouteAccess::Open => &[],
        RouteAccess::Buyer => &[ProblemCode::Unauthenticated],
        RouteAccess::Admin => &[ProblemCode::Unauthenticated, ProblemCode::Forbidden],
    };
    let codes = || by_access.iter().chain(entry.refusals);
    for code in codes() {
        let same: Vec<_> =
            codes().filter(|other| other.status() == code.status()).map(|c| c.as_str()).collect();
        let problem = ContentBuilder::new().schema(Some(Ref::from_schema_name("ProblemView")));
        let response = ResponseBuilder::new()
            .description(same.join(", "))
            .content("application/problem+json", problem.build())
            .build();
        operation.responses.responses.insert(code.status().to_string(), response.into());
    }
}

/// The OpenAPI document.
#[utoipa::path(
    get, path = "/openapi.json", tag = "documents",
    responses((status = 200, description = "OpenAPI 3.1", body = Object)),
)]
pub async fn document() -> HttpResponse {
    HttpResponse::Ok()
        .insert_header((CONTENT_TYPE, HeaderValue::from_static("application/json")))
        .insert_header((CACHE_CONTROL, HeaderValue::from_static("max-age=60")))
        .body(TEXT.clone())
}

/// Redirects to `/docs/`: the page's relative links need the slash.
#[utoipa::path(
    get, path = "/docs", tag = "documents",
    responses((status = 308, description = "to /docs/")),
)]
pub async fn to_page() -> HttpResponse {
    HttpResponse::PermanentRedirect().insert_header((LOCATION, "/docs/")).finish()
}

/// The page that renders this document, and its assets.
#[utoipa::path(
    get, path = "/docs/{file}", tag = "documents",
    params(("file" = String, Path, description = "empty for the page itself")),
    responses((status = 200, description = "the page", body = String, content_type = "text/html")),
)]
pub async fn page(file: web::Path<String>) -> Handled {
    let found = utoipa_swagger_ui::serve(&file, Arc::clone(&PAGE)).map_err(|error| {
        tracing::error!(%error, "openapi page: not rendered");
        ProblemCode::Internal
    })?;
    let file = found.ok_or(ProblemCode::NotFound)?;
    let mut answer = HttpResponse::Ok();
    answer.insert_header((CONTENT_TYPE, file.content_type));
    if file.gzpipped {
        answer.insert_header((CONTENT_ENCODING, HeaderValue::from_static("gzip")));
    }
    Ok(answer.body(file.bytes.into_owned()))
}
