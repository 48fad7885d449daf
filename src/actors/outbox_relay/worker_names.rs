//! The names of one process's relay workers. No two workers ever have the same name: a name stands
//! for one incarnation of an actor in one start of one process.

use std::sync::Arc;

use parking_lot::Mutex;

/// Most predecessors that a worker takes over; what older ones hold is reclaimed by the rescuer.
const PREDECESSORS_MAX: usize = 16;

/// The names of the workers that succeed each other in one place of a process.
#[derive(Debug, Clone)]
pub struct WorkerNames {
    place: Arc<str>,
    inner: Arc<Mutex<Inner>>,
}

#[derive(Debug, Default)]
struct Inner {
    incarnation: u64,
    /// Those whose entries were not taken over yet.
    predecessors: Vec<String>,
    present: String,
}

impl WorkerNames {
    /// The names of a place.
    #[must_use]
    pub fn new(process: &str, place: usize) -> Self {
        Self { place: format!("{process}/{place}").into(), inner: Arc::default() }
    }

    /// A fresh name, which is the present one from now on.
    pub(super) fn renew(&self) -> String {
        let mut inner = self.inner.lock();
        inner.incarnation += 1;
        let fresh = format!("{}.{}", self.place, inner.incarnation);
        let before = std::mem::replace(&mut inner.present, fresh.clone());
        if !before.is_empty() {
            inner.predecessors.push(before);
        }
        if inner.predecessors.len() > PREDECESSORS_MAX {
            inner.predecessors.remove(0);
        }
        fresh
    }

    /// The present name; empty before the first.
    #[must_use]
    pub fn present(&self) -> String {
        self.inner.lock().present.clone()
    }

    pub(super) fn predecessors(&self) -> Vec<String> {
        self.inner.lock().predecessors.clone()
    }

    /// Nothing is left of the predecessors.
    pub(super) fn forget_predecessors(&self) {
        self.inner.lock().predecessors.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::runtime::process::unique_name;

    /// As in containers, where every process has the same number.
    #[test]
    fn no_two_starts_of_a_process_share_a_name() {
        let names: BTreeSet<String> =
            (0..100).map(|_| WorkerNames::new(&unique_name(), 0).renew()).collect();
        assert_eq!(names.len(), 100);
    }

    #[test]
    fn every_incarnation_has_a_name_and_knows_those_before_it() {
        let names = WorkerNames::new("1-ab", 2);
        assert_eq!((names.renew().as_str(), names.predecessors().len()), ("1-ab/2.1", 0));
        let elsewhere = names.clone();
        assert_eq!(elsewhere.renew(), "1-ab/2.2");
        assert_eq!(
            (names.present().as_str(), names.predecessors()),
            ("1-ab/2.2", vec!["1-ab/2.1".to_owned()])
        );
        names.forget_predecessors();
        for _ in 0..=PREDECESSORS_MAX {
            names.renew();
        }
        let predecessors = names.predecessors();
        assert_eq!((predecessors.len(), predecessors[0].as_str()), (PREDECESSORS_MAX, "1-ab/2.3"));
    }
}
