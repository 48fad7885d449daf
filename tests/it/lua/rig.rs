//! Buckets on a private redis-server, and one connection that sends calls of scripts.

use std::collections::HashMap;
use std::sync::Arc;

use floodgate::domain::{
    BucketNo, Epoch, Loan, Order, Phase, Policy, Refusal, Reservation, Sku, SkuNo, TraceId, Verdict,
};
use floodgate::redis::scripts::load::LoadRow;
use floodgate::redis::scripts::settle::{RefusedRequest, SettleOutcome, SettleOutcomes};
use floodgate::redis::scripts::snapshot::BucketCounts;
use floodgate::redis::scripts::{
    Borrow, BucketFence, BucketKeys, ClearBucket, ClearLoan, EntryLimits, Error, Find, HoldBucket,
    Installation, Lend, LoadRows, OpenBucket, OutboxArgs, ReadQueued, Release, ReserveBatch,
    Script, ScriptCall, SetPhase, Settle, Snapshot,
};
use floodgate::stock::LoaderToken;
use redis::{Client, Connection, RedisResult, Value};

use crate::support::offers::{buyer, request};
use crate::support::servers::redis::Redis;

pub const INSTALLATION: Installation = Installation(0xf100_d6a7);

/// The first load; its loans count from 1, as a book's do.
pub const LOADER: LoaderToken = LoaderToken(0);

/// Room enough.
const ENTRIES: EntryLimits = EntryLimits { envelope_max: 64, entries_max: 10_000 };

/// What a relay empties.
pub const OUTBOXES: [OutboxArgs; 2] = [OutboxArgs::List(ENTRIES), OutboxArgs::Stream(ENTRIES)];

/// Everything that accepted intents may wait in.
pub const KINDS: [OutboxArgs; 3] = [OutboxArgs::None, OUTBOXES[0], OUTBOXES[1]];

/// A SKU in two buckets.
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

/// A connection that knows the scripts.
pub struct Wire {
    connection: Connection,
    shas: HashMap<Script, String>,
}

impl Wire {
    pub fn new(redis: &Redis) -> Self {
        let connection = Client::open(redis.url()).unwrap().get_connection().unwrap();
        let mut wire = Self { connection, shas: HashMap::new() };
        wire.load_scripts();
        wire
    }

    pub fn load_scripts(&mut self) {
        for script in Script::ALL {
            let sha = self.ask(redis::cmd("SCRIPT").arg("LOAD").arg(script.text()));
            self.shas.insert(*script, redis::from_redis_value(sha).unwrap());
        }
    }

    pub fn send(&mut self, call: &ScriptCall) -> RedisResult<Value> {
        call.evalsha(&self.shas[&call.script()]).query(&mut self.connection)
    }

    /// One after the other, without waiting for the answers in between.
    pub fn send_all(&mut self, calls: &[ScriptCall]) -> Vec<Value> {
        let mut pipe = redis::pipe();
        for call in calls {
            pipe.add_command(call.evalsha(&self.shas[&call.script()]));
        }
        pipe.query(&mut self.connection).unwrap()
    }

    pub fn ask(&mut self, command: &redis::Cmd) -> Value {
        self.try_ask(command).unwrap()
    }

    pub fn try_ask(&mut self, command: &redis::Cmd) -> RedisResult<Value> {
        command.query(&mut self.connection)
    }

    pub fn pipe(&mut self, pipe: &redis::Pipeline) {
        pipe.query::<()>(&mut self.connection).unwrap();
    }

    pub fn cmd(&mut self, words: &[&str]) -> Value {
        self.ask(redis::Cmd::new().arg(words))
    }

    /// Writes a value of any type in the place of a key's.
    pub fn replace(&mut self, key: &str, write: &[&str]) {
        self.cmd(&["DEL", key]);
        let words = [&write[..1], &[key], &write[1..]].concat();
        self.cmd(&words);
    }

    /// What the whole server holds, in 20 bytes.
    pub fn digest(&mut self) -> String {
        redis::from_redis_value(self.cmd(&["DEBUG", "DIGEST"])).unwrap()
    }
}

/// The buckets of one SKU.
#[derive(Debug, Clone)]
pub struct Shop {
    pub sku: Arc<Sku>,
    pub buckets: Vec<BucketKeys>,
    pub fence: BucketFence,
    /// Where accepted intents wait, unless a test says otherwise.
    pub outbox: OutboxArgs,
}

impl Shop {
    pub fn new(redis: &Redis, sku: Sku) -> Self {
        let fence = BucketFence { installation: INSTALLATION, server: redis.run_id().into() };
        Self::fenced(fence, sku)
    }

    pub fn fenced(fence: BucketFence, sku: Sku) -> Self {
        let buckets = (0..sku.buckets).map(|no| BucketKeys::new("test", &sku, BucketNo(no)));
        Self { buckets: buckets.collect(), sku: Arc::new(sku), fence, outbox: OutboxArgs::None }
    }

    /// [`Self::new`], loaded without rows and open, with so many units in each bucket.
    pub fn open(redis: &Redis, wire: &mut Wire, sku: Sku, stock: u32) -> Self {
        let shop = Self::new(redis, sku);
        shop.publish(wire, stock);
        shop
    }

    pub fn publish(&self, wire: &mut Wire, stock: u32) {
        for bucket in 0..self.buckets.len() {
            self.load_begin(wire, bucket, LOADER).unwrap();
            let open = self.opening(bucket, LOADER, stock);
            assert_eq!(open.parse(wire.send(&open.call()).unwrap()), Ok(true));
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

    pub fn hold(&self, wire: &mut Wire, bucket: usize, loader: LoaderToken) -> Result<bool, Error> {
        let hold = HoldBucket { keys: &self.buckets[bucket], fence: &self.fence, loader };
        hold.parse(wire.send(&hold.call()).unwrap())
    }

    /// Clears all pages; the requests that stay.
    pub fn clear(
        &self,
        wire: &mut Wire,
        bucket: usize,
        loader: LoaderToken,
    ) -> Result<Vec<u64>, Error> {
        let keys = &self.buckets[bucket];
        let clear = ClearBucket { keys, fence: &self.fence, loader, pages: 0..keys.pages() };
        let stays = clear.parse(wire.send(&clear.call()).unwrap())?;
        let mut stays: Vec<_> = stays.into_iter().map(|one| one.unwrap().0.get()).collect();
        stays.sort_unstable();
        Ok(stays)
    }

    /// Holds and clears.
    pub fn load_begin(
        &self,
        wire: &mut Wire,
        bucket: usize,
        loader: LoaderToken,
    ) -> Result<Vec<u64>, Error> {
        self.hold(wire, bucket, loader)?;
        self.clear(wire, bucket, loader)
    }

    pub fn load_rows(
        &self,
        wire: &mut Wire,
        bucket: usize,
        loader: LoaderToken,
        rows: &[LoadRow],
    ) -> Result<(), Error> {
        let load = LoadRows { keys: &self.buckets[bucket], fence: &self.fence, loader, rows };
        load.parse(wire.send(&load.call()).unwrap())
    }

    pub fn reserving<'a>(&'a self, bucket: usize, batch: &'a [Reservation]) -> ReserveBatch<'a> {
        ReserveBatch {
            keys: &self.buckets[bucket],
            fence: &self.fence,
            sku: &self.sku,
            epoch: batch.first().map_or(Epoch(1), |ask| ask.epoch),
            outbox: self.outbox,
            touch: false,
            batch,
        }
    }

    /// Decides a batch of one opening.
    pub fn reserve(&self, wire: &mut Wire, bucket: usize, batch: &[Reservation]) -> Vec<Verdict> {
        let door = self.reserving(bucket, batch);
        door.parse(wire.send(&door.call()).unwrap()).unwrap().verdicts
    }

    /// Decides a batch of which the accepted intents wait there.
    pub fn reserve_into(
        &self,
        wire: &mut Wire,
        outbox: OutboxArgs,
        batch: &[Reservation],
    ) -> Vec<Verdict> {
        let door = ReserveBatch { outbox, ..self.reserving(0, batch) };
        door.parse(wire.send(&door.call()).unwrap()).unwrap().verdicts
    }

    /// The entries of an outbox, each as its packed intents.
    pub fn entries(&self, wire: &mut Wire, bucket: usize, outbox: OutboxArgs) -> Vec<Vec<u8>> {
        let key = &self.buckets[bucket].outbox();
        match outbox {
            OutboxArgs::None => panic!("no entries"),
            OutboxArgs::List(_) => {
                let entries = wire.cmd(&["LRANGE", key, "0", "-1"]);
                redis::from_redis_value(entries).unwrap()
            }
            OutboxArgs::Stream(_) => {
                type Entry = (String, Vec<(String, Vec<u8>)>);
                let entries = wire.cmd(&["XRANGE", key, "-", "+"]);
                let entries: Vec<Entry> = redis::from_redis_value(entries).unwrap();
                let only_field = |(_, fields): Entry| match &fields[..] {
                    [(name, packed)] if name == "intents" => packed.clone(),
                    _ => panic!("{fields:?}"),
                };
                entries.into_iter().map(only_field).collect()
            }
        }
    }

    pub fn settle(&self, wire: &mut Wire, bucket: usize, orders: &[Order]) -> Vec<SettleOutcome> {
        let (keys, policy) = (&self.buckets[bucket], self.sku.policy);
        let door = Settle { keys, fence: &self.fence, policy, orders };
        door.parse(wire.send(&door.call()).unwrap()).unwrap().items
    }

    pub fn release(
        &self,
        wire: &mut Wire,
        bucket: usize,
        refused: &[RefusedRequest],
    ) -> SettleOutcomes {
        let (keys, policy) = (&self.buckets[bucket], self.sku.policy);
        let door = Release { keys, fence: &self.fence, policy, refused };
        door.parse(wire.send(&door.call()).unwrap()).unwrap()
    }

    pub fn turn(&self, wire: &mut Wire, bucket: usize, phase: Phase, epoch: Epoch) -> bool {
        let turn = SetPhase { keys: &self.buckets[bucket], fence: &self.fence, epoch, phase };
        turn.parse(wire.send(&turn.call()).unwrap()).unwrap()
    }

    pub fn lend(&self, wire: &mut Wire, from: usize, to: u16, want: u32) -> Option<Loan> {
        let (keys, to) = (&self.buckets[from], BucketNo(to));
        let lend = Lend { keys, fence: &self.fence, to, want };
        lend.parse(wire.send(&lend.call()).unwrap()).unwrap().0
    }

    pub fn borrow(&self, wire: &mut Wire, from: u16, to: usize, loan: Loan) -> u32 {
        let (keys, from) = (&self.buckets[to], BucketNo(from));
        let borrow = Borrow { keys, fence: &self.fence, from, loan };
        borrow.parse(wire.send(&borrow.call()).unwrap()).unwrap().0
    }

    pub fn clear_loan(&self, wire: &mut Wire, from: usize, to: u16, no: u64) -> bool {
        let (keys, to) = (&self.buckets[from], BucketNo(to));
        let clear = ClearLoan { keys, fence: &self.fence, to, no };
        clear.parse(wire.send(&clear.call()).unwrap()).unwrap().0
    }

    pub fn find(&self, bucket: usize) -> Find<'_> {
        Find { keys: &self.buckets[bucket], fence: &self.fence, requests: &[] }
    }

    /// All pages.
    pub fn queued(&self, bucket: usize) -> ReadQueued<'_> {
        let keys = &self.buckets[bucket];
        ReadQueued { keys, fence: &self.fence, pages: 0..keys.pages() }
    }

    pub fn counts(&self, wire: &mut Wire, bucket: usize) -> BucketCounts {
        let keys = &self.buckets[bucket];
        let snapshot = Snapshot { keys, fence: &self.fence, pages: true };
        snapshot.parse(wire.send(&snapshot.call()).unwrap()).unwrap()
    }

    pub fn ask(&self, request_no: u64, buyer_no: u64, quantity: u32) -> Reservation {
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

    /// The order that a reservation becomes.
    pub fn order(&self, ask: &Reservation) -> Order {
        ask.intent(&self.sku).order()
    }
}

/// The refusal of a reservation by the ledger.
pub fn refused(ask: &Reservation, reason: Refusal) -> RefusedRequest {
    let (request, buyer, quantity) = (ask.request, ask.buyer, ask.quantity);
    RefusedRequest { request, buyer, quantity, reason, recorded_at_ms: ask.asked_at_ms + 5 }
}
