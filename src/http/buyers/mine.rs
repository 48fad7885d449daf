//! What the authenticated buyer has of a sale: for the first paint of its page. Read from the
//! stock, never from the ledger.

use std::iter::successors;
use std::sync::Arc;

use actix_web::{HttpRequest, web};
use futures_util::{StreamExt, TryStreamExt, stream};
use serde::Serialize;
use utoipa::ToSchema;

use super::views::{QuotaView, RequestView, no_store_json, request_state, request_states};
use crate::domain::{
    BucketNo, BuyerId, OrderState, RecordState, Refusal, RequestId, RequestRecord, Sale, Sku,
};
use crate::http::admission::LimitedCall;
use crate::http::middleware::problem::Handled;
use crate::http::state::{HttpDeps, State};
use crate::stock;

/// Failed requests that one read follows to the request that bought again. A buyer may cancel any
/// number of them; after these the last one read is shown, which names the next.
const FAILED_MAX: u32 = 32;

/// Each further read of a buyer's requests has so many times as many as the last: most buyers have
/// one request or none, and those of a buyer who has many take few calls.
const READ_GROWTH: usize = 8;

/// SKUs of one answer that are read at once.
const SKUS_AT_ONCE: usize = 16;

/// A SKU of a sale, and the buyer who asks for it.
pub struct BuyerSku {
    pub sale: Arc<Sale>,
    pub sku: Arc<Sku>,
    pub buyer: BuyerId,
}

/// What a buyer has of a SKU.
#[derive(Debug, Default, Serialize, ToSchema)]
pub struct MySkuView {
    pub sku_id: String,
    /// Units that count for a quota, or of the live request of `one_per_buyer`; else absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owned: Option<u32>,
    /// Most units of the buyer; only under the policy `quota`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// Only for `one_per_buyer`: the id of the buyer's present request, or of the next one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// State of that request; absent if it was not accepted.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(schema_with = request_states)]
    pub state: Option<&'static str>,
}

/// What a buyer has of a sale.
#[derive(Debug, Serialize, ToSchema)]
pub struct MineView {
    pub sale_id: String,
    pub skus: Vec<MySkuView>,
}

/// What the buyer has of each SKU.
#[utoipa::path(
    get, path = "/v1/sales/{sale_id}/mine", operation_id = "showMySale", tag = "buyers",
    responses((status = 200, description = "per SKU", body = MineView)),
)]
pub async fn mine(request: HttpRequest, sale_id: web::Path<String>, state: State) -> Handled {
    let deps = &state.deps;
    let buyer = state.admit_to_store(&request, LimitedCall::Mine).await?;
    let now_ms = deps.clock.wall_ms();
    let sale = state.sale(|catalog| catalog.public(&sale_id, now_ms)).await?;
    let of_sku = |sku: &Arc<Sku>| {
        BuyerSku { sale: Arc::clone(&sale), sku: Arc::clone(sku), buyer }.into_view(deps)
    };
    let views = stream::iter(&sale.skus).map(of_sku).buffered(SKUS_AT_ONCE);
    let skus: Vec<MySkuView> = views.try_collect().await?;
    Ok(no_store_json(MineView { sale_id: sale.id.to_string(), skus }))
}

impl BuyerSku {
    /// The buyer's bucket of the SKU.
    pub fn home(&self) -> BucketNo {
        BucketNo::home_of(self.buyer, self.sku.buckets)
    }

    /// The signed request id of a number.
    pub fn sign(&self, deps: &HttpDeps, number: RequestId) -> String {
        deps.request_ids.sign(number, &self.sale.id, self.sku.no, self.buyer)
    }

    /// The number of the buyer's first request, where ids are derived.
    pub fn first(&self, deps: &HttpDeps) -> RequestId {
        deps.request_ids.derive(&self.sale.id, self.sku.no, self.buyer)
    }

    /// The number with which the buyer buys again after this request.
    pub fn next(&self, deps: &HttpDeps, ended: RequestId) -> RequestId {
        deps.request_ids.next(ended, &self.sale.id, self.sku.no, self.buyer)
    }

    /// The signed id with which the buyer buys again after a request that failed for this reason.
    pub fn again(&self, deps: &HttpDeps, failed: RequestId, reason: &Refusal) -> Option<String> {
        deps.request_ids.again(failed, reason, &self.sale.id, &self.sku, self.buyer)
    }

    /// The record of a request, as the stock has it.
    pub async fn record(
        &self,
        deps: &HttpDeps,
        request: RequestId,
    ) -> Result<Option<RequestRecord>, stock::Error> {
        deps.gates.record(&self.sku, request, self.buyer).await
    }

    async fn into_view(self, deps: &HttpDeps) -> Result<MySkuView, stock::Error> {
        let none = MySkuView { sku_id: self.sku.id.to_string(), ..MySkuView::default() };
        if let Some(limit) = self.sku.policy.quota() {
            let owned = deps.gates.owned(&self.sku, self.buyer).await?;
            return Ok(MySkuView { owned: Some(owned), limit: Some(limit), ..none });
        }
        if !self.sku.policy.derives_request_id() {
            return Ok(none);
        }
        let (number, record) = self.present_request(deps).await?;
        let request_id = Some(self.sign(deps, number));
        let Some(record) = record else {
            return Ok(MySkuView { owned: Some(0), request_id, ..none });
        };
        let (owned, state) = (Some(record.units()), Some(request_state(record.state)));
        Ok(MySkuView { owned, request_id, state, ..none })
    }

    /// The present request of a buyer whose ids are derived, with its record; without one it is the
    /// request with which the buyer may buy, for the first time or again.
    async fn present_request(
        &self,
        deps: &HttpDeps,
    ) -> Result<(RequestId, Option<RequestRecord>), stock::Error> {
        let Self { sku, buyer, .. } = self;
        let first = Some(self.first(deps));
        let mut chain = successors(first, |ended| Some(self.next(deps, *ended)));
        let (mut num_ended, mut num_failed, mut num_read) = (0, 0, 1);
        loop {
            let numbers: Vec<RequestId> = chain.by_ref().take(num_read).collect();
            let records = deps.gates.records(sku, &numbers, *buyer).await?;
            for (number, record) in numbers.into_iter().zip(records) {
                let Some(record) = record else { return Ok((number, None)) };
                let followed = match record.state {
                    RecordState::Ordered { state, .. } if may_buy_again(sku, state, num_ended) => {
                        &mut num_ended
                    }
                    RecordState::Failed(reason)
                        if reason.is_undecided() && num_failed < FAILED_MAX =>
                    {
                        &mut num_failed
                    }
                    _ => return Ok((number, Some(record))),
                };
                *followed += 1;
            }
            num_read *= READ_GROWTH;
        }
    }

    /// Why a second purchase without a request id, of another quantity, is refused: the first one
    /// has failed, or it is queued or an order, and the policy allows one. Returned with the id of
    /// the next purchase, if the order of the first one has ended and the buyer may buy again.
    pub async fn refusal_of_second(
        &self,
        deps: &HttpDeps,
        first: RequestId,
    ) -> Result<(Refusal, Option<String>), stock::Error> {
        let (present, record) = self.present_request(deps).await?;
        let is_free = record.is_none();
        let record = match record {
            None => self.record(deps, first).await?,
            present => present,
        };
        Ok(match record.map(|record| record.state) {
            Some(RecordState::Failed(reason)) => (reason, None),
            _ if is_free => (Refusal::AlreadyPurchased { first }, Some(self.sign(deps, present))),
            _ => (Refusal::AlreadyPurchased { first: present }, None),
        })
    }

    /// Adds to the view of an order the buyer's units under a quota; to that of an ended order the
    /// id that buys again. The order stands without them: an error of the stock leaves them out.
    pub async fn add_limit(&self, view: &mut RequestView, deps: &HttpDeps) {
        let Self { sku, buyer, .. } = self;
        let Some(order) = &view.order else { return };
        if let Some(limit) = sku.policy.quota() {
            let owned = deps.gates.owned(sku, *buyer).await;
            view.quota = owned.ok().map(|owned| QuotaView { owned, limit });
        } else if sku.policy.derives_request_id()
            && !order.state.is_live()
            && !deps.catalog.is_barred(sku.no, *buyer)
            && let Ok((next, None)) = self.present_request(deps).await
        {
            view.again = Some(self.sign(deps, next));
        }
    }
}

/// Whether the order has ended, and its end gave the limit back.
fn may_buy_again(sku: &Sku, state: OrderState, num_ended: u32) -> bool {
    sku.returns_limit(state, num_ended) && !sku.bars_after(state)
}
