//! The filter of dead letters in a query: of the list, and of verbs in bulk.

use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};

use crate::domain::{
    BuyerId, DeadLetterFilter, DeadLetterNo, DeadLetterOrder, DeadLetterOrigin, DeadLetterState,
    RequestId, SkuNo,
};
use crate::http::buyers::request_ids::RequestIds;
use crate::http::buyers::views::{page_cursor, page_limit, rfc3339};
use crate::http::middleware::body::SentTime;
use crate::http::middleware::problem::{Problem, ProblemCode};
use crate::http::state::HttpState;

const LIMIT_DEFAULT: u32 = 50;
pub(super) const LIMIT_MAX: u32 = 500;

/// Filter and page of dead letters. Every condition must hold.
#[derive(Debug, Default, Deserialize, IntoParams, ToSchema)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct DeadLettersQuery {
    /// Default: all; of a verb in bulk, which takes `open` and `parked`: `open`.
    pub(super) state: Option<DeadLetterState>,
    /// Default: all.
    origin: Option<DeadLetterOrigin>,
    /// Part of the reason, in upper or lower case.
    reason: Option<String>,
    /// With a request of this sale.
    sale_id: Option<String>,
    /// With a request for this SKU; requires `sale_id`.
    sku_id: Option<String>,
    /// With this request: its id, its number, or the id of the message that it is the first of.
    request_id: Option<String>,
    /// With a request of this buyer.
    buyer_id: Option<String>,
    /// Dead-lettered at or after this time.
    #[param(value_type = Option<String>, format = DateTime)]
    #[schema(value_type = Option<String>, format = DateTime)]
    since: Option<SentTime>,
    /// Dead-lettered before this time.
    #[param(value_type = Option<String>, format = DateTime)]
    #[schema(value_type = Option<String>, format = DateTime)]
    until: Option<SentTime>,
    /// Default: `newest` first.
    order: Option<DeadLetterOrder>,
    /// Most dead letters in the answer: 1 to 500, default 50.
    #[param(minimum = 1, maximum = 500)]
    #[schema(minimum = 1, maximum = 500)]
    pub(super) limit: Option<u32>,
    /// `next_cursor` of the previous page or step.
    cursor: Option<String>,
}

impl DeadLettersQuery {
    pub(super) fn limit(&self) -> Result<u32, Problem> {
        page_limit(self.limit, LIMIT_DEFAULT, LIMIT_MAX)
    }

    /// The filter; `unknown-sku` for a sale or SKU that is not in the catalog.
    pub(super) fn filter(&self, state: &HttpState) -> Result<DeadLetterFilter, Problem> {
        let request = self.request_id.as_deref().map(request_number).transpose()?;
        let buyer = self.buyer_id.as_deref().map(str::parse::<BuyerId>).transpose();
        let text = self.reason.as_deref().map(str::trim).filter(|text| !text.is_empty());
        Ok(DeadLetterFilter {
            state: self.state,
            origin: self.origin,
            reason: text.map(str::to_owned),
            since_ms: self.since.map(|at| at.0),
            until_ms: self.until.map(|at| at.0),
            order: self.order,
            after: page_cursor(self.cursor.as_deref(), parse_number)?,
            request,
            buyer: buyer.map_err(|_invalid| Problem::invalid("buyer_id must be a number"))?,
            skus: self.skus(state)?,
        })
    }

    /// The SKUs of the sale, or the one of them.
    fn skus(&self, state: &HttpState) -> Result<Option<Vec<SkuNo>>, Problem> {
        let Some(sale) = &self.sale_id else {
            return match self.sku_id {
                Some(_) => Err(Problem::invalid("sku_id requires sale_id")),
                None => Ok(None),
            };
        };
        let sale = state.deps.catalog.sale(sale).ok_or(ProblemCode::UnknownSku)?;
        let Some(sku) = &self.sku_id else {
            return Ok(Some(sale.skus.iter().map(|sku| sku.no).collect()));
        };
        let sku = sale.sku(sku).ok_or(ProblemCode::UnknownSku)?;
        Ok(Some(vec![sku.no]))
    }

    /// Its conditions for the log.
    pub(super) fn text(&self) -> String {
        let name = |text: &Option<String>| text.clone();
        let state = self.state.map(|state| state.name().to_owned());
        let origin = self.origin.map(|origin| origin.name().to_owned());
        let at = |at: Option<SentTime>| at.map(|at| rfc3339(at.0));
        [
            ("state", state),
            ("origin", origin),
            ("reason", name(&self.reason)),
            ("sale_id", name(&self.sale_id)),
            ("sku_id", name(&self.sku_id)),
            ("request_id", name(&self.request_id)),
            ("buyer_id", name(&self.buyer_id)),
            ("since", at(self.since)),
            ("until", at(self.until)),
            ("order", self.order.map(|order| order.name().to_owned())),
            ("cursor", name(&self.cursor)),
        ]
        .into_iter()
        .filter_map(|(name, value)| Some(format!("{name}={:?}", value?)))
        .collect::<Vec<_>>()
        .join(" ")
    }
}

/// The number of a request: of its id, alone, or of the first request of a message, whose id ends
/// with the number of its requests.
pub(super) fn request_number(id: &str) -> Result<RequestId, Problem> {
    let is_count = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let alone = || match id.split_once('-') {
        Some((first, count)) if is_count(count) => first.parse().ok(),
        _ => id.parse().ok(),
    };
    let number = RequestIds::read(id).map_or_else(alone, |id| Some(id.number));
    number.ok_or_else(|| Problem::invalid("request_id must be a request id or its number"))
}

/// Accepts decimal digits only, so that each number has one spelling.
pub(super) fn parse_number(text: &str) -> Option<DeadLetterNo> {
    let is_decimal = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| is_decimal).map(DeadLetterNo)
}
