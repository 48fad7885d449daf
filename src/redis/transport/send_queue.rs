//! Batches that wait for replicas, waiting together.
//!
//! `WAIT` blocks its connection. If each batch had its own, the batches of many gates would queue
//! behind each other's waits, and one replica that is late would make all of them time out. So
//! whatever gathers during one wait goes out as one pipeline with one `WAIT` behind it.

use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, Pipeline, Value};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};

use super::Error;
use super::identity::ServerIdentity;
use crate::redis::transport::connection::{PipelineAnswers, Transport};

/// Batches that may wait for their turn; whoever comes then waits to be let in.
const QUEUE_MAX: usize = 1_024;
/// Batches that go out together.
const TOGETHER_MAX: usize = 256;

/// The door to the task that sends and waits.
pub(super) struct SendQueue {
    jobs: mpsc::Sender<SendJob>,
}

struct SendJob {
    commands: Vec<Cmd>,
    answer: oneshot::Sender<Result<PipelineAnswers, Error>>,
}

impl SendQueue {
    /// Begins; ends when this is dropped.
    pub(super) fn start(
        io: &Handle,
        wire: Arc<Transport>,
        identity: ServerIdentity,
        replicas: u32,
        wait_ms: u64,
    ) -> Self {
        let (jobs, queue) = mpsc::channel(QUEUE_MAX);
        // To Redis, 0 means for ever.
        let sender = SendTask { wire, identity, replicas, wait_ms: wait_ms.max(1) };
        io.spawn(sender.run(queue));
        Self { jobs }
    }

    /// Sends a batch and waits for its answers and its replicas.
    pub(super) async fn call(&self, commands: Vec<Cmd>) -> Result<PipelineAnswers, Error> {
        let (answer, answered) = oneshot::channel();
        let closed = |_| Error::not_sent("the connections of this process are closed");
        self.jobs.send(SendJob { commands, answer }).await.map_err(closed)?;
        let gone = |_| Error::unknown("the connections of this process were closed");
        answered.await.map_err(gone)?
    }
}

struct SendTask {
    wire: Arc<Transport>,
    identity: ServerIdentity,
    replicas: u32,
    wait_ms: u64,
}

impl SendTask {
    async fn run(self, mut queue: mpsc::Receiver<SendJob>) {
        while let Some(first) = queue.recv().await {
            let mut jobs = vec![first];
            while jobs.len() < TOGETHER_MAX {
                let Ok(job) = queue.try_recv() else { break };
                jobs.push(job);
            }
            // Nobody waits for it any more, and nothing was sent.
            jobs.retain(|job| !job.answer.is_closed());
            if !jobs.is_empty() {
                self.send(jobs).await;
            }
        }
    }

    async fn send(&self, mut jobs: Vec<SendJob>) {
        let mut pipeline = Pipeline::new();
        let mut sizes = Vec::with_capacity(jobs.len());
        for job in &mut jobs {
            sizes.push(job.commands.len());
            for command in job.commands.drain(..) {
                pipeline.add_command(command);
            }
        }
        pipeline.cmd("WAIT").arg(self.replicas).arg(self.wait_ms);
        let limit = self.wire.command_timeout + Duration::from_millis(self.wait_ms);
        let outcome = self.wire.exchange(&pipeline, true, limit).await;
        let outcome = outcome.and_then(|answers| self.acknowledged(answers));
        let mut rest = match outcome {
            Ok(answers) => answers.into_iter(),
            Err(error) => {
                for job in jobs {
                    drop(job.answer.send(Err(error.clone())));
                }
                return;
            }
        };
        for (job, size) in jobs.into_iter().zip(sizes) {
            drop(job.answer.send(Ok(rest.by_ref().take(size).collect())));
        }
    }

    /// Takes off the answer of `WAIT`, if enough replicas have everything.
    fn acknowledged(&self, mut answers: PipelineAnswers) -> Result<PipelineAnswers, Error> {
        let wanted = self.replicas;
        let had = match answers.pop() {
            Some(Ok(Value::Int(had))) => u32::try_from(had).unwrap_or(0),
            Some(Err(error)) => return Err(Error::unknown(format!("WAIT: {error}"))),
            Some(Ok(_)) | None => return Err(Error::unknown("WAIT answered no number")),
        };
        if had >= wanted {
            return Ok(answers);
        }
        tracing::debug!(node = %self.identity.node, wanted, had, "redis replicas are late");
        let wait_ms = self.wait_ms;
        let why = format!("{had} of {wanted} replicas confirmed it within {wait_ms} ms");
        Err(Error::unknown(why))
    }
}
