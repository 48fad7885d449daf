//! What every stock promises, as one suite. A backend joins by implementing [`Backend`] and adding
//! a line to `backends!`; no case knows which backend it runs on.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use floodgate::config::{Settings, Tier};
use floodgate::domain::{
    BookSnapshot, BucketNo, Counting, Epoch, Failure, Order, OrderIntent, Phase, Policy, Refusal,
    RequestStatus, Reservation, Sku, SkuNo, TraceId, Verdict,
};
use floodgate::redis::scripts::{Installation, OutboxArgs};
use floodgate::stock::redis::RedisOptions;
use floodgate::stock::{BucketKey, LoaderToken, MemoryStock, RedisStock, Stock, StoredRequest};
use floodgate::tier::links;

use crate::support::offers::{buyer, request, run};
use crate::support::servers::cluster::Cluster;
use crate::support::servers::redis::Redis;

mod loading;
mod moving;
mod outbox;
mod reading;
mod reserving;
mod settling;
mod trust;

/// A store that outlives the stocks opened on it; a fresh one for each case.
#[async_trait(?Send)]
pub trait Backend {
    /// A stock on the store, as one process has it. Where the store can be shared, each is another
    /// process's; where it cannot, there is one stock.
    async fn open(&self) -> Arc<dyn Stock>;

    /// How the intent of an accepted request comes back.
    fn unsettled(&self, ask: &Reservation, sku: &Sku) -> OrderIntent {
        ask.intent(sku)
    }
}

/// The memory of this process.
struct Memory {
    stock: Arc<MemoryStock>,
}

impl Memory {
    fn fresh() -> Self {
        Self { stock: Arc::new(MemoryStock::new(Counting::Here)) }
    }
}

#[async_trait(?Send)]
impl Backend for Memory {
    async fn open(&self) -> Arc<dyn Stock> {
        self.stock.clone()
    }
}

/// One server.
struct SingleRedis {
    redis: Redis,
    outbox: OutboxArgs,
}

impl SingleRedis {
    fn fresh(outbox: OutboxArgs) -> Self {
        Self { redis: Redis::start(), outbox }
    }
}

#[async_trait(?Send)]
impl Backend for SingleRedis {
    async fn open(&self) -> Arc<dyn Stock> {
        on_redis(&self.redis.url(), "test", self.outbox)
    }

    fn unsettled(&self, ask: &Reservation, sku: &Sku) -> OrderIntent {
        let intent = ask.intent(sku);
        match self.outbox {
            OutboxArgs::None => intent,
            // The trace is in the outbox only.
            OutboxArgs::List(_) | OutboxArgs::Stream(_) => {
                OrderIntent { trace: TraceId(0), ..intent }
            }
        }
    }
}

/// Three masters that share the slots: the buckets of a SKU are on several of them. They take their
/// time to find each other, so that all cases run on one cluster, each under a name of its own.
struct ClusteredRedis<'a> {
    cluster: &'a Cluster,
    case: &'static str,
}

#[async_trait(?Send)]
impl Backend for ClusteredRedis<'_> {
    async fn open(&self) -> Arc<dyn Stock> {
        on_redis(&self.cluster.url(&[0, 1]), self.case, OutboxArgs::None)
    }
}

/// A stock on Redis, wherever its masters are.
fn on_redis(url: &str, namespace: &str, outbox: OutboxArgs) -> Arc<dyn Stock> {
    let mut settings = Settings::for_test("sqlite://unused.db");
    settings.tier = Tier::Gate;
    url.clone_into(&mut settings.redis.url);
    settings.redis.command_timeout_ms = 10_000;
    Arc::new(RedisStock::new(RedisOptions {
        links: links(&settings).unwrap(),
        namespace: namespace.to_owned(),
        installation: Installation(0xf100_d6a7),
        outbox,
        replicated: false,
        // Every look is a whole one.
        sold_out_refresh: Duration::ZERO,
    }))
}

const FIRST_LOAD: LoaderToken = LoaderToken(1);
const OPENING: Epoch = Epoch(1);
const ASKED_AT_MS: i64 = 1_790_000_000_000;

/// One SKU, as one process sells it.
struct Shop {
    stock: Arc<dyn Stock>,
    sku: Arc<Sku>,
}

fn sku(no: i32, policy: Policy, initial: u32, buckets: u16) -> Arc<Sku> {
    Arc::new(Sku {
        no: SkuNo(no),
        id: "sku".parse().unwrap(),
        title: "SKU".to_owned(),
        price: 250,
        initial,
        policy,
        buckets,
        payment_window_s: 900,
        bar_lapsed: false,
    })
}

impl Shop {
    /// An open SKU of which nothing was sold yet.
    async fn open(backend: &dyn Backend, policy: Policy, initial: u32, buckets: u16) -> Self {
        let shop = Self { stock: backend.open().await, sku: sku(1, policy, initial, buckets) };
        shop.load(FIRST_LOAD, initial, Vec::new(), Vec::new()).await;
        shop
    }

    /// The same SKU, as another process sells it.
    async fn elsewhere(&self, backend: &dyn Backend) -> Self {
        let other = Self { stock: backend.open().await, sku: self.sku.clone() };
        other.stock.condition(&other.sku, Phase::Open, OPENING).await.unwrap();
        other
    }

    /// Loads the rows and opens.
    async fn load(
        &self,
        loader: LoaderToken,
        available: u32,
        orders: Vec<Order>,
        failures: Vec<Failure>,
    ) {
        let size = orders.len() as u64;
        let mut loading = self.stock.load(self.sku.clone(), size, loader).await.unwrap();
        loading.clear().await.unwrap();
        loading.orders(orders).await.unwrap();
        loading.failures(failures).await.unwrap();
        loading.publish(available, Phase::Open, OPENING).await.unwrap();
    }

    fn key(&self, bucket: u16) -> BucketKey {
        BucketKey { sku: self.sku.no, bucket: BucketNo(bucket) }
    }

    /// The key of a reservation's bucket.
    fn home(&self, ask: &Reservation) -> BucketKey {
        self.key(ask.bucket.0)
    }

    fn ask(&self, request_no: u64, buyer_no: u64, quantity: u32) -> Reservation {
        let buyer = buyer(buyer_no);
        Reservation {
            request: request(request_no),
            sku: self.sku.no,
            bucket: BucketNo::home_of(buyer, self.sku.buckets),
            epoch: OPENING,
            buyer,
            quantity,
            asked_at_ms: ASKED_AT_MS,
            trace: TraceId(u128::from(request_no) << 64 | 7),
        }
    }

    /// Decides a batch, all of one bucket.
    async fn decide(&self, batch: &[Reservation]) -> Vec<Verdict> {
        self.stock.reserve(self.home(&batch[0]), batch.to_vec()).await.unwrap()
    }

    /// Decides one reservation.
    async fn reserve(&self, ask: Reservation) -> Verdict {
        self.decide(&[ask]).await[0]
    }

    /// Takes units for reservations that must be accepted.
    async fn take(&self, asks: &[Reservation]) {
        for ask in asks {
            assert_eq!(self.reserve(*ask).await, Verdict::Reserved, "{ask:?}");
        }
    }

    /// The order that a reservation becomes.
    fn order(&self, ask: &Reservation) -> Order {
        ask.intent(&self.sku).order()
    }

    async fn settle(&self, asks: &[Reservation]) {
        let orders = asks.iter().map(|ask| (ask.bucket, self.order(ask))).collect();
        self.stock.settle(orders).await.unwrap();
    }

    async fn release(&self, ask: &Reservation, reason: Refusal) {
        self.stock.release(self.home(ask), vec![failure(ask, reason)]).await.unwrap();
    }

    async fn turn(&self, phase: Phase, epoch: Epoch) {
        self.stock.turn(&self.sku, phase, epoch).await.unwrap();
    }

    async fn counts(&self, bucket: u16) -> BookSnapshot {
        self.stock.snapshot(self.key(bucket)).await.unwrap()
    }

    /// Free units of each bucket.
    async fn free(&self) -> Vec<u32> {
        let mut free = Vec::new();
        for bucket in 0..self.sku.buckets {
            free.push(self.counts(bucket).await.available);
        }
        free
    }

    /// Units free and under way.
    async fn units(&self) -> u64 {
        self.stock.facts(self.sku.no).await.unwrap().expect("it is loaded").left
    }

    async fn refresh(&self) {
        self.stock.refresh(self.sku.no).await.unwrap();
    }

    fn is_sold_out(&self) -> bool {
        self.stock.is_sold_out(self.sku.no)
    }

    async fn standing(&self, ask: &Reservation) -> Option<RequestStatus> {
        let found = self.stock.standing(self.home(ask), ask.request, ask.buyer).await.unwrap();
        found.map(|StoredRequest { standing, .. }| standing)
    }
}

/// The ledger's refusal of a reservation.
fn failure(ask: &Reservation, reason: Refusal) -> Failure {
    Failure {
        request: ask.request,
        sku: ask.sku,
        buyer: ask.buyer,
        quantity: ask.quantity,
        reason,
        recorded_at_ms: ask.asked_at_ms + 5,
    }
}

/// Where a reservation stands when the ledger has its order.
fn ordered(ask: &Reservation) -> RequestStatus {
    RequestStatus::Ordered {
        quantity: ask.quantity,
        placed_at_ms: ask.asked_at_ms,
        state: floodgate::domain::OrderState::PendingPayment,
    }
}

/// Every case, by module.
macro_rules! all_cases {
    ($with:ident! $($arguments:tt)*) => {
        $with! { $($arguments)*
            loading:
                what_nobody_loaded_is_not_sold
                units_are_dealt_out_evenly
                orders_and_failures_are_remembered
                units_of_a_quota_add_up
                what_waits_for_an_operator_keeps_its_units
                what_waits_for_an_operator_counts_for_a_quota
                what_was_accepted_stays_queued_through_a_load
                loaders_that_end_early_lose_nothing
                a_load_without_units_is_sold_out
                another_process_finds_what_was_loaded
                a_later_load_replaces_the_one_before
                a_loader_with_a_smaller_token_changes_nothing
                buckets_that_stand_elsewhere_are_told_and_turned
                an_older_opening_is_ignored
                late_and_crossed_turns_take_nothing_back
                what_is_turned_during_a_load_is_published_with_it;
            reserving:
                the_policies_hold
                a_repeat_reads_where_its_request_stands
                a_repeat_is_answered_in_every_phase_and_of_every_opening
                a_sold_out_bucket_still_answers_repeats
                the_same_id_with_other_content_is_refused
                requests_of_one_batch_see_each_other
                a_batch_larger_than_one_call_is_decided_in_order
                a_batch_of_several_openings_is_decided_one_by_one
                what_does_not_fit_takes_nothing
                ids_of_nineteen_digits_stay_apart
                many_at_once_get_exactly_the_stock;
            settling:
                an_order_settles_its_request_once
                a_refusal_gives_back_once
                a_refusal_gives_back_only_what_the_ledger_still_has
                a_refusal_of_a_request_that_was_lost_is_entered
                the_first_answer_of_the_ledger_stays
                an_order_that_was_never_accepted_here_takes_its_units
                an_order_that_ended_takes_no_units
                orders_of_many_buckets_and_skus_settle_together
                a_buyer_who_was_let_go_may_buy_again
                unsettled_intents_come_back_word_for_word
                what_was_accepted_after_a_look_is_unsettled
                young_intents_are_left_to_their_own_process;
            moving:
                a_loan_moves_its_units_once
                an_open_loan_is_the_answer_again
                a_lender_gives_half_or_what_is_wanted
                half_done_transfers_are_finished_once
                units_under_way_are_not_sold_out
                steps_in_any_order_keep_the_sum
                many_movers_at_once_keep_the_sum;
            reading:
                a_request_is_shown_to_its_owner_only
                many_standings_come_in_the_order_of_the_question
                nobody_denies_a_request_it_could_know_of
                sold_out_is_known_and_forgotten_when_units_come_back
                a_unit_that_was_sold_again_is_not_denied
                a_load_that_lost_a_request_ends_what_was_known
                the_facts_are_the_sum_of_the_buckets
                the_store_answers;
        }
    };
}

macro_rules! as_tests {
    ($fresh:expr; $($module:ident: $($case:ident)+;)+) => {
        $(mod $module {
            $(#[test]
            fn $case() {
                super::super::run(async {
                    super::super::$module::$case(&$fresh).await;
                });
            })+
        })+
    };
}

macro_rules! backends {
    ($($backend:ident: $fresh:expr;)+) => {
        $(mod $backend {
            all_cases! { as_tests! $fresh; }
        })+
    };
}

backends! {
    memory: crate::conformance::stock::Memory::fresh();
    redis: super::super::SingleRedis::fresh(super::super::OutboxArgs::None);
    redis_with_list: crate::conformance::stock::SingleRedis::fresh(crate::lua::rig::OUTBOXES[0]);
    redis_with_stream: crate::conformance::stock::SingleRedis::fresh(crate::lua::rig::OUTBOXES[1]);
}

macro_rules! one_by_one {
    ($cluster:expr; $($module:ident: $($case:ident)+;)+) => {
        $($({
            let case = concat!(stringify!($module), "::", stringify!($case));
            println!("{case}");
            $module::$case(&ClusteredRedis { cluster: $cluster, case }).await;
        })+)+
    };
}

#[test]
fn a_cluster_keeps_every_promise() {
    let cluster = Cluster::start(&[]);
    run(async {
        all_cases! { one_by_one! &cluster; }
    });
}
