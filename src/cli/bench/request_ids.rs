use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::bail;
use parking_lot::Mutex;

use crate::load::{Load, Outcome, Until, json_string_member, run};

/// Asks the server for `wanted` request ids before the run, number `i` for the buyer `buyer(i)`,
/// as a storefront does before it shows the button.
pub(super) async fn issue(
    target: SocketAddr,
    sale_id: &str,
    sku_id: &str,
    wanted: u64,
    buyer: impl Fn(u64) -> u64 + Send + Sync + 'static,
) -> anyhow::Result<Vec<String>> {
    let body = serde_json::json!({ "sku_id": sku_id }).to_string();
    let path = format!("/v1/sales/{sale_id}/request-ids");
    let length = body.len();
    let source = move |seq, buffer: &mut Vec<u8>| {
        let buyer = buyer(seq);
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: {target}\r\ncontent-type: application/json\r\n\
             x-buyer-id: {buyer}\r\ncontent-length: {length}\r\n\r\n"
        );
        buffer.extend_from_slice(head.as_bytes());
        buffer.extend_from_slice(body.as_bytes());
    };
    let size = usize::try_from(wanted)?;
    let ids = Arc::new(Mutex::new(vec![String::new(); size]));
    let found = ids.clone();
    let observer = move |seq, outcome: &Outcome<'_>| {
        let Outcome::Answered(answer) = outcome else { return };
        let id = json_string_member(answer.body, b"request_id").unwrap_or_default();
        let place = usize::try_from(seq).unwrap_or(usize::MAX);
        if let Some(place) = found.lock().get_mut(place) {
            id.clone_into(place);
        }
    };
    let load = Load {
        until: Until::Requests(wanted),
        observer: Some(Arc::new(observer)),
        ..Load::new(target, Arc::new(source))
    };
    let report = run(load).await?;
    let ids = std::mem::take(&mut *ids.lock());
    let missing = ids.iter().filter(|id| id.is_empty()).count();
    if missing > 0 {
        bail!("{missing} of {wanted} request ids were not issued: {:?}", report.by_code);
    }
    Ok(ids)
}
