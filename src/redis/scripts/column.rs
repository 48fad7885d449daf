//! A column of a batch: its ids, each once, sorted by the page that holds it.
//!
//! So a script reads and writes a page with one command whose arguments lie next to each other, and
//! two items with the same id share a place: the second sees what the first did.

use super::call::ScriptCall;
use super::keys::BucketKeys;

/// The ids of one column.
#[derive(Debug, Default)]
pub(super) struct IdColumn {
    /// Sorted by page.
    ids: Vec<u64>,
    /// The pages used, each with the number of its ids; a page with more than 255 is there again.
    pages: Vec<(u16, u8)>,
    /// For each item of the batch where its id is in `ids`, from 1 as Lua counts.
    places: Vec<u16>,
}

impl IdColumn {
    /// Arranges the ids of a batch. More than a script takes are left out: it refuses by the length
    /// of the plan.
    pub(super) fn new(keys: &BucketKeys, ids: impl Iterator<Item = u64>) -> Self {
        let mut sorted: Vec<(u16, u64, usize)> =
            ids.enumerate().map(|(item, id)| (keys.page_of(id), id, item)).collect();
        sorted.sort_unstable();
        let mut column = Self { places: vec![0; sorted.len()], ..Self::default() };
        let mut last = None;
        for (page, id, item) in sorted {
            if last != Some(id) {
                column.enter(page, id);
                last = Some(id);
            }
            if let Some(place) = column.places.get_mut(item) {
                *place = u16::try_from(column.ids.len()).unwrap_or(u16::MAX);
            }
        }
        column
    }

    fn enter(&mut self, page: u16, id: u64) {
        self.ids.push(id);
        match self.pages.last_mut() {
            Some((current, size)) if *current == page && *size < u8::MAX => *size += 1,
            _ => self.pages.push((page, 1)),
        }
    }

    /// How many ids there are.
    pub(super) fn size(&self) -> usize {
        self.ids.len()
    }

    /// The pages used, in the order of the ids.
    pub(super) fn pages(&self) -> impl Iterator<Item = u16> + '_ {
        self.pages.iter().map(|(page, _)| *page)
    }

    /// Adds the number of ids on each page used, a byte each, as an argument.
    pub(super) fn push_counts(&self, call: &mut ScriptCall) {
        call.push_packed(|bytes| {
            bytes.extend(self.pages.iter().map(|(_, size)| size));
        });
    }

    /// Adds the ids as arguments.
    pub(super) fn push_ids(&self, call: &mut ScriptCall) {
        for id in &self.ids {
            call.push(id);
        }
    }

    /// For each item of the batch where its id is, from 1.
    pub(super) fn places(&self) -> impl Iterator<Item = u16> + '_ {
        self.places.iter().copied()
    }
}

/// Adds the plan of a batch as an argument: 8 bytes for each item, its places and its number.
pub(super) fn push_plan(
    call: &mut ScriptCall,
    requests: &IdColumn,
    buyers: &IdColumn,
    numbers: impl Iterator<Item = u32>,
) {
    // Without a limit there is no column of buyers.
    let buyers = buyers.places().chain(std::iter::repeat(0));
    call.push_packed(|bytes| {
        for ((request, buyer), number) in requests.places().zip(buyers).zip(numbers) {
            bytes.extend(request.to_be_bytes());
            bytes.extend(buyer.to_be_bytes());
            bytes.extend(number.to_be_bytes());
        }
    });
}

#[cfg(test)]
mod tests {
    use super::super::Script;
    use super::super::keys::tests::keys;
    use super::*;

    #[test]
    fn ids_are_sorted_by_page_and_each_is_there_once() {
        let keys = keys(8);
        let ids: Vec<u64> = (1..200).chain(50..60).collect();
        let column = IdColumn::new(&keys, ids.iter().copied());
        assert_eq!(column.ids.len(), 199);
        let pages: Vec<u16> = column.ids.iter().map(|id| keys.page_of(*id)).collect();
        assert!(pages.is_sorted());
        for (item, place) in ids.iter().zip(column.places()) {
            assert_eq!(column.ids[usize::from(place) - 1], *item);
        }
        let sizes: usize = column.pages.iter().map(|(_, size)| usize::from(*size)).sum();
        assert_eq!(sizes, 199);
        assert_eq!(column.pages().count(), 8);
    }

    #[test]
    fn a_plan_has_eight_bytes_for_each_item() {
        let keys = keys(1);
        let requests = IdColumn::new(&keys, [9, 9, 4].into_iter());
        let mut call = ScriptCall::new(Script::Reserve);
        push_plan(&mut call, &requests, &IdColumn::default(), [1, 2, 3].into_iter());
        let plan = call.args().next().unwrap();
        let expected: &[u8] =
            &[0, 2, 0, 0, 0, 0, 0, 1, 0, 2, 0, 0, 0, 0, 0, 2, 0, 1, 0, 0, 0, 0, 0, 3];
        assert_eq!(plan, expected);
    }

    #[test]
    fn a_page_with_more_than_a_byte_counts_is_there_again() {
        let column = IdColumn::new(&keys(1), 1..=600);
        assert_eq!(column.pages, [(0, 255), (0, 255), (0, 90)]);
    }

    #[test]
    fn nothing_is_an_empty_column() {
        let column = IdColumn::new(&keys(4), std::iter::empty());
        assert_eq!((column.ids.len(), column.pages().count(), column.places().count()), (0, 0, 0));
    }
}
