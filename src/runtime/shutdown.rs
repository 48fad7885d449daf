//! The way down: one signal that everybody can wait for, and the tasks that outlive a request.
//!
//! No other module spawns tasks outside an actor: a task that nobody tracks is a task that nobody
//! waits for when the process ends.

use std::future::Future;

use actix_rt::ArbiterHandle;
use actix_web::dev::Server;
use tokio_util::sync::CancellationToken;

/// Says when the process is on its way down.
#[derive(Debug, Clone, Default)]
pub struct Shutdown {
    token: CancellationToken,
}

impl Shutdown {
    /// Begins the way down; repeats are harmless.
    pub fn begin(&self) {
        self.token.cancel();
    }

    /// Whether the way down has begun.
    #[must_use]
    pub fn has_begun(&self) -> bool {
        self.token.is_cancelled()
    }

    /// Waits until the way down begins.
    pub async fn begun(&self) {
        self.token.cancelled().await;
    }

    /// Runs a background task on the thread of `home` until it ends or the way down begins.
    pub fn spawn_on(&self, home: &ArbiterHandle, task: impl Future<Output = ()> + Send + 'static) {
        let token = self.token.clone();
        // False only when the thread has ended, and then the process is ending too.
        let _accepted = home.spawn(async move {
            tokio::select! {
                () = token.cancelled() => {}
                () = task => {}
            }
        });
    }
}

/// Lets an HTTP server run on this thread until it is stopped through its handle.
pub fn spawn_server(server: Server) {
    #[expect(clippy::disallowed_methods, reason = "ends through its handle, awaited by its owner")]
    drop(actix_rt::spawn(async move {
        if let Err(error) = server.await {
            tracing::error!(error = &error as &dyn std::error::Error, "listener ended");
        }
    }));
}
