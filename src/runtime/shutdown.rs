//! Shutdown: one signal for all tasks, and the background tasks that outlive a request.
//!
//! Tasks are boxed: the scheduler is compiled once, and not for each of them.
//!
//! No other module spawns tasks outside an actor: the shutdown could not wait for untracked tasks.

use std::future::Future;

use actix_rt::ArbiterHandle;
use actix_web::dev::Server;
use futures_util::future::{BoxFuture, LocalBoxFuture};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// The shutdown signal of the process. Clones share one signal.
#[derive(Debug, Clone, Default)]
pub struct Shutdown {
    token: CancellationToken,
}

impl Shutdown {
    /// Begins the shutdown; idempotent.
    pub fn begin(&self) {
        self.token.cancel();
    }

    /// Runs a background task on the thread of `home` until it ends or the shutdown begins.
    pub fn spawn_on(&self, home: &ArbiterHandle, task: impl Future<Output = ()> + Send + 'static) {
        let token = self.token.clone();
        let task: BoxFuture<'static, ()> = Box::pin(task);
        // False only after the thread has ended, during process exit.
        let _accepted = home.spawn(async move {
            token.run_until_cancelled(task).await;
        });
    }

    /// Runs a background task on this thread until it ends or the shutdown begins.
    #[expect(clippy::disallowed_methods, reason = "ends with the shutdown")]
    pub fn spawn_here(&self, task: impl Future<Output = ()> + 'static) {
        let token = self.token.clone();
        drop(actix_rt::spawn(async move {
            token.run_until_cancelled(task).await;
        }));
    }
}

/// Runs a task on this thread to its end, also if the caller stops waiting. `None`: it panicked. A
/// shutdown does not wait for a task without a caller: each of its steps must be repairable.
pub async fn run_to_end<T: 'static>(task: impl Future<Output = T> + 'static) -> Option<T> {
    let task: LocalBoxFuture<'static, T> = Box::pin(task);
    #[expect(clippy::disallowed_methods, reason = "the steps of the task belong together")]
    let task = actix_rt::spawn(task);
    task.await.ok()
}

/// Runs an HTTP server on this thread until it is stopped through its handle; the task ends earlier
/// if the server cannot be started, or panics.
pub fn spawn_server(server: Server) -> JoinHandle<std::io::Result<()>> {
    #[expect(clippy::disallowed_methods, reason = "ends through its handle, awaited by its owner")]
    actix_rt::spawn(server)
}
