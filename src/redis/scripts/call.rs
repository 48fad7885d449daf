//! One call of a script, for any connection, and its answer. The answer is parsed strictly: an
//! unexpected one is an error that quotes it.
//!
//! A batch is passed as columns: its distinct requests and buyers, each sorted by page. A script
//! reads and writes a page with one command on adjacent arguments. Two items with the same id share
//! a position, so the second item reads what the first one wrote.

use std::fmt::{Debug, Display, Formatter};
use std::str::FromStr;
use std::vec::IntoIter;

use redis::{Arg, Cmd, RedisWrite, Value};

use super::{BucketFence, BucketKeys, Error, Pages, Script, codes};
use crate::domain::{BuyerId, RequestId, RequestRecord, Sku};

/// Most characters of an unexpected answer in its error.
const QUOTED_CHARS: usize = 200;

/// A call of a script on one bucket: keys, arguments, and how the items of an answer `OK` are read.
/// Every script has the bucket's hash as its first key, and server and installation of the fence as
/// its first arguments.
pub struct ScriptCall<A> {
    script: Script,
    target: BucketKeys,
    /// The keys alone, as the arguments of a command; so are `args`.
    keys: Cmd,
    args: Cmd,
    /// Reused for each packed argument: a batch has hundreds.
    packed: Vec<u8>,
    read: Reader<A>,
}

type Reader<A> = Box<dyn Fn(&mut Reply) -> Result<A, Error> + Send + Sync>;

impl<A> ScriptCall<A> {
    /// A call without further keys and arguments.
    pub(crate) fn new(
        script: Script,
        keys: &BucketKeys,
        read: impl Fn(&mut Reply) -> Result<A, Error> + Send + Sync + 'static,
    ) -> Self {
        let (target, read) = (keys.clone(), Box::new(read));
        let (none, args) = (Cmd::new(), Cmd::new());
        Self { script, target, keys: none, args, packed: Vec::new(), read }.key(&keys.bucket())
    }

    pub(crate) fn key(self, key: &str) -> Self {
        self.keys([key])
    }

    pub(crate) fn keys(mut self, keys: impl IntoIterator<Item: AsRef<str>>) -> Self {
        for key in keys {
            self.keys.write_arg(key.as_ref().as_bytes());
        }
        self
    }

    /// Adds a text or number as an argument.
    pub(crate) fn arg(self, string: impl Display) -> Self {
        self.args([string])
    }

    pub(crate) fn args(mut self, strings: impl IntoIterator<Item: Display>) -> Self {
        for string in strings {
            self.args.write_arg_fmt(string);
        }
        self
    }

    /// Adds an argument that `pack` appends.
    pub(crate) fn packed(mut self, pack: impl FnOnce(&mut Vec<u8>)) -> Self {
        self.packed.clear();
        pack(&mut self.packed);
        self.args.write_arg(&self.packed);
        self
    }

    /// Adds the keys of a column's pages, in the order of the ids, and an argument with one byte
    /// for each of them: its number of ids.
    pub(super) fn pages_of(self, column: &IdColumn, key: impl Fn(u16) -> String) -> Self {
        let call = self.keys(column.pages.iter().map(|(page, _)| key(*page)));
        call.packed(|bytes| bytes.extend(column.pages.iter().map(|(_, size)| size)))
    }

    /// Adds the ids of a column as arguments.
    pub(super) fn ids_of(self, column: &IdColumn) -> Self {
        self.args(&column.ids)
    }

    /// Adds a batch: its pages, its plan, and its requests, values and buyers in this order. The
    /// plan has 8 bytes for each item: the positions of its ids, and its number. `plan` returns an
    /// item's ids and its number, as the script defines it, `value` packs an item's value.
    pub(super) fn batch<T>(
        self,
        sku: &Sku,
        items: &[T],
        plan: impl Fn(&T) -> (RequestId, BuyerId, u32),
        value: impl Fn(&T, &mut Vec<u8>),
    ) -> Self {
        let (keys, pages) = (self.target.clone(), Pages::of_sku(sku));
        let requests = IdColumn::new(pages, items.iter().map(|item| plan(item).0.get()));
        // Without a quota the column of buyers is empty.
        let limited = items.iter().filter(|_| sku.policy.quota().is_some());
        let buyers = IdColumn::new(pages, limited.map(|item| plan(item).1.get()));
        let call = self.pages_of(&requests, |page| keys.requests(page));
        let call = call.pages_of(&buyers, |page| keys.buyers(page));
        let positions = requests.positions().zip(buyers.positions().chain(std::iter::repeat(0)));
        let call = call.packed(|bytes| {
            for (item, (request, buyer)) in items.iter().zip(positions) {
                bytes.extend(request.to_be_bytes());
                bytes.extend(buyer.to_be_bytes());
                bytes.extend(plan(item).2.to_be_bytes());
            }
        });
        let mut call = call.ids_of(&requests);
        for item in items {
            call = call.packed(|bytes| value(item, bytes));
        }
        call.ids_of(&buyers)
    }

    pub fn script(&self) -> Script {
        self.script
    }

    pub fn target(&self) -> &BucketKeys {
        &self.target
    }

    /// The keys; all are in one cluster slot.
    pub fn iter_keys(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        byte_strings(&self.keys)
    }

    /// The command `EVALSHA` or `EVAL` with the script's digest or text.
    pub fn command(&self, name: &str, script: &str, fence: &BucketFence) -> Cmd {
        let strings = || self.iter_keys().chain(byte_strings(&self.args));
        let size = strings().map(<[u8]>::len).sum::<usize>() + script.len() + 64;
        let (num_keys, num) = (self.iter_keys().len(), strings().count() + 5);
        let mut command = Cmd::with_capacity(num, size);
        command.arg(name).arg(script).arg(num_keys);
        for key in self.iter_keys() {
            command.arg(key);
        }
        command.arg(&*fence.server).arg(fence.installation.to_string());
        for arg in byte_strings(&self.args) {
            command.arg(arg);
        }
        command
    }

    pub fn parse(&self, answer: Value) -> Result<A, Error> {
        let mut reply = Reply::open(self.script, answer)?;
        let answer = (self.read)(&mut reply)?;
        reply.end().map(|()| answer)
    }
}

impl<A> Debug for ScriptCall<A> {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ScriptCall").field("script", &self.script).finish_non_exhaustive()
    }
}

fn byte_strings(of: &Cmd) -> impl ExactSizeIterator<Item = &[u8]> {
    of.args_iter().map(|arg| match arg {
        Arg::Simple(bytes) => bytes,
        // A script call has no cursor.
        _ => [].as_slice(),
    })
}

/// Parses digits.
pub(super) fn number<T: FromStr>(digits: &[u8]) -> Option<T> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// The distinct ids of a batch.
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
}

/// The items of an answer after the code `OK`.
#[derive(Debug)]
pub(crate) struct Reply {
    script: Script,
    items: IntoIter<Value>,
}

impl Reply {
    /// Parses the code; every other than `OK` is an error.
    pub(crate) fn open(script: Script, value: Value) -> Result<Self, Error> {
        let mut reply = Self { script, items: IntoIter::default() };
        let Value::Array(items) = value else { return Err(reply.unexpected(&value)) };
        reply.items = items.into_iter();
        match reply.count()? {
            codes::OK => Ok(reply),
            codes::NOT_READY => Err(Error::NotReady),
            codes::FENCED => Err(Error::Fenced),
            codes::FOREIGN => Err(Error::Foreign),
            codes::CORRUPT => Err(Error::Corrupt { what: reply.text()? }),
            codes::TOO_MANY => Err(Error::TooMany),
            codes::OLD_LOADER => Err(Error::OldLoader),
            code => Err(reply.unexpected(&code)),
        }
    }

    pub(crate) fn next(&mut self) -> Result<Value, Error> {
        self.items.next().ok_or_else(|| self.unexpected(&"it ends too early"))
    }

    /// Text; invalid UTF-8 is replaced.
    pub(crate) fn text(&mut self) -> Result<String, Error> {
        self.bytes().map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
    }

    pub(crate) fn bytes(&mut self) -> Result<Vec<u8>, Error> {
        match self.next()? {
            Value::BulkString(bytes) => Ok(bytes),
            other => Err(self.unexpected(&other)),
        }
    }

    /// A list of byte strings.
    pub(crate) fn byte_strings(&mut self) -> Result<Vec<Vec<u8>>, Error> {
        let value = self.next()?;
        redis::from_redis_value(value).map_err(|error| self.unexpected(&error))
    }

    /// Reads with `read` until no item is left.
    pub(crate) fn rest<T>(
        &mut self,
        mut read: impl FnMut(&mut Self) -> Result<T, Error>,
    ) -> Result<Vec<T>, Error> {
        let mut all = Vec::new();
        while self.items.len() > 0 {
            all.push(read(self)?);
        }
        Ok(all)
    }

    /// A count that fits its type.
    pub(crate) fn count<T: TryFrom<i64>>(&mut self) -> Result<T, Error> {
        match self.next()? {
            Value::Int(number) => T::try_from(number).map_err(|_range| self.unexpected(&number)),
            other => Err(self.unexpected(&other)),
        }
    }

    /// 1 or 0.
    pub(crate) fn flag(&mut self) -> Result<bool, Error> {
        match self.count()? {
            0_i64 => Ok(false),
            1 => Ok(true),
            other => Err(self.unexpected(&other)),
        }
    }

    /// Takes the remaining items, exactly `size`.
    pub(crate) fn items(&mut self, size: usize) -> Result<IntoIter<Value>, Error> {
        if self.items.len() == size {
            Ok(std::mem::take(&mut self.items))
        } else {
            Err(self.unexpected(&format!("{} items instead of {size}", self.items.len())))
        }
    }

    /// Checks that no item is left.
    pub(crate) fn end(&mut self) -> Result<(), Error> {
        self.items(0).map(drop)
    }

    pub(crate) fn record(&self, bytes: &[u8]) -> Result<RequestRecord, Error> {
        RequestRecord::unpack(bytes).map_err(|broken| self.unexpected(&broken))
    }

    /// The error of an unexpected answer.
    pub(crate) fn unexpected(&self, what: &impl Debug) -> Error {
        let reply = format!("{what:?}").chars().take(QUOTED_CHARS).collect();
        Error::Unexpected { script: self.script.name(), reply }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(items: Vec<Value>) -> Result<Reply, Error> {
        Reply::open(Script::SetPhase, Value::Array(items))
    }

    #[test]
    fn the_error_of_an_unexpected_answer_quotes_script_and_answer() {
        let unexpected = |value| Reply::open(Script::SetPhase, value).err().unwrap().to_string();
        assert_eq!(unexpected(Value::Nil), "script set_phase answered nil");
        assert_eq!(
            unexpected(Value::Array(vec![])),
            "script set_phase answered \"it ends too early\""
        );
        assert!(unexpected(Value::Array(vec![Value::Int(99)])).contains("99"));
        let mut reply = open(vec![Value::Int(0), Value::Int(-1), Value::Int(2)]).unwrap();
        assert!(reply.count::<u32>().is_err(), "negative");
        assert!(reply.flag().is_err(), "neither yes nor no");
        let mut reply = open(vec![Value::Int(0), Value::Int(1)]).unwrap();
        assert!(reply.end().unwrap_err().to_string().contains("1 items instead of 0"));
    }

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
