//! Promises of the supervisor: a new actor after every exit, a restart budget, and no lost orders.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use actix::{Actor, Arbiter, AsyncContext, Context, Handler, Message};
use diesel::connection::SimpleConnection;
use diesel::prelude::*;
use floodgate::actors::supervisor::supervised::{
    ExitReason, Incarnation, Supervised, end, spawn_step, step, step_later,
};
use floodgate::actors::supervisor::{ChildSpec, Supervisor};
use floodgate::config::{Settings, Tier};
use floodgate::db::sqlite::{OpenOptions, SqliteLedger};
use floodgate::messages::{BuyAnswer, WriteError};
use floodgate::runtime::clock::{ManualClock, SystemClock, now_monotonic};
use floodgate::runtime::fault_injection::FaultInjector;
use floodgate::runtime::progress::ChildState;
use floodgate::runtime::progress::answered;
use floodgate::runtime::shutdown::Shutdown;
use futures_util::future::join_all;
use tokio::sync::{mpsc, oneshot};

use crate::support::defective_ledger::{DefectiveLedger, LedgerDefect};
use crate::support::harness::{Harness, ONE_PER_BUYER, Offer, in_system, is_placed, settings};
use crate::support::wait::until;

#[derive(Message)]
#[rtype(result = "()")]
enum Do {
    Panic,
    PanicInFuture,
    PanicAfterPause,
    Fail,
    Hang,
    /// Hangs while a timer keeps firing.
    HangTicking,
    /// Works as long as calls arrive.
    Work(mpsc::UnboundedReceiver<oneshot::Sender<()>>),
}

struct Victim {
    incarnation: Incarnation,
}

impl Actor for Victim {
    type Context = Context<Self>;
}

impl Supervised for Victim {
    fn incarnation(&mut self) -> &mut Incarnation {
        &mut self.incarnation
    }
}

impl Handler<Do> for Victim {
    type Result = ();

    fn handle(&mut self, message: Do, ctx: &mut Self::Context) {
        step(self, ctx, |victim, ctx| match message {
            Do::Panic => panic!("in a step"),
            Do::PanicInFuture => {
                spawn_step(victim, ctx, async { panic!("in a future") }, |_, _, (): ()| {});
            }
            Do::PanicAfterPause => {
                step_later(ctx, Duration::from_millis(1), |_: &mut Self, _| panic!("later"));
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

fn victim(num_started: &Arc<AtomicU32>) -> ChildSpec<Victim> {
    let num_started = Arc::clone(num_started);
    ChildSpec {
        name: "victim".to_owned(),
        kind: "victim",
        arbiter: Arbiter::current(),
        mailbox: 16,
        ends_with_last_address: false,
        fault_injector: FaultInjector::default(),
        factory: Arc::new(move |incarnation| {
            num_started.fetch_add(1, Ordering::Relaxed);
            Victim { incarnation }
        }),
    }
}

#[test]
fn however_an_actor_ends_a_fresh_one_follows() {
    in_system(async {
        let mut settings = settings(Tier::Memory);
        settings.supervisor.heartbeat_ms = 1;
        settings.supervisor.stalled_after_ms = 20;
        settings.supervisor.restarts_max = 7;
        let num_started = Arc::new(AtomicU32::new(0));
        let supervisor = supervisor(&settings);
        let address = supervisor.start(victim(&num_started));
        let exits = [
            (Do::Panic, "panicked: in a step"),
            (Do::PanicInFuture, "panicked: in a future"),
            (Do::PanicAfterPause, "panicked: later"),
            (Do::Fail, "failed: no reason"),
            (Do::Hang, "stalled: it had work and made no progress"),
            (Do::Fail, "failed: no reason"),
            (Do::HangTicking, "stalled: it had work and made no progress"),
        ];
        for (started, (message, reason)) in (1..).zip(exits) {
            let running = address.wait_up().await;
            until("the incarnation", || async {
                (num_started.load(Ordering::Relaxed) == started).then_some(())
            })
            .await;
            running.try_send(message).unwrap();
            until("the exit", || async {
                let report = supervisor.report().remove(0);
                (report.last_exit.as_deref() == Some(reason)).then_some(())
            })
            .await;
        }
        address.wait_up().await;
        let report = supervisor.report().remove(0);
        assert_eq!((report.restarts, report.panics, report.stalls), (7, 3, 2));
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
        let (supervisor_settings, arbiter) = (settings.supervisor.clone(), Arbiter::current());
        let supervisor =
            Supervisor::new(supervisor_settings, clock.clone(), Shutdown::default(), arbiter);
        let address = supervisor.start(victim(&Arc::default()));
        let (sender, calls) = mpsc::unbounded_channel();
        address.wait_up().await.try_send(Do::Work(calls)).unwrap();
        // Many heartbeats pass; each call takes less time than the stall limit.
        let end = now_monotonic() + Duration::from_millis(100);
        while now_monotonic() < end {
            clock.advance(Duration::from_millis(600));
            let (call, done) = oneshot::channel();
            sender.send(call).unwrap();
            done.await.expect("the actor was not replaced");
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
fn a_child_that_ends_with_last_address_ends_with_its_last_address() {
    in_system(async {
        let settings = settings(Tier::Memory);
        let supervisor = supervisor(&settings);
        let ending = |name: &str| ChildSpec {
            name: name.to_owned(),
            ends_with_last_address: true,
            ..victim(&Arc::default())
        };
        let (kept, dropped) =
            (supervisor.start(ending("kept")), supervisor.start(ending("dropped")));
        drop(supervisor.start(victim(&Arc::default())));
        let actor = dropped.wait_up().await;
        let clone = dropped.clone();
        drop(dropped);
        kept.wait_up().await;
        assert!(actor.connected() && supervisor.report().len() == 3);
        actor.try_send(Do::Panic).unwrap();
        until("the next actor", async || (!actor.connected()).then_some(())).await;
        let actor = clone.wait_up().await;
        drop(clone);
        until("the end of the actor", async || (!actor.connected()).then_some(())).await;
        let report = supervisor.report();
        let names: Vec<_> = report.iter().map(|child| child.name.as_str()).collect();
        assert_eq!(names, ["kept", "victim"]);
        let sum: u64 = supervisor.restarts().iter().map(|report| report.restarts).sum();
        assert_eq!(sum, 1, "a counter never falls");
        assert!(kept.wait_up().await.connected());
    });
}

#[test]
fn a_used_up_budget_is_a_component_that_is_down() {
    in_system(async {
        let mut settings = settings(Tier::Memory);
        settings.supervisor.restarts_max = 3;
        let num_started = Arc::new(AtomicU32::new(0));
        let supervisor = supervisor(&settings);
        let address = supervisor.start(victim(&num_started));
        for panics in 1..=4 {
            address.wait_up().await.try_send(Do::Panic).unwrap();
            until("the exit", || async {
                (supervisor.report().remove(0).panics == panics).then_some(())
            })
            .await;
        }
        let down = supervisor.component_down().await;
        assert_eq!((down.name.as_str(), down.restarts_max), ("victim", 3));
        assert!(!supervisor.all_up());
        assert_eq!(num_started.load(Ordering::Relaxed), 4);
        let waited = tokio::time::timeout(Duration::from_millis(20), address.wait_up()).await;
        assert!(waited.is_err(), "no replacement is started");
    });
}

/// What the other process sells is missing in the buckets of this one.
#[test]
fn a_ledger_writer_ends_when_another_process_has_taken_over_its_ledger() {
    in_system(async {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("ledger.db");
        let ledger = Arc::new(SqliteLedger::open(&OpenOptions::new(&file)).unwrap());
        let mut settings = settings(Tier::Memory);
        settings.supervisor.restarts_max = 0;
        settings.consumer.attempts_max = 1;
        let offer = Offer { policy: ONE_PER_BUYER, stock: 9, buckets: 1 };
        let harness = Harness::open(&settings, ledger, offer).await;
        let mut other = SqliteConnection::establish(file.to_str().unwrap()).unwrap();
        other.batch_execute("PRAGMA busy_timeout = 5000").unwrap();
        other.batch_execute("UPDATE tokens SET token = token + 1 WHERE name = 'writer'").unwrap();

        let intent = harness.ask(1, 1, 1);
        let written = harness.actors.ledger_writer.place_and_settle(vec![intent]).await;
        assert!(matches!(written[..], [Err(WriteError::Crashed)]), "{written:?}");
        let down = harness.actors.supervisor.component_down().await;
        assert_eq!(down.name, "ledger_writer");
        assert!(down.last_exit.contains("stop one of the two"), "{down}");
    });
}

#[test]
fn restarts_that_are_far_apart_never_use_up_the_budget() {
    in_system(async {
        let mut settings = settings(Tier::Memory).supervisor;
        settings.restarts_max = 1;
        let window = Duration::from_millis(settings.restart_window_ms);
        let clock = Arc::new(ManualClock::new(0));
        let supervisor =
            Supervisor::new(settings, clock.clone(), Shutdown::default(), Arbiter::current());
        let address = supervisor.start(victim(&Arc::default()));
        for panics in 1..=3 {
            address.wait_up().await.try_send(Do::Panic).unwrap();
            let state = until("the exit", async || {
                let report = supervisor.report().remove(0);
                (report.panics == panics).then_some(report.state)
            })
            .await;
            assert_ne!(state, ChildState::Down, "after exit {panics}");
            clock.advance(window + Duration::from_millis(1));
        }
    });
}

/// C22 at 1 %: one step in a hundred of each kind of actor panics, and no order is lost.
#[test]
fn panics_in_one_step_of_a_hundred_lose_nothing_and_double_nothing() {
    for kind in ["stock_gate", "ledger_writer"] {
        in_system(async {
            let mut settings = settings(Tier::Memory);
            settings.supervisor.restarts_max = 100_000;
            // Small batches give many steps, and so many panics.
            settings.gate.batch_max = 2;
            settings.consumer.batch_max = 2;
            settings.faults.panic_in = vec![kind.to_owned()];
            settings.faults.panic_percent = 1.0;
            let ledger = Arc::new(DefectiveLedger::new(LedgerDefect::None));
            let offer = Offer { policy: ONE_PER_BUYER, stock: 1_000, buckets: 4 };
            let harness = Harness::open(&settings, ledger, offer).await;
            let crowd = (1..=2_000_u64).map(|buyer| buy_until_answered(&harness, buyer));
            let answers = join_all(crowd).await;
            assert_eq!(answers.iter().filter(|answer| is_placed(answer)).count(), 1_000);
            until("quiescence", || async { harness.audit(0).await.could_tell.then_some(()) }).await;
            harness.assert_holds().await;
            let panics: u64 = harness.actors.supervisor.report().iter().map(|r| r.panics).sum();
            assert!(panics > 0, "no panic was injected into {kind}");
        });
    }
}

/// C22 at 100 %: the restart budget is used up; the report names the actor and the reason.
#[test]
fn panics_in_every_step_use_up_the_budget() {
    for kind in ["stock_gate", "ledger_writer"] {
        in_system(async {
            let mut settings = settings(Tier::Memory);
            settings.faults.panic_in = vec![kind.to_owned()];
            settings.faults.panic_percent = 100.0;
            settings.http.answer_deadline_ms = 50;
            let ledger = Arc::new(DefectiveLedger::new(LedgerDefect::None));
            // Some steps panic after their work: keep buying until the budget is used up.
            let offer = Offer { policy: ONE_PER_BUYER, stock: 10_000, buckets: 1 };
            let harness = Harness::open(&settings, ledger, offer).await;
            let buying = async {
                for buyer in 1.. {
                    harness.buy(buyer).await;
                }
            };
            let down = tokio::select! {
                () = buying => unreachable!(),
                down = harness.actors.supervisor.component_down() => down,
            };
            assert!(down.name.starts_with(kind), "{down}");
            assert!(down.last_exit.contains("drill"), "{down}");
        });
    }
}

/// Repeats a purchase with the same request id until the answer is final.
async fn buy_until_answered(harness: &Harness, buyer: u64) -> BuyAnswer {
    loop {
        match harness.buy_as(buyer, buyer, 1).await {
            BuyAnswer::Busy | BuyAnswer::Unknown => tokio::task::yield_now().await,
            answer => return answer,
        }
    }
}
