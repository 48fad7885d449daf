//! The life of orders beside sales: many that are due at once, and the purge of a large sale; and
//! the feed of their events.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
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
use loadgen::{Load, Until, run};
use serde_json::Value as Json;
use testkit::rabbitmq;

use crate::harness::{ENDLESS, Harness, Product, newly_accepted};
use crate::process::poll;
use crate::servers::{Servers, maria, new_ledger, rabbit};
use crate::stats::{grouped, per_second, whole};
use crate::stores::{BATCH_MAX, Offer, Stores, settings, stock_for};

/// Orders of rounds of four seconds and more: due at once or with events, and purged.
const ORDERS_MAX: u64 = 100_000;
const PURGED_MAX: u64 = 1_000_000;
/// Sales beside orders that end, and beside a purge, as a share of the rate before.
const BESIDE_DUE: f64 = 0.85;
const BESIDE_PURGE: f64 = 0.5;
/// Longer than anything that is measured beside sales.
const SALES_LIMIT: Duration = Duration::from_hours(1);
/// Longest time to sell what will be due: the orders are due within as much.
const DUE_WITHIN: Duration = Duration::from_mins(1);
/// Beyond the time to sell, so that no order ends before the last one is placed.
const WINDOW_EXTRA_S: u64 = 5;
const RETURN_LIMIT: Duration = Duration::from_mins(10);
/// Limit of the time until the last order is in the ledger, and its event is read.
const SETTLED_TIMEOUT: Duration = Duration::from_mins(10);
/// Events of one page of a reader.
const PAGE: u32 = 1_000;
/// Unconfirmed messages of the publisher.
const CONFIRM_WINDOW: usize = 512;

/// Sales of an endless stock, beside which something else is measured.
struct Sales<'a> {
    product: &'a Product,
    sale: String,
    load: Load,
    /// Purchases per second without anything beside them.
    before: f64,
}

impl<'a> Sales<'a> {
    /// Opens a sale and measures its rate.
    async fn open(harness: &mut Harness, product: &'a Product) -> Result<Self> {
        let sale = harness.sale(product, ENDLESS).await?;
        let load = harness.load(&product.server, &sale);
        let before = harness.measure(Some(product), load.clone()).await?.goodput();
        ensure!(before > 0.0, "no purchase was accepted");
        Ok(Self { product, sale, load, before })
    }

    /// Does `work` while buyers try to buy at this rate, and closes the sale.
    async fn beside<T>(&self, per_second: f64, work: impl Future<Output = Result<T>>) -> Result<T> {
        let load = Harness::open(self.load.clone(), per_second);
        let done = tokio::select! {
            sold = run(Load { until: Until::Elapsed(SALES_LIMIT), ..load }) => {
                sold?;
                Err(anyhow!("the sales ended first"))
            }
            done = work => done,
        };
        self.product.admin.close_sale(&self.sale).await?;
        done
    }
}

/// Does `work`; returns its result, its time, and the orders that the server committed per second
/// meanwhile.
async fn placed_during<T>(
    product: &Product,
    work: impl Future<Output = Result<T>>,
) -> Result<(T, Duration, f64)> {
    let (before, begun) = (product.placed().await?, now_monotonic());
    let done = work.await?;
    let elapsed = now_monotonic().duration_since(begun);
    Ok((done, elapsed, per_second(product.placed().await? - before, elapsed)))
}

/// The time until every unit is back, and the sales meanwhile.
pub async fn due(harness: &mut Harness) -> Result<()> {
    let servers = Servers::gate(harness)?;
    let product = servers.product(harness, "due", &[]).await?;
    let orders = harness.up_to(ORDERS_MAX);
    for _ in 0..harness.args.rounds {
        returned(harness, &product, orders).await?;
    }
    Ok(())
}

/// One round: orders that are due at once, and the sales from the first deadline until ledger and
/// buckets have every unit back.
async fn returned(harness: &mut Harness, product: &Product, orders: u64) -> Result<()> {
    let ended_before = ended(product).await?;
    let sales = Sales::open(harness, product).await?;
    let window_s = whole(orders as f64 * 1.5 / sales.before) + WINDOW_EXTRA_S;
    let (due, stock) = (format!("{}-due", sales.sale), stock_for(orders)?);
    product.admin.open_sale(&due, stock, window_s).await?;
    let window = Duration::from_secs(window_s);
    let first_due = now_monotonic() + window;
    let accepted = newly_accepted(&harness.fill(&product.server, &due, orders).await?);
    let last_due = now_monotonic() + window;
    let within = last_due - first_due;
    ensure!(within <= DUE_WITHIN, "{orders} orders took {within:?} to place: use fewer --seconds");

    let returning = Box::pin(units_back(product, &due, stock, first_due));
    let (back, during) = sales.beside(sales.before * BESIDE_DUE, returning).await?;
    let after_s = back.saturating_duration_since(last_due).as_secs_f64();
    let ended = ended(product).await? - ended_before;
    harness.void_unless(ended >= accepted, || {
        format!("{due}: {accepted} accepted, only {ended} ended")
    });
    for sale in [&due, &sales.sale] {
        harness.audit(&product.admin, Some(sale)).await?;
    }
    product.admin.close_sale(&due).await?;
    let remark = format!(
        "{} orders due within {:.1} s, back {after_s:.1} s after the last deadline; {}/s sold \
         meanwhile, {}/s before",
        grouped(accepted as f64),
        within.as_secs_f64(),
        grouped(during),
        grouped(sales.before)
    );
    harness.number("due", after_s);
    harness.pair("due sales", during, sales.before);
    harness.remark("due", remark);
    Ok(())
}

/// When ledger and buckets had every unit of a sale back, and the orders that the server committed
/// per second from `begin` until then.
async fn units_back(
    product: &Product,
    sale: &str,
    stock: u32,
    begin: Instant,
) -> Result<(Instant, f64)> {
    tokio::time::sleep(begin.saturating_duration_since(now_monotonic())).await;
    let is_back = async || {
        let left = product.admin.left(sale).await?;
        Ok((now_monotonic(), left == (u64::from(stock), u64::from(stock))))
    };
    let ((back, is_back), _, during) = placed_during(product, poll(RETURN_LIMIT, is_back)).await?;
    ensure!(is_back, "{sale}: units are missing after {RETURN_LIMIT:?}");
    Ok((back, during))
}

/// Orders that ended unpaid since the server's start.
async fn ended(product: &Product) -> Result<u64> {
    Ok(product.admin.metrics().await?.count("floodgate_orders_timed_out_total"))
}

/// The longest transaction of a purge, by the server's own clock; the client is this executable.
pub async fn purge(harness: &mut Harness) -> Result<()> {
    let servers = Servers::gate(harness)?;
    let product = servers.product(harness, "purge", &[]).await?;
    let orders = harness.up_to(PURGED_MAX);
    for _ in 0..harness.args.rounds {
        purged(harness, &product, orders).await?;
    }
    Ok(())
}

/// One round: archives a sale, and purges it while another one sells.
async fn purged(harness: &mut Harness, product: &Product, orders: u64) -> Result<()> {
    let old = harness.new_name();
    product.admin.open_sale(&old, ENDLESS, 0).await?;
    let accepted = newly_accepted(&harness.fill(&product.server, &old, orders).await?);
    harness.check(&product.admin, &old, accepted).await?;
    product.admin.close_sale(&old).await?;
    let is_settled = product.admin.await_archivable(&old, SETTLED_TIMEOUT).await?;
    ensure!(is_settled, "{old}: cannot be archived after {SETTLED_TIMEOUT:?}");
    let folder = testkit::folder(&harness.args.parent())?;
    let archive = folder.path().to_str().context("a path that is not text")?;
    product.server.command(&["sale", "archive", &old, "--to", archive]).await?;

    let sales = Sales::open(harness, product).await?;
    let offered = sales.before * BESIDE_PURGE;
    let arguments = ["sale", "purge", &old, "--archive", archive];
    let purging = placed_during(product, product.server.command(&arguments));
    let (purged, elapsed, during) = sales.beside(offered, purging).await?;
    let count = |name| purged.get(name).and_then(Json::as_u64).context("an answer without counts");
    let (rows, longest_ms) = (count("num_rows")?, count("longest_ms")?);
    harness.void_unless(rows >= accepted, || format!("{old}: {rows} rows of {accepted} orders"));
    for sale in [&old, &sales.sale] {
        harness.audit(&product.admin, Some(sale)).await?;
    }
    let remark = format!(
        "{} orders archived, and purged in {:.0} s; {}/s of {}/s sold meanwhile, {}/s at \
         most before",
        grouped(accepted as f64),
        elapsed.as_secs_f64(),
        grouped(during),
        grouped(offered),
        grouped(sales.before)
    );
    harness.number("purge", longest_ms as f64);
    harness.remark("purge", remark);
    Ok(())
}

/// Events per second, read as pages by one reader, and published to RabbitMQ; the events get their
/// numbers on the way.
pub async fn feed(harness: &mut Harness) -> Result<()> {
    let (maria, rabbit) = (maria(harness)?, rabbit(harness)?);
    let events = harness.up_to(ORDERS_MAX);
    for round in 1..=harness.args.rounds {
        for (id, with_broker) in [("feed", false), ("feed broker", true)] {
            let ledger = new_ledger(&maria).await?;
            let stores = Stores::open(&["tier=ledger".to_owned(), ledger.clone()]).await?;
            let offer = with_events(&stores, events).await?;
            let catalog = Arc::new(Catalog::default());
            stores.ledger.sales().await?.iter().for_each(|sale| catalog.put(sale));
            let (clock, name) = (SystemClock::shared(), "bench".into());
            let feed = OrderFeed::new(Arc::clone(&stores.ledger), catalog, clock, name);
            let begun = now_monotonic();
            let moved = if with_broker {
                let set = [
                    "tier=pipeline".to_owned(),
                    format!("namespace=feed{round}"),
                    ledger,
                    // The tier demands a gate; the publisher never connects to it.
                    "redis.url=redis://127.0.0.1:1".to_owned(),
                    "events.exchange=true".to_owned(),
                    format!("amqp.url={}", rabbitmq::url(rabbit.addr())),
                ];
                let broker = RabbitBroker::new(broker_options(&settings(&set)?)?)?;
                publish(&stores, feed, Arc::new(broker)).await?
            } else {
                read_all(&feed).await?
            };
            let elapsed = now_monotonic().duration_since(begun);
            harness.void_unless(moved == events, || {
                format!("{}: {events} events, {moved} moved", offer.sale)
            });
            offer.audit(harness, false).await?;
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
        stores.place(batch.to_vec()).await?;
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

async fn read_all(feed: &OrderFeed) -> Result<u64> {
    let (mut after, mut read) = (0, 0);
    loop {
        let page = feed.page(after, PAGE, Duration::ZERO, || true).await?;
        let Some(last) = page.last() else { return Ok(read) };
        after = last.feed_no;
        read += page.len() as u64;
    }
}

async fn publish(stores: &Stores, feed: OrderFeed, broker: Arc<RabbitBroker>) -> Result<u64> {
    let metrics = Arc::new(Metrics::default());
    let clock = SystemClock::shared();
    let lease: Arc<dyn Lease> = Arc::new(SoleLease::new(Arc::clone(&clock)));
    let publisher = EventPublisher {
        feed,
        ledger: Arc::clone(&stores.ledger),
        publisher: broker,
        lease: TaskLease::new(&lease, "event_publisher", 60_000, &clock),
        window: CONFIRM_WINDOW,
        metrics: Arc::clone(&metrics),
    };
    publisher.run(&()).await.map_err(|error| anyhow!(error).context("publishing"))?;
    Ok(metrics.events_published.get())
}
