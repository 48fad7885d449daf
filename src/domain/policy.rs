//! The three purchase policies.

use serde::Serialize;
use utoipa::ToSchema;

use super::ids::RequestId;

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
    /// Maximum units of one order.
    pub fn max_quantity(self) -> u32 {
        match self {
            Self::OnePerBuyer { max_quantity }
            | Self::Unlimited { max_quantity }
            | Self::Quota { max_quantity, .. } => max_quantity,
        }
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

    /// Builds a policy from its parts as the HTTP API and the ledger name them.
    ///
    /// # Errors
    /// The part that is missing or invalid.
    pub fn from_parts(
        kind: &str,
        limit: Option<u32>,
        max_quantity: Option<u32>,
    ) -> Result<Self, String> {
        let max_quantity = max_quantity.unwrap_or(1);
        if !(1..=QUANTITY_MAX).contains(&max_quantity) {
            return Err(format!("policy.max_quantity must be from 1 to {QUANTITY_MAX}"));
        }
        match (kind, limit) {
            ("one_per_buyer", None) => Ok(Self::OnePerBuyer { max_quantity }),
            ("unlimited", None) => Ok(Self::Unlimited { max_quantity }),
            ("quota", Some(limit)) if (1..=QUANTITY_MAX).contains(&limit) => {
                Ok(Self::Quota { limit, max_quantity: max_quantity.min(limit) })
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
