//! Making one connection, and finding out where it leads.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::io::tcp::{TcpSettings, socket2::TcpKeepalive};
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, ConnectionInfo, IntoConnectionInfo,
    Pipeline, ProtocolVersion, PushInfo, PushKind, RedisConnectionInfo, RedisError, Value,
};

use super::identity::{ServerIdentity, server_name};
use super::request::{LoadedScripts, ScriptSource};
use super::url::{Credentials, ServerAddress};
use super::{ConnectionOptions, ConnectionPurpose, Durability, Error};

/// Commands that wait in this process for a connection that is being written to.
const PIPELINE_BUFFER: usize = 256;

/// A connection that leads to a master and has all scripts.
pub(super) struct NewConnection {
    pub(super) connection: MultiplexedConnection,
    pub(super) identity: ServerIdentity,
    pub(super) loaded: LoadedScripts,
}

/// Connects to a master, within the time for it. `lost` is called when the server hangs up.
pub(super) async fn connect(
    options: &ConnectionOptions,
    node: &ServerAddress,
    lane: ConnectionPurpose,
    lost: impl Fn() + Send + Sync + 'static,
) -> Result<NewConnection, Error> {
    let reason = |what: String| Error::not_sent(format!("no connection to {node}: {what}"));
    let handshake = async {
        let credentials = options.url.credentials.as_ref();
        let connection = open(options, node, credentials, options.url.db, lost).await;
        let mut connection = connection.map_err(|error| reason(said(&error)))?;
        let (identity, loaded) =
            introduce(options, node, lane, &mut connection).await.map_err(reason)?;
        Ok(NewConnection { connection, identity, loaded })
    };
    let late = |_| reason(format!("not ready within {:?}", options.connect_timeout));
    tokio::time::timeout(options.connect_timeout, handshake).await.map_err(late)?
}

/// Opens a connection to any Redis or sentinel; without a time limit of its own.
pub(super) async fn open(
    options: &ConnectionOptions,
    node: &ServerAddress,
    credentials: Option<&Credentials>,
    db: i64,
    lost: impl Fn() + Send + Sync + 'static,
) -> Result<MultiplexedConnection, RedisError> {
    let client = Client::open(connection_info(options, node, credentials, db)?)?;
    let hung_up = move |push: PushInfo| -> Result<(), std::convert::Infallible> {
        if push.kind == PushKind::Disconnection {
            lost();
        }
        Ok(())
    };
    // The limits are the callers': one for each call, one for all of the way here.
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(None)
        .set_response_timeout(None)
        .set_pipeline_buffer_size(PIPELINE_BUFFER)
        .set_push_sender(hung_up);
    client.get_multiplexed_async_connection_with_config(&config).await
}

fn connection_info(
    options: &ConnectionOptions,
    node: &ServerAddress,
    credentials: Option<&Credentials>,
    db: i64,
) -> Result<ConnectionInfo, RedisError> {
    let host = node.host.clone();
    let addr = if options.url.tls {
        ConnectionAddr::TcpTls { host, port: node.port, insecure: false, tls_params: None }
    } else {
        ConnectionAddr::Tcp(host, node.port)
    };
    // Only with the newer protocol does the driver say at once that the server hung up.
    let mut who = RedisConnectionInfo::default().set_protocol(ProtocolVersion::RESP3).set_db(db);
    if let Some(credentials) = credentials {
        who = who.set_password(&credentials.password);
        if let Some(user) = &credentials.user {
            who = who.set_username(user);
        }
    }
    let probe_every = (options.user_timeout / 3).max(Duration::from_secs(1));
    let keepalive = TcpKeepalive::new().with_time(probe_every).with_interval(probe_every);
    let tcp = TcpSettings::default()
        .set_nodelay(true)
        .set_keepalive(keepalive)
        .set_user_timeout(options.user_timeout);
    Ok(addr.into_connection_info()?.set_redis_settings(who).set_tcp_settings(tcp))
}

/// Asks who the server is, loads the scripts, and makes sure that it is what the durability wants.
async fn introduce(
    options: &ConnectionOptions,
    node: &ServerAddress,
    lane: ConnectionPurpose,
    connection: &mut MultiplexedConnection,
) -> Result<(ServerIdentity, LoadedScripts), String> {
    let mut pipeline = Pipeline::new();
    pipeline.cmd("CLIENT").arg("SETNAME").arg(lane.client_name());
    pipeline.cmd("ROLE").add_command(info(&["server", "replication", "persistence", "memory"]));
    add_scripts(&mut pipeline, &options.scripts);
    let count = 3 + options.scripts.len();
    let answers = connection.send_packed_commands(&pipeline, 0, count).await;
    let mut answers = answers.map_err(|error| said(&error))?.into_iter();
    let mut next = || {
        let answer = answers.next().ok_or_else(|| "too few answers".to_owned())?;
        answer.extract_error().map_err(|error| said(&error))
    };
    next()?;
    must_be_master(&next()?)?;
    let info = Info::read(next()?)?;
    let loaded = LoadedScripts::read(&options.scripts, next)?;
    let policy = info.field("maxmemory_policy")?;
    if policy != "noeviction" {
        return Err(format!(
            "its maxmemory-policy is {policy}, by which a full server deletes units and requests \
             in silence: set maxmemory-policy noeviction in redis.conf"
        ));
    }
    let aof = info.field("aof_enabled")? == "1";
    if options.durability == Durability::Aof && !aof {
        return Err("it keeps no append-only file, which durability aof needs: \
             set appendonly yes in redis.conf"
            .to_owned());
    }
    let identity = ServerIdentity {
        node: node.clone(),
        run_id: info.field("run_id")?,
        promoted_from: info.field("master_replid2")?,
        version: info.field("redis_version")?,
        aof,
    };
    Ok((identity, loaded))
}

fn info(sections: &[&str]) -> Cmd {
    redis::cmd("INFO").arg(sections).to_owned()
}

/// Asks a server who it is. The answer is for [`is_still`].
pub(super) fn who() -> Cmd {
    info(&["server", "replication"])
}

/// Refuses when an answer to [`who`] is not that of the server that was connected to: it has been
/// demoted since, and perhaps promoted again.
pub(super) fn is_still(identity: &ServerIdentity, answer: Value) -> Result<(), String> {
    let info = Info::read(answer)?;
    if info.field("role")? != "master" {
        return Err("it is no longer a master".to_owned());
    }
    let now = server_name(&info.field("run_id")?, &info.field("master_replid2")?);
    if now == identity.server() { Ok(()) } else { Err("it was promoted since".to_owned()) }
}

/// Loads every script, in order.
pub(super) fn add_scripts(pipeline: &mut Pipeline, scripts: &[ScriptSource]) {
    for script in scripts {
        pipeline.cmd("SCRIPT").arg("LOAD").arg(&script.text);
    }
}

/// An error in the words of the server, if it is one of the server's.
pub(super) fn said(error: &RedisError) -> String {
    match error.code() {
        Some(code) => format!("{code} {}", error.detail().unwrap_or_default()),
        None => error.to_string(),
    }
}

/// Reads the answer of `ROLE`.
fn must_be_master(role: &Value) -> Result<(), String> {
    let parts = role.as_sequence().unwrap_or_default();
    let text = |part: &Value| redis::from_redis_value_ref::<String>(part).ok();
    match parts.first().and_then(text).as_deref() {
        Some("master") => Ok(()),
        Some("slave") => {
            let part = |index| parts.get(index).and_then(text).unwrap_or_default();
            Err(format!("it is a replica of {}:{}", part(1), part(2)))
        }
        Some(other) => Err(format!("it is a {other}")),
        None => Err("it does not say what role it has".to_owned()),
    }
}

/// An answer of `INFO`.
struct Info(String);

impl Info {
    fn read(answer: Value) -> Result<Self, String> {
        redis::from_redis_value(answer).map(Self).map_err(|error| error.to_string())
    }

    fn field(&self, name: &str) -> Result<String, String> {
        let mut lines = self.0.lines();
        let found = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        found.map(str::to_owned).ok_or_else(|| format!("its INFO has no {name}"))
    }
}
