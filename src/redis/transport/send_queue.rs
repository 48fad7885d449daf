//! Groups concurrent batches into one pipeline with one `WAIT`.
//!
//! `WAIT` blocks its connection. With one `WAIT` per batch, the batches of many gates would queue
//! behind each other, and one slow replica would time all of them out. So the batches that arrive
//! during one `WAIT` are sent as one pipeline with one `WAIT` at its end.

use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, Pipeline, Value};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};

use super::Error;
use super::identity::ServerIdentity;
use crate::redis::transport::connection::{PipelineAnswers, Transport};

/// Queued batches; further callers wait for a free place.
const QUEUE_MAX: usize = 1_024;
/// Batches per pipeline.
const JOBS_PER_BATCH_MAX: usize = 256;

/// Handle to the task that sends the pipelines.
pub(super) struct SendQueue {
    jobs: mpsc::Sender<SendJob>,
}

struct SendJob {
    commands: Vec<Cmd>,
    answer: oneshot::Sender<Result<PipelineAnswers, Error>>,
}

impl SendQueue {
    /// Starts the task, which ends when the handle is dropped.
    pub(super) fn start(
        io: &Handle,
        transport: Arc<Transport>,
        identity: ServerIdentity,
        replicas: u32,
        wait_ms: u64,
    ) -> Self {
        let (jobs, queue) = mpsc::channel(QUEUE_MAX);
        // `WAIT` with time-out 0 blocks without limit.
        let sender = SendTask { transport, identity, replicas, wait_ms: wait_ms.max(1) };
        io.spawn(sender.run(queue));
        Self { jobs }
    }

    /// Sends a batch and waits for its answers and the confirmation of the replicas.
    pub(super) async fn call(&self, commands: Vec<Cmd>) -> Result<PipelineAnswers, Error> {
        let (answer, answered) = oneshot::channel();
        let closed = |_| Error::not_sent("the connections of this process are closed");
        self.jobs.send(SendJob { commands, answer }).await.map_err(closed)?;
        let dropped = |_| Error::unknown("the connections of this process were closed");
        answered.await.map_err(dropped)?
    }
}

struct SendTask {
    transport: Arc<Transport>,
    identity: ServerIdentity,
    replicas: u32,
    wait_ms: u64,
}

impl SendTask {
    async fn run(self, mut queue: mpsc::Receiver<SendJob>) {
        while let Some(first) = queue.recv().await {
            let mut jobs = vec![first];
            while jobs.len() < JOBS_PER_BATCH_MAX {
                let Ok(job) = queue.try_recv() else { break };
                jobs.push(job);
            }
            // Abandoned by its caller, and not sent.
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
        let limit = self.transport.command_timeout + Duration::from_millis(self.wait_ms);
        let outcome = self.transport.exchange(&pipeline, true, limit).await;
        let outcome = outcome.and_then(|answers| self.check_wait(answers));
        let mut answers = match outcome {
            Ok(all) => all.into_iter(),
            Err(error) => {
                for job in jobs {
                    drop(job.answer.send(Err(error.clone())));
                }
                return;
            }
        };
        for (job, size) in jobs.into_iter().zip(sizes) {
            drop(job.answer.send(Ok(answers.by_ref().take(size).collect())));
        }
    }

    /// Removes the answer to `WAIT`, and fails if too few replicas confirmed.
    fn check_wait(&self, mut answers: PipelineAnswers) -> Result<PipelineAnswers, Error> {
        let wanted = self.replicas;
        let confirmed = match answers.pop() {
            Some(Ok(Value::Int(confirmed))) => u32::try_from(confirmed).unwrap_or(0),
            Some(Err(error)) => return Err(Error::unknown(format!("WAIT: {error}"))),
            Some(Ok(_)) | None => return Err(Error::unknown("WAIT answered no number")),
        };
        if confirmed >= wanted {
            return Ok(answers);
        }
        tracing::debug!(node = %self.identity.node, wanted, confirmed, "redis replicas are late");
        let wait_ms = self.wait_ms;
        Err(Error::unknown(format!(
            "{confirmed} of {wanted} replicas confirmed it within {wait_ms} ms"
        )))
    }
}
