//! What the supervisor promises: a fresh actor after any end, a budget, and nothing lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use actix::{Actor, Arbiter, AsyncContext, Context, Handler, Message};
use floodgate::actors::supervisor::supervised::{
    ExitReason, Incarnation, Supervised, end, spawn_step, step,
};
use floodgate::actors::supervisor::{ChildSpec, ChildState, Supervisor};
use floodgate::config::{Settings, Tier};
use floodgate::messages::{BuyAnswer, Stop};
use floodgate::runtime::clock::{ManualClock, SystemClock, now_monotonic};
use floodgate::runtime::fault_injection::FaultInjector;
use floodgate::runtime::progress::answered;
use floodgate::runtime::shutdown::Shutdown;
use futures_util::future::join_all;
use tokio::sync::{mpsc, oneshot};

use crate::support::lying_ledger::{Lie, LyingLedger};
use crate::support::rig::{ONE_PER_BUYER, Offer, Rig, in_system, is_placed, settings};
use crate::support::wait::until;

#[derive(Message)]
#[rtype(result = "()")]
enum Do {
    Panic,
    PanicLater,
    Fail,
    Hang,
    /// Hangs, while a timer ticks.
    HangTicking,
    /// Works for as long as it is asked.
    Work(mpsc::UnboundedReceiver<oneshot::Sender<()>>),
}

struct Victim {
    life: Incarnation,
}

impl Actor for Victim {
    type Context = Context<Self>;
}

impl Supervised for Victim {
    fn life(&mut self) -> &mut Incarnation {
        &mut self.life
    }
}

impl Handler<Stop> for Victim {
    type Result = ();

    fn handle(&mut self, _: Stop, ctx: &mut Self::Context) {
        end(self, ctx, ExitReason::Stopped);
    }
}

impl Handler<Do> for Victim {
    type Result = ();

    fn handle(&mut self, message: Do, ctx: &mut Self::Context) {
        step(self, ctx, |victim, ctx| match message {
            Do::Panic => panic!("in a step"),
            Do::PanicLater => {
                spawn_step(victim, ctx, async { panic!("in a future") }, |_, _, (): ()| {});
            }
            Do::Fail => end(victim, ctx, ExitReason::Failed("no reason".to_owned())),
            Do::Hang => spawn_step(victim, ctx, std::future::pending::<()>(), |_, _, ()| {}),
            Do::HangTicking => {
                spawn_step(victim, ctx, std::future::pending::<()>(), |_, _, ()| {});
                let tick = Duration::from_millis(1);
                ctx.run_interval(tick, |victim, ctx| step(victim, ctx, |_, _| {}));
            }
            Do::Work(mut calls) => {
                let work = async move {
                    while let Some(call) = calls.recv().await {
                        answered();
                        call.send(()).unwrap();
                    }
                };
                spawn_step(victim, ctx, work, |_, _, ()| {});
            }
        });
    }
}

fn supervisor(settings: &Settings) -> Supervisor {
    let clock = SystemClock::shared();
    Supervisor::new(settings.supervisor.clone(), clock, Shutdown::default(), Arbiter::current())
}

fn victim(births: &Arc<AtomicU32>) -> ChildSpec<Victim> {
    let births = Arc::clone(births);
    ChildSpec {
        name: "victim".to_owned(),
        kind: "victim",
        arbiter: Arbiter::current(),
        mailbox: 16,
        drill: FaultInjector::default(),
        factory: Arc::new(move |life| {
            births.fetch_add(1, Ordering::Relaxed);
            Victim { life }
        }),
    }
}

#[test]
fn however_an_actor_ends_a_fresh_one_follows() {
    in_system(async {
        let mut settings = settings(Tier::Memory);
        settings.supervisor.heartbeat_ms = 1;
        settings.supervisor.stalled_after_ms = 20;
        settings.supervisor.restarts_max = 6;
        let births = Arc::new(AtomicU32::new(0));
        let supervisor = supervisor(&settings);
        let address = supervisor.start(victim(&births));
        let ends = [
            (Do::Panic, "panicked: in a step"),
            (Do::PanicLater, "panicked: in a future"),
            (Do::Fail, "failed: no reason"),
            (Do::Hang, "stalled: it had work and made no progress"),
            (Do::Fail, "failed: no reason"),
            (Do::HangTicking, "stalled: it had work and made no progress"),
        ];
        for (born, (way, reason)) in (1..).zip(ends) {
            let alive = address.wait_up().await;
            until("birth", || async { (births.load(Ordering::Relaxed) == born).then_some(()) })
                .await;
            alive.try_send(way).unwrap();
            until("the end", || async {
                let report = supervisor.report().remove(0);
                (report.last_exit.as_deref() == Some(reason)).then_some(())
            })
            .await;
        }
        address.wait_up().await;
        let report = supervisor.report().remove(0);
        assert_eq!((report.restarts, report.panics, report.stalls), (6, 2, 2));
        assert_eq!(report.state, ChildState::Up);
    });
}

#[test]
fn long_work_whose_calls_are_answered_is_no_stall() {
    in_system(async {
        let mut settings = settings(Tier::Memory);
        settings.supervisor.heartbeat_ms = 1;
        settings.supervisor.stalled_after_ms = 1000;
        let clock = Arc::new(ManualClock::new(0));
        let (watched, home) = (settings.supervisor.clone(), Arbiter::current());
        let supervisor = Supervisor::new(watched, clock.clone(), Shutdown::default(), home);
        let address = supervisor.start(victim(&Arc::default()));
        let (ask, calls) = mpsc::unbounded_channel();
        address.wait_up().await.try_send(Do::Work(calls)).unwrap();
        // Many heartbeats, whatever they see: each call takes less than what counts as a stall.
        let end = now_monotonic() + Duration::from_millis(100);
        while now_monotonic() < end {
            clock.advance(Duration::from_millis(600));
            let (call, done) = oneshot::channel();
            ask.send(call).unwrap();
            done.await.expect("the same actor, at the same work");
        }
        assert_eq!(supervisor.report().remove(0).stalls, 0);
        until("a stall", async || {
            clock.advance(Duration::from_millis(600));
            (supervisor.report().remove(0).stalls == 1).then_some(())
        })
        .await;
    });
}

#[test]
fn a_used_up_budget_is_a_component_that_is_down() {
    in_system(async {
        let mut settings = settings(Tier::Memory);
        settings.supervisor.restarts_max = 3;
        let births = Arc::new(AtomicU32::new(0));
        let supervisor = supervisor(&settings);
        let address = supervisor.start(victim(&births));
        for panics in 1..=4 {
            address.wait_up().await.try_send(Do::Panic).unwrap();
            until("the end", || async {
                (supervisor.report().remove(0).panics == panics).then_some(())
            })
            .await;
        }
        let down = supervisor.component_down().await;
        assert_eq!((down.name.as_str(), down.restarts_max), ("victim", 3));
        assert!(!supervisor.all_up());
        assert_eq!(births.load(Ordering::Relaxed), 4);
        let waited = tokio::time::timeout(Duration::from_millis(20), address.wait_up()).await;
        assert!(waited.is_err(), "nobody follows");
    });
}

/// C22 at 1 %: each kind of actor loses one step in a hundred, nobody loses an order.
#[test]
fn panics_in_one_step_of_a_hundred_lose_nothing_and_double_nothing() {
    for kind in ["stock_gate", "ledger_writer"] {
        in_system(async {
            let mut settings = settings(Tier::Memory);
            settings.supervisor.restarts_max = 100_000;
            // Small batches: many steps, so that one in a hundred is many.
            settings.gate.batch_max = 2;
            settings.consumer.batch_max = 2;
            settings.faults.panic_in = vec![kind.to_owned()];
            settings.faults.panic_percent = 1.0;
            let ledger = Arc::new(LyingLedger::new(Lie::Honest));
            let offer = Offer { policy: ONE_PER_BUYER, stock: 1_000, buckets: 4 };
            let rig = Rig::open(&settings, ledger, offer).await;
            let crowd = (1..=2_000_u64).map(|buyer| buy_until_told(&rig, buyer));
            let answers = join_all(crowd).await;
            assert_eq!(answers.iter().filter(|answer| is_placed(answer)).count(), 1_000);
            until("rest", || async { rig.audit(0).await.could_tell.then_some(()) }).await;
            rig.assert_holds().await;
            let panics: u64 = rig.actors.supervisor().report().iter().map(|r| r.panics).sum();
            assert!(panics > 0, "the drill must have struck {kind}");
        });
    }
}

/// C22 at 100 %: the budget ends it, with a name and a reason.
#[test]
fn panics_in_every_step_use_up_the_budget() {
    for kind in ["stock_gate", "ledger_writer"] {
        in_system(async {
            let mut settings = settings(Tier::Memory);
            settings.faults.panic_in = vec![kind.to_owned()];
            settings.faults.panic_percent = 100.0;
            settings.http.answer_deadline_ms = 50;
            let ledger = Arc::new(LyingLedger::new(Lie::Honest));
            // Some panics come after the work, so there must be work until the budget is used up.
            let offer = Offer { policy: ONE_PER_BUYER, stock: 10_000, buckets: 1 };
            let rig = Rig::open(&settings, ledger, offer).await;
            let buying = async {
                for buyer in 1.. {
                    rig.buy(buyer).await;
                }
            };
            let down = tokio::select! {
                () = buying => unreachable!(),
                down = rig.actors.supervisor().component_down() => down,
            };
            assert!(down.name.starts_with(kind), "{down}");
            assert!(down.last_exit.contains("drill"), "{down}");
        });
    }
}

/// A buyer who asks again with the same request id until the answer is final.
async fn buy_until_told(rig: &Rig, buyer: u64) -> BuyAnswer {
    loop {
        match rig.buy_as(buyer, buyer, 1).await {
            BuyAnswer::Busy | BuyAnswer::Unknown => tokio::task::yield_now().await,
            told => return told,
        }
    }
}
