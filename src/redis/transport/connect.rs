//! Opens one connection, identifies the server and loads the scripts.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::io::tcp::{TcpSettings, socket2::TcpKeepalive};
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, ConnectionInfo, IntoConnectionInfo,
    Pipeline, ProtocolVersion, PushInfo, PushKind, RedisConnectionInfo, RedisError,
    TlsCertificates, Value,
};

use super::probe::fields;
use super::url::{Credentials, ServerAddress};
use super::{ConnectionOptions, ConnectionPurpose, Durability, Error, ScriptSource};

/// Commands queued in this process for one connection.
const PIPELINE_BUFFER: usize = 256;

/// One start of one server. Constant for a connection: if the server reports another identity, the
/// connection is closed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerIdentity {
    pub node: ServerAddress,
    /// Redis `run_id`, new at each start: 40 hexadecimal digits.
    pub run_id: String,
    /// The server name stored in buckets. It changes whenever the server may have lost writes.
    pub server: Arc<str>,
}

/// Prefix of `master_replid2` that distinguishes promotions.
const PROMOTION_CHARS: usize = 16;

/// The server name stored in buckets, from these two fields of `INFO`. `master_replid2` is the
/// replication id of the master whose data the server had when it was last promoted; zeros if it
/// was never a replica. It reveals a demotion and promotion in between, which keep the `run_id` but
/// may lose writes.
pub(super) fn server_name(run_id: &str, master_replid2: &str) -> String {
    let promotion: String = master_replid2.chars().take(PROMOTION_CHARS).collect();
    format!("{run_id}-{promotion}")
}

/// Connects to a master within `connect_timeout`, and loads all scripts. `on_disconnect` is called
/// when the server closes the connection.
pub(super) async fn connect(
    options: &ConnectionOptions,
    node: &ServerAddress,
    purpose: ConnectionPurpose,
    on_disconnect: impl Fn() + Send + Sync + 'static,
) -> Result<(MultiplexedConnection, ServerIdentity, ScriptDigests), Error> {
    let connecting = async {
        let credentials = options.url.credentials.as_ref();
        let on_push = move |push: PushInfo| {
            if push.kind == PushKind::Disconnection {
                on_disconnect();
            }
        };
        let connection = open(options, node, credentials, on_push).await;
        let mut connection = connection.map_err(|error| error_message(&error))?;
        let (identity, digests) = handshake(options, node, purpose, &mut connection).await?;
        Ok((connection, identity, digests))
    };
    let timed_out = |_| {
        let hint = if options.url.tls { ": it may speak no TLS at this port" } else { "" };
        Err(format!("not ready within {:?}{hint}", options.connect_timeout))
    };
    let connected = tokio::time::timeout(options.connect_timeout, connecting).await;
    connected
        .unwrap_or_else(timed_out)
        .map_err(|reason| Error::not_sent(format!("no connection to {node}: {reason}")))
}

/// Opens a connection to a Redis server or sentinel. The caller sets the time limit. `on_push` is
/// called for messages of subscriptions, and when the server closes the connection.
pub(super) async fn open(
    options: &ConnectionOptions,
    node: &ServerAddress,
    credentials: Option<&Credentials>,
    on_push: impl Fn(PushInfo) + Send + Sync + 'static,
) -> Result<MultiplexedConnection, RedisError> {
    let info = connection_info(options, node, credentials)?;
    let client = match &options.trust {
        Some(trust) if options.url.tls => {
            let root_cert = Some(trust.pem().to_vec());
            Client::build_with_tls(info, TlsCertificates { client_tls: None, root_cert })?
        }
        _ => Client::open(info)?,
    };
    let on_push = move |push: PushInfo| {
        on_push(push);
        Ok::<_, std::convert::Infallible>(())
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
) -> Result<ConnectionInfo, RedisError> {
    let host = node.host.clone();
    let addr = if options.url.tls {
        ConnectionAddr::TcpTls { host, port: node.port, insecure: false, tls_params: None }
    } else {
        ConnectionAddr::Tcp(host, node.port)
    };
    // Only with RESP3 does the driver report at once that the server closed the connection.
    let mut settings =
        RedisConnectionInfo::default().set_protocol(ProtocolVersion::RESP3).set_db(options.url.db);
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
) -> Result<(ServerIdentity, ScriptDigests), String> {
    let mut pipeline = Pipeline::new();
    pipeline.cmd("CLIENT").arg("SETNAME").arg(purpose.client_name());
    pipeline.add_command(info(&["server", "replication", "persistence", "memory"]));
    add_scripts(&mut pipeline, &options.scripts);
    let count = 2 + options.scripts.len();
    let answers = connection.send_packed_commands(&pipeline, 0, count).await;
    let mut answers = answers.map_err(|error| error_message(&error))?.into_iter();
    let mut next = || {
        let answer = answers.next().ok_or_else(|| "too few answers".to_owned())?;
        answer.extract_error().map_err(|error| error_message(&error))
    };
    next()?;
    let info = read_info(next()?)?;
    // A sentinel reports its mode and no role.
    match field(&info, "role").or_else(|_| field(&info, "redis_mode"))?.as_str() {
        "master" => {}
        "slave" => {
            let (host, port) = (field(&info, "master_host")?, field(&info, "master_port")?);
            return Err(format!("it is a replica of {host}:{port}"));
        }
        other => return Err(format!("it is a {other}")),
    }
    let digests = read_digests(&options.scripts, next)?;
    let policy = field(&info, "maxmemory_policy")?;
    if policy != "noeviction" {
        return Err(format!(
            "its maxmemory-policy is {policy}, by which a full server deletes units and requests \
             in silence: set maxmemory-policy noeviction in redis.conf"
        ));
    }
    if options.durability == Durability::Aof && field(&info, "aof_enabled")? != "1" {
        return Err("it keeps no append-only file, which durability aof needs: \
             set appendonly yes in redis.conf"
            .to_owned());
    }
    let run_id = field(&info, "run_id")?;
    let server = server_name(&run_id, &field(&info, "master_replid2")?).into();
    Ok((ServerIdentity { node: node.clone(), run_id, server }, digests))
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
    let info = read_info(answer)?;
    if field(&info, "role")? != "master" {
        return Err("it is no longer a master".to_owned());
    }
    let now = server_name(&field(&info, "run_id")?, &field(&info, "master_replid2")?);
    if now == *identity.server { Ok(()) } else { Err("it was promoted since".to_owned()) }
}

/// The digests that `SCRIPT LOAD` returned, by script name.
pub(super) type ScriptDigests = HashMap<&'static str, String>;

/// Appends a `SCRIPT LOAD` for every script, in order.
pub(super) fn add_scripts(pipeline: &mut Pipeline, scripts: &[ScriptSource]) {
    for script in scripts {
        pipeline.cmd("SCRIPT").arg("LOAD").arg(&script.text);
    }
}

/// Reads the answers to [`add_scripts`], in the order of `scripts`.
fn read_digests(
    scripts: &[ScriptSource],
    mut next: impl FnMut() -> Result<Value, String>,
) -> Result<ScriptDigests, String> {
    let entry = |script: &ScriptSource| {
        let answer = next()
            .and_then(|answer| redis::from_redis_value(answer).map_err(|error| error.to_string()));
        let digest = answer.map_err(|error| format!("script {}: {error}", script.name))?;
        Ok((script.name, digest))
    };
    scripts.iter().map(entry).collect()
}

/// The server's code and detail for a server error, otherwise the driver's message.
pub(super) fn error_message(error: &RedisError) -> String {
    match error.code() {
        Some(code) => format!("{code} {}", error.detail().unwrap_or_default()),
        None => super::explain(error.to_string()),
    }
}

fn read_info(answer: Value) -> Result<BTreeMap<String, String>, String> {
    let text = redis::from_redis_value::<String>(answer).map_err(|error| error.to_string())?;
    Ok(fields(&text))
}

fn field(info: &BTreeMap<String, String>, name: &str) -> Result<String, String> {
    info.get(name).cloned().ok_or_else(|| format!("its INFO has no {name}"))
}
