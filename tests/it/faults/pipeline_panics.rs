//! Injected panics in the actors of the pipeline: C22, and C04 as far as workers panic.

use crate::support::admin::panics;
use crate::support::pipeline::PipelineFixture;
use crate::support::shop::Shop;
use crate::support::wait::{until, until_true};

const KINDS: [&str; 4] =
    ["outbox_relay", "order_consumer", "orphan_rescuer", "dead_letter_collector"];

/// Actor kinds with the percentage of their steps that panic: actors with steps for every order,
/// and one with periodic steps only.
const STORMS: [(&[&str], &str); 2] = [
    (&["outbox_relay", "order_consumer", "orphan_rescuer"], "1"),
    (&["dead_letter_collector"], "25"),
];

async fn storm(
    fixture: &PipelineFixture,
    shop: &mut Option<Shop>,
    (kinds, percent): (&[&str], &str),
) {
    let names = kinds.join(",");
    let keys = [
        ("faults.panic_in", names.as_str()),
        ("faults.panic_percent", percent),
        ("supervisor.restarts_max", "100000"),
        ("supervisor.backoff_min_ms", "1"),
        ("supervisor.backoff_max_ms", "5"),
        ("maintenance.rescue_every_ms", "10"),
        ("outbox.envelope_max", "1"),
        ("relay.claim_max", "8"),
    ];
    let server = fixture.server("all", &keys);
    if shop.is_none() {
        *shop = Some(Shop::open(server.internal, 20_000).await);
    }
    let shop = shop.as_mut().unwrap();
    until("panics of every kind", async || {
        shop.sell(server.public, 100).await;
        fixture.drained(server.internal).await;
        for kind in kinds {
            if panics(server.internal, kind).await? == 0 {
                return None;
            }
        }
        Some(())
    })
    .await;
    shop.check(fixture, server.internal).await;
}

/// The process exits and names the actor that failed.
fn every_step(fixture: &PipelineFixture) {
    for kind in KINDS {
        let keys = [
            ("faults.panic_in", kind),
            ("faults.panic_percent", "100"),
            ("supervisor.backoff_max_ms", "100"),
            ("shutdown.deadline_ms", "2000"),
        ];
        let mut server = fixture.server("all", &keys);
        until_true("the end of the process", || !server.is_running());
        let code = server.wait().code();
        let log = server.log();
        assert_eq!(code, Some(6), "{kind}: {log}");
        assert!(log.contains(kind) && log.contains("is down"), "{kind}: {log}");
    }
}

fn panic_storm(outbox: &str) {
    let fixture = PipelineFixture::new(outbox);
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let mut shop = None;
        for one in STORMS {
            storm(&fixture, &mut shop, one).await;
        }
        every_step(&fixture);
        let server = fixture.server("all", &[]);
        let mut shop = shop.unwrap();
        shop.sell(server.public, 100).await;
        shop.check(&fixture, server.internal).await;
    });
}

#[test]
fn panics_lose_nothing_with_a_list() {
    panic_storm("list");
}

#[test]
fn panics_lose_nothing_with_a_stream() {
    panic_storm("stream");
}
