//! `kill -9` of any processes and any servers of tier `pipeline`, one to two at a time, at random
//! moments under load, round after round on the same sale. Some come back at once, others stay away
//! for a while, and the load lasts longer than either.
//!
//! The seed of a run is printed; `FLOODGATE_CHAOS_SEED` gives it again, `FLOODGATE_CHAOS_ROUNDS`
//! sets the number of rounds.

use std::net::SocketAddr;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::oneshot;

use crate::support::admin::open_sale;
use crate::support::crowd::{History, send_until};
use crate::support::gate::insist_until;
use crate::support::greed;
use crate::support::pipeline::PipelineGround;
use crate::support::process::Server;
use crate::support::random::number_from_env;

const ROUNDS: u64 = 6;
const BUYERS_PER_ROUND: u64 = 900;
/// Fewer units than its buyers want.
const STOCK_PER_ROUND: u64 = 2_000;
/// Each purchase is sent so often that the load lasts longer than the faults.
const TIMES: usize = 200;

/// Each role once, and those that take over from each other twice.
const ROLES: [&str; 6] = ["maintenance", "api", "relay", "relay", "consumer", "consumer"];

/// What is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Victim {
    /// One of [`ROLES`].
    Process(usize),
    Redis,
    Rabbit,
    MariaDb,
}

impl Victim {
    /// For each round one or two victims, of whom each kind comes once before any comes again: six
    /// rounds leave none out.
    fn deal(random: &mut fastrand::Rng, rounds: u64) -> Vec<Vec<Self>> {
        let mut hands = Vec::new();
        while (hands.len() as u64) < rounds {
            let processes = (0..ROLES.len()).map(Self::Process);
            let servers = [Self::Redis, Self::Rabbit, Self::MariaDb];
            let mut deck: Vec<Self> = processes.chain(servers).collect();
            random.shuffle(&mut deck);
            let mut sizes = [1, 1, 1, 2, 2, 2];
            random.shuffle(&mut sizes);
            hands.extend(sizes.map(|size| deck.split_off(deck.len() - size)));
        }
        hands
    }
}

struct Installation {
    ground: PipelineGround,
    /// In the order of [`ROLES`]; `None`: killed.
    processes: Vec<Option<Server>>,
}

impl Installation {
    fn new(outbox: &str) -> Self {
        let ground = PipelineGround::new(outbox);
        let processes = ROLES.iter().map(|role| Some(ground.server(role, &[]))).collect();
        Self { ground, processes }
    }

    fn at(&self, role: &str) -> &Server {
        let place = ROLES.iter().position(|known| *known == role).unwrap();
        self.processes[place].as_ref().expect("everybody is back")
    }

    fn kill(&mut self, victim: Victim) {
        match victim {
            Victim::Process(place) => self.processes[place].take().expect("it runs").kill(),
            Victim::Redis => self.ground.redis.kill(),
            Victim::Rabbit => self.ground.rabbit.kill(),
            Victim::MariaDb => self.ground.mariadb.kill(),
        }
    }

    fn start(&mut self, victim: Victim) {
        match victim {
            Victim::Process(place) => {
                self.processes[place] = Some(self.ground.server(ROLES[place], &[]));
            }
            Victim::Redis => self.ground.redis.restart(),
            Victim::Rabbit => self.ground.rabbit.restart(),
            Victim::MariaDb => self.ground.mariadb.restart(),
        }
    }
}

/// Kills the victims at once. The stores are back first, because no process starts without them.
fn strike(
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
    // Not a wait for a condition: the moment of death is meant to be arbitrary.
    let pause = |time| runtime.block_on(async { tokio::time::sleep(time).await });
    let mut installation = Installation::new(outbox);
    let stock = rounds * STOCK_PER_ROUND;
    let units = u32::try_from(stock).unwrap();
    let internal = installation.at("maintenance").internal;
    runtime.block_on(open_sale(internal, "sale", greed::quota(), units, 4));
    installation.ground.settle_queues();
    let mut history = History::default();
    for (round, victims) in (0..rounds).zip(Victim::deal(&mut random, rounds)) {
        println!("round={round} victims={victims:?}");
        let first = 1 + round * BUYERS_PER_ROUND;
        let buyers = first..first + BUYERS_PER_ROUND;
        let public: SocketAddr = installation.at("api").public;
        let wishes = runtime.block_on(greed::wishes(public, buyers, &mut random));
        let attempts = greed::shuffled(&wishes, TIMES, &mut random);
        let (over, is_over) = oneshot::channel::<()>();
        let (end, crowd) = (is_over.map(drop), wishes.clone());
        let load = runtime
            .spawn(async move { send_until(public, "sale", crowd, attempts, 16, end).await });
        pause(Duration::from_millis(random.u64(5..400)));
        strike(&mut installation, victims, &mut random, pause);
        pause(Duration::from_millis(random.u64(5..400)));
        over.send(()).unwrap_or_default();
        history.absorb(runtime.block_on(load).unwrap());
        // Whoever was not answered asks again.
        let public = installation.at("api").public;
        history.absorb(runtime.block_on(insist_until(public, wishes, 16, greed::is_final)));
    }
    runtime.block_on(async {
        let (public, internal) =
            (installation.at("api").public, installation.at("maintenance").internal);
        greed::sell_rest(public, internal, &mut history).await;
        let verdict = installation.ground.judge(seed, internal, &history, stock).await;
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
