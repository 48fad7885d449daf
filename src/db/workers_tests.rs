//! Each test holds a worker inside a job until it says so; no result depends on how long it takes.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

use diesel::prelude::*;
use diesel::r2d2::ConnectionManager;

use super::*;

/// Long enough never to be reached.
const NEVER: Duration = Duration::from_mins(10);
/// Over as soon as anybody looks.
const AT_ONCE: Duration = Duration::from_millis(1);

/// One thread with a connection of its own, and how many connections were made.
fn one_writer(queue_max: usize, deadline: Duration) -> (Workers<SqliteConnection>, Arc<AtomicU32>) {
    let made = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&made);
    let connect: Connect<SqliteConnection> = Arc::new(move || {
        count.fetch_add(1, Ordering::SeqCst);
        SqliteConnection::establish(":memory:")
            .map_err(|error| Error::CannotOpen { reason: error.to_string() })
    });
    let names = vec!["ledger-writer".to_owned()];
    let source = ConnectionSource::<ConnectionManager<_>>::Own { first: None, connect };
    (Workers::start(names, source, queue_max, deadline).unwrap(), made)
}

impl<C> Workers<C> {
    /// Jobs that wait for a thread.
    fn num_waiting(&self) -> usize {
        self.queue.read().as_ref().map_or(0, crossbeam_channel::Sender::len)
    }
}

/// A job that says when it begins and ends when it is told to.
struct Held {
    begun: Receiver<()>,
    end: Sender<()>,
}

fn held() -> (Held, impl FnOnce(&mut SqliteConnection) -> Result<(), Error> + Send + 'static) {
    let (tell, begun) = channel();
    let (end, wait) = channel();
    let job = move |_: &mut SqliteConnection| {
        tell.send(()).unwrap();
        wait.recv().unwrap();
        Ok(())
    };
    (Held { begun, end }, job)
}

/// The one thread is in a job from here on, until it is told to end.
fn occupy(workers: &Workers<SqliteConnection>) -> (Held, SubmittedJob<()>) {
    let (held, job) = held();
    let submitted = workers.submit(job).unwrap();
    held.begun.recv().unwrap();
    (held, submitted)
}

fn thread_name() -> String {
    thread::current().name().unwrap_or_default().to_owned()
}

#[tokio::test]
async fn a_job_runs_on_the_named_thread_and_its_error_comes_back() {
    let (workers, made) = one_writer(4, NEVER);
    let name = workers.run("asking", |_| Ok(thread_name())).await.unwrap();
    assert_eq!(name, "ledger-writer");
    let error = workers.run("failing", |_| Err::<(), _>(Error::Full)).await.unwrap_err();
    assert!(matches!(error, Error::Full));
    assert_eq!(made.load(Ordering::SeqCst), 1);
    // After any error the connection is replaced.
    workers.run("asking", |_| Ok(())).await.unwrap();
    assert_eq!(made.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn a_panic_costs_the_connection_and_not_the_thread() {
    let (workers, made) = one_writer(4, NEVER);
    let doing = "panicking";
    let error =
        workers.run(doing, |_| -> Result<(), Error> { panic!("on purpose") }).await.unwrap_err();
    assert!(matches!(error, Error::WorkerDied { doing: "panicking" }), "{error:?}");
    assert_eq!(error.class(), crate::db::ErrorClass::Unknown);
    workers.run("asking", |_| Ok(())).await.unwrap();
    assert_eq!(made.load(Ordering::SeqCst), 2);
}

/// A panic's payload that panics again when it is thrown away, where nobody catches it.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        assert!(thread::panicking(), "on purpose, on the way out of the worker");
    }
}

#[tokio::test]
async fn a_thread_that_dies_all_the_same_is_replaced() {
    let (workers, made) = one_writer(4, NEVER);
    let died = workers.run("dying", |_| -> Result<(), Error> { std::panic::panic_any(Bomb) }).await;
    assert!(matches!(died.unwrap_err(), Error::WorkerDied { .. }));
    let name = workers.run("asking", |_| Ok(thread_name())).await.unwrap();
    assert_eq!(name, "ledger-writer");
    assert_eq!(made.load(Ordering::SeqCst), 2);
    workers.close().await;
}

#[tokio::test]
async fn a_job_that_began_and_is_late_is_unknown() {
    let (workers, _) = one_writer(4, AT_ONCE);
    let (held, submitted) = occupy(&workers);
    let error = workers.answer("writing", submitted).await.unwrap_err();
    assert!(matches!(error, Error::TimedOut { doing: "writing" }), "{error:?}");
    held.end.send(()).unwrap();
}

#[tokio::test]
async fn a_job_that_never_began_is_taken_back() {
    let (workers, _) = one_writer(4, AT_ONCE);
    let (held, first) = occupy(&workers);
    let ran = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&ran);
    let late = workers.run("writing", move |_| {
        count.fetch_add(1, Ordering::SeqCst);
        Ok(())
    });
    let error = late.await.unwrap_err();
    assert!(matches!(error, Error::NotBegun { doing: "writing" }), "{error:?}");
    assert_eq!(error.class(), crate::db::ErrorClass::Retry);

    held.end.send(()).unwrap();
    drop(first);
    workers.run_long("asking", |_| Ok(())).await.unwrap();
    assert_eq!(ran.load(Ordering::SeqCst), 0, "what was taken back does not run later");
}

#[tokio::test]
async fn a_job_whose_caller_has_gone_does_not_run_later() {
    let (workers, _) = one_writer(4, NEVER);
    let (held, first) = occupy(&workers);
    let ran = Arc::new(AtomicU32::new(0));
    let count = |job: u32| {
        let ran = Arc::clone(&ran);
        move |_: &mut SqliteConnection| {
            ran.fetch_add(job, Ordering::SeqCst);
            Ok(())
        }
    };
    {
        let (short, long) = (workers.run("writing", count(1)), workers.run_long("r", count(2)));
        tokio::pin!(short, long);
        tokio::select! {
            biased;
            _ = &mut short => panic!("the thread is held"),
            _ = &mut long => panic!("the thread is held"),
            () = std::future::ready(()) => {}
        }
        assert_eq!(workers.num_waiting(), 2, "both are in the queue when their callers go");
    }
    held.end.send(()).unwrap();
    drop(first);
    workers.run("writing", count(4)).await.unwrap();
    assert_eq!(ran.load(Ordering::SeqCst), 4);
}

#[tokio::test]
async fn a_job_that_has_begun_is_not_taken_back() {
    let (workers, _) = one_writer(4, NEVER);
    let (held, submitted) = occupy(&workers);
    assert!(!submitted.take_back(), "it may write");
    held.end.send(()).unwrap();
}

#[tokio::test]
async fn a_full_queue_refuses_and_a_closed_one_finishes_what_it_has() {
    let (workers, _) = one_writer(1, NEVER);
    let (held, running) = occupy(&workers);
    let waiting = workers.submit(|_| Ok(7)).unwrap();
    assert_eq!(workers.num_waiting(), 1);
    assert!(matches!(workers.run("writing", |_| Ok(())).await, Err(Error::Full)));

    held.end.send(()).unwrap();
    workers.close().await;
    assert!(workers.answer("running", running).await.is_ok());
    assert_eq!(workers.answer("waiting", waiting).await.unwrap(), 7);
    assert!(matches!(workers.run("writing", |_| Ok(())).await, Err(Error::Closed)));
    workers.close().await;
}

#[tokio::test]
async fn a_connection_that_cannot_be_made_is_an_answer() {
    let source = ConnectionSource::<ConnectionManager<_>>::Own {
        first: None,
        connect: Arc::new(|| Err(Error::CannotOpen { reason: "no".to_owned() })),
    };
    let workers: Workers<SqliteConnection> =
        Workers::start(vec!["ledger-writer".to_owned()], source, 1, NEVER).unwrap();
    for _ in 0..2 {
        let error = workers.run("asking", |_| Ok(())).await.unwrap_err();
        assert!(matches!(error, Error::CannotOpen { .. }), "{error:?}");
    }
}

#[tokio::test]
async fn a_pool_replaces_the_connection_of_a_panic() {
    let pool = Pool::builder().max_size(1).build(ConnectionManager::new(":memory:")).unwrap();
    let names = vec!["ledger-reader-0".to_owned(), "ledger-reader-1".to_owned()];
    let workers: Workers<SqliteConnection> =
        Workers::start(names, ConnectionSource::Pool(pool), 4, NEVER).unwrap();
    let mark =
        |conn: &mut SqliteConnection| Ok(diesel::sql_query("CREATE TABLE mark (x)").execute(conn)?);
    workers.run("marking", mark).await.unwrap();
    let died = workers.run("dying", |_| -> Result<(), Error> { panic!("on purpose") }).await;
    assert!(matches!(died, Err(Error::WorkerDied { .. })));
    workers.run("marking", mark).await.expect("a fresh connection has no such table yet");
}
