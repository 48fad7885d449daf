//! Each test blocks a worker inside a job until the test ends the job; no result depends on timing.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

use diesel::prelude::*;

use super::*;

/// A deadline that no test reaches.
const NEVER: Duration = Duration::from_mins(10);
/// A deadline that is exceeded at once.
const AT_ONCE: Duration = Duration::from_millis(1);

/// One thread with its own connection, and the number of connections opened.
fn one_writer(queue_max: usize, deadline: Duration) -> (Workers<SqliteConnection>, Arc<AtomicU32>) {
    let opened = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&opened);
    let connect = move || {
        count.fetch_add(1, Ordering::SeqCst);
        SqliteConnection::establish(":memory:")
            .map_err(|error| Error::CannotOpen { reason: error.to_string() })
    };
    (started(connect, |_| true, queue_max, deadline, &Arc::default()), opened)
}

fn started<C: Send + 'static>(
    connect: impl Fn() -> Result<C, Error> + Send + Sync + 'static,
    is_valid: fn(&mut C) -> bool,
    queue_max: usize,
    deadline: Duration,
    outages: &Arc<AtomicU64>,
) -> Workers<C> {
    let (connect, outages) = (Box::new(connect), Arc::clone(outages));
    let check = Box::new(|| Ok(()));
    let connector = Connector { connect, check, is_valid, idle_max: NEVER, outages };
    let names = vec!["ledger-writer".to_owned()];
    Workers::start(names, None, connector, queue_max, deadline).unwrap()
}

impl<C> Workers<C> {
    /// Number of queued jobs.
    fn num_waiting(&self) -> usize {
        self.queues.read().as_ref().map_or(0, |queues| queues.jobs.len())
    }
}

/// Controls a job that signals its begin and blocks until `end` is sent.
struct BlockedJob {
    begun: Receiver<()>,
    end: Sender<()>,
}

fn blocked_job()
-> (BlockedJob, impl FnOnce(&mut SqliteConnection) -> Result<(), Error> + Send + 'static) {
    let (begin, begun) = channel();
    let (end, wait) = channel();
    let job = move |_: &mut SqliteConnection| {
        begin.send(()).unwrap();
        wait.recv().unwrap();
        Ok(())
    };
    (BlockedJob { begun, end }, job)
}

/// Blocks the single thread inside a job until `end` is sent.
fn occupy(workers: &Workers<SqliteConnection>) -> (BlockedJob, SubmittedJob) {
    let (blocked, job) = blocked_job();
    let submitted = workers.submit(Box::new(job), |queues| &queues.jobs).unwrap();
    blocked.begun.recv().unwrap();
    (blocked, submitted)
}

fn thread_name() -> String {
    thread::current().name().unwrap_or_default().to_owned()
}

#[tokio::test]
async fn a_job_runs_on_the_named_thread_and_returns_its_error() {
    let (workers, opened) = one_writer(4, NEVER);
    let name = workers.run("asking", |_| Ok(thread_name())).await.unwrap();
    assert_eq!(name, "ledger-writer");
    let error = workers.run("failing", |_| Err::<(), _>(Error::Full)).await.unwrap_err();
    assert!(matches!(error, Error::Full));
    assert_eq!(opened.load(Ordering::SeqCst), 1);
    // After any error the connection is replaced.
    workers.run("asking", |_| Ok(())).await.unwrap();
    assert_eq!(opened.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn a_panic_closes_the_connection_and_not_the_thread() {
    let (workers, opened) = one_writer(4, NEVER);
    let operation = "panicking";
    let error = workers
        .run(operation, |_| -> Result<(), Error> { panic!("on purpose") })
        .await
        .unwrap_err();
    assert!(matches!(error, Error::WorkerCrashed { operation: "panicking" }), "{error:?}");
    assert_eq!(error.class(), ErrorClass::Unknown);
    workers.run("asking", |_| Ok(())).await.unwrap();
    assert_eq!(opened.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn an_outage_on_one_thread_replaces_the_connections_of_the_others() {
    let (outages, opened) = (Arc::default(), Arc::new(AtomicU32::new(0)));
    let thread_set = || {
        let count = Arc::clone(&opened);
        let connect = move || Ok(count.fetch_add(1, Ordering::SeqCst));
        started(connect, |_| true, 4, NEVER, &outages)
    };
    let (readers, writers) = (thread_set(), thread_set());
    let connection = async || readers.run("reading", |number| Ok(*number)).await.unwrap();
    assert_eq!((connection().await, connection().await), (0, 0));
    let away = || Err::<(), _>(Error::NoConnection { reason: "away".to_owned() });
    writers.run("writing", move |_| away()).await.unwrap_err();
    assert_eq!((connection().await, connection().await), (2, 2));
}

#[tokio::test]
async fn a_thread_that_gets_no_connection_leaves_those_of_the_others() {
    let (outages, opened) = (Arc::default(), AtomicU32::new(0));
    let connect = move || Ok(opened.fetch_add(1, Ordering::SeqCst));
    let readers = started(connect, |_| true, 4, NEVER, &outages);
    let full = || Err::<u32, _>(Error::NoConnection { reason: "no free slot".to_owned() });
    let writers = started(full, |_| true, 4, NEVER, &outages);
    let connection = async || readers.run("reading", |number| Ok(*number)).await.unwrap();
    assert_eq!(connection().await, 0);
    writers.run("writing", |_| Ok(())).await.unwrap_err();
    assert_eq!(connection().await, 0);
}

#[tokio::test]
async fn a_lost_connection_of_one_thread_replaces_those_of_the_others() {
    let (outages, opened) = (Arc::default(), Arc::new(AtomicU32::new(0)));
    let thread_set = |is_valid| {
        let count = Arc::clone(&opened);
        let connect = move || Ok(count.fetch_add(1, Ordering::SeqCst));
        started(connect, is_valid, 4, NEVER, &outages)
    };
    let (readers, writers) = (thread_set(|_| true), thread_set(|number| *number != 1));
    let connection =
        async |workers: &Workers<u32>| workers.run("reading", |number| Ok(*number)).await.unwrap();
    assert_eq!((connection(&readers).await, connection(&writers).await), (0, 1));
    assert_eq!((connection(&writers).await, connection(&readers).await), (2, 3));
    assert_eq!((connection(&writers).await, connection(&readers).await), (2, 3));
}

/// A connection that panics when it is closed.
struct PanicsOnClose;

impl Drop for PanicsOnClose {
    fn drop(&mut self) {
        assert!(thread::panicking(), "on purpose, in the thread of the worker");
    }
}

#[tokio::test]
async fn a_panic_outside_of_a_job_closes_the_connection_and_not_the_thread() {
    let workers = started(|| Ok(PanicsOnClose), |_| true, 4, NEVER, &Arc::default());
    for _ in 0..2 {
        // After the error the connection is closed.
        let failed = workers.run("failing", |_| Err::<(), _>(Error::Full)).await;
        assert!(matches!(failed.unwrap_err(), Error::Full));
    }
    let name = workers.run("asking", |_| Ok(thread_name())).await.unwrap();
    assert_eq!(name, "ledger-writer");
    workers.close().await;
}

#[tokio::test]
async fn a_job_that_began_and_is_late_has_an_unknown_outcome() {
    let (workers, _) = one_writer(4, AT_ONCE);
    let (blocked, submitted) = occupy(&workers);
    let error = workers.wait_for("writing", submitted, AT_ONCE).await.unwrap_err();
    assert!(matches!(error, Error::TimedOut { operation: "writing" }), "{error:?}");
    blocked.end.send(()).unwrap();
}

#[tokio::test]
async fn a_job_that_did_not_begin_in_time_is_cancelled() {
    let (workers, _) = one_writer(4, AT_ONCE);
    let (blocked, first) = occupy(&workers);
    let ran = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&ran);
    let late = workers.run("writing", move |_| {
        count.fetch_add(1, Ordering::SeqCst);
        Ok(())
    });
    let error = late.await.unwrap_err();
    assert!(matches!(error, Error::NotBegun { operation: "writing" }), "{error:?}");
    assert_eq!(error.class(), ErrorClass::Retry);

    blocked.end.send(()).unwrap();
    drop(first);
    workers.run_long("asking", |_| Ok(())).await.unwrap();
    assert_eq!(ran.load(Ordering::SeqCst), 0, "a cancelled job does not run later");
}

#[tokio::test]
async fn a_job_of_a_dropped_caller_does_not_run_later() {
    let (workers, _) = one_writer(4, NEVER);
    let (blocked, first) = occupy(&workers);
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
            _ = &mut short => panic!("the thread is blocked"),
            _ = &mut long => panic!("the thread is blocked"),
            () = std::future::ready(()) => {}
        }
        assert_eq!(workers.num_waiting(), 2, "both are queued when their callers are dropped");
    }
    blocked.end.send(()).unwrap();
    drop(first);
    workers.run("writing", count(4)).await.unwrap();
    assert_eq!(ran.load(Ordering::SeqCst), 4);
}

#[tokio::test]
async fn a_full_queue_rejects_jobs_and_a_closed_one_finishes_its_jobs() {
    let (workers, _) = one_writer(1, NEVER);
    let (blocked, running) = occupy(&workers);
    let (sender, ran) = channel();
    let send = move |_: &mut SqliteConnection| {
        sender.send(7).unwrap();
        Ok(())
    };
    let waiting = workers.submit(Box::new(send), |queues| &queues.jobs).unwrap();
    assert_eq!(workers.num_waiting(), 1);
    assert!(matches!(workers.run("writing", |_| Ok(())).await, Err(Error::Full)));

    blocked.end.send(()).unwrap();
    workers.close().await;
    assert!(workers.wait_for("running", running, NEVER).await.is_ok());
    assert!(workers.wait_for("waiting", waiting, NEVER).await.is_ok());
    assert_eq!(ran.try_recv(), Ok(7));
    assert!(matches!(workers.run("writing", |_| Ok(())).await, Err(Error::Closed)));
    workers.close().await;
}

#[tokio::test]
async fn a_failure_to_connect_is_returned_to_the_caller() {
    let refuse = || Err::<SqliteConnection, _>(Error::CannotOpen { reason: "no".to_owned() });
    let workers = started(refuse, |_| true, 1, NEVER, &Arc::default());
    for _ in 0..2 {
        let error = workers.run("asking", |_| Ok(())).await.unwrap_err();
        assert!(matches!(error, Error::CannotOpen { .. }), "{error:?}");
    }
}

#[tokio::test]
async fn a_connection_that_is_not_valid_any_more_is_replaced_before_the_job() {
    let connect = || Ok(SqliteConnection::establish(":memory:").unwrap());
    let is_valid: fn(&mut _) -> bool =
        |conn| diesel::sql_query("SELECT * FROM mark").execute(conn).is_err();
    let workers = started(connect, is_valid, 4, NEVER, &Arc::default());
    let create =
        |conn: &mut SqliteConnection| Ok(diesel::sql_query("CREATE TABLE mark (x)").execute(conn)?);
    workers.run("creating a table", create).await.unwrap();
    workers.run("creating a table", create).await.expect("a new connection has no such table");
}

#[tokio::test]
async fn a_probe_runs_before_the_queued_jobs_also_when_their_queue_is_full() {
    let (workers, _) = one_writer(2, NEVER);
    let (blocked, occupying) = occupy(&workers);
    let order = Arc::new(Mutex::new(Vec::new()));
    let noting = |what: &'static str| {
        let order = Arc::clone(&order);
        let note = move |_: &mut SqliteConnection| {
            order.lock().push(what);
            Ok(())
        };
        Box::new(note)
    };
    let queued = [noting("job"), noting("job")]
        .map(|job| workers.submit(job, |queues| &queues.jobs).unwrap());
    let refused = workers.submit(noting("job"), |queues| &queues.jobs).err().unwrap();
    assert!(matches!(refused, Error::Full));
    let probe = workers.submit(noting("probe"), |queues| &queues.probes).unwrap();
    blocked.end.send(()).unwrap();
    for submitted in [occupying, probe].into_iter().chain(queued) {
        workers.wait_for("waiting", submitted, NEVER).await.unwrap();
    }
    assert_eq!(*order.lock(), ["probe", "job", "job"]);
}
