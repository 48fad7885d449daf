//! Sales as buyers see them: from memory, written as JSON now and then instead of for each reader.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use actix_web::http::header::{CACHE_CONTROL, CONTENT_TYPE, ETAG, HeaderValue, IF_NONE_MATCH};
use actix_web::{HttpRequest, HttpResponse, web};
use arc_swap::ArcSwap;
use xxhash_rust::xxh3::xxh3_64;

use super::views::{SalePage, SaleView, SalesPage, rfc3339};
use crate::domain::SaleId;
use crate::http::middleware::problem::{Problem, ProblemCode};
use crate::http::state::HttpState;
use crate::services::catalog::CatalogSale;

/// A sale may be shown this old, whatever the settings say (milliseconds).
const AGE_MAX_MS: u64 = 1000;

/// One sale as JSON, and what it was written from.
#[derive(Debug)]
struct CachedPage {
    listed: Arc<CatalogSale>,
    written: Instant,
    /// The members of the object, without its braces.
    members: String,
    /// Of the members alone: the server's time does not make a page another one.
    hash: u64,
}

/// The pages of all sales; read without a lock, written again when they are too old.
#[derive(Debug)]
pub struct SalePages {
    pages: ArcSwap<HashMap<SaleId, Arc<CachedPage>>>,
    age_max: Duration,
}

impl SalePages {
    /// No pages yet; each is written again after `refresh_ms`.
    #[must_use]
    pub fn new(refresh_ms: u64) -> Self {
        let age_max = Duration::from_millis(refresh_ms.min(AGE_MAX_MS));
        Self { pages: ArcSwap::default(), age_max }
    }

    /// The page of a sale, as it is in the catalogue now, with stock of at most the allowed age.
    fn page(&self, listed: &Arc<CatalogSale>, state: &HttpState, now: Instant) -> Arc<CachedPage> {
        if let Some(page) = self.pages.load().get(&listed.sale.id)
            && Arc::ptr_eq(&page.listed, listed)
            && now.duration_since(page.written) < self.age_max
        {
            return Arc::clone(page);
        }
        let view = serde_json::to_string(&SaleView::new(listed, state)).unwrap_or_default();
        let members = view.get(1..view.len().saturating_sub(1)).unwrap_or_default().to_owned();
        let hash = xxh3_64(members.as_bytes());
        let page = Arc::new(CachedPage { listed: Arc::clone(listed), written: now, members, hash });
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
pub async fn list(request: HttpRequest, state: web::Data<HttpState>) -> HttpResponse {
    let deps = &state.deps;
    let now = deps.clock.now();
    let pages: Vec<_> =
        deps.catalog.all().iter().map(|listed| state.pages.page(listed, &state, now)).collect();
    let hashes: Vec<u8> = pages.iter().flat_map(|page| page.hash.to_le_bytes()).collect();
    answer(&request, xxh3_64(&hashes), || {
        let sales: Vec<_> = pages.iter().map(|page| format!("{{{}}}", page.members)).collect();
        let time = rfc3339(deps.clock.wall_ms());
        format!("{{\"server_time\":\"{time}\",\"sales\":[{}]}}", sales.join(","))
    })
}

/// One sale.
#[utoipa::path(
    get, path = "/v1/sales/{sale_id}", tag = "buyers",
    params(("sale_id" = String, Path)),
    responses((status = 200, description = "the sale", body = SalePage)),
)]
pub async fn show(
    request: HttpRequest,
    sale_id: web::Path<String>,
    state: web::Data<HttpState>,
) -> Result<HttpResponse, Problem> {
    let deps = &state.deps;
    let listed = deps.catalog.sale(&sale_id).ok_or(ProblemCode::UnknownSku)?;
    let page = state.pages.page(&listed, &state, deps.clock.now());
    Ok(answer(&request, page.hash, || {
        let time = rfc3339(deps.clock.wall_ms());
        format!("{{\"server_time\":\"{time}\",{}}}", page.members)
    }))
}

/// The page, or 304 for a reader who has it. The tag is weak: the server's time differs each time.
fn answer(request: &HttpRequest, hash: u64, body: impl FnOnce() -> String) -> HttpResponse {
    let tag = format!("W/\"{hash:016x}\"");
    let has = request.headers().get_all(IF_NONE_MATCH).any(|value| {
        let mut tags = value.to_str().unwrap_or_default().split(',').map(str::trim);
        tags.any(|known| known == tag || known == "*")
    });
    let mut answer = if has { HttpResponse::NotModified() } else { HttpResponse::Ok() };
    answer
        .insert_header((CACHE_CONTROL, HeaderValue::from_static("max-age=1")))
        .insert_header((ETAG, tag));
    if has {
        return answer.finish();
    }
    answer.insert_header((CONTENT_TYPE, HeaderValue::from_static("application/json"))).body(body())
}
