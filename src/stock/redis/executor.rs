//! From a door to the server that has the bucket, and back.

use std::sync::Arc;

use redis::{Cmd, Value};

use super::super::Error;
use crate::domain::{BucketNo, Sku};
use crate::redis::scripts::{BucketFence, BucketKeys, Installation, ScriptCall};
use crate::redis::transport::{
    CallEffect, Connection, ConnectionPool, ConnectionPurpose, Error as LinkError, PipelineAnswers,
    PipelineRequest,
};
use crate::runtime::progress::answered;

/// How the buckets are reached and named. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct StockExecutor {
    links: ConnectionPool,
    namespace: Arc<str>,
    installation: Installation,
}

impl StockExecutor {
    pub(super) fn new(
        links: ConnectionPool,
        namespace: String,
        installation: Installation,
    ) -> Self {
        Self { links, namespace: namespace.into(), installation }
    }

    /// The keys of every bucket, in order.
    pub(super) fn keys_of(&self, sku: &Sku) -> Vec<BucketKeys> {
        let buckets = (0..sku.buckets.max(1)).map(BucketNo);
        buckets.map(|bucket| BucketKeys::new(&self.namespace, sku, bucket)).collect()
    }

    /// A connection to the server that has the bucket.
    pub(super) async fn link(
        &self,
        lane: ConnectionPurpose,
        keys: &BucketKeys,
    ) -> Result<Arc<Connection>, Error> {
        self.links.link(lane, keys.bucket()).await.map_err(|error| stock_error(error, "connecting"))
    }

    /// Whose the bucket must be, as seen from this connection.
    pub(super) fn fence(&self, link: &Connection) -> BucketFence {
        let server = link.identity().server().into();
        BucketFence { installation: self.installation, server }
    }

    /// Sends one call.
    pub(super) async fn ask(
        &self,
        link: &Connection,
        call: ScriptCall,
        doing: &'static str,
    ) -> Result<Value, Error> {
        let calls = [call];
        let answers = link.call(&calls).await;
        self.only(link, &calls, answers, doing).await
    }

    /// Sends one call, and waits until replicas have it where they must.
    pub(super) async fn ask_and_wait(
        &self,
        link: &Connection,
        call: ScriptCall,
        doing: &'static str,
    ) -> Result<Value, Error> {
        let calls = [call];
        let answers = link.call_and_wait(&calls).await;
        self.only(link, &calls, answers, doing).await
    }

    /// The answer to the one call.
    async fn only(
        &self,
        link: &Connection,
        calls: &[ScriptCall; 1],
        answers: Result<PipelineAnswers, LinkError>,
        doing: &'static str,
    ) -> Result<Value, Error> {
        answered();
        let missing = || LinkError::Unknown { reason: "no answer".to_owned() };
        let answer = answers
            .and_then(|answers| answers.into_iter().next().unwrap_or_else(|| Err(missing())));
        let error = match answer {
            Ok(answer) => return Ok(answer),
            Err(error) => stock_error(error, doing),
        };
        let (Error::Damaged { what }, [call]) = (&error, calls) else { return Err(error) };
        Err(Error::Damaged { what: format!("{}: {what}", self.strange_keys(link, call).await) })
    }

    /// Which keys of a call hold what no version of this program wrote; for whoever has to repair
    /// it. Redis itself does not say.
    async fn strange_keys(&self, link: &Connection, call: &ScriptCall) -> String {
        let keys: Vec<_> = call.keys().map(String::from_utf8_lossy).collect();
        let types: Vec<_> =
            keys.iter().map(|key| redis::cmd("TYPE").arg(&**key).to_owned()).collect();
        let types = self.send(link, &types, "reading types").await.unwrap_or_default();
        let strange = keys.iter().zip(&types).filter_map(|(key, kind)| match kind {
            Value::SimpleString(kind) if !matches!(kind.as_str(), "hash" | "none") => {
                Some(format!("{key} is a {kind}"))
            }
            _ => None,
        });
        let strange: Vec<_> = strange.collect();
        if strange.is_empty() {
            keys.first().cloned().unwrap_or_default().into()
        } else {
            strange.join(", ")
        }
    }

    /// Sends requests in one go; the first that fails is the error.
    pub(super) async fn send(
        &self,
        link: &Connection,
        requests: &[impl PipelineRequest],
        doing: &'static str,
    ) -> Result<Vec<Value>, Error> {
        let answers = link.call(requests).await;
        answered();
        let answers = answers.map_err(|error| stock_error(error, doing))?;
        let answers: Result<Vec<_>, _> = answers.into_iter().collect();
        answers.map_err(|error| stock_error(error, doing))
    }

    /// Asks every master whether it is still the one that was connected to.
    pub(super) async fn ping(&self) -> Result<(), Error> {
        self.links.verify().await.map_err(|error| stock_error(error, "looking for redis"))
    }
}

/// What a failed call means to a gate.
fn stock_error(error: LinkError, doing: &'static str) -> Error {
    match error.class() {
        CallEffect::NotDone => Error::Unavailable { reason: error.to_string() },
        CallEffect::Unknown => Error::Unknown { doing, reason: error.to_string() },
        CallEffect::Refused => Error::Damaged { what: format!("{doing}: {error}") },
    }
}

impl PipelineRequest for ScriptCall {
    fn script(&self) -> Option<&'static str> {
        Some(ScriptCall::script(self).name())
    }

    fn command(&self, sha: &str) -> Cmd {
        self.evalsha(sha)
    }
}
