//! One connection, from the handshake to its end.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, Pipeline, Value};
use tokio::runtime::Handle;

use super::connect::{self, NewConnection, add_scripts};
use super::error::Remedy;
use super::identity::{ServerIdentity, TopologyDoubts};
use super::request::{LoadedScripts, PipelineRequest, ScriptSource};
use super::url::ServerAddress;
use super::{ConnectionOptions, ConnectionPurpose, Durability, Error};
use crate::redis::transport::connection_health::ConnectionHealth;
use crate::redis::transport::send_queue::SendQueue;
use crate::runtime::clock::now_monotonic;
use crate::runtime::single_flight::{Expirable, ValueStatus};

/// What each request of a pipeline came to, in order.
pub type PipelineAnswers = Vec<Result<Value, Error>>;

/// One connection to one start of one server. A connection that breaks is never repaired: the next
/// call of [`super::ConnectionPool::link`] makes another.
pub struct Connection {
    wire: Arc<Transport>,
    identity: ServerIdentity,
    loaded: LoadedScripts,
    /// With durability `Replicated`: batches that wait for replicas go out together.
    group: Option<SendQueue>,
}

/// The connection itself.
pub(super) struct Transport {
    /// Taken away when the connection is given up, so that the socket is closed.
    connection: Mutex<Option<MultiplexedConnection>>,
    pub(super) vital: Arc<ConnectionHealth>,
    pub(super) doubts: Arc<TopologyDoubts>,
    scripts: Arc<[ScriptSource]>,
    pub(super) command_timeout: Duration,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("identity", &self.identity)
            .field("vital", &self.wire.vital)
            .finish_non_exhaustive()
    }
}

impl Expirable for Arc<Connection> {
    type Error = Error;

    fn not_made(reason: &str) -> Error {
        Error::not_sent(reason)
    }

    fn standing(&self) -> ValueStatus<Error> {
        self.wire.vital.standing()
    }
}

impl Connection {
    /// Connects to a master. Runs on the thread that shall drive the connection.
    pub(super) async fn make(
        options: &ConnectionOptions,
        node: &ServerAddress,
        lane: ConnectionPurpose,
        doubts: Arc<TopologyDoubts>,
    ) -> Result<Self, Error> {
        let vital = ConnectionHealth::new(lane, doubts.clone());
        let hung_up = {
            let vital = vital.clone();
            move || vital.die("the server hung up", true)
        };
        let NewConnection { connection, identity, loaded } =
            connect::connect(options, node, lane, hung_up).await?;
        vital.begin(identity.clone());
        let wire = Arc::new(Transport {
            connection: Mutex::new(Some(connection)),
            vital,
            doubts,
            scripts: options.scripts.clone(),
            command_timeout: options.command_timeout,
        });
        let group = match options.durability {
            Durability::Plain | Durability::Aof => None,
            Durability::Replicated { replicas, wait_ms } => {
                let (wire, identity) = (wire.clone(), identity.clone());
                Some(SendQueue::start(&Handle::current(), wire, identity, replicas, wait_ms))
            }
        };
        Ok(Self { wire, identity, loaded, group })
    }

    /// Where it leads; never changes.
    #[must_use]
    pub fn identity(&self) -> &ServerIdentity {
        &self.identity
    }

    /// Whether calls may still come through.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.wire.vital.check().is_ok()
    }

    /// Sends all requests in one go and reads all answers. A request that the server refuses is an
    /// error in its place; the call fails as a whole only if the answers did not come.
    ///
    /// Requests may not depend on each other: a script that the server forgot is loaded and called
    /// once more behind the others. Whoever drops the future does not know what was done.
    pub async fn call<R: PipelineRequest>(&self, requests: &[R]) -> Result<PipelineAnswers, Error> {
        let mut pipeline = Pipeline::with_capacity(requests.len());
        for request in requests {
            pipeline.add_command(self.loaded.encode(request)?);
        }
        self.wire.exchange(&pipeline, false, self.wire.command_timeout).await
    }

    /// [`Self::call`], and with durability `Replicated` waits until enough replicas have everything
    /// that was written on this connection: if they have not, the whole call is unknown. At other
    /// durabilities the same as `call`.
    ///
    /// Every batch must write something: Redis waits for the last write of the connection only.
    /// Batches of several callers go out together and wait once.
    pub async fn call_and_wait<R: PipelineRequest>(
        &self,
        requests: &[R],
    ) -> Result<PipelineAnswers, Error> {
        let Some(group) = &self.group else { return self.call(requests).await };
        let commands = requests.iter().map(|request| self.loaded.encode(request));
        group.call(commands.collect::<Result<_, _>>()?).await
    }

    /// Asks the server who it is, and gives the connection up when it is another one by now.
    pub(super) async fn verify(&self) -> Result<(), Error> {
        let mut pipeline = Pipeline::new();
        pipeline.add_command(connect::who());
        let answers = self.wire.exchange(&pipeline, false, self.wire.command_timeout).await?;
        let answer = answers.into_iter().next().unwrap_or(Ok(Value::Nil))?;
        connect::is_still(&self.identity, answer).map_err(|why| {
            self.wire.give_up(&why, true);
            Error::not_sent(why)
        })
    }

    /// Gives the connection up, because the caller knows better.
    pub(super) fn give_up(&self, why: &str) {
        self.wire.give_up(why, false);
    }
}

impl Transport {
    /// Sends a pipeline and reads the answers; `waits` if its last command is a `WAIT`.
    pub(super) async fn exchange(
        &self,
        pipeline: &Pipeline,
        waits: bool,
        limit: Duration,
    ) -> Result<PipelineAnswers, Error> {
        let mut answers = self.send(pipeline, limit).await?;
        let forgotten: Vec<usize> = answers
            .iter()
            .enumerate()
            .filter(|(_, answer)| remedy(answer) == Some(Remedy::Reload))
            .map(|(index, _)| index)
            .collect();
        if forgotten.is_empty() {
            return Ok(answers);
        }
        let mut places = forgotten;
        if waits {
            places.extend(answers.len().checked_sub(1));
        }
        for (place, answer) in places.iter().zip(self.send_again(pipeline, &places, limit).await) {
            if let Some(old) = answers.get_mut(*place) {
                *old = answer;
            }
        }
        Ok(answers)
    }

    /// Loads the scripts and sends the commands at these places once more.
    async fn send_again(
        &self,
        pipeline: &Pipeline,
        places: &[usize],
        limit: Duration,
    ) -> PipelineAnswers {
        let mut again = Pipeline::new();
        let listed = |(index, _): &(usize, &Cmd)| places.binary_search(index).is_ok();
        for (_, command) in pipeline.cmd_iter().enumerate().filter(listed) {
            again.add_command(command.clone());
        }
        let late = match self.reload().await {
            Ok(()) => self.send(&again, limit).await,
            Err(error) => Err(error),
        };
        late.unwrap_or_else(|error| vec![Err(error); places.len()])
    }

    async fn send(&self, pipeline: &Pipeline, limit: Duration) -> Result<PipelineAnswers, Error> {
        let count = pipeline.len();
        if count == 0 {
            return Ok(Vec::new());
        }
        let mut connection = self.connection()?;
        let begun = now_monotonic();
        let sent = connection.send_packed_commands(pipeline, 0, count);
        let values = match tokio::time::timeout(limit, sent).await {
            Ok(Ok(values)) if values.len() == count => values,
            Ok(Ok(_)) => return Err(self.broke("the answers do not fit the calls")),
            Ok(Err(error)) => return Err(self.broke(&connect::said(&error))),
            Err(_) => {
                self.vital.timed_out(begun);
                self.close_if_dead();
                return Err(Error::unknown(format!("no answer within {limit:?}")));
            }
        };
        self.vital.answered();
        let answers: PipelineAnswers = values.into_iter().map(read).collect();
        self.heed(&answers);
        Ok(answers)
    }

    /// The end of the connection, in the middle of a call.
    fn broke(&self, why: &str) -> Error {
        self.give_up(why, true);
        Error::unknown(format!("the connection broke: {why}"))
    }

    fn connection(&self) -> Result<MultiplexedConnection, Error> {
        self.vital.check()?;
        let closed = || Error::not_sent("the connection is closed");
        self.connection.lock().clone().ok_or_else(closed)
    }

    /// Acts on answers that say that the connection leads to the wrong place.
    fn heed(&self, answers: &[Result<Value, Error>]) {
        for error in answers.iter().filter_map(|answer| answer.as_ref().err()) {
            match error.remedy() {
                Remedy::Leave => self.give_up(&error.to_string(), true),
                Remedy::LookAgain => self.doubts.look_again(),
                Remedy::Reload | Remedy::Wait => {}
            }
        }
    }

    /// Loads the scripts. Whatever becomes of that: the calls that need them were not begun.
    async fn reload(&self) -> Result<(), Error> {
        let mut pipeline = Pipeline::new();
        add_scripts(&mut pipeline, &self.scripts);
        let failed = |error: Error| Error::not_sent(format!("scripts were not loaded: {error}"));
        self.send(&pipeline, self.command_timeout).await.map_err(failed).map(drop)
    }

    fn give_up(&self, why: &str, look_again: bool) {
        self.vital.die(why, look_again);
        self.close_if_dead();
    }

    fn close_if_dead(&self) {
        if self.vital.check().is_err() {
            self.connection.lock().take();
        }
    }
}

fn read(value: Value) -> Result<Value, Error> {
    match value {
        Value::ServerError(error) => Err(Error::from_server(&error)),
        value => Ok(value),
    }
}

fn remedy(answer: &Result<Value, Error>) -> Option<Remedy> {
    answer.as_ref().err().map(Error::remedy)
}
