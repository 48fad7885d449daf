use std::net::SocketAddr;
use std::sync::Arc;

use super::plan::RequestSource;

/// Writes purchases, `POST /v1/buy/{path_id}`, as one buffer of head and body.
///
/// The parts that are equal for all buyers are formatted once.
#[derive(Debug, Clone)]
pub struct BuyRequest {
    /// The request line and the headers up to the buyer's id.
    head: Vec<u8>,
    /// The body's members without the closing brace.
    members: Vec<u8>,
}

impl BuyRequest {
    /// A purchase of `quantity` units of `sku_id` through `path_id` (the ticket's path, or the
    /// sale's id if the sale requires no ticket) at the server `host`.
    pub fn new(host: SocketAddr, path_id: &str, sku_id: &str, quantity: u32) -> Self {
        let sku = serde_json::Value::from(sku_id);
        Self {
            head: format!(
                "POST /v1/buy/{path_id} HTTP/1.1\r\nhost: {host}\r\n\
                 content-type: application/json\r\nx-buyer-id: "
            )
            .into_bytes(),
            members: format!("{{\"sku_id\":{sku},\"quantity\":{quantity}").into_bytes(),
        }
    }

    /// Appends the purchase of one buyer to `buffer`; `request_id` is optional if the policy is
    /// `one_per_buyer`.
    pub fn write(&self, buyer_id: u64, request_id: Option<&str>, buffer: &mut Vec<u8>) {
        let id_length = request_id.map_or(0, |id| r#","request_id":"""#.len() + id.len());
        let length = self.members.len() + id_length + 1;
        buffer.extend_from_slice(&self.head);
        buffer.extend_from_slice(itoa::Buffer::new().format(buyer_id).as_bytes());
        buffer.extend_from_slice(b"\r\ncontent-length: ");
        buffer.extend_from_slice(itoa::Buffer::new().format(length).as_bytes());
        buffer.extend_from_slice(b"\r\n\r\n");
        buffer.extend_from_slice(&self.members);
        if let Some(id) = request_id {
            buffer.extend_from_slice(br#","request_id":""#);
            buffer.extend_from_slice(id.as_bytes());
            buffer.push(b'"');
        }
        buffer.push(b'}');
    }

    /// A source of one purchase each by the buyers `first_buyer`, `first_buyer + 1`, and so on,
    /// without request ids.
    pub fn by_unique_buyers(self, first_buyer: u64) -> RequestSource {
        Arc::new(move |seq, buffer| self.write(first_buyer + seq, None, buffer))
    }
}

/// The value of the first string member `name` in compact or spaced JSON, found by search instead
/// of by parsing: exact for answers of this server, whose strings need no escapes. `None` if the
/// member is absent, not a string, or escaped.
pub fn json_string_member<'a>(json: &'a [u8], name: &[u8]) -> Option<&'a str> {
    let mut rest = json;
    loop {
        let quote = rest.iter().position(|byte| *byte == b'"')?;
        rest = rest.get(quote + 1..)?;
        let Some(after) = rest.strip_prefix(name).and_then(|after| after.strip_prefix(b"\""))
        else {
            continue;
        };
        let Some(value) = after.trim_ascii_start().strip_prefix(b":") else { continue };
        let value = value.trim_ascii_start().strip_prefix(b"\"")?;
        let end = value.iter().position(|byte| matches!(byte, b'"' | b'\\'))?;
        return match value.get(end) {
            Some(b'"') => std::str::from_utf8(value.get(..end)?).ok(),
            _ => None,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn buy(request_id: Option<&str>) -> String {
        let mut buffer = Vec::new();
        let host = SocketAddr::from(([127, 0, 0, 1], 80));
        BuyRequest::new(host, "s1", "7", 2).write(42, request_id, &mut buffer);
        String::from_utf8(buffer).unwrap()
    }

    #[test]
    fn the_content_length_is_that_of_the_body() {
        for request_id in [None, Some("123456789")] {
            let text = buy(request_id);
            let (head, body) = text.split_once("\r\n\r\n").unwrap();
            assert!(head.starts_with("POST /v1/buy/s1 HTTP/1.1\r\n"), "{head}");
            assert!(head.contains("\r\nx-buyer-id: 42\r\n"), "{head}");
            assert!(head.ends_with(&format!("content-length: {}", body.len())), "{head}");
            let json: serde_json::Value = serde_json::from_str(body).unwrap();
            assert_eq!((&json["sku_id"], &json["quantity"]), (&"7".into(), &2.into()));
            assert_eq!(json.get("request_id").and_then(|id| id.as_str()), request_id);
        }
    }

    #[test]
    fn string_members_are_found() {
        let json = br#"{"type":"x:code","status":409,"code":"sold-out", "request_id" : "12"}"#;
        assert_eq!(json_string_member(json, b"code"), Some("sold-out"));
        assert_eq!(json_string_member(json, b"request_id"), Some("12"));
        assert_eq!(json_string_member(json, b"status"), None);
        assert_eq!(json_string_member(json, b"absent"), None);
        assert_eq!(json_string_member(br#"{"code":"a\"b"}"#, b"code"), None);
        assert_eq!(json_string_member(br#"{"code":"#, b"code"), None);
    }
}
