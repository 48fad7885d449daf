//! The client: asynchronous below, blocking above, and nothing in it waits without a limit.
//!
//! The driver has no time limits: a server that stopped talking would hold a thread until TCP gives
//! up, a quarter of an hour later. Here every wait for the server ends, and a connection on which
//! anything failed is closed and not used again.

use std::cell::Cell;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::vec::IntoIter;

use diesel::connection::{CacheSize, Instrumentation};
use diesel::mysql::Mysql;
use diesel::query_builder::{AsQuery, QueryFragment, QueryId};
use diesel::result::{ConnectionError, DatabaseErrorKind, Error as Diesel};
use diesel::{ConnectionResult, QueryResult};
use diesel_async::async_connection_wrapper::{AsyncConnectionWrapper, BlockOn};
use diesel_async::{
    AnsiTransactionManager, AsyncConnection, AsyncConnectionCore, AsyncMysqlConnection,
    SimpleAsyncConnection,
};
use futures_util::future::BoxFuture;
use futures_util::stream::{self, Iter, TryStreamExt};
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout_at;

use super::session::Session;
use crate::db::Error;
use crate::runtime::clock::now_monotonic;

/// A blocking connection. Not to be used inside an asynchronous runtime: it has one of its own.
pub type MysqlConnection = AsyncConnectionWrapper<Client, OwnRuntime>;

/// The runtime of one connection, driven by whichever thread waits for it.
#[derive(Debug)]
pub struct OwnRuntime(Runtime);

thread_local! {
    /// The runtime of the connection that this thread is making.
    static NEXT: Cell<Option<Runtime>> = const { Cell::new(None) };
}

impl BlockOn for OwnRuntime {
    fn block_on<F: Future>(&self, wait: F) -> F::Output {
        self.0.block_on(wait)
    }

    fn get_runtime() -> Self {
        match NEXT.take() {
            Some(runtime) => Self(runtime),
            // Making a runtime may fail, and this must not: `connect`, the only caller, has put one
            // there.
            None => std::panic::resume_unwind(Box::new("a MySQL connection without a runtime")),
        }
    }
}

/// Connects, and sets the session up.
pub(super) fn connect(session: &Arc<Session>) -> Result<MysqlConnection, Error> {
    let cannot = |error: std::io::Error| Error::NoConnection {
        reason: format!("the operating system gives no event queue ({error})"),
    };
    let runtime = Builder::new_current_thread().enable_all().build().map_err(cannot)?;
    let client = runtime.block_on(Client::open(session));
    let client = client.map_err(|error| Error::NoConnection { reason: error.to_string() })?;
    NEXT.set(Some(runtime));
    Ok(MysqlConnection::from(client))
}

/// When a wait for the server ends.
#[derive(Debug, Clone, Copy)]
enum WaitLimit {
    /// At the same instant for everything that a job does.
    At(Instant),
    /// So long after it began, for each statement.
    Each(Duration),
}

impl WaitLimit {
    fn end(self) -> Instant {
        match self {
            Self::At(end) => end,
            Self::Each(within) => now_monotonic() + within,
        }
    }
}

/// The asynchronous half of a connection.
pub struct Client {
    inner: AsyncMysqlConnection,
    session: Arc<Session>,
    limit: WaitLimit,
    answered_at: Instant,
    given_up: bool,
}

impl Client {
    async fn open(session: &Arc<Session>) -> ConnectionResult<Self> {
        let within = session.connect_timeout;
        let end = now_monotonic() + within;
        let late = || {
            ConnectionError::BadConnection(format!("no answer within {} ms", within.as_millis()))
        };
        let opened = timeout_at(end.into(), AsyncMysqlConnection::establish(&session.url)).await;
        let mut client = Self {
            inner: opened.map_err(|_elapsed| late())??,
            session: Arc::clone(session),
            limit: WaitLimit::At(end),
            answered_at: end,
            given_up: false,
        };
        let answered = client.batch_execute(&session.set_up).await;
        answered.map_err(ConnectionError::CouldntSetupConfiguration)?;
        Ok(client)
    }

    /// Whatever is done from here on ends within `allowed`.
    pub(super) fn end_within(&mut self, allowed: Duration) {
        self.limit = WaitLimit::At(now_monotonic() + allowed);
    }

    /// What it was set up with.
    pub(super) fn session(&self) -> &Arc<Session> {
        &self.session
    }

    /// Each statement from here on is answered within `allowed`.
    pub(super) fn answer_within(&mut self, allowed: Duration) {
        self.limit = WaitLimit::Each(allowed);
    }

    /// Not to be used again.
    pub(super) fn give_up(&mut self) {
        self.given_up = true;
    }

    /// Whether it must not be used again.
    pub(super) fn is_given_up(&self) -> bool {
        self.given_up
    }

    /// When the server answered last.
    pub(super) fn answered_at(&self) -> Instant {
        self.answered_at
    }

    /// Begins a wait; the borrowed parts are those that it needs.
    fn wait(&mut self) -> (&mut AsyncMysqlConnection, Wait<'_>) {
        let wait = Wait { end: self.limit.end(), answered_at: &mut self.answered_at };
        (&mut self.inner, wait)
    }
}

struct Wait<'a> {
    end: Instant,
    answered_at: &'a mut Instant,
}

impl Wait<'_> {
    async fn until<T>(self, answer: impl Future<Output = QueryResult<T>>) -> QueryResult<T> {
        let Ok(answer) = timeout_at(self.end.into(), answer).await else {
            let said = Box::new("the server did not answer in time".to_owned());
            return Err(Diesel::DatabaseError(DatabaseErrorKind::ClosedConnection, said));
        };
        *self.answered_at = now_monotonic();
        answer
    }
}

type Row<'conn, 'query> = <AsyncMysqlConnection as AsyncConnectionCore>::Row<'conn, 'query>;

impl SimpleAsyncConnection for Client {
    async fn batch_execute(&mut self, query: &str) -> QueryResult<()> {
        let (inner, wait) = self.wait();
        wait.until(inner.batch_execute(query)).await
    }
}

impl AsyncConnectionCore for Client {
    type ExecuteFuture<'conn, 'query> = BoxFuture<'conn, QueryResult<usize>>;
    type LoadFuture<'conn, 'query> = BoxFuture<'conn, QueryResult<Self::Stream<'conn, 'query>>>;
    type Stream<'conn, 'query> = Iter<IntoIter<QueryResult<Row<'conn, 'query>>>>;
    type Row<'conn, 'query> = Row<'conn, 'query>;
    type Backend = Mysql;

    /// The rows are fetched at once, so that the limit holds for all of them.
    fn load<'conn, 'query, T>(&'conn mut self, source: T) -> Self::LoadFuture<'conn, 'query>
    where
        T: AsQuery + 'query,
        T::Query: QueryFragment<Mysql> + QueryId + 'query,
    {
        let (inner, wait) = self.wait();
        let answer = inner.load(source);
        Box::pin(async move {
            let rows = async { answer.await?.map_ok(Ok).try_collect::<Vec<_>>().await };
            wait.until(rows).await.map(stream::iter)
        })
    }

    fn execute_returning_count<'conn, 'query, T>(
        &'conn mut self,
        source: T,
    ) -> Self::ExecuteFuture<'conn, 'query>
    where
        T: QueryFragment<Mysql> + QueryId + 'query,
    {
        let (inner, wait) = self.wait();
        let answer = inner.execute_returning_count(source);
        Box::pin(wait.until(answer))
    }
}

impl AsyncConnection for Client {
    type TransactionManager = AnsiTransactionManager;

    async fn establish(_url: &str) -> ConnectionResult<Self> {
        Err(ConnectionError::BadConnection("a client is made by `connect`".to_owned()))
    }

    fn transaction_state(&mut self) -> &mut AnsiTransactionManager {
        self.inner.transaction_state()
    }

    fn instrumentation(&mut self) -> &mut dyn Instrumentation {
        self.inner.instrumentation()
    }

    fn set_instrumentation(&mut self, instrumentation: impl Instrumentation) {
        self.inner.set_instrumentation(instrumentation);
    }

    fn set_prepared_statement_cache_size(&mut self, size: CacheSize) {
        self.inner.set_prepared_statement_cache_size(size);
    }
}
