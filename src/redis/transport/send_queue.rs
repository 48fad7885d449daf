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
use crate::redis::transport::connection::{PipelineAnswers, Transport};

/// Queued batches; further callers wait for a free place.
const QUEUE_MAX: usize = 1_024;
/// Batches per pipeline.
const JOBS_PER_BATCH_MAX: usize = 256;

/// Handle to the task that sends the pipelines.
#[derive(Debug)]
pub(super) struct SendQueue {
    jobs: mpsc::Sender<SendJob>,
}

struct SendJob {
    commands: Vec<Cmd>,
    answer: oneshot::Sender<Result<PipelineAnswers, Error>>,
}

impl SendQueue {
    /// Starts the task on this runtime; it ends when the handle is dropped.
    pub(super) fn start(transport: Arc<Transport>) -> Self {
        let (jobs, mut queue) = mpsc::channel(QUEUE_MAX);
        Handle::current().spawn(async move {
            let mut batch: Vec<SendJob> = Vec::new();
            while queue.recv_many(&mut batch, JOBS_PER_BATCH_MAX).await > 0 {
                // Abandoned by its caller, and not sent.
                batch.retain(|job| !job.answer.is_closed());
                if !batch.is_empty() {
                    send(&transport, std::mem::take(&mut batch)).await;
                }
            }
        });
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

async fn send(transport: &Transport, mut jobs: Vec<SendJob>) {
    let mut pipeline = Pipeline::new();
    let mut sizes = Vec::with_capacity(jobs.len());
    for job in &mut jobs {
        sizes.push(job.commands.len());
        for command in job.commands.drain(..) {
            pipeline.add_command(command);
        }
    }
    let options = &transport.options;
    // `WAIT` with time-out 0 blocks without limit.
    let wait_ms = options.replicas_wait_ms.max(1);
    pipeline.cmd("WAIT").arg(options.replicas_min).arg(wait_ms);
    let limit = options.command_timeout + Duration::from_millis(wait_ms);
    let outcome = transport.exchange(&pipeline, true, limit).await;
    let outcome = outcome.and_then(|answers| check_wait(transport, wait_ms, answers));
    let mut outcome = outcome.map(Vec::into_iter);
    for (job, size) in jobs.into_iter().zip(sizes) {
        let answers = outcome.as_mut().map(|all| all.take(size).collect());
        drop(job.answer.send(answers.map_err(|error| error.clone())));
    }
}

/// Removes the answer to `WAIT`, and fails if too few replicas confirmed.
fn check_wait(
    transport: &Transport,
    wait_ms: u64,
    mut answers: PipelineAnswers,
) -> Result<PipelineAnswers, Error> {
    let confirmed = match answers.pop() {
        Some(Ok(Value::Int(confirmed))) => u32::try_from(confirmed).unwrap_or(0),
        Some(Err(error)) => return Err(Error::unknown(format!("WAIT: {error}"))),
        Some(Ok(_)) | None => return Err(Error::unknown("WAIT answered no number")),
    };
    let wanted = transport.options.replicas_min;
    if confirmed >= wanted {
        return Ok(answers);
    }
    tracing::debug!(node = %transport.node, wanted, confirmed, "redis replicas are late");
    Err(Error::unknown(format!(
        "{confirmed} of {wanted} replicas confirmed it within {wait_ms} ms"
    )))
}
