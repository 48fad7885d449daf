//! JSON shapes of the operators' routes for sales.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa::openapi::schema::Object;

use crate::domain::named::schema_of;
use crate::domain::{
    Currency, OrderState, Phase, Policy, RetentionState, Sale, SaleDraft, SaleId, Sku, SkuDraft,
    SkuHistory, SkuId, SlotReturns,
};
use crate::http::buyers::views::{SkuView, rfc3339, stock_left};
use crate::http::middleware::body::{JsonObject, SentTime};
use crate::http::middleware::problem::Problem;
use crate::http::state::HttpState;
use crate::services::sales::{FunnelStage, SkuBucketsReport};

/// Body of a new sale.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SaleBody {
    /// 1 to 64 characters out of `A-Z a-z 0-9 . _ -`.
    #[schema(value_type = String)]
    sale_id: SaleId,
    /// Shown to buyers; not blank, without control characters.
    #[schema(min_length = 1, max_length = 200)]
    title: String,
    /// First instant of the window.
    #[schema(value_type = String, format = DateTime)]
    starts_at: SentTime,
    /// First instant after the window.
    #[schema(value_type = String, format = DateTime)]
    ends_at: SentTime,
    /// Of all prices, ISO 4217; default `CNY`.
    #[serde(default)]
    currency: Option<String>,
    /// Whether a purchase requires a ticket, which a buyer gets for solving a challenge.
    #[serde(default)]
    ticket_required: bool,
    /// 1 to 200 SKUs.
    #[schema(value_type = Vec<SkuBody>, min_items = 1, max_items = 200)]
    skus: Vec<JsonObject<SkuBody>>,
    /// Stands in the log beside who created the sale.
    pub(super) reason: Option<String>,
}

/// A SKU of a new sale.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SkuBody {
    /// Unique within the sale; the same characters as `sale_id`.
    #[schema(value_type = String)]
    sku_id: SkuId,
    /// Shown to buyers; not blank, without control characters.
    #[schema(min_length = 1, max_length = 200)]
    title: String,
    /// Of one unit, in the currency's smallest unit; times `max_quantity` at most 2^53 - 1.
    #[schema(minimum = 0, maximum = 1_000_000_000_000i64)]
    price: i64,
    /// Units for sale.
    #[schema(minimum = 1, maximum = 1_000_000_000)]
    initial_stock: u32,
    /// Purchase limit of a buyer.
    #[schema(value_type = PolicyBody)]
    policy: JsonObject<PolicyBody>,
    /// Number of buckets that share the stock: 1 to 256, default 1.
    #[serde(default = "one")]
    #[schema(minimum = 1, maximum = 256)]
    buckets: u16,
    /// How long an order may stay unpaid, seconds; 0: for ever; default 900.
    #[serde(default = "payment_window_s")]
    #[schema(minimum = 0, maximum = 2_592_000)]
    payment_window_s: i32,
    /// Whether a buyer who lets an order time out is barred from the sale.
    #[serde(default)]
    bar_lapsed: bool,
    /// The ends after which an order no longer counts for its buyer's limit: a subset of
    /// `cancelled`, `timed_out` and `refunded`; default the first two.
    slot_returns: Option<Vec<String>>,
    /// After so many ended orders of a buyer the limit does not return any more; default 3.
    #[serde(default = "ends_max")]
    ends_max: u16,
    /// How long a request may stay queued, seconds; 0 (default): for ever.
    #[serde(default)]
    #[schema(minimum = 0, maximum = 2_592_000)]
    queue_timeout_s: i32,
}

fn policy_kinds() -> Object {
    schema_of(["one_per_buyer", "unlimited", "quota"])
}

/// Purchase policy of a new SKU.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PolicyBody {
    #[schema(schema_with = policy_kinds)]
    kind: String,
    /// Most units over all orders of a buyer; required for `quota`, not allowed otherwise.
    limit: Option<u32>,
    /// Most units in one order. Default: 1 for `one_per_buyer`, else 1000000.
    max_quantity: Option<u32>,
}

/// Default of `buckets`.
fn one() -> u16 {
    1
}

/// Default of `ends_max`.
fn ends_max() -> u16 {
    3
}

/// Default of `payment_window_s`.
fn payment_window_s() -> i32 {
    900
}

/// Operators' view of a sale.
#[derive(Debug, Serialize, ToSchema)]
pub struct AdminSaleView {
    sale_id: String,
    title: String,
    phase: Phase,
    /// Rises with each opening, change of terms and earlier end; 0: never opened.
    epoch: i64,
    starts_at: String,
    ends_at: String,
    currency: String,
    ticket_required: bool,
    retention: RetentionView,
    skus: Vec<AdminSkuView>,
}

/// Whether the rows of a sale are archived or deleted.
#[derive(Debug, Serialize, ToSchema)]
pub struct RetentionView {
    /// `kept`, `archived`, `sealed` (a purge compares the archive), `purging` or `purged`.
    state: RetentionState,
    /// When the state was reached.
    #[serde(skip_serializing_if = "Option::is_none")]
    since: Option<String>,
    /// SHA-256 of the archive's manifest.
    #[serde(skip_serializing_if = "Option::is_none")]
    archive_digest: Option<String>,
}

/// Operators' view of a SKU.
#[derive(Debug, Serialize, ToSchema)]
pub struct AdminSkuView {
    #[serde(flatten)]
    sku: SkuView,
    /// Number of the SKU in the ledger: the middle part of its request ids.
    sku_no: String,
    buckets: u16,
    payment_window_s: i32,
    bar_lapsed: bool,
    slot_returns: Vec<&'static str>,
    ends_max: u16,
    queue_timeout_s: i32,
}

/// A page of the sales.
#[derive(Debug, Serialize, ToSchema)]
pub struct AdminSalesView {
    /// Oldest first.
    pub(super) sales: Vec<AdminSaleView>,
    /// Cursor of the next page; absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) next_cursor: Option<String>,
}

/// Accepted requests of a sale, counted by stage.
#[derive(Debug, Serialize, ToSchema)]
pub struct FunnelView {
    pub(super) sale_id: String,
    /// Time of the count.
    pub(super) at: String,
    /// `{stage, count, oldest_age_ms}`, in the order of the flow.
    #[schema(value_type = Vec<Object>)]
    pub(super) stages: Vec<FunnelStage>,
}

/// The buckets and gates of a sale.
#[derive(Debug, Serialize, ToSchema)]
pub struct BucketsView {
    pub(super) sale_id: String,
    /// `{sku_id, sku_no, buckets, health, why, free, left_in_ledger, unsettled, has_open_loan}`,
    /// one per SKU. The health is `ready`, `other_phase`, `other_stock`, `missing`, `distrusted` or
    /// `unavailable`.
    #[schema(value_type = Vec<Object>)]
    pub(super) skus: Vec<SkuBucketsReport>,
}

/// Scope of a rebuild.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RebuildBody {
    /// Only this SKU; default: all SKUs of the sale.
    #[schema(value_type = Option<String>)]
    pub(super) sku_id: Option<SkuId>,
    /// A bucket that must exist. All buckets of its SKU are loaded: the ledger counts units per
    /// SKU, not per bucket.
    pub(super) bucket: Option<u16>,
    /// Recorded with who did it; at most 1000 characters.
    pub(super) reason: Option<String>,
}

/// Result of a rebuild.
#[derive(Debug, Serialize, ToSchema)]
pub struct RebuiltView {
    pub(super) sale_id: String,
    /// The SKUs whose buckets were loaded from the ledger.
    pub(super) skus: Vec<String>,
}

/// The default, or the named ends; the error names the accepted ones.
fn slot_returns_of(sent: Option<&[String]>) -> Result<SlotReturns, &'static str> {
    let Some(names) = sent else { return Ok(SlotReturns::default()) };
    let states = names.iter().map(|name| OrderState::from_name(name)).collect::<Option<Vec<_>>>();
    states
        .and_then(|states| SlotReturns::of(&states))
        .ok_or("slot_returns may contain cancelled, timed_out and refunded")
}

impl SaleBody {
    pub(super) fn into_draft(self) -> Result<SaleDraft, Problem> {
        let skus = self.skus.into_iter().map(|sku| sku.0.into_draft());
        let currency = self.currency.map(|text| text.parse::<Currency>()).transpose();
        Ok(SaleDraft {
            id: self.sale_id,
            title: self.title,
            starts_at_ms: self.starts_at.0,
            ends_at_ms: self.ends_at.0,
            currency: currency.map_err(Problem::invalid)?.unwrap_or_default(),
            ticket_required: self.ticket_required,
            skus: skus.collect::<Result<_, _>>()?,
        })
    }
}

impl SkuBody {
    fn into_draft(self) -> Result<SkuDraft, Problem> {
        let PolicyBody { kind, limit, max_quantity } = self.policy.0;
        let invalid = |fault: &str| Problem::invalid(format!("sku {}: {fault}", self.sku_id));
        let policy =
            Policy::from_parts(&kind, limit, max_quantity).map_err(|fault| invalid(&fault))?;
        let slot_returns = slot_returns_of(self.slot_returns.as_deref()).map_err(invalid)?;
        Ok(SkuDraft {
            no: (),
            id: self.sku_id,
            title: self.title,
            price: self.price,
            initial: self.initial_stock,
            policy,
            buckets: self.buckets,
            payment_window_s: self.payment_window_s,
            bar_lapsed: self.bar_lapsed,
            slot_returns,
            ends_max: self.ends_max,
            queue_timeout_s: self.queue_timeout_s,
            history: SkuHistory::default(),
        })
    }
}

impl AdminSaleView {
    pub(super) fn new(sale: &Sale, state: &HttpState) -> Self {
        let sku_view = |sku: &Arc<Sku>| AdminSkuView {
            sku: SkuView::new(sku, stock_left(state, sale, sku)),
            sku_no: sku.no.to_string(),
            buckets: sku.buckets,
            payment_window_s: sku.payment_window_s,
            bar_lapsed: sku.bar_lapsed,
            slot_returns: sku.slot_returns.ends().map(OrderState::name).collect(),
            ends_max: sku.ends_max,
            queue_timeout_s: sku.queue_timeout_s,
        };
        Self {
            sale_id: sale.id.to_string(),
            title: sale.title.clone(),
            phase: sale.phase,
            epoch: sale.epoch.0,
            starts_at: rfc3339(sale.starts_at_ms),
            ends_at: rfc3339(sale.ends_at_ms),
            currency: sale.currency.to_string(),
            ticket_required: sale.ticket_required,
            retention: RetentionView {
                state: sale.retention.state,
                since: sale.retention.since_ms.map(rfc3339),
                archive_digest: sale.retention.digest.map(|digest| digest.to_string()),
            },
            skus: sale.skus.iter().map(sku_view).collect(),
        }
    }
}
