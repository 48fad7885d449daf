//! A fixture of one SKU's buckets on a private redis-server, and a client that calls the scripts.

use std::collections::HashMap;
use std::sync::Arc;

use floodgate::domain::{
    BucketNo, Epoch, Failure, LoaderToken, Loan, Order, OrderIntent, OrderState, PayBy, Phase,
    RecordState, Refusal, Sku, TraceId, Verdict,
};
use floodgate::redis::scripts::load::{LoadRow, clear, hold, load_rows, set_phase};
use floodgate::redis::scripts::loans::{borrow, clear_loan, lend};
use floodgate::redis::scripts::lookup::{QueuedRecord, read_queued};
use floodgate::redis::scripts::reserve_settle::{SettleOutcome, release, reserve, settle};
use floodgate::redis::scripts::snapshot::{BucketCounts, snapshot};
use floodgate::redis::scripts::{
    BucketFence, BucketKeys, EntryLimits, Error, Installation, Leveled, OpenBucket, OutboxArgs,
    Pages, Script, ScriptCall,
};
use redis::{Client, Connection, RedisResult, Value};

use super::fenced_call::FencedCall;
use crate::support::intents;
pub use crate::support::offers::sku;
use crate::support::offers::{buyer, request, without_intent};
use crate::support::servers::redis::Redis;

pub const INSTALLATION: Installation = Installation(0xf100_d6a7);

/// The first loader token. Loans of this load are numbered from 1, like the loans of a `Book`.
pub const LOADER: LoaderToken = LoaderToken(0);

/// Limits that no test fills by accident.
const ENTRIES: EntryLimits = EntryLimits { envelope_max: 64, entries_max: 10_000 };

/// The outboxes that a relay drains.
pub const OUTBOXES: [OutboxArgs; 2] = [OutboxArgs::List(ENTRIES), OutboxArgs::Stream(ENTRIES)];

/// All places where accepted intents can wait: the bucket itself, a list, a stream.
pub const KINDS: [OutboxArgs; 3] = [OutboxArgs::None, OUTBOXES[0], OUTBOXES[1]];

/// A connection with all scripts loaded; calls are sent as `EVALSHA`.
pub struct ScriptClient {
    connection: Connection,
    shas: HashMap<Script, String>,
}

impl ScriptClient {
    pub fn new(redis: &Redis) -> Self {
        let connection = Client::open(redis.url()).unwrap().get_connection().unwrap();
        let mut client = Self { connection, shas: HashMap::new() };
        client.load_scripts();
        client
    }

    pub fn load_scripts(&mut self) {
        for script in Script::ALL {
            let sha = self.query(redis::cmd("SCRIPT").arg("LOAD").arg(script.text()));
            self.shas.insert(*script, redis::from_redis_value(sha).unwrap());
        }
    }

    pub fn send(&mut self, call: &FencedCall) -> RedisResult<Value> {
        call.evalsha(&self.shas[&call.script()]).query(&mut self.connection)
    }

    /// Sends the calls as one pipeline.
    pub fn send_all(&mut self, calls: &[FencedCall]) -> Vec<Value> {
        let mut pipe = redis::pipe();
        for call in calls {
            pipe.add_command(call.evalsha(&self.shas[&call.script()]));
        }
        pipe.query(&mut self.connection).unwrap()
    }

    pub fn query(&mut self, command: &redis::Cmd) -> Value {
        self.try_query(command).unwrap()
    }

    pub fn try_query(&mut self, command: &redis::Cmd) -> RedisResult<Value> {
        command.query(&mut self.connection)
    }

    pub fn pipe(&mut self, pipe: &redis::Pipeline) {
        pipe.query::<()>(&mut self.connection).unwrap();
    }

    pub fn cmd(&mut self, words: &[&str]) -> Value {
        self.query(redis::Cmd::new().arg(words))
    }

    /// Replaces the value of a key: `write` is the command without the key.
    pub fn replace(&mut self, key: &str, write: &[&str]) {
        self.cmd(&["DEL", key]);
        let words = [&write[..1], &[key], &write[1..]].concat();
        self.cmd(&words);
    }

    /// The digest of the whole keyspace: equal digests mean that nothing was written.
    pub fn digest(&mut self) -> String {
        redis::from_redis_value(self.cmd(&["DEBUG", "DIGEST"])).unwrap()
    }
}

/// The buckets of one SKU.
#[derive(Debug, Clone)]
pub struct Fixture {
    pub sku: Arc<Sku>,
    pub buckets: Vec<BucketKeys>,
    pub fence: BucketFence,
    /// The outbox of [`Self::reserve`] calls.
    pub outbox: OutboxArgs,
}

impl Fixture {
    pub fn new(redis: &Redis, sku: Sku) -> Self {
        let fence = BucketFence { installation: INSTALLATION, server: redis.run_id().into() };
        Self::with_fence(fence, sku)
    }

    fn with_fence(fence: BucketFence, sku: Sku) -> Self {
        let buckets = (0..sku.buckets).map(|no| BucketKeys::new("test", sku.no, BucketNo(no)));
        Self { buckets: buckets.collect(), sku: Arc::new(sku), fence, outbox: OutboxArgs::None }
    }

    /// [`Self::new`], loaded without rows and opened, with `stock` units in each bucket.
    pub fn open(redis: &Redis, client: &mut ScriptClient, sku: Sku, stock: u32) -> Self {
        let fixture = Self::new(redis, sku);
        fixture.publish(client, stock);
        fixture
    }

    pub fn publish(&self, client: &mut ScriptClient, stock: u32) {
        for bucket in 0..self.buckets.len() {
            self.load_begin(client, bucket, LOADER).unwrap();
            assert_eq!(
                self.run(client, &opening(LOADER, stock).call(&self.buckets[bucket])),
                Ok(true)
            );
        }
    }

    pub fn fenced<A: 'static>(&self, call: ScriptCall<A>) -> FencedCall {
        FencedCall::new(call, &self.fence)
    }

    pub fn run<A>(&self, client: &mut ScriptClient, call: &ScriptCall<A>) -> Result<A, Error> {
        let sha = &client.shas[&call.script()];
        let command = call.command("EVALSHA", sha, &self.fence);
        call.parse(client.query(&command))
    }

    pub fn pages(&self) -> Pages {
        Pages::of_sku(&self.sku)
    }

    pub fn hold(
        &self,
        client: &mut ScriptClient,
        bucket: usize,
        loader: LoaderToken,
    ) -> Result<bool, Error> {
        self.run(client, &hold(&self.buckets[bucket], loader))
    }

    /// Clears all pages and returns the numbers of the requests that stay queued.
    pub fn clear(
        &self,
        client: &mut ScriptClient,
        bucket: usize,
        loader: LoaderToken,
    ) -> Result<Vec<u64>, Error> {
        let clear = clear(&self.buckets[bucket], loader, self.pages().all());
        let queued = self.run(client, &clear)?;
        let mut numbers: Vec<_> =
            queued.into_iter().map(|request| request.unwrap().0.get()).collect();
        numbers.sort_unstable();
        Ok(numbers)
    }

    pub fn load_begin(
        &self,
        client: &mut ScriptClient,
        bucket: usize,
        loader: LoaderToken,
    ) -> Result<Vec<u64>, Error> {
        self.hold(client, bucket, loader)?;
        self.clear(client, bucket, loader)
    }

    pub fn load_rows(
        &self,
        client: &mut ScriptClient,
        bucket: usize,
        loader: LoaderToken,
        rows: &[LoadRow],
    ) -> Result<(), Error> {
        self.run(client, &load_rows(&self.buckets[bucket], &self.sku, loader, rows))
    }

    /// The call that reserves a batch, whose items share one epoch, in one bucket.
    pub fn reserving(
        &self,
        bucket: usize,
        outbox: OutboxArgs,
        batch: &[OrderIntent],
    ) -> ScriptCall<Leveled<Vec<Verdict>>> {
        reserve(&self.buckets[bucket], &self.sku, outbox, false, batch, &intents::key())
    }

    /// Reserves a batch whose items share one epoch.
    pub fn reserve(
        &self,
        client: &mut ScriptClient,
        bucket: usize,
        batch: &[OrderIntent],
    ) -> Vec<Verdict> {
        let verdicts = self.run(client, &self.reserving(bucket, self.outbox, batch)).unwrap().0;
        verdicts.into_iter().map(without_intent).collect()
    }

    /// [`Self::reserve`] on bucket 0 with this outbox.
    pub fn reserve_into(
        &self,
        client: &mut ScriptClient,
        outbox: OutboxArgs,
        batch: &[OrderIntent],
    ) -> Vec<Verdict> {
        self.run(client, &self.reserving(0, outbox, batch)).unwrap().0
    }

    /// The packed intents of every entry in an outbox, oldest first.
    pub fn entries(
        &self,
        client: &mut ScriptClient,
        bucket: usize,
        outbox: OutboxArgs,
    ) -> Vec<Vec<u8>> {
        let key = &self.buckets[bucket].outbox();
        match outbox {
            OutboxArgs::None => panic!("no entries"),
            OutboxArgs::List(_) => {
                let entries = client.cmd(&["LRANGE", key, "0", "-1"]);
                redis::from_redis_value(entries).unwrap()
            }
            OutboxArgs::Stream(_) => {
                type Entry = (String, Vec<(String, Vec<u8>)>);
                let entries = client.cmd(&["XRANGE", key, "-", "+"]);
                let entries: Vec<Entry> = redis::from_redis_value(entries).unwrap();
                let only_field = |(_, fields): Entry| match &fields[..] {
                    [(name, packed)] if name == "intents" => packed.clone(),
                    _ => panic!("{fields:?}"),
                };
                entries.into_iter().map(only_field).collect()
            }
        }
    }

    pub fn settle(
        &self,
        client: &mut ScriptClient,
        bucket: usize,
        orders: &[Order],
    ) -> Vec<SettleOutcome> {
        self.run(client, &settle(&self.buckets[bucket], &self.sku, orders)).unwrap().0
    }

    pub fn release(
        &self,
        client: &mut ScriptClient,
        bucket: usize,
        refused: &[Failure],
    ) -> Leveled<Vec<SettleOutcome>> {
        self.run(client, &release(&self.buckets[bucket], &self.sku, refused)).unwrap()
    }

    pub fn set_phase(
        &self,
        client: &mut ScriptClient,
        bucket: usize,
        phase: Phase,
        epoch: Epoch,
    ) -> bool {
        self.run(client, &set_phase(&self.buckets[bucket], epoch, phase)).unwrap()
    }

    pub fn lend(&self, client: &mut ScriptClient, from: usize, to: u16, want: u32) -> Option<Loan> {
        self.run(client, &lend(&self.buckets[from], BucketNo(to), want)).unwrap().0
    }

    pub fn borrow(&self, client: &mut ScriptClient, from: u16, to: usize, loan: Loan) -> u32 {
        self.run(client, &borrow(&self.buckets[to], BucketNo(from), loan)).unwrap().0
    }

    pub fn clear_loan(&self, client: &mut ScriptClient, from: usize, to: u16, no: u64) -> bool {
        self.run(client, &clear_loan(&self.buckets[from], BucketNo(to), no)).unwrap().0
    }

    pub fn queued(&self, bucket: usize) -> ScriptCall<Vec<QueuedRecord>> {
        read_queued(&self.buckets[bucket], self.pages().all())
    }

    pub fn counts(&self, client: &mut ScriptClient, bucket: usize) -> BucketCounts {
        self.run(client, &snapshot(&self.buckets[bucket], self.pages().all())).unwrap()
    }

    pub fn reservation(&self, request_no: u64, buyer_no: u64, quantity: u32) -> OrderIntent {
        let (request, buyer) = (request(request_no), buyer(buyer_no));
        let placed = self.sku.intent(request, buyer, Epoch(1), quantity, 1_790_000_000_000);
        OrderIntent { bucket: BucketNo(0), trace: TraceId(u128::from(request_no)), ..placed }
    }
}

/// A paid order without changes before.
pub const PAID: RecordState =
    RecordState::Ordered { state: OrderState::Paid, version: 0, amount: 250, pay_by: PayBy::NONE };

/// Opens a bucket that was loaded without rows.
pub fn opening(loader: LoaderToken, stock: u32) -> OpenBucket {
    OpenBucket {
        loader,
        epoch: Epoch(1),
        phase: Phase::Open,
        stock,
        released_units: 0,
        returned_units: 0,
        num_failed: 0,
        num_queued: 0,
        is_new: true,
        change_no: 0,
    }
}

/// A ledger refusal of this reservation, recorded 5 ms after the request.
pub fn refused(reservation: &OrderIntent, reason: Refusal) -> Failure {
    let OrderIntent { request, sku, buyer, quantity, placed_at_ms, .. } = *reservation;
    Failure { request, sku, buyer, quantity, reason, recorded_at_ms: placed_at_ms + 5 }
}
