use std::time::Duration;

use super::child::ServerChild;
use super::machine::{MachineTime, us_each};
use super::sample::Sample;
use crate::load::cpu::Usage;
use crate::load::{Load, Report, run};

/// One load run and what it cost both sides.
#[derive(Debug, Clone)]
pub(super) struct Measured {
    pub(super) report: Report,
    /// CPU time of the server's process.
    server_cpu: Duration,
    /// CPU time of this process, which generates the load.
    own_cpu: Duration,
    /// Resident memory of the server before and after, in bytes.
    pub(super) resident: (u64, u64),
    /// Share of the machine's time that its neighbours took.
    pub(super) stolen: f64,
    /// Share of it that processes other than server and generator took.
    pub(super) others: f64,
    /// CPU time of the servers behind the server.
    behind_cpu: Vec<(&'static str, Duration)>,
    /// Mean sizes of batches, by who made them.
    batches: Vec<(&'static str, f64)>,
}

impl Measured {
    /// Answers per second.
    pub(super) fn rate(&self) -> f64 {
        self.report.per_second(self.report.answered)
    }

    /// Successful answers per second.
    pub(super) fn goodput(&self) -> f64 {
        self.report.per_second(self.report.succeeded())
    }

    /// Core-microseconds of the server for each answer.
    pub(super) fn server_us(&self) -> f64 {
        us_each(self.server_cpu, self.report.answered)
    }

    /// Core-microseconds of each server behind the server, for each answer.
    pub(super) fn behind_us(&self) -> Vec<(&'static str, f64)> {
        let each =
            |(name, cpu): &(&'static str, Duration)| (*name, us_each(*cpu, self.report.answered));
        self.behind_cpu.iter().map(each).collect()
    }

    /// A side of a round, of which `value` is compared.
    pub(super) fn sample(&self, value: f64) -> Sample {
        Sample {
            value,
            server_us: self.server_us(),
            own_us: us_each(self.own_cpu, self.report.answered),
            own_cores: self.own_cpu.as_secs_f64() / self.report.elapsed.as_secs_f64().max(1e-9),
            incomplete: self.report.unsent + self.report.transport_errors,
            batches: self.batches.clone(),
        }
    }
}

/// Runs `load` against `server`.
pub(super) async fn measure(server: &ServerChild, load: Load) -> anyhow::Result<Measured> {
    measure_with(server, &[], load).await
}

/// Runs `load` against `server`; `behind` are the processes behind it, by name.
pub(super) async fn measure_with(
    server: &ServerChild,
    behind: &[(&'static str, u32)],
    load: Load,
) -> anyhow::Result<Measured> {
    let usage_behind =
        || behind.iter().map(|(_, pid)| Usage::of(*pid)).collect::<Result<Vec<_>, _>>();
    let batches = batches(server).await?;
    let (before, own_before, behind_before) = (server.usage()?, Usage::own()?, usage_behind()?);
    let machine = MachineTime::now();
    let report = run(load).await?;
    let (after, own_after, behind_after) = (server.usage()?, Usage::own()?, usage_behind()?);
    let machine_after = MachineTime::now();
    let (server_cpu, own_cpu) = (after.cpu_since(&before), own_after.cpu_since(&own_before));
    let behind_cpu: Vec<_> = behind
        .iter()
        .zip(behind_after.iter().zip(&behind_before))
        .map(|((name, _), (after, before))| (*name, after.cpu_since(before)))
        .collect();
    let ours = behind_cpu.iter().fold(server_cpu + own_cpu, |sum, (_, cpu)| sum + *cpu);
    let others = machine_after.busy_since(&machine).saturating_sub(ours);
    Ok(Measured {
        report,
        server_cpu,
        own_cpu,
        resident: (before.resident, after.resident),
        stolen: machine_after.stolen_since(&machine),
        others: others.as_secs_f64() / machine_after.all_since(&machine).as_secs_f64().max(1e-9),
        behind_cpu,
        batches: self::batches(server).await?.since(&batches),
    })
}

/// The value of a metric without labels; 0 where there is none.
pub(super) fn number(metrics: &str, name: &str) -> f64 {
    let line = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.and_then(|value| value.trim().parse().ok()).unwrap_or(0.0)
}

/// How many batches there were and how many requests in them, since the server was started.
#[derive(Debug, Default)]
pub(super) struct Batches(Vec<(&'static str, f64, f64)>);

/// The batches of a server until now.
pub(super) async fn batches(server: &ServerChild) -> anyhow::Result<Batches> {
    // The yardstick has none.
    if server.internal.is_none() {
        return Ok(Batches::default());
    }
    Ok(Batches::read(&server.admin()?.metrics().await?))
}

impl Batches {
    fn read(metrics: &str) -> Self {
        let number = |name: String| number(metrics, &name);
        let histogram = |(who, name): (&'static str, &str)| {
            (who, number(format!("{name}_sum")), number(format!("{name}_count")))
        };
        let all =
            [("gate", "floodgate_gate_batch_size"), ("ledger", "floodgate_consumer_batch_size")];
        Self(all.into_iter().map(histogram).collect())
    }

    /// The mean sizes since an earlier look.
    pub(super) fn since(&self, earlier: &Self) -> Vec<(&'static str, f64)> {
        let mean = |(now, then): (&(&'static str, f64, f64), &(&'static str, f64, f64))| {
            let batches = now.2 - then.2;
            (batches > 0.0).then(|| (now.0, (now.1 - then.1) / batches))
        };
        self.0.iter().zip(&earlier.0).filter_map(mean).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_are_those_of_the_round() {
        let seen = |requests: u32, batches: u32| {
            Batches::read(&format!(
                "# TYPE floodgate_gate_batch_size histogram\n\
                 floodgate_gate_batch_size_sum {requests}.0\n\
                 floodgate_gate_batch_size_count {batches}\n\
                 floodgate_gate_batch_size_bucket{{le=\"1.0\"}} 7\n"
            ))
        };
        assert_eq!(seen(700, 30).since(&seen(100, 10)), [("gate", 30.0)]);
        assert_eq!(seen(100, 10).since(&seen(100, 10)), []);
    }
}
