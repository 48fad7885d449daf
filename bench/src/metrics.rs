//! The metrics of a server, in the text format.

use crate::stats::{Figures, whole};

/// All metrics at one moment.
#[derive(Debug)]
pub struct Metrics(pub(crate) String);

/// The components that batch, and the histograms of their batch sizes.
const BATCHES: [(&str, &str); 2] =
    [("gate", "floodgate_gate_batch_size"), ("ledger", "floodgate_writer_batch_size")];

impl Metrics {
    /// A counter without labels; 0 if it is missing.
    pub fn count(&self, name: &str) -> u64 {
        whole(self.number(name))
    }

    fn number(&self, name: &str) -> f64 {
        let line = self.0.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.and_then(|value| value.trim().parse().ok()).unwrap_or(0.0)
    }

    /// The mean batch sizes since an earlier reading, of the components that had batches.
    pub fn batches_since(&self, earlier: &Self) -> Figures {
        let mean = |(component, name): (&'static str, &str)| {
            let [requests, batches] = ["sum", "count"].map(|part| {
                let name = format!("{name}_{part}");
                self.number(&name) - earlier.number(&name)
            });
            (batches > 0.0).then(|| (component, requests / batches))
        };
        BATCHES.into_iter().filter_map(mean).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_are_those_of_the_round() {
        let read = |requests: u32, batches: u32| {
            Metrics(format!(
                "# TYPE floodgate_gate_batch_size histogram\n\
                 floodgate_gate_batch_size_sum {requests}.0\n\
                 floodgate_gate_batch_size_count {batches}\n\
                 floodgate_gate_batch_size_bucket{{le=\"1.0\"}} 7\n"
            ))
        };
        assert_eq!(read(700, 30).batches_since(&read(100, 10)), [("gate", 30.0)]);
        assert_eq!(read(100, 10).batches_since(&read(100, 10)), []);
        assert_eq!(read(1, 30).count("floodgate_gate_batch_size_count"), 30);
    }
}
