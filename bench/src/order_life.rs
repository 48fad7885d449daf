//! The life of orders: many that are due at once while sales go on, and the feed of their events.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, anyhow, ensure};
use floodgate::actors::EventPublisher;
use floodgate::actors::periodic::Task;
use floodgate::broker::RabbitBroker;
use floodgate::domain::{OrderIntent, OrderKey};
use floodgate::lease::{Lease, SoleLease, TaskLease};
use floodgate::observe::metrics::Metrics;
use floodgate::runtime::clock::{SystemClock, now_monotonic};
use floodgate::services::catalog::Catalog;
use floodgate::services::order_feed::OrderFeed;
use floodgate::tier::broker_options;
use testkit::rabbitmq;

use crate::crowd::{BATCH_MAX, Offer, place, stock_for};
use crate::harness::{ENDLESS, Harness, Product, newly_accepted};
use crate::process::poll;
use crate::servers::{GateTier, maria, new_database, rabbit};
use crate::stats::{grouped, per_second, whole};
use crate::stores::{self, Stores, settings};

/// Orders of rounds of four seconds and more.
const ORDERS_MAX: u64 = 100_000;
/// Sales while orders end, as a share of the rate before.
const OFFERED: f64 = 0.85;
/// Longest time to sell what will be due: the orders are due within as much.
const DUE_WITHIN: Duration = Duration::from_mins(1);
/// Beyond the time to sell, so that no order ends before the last one is placed.
const WINDOW_EXTRA_S: u64 = 5;
const RETURN_LIMIT: Duration = Duration::from_mins(10);
/// Events of one page of a reader.
const PAGE: u32 = 1_000;
/// Unconfirmed messages of the publisher.
const CONFIRM_WINDOW: usize = 512;

/// The time until every unit is back, and the sales meanwhile.
pub async fn due(harness: &mut Harness) -> Result<()> {
    let tier = GateTier::start(harness).await?;
    let orders = harness.up_to(ORDERS_MAX);
    for _ in 0..harness.args.rounds {
        returned(harness, &tier.product, orders).await?;
    }
    Ok(())
}

/// One round: orders that are due at once, and the sales from the first deadline until ledger and
/// buckets have every unit back.
async fn returned(harness: &mut Harness, product: &Product, orders: u64) -> Result<()> {
    let ended_before = ended(product).await?;
    let sale = harness.sale(product, ENDLESS).await?;
    let load = harness.load(&product.server, &sale);
    let before = harness.measure(Some(product), load.clone()).await?.goodput();
    ensure!(before > 0.0, "no purchase was accepted");

    let window_s = whole(orders as f64 * 1.5 / before) + WINDOW_EXTRA_S;
    let due = format!("{sale}-due");
    let stock = stock_for(orders)?;
    product.admin.open_sale(&due, stock, harness.args.buckets, window_s).await?;
    let window = Duration::from_secs(window_s);
    let first_due = now_monotonic() + window;
    let accepted = newly_accepted(&harness.fill(&product.server, &due, orders).await?);
    let last_due = now_monotonic() + window;
    let within = last_due - first_due;
    ensure!(within <= DUE_WITHIN, "{orders} orders took {within:?} to place: use fewer --seconds");

    let watching = Box::pin(async {
        tokio::time::sleep(first_due.saturating_duration_since(now_monotonic())).await;
        let is_back = async || {
            let left = product.admin.left(&due).await?;
            Ok((now_monotonic(), left == (u64::from(stock), u64::from(stock))))
        };
        product.placed_during(poll(RETURN_LIMIT, is_back)).await
    });
    let watched = Harness::while_selling(load, before * OFFERED, watching).await?;
    let ((back, is_back), _, during) = watched;
    ensure!(is_back, "{due}: units are missing after {RETURN_LIMIT:?}");
    let after_s = back.saturating_duration_since(last_due).as_secs_f64();
    product.admin.close_sale(&sale).await?;
    let ended = ended(product).await? - ended_before;
    harness.void_unless(ended >= accepted, || {
        format!("{due}: {accepted} accepted, only {ended} ended")
    });
    harness.void_on_violations(&due, &product.admin.audit(Some(&due)).await?);
    product.admin.close_sale(&due).await?;
    let remark = format!(
        "{} orders due within {:.1} s, back {after_s:.1} s after the last deadline; {}/s sold \
         meanwhile, {}/s before",
        grouped(accepted as f64),
        within.as_secs_f64(),
        grouped(during),
        grouped(before)
    );
    harness.number("due", after_s);
    harness.pair("due sales", during, before);
    harness.remark("due", remark);
    Ok(())
}

/// Orders that ended unpaid since the server's start.
async fn ended(product: &Product) -> Result<u64> {
    Ok(product.admin.metrics().await?.count("floodgate_orders_timed_out_total"))
}

/// Events per second, read as pages by one reader, and published to RabbitMQ; the events get their
/// numbers on the way.
pub async fn feed(harness: &mut Harness) -> Result<()> {
    let (maria, rabbit) = (maria(harness)?, rabbit(harness)?);
    let events = harness.up_to(ORDERS_MAX);
    for round in 1..=harness.args.rounds {
        for (id, with_broker) in [("feed", false), ("feed broker", true)] {
            let url = format!("ledger.url={}", new_database(&maria).await?);
            let stores = stores::open(&settings(&["tier=ledger".to_owned(), url.clone()])?).await?;
            let offer = with_events(&stores, events).await?;
            let catalog = Arc::new(Catalog::default());
            stores.ledger.sales().await?.iter().for_each(|sale| catalog.put(sale));
            let begun = now_monotonic();
            let moved = if with_broker {
                let set = [
                    "tier=pipeline".to_owned(),
                    format!("namespace=feed{round}"),
                    url,
                    // The tier demands a gate; the publisher never connects to it.
                    "redis.url=redis://127.0.0.1:1".to_owned(),
                    "events.exchange=true".to_owned(),
                    format!("amqp.url={}", rabbitmq::url(rabbit.addr())),
                ];
                let broker = Arc::new(RabbitBroker::new(broker_options(&settings(&set)?)?)?);
                publish(&stores, catalog, broker).await?
            } else {
                read_all(&stores, catalog).await?
            };
            let elapsed = now_monotonic().duration_since(begun);
            harness.void_unless(moved == events, || {
                format!("{}: {events} events, {moved} moved", offer.sale)
            });
            let violations = stores.violations(&offer.sale, false).await?;
            harness.void_on_violations(offer.sale.as_str(), &violations);
            stores.ledger.close().await;
            harness.number(id, per_second(moved, elapsed));
        }
    }
    let remark = format!("{} events, half of them placements", grouped(events as f64));
    harness.remark("feed", remark);
    Ok(())
}

/// A sale with this number of events without numbers: half placements, half ends.
async fn with_events(stores: &Stores, events: u64) -> Result<Offer> {
    let offer = Offer::open(stores, stock_for(events)?, 1).await?;
    let mut intents = offer.intents(usize::try_from(events / 2)?)?;
    for intent in &mut intents {
        intent.payment_window_s = 1;
    }
    for batch in intents.chunks(BATCH_MAX) {
        place(stores, batch.to_vec()).await?;
    }
    let keys: Vec<OrderKey> = intents.iter().map(OrderIntent::key).collect();
    // Longer than their window.
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    let mut num_ended = 0;
    for batch in keys.chunks(BATCH_MAX) {
        num_ended += stores.ledger.end_due(batch.to_vec(), 0).await?.len();
    }
    ensure!(num_ended == keys.len(), "{num_ended} of {} orders ended", keys.len());
    Ok(offer)
}

fn order_feed(stores: &Stores, catalog: Arc<Catalog>) -> OrderFeed {
    OrderFeed::new(Arc::clone(&stores.ledger), catalog, SystemClock::shared(), "bench".into())
}

async fn read_all(stores: &Stores, catalog: Arc<Catalog>) -> Result<u64> {
    let feed = order_feed(stores, catalog);
    let (mut after, mut read) = (0, 0);
    loop {
        let page = feed.page(after, PAGE, Duration::ZERO, || true).await?;
        let Some(last) = page.last() else { return Ok(read) };
        after = last.feed_no;
        read += page.len() as u64;
    }
}

async fn publish(stores: &Stores, catalog: Arc<Catalog>, broker: Arc<RabbitBroker>) -> Result<u64> {
    let metrics = Arc::new(Metrics::default());
    let clock = SystemClock::shared();
    let lease: Arc<dyn Lease> = Arc::new(SoleLease::new(Arc::clone(&clock)));
    let publisher = EventPublisher {
        feed: order_feed(stores, catalog),
        ledger: Arc::clone(&stores.ledger),
        publisher: broker,
        lease: TaskLease::new(&lease, "event_publisher", 60_000, &clock),
        window: CONFIRM_WINDOW,
        metrics: Arc::clone(&metrics),
    };
    publisher.run(&()).await.map_err(|error| anyhow!(error).context("publishing"))?;
    Ok(metrics.events_published.get())
}
