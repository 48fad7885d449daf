//! Queues, bindings and exchanges that are deleted under load: C08.

use lapin::types::FieldTable;

use crate::support::pipeline::PipelineFixture;
use crate::support::process::Server;
use crate::support::shop::Shop;
use crate::support::wait::until;

const BUYERS: u32 = 2_000;
const QUEUE: &str = "fg.orders.0";
const EXCHANGE: &str = "fg.intents";

#[derive(Debug, Clone, Copy)]
enum Deleted {
    Queue,
    Binding,
    Exchange,
}

impl Deleted {
    async fn apply(self, fixture: &PipelineFixture) {
        match self {
            Self::Queue => fixture.rabbit.delete_queue(QUEUE),
            Self::Exchange => fixture.rabbit.delete_exchange(EXCHANGE),
            Self::Binding => fixture.rabbit.with_channel(async |channel| {
                let none = FieldTable::default();
                channel
                    .queue_unbind(QUEUE.into(), EXCHANGE.into(), "0".into(), none)
                    .await
                    .unwrap();
            }),
        }
    }
}

/// The messages in a deleted queue were confirmed, so no relay holds their entries any more: only
/// the stock still has the requests.
async fn deleted_under_load(
    fixture: &PipelineFixture,
    shop: &mut Shop,
    server: &Server,
    deleted: Deleted,
) {
    println!("{deleted:?}");
    fixture.mariadb.stop();
    let crowd = shop.crowd(server.public, BUYERS.into());
    until("messages in the queue", async || (fixture.rabbit.num_ready(QUEUE)? > 50).then_some(()))
        .await;
    deleted.apply(fixture).await;
    fixture.mariadb.cont();
    shop.settle(server.public, crowd).await;
    fixture.drained(server.internal).await;
}

fn things_are_deleted(outbox: &str) {
    let fixture = PipelineFixture::new(outbox);
    let keys =
        [("outbox.envelope_max", "1"), ("relay.claim_max", "512"), ("relay.confirm_window", "512")];
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let server = fixture.server("all", &keys);
        let mut shop = Shop::open(server.internal, 20_000).await;
        for deleted in [Deleted::Queue, Deleted::Binding, Deleted::Exchange] {
            deleted_under_load(&fixture, &mut shop, &server, deleted).await;
        }
        let verdict = shop.check(&fixture, server.internal).await;
        assert_eq!(verdict.acknowledged, 3 * BUYERS as usize, "{verdict}");
    });
}

#[test]
fn deleting_loses_nothing_with_a_list() {
    things_are_deleted("list");
}

#[test]
fn deleting_loses_nothing_with_a_stream() {
    things_are_deleted("stream");
}
