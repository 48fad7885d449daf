//! What goes to the broker in one round, and the fate of each entry, given what became of its
//! message. Pure.

use std::collections::HashSet;
use std::time::Instant;

use super::rounds::{Limits, Rounds, Slot};
use crate::broker::{Message, Route, Sent};
use crate::outbox::{Entry, Fate, Hand};
use crate::stock::BucketKey;

/// What is meant for one entry in hand.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Plan {
    /// It is not due.
    Rests,
    /// Its message, which goes there, is the next one of the batch.
    Goes(Route),
    /// It cannot be a message.
    Dies(String),
}

/// What is meant for every entry of the hands that one batch touches.
#[derive(Debug, Default)]
pub struct Plans(Vec<(BucketKey, Vec<Plan>)>);

impl Plans {
    /// Whether the round has nothing to say to broker or outbox.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// What a round came to, by number of entries.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// Confirmed.
    pub published: usize,
    /// The broker said no.
    pub refused: usize,
    /// Nobody knows.
    pub unknown: usize,
    /// Certainly not sent.
    pub not_sent: usize,
    /// Became dead letters.
    pub dead: usize,
}

/// What is to be reported to the outbox.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Whole hands with the fate of each entry; hands to which nothing happened are left out.
    pub hands: Vec<(Hand, Vec<Fate>)>,
    /// Over all hands.
    pub tally: Tally,
    /// Why the broker took nothing, if it is away.
    pub away: Option<String>,
    /// What became of a message, if a queue answered for none of its messages.
    pub silence: Option<String>,
}

impl Rounds {
    /// Makes messages of what is due. `seal` refuses what cannot be a message, for good.
    pub fn pack(
        &self,
        now: Instant,
        mut seal: impl FnMut(BucketKey, &Entry) -> Result<Message, String>,
    ) -> (Vec<Message>, Plans) {
        let (mut messages, mut plans) = (Vec::new(), Plans::default());
        for (bucket, tray) in &self.trays {
            if !tray.slots.iter().any(|slot| slot.due <= now) {
                continue;
            }
            let plan = |slot: &Slot| {
                if slot.due > now {
                    return Plan::Rests;
                }
                match seal(*bucket, &slot.entry) {
                    Ok(message) => {
                        let route = message.route;
                        messages.push(message);
                        Plan::Goes(route)
                    }
                    Err(reason) => Plan::Dies(reason),
                }
            };
            plans.0.push((*bucket, tray.slots.iter().map(plan).collect()));
        }
        (messages, plans)
    }

    /// Decides the fate of every entry. From here on the hands are what they will be after the
    /// report; a report that fails puts them in doubt.
    ///
    /// A queue that answered for no message of the whole round is in trouble itself: that is no
    /// attempt of any entry. A broker that answered for none is away if it took none.
    pub fn judge(&mut self, plans: Plans, sent: Vec<Sent>, now: Instant) -> Report {
        let answering = answering(&plans, &sent);
        let mut sent = sent.into_iter();
        let mut report = Report::default();
        let limits = self.limits;
        for (bucket, plans) in plans.0 {
            let Some(tray) = self.trays.get_mut(&bucket) else { continue };
            let judged = plans.into_iter().zip(&mut tray.slots).map(|(plan, slot)| match plan {
                Plan::Rests => Fate::Kept,
                Plan::Dies(reason) => Fate::Dead { reason },
                Plan::Goes(route) => {
                    let lost = || Sent::Unknown { reason: "there was no result".to_owned() };
                    let sent = sent.next().unwrap_or_else(lost);
                    fate(&limits, slot, sent, answering.contains(&route), now, &mut report)
                }
            });
            let fates: Vec<Fate> = judged.collect();
            report.tally.dead +=
                fates.iter().filter(|fate| matches!(fate, Fate::Dead { .. })).count();
            if fates.iter().all(|fate| *fate == Fate::Kept) {
                continue;
            }
            let entries = part(&mut tray.slots, &fates);
            report.hands.push((Hand { bucket, entries }, fates));
        }
        if !answering.is_empty() {
            report.away = None;
        }
        report
    }
}

/// The queues that answered for a message.
fn answering(plans: &Plans, sent: &[Sent]) -> HashSet<Route> {
    let routes = plans.0.iter().flat_map(|(_, plans)| plans).filter_map(|plan| match plan {
        Plan::Goes(route) => Some(*route),
        Plan::Rests | Plan::Dies(_) => None,
    });
    let answers = |sent: &Sent| matches!(sent, Sent::Confirmed | Sent::Refused { .. });
    routes.zip(sent).filter(|(_, sent)| answers(sent)).map(|(route, _)| route).collect()
}

fn fate(
    limits: &Limits,
    slot: &mut Slot,
    sent: Sent,
    is_answering: bool,
    now: Instant,
    report: &mut Report,
) -> Fate {
    let tally = &mut report.tally;
    let reason = match sent {
        Sent::Confirmed => {
            tally.published += 1;
            return Fate::Published;
        }
        Sent::NotSent { reason } => {
            tally.not_sent += 1;
            report.away.get_or_insert(reason);
            return Fate::Kept;
        }
        Sent::Refused { reason } => {
            tally.refused += 1;
            reason
        }
        Sent::Unknown { reason } => {
            tally.unknown += 1;
            reason
        }
    };
    slot.failures = slot.failures.saturating_add(1);
    slot.due = now + limits.rest(slot.failures);
    let attempts = slot.entry.attempts.saturating_add(1);
    match (is_answering, attempts < limits.attempts_max) {
        (false, _) => {
            report.silence.get_or_insert(reason);
            Fate::Kept
        }
        (true, true) => Fate::Failed,
        (true, false) => {
            Fate::Dead { reason: format!("not published in {attempts} attempts, last: {reason}") }
        }
    }
}

/// Parts with what leaves; returns the whole hand as it was.
fn part(slots: &mut Vec<Slot>, fates: &[Fate]) -> Vec<Entry> {
    let mut hand = Vec::with_capacity(slots.len());
    for (mut slot, fate) in std::mem::take(slots).into_iter().zip(fates) {
        match fate {
            Fate::Published | Fate::Dead { .. } => hand.push(slot.entry),
            Fate::Kept | Fate::Failed => {
                hand.push(slot.entry.clone());
                slot.entry.attempts += u32::from(*fate == Fate::Failed);
                slots.push(slot);
            }
        }
    }
    hand
}
