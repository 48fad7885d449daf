//! A server that stops while load balancers still route to it.

use std::time::Duration;

use floodgate::config::Tier;
use floodgate::runtime::clock::now_monotonic;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value as Json, json};
use tempfile::TempDir;
use tokio::net::TcpListener;

use crate::support::TestApp;
use crate::support::admin::open_sale;
use crate::support::app::fresh_settings;
use crate::support::gate::buy;
use crate::support::process::{Server, command};
use crate::support::wait::until;

/// The listeners stay open for longer than a test.
const KEYS: [(&str, &str); 2] =
    [("FLOODGATE__SHUTDOWN__DRAIN_MS", "600000"), ("FLOODGATE__SHUTDOWN__DEADLINE_MS", "700000")];

fn start() -> (TempDir, Server) {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &KEYS);
    (folder, server)
}

/// Ends the server, and waits until load balancers can know.
async fn terminate(server: &Server) {
    server.terminate();
    until("a server that is not ready", async || {
        let answer = reqwest::get(format!("http://{}/readyz", server.internal)).await.unwrap();
        (answer.status() == 503).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_server_that_is_not_ready_still_sells_on_new_connections() {
    let (_folder, server) = start();
    open_sale(server.internal, "sale", json!({"kind": "one_per_buyer"}), 1_000, 2).await;
    terminate(&server).await;
    for buyer in 1..=100 {
        let (status, answer) = buy(server.public, buyer).await.expect("an open listener");
        assert!(matches!(status, 200 | 202), "{status} {answer}");
    }
}

#[tokio::test]
async fn a_second_signal_ends_the_shutdown() {
    let (_folder, mut server) = start();
    terminate(&server).await;
    server.terminate();
    assert!(server.wait().success());
    assert!(server.log().contains("stopped at once, the next start continues"));
}

/// A process that starts is not ended by the signal that its secrets have changed.
#[tokio::test]
async fn secrets_may_be_reloaded_during_the_start() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let ledger = format!("mysql://u:p@{}/x", silent.local_addr().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let keys = [("FLOODGATE__LEDGER__URL", &*ledger), ("FLOODGATE__TIER", "ledger")];
    let mut starting = command(folder.path(), &["serve"], &keys).spawn().unwrap();
    let _connection = silent.accept().await.unwrap();
    let pid = Pid::from_child(&starting);
    kill_process(pid, Signal::HUP).unwrap();
    let ended = until("the end", async || starting.try_wait().unwrap()).await;
    assert_eq!(ended.code(), Some(4), "{ended}: the ledger does not answer");
}

#[tokio::test]
async fn a_reader_who_waits_for_order_events_is_answered_when_the_server_stops() {
    // An answer by the end of the wait is never in time; on a slow machine the first may not be.
    until("an answer before the end of the wait", async || {
        let (_folder, server) = start();
        let begun = now_monotonic();
        let waiting = async {
            let path = "/admin/v1/order-events?wait_ms=30000";
            let answer = reqwest::get(format!("http://{}{path}", server.internal)).await.unwrap();
            answer.json::<Json>().await.unwrap()
        };
        let (events, ()) = tokio::join!(waiting, terminate(&server));
        assert_eq!(events, json!([]));
        (now_monotonic().duration_since(begun) < Duration::from_secs(25)).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_server_that_stops_gives_up_its_leases_for_another_process() {
    let (mut settings, stores) = fresh_settings(Tier::Pipeline);
    settings.events.exchange = true;
    settings.payment.delay_queues_s = vec!["900".to_owned()];
    (settings.maintenance.every_ms, settings.maintenance.rescue_every_ms) = (50, 50);
    let redis = stores.redis.as_ref().unwrap();
    let app = TestApp::start(settings);
    let leases = ["event_publisher", "hint_publisher", "reconciler"]
        .map(|name| format!("{}:lease:{name}", app.settings.namespace));
    let num_held = || leases.iter().filter(|key| redis.text(&["EXISTS", key]) == "1").count();
    until("every lease", async || (num_held() == leases.len()).then_some(())).await;
    app.stop();
    assert_eq!(num_held(), 0);
}
