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
    servers: Vec<(&'static str, u32, Usage)>,
    begun: Instant,
    own_usage: Usage,
    children: Duration,
    machine: MachineTime,
}

/// What was measured.
pub(super) struct Metered {
    elapsed: Duration,
    /// Of each server, the one that counts first.
    servers: Vec<(&'static str, Duration)>,
    own_cpu: Duration,
}

impl Meter {
    /// Begins; `server` is the process whose work counts.
    pub(super) fn start(server: u32) -> anyhow::Result<Self> {
        Self::start_all(&[("server", server)])
    }

    /// Begins; the first of these processes, with their names, is the one whose work counts.
    pub(super) fn start_all(servers: &[(&'static str, u32)]) -> anyhow::Result<Self> {
        let look = |(name, pid): &(&'static str, u32)| Ok((*name, *pid, usage(*pid)?));
        Ok(Self {
            servers: servers.iter().map(look).collect::<anyhow::Result<_>>()?,
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
        let spent = |(name, pid, before): &(&'static str, u32, Usage)| {
            Ok((*name, usage(*pid)?.cpu_since(before)))
        };
        let servers: Vec<_> = self.servers.iter().map(spent).collect::<anyhow::Result<_>>()?;
        let own_cpu = Usage::own()?.cpu_since(&self.own_usage);
        let children = children_cpu().saturating_sub(self.children);
        let ours = servers.iter().fold(own_cpu + children, |sum, (_, cpu)| sum + *cpu);
        let others = machine.busy_since(&self.machine).saturating_sub(ours).as_secs_f64();
        let all = machine.all_since(&self.machine).as_secs_f64().max(1e-9);
        lab.disturbed(machine.stolen_since(&self.machine), others / all);
        Ok(Metered { elapsed, servers, own_cpu })
    }
}

fn usage(pid: u32) -> anyhow::Result<Usage> {
    Usage::of(pid).context("a server process has ended")
}

impl Metered {
    pub(super) fn elapsed(&self) -> Duration {
        self.elapsed
    }

    /// Core-microseconds of each server, for each operation.
    pub(super) fn each(&self, operations: u64) -> Vec<(&'static str, f64)> {
        self.servers.iter().map(|(name, cpu)| (*name, us_each(*cpu, operations))).collect()
    }

    /// So many operations a second.
    pub(super) fn rate(&self, operations: u64) -> f64 {
        operations as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }

    /// A side of which `value` is compared, with its costs for each operation.
    pub(super) fn sample(&self, value: f64, operations: u64) -> Sample {
        Sample {
            value,
            server_us: self.each(operations).first().map_or(0.0, |(_, us)| *us),
            own_us: us_each(self.own_cpu, operations),
            own_cores: self.own_cpu.as_secs_f64() / self.elapsed.as_secs_f64().max(1e-9),
            ..Sample::default()
        }
    }
}
