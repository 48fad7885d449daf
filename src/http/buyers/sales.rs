//! Public pages of the sales: served from memory, rendered as JSON once per refresh interval
//! instead of once per request.

use std::collections::HashMap;
use std::convert::Infallible;
use std::iter::once;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use actix_web::body::{BoxBody, SizedStream};
use actix_web::http::header::{CONTENT_TYPE, HeaderValue};
use actix_web::web::Bytes;
use actix_web::{HttpRequest, HttpResponse, web};
use arc_swap::ArcSwap;
use futures_util::stream;
use serde::Deserialize;
use xxhash_rust::xxh3::xxh3_64;

use super::poll_interval::{PollLoad, interval_ms};
use super::views::{SalePage, SaleView, SalesPage, page_cursor, page_cut, page_limit, rfc3339};
use crate::domain::{Sale, SaleId};
use crate::http::middleware::embedded::{REVALIDATE, tagged};
use crate::http::middleware::problem::{Handled, Problem};
use crate::http::state::{HttpState, State};

/// Greatest age of a page, in milliseconds. Its numbers are `http.sales_refresh_ms` old already.
const AGE_MAX_MS: u64 = 100;

/// A page that was not read for this long is dropped: most likely its sale is over.
const UNREAD_AGE: Duration = Duration::from_mins(10);

const LIMIT_DEFAULT: u32 = 100;
const LIMIT_MAX: u32 = 200;

/// One sale rendered as JSON.
#[derive(Debug)]
struct CachedPage {
    sale: Arc<Sale>,
    rendered_at: Instant,
    /// Readers of this rendering, who ask again after `poll_after_ms`.
    num_reads: AtomicU32,
    poll_after_ms: u32,
    /// The members of the object, without its braces. Slow readers hold them: a page that did not
    /// change has those of the last rendering.
    members: Bytes,
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
    fn page(&self, sale: &Arc<Sale>, state: &HttpState, now: Instant) -> Arc<CachedPage> {
        let last = self.pages.load().get(&sale.id).cloned();
        if let Some(page) = &last
            && Arc::ptr_eq(&page.sale, sale)
            && now.duration_since(page.rendered_at) < self.age_max
        {
            page.num_reads.fetch_add(1, Ordering::Relaxed);
            return Arc::clone(page);
        }
        let load = last.as_ref().map_or(PollLoad::default(), |last| PollLoad {
            num_reads: last.num_reads.load(Ordering::Relaxed),
            within: now.duration_since(last.rendered_at),
            poll_after_ms: last.poll_after_ms,
        });
        let now_ms = state.deps.clock.wall_ms();
        let interval = |has_stock| interval_ms(sale, has_stock, now_ms, load);
        let view = SaleView::new(sale, state, interval);
        let poll_after_ms = view.poll_after_ms;
        let view = serde_json::to_string(&view).unwrap_or_default();
        let members = view.get(1..view.len().saturating_sub(1)).unwrap_or_default();
        let members = match last {
            Some(last) if last.members == members => last.members.clone(),
            _ => Bytes::copy_from_slice(members.as_bytes()),
        };
        let hash = xxh3_64(&members);
        let page = Arc::new(CachedPage {
            sale: Arc::clone(sale),
            rendered_at: now,
            num_reads: AtomicU32::new(1),
            poll_after_ms,
            members,
            hash,
        });
        self.put(Arc::clone(&page));
        page
    }

    /// Replaces the sale's page, and drops those that were not read for [`UNREAD_AGE`].
    fn put(&self, page: Arc<CachedPage>) {
        self.pages.rcu(|old| {
            let mut new = HashMap::clone(old);
            let age = |old: &CachedPage| page.rendered_at.duration_since(old.rendered_at);
            new.retain(|_, old| age(old) < UNREAD_AGE);
            new.insert(page.sale.id.clone(), Arc::clone(&page));
            new
        });
    }
}

/// Page of the list.
#[derive(Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct SalesQuery {
    /// Most sales in the answer: 1 to 200, default 100.
    #[param(minimum = 1, maximum = 200)]
    limit: Option<u32>,
    /// `next_cursor` of the previous page.
    cursor: Option<String>,
}

impl SalesQuery {
    /// Reduces the sales, oldest first, to the page. Returns the cursor of the next page.
    pub fn page(&self, sales: &mut Vec<Arc<Sale>>) -> Result<Option<String>, Problem> {
        let limit = page_limit(self.limit, LIMIT_DEFAULT, LIMIT_MAX)?;
        let after = page_cursor(self.cursor.as_deref(), |number| number.parse::<i32>().ok())?;
        sales.retain(|sale| after.is_none_or(|after| sale.no > after));
        Ok(page_cut(sales, limit, |last| last.no.to_string()))
    }
}

/// The sales that are neither drafts nor over for more than a day, oldest first.
#[utoipa::path(
    get, path = "/v1/sales", operation_id = "listSales", tag = "buyers", params(SalesQuery),
    responses((status = 200, description = "oldest first", body = SalesPage,
        headers(("ETag" = String, description = "for `If-None-Match`")))),
)]
pub async fn list(request: HttpRequest, query: web::Query<SalesQuery>, state: State) -> Handled {
    let (deps, now) = (&state.deps, state.deps.clock.now());
    let now_ms = deps.clock.wall_ms();
    let mut sales = deps.catalog.all_public(now_ms);
    let next_cursor = query.page(&mut sales)?;
    let pages: Vec<_> = sales.iter().map(|sale| state.sale_pages.page(sale, &state, now)).collect();
    let next = next_cursor.map(|next| format!(",\"next_cursor\":\"{next}\""));
    let next = next.unwrap_or_default();
    let hashes = pages.iter().flat_map(|page| page.hash.to_le_bytes());
    let hashes: Vec<u8> = hashes.chain(next.bytes()).collect();
    Ok(respond(&request, xxh3_64(&hashes), || {
        let time = rfc3339(deps.clock.wall_ms());
        let head = Bytes::from(format!("{{\"server_time\":\"{time}\",\"sales\":["));
        let sales = pages.into_iter().enumerate().flat_map(|(at, page)| {
            let begin = if at == 0 { "{" } else { ",{" };
            [Bytes::from(begin), page.members.clone(), Bytes::from("}")]
        });
        let end = Bytes::from(format!("]{next}}}"));
        joined(once(head).chain(sales).chain(once(end)))
    }))
}

/// One sale.
#[utoipa::path(
    get, path = "/v1/sales/{sale_id}", operation_id = "showSale", tag = "buyers",
    responses((status = 200, description = "the sale", body = SalePage,
        headers(("ETag" = String, description = "for `If-None-Match`")))),
)]
pub async fn show(request: HttpRequest, sale_id: web::Path<String>, state: State) -> Handled {
    let deps = &state.deps;
    let now_ms = deps.clock.wall_ms();
    let sale = state.sale(|catalog| catalog.public(&sale_id, now_ms)).await?;
    let page = state.sale_pages.page(&sale, &state, deps.clock.now());
    Ok(respond(&request, page.hash, || {
        let time = rfc3339(deps.clock.wall_ms());
        let head = Bytes::from(format!("{{\"server_time\":\"{time}\","));
        joined([head, page.members.clone(), Bytes::from("}")].into_iter())
    }))
}

/// A body of these parts. A slow reader holds the pages, which all readers share, and no copy.
fn joined(parts: impl Iterator<Item = Bytes> + Clone + 'static) -> BoxBody {
    let size = parts.clone().map(|part| part.len() as u64).sum();
    BoxBody::new(SizedStream::new(size, stream::iter(parts.map(Ok::<_, Infallible>))))
}

/// The page, or 304 if `If-None-Match` has its tag. The tag is weak: `server_time` always differs.
/// A cache asks each time: the page may have the greatest age of `stock_left` already.
fn respond(request: &HttpRequest, hash: u64, body: impl FnOnce() -> BoxBody) -> HttpResponse {
    let (mut answer, is_known) = tagged(request, hash, REVALIDATE);
    if is_known {
        return answer.finish();
    }
    answer.insert_header((CONTENT_TYPE, HeaderValue::from_static("application/json"))).body(body())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::samples;
    use crate::runtime::clock::now_monotonic;

    #[test]
    fn the_page_of_a_sale_that_is_over_is_dropped() {
        let pages = SalePages::new(50);
        let begun = now_monotonic();
        let page = |id: &str, rendered_at| CachedPage {
            sale: Arc::new(Sale { id: id.parse().unwrap(), ..samples::sale() }),
            rendered_at,
            num_reads: AtomicU32::new(1),
            poll_after_ms: 1_000,
            members: Bytes::new(),
            hash: 0,
        };
        let kept = || {
            let mut ids: Vec<_> = pages.pages.load().keys().map(SaleId::to_string).collect();
            ids.sort_unstable();
            ids
        };
        pages.put(Arc::new(page("over", begun)));
        pages.put(Arc::new(page("sold", begun + UNREAD_AGE / 2)));
        assert_eq!(kept(), ["over", "sold"]);
        pages.put(Arc::new(page("sold", begun + UNREAD_AGE)));
        assert_eq!(kept(), ["sold"]);
    }
}
