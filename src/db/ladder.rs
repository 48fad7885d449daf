//! The conflict ladder: one exact outcome for each intent of a batch, whatever the others are.
//!
//! 1. Write the whole batch blindly; nearly always that is all.
//! 2. On a conflict, examine: leave out repeats and refusals, write the rest.
//! 3. A rest that conflicts still (another writer was faster) is examined again in halves, down to
//!    single intents. A single intent that conflicts again and again without the examination saying
//!    why is reported as unavailable, never guessed.
//!
//! On death: each rung is one transaction; a repeat of the whole ladder finds what was written.

use super::{Error, Ledger, Placing};
use crate::domain::{OrderIntent, Outcome};

/// How often a single intent may conflict without a reason before it is given up: as many
/// examinations as it takes to see what another writer did meanwhile.
const PUZZLES_MAX: u32 = 3;

/// A part of the batch, by position, and how often it conflicted without getting smaller.
struct Rung {
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
    outcomes: &mut [Option<Outcome>],
) -> Result<(), Error> {
    let open: Vec<usize> = (0..batch.len())
        .filter(|position| outcomes.get(*position).is_some_and(Option::is_none))
        .collect();
    let mut rungs = Vec::new();
    try_rung(ledger, batch, Rung { positions: open, puzzles: 0 }, outcomes, &mut rungs).await?;
    while let Some(rung) = rungs.pop() {
        let rest = leave_out(ledger, batch, rung, outcomes).await?;
        try_rung(ledger, batch, rest, outcomes, &mut rungs).await?;
    }
    Ok(())
}

/// Writes a rung in one transaction; on a conflict it is put back on the stack.
async fn try_rung(
    ledger: &dyn Ledger,
    batch: &[OrderIntent],
    rung: Rung,
    outcomes: &mut [Option<Outcome>],
    rungs: &mut Vec<Rung>,
) -> Result<(), Error> {
    let intents = pick(batch, &rung.positions);
    if intents.is_empty() {
        return Ok(());
    }
    match ledger.place(intents.clone()).await? {
        Placing::All => {
            for (position, intent) in rung.positions.iter().zip(&intents) {
                set(outcomes, *position, Outcome::Placed(intent.order()));
            }
        }
        Placing::Conflict => put_back(rung, rungs, outcomes),
    }
    Ok(())
}

/// Examines a rung, decides what the ledger already answers, and returns what is left to write.
async fn leave_out(
    ledger: &dyn Ledger,
    batch: &[OrderIntent],
    rung: Rung,
    outcomes: &mut [Option<Outcome>],
) -> Result<Rung, Error> {
    let mut seen = ledger.examine(pick(batch, &rung.positions)).await?;
    let mut positions = Vec::with_capacity(rung.positions.len());
    for position in rung.positions {
        match batch.get(position).and_then(|intent| seen.admit(intent)) {
            Some(outcome) => set(outcomes, position, outcome),
            None => positions.push(position),
        }
    }
    Ok(Rung { positions, puzzles: rung.puzzles })
}

/// A rung that conflicts for the first time is examined whole; after that in halves.
fn put_back(rung: Rung, rungs: &mut Vec<Rung>, outcomes: &mut [Option<Outcome>]) {
    let Rung { mut positions, puzzles } = rung;
    if puzzles == 0 || (positions.len() == 1 && puzzles < PUZZLES_MAX) {
        rungs.push(Rung { positions, puzzles: puzzles + 1 });
    } else if positions.len() > 1 {
        let second = positions.split_off(positions.len() / 2);
        // The first half goes on top: intents are tried in the order they came.
        rungs.push(Rung { positions: second, puzzles });
        rungs.push(Rung { positions, puzzles });
    } else if let Some(position) = positions.first() {
        set(outcomes, *position, Outcome::Unavailable);
    }
}

fn pick(batch: &[OrderIntent], positions: &[usize]) -> Vec<OrderIntent> {
    positions.iter().filter_map(|position| batch.get(*position).copied()).collect()
}

fn set(outcomes: &mut [Option<Outcome>], position: usize, outcome: Outcome) {
    if let Some(slot) = outcomes.get_mut(position) {
        *slot = Some(outcome);
    }
}
