//! Fault injection: random panics, with which operators and tests exercise actor crashes.
//!
//! Off by default; the configuration allows it only while both listeners are on loopback.

/// Makes a share of an actor's steps panic.
#[derive(Debug, Clone, Copy, Default)]
pub struct FaultInjector {
    percent: f64,
}

/// Where in a step the panic is injected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultPoint {
    /// Before the work, which is not done.
    Before,
    /// After the work, which is done.
    After,
}

impl FaultInjector {
    /// `percent` of the steps panic, 0 to 100.
    pub fn new(percent: f64) -> Self {
        Self { percent: percent.clamp(0.0, 100.0) }
    }

    /// Chooses at random whether and where one step panics.
    pub fn choose(self) -> Option<FaultPoint> {
        if self.percent <= 0.0 || fastrand::f64() * 100.0 >= self.percent {
            return None;
        }
        Some(if fastrand::bool() { FaultPoint::Before } else { FaultPoint::After })
    }
}

/// Panics if `chosen` is this point.
pub fn panic_if_chosen(chosen: Option<FaultPoint>, here: FaultPoint) {
    #[expect(clippy::panic, clippy::manual_assert, reason = "an injected fault is a panic")]
    if chosen == Some(here) {
        panic!("drill: this step was chosen to panic");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_percent_never_panics_and_100_percent_always() {
        assert!((0..1000).all(|_| FaultInjector::new(0.0).choose().is_none()));
        assert!((0..1000).all(|_| FaultInjector::new(100.0).choose().is_some()));
    }
}
