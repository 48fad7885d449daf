//! One call of a script, for any connection.

use std::fmt::{Display, Write};

use redis::Cmd;

use super::Script;

/// A script with its keys and arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScriptCall {
    script: Script,
    num_keys: usize,
    strings: ByteStrings,
}

/// Byte strings in one allocation: a batch has hundreds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct ByteStrings {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl ScriptCall {
    pub(crate) fn new(script: Script) -> Self {
        Self { script, num_keys: 0, strings: ByteStrings::default() }
    }

    /// Adds a key. All keys come before the first argument.
    pub(crate) fn key(mut self, key: &str) -> Self {
        debug_assert_eq!(self.num_keys, self.strings.ends.len(), "keys come first");
        self.num_keys += 1;
        self.strings.push(key.as_bytes());
        self
    }

    /// Adds a text or number as an argument.
    pub(crate) fn arg(mut self, string: impl Display) -> Self {
        self.push(string);
        self
    }

    /// Adds bytes as an argument.
    pub(crate) fn bytes(mut self, string: &[u8]) -> Self {
        self.strings.push(string);
        self
    }

    /// [`Self::arg`] by reference, for loops.
    pub(crate) fn push(&mut self, string: impl Display) {
        // Writing to memory cannot fail.
        let _ = write!(self.strings, "{string}");
        self.strings.ends.push(self.strings.bytes.len());
    }

    /// Adds an argument that `pack` appends.
    pub(crate) fn push_packed(&mut self, pack: impl FnOnce(&mut Vec<u8>)) {
        pack(&mut self.strings.bytes);
        self.strings.ends.push(self.strings.bytes.len());
    }

    #[must_use]
    pub fn script(&self) -> Script {
        self.script
    }

    /// The keys; all are in one cluster slot.
    pub fn keys(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.strings.iter().take(self.num_keys)
    }

    pub fn args(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.strings.iter().skip(self.num_keys)
    }

    /// The `EVALSHA` command; `sha` is the answer of `SCRIPT LOAD`.
    #[must_use]
    pub fn evalsha(&self, sha: &str) -> Cmd {
        let name = "EVALSHA";
        let mut command = Cmd::with_capacity(
            self.strings.ends.len() + 3,
            self.strings.bytes.len() + name.len() + sha.len() + 8,
        );
        command.arg(name).arg(sha).arg(self.num_keys);
        for string in self.strings.iter() {
            command.arg(string);
        }
        command
    }
}

impl ByteStrings {
    fn push(&mut self, string: &[u8]) {
        self.bytes.extend_from_slice(string);
        self.ends.push(self.bytes.len());
    }

    fn iter(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        let mut start = 0;
        self.ends.iter().map(move |end| {
            let string = self.bytes.get(start..*end).unwrap_or_default();
            start = *end;
            string
        })
    }
}

impl Write for ByteStrings {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        self.bytes.extend_from_slice(text.as_bytes());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_arguments_keep_their_order_and_bytes() {
        let mut call = ScriptCall::new(Script::SetPhase).key("a").key("b").arg(7).bytes(b"\0\xff");
        call.push("");
        call.push_packed(|bytes| bytes.extend([1, 2]));
        assert_eq!(call.keys().collect::<Vec<_>>(), [b"a", b"b"]);
        let args: Vec<&[u8]> = vec![b"7", b"\0\xff", b"", &[1, 2]];
        assert_eq!(call.args().collect::<Vec<_>>(), args);
        let packed = call.evalsha("sha").get_packed_command();
        let expected = b"*9\r\n$7\r\nEVALSHA\r\n$3\r\nsha\r\n$1\r\n2\r\n$1\r\na\r\n$1\r\nb\r\n\
            $1\r\n7\r\n$2\r\n\0\xff\r\n$0\r\n\r\n$2\r\n\x01\x02\r\n";
        assert_eq!(packed, expected);
    }
}
