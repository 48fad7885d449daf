//! A column of a batch: its distinct ids, sorted by page.
//!
//! A script reads and writes a page with one command on adjacent arguments. Two items with the same
//! id share a position, so the second item reads what the first one wrote.

use super::call::ScriptCall;
use super::keys::BucketKeys;

#[derive(Debug, Default)]
pub(super) struct IdColumn {
    /// Sorted by page.
    ids: Vec<u64>,
    /// The pages used, each with its number of ids; a page with more than 255 ids is repeated.
    pages: Vec<(u16, u8)>,
    /// For each item of the batch the position of its id in `ids`, counted from 1 as in Lua.
    positions: Vec<u16>,
}

impl IdColumn {
    /// Sorts the ids of a batch. Positions beyond `u16::MAX` saturate: the script rejects such a
    /// batch by the length of its plan.
    pub(super) fn new(keys: &BucketKeys, ids: impl Iterator<Item = u64>) -> Self {
        let mut sorted: Vec<(u16, u64, usize)> =
            ids.enumerate().map(|(item, id)| (keys.page_of(id), id, item)).collect();
        sorted.sort_unstable();
        let mut column = Self { positions: vec![0; sorted.len()], ..Self::default() };
        let mut last = None;
        for (page, id, item) in sorted {
            if last != Some(id) {
                column.add(page, id);
                last = Some(id);
            }
            if let Some(position) = column.positions.get_mut(item) {
                *position = u16::try_from(column.ids.len()).unwrap_or(u16::MAX);
            }
        }
        column
    }

    fn add(&mut self, page: u16, id: u64) {
        self.ids.push(id);
        match self.pages.last_mut() {
            Some((current, size)) if *current == page && *size < u8::MAX => *size += 1,
            _ => self.pages.push((page, 1)),
        }
    }

    /// The number of ids.
    pub(super) fn size(&self) -> usize {
        self.ids.len()
    }

    /// The pages used, in the order of the ids.
    pub(super) fn pages(&self) -> impl Iterator<Item = u16> + '_ {
        self.pages.iter().map(|(page, _)| *page)
    }

    /// Adds an argument with one byte for each page used: its number of ids.
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

    /// For each item of the batch the position of its id, from 1.
    pub(super) fn positions(&self) -> impl Iterator<Item = u16> + '_ {
        self.positions.iter().copied()
    }
}

/// Adds the plan of a batch as an argument: 8 bytes for each item, its positions and its number.
pub(super) fn push_plan(
    call: &mut ScriptCall,
    requests: &IdColumn,
    buyers: &IdColumn,
    numbers: impl Iterator<Item = u32>,
) {
    // Without a quota the column of buyers is empty.
    let buyers = buyers.positions().chain(std::iter::repeat(0));
    call.push_packed(|bytes| {
        for ((request, buyer), number) in requests.positions().zip(buyers).zip(numbers) {
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
    fn ids_are_distinct_and_sorted_by_page() {
        let keys = keys(8);
        let ids: Vec<u64> = (1..200).chain(50..60).collect();
        let column = IdColumn::new(&keys, ids.iter().copied());
        assert_eq!(column.ids.len(), 199);
        let pages: Vec<u16> = column.ids.iter().map(|id| keys.page_of(*id)).collect();
        assert!(pages.is_sorted());
        for (item, position) in ids.iter().zip(column.positions()) {
            assert_eq!(column.ids[usize::from(position) - 1], *item);
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
    fn a_page_with_more_than_255_ids_is_repeated() {
        let column = IdColumn::new(&keys(1), 1..=600);
        assert_eq!(column.pages, [(0, 255), (0, 255), (0, 90)]);
    }

    #[test]
    fn a_column_without_ids_is_empty() {
        let column = IdColumn::new(&keys(4), std::iter::empty());
        assert_eq!(
            (column.ids.len(), column.pages().count(), column.positions().count()),
            (0, 0, 0)
        );
    }
}
