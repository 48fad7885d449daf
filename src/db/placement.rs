//! Writes a batch, and resolves conflicts: one exact outcome for each intent, independent of the
//! others.
//!
//! 1. Write the whole batch blindly; nearly always this succeeds.
//! 2. On a conflict, examine the batch: leave out repeats and refusals, and write the remaining
//!    intents. A refusal that is caused by another intent of the batch becomes final only when that
//!    intent is written.
//! 3. If the remaining intents conflict again (another writer was faster), bisect them, down to
//!    single intents. A single intent that keeps conflicting without a reason in the examination
//!    stays without an outcome, which is never guessed.
//!
//! On crash: each segment is one transaction; a repeat of the whole batch finds the written orders.

use super::{Error, OrderWriter};
use crate::domain::{OrderIntent, PlaceOutcome};

/// How often a single intent may conflict without a reason before it is left without an outcome.
/// Each further examination may show the rows that another writer committed meanwhile.
const UNEXPLAINED_CONFLICTS_MAX: u32 = 3;

/// A part of the batch, by positions in it.
#[derive(Default)]
struct Segment {
    /// The intents to be written.
    write: Vec<usize>,
    /// Outcomes that become final once those intents are written.
    then: Vec<(usize, PlaceOutcome)>,
    /// How often it conflicted since it last became smaller.
    unexplained_conflicts: u32,
}

/// Writes every intent that has no outcome, and determines its outcome; `outcomes` has one element
/// per intent of `batch`. An intent that has none afterwards was certainly not written: it
/// conflicts for a reason that the ledger does not show.
///
/// # Errors
/// The ledger's error of the segment that failed. Intents with an outcome are committed or refused;
/// unless the error's class is `Unknown`, those without one were certainly not written.
pub async fn place_each(
    ledger: &dyn OrderWriter,
    batch: &[OrderIntent],
    outcomes: &mut [Option<PlaceOutcome>],
) -> Result<(), Error> {
    let write = (0..batch.len())
        .filter(|position| outcomes.get(*position).is_some_and(Option::is_none))
        .collect();
    let mut segments = Vec::new();
    let whole = Segment { write, ..Segment::default() };
    try_write(ledger, batch, whole, outcomes, &mut segments).await?;
    while let Some(segment) = segments.pop() {
        let examined = examine(ledger, batch, segment, outcomes).await?;
        try_write(ledger, batch, examined, outcomes, &mut segments).await?;
    }
    Ok(())
}

/// Writes a segment in one transaction; on a conflict it is examined as a whole or in halves.
async fn try_write(
    ledger: &dyn OrderWriter,
    batch: &[OrderIntent],
    segment: Segment,
    outcomes: &mut [Option<PlaceOutcome>],
    segments: &mut Vec<Segment>,
) -> Result<(), Error> {
    let intents = pick(batch, &segment.write);
    if intents.is_empty() {
        return Ok(());
    }
    if let Some(recorded_at_ms) = ledger.place(intents.clone()).await? {
        for (position, intent) in segment.write.iter().zip(&intents) {
            set(outcomes, *position, PlaceOutcome::Placed(intent.order(recorded_at_ms)));
        }
        for (position, mut outcome) in segment.then {
            // The examination did not know when the order would be written.
            if let PlaceOutcome::Repeat(order) = &mut outcome
                && let Some(intent) = intents.iter().find(|it| it.request == order.request)
            {
                *order = intent.order(recorded_at_ms);
            }
            set(outcomes, position, outcome);
        }
    } else {
        split_or_retry(segment, segments);
    }
    Ok(())
}

/// Examines a segment, sets the outcomes that the ledger's rows determine, and returns the rest.
async fn examine(
    ledger: &dyn OrderWriter,
    batch: &[OrderIntent],
    segment: Segment,
    outcomes: &mut [Option<PlaceOutcome>],
) -> Result<Segment, Error> {
    let present = ledger.examine(pick(batch, &segment.write)).await?;
    let mut with_batch = present.clone();
    let unexplained_conflicts = segment.unexplained_conflicts;
    let mut examined = Segment { unexplained_conflicts, ..Segment::default() };
    for position in segment.write {
        let Some(intent) = batch.get(position) else { continue };
        match with_batch.admit(intent) {
            None => examined.write.push(position),
            // An earlier intent of the batch causes this outcome. If another writer prevents that
            // intent, this one has another outcome.
            Some(outcome) if present.outcome_of(intent) != Some(outcome) => {
                examined.then.push((position, outcome));
            }
            Some(outcome) => set(outcomes, position, outcome),
        }
    }
    Ok(examined)
}

/// After a conflict, all intents of the segment are examined again: whole for the first time, then
/// in halves. A single intent without further attempts is left.
fn split_or_retry(segment: Segment, segments: &mut Vec<Segment>) {
    let Segment { mut write, then, unexplained_conflicts: conflicts } = segment;
    write.extend(then.into_iter().map(|(position, _)| position));
    write.sort_unstable();
    let mut push = |write, unexplained_conflicts| {
        segments.push(Segment { write, then: Vec::new(), unexplained_conflicts });
    };
    if conflicts == 0 || (write.len() == 1 && conflicts < UNEXPLAINED_CONFLICTS_MAX) {
        push(write, conflicts + 1);
    } else if write.len() > 1 {
        let second = write.split_off(write.len() / 2);
        // The first half is pushed last and popped first, so that intents keep their order.
        push(second, conflicts);
        push(write, conflicts);
    }
}

fn pick(batch: &[OrderIntent], positions: &[usize]) -> Vec<OrderIntent> {
    positions.iter().filter_map(|position| batch.get(*position).copied()).collect()
}

fn set(outcomes: &mut [Option<PlaceOutcome>], position: usize, outcome: PlaceOutcome) {
    if let Some(element) = outcomes.get_mut(position) {
        *element = Some(outcome);
    }
}
