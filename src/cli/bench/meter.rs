//! What a stretch of work inside this process costs, and what it costs the servers behind.

use std::time::{Duration, Instant};

use anyhow::Context;

use super::lab::Lab;
use super::machine::{MachineTime, children_cpu, us_each};
use super::sample::Sample;
use crate::clock::now_monotonic;
use crate::load::cpu::Usage;

/// Measures from its making to [`Meter::stop`].
pub(super) struct Meter {
    server: u32,
    begun: Instant,
    server_usage: Usage,
    own_usage: Usage,
    children: Duration,
    machine: MachineTime,
}

/// What was measured.
pub(super) struct Metered {
    elapsed: Duration,
    server_cpu: Duration,
    own_cpu: Duration,
}

impl Meter {
    /// Begins; `server` is the process whose work counts.
    pub(super) fn start(server: u32) -> anyhow::Result<Self> {
        let server_usage = Usage::of(server).context("the server process has ended")?;
        Ok(Self {
            server,
            server_usage,
            own_usage: Usage::own()?,
            children: children_cpu(),
            machine: MachineTime::now(),
            begun: now_monotonic(),
        })
    }

    /// Ends. Children that ended meanwhile, such as a generator, are part of the bench.
    pub(super) fn stop(self, lab: &mut Lab<'_>) -> anyhow::Result<Metered> {
        let elapsed = now_monotonic().duration_since(self.begun);
        let machine = MachineTime::now();
        let server_cpu = Usage::of(self.server)?.cpu_since(&self.server_usage);
        let own_cpu = Usage::own()?.cpu_since(&self.own_usage);
        let children = children_cpu().saturating_sub(self.children);
        let ours = server_cpu + own_cpu + children;
        let others = machine.busy_since(&self.machine).saturating_sub(ours).as_secs_f64();
        let all = machine.all_since(&self.machine).as_secs_f64().max(1e-9);
        lab.disturbed(machine.stolen_since(&self.machine), others / all);
        Ok(Metered { elapsed, server_cpu, own_cpu })
    }
}

impl Metered {
    /// So many operations a second.
    pub(super) fn rate(&self, operations: u64) -> f64 {
        operations as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }

    /// A side of which `value` is compared, with its costs for each operation.
    pub(super) fn sample(&self, value: f64, operations: u64) -> Sample {
        Sample {
            value,
            server_us: us_each(self.server_cpu, operations),
            own_us: us_each(self.own_cpu, operations),
            own_cores: self.own_cpu.as_secs_f64() / self.elapsed.as_secs_f64().max(1e-9),
            ..Sample::default()
        }
    }
}
