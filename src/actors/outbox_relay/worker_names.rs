//! The names of the relay workers. A name is unique: it stands for one incarnation of one worker in
//! one start of one process.

use std::sync::Arc;

use parking_lot::Mutex;

/// Most predecessors that a worker takes over; the orphan rescuer reclaims what older ones claimed.
const PREDECESSORS_MAX: u64 = 16;

/// The names that one worker index of a process has had, shared by its incarnations.
#[derive(Debug, Clone)]
pub struct WorkerNames {
    /// `process/index`.
    prefix: Arc<str>,
    /// The index of the worker among those of its process.
    pub(super) index: usize,
    /// Numbers of the first name whose entries were not taken over yet, and of the current one.
    numbers: Arc<Mutex<(u64, u64)>>,
}

impl WorkerNames {
    pub fn new(process: &str, index: usize) -> Self {
        let prefix = format!("{process}/{index}").into();
        Self { prefix, index, numbers: Arc::new(Mutex::new((1, 0))) }
    }

    fn name(&self, number: u64) -> String {
        format!("{}.{number}", self.prefix)
    }

    /// Replaces the current name by a new one and returns it.
    pub(super) fn renew(&self) -> String {
        let (first, current) = &mut *self.numbers.lock();
        *current += 1;
        *first = (*first).max(current.saturating_sub(PREDECESSORS_MAX));
        self.name(*current)
    }

    /// The current name; there is none before the first `renew`.
    pub fn current(&self) -> String {
        self.name(self.numbers.lock().1)
    }

    pub(super) fn predecessors(&self) -> Vec<String> {
        let (first, current) = *self.numbers.lock();
        (first..current).map(|number| self.name(number)).collect()
    }

    /// Forgets the former names, after their entries were taken over.
    pub(super) fn forget_predecessors(&self) {
        let (first, current) = &mut *self.numbers.lock();
        *first = *current;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!((predecessors.len(), predecessors[0].as_str()), (16, "1-ab/2.3"));
    }
}
