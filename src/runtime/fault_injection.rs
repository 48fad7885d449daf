//! Drills: panics on purpose, so that operators and tests see what a crash of an actor costs.
//!
//! Off by default; the configuration allows it only while both listeners are on loopback.

/// How many steps of an actor panic.
#[derive(Debug, Clone, Copy, Default)]
pub struct FaultInjector {
    percent: f64,
}

/// Where in its step an actor was chosen to panic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultPoint {
    /// Before the work: it never happened.
    Before,
    /// After the work: it happened, and nobody heard.
    After,
}

impl FaultInjector {
    /// Makes `percent` of the steps panic.
    #[must_use]
    pub fn new(percent: f64) -> Self {
        Self { percent: percent.clamp(0.0, 100.0) }
    }

    /// Chooses for one step whether it panics, and where.
    #[must_use]
    pub fn draw(self) -> Option<FaultPoint> {
        if self.percent <= 0.0 || fastrand::f64() * 100.0 >= self.percent {
            return None;
        }
        Some(if fastrand::bool() { FaultPoint::Before } else { FaultPoint::After })
    }
}

/// Panics when `drawn` chose this place.
pub fn strike(drawn: Option<FaultPoint>, here: FaultPoint) {
    #[expect(clippy::panic, clippy::manual_assert, reason = "a drill is a panic on purpose")]
    if drawn == Some(here) {
        panic!("drill: this step was chosen to panic");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_step_or_every_step_panics_at_the_ends_of_the_scale() {
        assert!((0..1000).all(|_| FaultInjector::new(0.0).draw().is_none()));
        assert!((0..1000).all(|_| FaultInjector::new(100.0).draw().is_some()));
    }
}
