use std::time::Duration;

use super::child::ServerChild;
use super::machine::{MachineTime, us_each};
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

    /// Core-microseconds of the generator for each answer.
    pub(super) fn own_us(&self) -> f64 {
        us_each(self.own_cpu, self.report.answered)
    }

    /// Cores the generator kept busy.
    pub(super) fn own_cores(&self) -> f64 {
        self.own_cpu.as_secs_f64() / self.report.elapsed.as_secs_f64().max(1e-9)
    }
}

/// Runs `load` against `server`.
pub(super) async fn measure(server: &ServerChild, load: Load) -> anyhow::Result<Measured> {
    let (before, own_before, machine) = (server.usage()?, Usage::own()?, MachineTime::now());
    let report = run(load).await?;
    let (after, own_after) = (server.usage()?, Usage::own()?);
    let machine_after = MachineTime::now();
    let (server_cpu, own_cpu) = (after.cpu_since(&before), own_after.cpu_since(&own_before));
    let others = machine_after.busy_since(&machine).saturating_sub(server_cpu + own_cpu);
    Ok(Measured {
        report,
        server_cpu,
        own_cpu,
        resident: (before.resident, after.resident),
        stolen: machine_after.stolen_since(&machine),
        others: others.as_secs_f64() / machine_after.all_since(&machine).as_secs_f64().max(1e-9),
    })
}
