//! A blocking connection with a time limit on every wait, based on an asynchronous driver.
//!
//! The driver has no time limits: a server that stops responding would block a thread until TCP
//! times out, a quarter of an hour later. Here every wait for the server is limited, and a
//! connection is closed after any error.

use std::cell::Cell;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::vec::IntoIter;

use diesel::connection::{CacheSize, Instrumentation};
use diesel::mysql::{Mysql, MysqlQueryBuilder};
use diesel::query_builder::bind_collector::RawBytesBindCollector;
use diesel::query_builder::{AsQuery, CollectedQuery, QueryBuilder, QueryFragment, QueryId};
use diesel::result::{ConnectionError, DatabaseErrorKind, Error as Diesel};
use diesel::{ConnectionResult, QueryResult};
use diesel_async::async_connection_wrapper::{AsyncConnectionWrapper, BlockOn};
use diesel_async::{
    AnsiTransactionManager, AsyncConnection, AsyncConnectionCore, AsyncMysqlConnection,
    SimpleAsyncConnection,
};
use futures_util::future::BoxFuture;
use futures_util::stream::{self, Iter, TryStreamExt};
use mysql_async::Conn;
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout_at;

use super::session::Session;
use crate::db::Error;
use crate::runtime::clock::now_monotonic;

/// A blocking connection. Must not be used inside an asynchronous runtime: it has its own.
pub type MysqlConnection = AsyncConnectionWrapper<Client, OwnRuntime>;

/// The runtime of one connection, driven by the thread that waits for it.
#[derive(Debug)]
pub struct OwnRuntime(Runtime);

thread_local! {
    /// The runtime for the connection that this thread is opening.
    static NEXT: Cell<Option<Runtime>> = const { Cell::new(None) };
}

impl BlockOn for OwnRuntime {
    fn block_on<F: Future>(&self, wait: F) -> F::Output {
        self.0.block_on(wait)
    }

    fn get_runtime() -> Self {
        match NEXT.take() {
            Some(runtime) => Self(runtime),
            // Creating a runtime may fail, but this function cannot return an error: `connect`, the
            // only caller, has set `NEXT`.
            None => std::panic::resume_unwind(Box::new("a MySQL connection without a runtime")),
        }
    }
}

/// Connects and sets up the session.
pub(super) fn connect(session: &Arc<Session>) -> Result<MysqlConnection, Error> {
    let no_runtime = |error: std::io::Error| Error::NoConnection {
        reason: format!("no event queue from the operating system ({error})"),
    };
    let runtime = Builder::new_current_thread().enable_all().build().map_err(no_runtime)?;
    let client = match runtime.block_on(Client::open(session)) {
        Ok(client) => client,
        Err(error) => {
            // Dropping the runtime would wait for a look-up of the host name, beyond the limit.
            runtime.shutdown_background();
            return Err(Error::NoConnection { reason: error.to_string() });
        }
    };
    NEXT.set(Some(runtime));
    Ok(MysqlConnection::from(client))
}

/// The limit of the waits for the server.
#[derive(Debug, Clone, Copy)]
enum WaitLimit {
    /// One instant for all statements of a job.
    At(Instant),
    /// A duration for each statement.
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
}

impl Client {
    async fn open(session: &Arc<Session>) -> ConnectionResult<Self> {
        let within = session.connect_timeout;
        let end = now_monotonic() + within;
        let timed_out = || {
            ConnectionError::BadConnection(format!("no answer within {} ms", within.as_millis()))
        };
        let opening = async {
            let opened = Conn::new(session.client.clone()).await;
            let bad = |error: mysql_async::Error| ConnectionError::BadConnection(error.to_string());
            AsyncMysqlConnection::try_from(opened.map_err(bad)?).await
        };
        let opened = timeout_at(end.into(), opening).await;
        let mut client = Self {
            inner: opened.map_err(|_elapsed| timed_out())??,
            session: Arc::clone(session),
            limit: WaitLimit::At(end),
            answered_at: end,
        };
        let answered = client.batch_execute(&session.set_up).await;
        answered.map_err(ConnectionError::CouldntSetupConfiguration)?;
        Ok(client)
    }

    /// All further statements together must be answered within `allowed`.
    pub(super) fn limit_total(&mut self, allowed: Duration) {
        self.limit = WaitLimit::At(now_monotonic() + allowed);
    }

    pub(super) fn session(&self) -> &Arc<Session> {
        &self.session
    }

    /// Each further statement must be answered within `allowed`.
    pub(super) fn limit_each(&mut self, allowed: Duration) {
        self.limit = WaitLimit::Each(allowed);
    }

    /// The time of the server's last response.
    pub(super) fn answered_at(&self) -> Instant {
        self.answered_at
    }

    /// All rows of a query, within the limit.
    async fn rows<'query>(
        &mut self,
        query: QueryResult<CollectedQuery<Binds>>,
    ) -> QueryResult<Rows<'_, 'query>> {
        let (end, query) = (self.limit.end(), query?);
        let rows = async { self.inner.load(query).await?.map_ok(Ok).try_collect::<Vec<_>>().await };
        wait_until(end, &mut self.answered_at, rows).await.map(stream::iter)
    }

    /// The number of rows that a statement changed, within the limit.
    async fn count(&mut self, query: QueryResult<CollectedQuery<Binds>>) -> QueryResult<usize> {
        let (end, query) = (self.limit.end(), query?);
        let answer = self.inner.execute_returning_count(query);
        wait_until(end, &mut self.answered_at, answer).await
    }
}

/// Waits for an answer until `end` and records when it came.
async fn wait_until<T>(
    end: Instant,
    answered_at: &mut Instant,
    answer: impl Future<Output = QueryResult<T>>,
) -> QueryResult<T> {
    let Ok(answer) = timeout_at(end.into(), answer).await else {
        let message = Box::new("the server did not answer in time".to_owned());
        return Err(Diesel::DatabaseError(DatabaseErrorKind::ClosedConnection, message));
    };
    *answered_at = now_monotonic();
    answer
}

/// The values of a query's parameters.
type Binds = RawBytesBindCollector<Mysql>;

/// A query as text and values, whatever its type was: the driver is compiled once, and not for each
/// query.
fn collected(query: &(impl QueryFragment<Mysql> + ?Sized)) -> QueryResult<CollectedQuery<Binds>> {
    let (mut sql, mut binds) = (MysqlQueryBuilder::new(), Binds::new());
    query.to_sql(&mut sql, &Mysql)?;
    query.collect_binds(&mut binds, &mut (), &Mysql)?;
    Ok(CollectedQuery::new(sql.finish(), query.is_safe_to_cache_prepared(&Mysql)?, binds))
}

type Row<'conn, 'query> = <AsyncMysqlConnection as AsyncConnectionCore>::Row<'conn, 'query>;

type Rows<'conn, 'query> = Iter<IntoIter<QueryResult<Row<'conn, 'query>>>>;

impl SimpleAsyncConnection for Client {
    async fn batch_execute(&mut self, query: &str) -> QueryResult<()> {
        let answer = self.inner.batch_execute(query);
        wait_until(self.limit.end(), &mut self.answered_at, answer).await
    }
}

impl AsyncConnectionCore for Client {
    type ExecuteFuture<'conn, 'query> = BoxFuture<'conn, QueryResult<usize>>;
    type LoadFuture<'conn, 'query> = BoxFuture<'conn, QueryResult<Self::Stream<'conn, 'query>>>;
    type Stream<'conn, 'query> = Rows<'conn, 'query>;
    type Row<'conn, 'query> = Row<'conn, 'query>;
    type Backend = Mysql;

    /// Fetches all rows, so that the limit includes them.
    fn load<'conn, 'query, T>(&'conn mut self, source: T) -> Self::LoadFuture<'conn, 'query>
    where
        T: AsQuery + 'query,
        T::Query: QueryFragment<Mysql> + QueryId + 'query,
    {
        let query = collected(&source.as_query());
        Box::pin(self.rows(query))
    }

    fn execute_returning_count<'conn, 'query, T>(
        &'conn mut self,
        source: T,
    ) -> Self::ExecuteFuture<'conn, 'query>
    where
        T: QueryFragment<Mysql> + QueryId + 'query,
    {
        let query = collected(&source);
        Box::pin(self.count(query))
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
