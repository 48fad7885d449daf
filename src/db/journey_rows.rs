//! Orders with their way, as the database has them, and their way to the domain; see `rows`.

use diesel::prelude::*;

use super::Error;
use super::rows::{OrderRow, unreadable};
use super::schema::orders;
use crate::domain::{Journey, Order, TraceId};

/// A whole row of `orders`.
#[derive(Debug, Clone, Queryable, Selectable)]
#[diesel(table_name = orders)]
pub struct JourneyRow {
    #[diesel(embed)]
    order: OrderRow,
    trace_id: Vec<u8>,
    published_at_ms: Option<i64>,
    recorded_at_ms: Option<i64>,
}

impl TryFrom<JourneyRow> for Journey {
    type Error = Error;

    fn try_from(row: JourneyRow) -> Result<Self, Error> {
        let order = Order::try_from(row.order)?;
        let Ok(trace) = <[u8; 16]>::try_from(row.trace_id.as_slice()) else {
            let length = format!("{} bytes long", row.trace_id.len());
            return unreadable(format!("order {}", order.request), "trace_id", length);
        };
        Ok(Self {
            order,
            trace: TraceId(u128::from_be_bytes(trace)),
            published_at_ms: row.published_at_ms,
            recorded_at_ms: row.recorded_at_ms,
        })
    }
}
