//! `kill -9` of any processes and any servers of tier `pipeline`, one to two at a time, at random
//! moments under load, round after round on the same sale. Some restart at once, others after a
//! pause, and the load outlasts both. Beside the buyers of that sale, those of another pay, cancel,
//! are refunded, or let their orders lapse.
//!
//! The seed of a run is printed; `FLOODGATE_CHAOS_SEED` repeats it, `FLOODGATE_CHAOS_ROUNDS` sets
//! the number of rounds.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::oneshot;

use crate::support::admin::open_sale;
use crate::support::crowd::{History, STEADY, send_until};
use crate::support::gate::retry_until;
use crate::support::paying_buyers::PayingBuyers;
use crate::support::pipeline::PipelineFixture;
use crate::support::process::Server;
use crate::support::quota_load;
use crate::support::random::number_from_env;
use crate::support::webhooks;

const ROUNDS: u64 = 6;
const BUYERS_PER_ROUND: u64 = 900;
/// Fewer units than its buyers ask for.
const STOCK_PER_ROUND: u64 = 2_000;
/// Each purchase is sent so often that the load lasts longer than the faults.
const TIMES: usize = 200;

/// Each role once; the roles whose processes take over from each other twice.
const ROLES: [&str; 6] = ["maintenance", "api", "relay", "relay", "consumer", "consumer"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Victim {
    /// One of [`ROLES`].
    Process(usize),
    Redis,
    Rabbit,
    MariaDb,
}

impl Victim {
    /// One or two victims for each round. None repeats before all were chosen, so that six rounds
    /// kill each of them.
    fn deal(random: &mut fastrand::Rng, rounds: u64) -> Vec<Vec<Self>> {
        let mut groups = Vec::new();
        while (groups.len() as u64) < rounds {
            let processes = (0..ROLES.len()).map(Self::Process);
            let servers = [Self::Redis, Self::Rabbit, Self::MariaDb];
            let mut remaining: Vec<Self> = processes.chain(servers).collect();
            random.shuffle(&mut remaining);
            let mut sizes = [1, 1, 1, 2, 2, 2];
            random.shuffle(&mut sizes);
            groups.extend(sizes.map(|size| remaining.split_off(remaining.len() - size)));
        }
        groups
    }
}

struct Installation {
    fixture: PipelineFixture,
    /// In the order of [`ROLES`]; `None`: killed.
    processes: Vec<Option<Server>>,
}

impl Installation {
    fn new(outbox: &str) -> Self {
        let with = |fixture: PipelineFixture, (key, value): (&str, &str)| fixture.with(key, value);
        let fixture = webhooks::SETTINGS.into_iter().fold(PipelineFixture::new(outbox), with);
        let processes = ROLES.iter().map(|role| Some(fixture.server(role, &[]))).collect();
        Self { fixture, processes }
    }

    fn at(&self, role: &str) -> &Server {
        let index = ROLES.iter().position(|known| *known == role).unwrap();
        self.processes[index].as_ref().expect("every process was restarted")
    }

    fn kill(&mut self, victim: Victim) {
        match victim {
            Victim::Process(index) => {
                self.processes[index].take().expect("the process runs").kill();
            }
            Victim::Redis => self.fixture.redis.kill(),
            Victim::Rabbit => self.fixture.rabbit.kill(),
            Victim::MariaDb => self.fixture.mariadb.kill(),
        }
    }

    fn start(&mut self, victim: Victim) {
        match victim {
            Victim::Process(index) => {
                self.processes[index] = Some(self.fixture.server(ROLES[index], &[]));
            }
            Victim::Redis => self.fixture.redis.restart(),
            Victim::Rabbit => self.fixture.rabbit.restart(),
            Victim::MariaDb => self.fixture.mariadb.restart(),
        }
    }
}

/// Kills the victims together. The stores restart first, because no process starts without them.
fn kill_and_restart(
    installation: &mut Installation,
    mut victims: Vec<Victim>,
    random: &mut fastrand::Rng,
    pause: impl Fn(Duration),
) {
    for victim in &victims {
        installation.kill(*victim);
    }
    victims.sort_by_key(|victim| matches!(victim, Victim::Process(_)));
    for victim in victims {
        if random.bool() {
            pause(Duration::from_millis(random.u64(100..1_500)));
        }
        installation.start(victim);
    }
}

fn chaos(outbox: &str) {
    let rounds = number_from_env("FLOODGATE_CHAOS_ROUNDS").unwrap_or(ROUNDS);
    let seed = number_from_env("FLOODGATE_CHAOS_SEED").unwrap_or_else(|| fastrand::u64(..));
    println!("seed={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    // Not a wait for a condition: the moment of the kill is meant to be arbitrary.
    let pause = |time| runtime.block_on(async { tokio::time::sleep(time).await });
    let mut installation = Installation::new(outbox);
    let stock = rounds * STOCK_PER_ROUND;
    let units = u32::try_from(stock).unwrap();
    let internal = installation.at("maintenance").internal;
    runtime.block_on(open_sale(internal, "sale", quota_load::quota(), units, 4));
    let paying = Arc::new(runtime.block_on(PayingBuyers::open(internal)));
    installation.fixture.settle_queues();
    let mut history = History::default();
    for (round, victims) in (0..rounds).zip(Victim::deal(&mut random, rounds)) {
        println!("round={round} victims={victims:?}");
        let first = 1 + round * BUYERS_PER_ROUND;
        let buyers = first..first + BUYERS_PER_ROUND;
        let public: SocketAddr = installation.at("api").public;
        let purchases = runtime.block_on(quota_load::purchases(public, buyers, &mut random));
        let attempts = quota_load::shuffled(&purchases, TIMES, &mut random);
        let (stop_load, load_stopped) = oneshot::channel::<()>();
        let (end, crowd) = (load_stopped.map(drop), purchases.clone());
        let end = end.shared();
        let (others, their_end) = (Arc::clone(&paying), end.clone());
        let other_load = runtime.spawn(async move { others.buy_until(public, their_end).await });
        let load = runtime.spawn(async move {
            send_until(public, "sale", crowd, attempts, (16, STEADY), end).await
        });
        pause(Duration::from_millis(random.u64(5..400)));
        kill_and_restart(&mut installation, victims, &mut random, pause);
        pause(Duration::from_millis(random.u64(5..400)));
        stop_load.send(()).unwrap_or_default();
        history.absorb(runtime.block_on(load).unwrap());
        runtime.block_on(other_load).unwrap();
        // Buyers without a final answer retry.
        let public = installation.at("api").public;
        history.absorb(runtime.block_on(retry_until(public, purchases, 16, quota_load::is_final)));
    }
    runtime.block_on(async {
        let (public, internal) =
            (installation.at("api").public, installation.at("maintenance").internal);
        quota_load::sell_rest(public, internal, &mut history).await;
        paying.check(&installation.fixture.mariadb, public, internal).await;
        let verdict = installation.fixture.check(seed, internal, &history, stock).await;
        assert_eq!(verdict.units, stock, "every unit was sold: {verdict}");
    });
}

#[test]
fn anything_may_be_killed_with_a_list() {
    chaos("list");
}

#[test]
fn anything_may_be_killed_with_a_stream() {
    chaos("stream");
}
