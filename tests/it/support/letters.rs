//! Dead letters for tests: some to keep, and a store in memory that shares no code with the SQL
//! ledgers.

use floodgate::domain::{
    DeadLetter, DeadLetterContent, DeadLetterCounts, DeadLetterFilter, DeadLetterNo,
    DeadLetterOrigin, DeadLetterState, DeadLetterTransition, KeepOutcome, NewDeadLetter, RequestId,
};

/// A letter with these requests, whose body is their numbers.
pub fn letter(requests: &[u64]) -> NewDeadLetter {
    let body: Vec<u8> = requests.iter().flat_map(|number| number.to_be_bytes()).collect();
    let mut digest = [0; 32];
    digest.iter_mut().zip(&body).for_each(|(to, from)| *to = *from);
    NewDeadLetter {
        digest,
        origin: DeadLetterOrigin::Consumer,
        reason: "no such SKU".to_owned(),
        attempts: 3,
        message_id: format!("m-{}", requests.len()),
        headers: "{\"routing_key\":\"0\"}".to_owned(),
        body_bytes: body.len() as u64,
        body,
        requests: requests.iter().map(|number| RequestId::new(*number).unwrap()).collect(),
        dead_at_ms: 1_800_000_000_000,
    }
}

/// Letters by arrival.
#[derive(Debug, Default)]
pub struct MemoryLetters {
    letters: Vec<([u8; 32], DeadLetterContent)>,
}

impl MemoryLetters {
    pub fn keep(&mut self, new: NewDeadLetter, now_ms: i64) -> KeepOutcome {
        let known = self.letters.iter_mut().find(|(digest, _)| *digest == new.digest);
        if let Some((_, DeadLetterContent { letter, .. })) = known {
            letter.arrivals += 1;
            letter.reason = new.reason;
            if letter.state == DeadLetterState::Replayed {
                (letter.state, letter.changed_at_ms) = (DeadLetterState::Open, now_ms);
                return KeepOutcome::Again;
            }
            return KeepOutcome::Known;
        }
        let letter = DeadLetter {
            no: DeadLetterNo(i64::try_from(self.letters.len()).unwrap() + 1),
            origin: new.origin,
            reason: new.reason,
            attempts: new.attempts,
            message_id: new.message_id,
            headers: new.headers,
            body_bytes: new.body_bytes,
            dead_at_ms: new.dead_at_ms,
            arrivals: 1,
            state: DeadLetterState::Open,
            changed_at_ms: now_ms,
            note: None,
        };
        let whole = DeadLetterContent { letter, body: new.body, requests: new.requests };
        self.letters.push((new.digest, whole));
        KeepOutcome::New
    }

    pub fn page(&self, filter: DeadLetterFilter, limit: u32) -> Vec<DeadLetter> {
        let fits = |letter: &&DeadLetter| {
            filter.state.is_none_or(|state| letter.state == state)
                && filter.origin.is_none_or(|origin| letter.origin == origin)
                && filter.before.is_none_or(|before| letter.no < before)
        };
        let with =
            |whole: &&DeadLetterContent| filter.request.is_none_or(|r| whole.requests.contains(&r));
        let newest = self.letters.iter().rev().map(|(_, whole)| whole).filter(with);
        newest.map(|whole| &whole.letter).filter(fits).take(limit as usize).cloned().collect()
    }

    pub fn whole(&self, no: DeadLetterNo) -> Option<DeadLetterContent> {
        self.letters.iter().map(|(_, whole)| whole).find(|whole| whole.letter.no == no).cloned()
    }

    pub fn turn(&mut self, turn: DeadLetterTransition) -> bool {
        let letters = self.letters.iter_mut().map(|(_, whole)| &mut whole.letter);
        let seen = (turn.no, turn.from, turn.arrivals);
        let Some(letter) = letters.into_iter().find(|l| (l.no, l.state, l.arrivals) == seen) else {
            return false;
        };
        (letter.state, letter.changed_at_ms) = (turn.to, turn.at_ms);
        letter.note = turn.note.or(letter.note.take());
        true
    }

    pub fn counts(&self) -> DeadLetterCounts {
        let count = |state| {
            let letters = self.letters.iter().filter(|(_, whole)| whole.letter.state == state);
            letters.count() as u64
        };
        DeadLetterCounts {
            open: count(DeadLetterState::Open),
            replayed: count(DeadLetterState::Replayed),
            parked: count(DeadLetterState::Parked),
            discarded: count(DeadLetterState::Discarded),
        }
    }

    pub fn ending(&self, after: DeadLetterNo, limit: u32) -> Vec<(DeadLetter, Vec<u8>)> {
        let ends = self.letters.iter().map(|(_, whole)| whole).filter(|whole| {
            whole.letter.state != DeadLetterState::Replayed && whole.letter.no > after
        });
        ends.take(limit as usize).map(|l| (l.letter.clone(), l.body.clone())).collect()
    }

    pub fn dead_among(&self, mut asked: Vec<RequestId>) -> Vec<RequestId> {
        asked.retain(|request| {
            self.letters
                .iter()
                .any(|(_, whole)| whole.letter.state.is_end() && whole.requests.contains(request))
        });
        asked
    }
}
