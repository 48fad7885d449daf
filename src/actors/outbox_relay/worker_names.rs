//! The names of the relay workers. A name is unique: it stands for one incarnation of one worker in
//! one start of one process.

use std::sync::Arc;

use parking_lot::Mutex;

/// Most predecessors that a worker takes over; the orphan rescuer reclaims what older ones claimed.
const PREDECESSORS_MAX: usize = 16;

/// The names that one worker index of a process has had, shared by its incarnations.
#[derive(Debug, Clone)]
pub struct WorkerNames {
    /// `process/index`.
    prefix: Arc<str>,
    inner: Arc<Mutex<Inner>>,
}

#[derive(Debug, Default)]
struct Inner {
    incarnation: u64,
    /// Former names whose entries were not taken over yet.
    predecessors: Vec<String>,
    current: String,
}

impl WorkerNames {
    #[must_use]
    pub fn new(process: &str, index: usize) -> Self {
        Self { prefix: format!("{process}/{index}").into(), inner: Arc::default() }
    }

    /// Replaces the current name by a new one and returns it.
    pub(super) fn renew(&self) -> String {
        let mut inner = self.inner.lock();
        inner.incarnation += 1;
        let fresh = format!("{}.{}", self.prefix, inner.incarnation);
        let before = std::mem::replace(&mut inner.current, fresh.clone());
        if !before.is_empty() {
            inner.predecessors.push(before);
        }
        if inner.predecessors.len() > PREDECESSORS_MAX {
            inner.predecessors.remove(0);
        }
        fresh
    }

    /// The current name; empty before the first `renew`.
    #[must_use]
    pub fn current(&self) -> String {
        self.inner.lock().current.clone()
    }

    pub(super) fn predecessors(&self) -> Vec<String> {
        self.inner.lock().predecessors.clone()
    }

    /// Forgets the former names, after their entries were taken over.
    pub(super) fn forget_predecessors(&self) {
        self.inner.lock().predecessors.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::runtime::unique_name;

    /// In containers every process has the same process id.
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
        let clone = names.clone();
        assert_eq!(clone.renew(), "1-ab/2.2");
        assert_eq!(
            (names.current().as_str(), names.predecessors()),
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
