//! The three purchase policies, and the terms of a SKU, which may change from epoch to epoch.

use serde::Serialize;
use utoipa::ToSchema;

use super::ids::{Epoch, RequestId};

/// How many units of one SKU a buyer may order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Policy {
    /// One order per buyer; the request id is derived from sale, SKU and buyer.
    OnePerBuyer { max_quantity: u32 },
    /// Any number of orders; each carries a pre-issued request id.
    Unlimited { max_quantity: u32 },
    /// Any number of orders up to a cumulative limit of units.
    Quota {
        /// Maximum units over all orders of the buyer.
        limit: u32,
        max_quantity: u32,
    },
}

impl Policy {
    /// Maximum units of one request; a larger one is invalid.
    pub fn max_quantity(self) -> u32 {
        match self {
            Self::OnePerBuyer { max_quantity }
            | Self::Unlimited { max_quantity }
            | Self::Quota { max_quantity, .. } => max_quantity,
        }
    }

    /// Maximum units that an order can have, whatever the buyer asks for.
    pub fn units_max(self) -> u32 {
        self.quota().map_or(self.max_quantity(), |limit| limit.min(self.max_quantity()))
    }

    /// The slot of an order, unique together with `(sku, buyer)`, so that the ledger's primary key
    /// enforces the limit. 0 for `one_per_buyer`, the request id otherwise.
    pub fn slot(self, request: RequestId) -> i64 {
        match self {
            Self::OnePerBuyer { .. } => 0,
            Self::Unlimited { .. } | Self::Quota { .. } => request.to_db(),
        }
    }

    /// The limit of units over all orders of a buyer; `None` when the policy counts no units.
    pub fn quota(self) -> Option<u32> {
        match self {
            Self::Quota { limit, .. } => Some(limit),
            Self::OnePerBuyer { .. } | Self::Unlimited { .. } => None,
        }
    }

    /// Whether the request id is derived from sale, SKU and buyer.
    pub fn derives_request_id(self) -> bool {
        matches!(self, Self::OnePerBuyer { .. })
    }

    /// The name in the HTTP API and in the ledger.
    pub fn kind(self) -> &'static str {
        match self {
            Self::OnePerBuyer { .. } => "one_per_buyer",
            Self::Unlimited { .. } => "unlimited",
            Self::Quota { .. } => "quota",
        }
    }

    /// Builds a policy from its parts as the HTTP API and the ledger name them. Without a maximum
    /// one order has one unit under `one_per_buyer`, and else as many as the limits allow.
    pub fn from_parts(
        kind: &str,
        limit: Option<u32>,
        max_quantity: Option<u32>,
    ) -> Result<Self, String> {
        let default = if kind == "one_per_buyer" { 1 } else { QUANTITY_MAX };
        let max_quantity = max_quantity.unwrap_or(default);
        if !(1..=QUANTITY_MAX).contains(&max_quantity) {
            return Err(format!("policy.max_quantity must be from 1 to {QUANTITY_MAX}"));
        }
        match (kind, limit) {
            ("one_per_buyer", None) => Ok(Self::OnePerBuyer { max_quantity }),
            ("unlimited", None) => Ok(Self::Unlimited { max_quantity }),
            ("quota", Some(limit)) if (1..=QUANTITY_MAX).contains(&limit) => {
                Ok(Self::Quota { limit, max_quantity })
            }
            ("quota", _) => Err(format!("policy.limit must be from 1 to {QUANTITY_MAX}")),
            ("one_per_buyer" | "unlimited", Some(_)) => {
                Err(format!("policy.limit belongs to the policy quota, not to {kind}"))
            }
            _ => Err("policy.kind must be one_per_buyer, unlimited or quota".to_owned()),
        }
    }
}

/// The maximum units of one order: keeps every sum far below 32 bits.
pub const QUANTITY_MAX: u32 = 1_000_000;

/// The part of a SKU that an operator may change while the sale runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    /// Price of one unit, in the currency's smallest unit.
    pub price: i64,
    /// Most units over all orders of a buyer, under the policy `quota`.
    pub limit: Option<u32>,
    /// Most units of one order.
    pub max_quantity: u32,
    /// How long an order may stay unpaid, seconds from its commit; 0: no limit.
    pub payment_window_s: i32,
}

/// Terms, and when they came into force.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TermsSince {
    /// The first epoch with these terms.
    pub epoch: Epoch,
    /// Epoch milliseconds.
    pub since_ms: i64,
    pub terms: Terms,
}

/// What has changed in a SKU since its creation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SkuHistory {
    /// All terms, in the order of their epochs; empty: they never changed.
    pub terms: Vec<TermsSince>,
    /// The number of the last change of the stock; 0: none.
    pub change_no: i32,
    /// The sum of all changes of the stock.
    pub changed_units: i32,
}

impl SkuHistory {
    /// The terms of an epoch; `None`: they never changed.
    pub fn terms_in(&self, epoch: Epoch) -> Option<Terms> {
        let mut latest_first = self.terms.iter().rev();
        latest_first.find(|since| since.epoch <= epoch).map(|since| since.terms)
    }
}
