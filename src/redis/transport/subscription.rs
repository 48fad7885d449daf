//! A subscription to one channel, on a connection of its own. Until it ends it has every message;
//! those between its end and the next subscription are lost.

use std::sync::Arc;

use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;
use redis::{PushInfo, PushKind, Value};
use tokio::sync::mpsc;

use super::connect::{self, error_message};
use super::url::ServerAddress;
use super::{ConnectionOptions, Error};

/// Messages that wait to be read; a further one ends the subscription, so that its reader learns
/// that messages are lost.
const UNREAD_MAX: usize = 1024;

/// The name in `CLIENT LIST`.
const CLIENT_NAME: &str = "floodgate-events";

/// An open subscription.
pub struct ChannelSubscription {
    messages: mpsc::Receiver<Vec<u8>>,
    /// Keeps the socket open.
    _connection: MultiplexedConnection,
}

impl ChannelSubscription {
    /// Subscribes at a server within `connect_timeout`. Must run on the runtime that drives the
    /// connection.
    pub(super) async fn open(
        options: Arc<ConnectionOptions>,
        node: ServerAddress,
        channel: String,
    ) -> Result<Self, Error> {
        let (sender, messages) = mpsc::channel(UNREAD_MAX);
        let sender = Mutex::new(Some(sender));
        let on_push = move |push: PushInfo| match (push.kind, push.data.into_iter().nth(1)) {
            // Without a sender the receiver ends.
            (PushKind::Disconnection, _) => drop(sender.lock().take()),
            (PushKind::Message, Some(Value::BulkString(message))) => {
                let mut sender = sender.lock();
                if sender.as_ref().is_some_and(|open| open.try_send(message).is_err()) {
                    *sender = None;
                }
            }
            _ => {}
        };
        let subscribing = async {
            let credentials = options.url.credentials.as_ref();
            let opened = connect::open(&options, &node, credentials, on_push);
            let mut connection = opened.await?;
            let name = redis::cmd("CLIENT").arg("SETNAME").arg(CLIENT_NAME).to_owned();
            name.query_async::<()>(&mut connection).await?;
            connection.subscribe(&channel).await?;
            Ok(connection)
        };
        let subscribed = tokio::time::timeout(options.connect_timeout, subscribing).await;
        let reason = match subscribed {
            Ok(Ok(connection)) => return Ok(Self { messages, _connection: connection }),
            Ok(Err(error)) => error_message(&error),
            Err(_) => format!("not ready within {:?}", options.connect_timeout),
        };
        Err(Error::not_sent(format!("no subscription to {channel} at {node}: {reason}")))
    }

    /// The next message; `None`: the connection is lost, or too many messages were unread.
    pub async fn next(&mut self) -> Option<Vec<u8>> {
        self.messages.recv().await
    }
}
