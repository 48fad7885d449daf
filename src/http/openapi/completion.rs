//! Completes a document: refusals, security, and the headers and answers of every route.

use actix_web::http::Method;
use serde_json::Value;
use utoipa::openapi::header::HeaderBuilder;
use utoipa::openapi::path::Operation;
use utoipa::openapi::response::Response;
use utoipa::openapi::schema::{ObjectBuilder, Type};
use utoipa::openapi::security::{
    ApiKey, ApiKeyValue, HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme,
};
use utoipa::openapi::server::ServerBuilder;
use utoipa::openapi::{
    Components, ContentBuilder, InfoBuilder, LicenseBuilder, OpenApi, Ref, RefOr, ResponseBuilder,
};

use super::formats::add_formats;
use crate::http::buyers::buy::BUY;
use crate::http::middleware::problem::ProblemCode;
use crate::http::routes::{RouteAccess, RouteEntry};

/// Of both documents.
const CONVENTIONS: &str = "Ids are strings, times are RFC 3339 in UTC, money is in the \
    currency's smallest unit. Errors are RFC 9457 problem documents; `code` is for programs. Only \
    what is no HTTP at all is answered by a bare 400, and 408 and 431 have no body.";

/// Answers of every route: name in the components, status, description.
const EVERYWHERE: [(&str, u16, &str); 4] = [
    ("MethodNotAllowed", 405, "method-not-allowed: the path does not answer to this method"),
    ("RequestTimeout", 408, "the head of the request did not arrive in time"),
    ("HeaderFieldsTooLarge", 431, "the head of the request is too large"),
    ("Internal", 500, "internal"),
];

/// The document of a listener: `described` by its handlers, and completed from its routes.
pub fn completed(
    mut described: OpenApi,
    title: &str,
    description: &str,
    table: &[RouteEntry],
) -> Value {
    let licence = LicenseBuilder::new().name("MIT OR Apache-2.0");
    described.info = InfoBuilder::new()
        .title(title)
        .version(env!("CARGO_PKG_VERSION"))
        .description(Some(format!("{description} {CONVENTIONS}")))
        .license(Some(licence.identifier(Some("MIT OR Apache-2.0")).build()))
        .build();
    described.servers = Some(vec![ServerBuilder::new().url("/").build()]);
    for entry in table {
        let Some(operation) = operation(&mut described, entry) else { continue };
        add_security(operation, entry.access);
        add_unchanged(operation);
        add_refusals(operation, entry);
        for (name, status, _) in EVERYWHERE {
            let answer = RefOr::Ref(Ref::from_response_name(name));
            operation.responses.responses.insert(status.to_string(), answer);
        }
    }
    add_components(described.components.get_or_insert_default(), table);
    let mut document = serde_json::to_value(&described).unwrap_or_default();
    add_formats(&mut document);
    document
}

fn operation<'d>(document: &'d mut OpenApi, entry: &RouteEntry) -> Option<&'d mut Operation> {
    // Without the regular expressions of actix-web patterns.
    let item = document.paths.paths.get_mut(&entry.path.replace(":.*}", "}"))?;
    match entry.method {
        Method::GET => item.get.as_mut(),
        Method::DELETE => item.delete.as_mut(),
        Method::PATCH => item.patch.as_mut(),
        _ => item.post.as_mut(),
    }
}

/// 304, where the answer has a tag.
fn add_unchanged(operation: &mut Operation) {
    let responses = &mut operation.responses.responses;
    let Some(RefOr::T(answer)) = responses.get("200") else { return };
    let Some(tag) = answer.headers.get("ETag").cloned() else { return };
    let mut unchanged = ResponseBuilder::new().description("unchanged").build();
    unchanged.headers.insert("ETag".to_owned(), tag);
    responses.insert("304".to_owned(), unchanged.into());
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
        RouteAccess::Buyer | RouteAccess::Admin => {
            &[ProblemCode::Unauthenticated, ProblemCode::Forbidden]
        }
    };
    let responses = &mut operation.responses.responses;
    for described in responses.values_mut() {
        if let RefOr::T(described) = described {
            add_header(described, "traceparent", TRACEPARENT);
        }
    }
    let codes = || by_access.iter().chain(entry.refusals);
    for code in codes() {
        let same: Vec<_> =
            codes().filter(|other| other.status() == code.status()).map(|c| c.as_str()).collect();
        let mut answer = problem(&same.join(", "), code.status());
        if same.contains(&ProblemCode::Paused.as_str()) {
            add_header(&mut answer, "Retry-After", "seconds; of `paused`");
        }
        if entry.path == BUY {
            add_header(&mut answer, "Idempotent-Replayed", "`true`: was answered before");
        }
        responses.insert(code.status().to_string(), answer.into());
    }
}

const TRACEPARENT: &str = "W3C Trace Context: the caller's trace, or a new one";

/// An answer with a problem document, and the headers of its status.
fn problem(description: &str, status: u16) -> Response {
    let body = ContentBuilder::new().schema(Some(Ref::from_schema_name("ProblemView")));
    let mut answer = ResponseBuilder::new()
        .description(description)
        .content("application/problem+json", body.build())
        .build();
    add_header(&mut answer, "traceparent", TRACEPARENT);
    let headers: &[(&str, &str)] = match status {
        401 => &[("WWW-Authenticate", "the scheme that is expected")],
        405 => &[("Allow", "the methods of the path")],
        429 => &[
            ("Retry-After", "seconds"),
            ("RateLimit-Policy", "the limit that is exceeded"),
            ("RateLimit", "when it is free again"),
        ],
        503 => &[("Retry-After", "seconds")],
        _ => &[],
    };
    for (name, text) in headers {
        add_header(&mut answer, name, text);
    }
    answer
}

fn add_header(answer: &mut Response, name: &str, description: &str) {
    let text = ObjectBuilder::new().schema_type(Type::String).build();
    let header = HeaderBuilder::new().schema(Some(text)).description(Some(description)).build();
    answer.headers.insert(name.to_owned(), RefOr::T(header));
}

fn add_components(components: &mut Components, table: &[RouteEntry]) {
    let bearer = || SecurityScheme::Http(HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build());
    let has = |access| table.iter().any(|entry| entry.access == access);
    if has(RouteAccess::Buyer) {
        let trusted = SecurityScheme::ApiKey(ApiKey::Header(ApiKeyValue::new("X-Buyer-Id")));
        components.add_security_scheme("buyer", bearer());
        components.add_security_scheme("buyer_header", trusted);
    }
    if has(RouteAccess::Admin) {
        components.add_security_scheme("operator", bearer());
    }
    for (name, status, description) in EVERYWHERE {
        let answer = match status {
            408 | 431 => ResponseBuilder::new().description(description).build(),
            _ => problem(description, status),
        };
        components.responses.insert(name.to_owned(), answer.into());
    }
}
