//! Commands and scripts of a pipeline.

use std::collections::HashMap;

use redis::{Cmd, Value};

use super::Error;

/// A Lua script that is loaded on every connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScriptSource {
    /// The name by which requests call it.
    pub name: &'static str,
    pub text: String,
}

/// One command of a pipeline.
pub trait PipelineRequest {
    /// The name of the called script; `None` for a plain command.
    fn script(&self) -> Option<&'static str>;

    /// The command to send. `sha` is the digest that the server returned for the script; plain
    /// commands ignore it.
    fn command(&self, sha: &str) -> Cmd;
}

impl PipelineRequest for Cmd {
    fn script(&self) -> Option<&'static str> {
        None
    }

    fn command(&self, _sha: &str) -> Cmd {
        self.clone()
    }
}

impl<R: PipelineRequest + ?Sized> PipelineRequest for Box<R> {
    fn script(&self) -> Option<&'static str> {
        (**self).script()
    }

    fn command(&self, sha: &str) -> Cmd {
        (**self).command(sha)
    }
}

/// The digests that `SCRIPT LOAD` returned, by script name.
#[derive(Debug, Default)]
pub(super) struct LoadedScripts(HashMap<&'static str, String>);

impl LoadedScripts {
    /// Reads the answers to [`super::connect::add_scripts`], in the order of `scripts`.
    pub(super) fn read(
        scripts: &[ScriptSource],
        mut next: impl FnMut() -> Result<Value, String>,
    ) -> Result<Self, String> {
        let entry = |script: &ScriptSource| {
            let answer = next().and_then(|answer| {
                redis::from_redis_value(answer).map_err(|error| error.to_string())
            });
            let sha = answer.map_err(|error| format!("script {}: {error}", script.name))?;
            Ok((script.name, sha))
        };
        scripts.iter().map(entry).collect::<Result<_, _>>().map(Self)
    }

    /// # Errors
    /// The request names a script that was not loaded.
    pub(super) fn encode(&self, request: &impl PipelineRequest) -> Result<Cmd, Error> {
        let Some(name) = request.script() else { return Ok(request.command("")) };
        let unknown = || Error::not_sent(format!("script {name} is not loaded"));
        Ok(request.command(self.0.get(name).ok_or_else(unknown)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Call(&'static str);

    impl PipelineRequest for Call {
        fn script(&self) -> Option<&'static str> {
            Some(self.0)
        }

        fn command(&self, sha: &str) -> Cmd {
            let mut command = redis::cmd("EVALSHA");
            command.arg(sha).arg(0);
            command
        }
    }

    #[test]
    fn a_script_is_called_by_the_digest_that_the_server_returned() {
        let script = |name| ScriptSource { name, text: String::new() };
        let answers = ["0c1d", "5e6f"].map(|sha| Ok(Value::SimpleString(sha.to_owned())));
        let mut answers = answers.into_iter();
        let scripts = [script("give"), script("take")];
        let loaded = LoadedScripts::read(&scripts, || answers.next().unwrap()).unwrap();
        let sent = loaded.encode(&Call("take")).unwrap().get_packed_command();
        assert_eq!(sent, b"*3\r\n$7\r\nEVALSHA\r\n$4\r\n5e6f\r\n$1\r\n0\r\n");
        assert!(loaded.encode(&Call("lend")).is_err());
        let plain = redis::cmd("PING");
        let sent = loaded.encode(&Box::new(plain.clone())).unwrap();
        assert_eq!(sent.get_packed_command(), plain.get_packed_command());
    }
}
