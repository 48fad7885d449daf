//! Public pages of the sales: served from memory, rendered as JSON once per refresh interval
//! instead of once per request.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use actix_web::http::header::{CACHE_CONTROL, CONTENT_TYPE, ETAG, HeaderValue, IF_NONE_MATCH};
use actix_web::{HttpRequest, HttpResponse, web};
use arc_swap::ArcSwap;
use xxhash_rust::xxh3::xxh3_64;

use super::views::{SalePage, SaleView, SalesPage, rfc3339};
use crate::domain::SaleId;
use crate::http::middleware::problem::{Handled, ProblemCode};
use crate::http::state::{HttpState, State};
use crate::services::catalog::CatalogSale;

/// Upper limit of the refresh interval, whatever is configured (milliseconds).
const AGE_MAX_MS: u64 = 1000;

/// One sale rendered as JSON.
#[derive(Debug)]
struct CachedPage {
    listed: Arc<CatalogSale>,
    rendered_at: Instant,
    /// The members of the object, without its braces.
    members: String,
    /// Hash of the members only: `server_time` does not change the `ETag`.
    hash: u64,
}

/// Rendered pages of all sales. Reads take no lock; a page is rendered again once it is too old.
#[derive(Debug)]
pub struct SalePages {
    pages: ArcSwap<HashMap<SaleId, Arc<CachedPage>>>,
    age_max: Duration,
}

impl SalePages {
    /// Starts empty. A page is rendered again after `refresh_ms`, at most [`AGE_MAX_MS`].
    pub fn new(refresh_ms: u64) -> Self {
        let age_max = Duration::from_millis(refresh_ms.min(AGE_MAX_MS));
        Self { pages: ArcSwap::default(), age_max }
    }

    /// The page of the sale as it is in the catalog now, with stock of at most the allowed age.
    fn page(&self, listed: &Arc<CatalogSale>, state: &HttpState, now: Instant) -> Arc<CachedPage> {
        if let Some(page) = self.pages.load().get(&listed.sale.id)
            && Arc::ptr_eq(&page.listed, listed)
            && now.duration_since(page.rendered_at) < self.age_max
        {
            return Arc::clone(page);
        }
        let view = serde_json::to_string(&SaleView::new(listed, state)).unwrap_or_default();
        let members = view.get(1..view.len().saturating_sub(1)).unwrap_or_default().to_owned();
        let hash = xxh3_64(members.as_bytes());
        let page =
            Arc::new(CachedPage { listed: Arc::clone(listed), rendered_at: now, members, hash });
        self.pages.rcu(|old| {
            let mut new = HashMap::clone(old);
            new.insert(listed.sale.id.clone(), Arc::clone(&page));
            new
        });
        page
    }
}

/// All sales, oldest first.
#[utoipa::path(
    get, path = "/v1/sales", tag = "buyers",
    responses((status = 200, description = "all sales, oldest first", body = SalesPage)),
)]
pub async fn list(request: HttpRequest, state: State) -> HttpResponse {
    let deps = &state.deps;
    let now = deps.clock.now();
    let pages: Vec<_> = deps
        .catalog
        .all()
        .iter()
        .map(|listed| state.sale_pages.page(listed, &state, now))
        .collect();
    let hashes: Vec<u8> = pages.iter().flat_map(|page| page.hash.to_le_bytes()).collect();
    respond(&request, xxh3_64(&hashes), || {
        let sales: Vec<_> = pages.iter().map(|page| format!("{{{}}}", page.members)).collect();
        let time = rfc3339(deps.clock.wall_ms());
        format!("{{\"server_time\":\"{time}\",\"sales\":[{}]}}", sales.join(","))
    })
}

/// One sale.
#[utoipa::path(
    get, path = "/v1/sales/{sale_id}", tag = "buyers",
    responses((status = 200, description = "the sale", body = SalePage)),
)]
pub async fn show(request: HttpRequest, sale_id: web::Path<String>, state: State) -> Handled {
    let deps = &state.deps;
    let listed = deps.catalog.sale(&sale_id).ok_or(ProblemCode::UnknownSku)?;
    let page = state.sale_pages.page(&listed, &state, deps.clock.now());
    Ok(respond(&request, page.hash, || {
        let time = rfc3339(deps.clock.wall_ms());
        format!("{{\"server_time\":\"{time}\",{}}}", page.members)
    }))
}

/// The page, or 304 if `If-None-Match` has its tag. The tag is weak: `server_time` always differs.
fn respond(request: &HttpRequest, hash: u64, body: impl FnOnce() -> String) -> HttpResponse {
    let tag = format!("W/\"{hash:016x}\"");
    let is_unchanged = request.headers().get_all(IF_NONE_MATCH).any(|value| {
        let mut tags = value.to_str().unwrap_or_default().split(',').map(str::trim);
        tags.any(|sent| sent == tag || sent == "*")
    });
    let mut answer = if is_unchanged { HttpResponse::NotModified() } else { HttpResponse::Ok() };
    answer
        .insert_header((CACHE_CONTROL, HeaderValue::from_static("max-age=1")))
        .insert_header((ETAG, tag));
    if is_unchanged {
        return answer.finish();
    }
    answer.insert_header((CONTENT_TYPE, HeaderValue::from_static("application/json"))).body(body())
}
