//! When a page asks again: the server decides, so that a crowd of open pages is a bounded load.

use std::time::Duration;

use crate::domain::{Phase, Sale};

/// Polls of one sale per second that a process answers before it asks pages to wait longer.
const POLLS_PER_SECOND: f64 = 2_000.0;

/// Longest interval of a crowded sale.
const CROWDED_MAX_MS: u32 = 30_000;

/// Interval while units are on sale, with few open pages.
const SELLING_MS: u32 = 1_000;

/// Interval while nothing can be bought, but may be soon: paused, or sold out.
const WAITING_MS: u32 = 5_000;

/// Interval when nothing changes before long.
const IDLE_MS: u32 = 60_000;

/// The polls that one rendering of the sale has answered.
#[derive(Debug, Clone, Copy, Default)]
pub struct PollLoad {
    pub num_reads: u32,
    pub within: Duration,
    /// Interval that these readers were given.
    pub poll_after_ms: u32,
}

/// Milliseconds until a page asks again. The number of open pages is estimated as polls per second
/// times their interval.
pub fn interval_ms(sale: &Sale, has_stock: bool, now_ms: i64, load: PollLoad) -> u32 {
    let to_start_ms = u32::try_from((sale.starts_at_ms - now_ms).max(0)).unwrap_or(u32::MAX);
    let calm_ms = match sale.phase {
        Phase::Closed => IDLE_MS,
        _ if now_ms >= sale.ends_at_ms => IDLE_MS,
        Phase::Draft | Phase::Paused => WAITING_MS,
        // The page counts down by itself; a poll before the start only notices a change of plan.
        Phase::Open if to_start_ms > 0 => (to_start_ms / 2).clamp(WAITING_MS, IDLE_MS),
        Phase::Open if has_stock => SELLING_MS,
        Phase::Open => WAITING_MS,
    };
    let seconds = load.within.as_secs_f64().max(0.05);
    let open_pages = f64::from(load.num_reads) / seconds * f64::from(load.poll_after_ms) / 1_000.0;
    let crowded_ms = (open_pages / POLLS_PER_SECOND * 1_000.0).min(f64::from(CROWDED_MAX_MS));
    // Not negative, and at most CROWDED_MAX_MS.
    calm_ms.max(Duration::from_secs_f64(crowded_ms / 1_000.0).as_millis().try_into().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::samples;

    fn sale(phase: Phase) -> Sale {
        Sale {
            starts_at_ms: 100_000,
            ends_at_ms: 200_000,
            phase,
            skus: Vec::new(),
            ..samples::sale()
        }
    }

    fn calm(phase: Phase, has_stock: bool, now_ms: i64) -> u32 {
        interval_ms(&sale(phase), has_stock, now_ms, PollLoad::default())
    }

    #[test]
    fn the_phase_sets_the_interval_of_a_calm_sale() {
        for before in [900_000, 50 * 86_400_000, 3_650 * 86_400_000] {
            assert_eq!(calm(Phase::Open, true, -before), 60_000, "{before} ms before the start");
        }
        assert_eq!(calm(Phase::Open, true, 80_000), 10_000);
        assert_eq!(calm(Phase::Open, true, 99_999), 5_000, "the page counts down");
        assert_eq!(calm(Phase::Open, true, 100_000), 1_000);
        assert_eq!(calm(Phase::Open, false, 100_000), 5_000, "a unit may return");
        assert_eq!(calm(Phase::Paused, true, 100_000), 5_000);
        assert_eq!(calm(Phase::Open, true, 200_000), 60_000);
        assert_eq!(calm(Phase::Closed, true, 100_000), 60_000);
    }

    /// Open pages that ask at the interval which they were given.
    #[test]
    fn a_crowd_converges_to_the_bounded_rate() {
        for pages in [10_u32, 1_000, 20_000, 50_000, 1_000_000] {
            let mut poll_after_ms = SELLING_MS;
            for _ in 0..10 {
                let per_second = u64::from(pages) * 1_000 / u64::from(poll_after_ms);
                let load = PollLoad {
                    num_reads: per_second.try_into().unwrap(),
                    within: Duration::from_secs(1),
                    poll_after_ms,
                };
                poll_after_ms = interval_ms(&sale(Phase::Open), true, 150_000, load);
            }
            let expected = (pages / 2).clamp(SELLING_MS, CROWDED_MAX_MS);
            assert!(poll_after_ms.abs_diff(expected) <= expected / 50, "{pages}: {poll_after_ms}");
        }
    }
}
