//! The conflict ladder: one exact outcome for each intent of a batch, whatever the others are.
//!
//! 1. Write the whole batch blindly; nearly always that is all.
//! 2. On a conflict, examine: leave out repeats and refusals, write the rest. What was refused for
//!    the sake of another intent of the batch is refused only when that one is written.
//! 3. A rest that conflicts still (another writer was faster) is examined again in halves, down to
//!    single intents. A single intent that conflicts again and again without the examination saying
//!    why is reported as unavailable, never guessed.
//!
//! On death: each rung is one transaction; a repeat of the whole ladder finds what was written.

use super::{BlindInsert, Error, Ledger};
use crate::domain::{OrderIntent, PlaceOutcome};

/// How often a single intent may conflict without a reason before it is given up: as many
/// examinations as it takes to see what another writer did meanwhile.
const PUZZLES_MAX: u32 = 3;

/// A part of the batch, by position, and how often it conflicted without getting smaller.
struct Segment {
    positions: Vec<usize>,
    puzzles: u32,
}

/// Brings every intent without an outcome to one; `outcomes` has one place per intent of `batch`.
///
/// # Errors
/// The ledger's error of the rung that failed. What has an outcome by then is committed; unless the
/// error's class is `Unknown`, what has none was certainly not written.
pub async fn climb(
    ledger: &dyn Ledger,
    batch: &[OrderIntent],
    outcomes: &mut [Option<PlaceOutcome>],
) -> Result<(), Error> {
    let open: Vec<usize> = (0..batch.len())
        .filter(|position| outcomes.get(*position).is_some_and(Option::is_none))
        .collect();
    let mut rungs = Vec::new();
    let step = SegmentDecision { write: open, ..SegmentDecision::default() };
    try_step(ledger, batch, step, outcomes, &mut rungs).await?;
    while let Some(rung) = rungs.pop() {
        let step = leave_out(ledger, batch, rung, outcomes).await?;
        try_step(ledger, batch, step, outcomes, &mut rungs).await?;
    }
    Ok(())
}

/// What an examination makes of a rung.
#[derive(Default)]
struct SegmentDecision {
    /// The intents to be written, by position.
    write: Vec<usize>,
    /// Outcomes that hold once those are written.
    then: Vec<(usize, PlaceOutcome)>,
    puzzles: u32,
}

/// Writes a step in one transaction; on a conflict all of it is a rung again.
async fn try_step(
    ledger: &dyn Ledger,
    batch: &[OrderIntent],
    step: SegmentDecision,
    outcomes: &mut [Option<PlaceOutcome>],
    rungs: &mut Vec<Segment>,
) -> Result<(), Error> {
    let intents = pick(batch, &step.write);
    if intents.is_empty() {
        return Ok(());
    }
    match ledger.place(intents.clone()).await? {
        BlindInsert::All => {
            for (position, intent) in step.write.iter().zip(&intents) {
                set(outcomes, *position, PlaceOutcome::Placed(intent.order()));
            }
            for (position, outcome) in step.then {
                set(outcomes, position, outcome);
            }
        }
        BlindInsert::Conflict => {
            let mut positions = step.write;
            positions.extend(step.then.iter().map(|(position, _)| *position));
            positions.sort_unstable();
            put_back(Segment { positions, puzzles: step.puzzles }, rungs, outcomes);
        }
    }
    Ok(())
}

/// Examines a rung, decides what the ledger already answers, and returns what is left to write.
async fn leave_out(
    ledger: &dyn Ledger,
    batch: &[OrderIntent],
    rung: Segment,
    outcomes: &mut [Option<PlaceOutcome>],
) -> Result<SegmentDecision, Error> {
    let held = ledger.examine(pick(batch, &rung.positions)).await?;
    let mut with_batch = held.clone();
    let mut step = SegmentDecision { puzzles: rung.puzzles, ..SegmentDecision::default() };
    for position in rung.positions {
        let Some(intent) = batch.get(position) else { continue };
        match with_batch.admit(intent) {
            None => step.write.push(position),
            // Another writer may take the place of the intent that stands in the way, and then this
            // one has another outcome.
            Some(outcome) if held.judge(intent) != Some(outcome) => {
                step.then.push((position, outcome));
            }
            Some(outcome) => set(outcomes, position, outcome),
        }
    }
    Ok(step)
}

/// A rung that conflicts for the first time is examined whole; after that in halves.
fn put_back(rung: Segment, rungs: &mut Vec<Segment>, outcomes: &mut [Option<PlaceOutcome>]) {
    let Segment { mut positions, puzzles } = rung;
    if puzzles == 0 || (positions.len() == 1 && puzzles < PUZZLES_MAX) {
        rungs.push(Segment { positions, puzzles: puzzles + 1 });
    } else if positions.len() > 1 {
        let second = positions.split_off(positions.len() / 2);
        // The first half goes on top: intents are tried in the order they came.
        rungs.push(Segment { positions: second, puzzles });
        rungs.push(Segment { positions, puzzles });
    } else if let Some(position) = positions.first() {
        set(outcomes, *position, PlaceOutcome::Unavailable);
    }
}

fn pick(batch: &[OrderIntent], positions: &[usize]) -> Vec<OrderIntent> {
    positions.iter().filter_map(|position| batch.get(*position).copied()).collect()
}

fn set(outcomes: &mut [Option<PlaceOutcome>], position: usize, outcome: PlaceOutcome) {
    if let Some(slot) = outcomes.get_mut(position) {
        *slot = Some(outcome);
    }
}

#[cfg(test)]
#[path = "conflict_resolution_tests.rs"]
mod tests;
