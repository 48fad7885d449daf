//! The contract of every stock, as one suite. A new backend implements [`Backend`] and adds a line
//! to `backends!`; no case depends on the backend.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use floodgate::config::{Settings, Tier};
use floodgate::domain::{
    BucketKey, BucketNo, BucketSnapshot, Counting, Epoch, Failure, LoaderToken, Order, OrderIntent,
    Phase, Policy, Refusal, RequestStatus, Reservation, Sku, TraceId, Verdict,
};
use floodgate::redis::scripts::{Installation, OutboxArgs};
use floodgate::stock::redis::RedisStockOptions;
use floodgate::stock::{MemoryStock, RedisStock, Stock};
use floodgate::tier::connection_pool;

use crate::support::intents;
use crate::support::offers::{self, buyer, request, run};
use crate::support::servers::cluster::Cluster;
use crate::support::servers::redis::Redis;

mod changing;
mod ending;
mod loading;
mod moving;
mod outbox;
mod reading;
mod reserving;
mod settling;
mod trust;

use settling::{failure, ordered};

/// A store that outlives the stocks opened on it; new for each case.
#[async_trait(?Send)]
pub trait Backend {
    /// Opens a stock as another process does. A store that processes cannot share returns the same
    /// stock each time.
    async fn open(&self) -> Arc<dyn Stock>;

    /// What `Stock::unsettled` returns of an accepted reservation.
    fn unsettled(&self, reservation: &Reservation, sku: &Sku) -> OrderIntent {
        reservation.intent(sku)
    }

    /// What a repeat reads of the queued request.
    fn kept(&self, intent: OrderIntent) -> Option<OrderIntent> {
        Some(intent)
    }
}

struct Memory {
    stock: Arc<MemoryStock>,
}

impl Memory {
    fn fresh() -> Self {
        Self { stock: Arc::new(MemoryStock::new(Counting::InStock)) }
    }
}

#[async_trait(?Send)]
impl Backend for Memory {
    async fn open(&self) -> Arc<dyn Stock> {
        self.stock.clone()
    }
}

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

    fn unsettled(&self, reservation: &Reservation, sku: &Sku) -> OrderIntent {
        let intent = reservation.intent(sku);
        // Only the outbox entry has the trace.
        self.kept(intent).unwrap_or(OrderIntent { trace: TraceId(0), ..intent })
    }

    fn kept(&self, intent: OrderIntent) -> Option<OrderIntent> {
        Some(intent).filter(|_| self.outbox == OutboxArgs::None)
    }
}

/// A cluster of three masters, with the buckets of a SKU on several of them. All cases share one
/// cluster, because it starts slowly; each case has its own namespace.
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

fn on_redis(url: &str, namespace: &str, outbox: OutboxArgs) -> Arc<dyn Stock> {
    let mut settings = Settings::with_ledger("sqlite://unused.db");
    settings.tier = Tier::Gate;
    url.clone_into(&mut settings.redis.url);
    settings.redis.command_timeout_ms = 10_000;
    Arc::new(RedisStock::new(RedisStockOptions {
        pool: connection_pool(&settings).unwrap(),
        namespace: namespace.to_owned(),
        installation: Installation(0xf100_d6a7),
        outbox,
        intents: intents::key(),
        replicated: false,
        // Every poll is a full recount.
        sold_out_refresh: Duration::ZERO,
    }))
}

const FIRST_LOAD: LoaderToken = LoaderToken(1);
const OPENING: Epoch = Epoch(1);
const PLACED_AT_MS: i64 = 1_790_000_000_000;

/// One SKU and the stock of one process.
struct Shop {
    stock: Arc<dyn Stock>,
    sku: Arc<Sku>,
}

fn sku(no: i32, policy: Policy, initial: u32, buckets: u16) -> Arc<Sku> {
    Arc::new(Sku { buckets, ..offers::sku(no, policy, initial) })
}

impl Shop {
    /// Opens and loads a SKU without orders.
    async fn open(backend: &dyn Backend, policy: Policy, initial: u32, buckets: u16) -> Self {
        let shop = Self { stock: backend.open().await, sku: sku(1, policy, initial, buckets) };
        shop.load(FIRST_LOAD, initial, Vec::new(), Vec::new()).await;
        shop
    }

    async fn in_other_process(&self, backend: &dyn Backend) -> Self {
        let other = Self { stock: backend.open().await, sku: self.sku.clone() };
        other.stock.health(&other.sku, Phase::Open, OPENING).await.unwrap();
        other
    }

    /// Loads the buckets from these rows and publishes them as open.
    async fn load(
        &self,
        loader: LoaderToken,
        available: u32,
        orders: Vec<Order>,
        failures: Vec<Failure>,
    ) {
        let mut loading = self.stock.load(self.sku.clone(), loader).await.unwrap();
        loading.clear().await.unwrap();
        loading.orders(orders).await.unwrap();
        loading.failures(failures).await.unwrap();
        loading.publish(available, Phase::Open, OPENING).await.unwrap();
    }

    fn key(&self, bucket: u16) -> BucketKey {
        BucketKey { sku: self.sku.no, bucket: BucketNo(bucket) }
    }

    fn key_of(&self, reservation: &Reservation) -> BucketKey {
        self.key(reservation.bucket.0)
    }

    fn reservation(&self, request_no: u64, buyer_no: u64, quantity: u32) -> Reservation {
        let buyer = buyer(buyer_no);
        Reservation {
            request: request(request_no),
            sku: self.sku.no,
            bucket: BucketNo::home_of(buyer, self.sku.buckets),
            epoch: OPENING,
            terms: self.sku.terms(),
            buyer,
            quantity,
            placed_at_ms: PLACED_AT_MS,
            trace: TraceId(u128::from(request_no) << 64 | 7),
        }
    }

    async fn decide(&self, batch: &[Reservation]) -> Vec<Verdict> {
        let decided = self.stock.reserve(self.key_of(&batch[0]), batch.to_vec()).await;
        decided.unwrap().into_iter().map(offers::without_intent).collect()
    }

    async fn reserve(&self, reservation: Reservation) -> Verdict {
        self.decide(&[reservation]).await[0]
    }

    /// Reserves units and requires every reservation to be accepted.
    async fn take(&self, reservations: &[Reservation]) {
        for reservation in reservations {
            assert_eq!(self.reserve(*reservation).await, Verdict::Reserved, "{reservation:?}");
        }
    }

    fn order(&self, reservation: &Reservation) -> Order {
        reservation.intent(&self.sku).order(reservation.placed_at_ms)
    }

    async fn settle(&self, reservations: &[Reservation]) {
        let orders = reservations
            .iter()
            .map(|reservation| (reservation.bucket, self.order(reservation)))
            .collect();
        self.stock.settle(orders).await.unwrap();
    }

    async fn release(&self, reservation: &Reservation, reason: Refusal) {
        self.stock
            .release(self.key_of(reservation), vec![failure(reservation, reason)])
            .await
            .unwrap();
    }

    async fn set_phase(&self, phase: Phase, epoch: Epoch) {
        self.stock.set_phase(&self.sku, phase, epoch).await.unwrap();
    }

    async fn counts(&self, bucket: u16) -> BucketSnapshot {
        self.stock.snapshot(self.key(bucket)).await.unwrap()
    }

    /// The free units of each bucket.
    async fn free(&self) -> Vec<u32> {
        let mut free = Vec::new();
        for bucket in 0..self.sku.buckets {
            free.push(self.counts(bucket).await.available);
        }
        free
    }

    /// Free units and units lent between buckets.
    async fn units(&self) -> u64 {
        self.stock.facts(self.sku.no).await.unwrap().left
    }

    async fn refresh(&self) {
        self.stock.refresh(self.sku.no).await.unwrap();
    }

    fn is_sold_out(&self) -> bool {
        self.stock.is_sold_out(self.sku.no)
    }

    async fn status(&self, reservation: &Reservation) -> Option<RequestStatus> {
        let found = self
            .stock
            .record(self.key_of(reservation), reservation.request, Some(reservation.buyer))
            .await
            .unwrap();
        found.map(|record| record.status())
    }
}

macro_rules! all_cases {
    ($with:ident! $($arguments:tt)*) => {
        $with! { $($arguments)*
            loading:
                a_bucket_that_was_not_loaded_sells_nothing
                units_are_dealt_out_evenly
                orders_and_failures_are_remembered
                units_of_a_quota_add_up
                queued_requests_of_a_load_keep_their_units
                queued_requests_of_a_load_count_for_a_quota
                an_accepted_request_stays_queued_through_a_load
                loaders_that_end_early_lose_nothing
                a_load_without_units_is_sold_out
                another_process_finds_what_was_loaded
                a_later_load_replaces_the_one_before
                a_loader_with_a_smaller_token_changes_nothing
                buckets_in_another_phase_are_reported_and_set
                an_older_opening_is_ignored
                late_and_crossed_phase_changes_take_nothing_back
                a_phase_set_during_a_load_is_published_with_it;
            reserving:
                the_policies_hold
                a_repeat_reads_the_status_of_its_request
                a_repeat_reads_what_was_accepted
                a_repeat_is_answered_in_every_phase_and_of_every_opening
                a_sold_out_bucket_still_answers_repeats
                the_same_id_with_other_content_is_refused
                requests_of_one_batch_see_each_other
                a_batch_larger_than_one_call_is_decided_in_order
                a_batch_of_several_openings_is_decided_one_by_one
                reservations_of_more_than_is_left_take_nothing
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
                a_request_accepted_after_a_read_is_unsettled
                intents_are_unsettled_until_the_ledger_has_decided_them;
            ending:
                an_order_that_ends_gives_its_units_back_once
                an_order_that_ended_before_it_was_settled_gives_back_too
                an_ended_order_of_an_unknown_request_moves_nothing
                a_limit_that_does_not_return_stays_used
                ended_orders_are_loaded_without_their_units
                a_change_during_a_load_is_not_lost
                a_unit_of_an_ended_order_is_on_sale_everywhere
                a_change_that_contradicts_moves_nothing;
            changing:
                units_are_added_once_and_in_order
                a_load_contains_the_changes_of_its_rows
                a_sold_out_sku_sells_again
                withdrawn_units_are_not_sold
                units_that_leave_an_unsold_sku_are_left_nowhere
                a_load_frees_withdrawn_units;
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
                many_statuses_come_in_the_order_of_the_requests
                a_request_that_a_bucket_may_hold_is_never_denied
                sold_out_is_known_and_forgotten_when_units_come_back
                a_unit_that_was_sold_again_is_not_denied
                a_load_that_lost_a_request_invalidates_the_cache
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
    redis_with_list: super::super::SingleRedis::fresh(crate::lua::harness::OUTBOXES[0]);
    redis_with_stream: super::super::SingleRedis::fresh(crate::lua::harness::OUTBOXES[1]);
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
