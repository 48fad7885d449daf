//! The life of orders on real servers: payments that race time-outs while a process is killed,
//! thousands of orders that are due at once, and maintenance processes that pause.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use floodgate::runtime::clock::wall_ms;
use futures_util::future::join_all;
use reqwest::Client;
use serde_json::{Value as Json, json};

use crate::support::admin::{call, stage};
use crate::support::app::sale_body;
use crate::support::crowd::{History, Purchase, STEADY, send, send_until};
use crate::support::gate::{
    GateFixture, PATIENT, assert_holds_at_rest, metric, purchases, retry_until_answered,
};
use crate::support::process::Server;
use crate::support::wait::{until, until_true};
use crate::support::webhooks::{SETTINGS, WebhookSender};

/// Opens a sale of one SKU whose orders have this window.
async fn open(internal: SocketAddr, sale: &str, stock: u32, window_s: u32) {
    let mut body = sale_body(sale, json!({"kind": "one_per_buyer"}), stock, 4);
    body["skus"][0]["payment_window_s"] = json!(window_s);
    call(internal, "/sales", body).await;
    call(internal, &format!("/sales/{sale}/open"), json!({})).await;
}

/// Sells one unit to each of these buyers.
async fn sell(public: SocketAddr, buyers: std::ops::Range<u64>) -> History {
    retry_until_answered(public, purchases(buyers).into(), 16).await
}

/// Units of the sale in the buckets, as buyers read them.
async fn free(public: SocketAddr, sale: &str) -> Option<u64> {
    let answer = reqwest::get(format!("http://{public}/v1/sales/{sale}")).await.ok()?;
    let sale: Json = answer.json().await.ok()?;
    sale["skus"][0]["stock_left"].as_u64()
}

/// Waits until ledger and buckets have this number of units.
async fn until_free(server: &Server, sale: &str, units: u64) {
    until("the units in the ledger", async || {
        (stage(server.internal, sale, "left").await == units).then_some(())
    })
    .await;
    until("the units in the buckets", async || {
        (free(server.public, sale).await? == units).then_some(())
    })
    .await;
}

fn timed_out(server: &Server) -> impl Future<Output = u64> {
    metric(server.internal, "floodgate_orders_timed_out_total", "")
}

/// Begins the payment of a buyer's order and returns its id; `None`: the order has ended.
async fn start_payment(
    client: &Client,
    public: SocketAddr,
    id: &str,
    buyer: u64,
) -> Option<String> {
    until("an answer of the provider", async || {
        let url = format!("http://{public}/v1/orders/{id}/payment");
        let call = client.post(url).header("x-buyer-id", buyer.to_string());
        let answer = call.send().await.ok()?;
        let status = answer.status().as_u16();
        let payment: Json = answer.json().await.ok()?;
        assert!(matches!(status, 200 | 409 | 429 | 503), "{status} {payment}");
        (status < 429).then(|| payment["payment_id"].as_str().map(str::to_owned))
    })
    .await
}

/// Time to pay an order.
const WINDOW_MS: i64 = 4_000;

/// Begins the payments of what was sold: by buyer, with the deadline. Whatever the others get, the
/// money of the first one comes at once, and buyer 2 never pays.
async fn start_payments(
    client: &Client,
    webhooks: &WebhookSender,
    public: SocketAddr,
    sold: &History,
    is_one_paid: &mut bool,
) -> BTreeMap<u64, (String, i64)> {
    let mut payments = BTreeMap::new();
    for attempt in sold.purchases.iter().filter(|attempt| attempt.is_promise()) {
        let (buyer, id) = (attempt.request.buyer, attempt.request_id.as_deref().unwrap());
        if buyer == 2 {
            continue;
        }
        let Some(payment) = start_payment(client, public, id, buyer).await else { continue };
        if *is_one_paid {
            payments.insert(buyer, (payment, wall_ms() + WINDOW_MS));
        } else {
            webhooks.report(public, &payment, "paid").await.unwrap();
            *is_one_paid = true;
        }
    }
    payments
}

/// C18: money arrives around the deadline of its order, at two processes, one of which is killed.
#[test]
fn each_order_is_paid_or_timed_out_once_and_no_money_is_lost() {
    // So few that most of their payments begin in time, on a slow machine, too.
    const AT_ONCE: u64 = 4;
    let fixture = GateFixture::new();
    // A purchase with late money would be one more order.
    let settings = [&SETTINGS[..], &PATIENT, &[("payment.late_payment", "refund")]].concat();
    let [killed, survivor] = [fixture.server(&settings), fixture.server(&settings)];
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let (killed_at, public) = (killed.public, survivor.public);
        open(survivor.internal, "sale", 200, u32::try_from(WINDOW_MS / 1_000).unwrap()).await;
        let mut history = History::default();
        let client = Client::new();
        let webhooks = WebhookSender::new(client.clone());
        let (mut payments, mut is_one_paid, mut next_buyer) = (BTreeMap::new(), false, 1);
        while payments.len() <= 30 {
            assert!(next_buyer < 180, "few payments began in time: {}", payments.len());
            let sold = sell(public, next_buyer..next_buyer + AT_ONCE).await;
            next_buyer += AT_ONCE;
            let begun = start_payments(&client, &webhooks, public, &sold, &mut is_one_paid);
            payments.extend(begun.await);
            history.absorb(sold);
        }
        let kill = async {
            tokio::time::sleep(Duration::from_secs(2)).await;
            killed.kill();
        };
        let reports = payments.iter().map(|(buyer, (payment, due_ms))| {
            let (webhooks, buyer) = (&webhooks, *buyer);
            async move {
                // From half a second before the deadline to one after it.
                let at_ms = due_ms - 500 + i64::try_from(buyer % 16).unwrap() * 100;
                let wait_ms = u64::try_from(at_ms - wall_ms()).unwrap_or(0);
                tokio::time::sleep(Duration::from_millis(wait_ms)).await;
                let to = if buyer % 2 == 0 { public } else { killed_at };
                match webhooks.report(to, payment, "paid").await {
                    Some(outcome) => outcome,
                    // As a provider does: the repeat goes to the process that answers.
                    None => webhooks.report(public, payment, "paid").await.unwrap(),
                }
            }
        });
        let (outcomes, ()) = tokio::join!(join_all(reports), kill);
        println!("{outcomes:?}");
        let db = &fixture.mariadb;
        until_true("the end of every unpaid order", || {
            db.number("SELECT COUNT(*) FROM orders WHERE state IN (0, 5)") == 0
        });
        let num_paid = db.number("SELECT COUNT(*) FROM orders WHERE state = 1");
        let num_timed_out = db.number("SELECT COUNT(*) FROM orders WHERE state = 2");
        println!("{num_paid} paid, {num_timed_out} timed out");
        assert!(num_paid > 0 && num_timed_out > 0);
        assert_eq!(num_paid + num_timed_out, i64::try_from(next_buyer - 1).unwrap());
        let num_received = db.number("SELECT COUNT(*) FROM payments WHERE received = price");
        let num_reported = i64::try_from(payments.len()).unwrap() + 1;
        assert_eq!(num_received, num_reported, "all money is recorded");
        assert_eq!(db.number("SELECT COUNT(*) FROM payments WHERE state = 2"), num_paid);
        let ends = "SELECT COUNT(*) FROM order_events WHERE kind = 2 AND unfulfilled = 0";
        assert_eq!(db.number(ends), num_timed_out, "each time-out is one event");
        until_free(&survivor, "sale", 200 - u64::try_from(num_paid).unwrap()).await;
        assert_holds_at_rest(survivor.internal).await;
        fixture.check(survivor.internal, &history, 200).await;
    });
}

#[test]
fn thousands_of_orders_due_at_once_return_their_units_while_another_sale_goes_on() {
    const DUE: u64 = 3_000;
    let fixture = GateFixture::new();
    let server = fixture.server(&[&SETTINGS[..], &PATIENT].concat());
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let units = u32::try_from(DUE).unwrap();
        open(server.internal, "sale", units, 900).await;
        open(server.internal, "due", units, 5).await;
        let due: Vec<Purchase> = purchases(1..1 + DUE);
        let once: Arc<Vec<usize>> = Arc::new((0..due.len()).collect());
        let sold = send(server.public, "due", due.into(), once, 32).await;
        let num_sold = sold.purchases.iter().filter(|attempt| attempt.is_promise()).count();
        assert!(num_sold > 2_000, "{num_sold}");

        // Sold units of the other sale, while orders end.
        let others = Arc::new(purchases(1..1 + DUE));
        let attempts: Vec<usize> = (0..100).flat_map(|_| 0..others.len()).collect();
        let ended = until_free(&server, "due", DUE);
        let mut history =
            send_until(server.public, "sale", others.clone(), attempts.into(), (8, STEADY), ended)
                .await;
        let sold_meanwhile = history.purchases.iter().filter(|attempt| attempt.is_promise());
        assert!(sold_meanwhile.count() > 100, "the other sale went on");
        assert!(timed_out(&server).await >= 2_000);
        assert_eq!(fixture.mariadb.number("SELECT COUNT(*) FROM orders WHERE state = 2"), {
            i64::try_from(timed_out(&server).await).unwrap()
        });
        // The returned units are sold again, to the last one.
        let again: Vec<Purchase> = purchases(1 + DUE..1 + 2 * DUE);
        let once: Arc<Vec<usize>> = Arc::new((0..again.len()).collect());
        send(server.public, "due", again.into(), once, 32).await;
        history.absorb(retry_until_answered(server.public, others, 32).await);
        until_free(&server, "due", DUE).await;
        assert_holds_at_rest(server.internal).await;
    });
}

/// C25: two processes maintain; one stops for longer than its leases, in turn, and goes on.
#[test]
fn maintenance_processes_that_pause_return_each_unit_once() {
    const ORDERS: u64 = 400;
    let fixture = GateFixture::new();
    let settings = [&SETTINGS[..], &PATIENT, &[("payment.batch", "7")]].concat();
    let servers = [fixture.server(&settings), fixture.server(&settings)];
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let units = u32::try_from(ORDERS).unwrap();
        open(servers[0].internal, "sale", units, 5).await;
        let history = sell(servers[0].public, 1..1 + ORDERS).await;
        let left = async || fixture.mariadb.number("SELECT COUNT(*) FROM orders WHERE state <> 2");
        until("the first time-out", async || {
            (left().await < i64::try_from(ORDERS).unwrap()).then_some(())
        })
        .await;
        let mut num_pauses = 0;
        while left().await > 0 || num_pauses < 4 {
            let paused = &servers[num_pauses % 2];
            paused.stop();
            // Three times as long as a lease, at an arbitrary moment of its work.
            tokio::time::sleep(Duration::from_millis(600 + fastrand::u64(..50))).await;
            paused.cont();
            num_pauses += 1;
            assert!(num_pauses < 100, "orders are still due");
        }
        until_free(&servers[0], "sale", ORDERS).await;
        let [one, other] = [timed_out(&servers[0]).await, timed_out(&servers[1]).await];
        println!("{one} and {other} orders ended in {num_pauses} pauses");
        assert_eq!(one + other, ORDERS, "each order ended in one process");
        assert_eq!(fixture.mariadb.number("SELECT COUNT(*) FROM order_events WHERE kind = 2"), 400);
        fixture.check(servers[1].internal, &history, ORDERS).await;
        // Sold again, each once.
        let more = sell(servers[1].public, 1_001..1_001 + ORDERS).await;
        let num_sold = more.purchases.iter().filter(|attempt| attempt.is_promise()).count();
        assert!(num_sold as u64 >= ORDERS, "{num_sold}");
    });
}
