//! Two processes that number order events, one of them paused inside its transaction.

use floodgate::db::mysql::{MysqlLedger, MysqlOptions};
use floodgate::db::{OrderChanges, OrderWriter};
use floodgate::domain::{OrderEvent, OrderKey, Sku};
use futures_util::future::join_all;

use crate::support::offers::{ANY, intent, open_offer, order_events, run};
use crate::support::servers::mariadb::MariaDb;

const ORDERS: u64 = 40;

/// The ledger of one process, with time-outs longer than the pause.
fn open(server: &MariaDb) -> MysqlLedger {
    let options = MysqlOptions {
        lock_wait_timeout_s: 60,
        statement_timeout_ms: 60_000,
        job_deadline_ms: 60_000,
        ..server.options()
    };
    MysqlLedger::open(&options).unwrap()
}

fn key(sku: &Sku, number: u64) -> OrderKey {
    let intent = intent(sku, number, number, 1);
    OrderKey { sku: intent.sku, buyer: intent.buyer, request: intent.request }
}

async fn feed(ledger: &MysqlLedger) -> Vec<OrderEvent> {
    order_events(ledger, 0, 1_000).await
}

#[test]
fn a_sequencer_paused_inside_its_transaction_leaves_no_gap_and_no_reorder() {
    run(async {
        let server = MariaDb::start();
        let [paused, other, writer] = [open(&server), open(&server), open(&server)];
        let sku = open_offer(&writer, "sale", ANY, 1_000).await;
        for number in 1..=ORDERS {
            let batch = vec![intent(&sku, number, number, 1)];
            assert!(writer.place(batch).await.unwrap().is_some());
        }
        // Of the rows that get numbers, this one is locked: the first sequencer waits for it with
        // the counter in its hands.
        let session = server.session();
        session.sql("BEGIN");
        session.sql("SELECT * FROM order_events WHERE request_id = 7 AND version = 0 FOR UPDATE");
        let pausing = async {
            server.until_row_lock_wait().await;
            // Committed while no number can be given: none of the orders is passed by.
            for number in 1..=ORDERS / 2 {
                writer.cancel(key(&sku, number * 2)).await.unwrap();
            }
            assert_eq!(feed(&writer).await, [], "no reader sees a part of a transaction");
            session.sql("COMMIT");
        };
        let numbering = async |ledger: &MysqlLedger| {
            let mut numbered = ledger.number_events(15).await.unwrap();
            while numbered < u32::try_from(ORDERS + ORDERS / 2).unwrap() {
                let more = ledger.number_events(15).await.unwrap();
                if more == 0 {
                    break;
                }
                numbered += more;
            }
            numbered
        };
        let (first, second, ()) = tokio::join!(numbering(&paused), numbering(&other), pausing);
        assert!(first > 0, "the paused one went on: {first} and {second}");

        let events = feed(&writer).await;
        let all = i64::try_from(ORDERS + ORDERS / 2).unwrap();
        let numbers: Vec<i64> = events.iter().map(|event| event.feed_no).collect();
        assert_eq!(numbers, (1..=all).collect::<Vec<_>>());
        for number in 1..=ORDERS {
            let of_order = events.iter().filter(|event| event.order.key() == key(&sku, number));
            let versions: Vec<u16> = of_order.map(|event| event.order.version).collect();
            assert_eq!(versions, if number % 2 == 0 { vec![0, 1] } else { vec![0] }, "{number}");
        }
    });
}

#[test]
fn processes_that_move_one_cursor_do_not_deadlock() {
    run(async {
        let server = MariaDb::start_with(&["--innodb-flush-log-at-trx-commit=0"]);
        let ledgers = [open(&server), open(&server)];
        for round in 1..=100 {
            let moves = (0..8).map(|number| {
                let ledger = &ledgers[number % 2];
                ledger.move_cursor("returner", round * 8 + i64::try_from(number).unwrap())
            });
            for moved in join_all(moves).await {
                moved.unwrap();
            }
        }
        assert_eq!(ledgers[0].cursor("returner").await.unwrap(), 807);
    });
}
