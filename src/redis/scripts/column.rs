//! The columns of a batch: its distinct requests and buyers, each sorted by page.
//!
//! A script reads and writes a page with one command on adjacent arguments. Two items with the same
//! id share a position, so the second item reads what the first one wrote.

use crate::domain::{BuyerId, RequestId, Sku};

use super::call::ScriptCall;
use super::keys::{BucketKeys, Pages};

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
    pub(super) fn new(pages: Pages, ids: impl Iterator<Item = u64>) -> Self {
        let mut sorted: Vec<(u16, u64, usize)> =
            ids.enumerate().map(|(item, id)| (pages.page_of(id), id, item)).collect();
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

    /// For each item of the batch the position of its id, from 1.
    pub(super) fn positions(&self) -> impl Iterator<Item = u16> + '_ {
        self.positions.iter().copied()
    }

    /// Adds the keys of the pages used, in the order of the ids, and an argument with one byte for
    /// each of them: its number of ids.
    pub(super) fn add_pages<A>(
        &self,
        call: ScriptCall<A>,
        key: impl Fn(u16) -> String,
    ) -> ScriptCall<A> {
        let call = call.keys(self.pages.iter().map(|(page, _)| key(*page)));
        call.packed(|bytes| bytes.extend(self.pages.iter().map(|(_, size)| size)))
    }

    /// Adds the ids as arguments.
    pub(super) fn add_ids<A>(&self, call: ScriptCall<A>) -> ScriptCall<A> {
        call.args(&self.ids)
    }
}

/// Adds a batch: its pages, its plan, and its requests, values and buyers in this order. The plan
/// has 8 bytes for each item: the positions of its ids, and its number. `plan` returns an item's
/// ids and its number, as the script defines it, `value` packs an item's value.
pub(super) fn add_batch<A, T>(
    call: ScriptCall<A>,
    keys: &BucketKeys,
    sku: &Sku,
    items: &[T],
    plan: impl Fn(&T) -> (RequestId, BuyerId, u32),
    value: impl Fn(&T, &mut Vec<u8>),
) -> ScriptCall<A> {
    let pages = Pages::of_sku(sku);
    let requests = IdColumn::new(pages, items.iter().map(|item| plan(item).0.get()));
    // Without a quota the column of buyers is empty.
    let limited = items.iter().filter(|_| sku.policy.quota().is_some());
    let buyers = IdColumn::new(pages, limited.map(|item| plan(item).1.get()));
    let call = requests.add_pages(call, |page| keys.requests(page));
    let call = buyers.add_pages(call, |page| keys.buyers(page));
    let positions = requests.positions().zip(buyers.positions().chain(std::iter::repeat(0)));
    let call = call.packed(|bytes| {
        for (item, (request, buyer)) in items.iter().zip(positions) {
            bytes.extend(request.to_be_bytes());
            bytes.extend(buyer.to_be_bytes());
            bytes.extend(plan(item).2.to_be_bytes());
        }
    });
    let mut call = requests.add_ids(call);
    for item in items {
        call = call.packed(|bytes| value(item, bytes));
    }
    buyers.add_ids(call)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_distinct_and_sorted_by_page() {
        let pages = Pages(8);
        let ids: Vec<u64> = (1..200).chain(50..60).collect();
        let column = IdColumn::new(pages, ids.iter().copied());
        assert_eq!(column.ids.len(), 199);
        assert!(column.ids.iter().map(|id| pages.page_of(*id)).is_sorted());
        for (item, position) in ids.iter().zip(column.positions()) {
            assert_eq!(column.ids[usize::from(position) - 1], *item);
        }
        let sizes: usize = column.pages.iter().map(|(_, size)| usize::from(*size)).sum();
        assert_eq!((sizes, column.pages.len()), (199, 8));
    }

    #[test]
    fn a_page_with_more_than_255_ids_is_repeated() {
        let column = IdColumn::new(Pages(1), 1..=600);
        assert_eq!(column.pages, [(0, 255), (0, 255), (0, 90)]);
    }
}
