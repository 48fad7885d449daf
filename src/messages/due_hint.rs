//! The wire format of hints: orders whose payment window ends when the message leaves its delay
//! queue. The body has 20 bytes for each order: SKU, buyer, request, big-endian.
//!
//! A hint only says where to look: a lost, late, repeated or wrong one does no harm.

use bytes::{Buf, BufMut, Bytes, BytesMut};

use crate::broker::{Headers, Message, Route};
use crate::domain::{BuyerId, OrderKey, RequestId, SkuNo};

/// Most orders of one message.
pub const ORDERS_MAX: usize = 500;

const CONTENT_TYPE: &str = "application/vnd.floodgate.due";
const VERSION: i64 = 1;
const ORDER_BYTES: usize = 20;

/// A hint for these orders.
pub fn message(route: Route, orders: &[OrderKey], installation: &str, now_ms: i64) -> Message {
    let mut body = BytesMut::with_capacity(ORDER_BYTES * orders.len());
    for OrderKey { sku, buyer, request } in orders {
        body.put_i32(sku.0);
        body.put_u64(buyer.get());
        body.put_u64(request.get());
    }
    let first = orders.first().map_or(0, |order| order.request.get());
    let headers = Headers {
        message_id: format!("due-{first}-{}", orders.len()),
        content_type: Some(CONTENT_TYPE.to_owned()),
        version: Some(VERSION),
        installation: Some(installation.to_owned()),
        sent_at_ms: Some(now_ms),
        ..Headers::default()
    };
    Message { route, headers, body: body.freeze() }
}

/// The orders of a hint; `None`: it is of another program, installation or version.
pub fn orders_in(headers: &Headers, body: &Bytes, installation: &str) -> Option<Vec<OrderKey>> {
    let is_ours = headers.content_type.as_deref() == Some(CONTENT_TYPE)
        && headers.version == Some(VERSION)
        && headers.installation.as_deref() == Some(installation);
    let (orders, rest) = body.as_chunks::<ORDER_BYTES>();
    if !is_ours || !rest.is_empty() || orders.len() > ORDERS_MAX {
        return None;
    }
    orders.iter().map(read).collect()
}

fn read(bytes: &[u8; ORDER_BYTES]) -> Option<OrderKey> {
    let mut bytes = bytes.as_slice();
    let (sku, buyer, request) = (bytes.get_i32(), bytes.get_u64(), bytes.get_u64());
    let (buyer, request) = (BuyerId::new(buyer)?, RequestId::new(request)?);
    Some(OrderKey { sku: SkuNo(sku), buyer, request })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u64) -> OrderKey {
        let (buyer, request) = (BuyerId::new(number), RequestId::new(number + 1));
        OrderKey { sku: SkuNo(7), buyer: buyer.unwrap(), request: request.unwrap() }
    }

    #[test]
    fn orders_read_back_and_what_is_not_ours_is_nothing() {
        let keys = [key(1), key(1 << 60)];
        let Message { headers, body, .. } = message(Route::Delay(900), &keys, "ours", 1);
        assert_eq!(orders_in(&headers, &body, "ours"), Some(keys.to_vec()));
        assert_eq!(orders_in(&headers, &body, "other"), None);
        assert_eq!(orders_in(&headers, &body.slice(1..), "ours"), None);
        assert_eq!(orders_in(&Headers::default(), &body, "ours"), None);
        let zeros = Bytes::from_static(&[0; ORDER_BYTES]);
        assert_eq!(orders_in(&headers, &zeros, "ours"), None);
        let many = Bytes::from(body.slice(..20).repeat(ORDERS_MAX + 1));
        assert_eq!(orders_in(&headers, &many, "ours"), None);
    }
}
