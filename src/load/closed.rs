use std::sync::Arc;

use futures_util::future::join_all;

use super::connection::Connection;
use super::plan::LoadError;
use super::recorder::Recorder;
use super::run::{Running, Shared, runtime, spawn};
use crate::clock;

/// Starts one thread per recorder, each keeping its share of the connections busy.
pub(super) fn start(
    shared: &Arc<Shared>,
    recorders: &[Arc<Recorder>],
) -> Result<Vec<Running>, LoadError> {
    let mut running = Vec::with_capacity(recorders.len());
    for (thread, recorder) in recorders.iter().enumerate() {
        let (shared, recorder) = (shared.clone(), recorder.clone());
        let connections = shared.load.connections_of(thread);
        running.push(spawn("load-closed", move || {
            let runtime = runtime()?;
            let tasks: Vec<_> = (0..connections)
                .map(|_| runtime.spawn(keep_busy(shared.clone(), recorder.clone())))
                .collect();
            let ended = runtime.block_on(join_all(tasks));
            if ended.iter().any(Result::is_err) { Err(LoadError::Died) } else { Ok(()) }
        })?);
    }
    Ok(running)
}

/// One buyer after the other on one connection.
async fn keep_busy(shared: Arc<Shared>, recorder: Arc<Recorder>) {
    let load = &shared.load;
    let mut connection = Connection::new(load.target, load.connect_timeout, load.answer_timeout);
    let mut request = Vec::with_capacity(512);
    // Best effort: where it fails the first request tries again, and reports it.
    _ = connection.open().await;
    let mut now = clock::now_monotonic();
    while let Some(seq) = shared.next(now) {
        request.clear();
        (load.source)(seq, &mut request);
        let exchanged = connection.exchange(&request, now).await;
        let ended = clock::now_monotonic();
        match exchanged.and_then(|()| connection.answer()) {
            Ok(answer) => recorder.answered(seq, answer, ended.duration_since(now)),
            Err(error) => recorder.unknown(seq, error),
        }
        now = ended;
    }
}
