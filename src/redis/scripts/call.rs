//! One call of a script, ready to be sent by any connection.

use std::fmt::{Display, Write};

use redis::Cmd;

use super::Script;

/// A script with its keys and arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScriptCall {
    script: Script,
    num_keys: usize,
    words: ByteStrings,
}

/// Byte strings one after the other in one allocation: a batch has hundreds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct ByteStrings {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl ScriptCall {
    pub(super) fn new(script: Script) -> Self {
        Self { script, num_keys: 0, words: ByteStrings::default() }
    }

    /// Adds a key. All keys come before the first argument.
    pub(super) fn key(mut self, key: &str) -> Self {
        debug_assert_eq!(self.num_keys, self.words.ends.len(), "keys come first");
        self.num_keys += 1;
        self.words.push(key.as_bytes());
        self
    }

    /// Adds an argument of text or number.
    pub(super) fn arg(mut self, word: impl Display) -> Self {
        self.push(word);
        self
    }

    /// Adds an argument of any bytes.
    pub(super) fn bytes(mut self, word: &[u8]) -> Self {
        self.words.push(word);
        self
    }

    /// [`Self::arg`] in a loop.
    pub(super) fn push(&mut self, word: impl Display) {
        // Writing to memory cannot fail.
        let _ = write!(self.words, "{word}");
        self.words.ends.push(self.words.bytes.len());
    }

    /// Adds an argument that `pack` appends.
    pub(super) fn push_packed(&mut self, pack: impl FnOnce(&mut Vec<u8>)) {
        pack(&mut self.words.bytes);
        self.words.ends.push(self.words.bytes.len());
    }

    /// Which script.
    #[must_use]
    pub fn script(&self) -> Script {
        self.script
    }

    /// The keys, all in one slot of a cluster.
    pub fn keys(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.words.iter().take(self.num_keys)
    }

    /// The arguments.
    pub fn args(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.words.iter().skip(self.num_keys)
    }

    /// The command that runs the script, once it was loaded and `sha` was the answer.
    #[must_use]
    pub fn evalsha(&self, sha: &str) -> Cmd {
        self.command("EVALSHA", sha)
    }

    /// The command that loads and runs the script at once: for whoever cannot keep track of what a
    /// server has loaded.
    #[must_use]
    pub fn eval(&self) -> Cmd {
        self.command("EVAL", &self.script.text())
    }

    fn command(&self, name: &str, script: &str) -> Cmd {
        let mut command = Cmd::with_capacity(
            self.words.ends.len() + 3,
            self.words.bytes.len() + name.len() + script.len() + 8,
        );
        command.arg(name).arg(script).arg(self.num_keys);
        for word in self.words.iter() {
            command.arg(word);
        }
        command
    }
}

impl ByteStrings {
    fn push(&mut self, word: &[u8]) {
        self.bytes.extend_from_slice(word);
        self.ends.push(self.bytes.len());
    }

    fn iter(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        let mut start = 0;
        self.ends.iter().map(move |end| {
            let word = self.bytes.get(start..*end).unwrap_or_default();
            start = *end;
            word
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
