//! Shutdown: one signal for all tasks, and the background tasks that outlive a request.
//!
//! No other module spawns tasks outside an actor: the shutdown could not wait for untracked tasks.

use std::future::Future;

use actix_rt::ArbiterHandle;
use actix_web::dev::Server;
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
        // False only after the thread has ended, during process exit.
        let _accepted = home.spawn(async move {
            token.run_until_cancelled(task).await;
        });
    }
}

/// Runs an HTTP server on this thread until it is stopped through its handle.
pub fn spawn_server(server: Server) {
    #[expect(clippy::disallowed_methods, reason = "ends through its handle, awaited by its owner")]
    drop(actix_rt::spawn(async move {
        if let Err(error) = server.await {
            tracing::error!(
                error = &error as &dyn std::error::Error,
                "HTTP listener ended with an error"
            );
        }
    }));
}
