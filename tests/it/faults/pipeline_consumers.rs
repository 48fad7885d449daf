//! A broker with a memory alarm (C09), consumers that crash with unacknowledged deliveries (C10).

use std::time::Duration;

use crate::support::admin::stage;
use crate::support::gate::metric;
use crate::support::pipeline::PipelineFixture;
use crate::support::process::Server;
use crate::support::random::number_from_env;
use crate::support::servers::rabbitmq::Alarm;
use crate::support::shop::Shop;
use crate::support::wait::{until, until_true};

const ORDERS: &str = "fg.orders.0";

/// More than a process of the test build needs, far less than one that buffers unsent messages.
const RESIDENT_KIB_MAX: u64 = 400 * 1024;

fn resident_kib(server: &Server) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

fn ready(fixture: &PipelineFixture) -> u32 {
    fixture.rabbit.num_ready(ORDERS).unwrap()
}

/// C09.
fn memory_alarm(outbox: &str) {
    let fixture = PipelineFixture::new(outbox)
        .with("outbox.envelope_max", "1")
        .with("relay.confirm_timeout_ms", "500");
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let server = fixture.server("all", &[]);
        let mut shop = Shop::open(server.internal, 6_000).await;
        // The ledger hangs, so that messages wait.
        fixture.mariadb.stop();
        shop.sell(server.public, 1_500).await;
        until_true("messages in the queue", || ready(&fixture) > 300);
        fixture.rabbit.alarm(Alarm::Memory, true);
        shop.sell(server.public, 500).await;
        fixture.mariadb.cont();
        // More messages wait than the prefetch permits: acknowledgements are needed for the rest.
        until_true("acknowledgements during the alarm", || ready(&fixture) == 0);
        until("a publish failure", async || {
            let failures = metric(server.internal, "floodgate_relay_failures", "").await;
            (failures > 0).then_some(())
        })
        .await;
        shop.sell(server.public, 1_000).await;
        let waiting = stage(server.internal, "sale", "outbox").await
            + stage(server.internal, "sale", "relay").await;
        assert!(waiting >= 500, "{waiting} entries wait");
        assert_eq!(stage(server.internal, "sale", "failed").await, 0);
        assert!(
            stage(server.internal, "sale", "unsettled").await >= waiting,
            "units stay reserved"
        );
        let resident = resident_kib(&server);
        assert!(resident < RESIDENT_KIB_MAX, "{resident} KiB");
        fixture.rabbit.alarm(Alarm::Memory, false);
        let verdict = shop.check(&fixture, server.internal).await;
        assert_eq!((verdict.acknowledged, verdict.ok), (3_000, 3_000));
        assert!(fixture.open_dead_letters(server.internal).is_empty());
    });
}

#[test]
fn a_memory_alarm_costs_nothing_with_a_list() {
    memory_alarm("list");
}

#[test]
fn a_memory_alarm_costs_nothing_with_a_stream() {
    memory_alarm("stream");
}

/// C10.
#[test]
fn killed_consumers_lose_nothing() {
    let seed = number_from_env("FLOODGATE_CHAOS_SEED").unwrap_or_else(|| fastrand::u64(..));
    println!("seed={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let fixture = PipelineFixture::new("list");
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let [maintenance, api, _relay] =
            ["maintenance", "api", "relay"].map(|role| fixture.server(role, &[]));
        let one_by_one = [("consumer.batch_max", "1")];
        let mut consumer = fixture.server("consumer", &one_by_one);
        let mut shop = Shop::open(maintenance.internal, 10_000).await;
        for round in 0..6 {
            let crowd = shop.crowd(api.public, 600);
            // Not a wait for a condition: the moment of the kill is meant to be arbitrary.
            tokio::time::sleep(Duration::from_millis(random.u64(5..400))).await;
            consumer.kill();
            consumer = fixture.server("consumer", if round % 2 == 0 { &[] } else { &one_by_one });
            shop.settle(api.public, crowd).await;
        }
        // One kill is certain to leave unacknowledged deliveries.
        fixture.mariadb.stop();
        shop.sell(api.public, 200).await;
        until_true("unacknowledged deliveries", || {
            let args = ["list_queues", "--no-table-headers", "name", "messages_unacknowledged"];
            let listed = fixture.rabbit.ctl(&args);
            let of_orders = |line: &str| {
                let count = line.strip_prefix(ORDERS)?.trim().parse::<u64>().ok()?;
                (count > 0).then_some(())
            };
            listed.lines().any(|line| of_orders(line).is_some())
        });
        consumer.kill();
        fixture.mariadb.cont();
        consumer = fixture.server("consumer", &[]);
        let verdict = shop.check(&fixture, maintenance.internal).await;
        assert_eq!(verdict.acknowledged, verdict.ok);
        let num_redelivered = metric(consumer.internal, "floodgate_consumer_redelivered", "").await;
        assert!(num_redelivered > 0, "unacknowledged deliveries were redelivered");
        assert!(fixture.open_dead_letters(maintenance.internal).is_empty());
    });
}
