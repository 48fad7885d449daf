//! Opens one connection and identifies the server.

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

/// Commands queued in this process for one connection.
const PIPELINE_BUFFER: usize = 256;

/// A connection to a master with all scripts loaded.
pub(super) struct NewConnection {
    pub(super) connection: MultiplexedConnection,
    pub(super) identity: ServerIdentity,
    pub(super) loaded: LoadedScripts,
}

/// Connects to a master within `connect_timeout`. `on_disconnect` is called when the server
/// closes the connection.
pub(super) async fn connect(
    options: &ConnectionOptions,
    node: &ServerAddress,
    purpose: ConnectionPurpose,
    on_disconnect: impl Fn() + Send + Sync + 'static,
) -> Result<NewConnection, Error> {
    let failed = |reason: String| Error::not_sent(format!("no connection to {node}: {reason}"));
    let connecting = async {
        let credentials = options.url.credentials.as_ref();
        let connection = open(options, node, credentials, options.url.db, on_disconnect).await;
        let mut connection = connection.map_err(|error| failed(error_message(&error)))?;
        let (identity, loaded) =
            handshake(options, node, purpose, &mut connection).await.map_err(failed)?;
        Ok(NewConnection { connection, identity, loaded })
    };
    let timed_out = |_| failed(format!("not ready within {:?}", options.connect_timeout));
    tokio::time::timeout(options.connect_timeout, connecting).await.map_err(timed_out)?
}

/// Opens a connection to a Redis server or sentinel. The caller sets the time limit.
pub(super) async fn open(
    options: &ConnectionOptions,
    node: &ServerAddress,
    credentials: Option<&Credentials>,
    db: i64,
    on_disconnect: impl Fn() + Send + Sync + 'static,
) -> Result<MultiplexedConnection, RedisError> {
    let client = Client::open(connection_info(options, node, credentials, db)?)?;
    let on_push = move |push: PushInfo| -> Result<(), std::convert::Infallible> {
        if push.kind == PushKind::Disconnection {
            on_disconnect();
        }
        Ok(())
    };
    // The callers set the time limits: one per call, one for the whole connect.
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(None)
        .set_response_timeout(None)
        .set_pipeline_buffer_size(PIPELINE_BUFFER)
        .set_push_sender(on_push);
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
    // Only with RESP3 does the driver report at once that the server closed the connection.
    let mut settings =
        RedisConnectionInfo::default().set_protocol(ProtocolVersion::RESP3).set_db(db);
    if let Some(credentials) = credentials {
        settings = settings.set_password(&credentials.password);
        if let Some(user) = &credentials.user {
            settings = settings.set_username(user);
        }
    }
    let probe_every = (options.user_timeout / 3).max(Duration::from_secs(1));
    let keepalive = TcpKeepalive::new().with_time(probe_every).with_interval(probe_every);
    let tcp = TcpSettings::default()
        .set_nodelay(true)
        .set_keepalive(keepalive)
        .set_user_timeout(options.user_timeout);
    Ok(addr.into_connection_info()?.set_redis_settings(settings).set_tcp_settings(tcp))
}

/// Reads the server's identity, loads the scripts, and checks role, eviction policy and the
/// requirements of the durability.
async fn handshake(
    options: &ConnectionOptions,
    node: &ServerAddress,
    purpose: ConnectionPurpose,
    connection: &mut MultiplexedConnection,
) -> Result<(ServerIdentity, LoadedScripts), String> {
    let mut pipeline = Pipeline::new();
    pipeline.cmd("CLIENT").arg("SETNAME").arg(purpose.client_name());
    pipeline.cmd("ROLE").add_command(info(&["server", "replication", "persistence", "memory"]));
    add_scripts(&mut pipeline, &options.scripts);
    let count = 3 + options.scripts.len();
    let answers = connection.send_packed_commands(&pipeline, 0, count).await;
    let mut answers = answers.map_err(|error| error_message(&error))?.into_iter();
    let mut next = || {
        let answer = answers.next().ok_or_else(|| "too few answers".to_owned())?;
        answer.extract_error().map_err(|error| error_message(&error))
    };
    next()?;
    check_is_master(&next()?)?;
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

/// The command that reads a server's identity; [`check_identity`] checks the answer.
pub(super) fn identity_query() -> Cmd {
    info(&["server", "replication"])
}

/// Checks an answer to [`identity_query`]. Fails if the server is another one, is no longer a
/// master, or was demoted and promoted again since the connection was made.
pub(super) fn check_identity(identity: &ServerIdentity, answer: Value) -> Result<(), String> {
    let info = Info::read(answer)?;
    if info.field("role")? != "master" {
        return Err("it is no longer a master".to_owned());
    }
    let now = server_name(&info.field("run_id")?, &info.field("master_replid2")?);
    if now == identity.server() { Ok(()) } else { Err("it was promoted since".to_owned()) }
}

/// Appends a `SCRIPT LOAD` for every script, in order.
pub(super) fn add_scripts(pipeline: &mut Pipeline, scripts: &[ScriptSource]) {
    for script in scripts {
        pipeline.cmd("SCRIPT").arg("LOAD").arg(&script.text);
    }
}

/// The server's code and detail for a server error, otherwise the driver's message.
pub(super) fn error_message(error: &RedisError) -> String {
    match error.code() {
        Some(code) => format!("{code} {}", error.detail().unwrap_or_default()),
        None => error.to_string(),
    }
}

/// Checks the answer to `ROLE`.
fn check_is_master(role: &Value) -> Result<(), String> {
    let fields = role.as_sequence().unwrap_or_default();
    let text = |field: &Value| redis::from_redis_value_ref::<String>(field).ok();
    match fields.first().and_then(text).as_deref() {
        Some("master") => Ok(()),
        Some("slave") => {
            let field = |index| fields.get(index).and_then(text).unwrap_or_default();
            Err(format!("it is a replica of {}:{}", field(1), field(2)))
        }
        Some(other) => Err(format!("it is a {other}")),
        None => Err("its ROLE answer is not readable".to_owned()),
    }
}

/// An answer to `INFO`.
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
