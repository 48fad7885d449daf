//! Writes log lines on a thread of its own: a reader of stderr that stops stops nothing else.
//!
//! `tracing-appender` does the same, and prints to stdout where the reader has stopped at the end.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};

/// Lines that wait while the reader takes none; more are lost.
const WAITING_MAX: usize = 10_000;

/// Longest wait at the end of the process while the reader takes none.
const END_MAX: Duration = Duration::from_millis(500);

/// Sends lines to the thread. Cheap to clone.
#[derive(Debug, Clone)]
pub struct LogLines {
    lines: Sender<Vec<u8>>,
    lost: Arc<AtomicU64>,
}

/// The thread. Dropping it writes the lines that wait, for as long as their reader takes some.
#[derive(Debug)]
pub struct LogWriter {
    lines: Sender<Vec<u8>>,
    ended: Receiver<()>,
}

/// Starts the thread.
pub fn start(mut target: impl Write + Send + 'static) -> io::Result<(LogLines, LogWriter)> {
    let (sender, lines) = bounded(WAITING_MAX);
    let (ending, ended) = bounded(0);
    let write = move || {
        // Dropped at the end.
        let _ending: Sender<()> = ending;
        // An empty line is the last one.
        for line in lines.iter().take_while(|line: &Vec<u8>| !line.is_empty()) {
            // With a closed stderr, lines are lost.
            drop(target.write_all(&line));
        }
    };
    thread::Builder::new().name("log-writer".to_owned()).spawn(write)?;
    let lost = Arc::default();
    Ok((LogLines { lines: sender.clone(), lost }, LogWriter { lines: sender, ended }))
}

impl LogLines {
    /// The number of lines that were lost.
    pub fn num_lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }
}

impl Write for LogLines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.lines.try_send(line.to_vec()).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for LogWriter {
    fn drop(&mut self) {
        if self.lines.send_timeout(Vec::new(), END_MAX).is_err() {
            return;
        }
        let mut num_waiting = usize::MAX;
        while self.ended.recv_timeout(END_MAX) == Err(RecvTimeoutError::Timeout)
            && self.lines.len() < num_waiting
        {
            num_waiting = self.lines.len();
        }
    }
}
