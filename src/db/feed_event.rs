//! What the feed of order events has: changes of orders, and accepted requests that failed.

use crate::domain::{Failure, OrderEvent};

/// A committed event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FeedEvent {
    Order(OrderEvent),
    /// The failure of an accepted request was recorded.
    Refused {
        feed_no: i64,
        failure: Failure,
    },
}

impl FeedEvent {
    /// Ascending, without gaps, in an order in which each order's versions ascend.
    pub fn feed_no(&self) -> i64 {
        match self {
            Self::Order(OrderEvent { feed_no, .. }) | Self::Refused { feed_no, .. } => *feed_no,
        }
    }

    /// `None`: no event of an order.
    pub fn into_order(self) -> Option<OrderEvent> {
        match self {
            Self::Order(event) => Some(event),
            Self::Refused { .. } => None,
        }
    }
}

/// A part of the changes of orders in the feed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FeedPage {
    /// Ascending.
    pub events: Vec<OrderEvent>,
    /// Events that were left out because their rows are not readable.
    pub num_unreadable: usize,
    /// How far the feed was read: events up to here that are not in `events` were left out. The
    /// number after which the page begins: the end of the feed.
    pub read_to: i64,
}
