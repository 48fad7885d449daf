//! Operators' routes for the archive and the purge of a finished sale.

use actix_web::web;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::sale_views::AdminSaleView;
use super::sales::parse_sale_id;
use crate::domain::{
    ArchiveCursor, ArchiveDigest, ArchiveTable, OpenEnd, RetentionState, TableContents,
};
use crate::http::buyers::views::{no_store_json, page_limit};
use crate::http::middleware::body::UnreadCall;
use crate::http::middleware::problem::{Handled, Problem, ProblemCode};
use crate::http::operators::verbs::VERB_BYTES_MAX;
use crate::http::state::State;
use crate::services::sales::{PurgeProgress, SaleArchive};

/// Most rows, or orders with all their rows, of a page.
const LIMIT_MAX: u32 = 500;

/// Something that a sale waits for before it can be archived.
#[derive(Debug, Serialize, ToSchema)]
pub struct OpenEndView {
    /// `not_closed`, `queued_requests`, `dead_letters`, `payment_deadlines`, `payments_in_flight`
    /// or `unread_events`.
    what: &'static str,
    num: u64,
    /// What ends it.
    remedy: &'static str,
}

impl OpenEndView {
    pub(super) fn all(open: &[(OpenEnd, u64)]) -> Vec<Self> {
        let view = |(end, num): &(OpenEnd, u64)| Self {
            what: end.name(),
            num: *num,
            remedy: end.remedy(),
        };
        open.iter().map(view).collect()
    }
}

/// What a sale waits for before it can be archived.
#[derive(Debug, Serialize, ToSchema)]
pub struct OpenEndsView {
    sale_id: String,
    /// Empty: it can be archived.
    open: Vec<OpenEndView>,
}

/// Page of a table.
#[derive(Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct ArchiveQuery {
    /// `next` of the previous page.
    after: Option<String>,
    /// Most rows in the answer; of tables of orders, most orders: 1 to 500, default 500.
    #[param(minimum = 1, maximum = 500)]
    limit: Option<u32>,
}

/// Rows of a table, each with its columns. Ids are strings, bytes are hexadecimal digits.
#[derive(Debug, Serialize, ToSchema)]
pub struct ArchivePageView {
    #[schema(value_type = Vec<Object>)]
    rows: Vec<serde_json::Map<String, serde_json::Value>>,
    /// `after` of the next page; null: the end.
    next: Option<String>,
}

/// An archive.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ArchiveBody {
    /// SHA-256 of the archive's manifest, 64 hexadecimal digits.
    #[schema(value_type = String)]
    digest: ArchiveDigest,
    /// `{table, rows, sums}` of every table: the sums by column, in decimal digits.
    #[schema(value_type = Vec<Object>)]
    tables: Vec<TableContents>,
    /// Recorded with who did it; at most 1000 characters.
    reason: Option<String>,
}

/// How far a purge is.
#[derive(Debug, Serialize, ToSchema)]
pub struct PurgeView {
    sale_id: String,
    /// `purging`: call again; `purged`: nothing is left.
    state: RetentionState,
    /// Deleted by this call, each order with all that belongs to it as one.
    num_rows: u64,
    /// The longest transaction of this call.
    longest_ms: u64,
}

/// What a sale waits for before it can be archived.
#[utoipa::path(
    get, path = "/admin/v1/sales/{sale_id}/archive",
    operation_id = "adminShowArchivable", tag = "operators",
    responses((status = 200, description = "nothing, or with remedies", body = OpenEndsView)),
)]
pub async fn open_ends(sale_id: web::Path<String>, state: State) -> Handled {
    let open = state.deps.sales.open_ends(&parse_sale_id(&sale_id)?).await?;
    Ok(no_store_json(OpenEndsView { sale_id: sale_id.into_inner(), open: OpenEndView::all(&open) }))
}

/// Rows of a closed sale, for an archive: of one of its tables, in the order of their keys.
#[utoipa::path(
    get, path = "/admin/v1/sales/{sale_id}/archive/{table}",
    operation_id = "adminReadArchive", tag = "operators",
    params(
        ("table" = String, Path, description = "`sales`, `sale_phases`, `skus`, `terms`, \
            `stock_changes`, `orders`, `order_events`, `payments`, `payment_events`, \
            `failed_requests`, `quotas`, `bars` or `repairs`"),
        ArchiveQuery,
    ),
    responses((status = 200, description = "a page of them", body = ArchivePageView)),
)]
pub async fn rows(
    path: web::Path<(String, String)>,
    state: State,
    query: web::Query<ArchiveQuery>,
) -> Handled {
    let (sale_id, table) = path.into_inner();
    let table = ArchiveTable::from_name(&table).ok_or(ProblemCode::NotFound)?;
    let limit = page_limit(query.limit, LIMIT_MAX, LIMIT_MAX)?;
    let after = query.after.as_deref().map(str::parse::<ArchiveCursor>).transpose();
    let after = after.map_err(|_invalid| Problem::invalid("after must be `next` of a page"))?;
    let id = parse_sale_id(&sale_id)?;
    let page = state.deps.sales.archive_page(&id, table, after.unwrap_or_default(), limit).await?;
    let next = page.next.map(|next| next.to_string());
    Ok(no_store_json(ArchivePageView { rows: page.rows, next }))
}

/// Records that a sale has an archive, if the ledger has what the archive has. Idempotent.
#[utoipa::path(
    post, path = "/admin/v1/sales/{sale_id}/archive",
    operation_id = "adminArchiveSale", tag = "operators",
    request_body = ArchiveBody,
    responses((status = 200, description = "the sale, archived", body = AdminSaleView)),
)]
pub async fn archive(call: UnreadCall, sale_id: web::Path<String>, state: State) -> Handled {
    let (id, archive) = (parse_sale_id(&sale_id)?, archive_in(call).await?);
    let sale = state.deps.sales.record_archive(&id, &archive).await?;
    Ok(no_store_json(AdminSaleView::new(&sale, &state)))
}

/// Deletes the rows and the buckets of an archived sale for some seconds: call again until the
/// state is `purged`. The sale itself stays, and its name stays taken. Idempotent.
#[utoipa::path(
    post, path = "/admin/v1/sales/{sale_id}/purge",
    operation_id = "adminPurgeSale", tag = "operators",
    request_body = ArchiveBody,
    responses((status = 200, description = "how far the purge is", body = PurgeView)),
)]
pub async fn purge(call: UnreadCall, sale_id: web::Path<String>, state: State) -> Handled {
    let (id, archive) = (parse_sale_id(&sale_id)?, archive_in(call).await?);
    let PurgeProgress { state, num_rows, longest_ms } =
        state.deps.sales.purge(&id, &archive).await?;
    let sale_id = sale_id.into_inner();
    Ok(no_store_json(PurgeView { sale_id, state, num_rows, longest_ms }))
}

async fn archive_in(mut call: UnreadCall) -> Result<SaleArchive, Problem> {
    let ArchiveBody { digest, tables, reason } = call.body(VERB_BYTES_MAX).await?;
    Ok(SaleArchive { digest, tables, by: call.by(reason)? })
}
