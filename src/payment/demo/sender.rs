//! Sends the webhooks of the demo provider to this server, and repeats those without an answer.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use hyper::Method;
use url::Url;

use super::{DemoProvider, PRESSES_MAX};
use crate::net::HttpCaller;
use crate::payment::event::EventBody;
use crate::runtime::backoff::Backoff;

const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// First and longest wait before a webhook is sent again.
const RETRY_WAIT_MIN: Duration = Duration::from_millis(100);
const RETRY_WAIT_MAX: Duration = Duration::from_secs(30);
/// About four minutes in all.
const ATTEMPTS_MAX: u32 = 16;

impl DemoProvider {
    /// Sends the webhooks to the public listener at `public`, until the process ends. The second
    /// call has nothing to do.
    pub async fn send_webhooks(self: Arc<Self>, public: SocketAddr) {
        let Some(mut unsent) = self.unsent.lock().take() else { return };
        let caller = HttpCaller::new(ANSWER_TIMEOUT, None);
        let host =
            if public.ip().is_unspecified() { Ipv4Addr::LOCALHOST.into() } else { public.ip() };
        let url = format!("http://{}/v1/payments/events", SocketAddr::new(host, public.port()));
        let url = match Url::parse(&url) {
            Ok(url) => url,
            Err(error) => {
                tracing::error!(%error, "demo provider: webhooks cannot be sent");
                return;
            }
        };
        let mut sending = FuturesUnordered::new();
        loop {
            tokio::select! {
                events = unsent.recv(), if sending.len() < PRESSES_MAX => match events {
                    Some(events) => sending.push(self.send_all(&caller, &url, events)),
                    None => break,
                },
                Some(()) = sending.next() => {}
            }
        }
    }

    /// Sends the webhooks of one button press, one after the other.
    async fn send_all(&self, caller: &HttpCaller, url: &Url, events: Vec<EventBody>) {
        for event in events {
            let id = event.id.as_deref().unwrap_or_default();
            let body = serde_json::to_vec(&event).unwrap_or_default();
            if !self.send(caller, url, id, &body.into()).await {
                tracing::warn!(event = id, "demo provider: webhook given up");
            }
        }
    }

    /// Whether the server answered 2xx, after repeats with new signatures.
    async fn send(&self, caller: &HttpCaller, url: &Url, id: &str, body: &Bytes) -> bool {
        let mut wait = Backoff::between(RETRY_WAIT_MIN, RETRY_WAIT_MAX);
        while wait.failures() < ATTEMPTS_MAX {
            let mut call = HttpCaller::request(Method::POST, url);
            for (name, value) in self.signer.sign(id, body, self.clock.wall_ms()) {
                call = call.header(name, value);
            }
            let call = call.header("content-type", "application/json");
            let answer = caller.call(url, call, body.clone(), Some(ANSWER_TIMEOUT)).await;
            if answer.is_ok_and(|answer| answer.status().is_success()) {
                return true;
            }
            tokio::time::sleep(wait.next_wait(fastrand::f64())).await;
        }
        false
    }
}
