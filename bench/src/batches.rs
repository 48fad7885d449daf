//! Mean batch sizes of a server, from its metrics.

use crate::admin::Admin;
use crate::harness::number;
use crate::stats::Figures;

/// Requests in batches and number of batches since the server started, per component.
#[derive(Debug, Default)]
pub(crate) struct Batches([(f64, f64); 2]);

/// The components that batch, and the histograms of their batch sizes.
const BATCHES: [(&str, &str); 2] =
    [("gate", "floodgate_gate_batch_size"), ("ledger", "floodgate_writer_batch_size")];

impl Batches {
    /// Reads the current values; all 0 without an admin API.
    pub(crate) async fn of(admin: Option<&Admin>) -> anyhow::Result<Self> {
        let Some(admin) = admin else { return Ok(Self::default()) };
        Ok(Self::read(&admin.metrics().await?))
    }

    fn read(metrics: &str) -> Self {
        let number = |name: String| number(metrics, &name);
        Self(
            BATCHES
                .map(|(_, name)| (number(format!("{name}_sum")), number(format!("{name}_count")))),
        )
    }

    /// The mean batch sizes since an earlier reading.
    pub(crate) fn since(&self, earlier: &Self) -> Figures {
        let mut means = Vec::new();
        for ((now, then), (component, _)) in self.0.iter().zip(&earlier.0).zip(BATCHES) {
            let batches = now.1 - then.1;
            if batches > 0.0 {
                means.push((component, (now.0 - then.0) / batches));
            }
        }
        means
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_are_those_of_the_round() {
        let read = |requests: u32, batches: u32| {
            Batches::read(&format!(
                "# TYPE floodgate_gate_batch_size histogram\n\
                 floodgate_gate_batch_size_sum {requests}.0\n\
                 floodgate_gate_batch_size_count {batches}\n\
                 floodgate_gate_batch_size_bucket{{le=\"1.0\"}} 7\n"
            ))
        };
        assert_eq!(read(700, 30).since(&read(100, 10)), [("gate", 30.0)]);
        assert_eq!(read(100, 10).since(&read(100, 10)), []);
    }
}
