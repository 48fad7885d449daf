//! A fixture of one SKU's buckets on a private redis-server, and a client that calls the scripts.

use std::collections::HashMap;
use std::sync::Arc;

use floodgate::domain::{
    BucketNo, Epoch, LoaderToken, Loan, Order, Phase, Policy, Refusal, Reservation, Sku, SkuNo,
    TraceId, Verdict,
};
use floodgate::redis::scripts::load::LoadRow;
use floodgate::redis::scripts::settle::{RefusedRequest, SettleOutcome, SettleOutcomes};
use floodgate::redis::scripts::snapshot::BucketCounts;
use floodgate::redis::scripts::{
    Borrow, BucketFence, BucketKeys, ClearBucket, ClearLoan, EntryLimits, Error, Find, HoldBucket,
    Installation, Lend, LoadRows, OpenBucket, OutboxArgs, ReadQueued, Release, ReserveBatch,
    Script, ScriptCall, SetPhase, Settle, Snapshot,
};
use redis::{Client, Connection, RedisResult, Value};

use crate::support::offers::{buyer, request};
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

/// A SKU with two buckets.
pub fn sku(no: i32, policy: Policy, initial: u32) -> Sku {
    Sku {
        no: SkuNo(no),
        id: "sku".parse().unwrap(),
        title: "SKU".to_owned(),
        price: 250,
        initial,
        policy,
        buckets: 2,
        payment_window_s: 900,
        bar_lapsed: false,
    }
}

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

    pub fn send(&mut self, call: &ScriptCall) -> RedisResult<Value> {
        call.evalsha(&self.shas[&call.script()]).query(&mut self.connection)
    }

    /// Sends the calls as one pipeline.
    pub fn send_all(&mut self, calls: &[ScriptCall]) -> Vec<Value> {
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
        Self::fenced(fence, sku)
    }

    pub fn fenced(fence: BucketFence, sku: Sku) -> Self {
        let buckets = (0..sku.buckets).map(|no| BucketKeys::new("test", &sku, BucketNo(no)));
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
            let open = self.opening(bucket, LOADER, stock);
            assert_eq!(open.parse(client.send(&open.call()).unwrap()), Ok(true));
        }
    }

    pub fn opening(&self, bucket: usize, loader: LoaderToken, stock: u32) -> OpenBucket<'_> {
        OpenBucket {
            keys: &self.buckets[bucket],
            fence: &self.fence,
            loader,
            epoch: Epoch(1),
            phase: Phase::Open,
            stock,
            released_units: 0,
            num_failed: 0,
            num_queued: 0,
            is_new: true,
        }
    }

    pub fn hold(
        &self,
        client: &mut ScriptClient,
        bucket: usize,
        loader: LoaderToken,
    ) -> Result<bool, Error> {
        let hold = HoldBucket { keys: &self.buckets[bucket], fence: &self.fence, loader };
        hold.parse(client.send(&hold.call()).unwrap())
    }

    /// Clears all pages and returns the numbers of the requests that stay queued.
    pub fn clear(
        &self,
        client: &mut ScriptClient,
        bucket: usize,
        loader: LoaderToken,
    ) -> Result<Vec<u64>, Error> {
        let keys = &self.buckets[bucket];
        let clear = ClearBucket { keys, fence: &self.fence, loader, pages: 0..keys.pages() };
        let queued = clear.parse(client.send(&clear.call()).unwrap())?;
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
        let load = LoadRows { keys: &self.buckets[bucket], fence: &self.fence, loader, rows };
        load.parse(client.send(&load.call()).unwrap())
    }

    pub fn reserving<'a>(&'a self, bucket: usize, batch: &'a [Reservation]) -> ReserveBatch<'a> {
        ReserveBatch {
            keys: &self.buckets[bucket],
            fence: &self.fence,
            sku: &self.sku,
            epoch: batch.first().map_or(Epoch(1), |reservation| reservation.epoch),
            outbox: self.outbox,
            touch: false,
            batch,
        }
    }

    /// Reserves a batch whose items share one epoch.
    pub fn reserve(
        &self,
        client: &mut ScriptClient,
        bucket: usize,
        batch: &[Reservation],
    ) -> Vec<Verdict> {
        let reserve = self.reserving(bucket, batch);
        reserve.parse(client.send(&reserve.call()).unwrap()).unwrap().verdicts
    }

    /// [`Self::reserve`] on bucket 0 with this outbox.
    pub fn reserve_into(
        &self,
        client: &mut ScriptClient,
        outbox: OutboxArgs,
        batch: &[Reservation],
    ) -> Vec<Verdict> {
        let reserve = ReserveBatch { outbox, ..self.reserving(0, batch) };
        reserve.parse(client.send(&reserve.call()).unwrap()).unwrap().verdicts
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
        let (keys, policy) = (&self.buckets[bucket], self.sku.policy);
        let settle = Settle { keys, fence: &self.fence, policy, orders };
        settle.parse(client.send(&settle.call()).unwrap()).unwrap().items
    }

    pub fn release(
        &self,
        client: &mut ScriptClient,
        bucket: usize,
        refused: &[RefusedRequest],
    ) -> SettleOutcomes {
        let (keys, policy) = (&self.buckets[bucket], self.sku.policy);
        let release = Release { keys, fence: &self.fence, policy, refused };
        release.parse(client.send(&release.call()).unwrap()).unwrap()
    }

    pub fn set_phase(
        &self,
        client: &mut ScriptClient,
        bucket: usize,
        phase: Phase,
        epoch: Epoch,
    ) -> bool {
        let (keys, fence) = (&self.buckets[bucket], &self.fence);
        let set_phase = SetPhase { keys, fence, epoch, phase };
        set_phase.parse(client.send(&set_phase.call()).unwrap()).unwrap()
    }

    pub fn lend(&self, client: &mut ScriptClient, from: usize, to: u16, want: u32) -> Option<Loan> {
        let (keys, to) = (&self.buckets[from], BucketNo(to));
        let lend = Lend { keys, fence: &self.fence, to, want };
        lend.parse(client.send(&lend.call()).unwrap()).unwrap().0
    }

    pub fn borrow(&self, client: &mut ScriptClient, from: u16, to: usize, loan: Loan) -> u32 {
        let (keys, from) = (&self.buckets[to], BucketNo(from));
        let borrow = Borrow { keys, fence: &self.fence, from, loan };
        borrow.parse(client.send(&borrow.call()).unwrap()).unwrap().0
    }

    pub fn clear_loan(&self, client: &mut ScriptClient, from: usize, to: u16, no: u64) -> bool {
        let (keys, to) = (&self.buckets[from], BucketNo(to));
        let clear = ClearLoan { keys, fence: &self.fence, to, no };
        clear.parse(client.send(&clear.call()).unwrap()).unwrap().0
    }

    pub fn find(&self, bucket: usize) -> Find<'_> {
        Find { keys: &self.buckets[bucket], fence: &self.fence, requests: &[] }
    }

    pub fn queued(&self, bucket: usize) -> ReadQueued<'_> {
        let keys = &self.buckets[bucket];
        ReadQueued { keys, fence: &self.fence, pages: 0..keys.pages() }
    }

    pub fn counts(&self, client: &mut ScriptClient, bucket: usize) -> BucketCounts {
        let keys = &self.buckets[bucket];
        let snapshot = Snapshot { keys, fence: &self.fence, pages: true };
        snapshot.parse(client.send(&snapshot.call()).unwrap()).unwrap()
    }

    pub fn reservation(&self, request_no: u64, buyer_no: u64, quantity: u32) -> Reservation {
        Reservation {
            request: request(request_no),
            sku: self.sku.no,
            bucket: BucketNo(0),
            epoch: Epoch(1),
            buyer: buyer(buyer_no),
            quantity,
            asked_at_ms: 1_790_000_000_000,
            trace: TraceId(u128::from(request_no)),
        }
    }

    pub fn order(&self, reservation: &Reservation) -> Order {
        reservation.intent(&self.sku).order()
    }
}

/// A ledger refusal of this reservation, recorded 5 ms after the request.
pub fn refused(reservation: &Reservation, reason: Refusal) -> RefusedRequest {
    let (request, buyer, quantity) = (reservation.request, reservation.buyer, reservation.quantity);
    RefusedRequest { request, buyer, quantity, reason, recorded_at_ms: reservation.asked_at_ms + 5 }
}
