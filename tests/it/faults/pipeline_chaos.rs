//! `kill -9` of any process and any server of tier `pipeline`, at random moments under load, round
//! after round on the same sale.
//!
//! The seed of a run is printed; `FLOODGATE_CHAOS_SEED` gives it again, `FLOODGATE_CHAOS_ROUNDS`
//! sets the number of rounds.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use serde_json::json;
use tokio::sync::oneshot;

use crate::support::admin::open_sale;
use crate::support::crowd::{Heard, History, send_until};
use crate::support::gate::{insist_until, wishes};
use crate::support::pipeline::PipelineGround;
use crate::support::process::Server;
use crate::support::random::number_from_env;

const ROUNDS: u64 = 10;
const ACCEPTED_PER_ROUND: u64 = 2_000;
/// More than there are units for.
const BUYERS_PER_ROUND: u64 = 2_200;

/// Each role once, and those that take over from each other twice.
const ROLES: [&str; 6] = ["keeper", "api", "relay", "relay", "consumer", "consumer"];

/// What is killed in a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Victim {
    /// One of [`ROLES`].
    Process(usize),
    Redis,
    Rabbit,
    MariaDb,
}

impl Victim {
    /// The first rounds kill each kind once, in random order, so that ten rounds leave none out.
    fn deck(random: &mut fastrand::Rng, rounds: u64) -> Vec<Self> {
        let mut deck = Vec::new();
        while (deck.len() as u64) < rounds {
            let processes = (0..ROLES.len()).map(Self::Process);
            let servers = [Self::Redis, Self::Rabbit, Self::MariaDb];
            let mut all: Vec<Self> = processes.chain(servers).collect();
            random.shuffle(&mut all);
            deck.extend(all);
        }
        deck
    }
}

struct Installation {
    ground: PipelineGround,
    processes: Vec<Server>,
}

impl Installation {
    fn new(outbox: &str) -> Self {
        let ground = PipelineGround::new(outbox);
        let processes = ROLES.iter().map(|role| ground.server(role, &[])).collect();
        Self { ground, processes }
    }

    fn at(&self, role: &str) -> &Server {
        let place = ROLES.iter().position(|known| *known == role).unwrap();
        &self.processes[place]
    }

    fn public(&self) -> SocketAddr {
        self.at("api").public
    }

    /// Kills the victim and starts it again at once.
    fn strike(&mut self, victim: Victim) {
        match victim {
            Victim::Process(place) => {
                self.processes.remove(place).kill();
                self.processes.insert(place, self.ground.server(ROLES[place], &[]));
            }
            Victim::Redis => {
                self.ground.redis.kill();
                self.ground.redis.restart();
            }
            Victim::Rabbit => {
                self.ground.rabbit.kill();
                self.ground.rabbit.restart();
            }
            Victim::MariaDb => {
                self.ground.mariadb.kill();
                self.ground.mariadb.restart();
            }
        }
    }
}

/// Accepted, or refused for good.
fn is_final(heard: &Heard) -> bool {
    heard.is_promise() || heard.status == Some(409)
}

fn chaos(outbox: &str) {
    let rounds = number_from_env("FLOODGATE_CHAOS_ROUNDS").unwrap_or(ROUNDS);
    let seed = number_from_env("FLOODGATE_CHAOS_SEED").unwrap_or_else(|| fastrand::u64(..));
    println!("seed={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let mut installation = Installation::new(outbox);
    let stock = rounds * ACCEPTED_PER_ROUND;
    let policy = json!({"kind": "one_per_buyer"});
    let opening = open_sale(
        installation.at("keeper").internal,
        "sale",
        policy,
        u32::try_from(stock).unwrap(),
        4,
    );
    runtime.block_on(opening);
    let mut history = History::default();
    for (round, victim) in (0..rounds).zip(Victim::deck(&mut random, rounds)) {
        println!("round={round} victim={victim:?}");
        let first = 1 + round * BUYERS_PER_ROUND;
        let wishes = Arc::new(wishes(first..first + BUYERS_PER_ROUND));
        let mut attempts: Vec<usize> = (0..3 * wishes.len()).map(|n| n % wishes.len()).collect();
        random.shuffle(&mut attempts);
        let (over, is_over) = oneshot::channel::<()>();
        let end = is_over.map(drop);
        let (public, crowd) = (installation.public(), wishes.clone());
        let load = runtime.spawn(async move {
            send_until(public, "sale", crowd, attempts.into(), 32, end).await
        });
        // Not a wait for a condition: the moment of death is meant to be arbitrary.
        let moment = Duration::from_millis(random.u64(5..400));
        runtime.block_on(async { tokio::time::sleep(moment).await });
        installation.strike(victim);
        over.send(()).unwrap_or_default();
        history.heard.extend(runtime.block_on(load).unwrap().heard);
        // Whoever was not answered asks again.
        let told = insist_until(installation.public(), wishes, 32, is_final);
        history.heard.extend(runtime.block_on(told).heard);
    }
    runtime.block_on(async {
        let internal = installation.at("keeper").internal;
        let verdict = installation.ground.judge(seed, internal, &history, stock).await;
        assert_eq!((verdict.ok + verdict.failed) as u64, stock, "{verdict}");
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
