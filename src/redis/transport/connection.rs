//! One connection to one server.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, Pipeline, Value};

use super::connect::{self, ScriptDigests, ServerIdentity, add_scripts};
use super::connection_health::ConnectionHealth;
use super::error::Remedy;
use super::router::RefreshRequests;
use super::send_queue::SendQueue;
use super::url::ServerAddress;
use super::{ConnectionOptions, ConnectionPurpose, Durability, Error};
use crate::runtime::clock::now_monotonic;
use crate::runtime::single_flight::{Expirable, ValueStatus};

/// The answer or error of each command of a pipeline, in order.
pub type PipelineAnswers = Vec<Result<Value, Error>>;

/// The answer to a pipeline of one command.
pub fn single_answer(mut answers: PipelineAnswers) -> Result<Value, Error> {
    answers.pop().unwrap_or_else(|| Err(Error::unknown("no answer")))
}

/// One connection to one start of one server. A broken connection is never repaired: the next call
/// of [`super::ConnectionPool::connection`] makes another.
#[derive(Debug)]
pub struct Connection {
    transport: Arc<Transport>,
    identity: ServerIdentity,
    digests: ScriptDigests,
    /// With durability `Replicated`: groups batches that wait for replicas.
    send_queue: Option<SendQueue>,
}

/// The socket with its state and time limit, shared with the task of the [`SendQueue`].
#[derive(Debug)]
pub(super) struct Transport {
    pub(super) node: ServerAddress,
    pub(super) options: Arc<ConnectionOptions>,
    /// Taken when the connection is closed, which closes the socket.
    connection: Mutex<Option<MultiplexedConnection>>,
    health: Arc<ConnectionHealth>,
}

impl Expirable for Arc<Connection> {
    type Error = Error;

    fn not_attempted(reason: &str) -> Error {
        Error::not_sent(reason)
    }

    fn status(&self) -> ValueStatus<Error> {
        self.transport.health.status()
    }
}

impl Connection {
    /// Connects to a master. Must run on the runtime that drives the connection.
    pub(super) async fn connect(
        options: &Arc<ConnectionOptions>,
        node: &ServerAddress,
        purpose: ConnectionPurpose,
        refreshes: Arc<RefreshRequests>,
    ) -> Result<Self, Error> {
        let health = ConnectionHealth::new(purpose, refreshes);
        let on_disconnect = {
            let health = health.clone();
            move || health.close("the server closed the connection", true)
        };
        let (connection, identity, digests) =
            connect::connect(options, node, purpose, on_disconnect).await?;
        drop(health.identity.set(identity.clone()));
        let transport = Arc::new(Transport {
            node: node.clone(),
            options: options.clone(),
            connection: Mutex::new(Some(connection)),
            health,
        });
        let send_queue = match options.durability {
            Durability::Plain | Durability::Aof => None,
            Durability::Replicated => Some(SendQueue::start(transport.clone())),
        };
        Ok(Self { transport, identity, digests, send_queue })
    }

    /// The connected server; constant.
    pub fn identity(&self) -> &ServerIdentity {
        &self.identity
    }

    /// Whether the connection is open as far as known.
    pub fn is_alive(&self) -> bool {
        self.transport.health.check().is_ok()
    }

    /// The digest that the server returned for this script.
    pub fn digest(&self, script: &str) -> Result<&str, Error> {
        let unknown = || Error::not_sent(format!("script {script} is not loaded"));
        self.digests.get(script).map(String::as_str).ok_or_else(unknown)
    }

    /// Sends all commands as one pipeline and reads all answers. A rejected command is an error at
    /// its index.
    ///
    /// Commands must not depend on each other: a script that the server does not have is loaded and
    /// called again after the others. After dropping the future the effect is unknown.
    pub async fn call(&self, commands: Vec<Cmd>) -> Result<PipelineAnswers, Error> {
        let mut pipeline = Pipeline::with_capacity(commands.len());
        for command in commands {
            pipeline.add_command(command);
        }
        let limit = self.transport.options.command_timeout;
        self.transport.exchange(&pipeline, false, limit).await
    }

    /// [`Self::call`]; with durability `Replicated` it also waits until enough replicas confirm
    /// everything written on this connection. If they do not, the whole call is unknown.
    ///
    /// Every batch must write: `WAIT` covers only the last write of the connection. Concurrent
    /// batches share one pipeline and one `WAIT`.
    pub async fn call_and_wait(&self, commands: Vec<Cmd>) -> Result<PipelineAnswers, Error> {
        match &self.send_queue {
            Some(send_queue) => send_queue.call(commands).await,
            None => self.call(commands).await,
        }
    }

    /// Closes the connection if the server's identity has changed.
    pub(super) async fn verify(&self) -> Result<(), Error> {
        let answer = single_answer(self.call(vec![connect::identity_query()]).await?)?;
        connect::check_identity(&self.identity, answer).map_err(|reason| {
            self.transport.close(&reason, true);
            Error::not_sent(reason)
        })
    }

    /// Closes the connection without a topology refresh.
    pub(super) fn close(&self, reason: &str) {
        self.transport.close(reason, false);
    }
}

impl Transport {
    /// Sends a pipeline and reads the answers. Scripts that the server does not have are loaded and
    /// called again, with the final `WAIT` if `ends_with_wait`.
    pub(super) async fn exchange(
        &self,
        pipeline: &Pipeline,
        ends_with_wait: bool,
        limit: Duration,
    ) -> Result<PipelineAnswers, Error> {
        let mut answers = self.send(pipeline, limit).await?;
        let needs_reload = |answer: &Result<Value, Error>| {
            answer.as_ref().is_err_and(|error| error.remedy() == Remedy::Reload)
        };
        if !answers.iter().any(needs_reload) {
            return Ok(answers);
        }
        let (mut repeated, mut places) = (Pipeline::new(), Vec::new());
        for (number, (command, answer)) in (1..).zip(pipeline.cmd_iter().zip(&mut answers)) {
            if needs_reload(answer) || (ends_with_wait && number == pipeline.len()) {
                repeated.add_command(command.clone());
                places.push(answer);
            }
        }
        let repeated_answers = match self.reload().await {
            Ok(()) => self.send(&repeated, limit).await,
            Err(error) => Err(error),
        };
        let repeated_answers =
            repeated_answers.unwrap_or_else(|error| vec![Err(error); places.len()]);
        for (place, answer) in places.into_iter().zip(repeated_answers) {
            *place = answer;
        }
        Ok(answers)
    }

    async fn send(&self, pipeline: &Pipeline, limit: Duration) -> Result<PipelineAnswers, Error> {
        let count = pipeline.len();
        if count == 0 {
            return Ok(Vec::new());
        }
        let mut connection = self.connection()?;
        let started_at = now_monotonic();
        let sent = connection.send_packed_commands(pipeline, 0, count);
        let values = match tokio::time::timeout(limit, sent).await {
            Ok(Ok(values)) if values.len() == count => values,
            Ok(Ok(_)) => return Err(self.close_broken("it answered another number of calls")),
            Ok(Err(error)) => return Err(self.close_broken(&connect::error_message(&error))),
            Err(_) => {
                self.health.timed_out(started_at);
                self.drop_socket_if_closed();
                return Err(Error::unknown(format!("no answer within {limit:?}")));
            }
        };
        self.health.answered();
        let to_result = |value| match value {
            Value::ServerError(error) => Err(Error::from_server(&error)),
            value => Ok(value),
        };
        let answers: PipelineAnswers = values.into_iter().map(to_result).collect();
        self.react_to_errors(&answers);
        Ok(answers)
    }

    /// Closes the connection during a call, whose effect is therefore unknown.
    fn close_broken(&self, reason: &str) -> Error {
        self.close(reason, true);
        Error::unknown(format!("the connection broke: {reason}"))
    }

    fn connection(&self) -> Result<MultiplexedConnection, Error> {
        self.health.check()?;
        let closed = || Error::not_sent("the connection is closed");
        self.connection.lock().clone().ok_or_else(closed)
    }

    /// Closes the connection or requests a topology read if an answer calls for it.
    fn react_to_errors(&self, answers: &[Result<Value, Error>]) {
        for error in answers.iter().filter_map(|answer| answer.as_ref().err()) {
            match error.remedy() {
                Remedy::Close => self.close(&error.to_string(), true),
                Remedy::RefreshTopology => self.health.refreshes.request(),
                Remedy::Reload | Remedy::Wait => {}
            }
        }
    }

    /// Loads the scripts. On failure the calls that need them were certainly not executed.
    async fn reload(&self) -> Result<(), Error> {
        let mut pipeline = Pipeline::new();
        add_scripts(&mut pipeline, &self.options.scripts);
        let failed = |error: Error| Error::not_sent(format!("scripts not loaded: {error}"));
        self.send(&pipeline, self.options.command_timeout).await.map_err(failed).map(drop)
    }

    fn close(&self, reason: &str, refresh_topology: bool) {
        self.health.close(reason, refresh_topology);
        self.drop_socket_if_closed();
    }

    fn drop_socket_if_closed(&self) {
        if self.health.check().is_err() {
            self.connection.lock().take();
        }
    }
}
