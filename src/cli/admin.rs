//! A client of the running server's admin API.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use chrono::{DateTime, SecondsFormat};
use clap::Args;
use reqwest::{Method, StatusCode, Url};
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Value as Json, json};

use super::common::Common;
use super::exit::{CommandFailure, Exit};
use super::output::Output;
use crate::config::Settings;
use crate::runtime::clock;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Configuration sections that a client of the admin API reads.
pub const SECTIONS: [&str; 2] = ["admin.", "internal."];

/// Address of the running server.
#[derive(Debug, Clone, Default, Args)]
pub struct ServerArgs {
    /// Internal listener of the running server, such as `http://127.0.0.1:9090` [default: from
    /// internal.bind]
    #[arg(long, value_name = "URL")]
    pub internal_url: Option<String>,
}

/// Flags of every command that calls the admin API of the running server.
#[derive(Debug, Args)]
pub struct AdminArgs {
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    common: Common,
}

impl AdminArgs {
    /// A client of the server at `--internal-url`, or at `internal.bind` without that flag.
    pub fn client(&self) -> anyhow::Result<AdminClient> {
        Ok(AdminClient::new(&self.server, &self.common.settings_for(&SECTIONS)?)?)
    }

    pub fn output(&self) -> Output {
        self.common.output()
    }
}

/// Why a call of the admin API failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{0}")]
    Address(String),
    #[error("no server answers at {url} ({reason})")]
    NoServer { url: String, reason: String },
    /// The request was sent and not answered: it may or may not have been carried out.
    #[error("{url} did not answer in time or broke off ({reason}): the outcome is not known")]
    Unknown { url: String, reason: String },
    #[error("{url} does not accept the admin token")]
    Token { url: String },
    /// A 4xx answer with a problem body.
    #[error("{title}{}", after_colon(detail.as_ref()))]
    Refused { status: u16, title: String, detail: Option<String> },
    /// A 5xx answer with a problem body.
    #[error(
        "the server cannot do it now (status {status}): {title}{}",
        after_colon(detail.as_ref())
    )]
    Unable { status: u16, title: String, detail: Option<String> },
    #[error("{url} is not Floodgate's admin API (status {status})")]
    NotFloodgate { url: String, status: u16 },
}

fn after_colon(detail: Option<&String>) -> String {
    detail.map_or_else(String::new, |text| format!(": {text}"))
}

impl Error {
    /// The exit code and the next step for the operator.
    pub fn into_failure(self) -> CommandFailure {
        let (exit, remedy) = match &self {
            Self::Address(_) => (Exit::Unclear, "give --internal-url http://HOST:PORT"),
            Self::NoServer { .. } => (
                Exit::Unclear,
                "start it with `floodgate serve`, or name its internal listener with \
                 --internal-url; `floodgate doctor` checks the rest",
            ),
            Self::Unknown { .. } => {
                (Exit::Unclear, "check `floodgate sale list`, then repeat: repeats do no harm")
            }
            Self::Token { .. } => (
                Exit::Configuration,
                "give the server's own token: --set admin.token_file=FILE, or its --config FILE",
            ),
            Self::Refused { status: 404, .. } => {
                (Exit::Negative, "`floodgate sale list` shows every sale")
            }
            Self::Refused { .. } => (Exit::Negative, "change the request; nothing was changed"),
            Self::Unable { .. } => {
                (Exit::Unclear, "see /readyz of the internal listener and the server's log")
            }
            Self::NotFloodgate { .. } => {
                (Exit::Unclear, "name the internal listener (not the public one): --internal-url")
            }
        };
        CommandFailure::new(exit, self.to_string(), remedy)
    }
}

/// A client of one server's internal listener.
#[derive(Debug)]
pub struct AdminClient {
    base: Url,
    token: Option<SecretString>,
    http: reqwest::Client,
}

impl AdminClient {
    /// A client of the server at `--internal-url`, or at `internal.bind` without that flag.
    pub fn new(args: &ServerArgs, settings: &Settings) -> Result<Self, Error> {
        let url = match &args.internal_url {
            Some(url) => url.clone(),
            None => format!("http://{}", reachable(settings.internal.bind)?),
        };
        Self::at(&url, settings.admin.bearer().cloned())
    }

    /// A client of the internal listener `url`.
    pub fn at(url: &str, token: Option<SecretString>) -> Result<Self, Error> {
        let base = Url::parse(url)
            .map_err(|error| Error::Address(format!("{url:?} is not a URL: {error}")))?;
        if base.scheme() != "http" || base.cannot_be_a_base() {
            return Err(Error::Address(format!(
                "{url:?} is not an http:// URL; the internal listener speaks plain HTTP"
            )));
        }
        // Requests to the internal listener must bypass a proxy from the environment.
        let http = reqwest::Client::builder()
            .no_proxy()
            .connect_timeout(CONNECT_TIMEOUT)
            .build()
            .map_err(|error| Error::Address(error.to_string()))?;
        Ok(Self { base, token, http })
    }

    /// Creates and opens a sale of one SKU that began a minute ago and ends in a day.
    pub async fn open_sale(&self, sale: &str, title: &str, sku: &Json) -> Result<(), Error> {
        let time = |ms| {
            let time = DateTime::from_timestamp_millis(clock::wall_ms() + ms).unwrap_or_default();
            time.to_rfc3339_opts(SecondsFormat::Millis, true)
        };
        let description = json!({
            "sale_id": sale,
            "title": title,
            "starts_at": time(-60_000),
            "ends_at": time(86_400_000),
            "ticket_required": false,
            "skus": [sku],
        });
        self.post(&["sales"], &description, None).await?;
        self.post(&["sales", sale, "open"], &json!({}), None).await?;
        Ok(())
    }

    /// `GET` below `/admin/v1`.
    pub async fn get(&self, path: &[&str], within: Option<Duration>) -> Result<Json, Error> {
        self.call(Method::GET, path, &[], None, within).await
    }

    /// `GET` below `/admin/v1` with query parameters.
    pub async fn ask(
        &self,
        path: &[&str],
        query: &[(&str, &str)],
        within: Option<Duration>,
    ) -> Result<Json, Error> {
        self.call(Method::GET, path, query, None, within).await
    }

    /// `POST` below `/admin/v1`; waits without limit when `within` is `None`.
    pub async fn post(
        &self,
        path: &[&str],
        body: &Json,
        within: Option<Duration>,
    ) -> Result<Json, Error> {
        self.call(Method::POST, path, &[], Some(body), within).await
    }

    /// The body at a path of the internal listener; `None` on any error or error status.
    pub async fn text(&self, path: &str, within: Duration) -> Option<String> {
        let mut url = self.base.clone();
        url.set_path(path);
        let mut request = self.http.get(url).timeout(within);
        if let Some(token) = &self.token {
            request = request.bearer_auth(token.expose_secret());
        }
        request.send().await.ok()?.error_for_status().ok()?.text().await.ok()
    }

    /// Whether `/livez` answers within two seconds.
    pub async fn is_alive(&self) -> bool {
        self.text("/livez", CONNECT_TIMEOUT).await.is_some()
    }

    async fn call(
        &self,
        method: Method,
        path: &[&str],
        query: &[(&str, &str)],
        body: Option<&Json>,
        within: Option<Duration>,
    ) -> Result<Json, Error> {
        if let Some(dots) = path.iter().find(|segment| matches!(**segment, "." | ".." | "")) {
            return Err(Error::Address(format!("{dots:?} cannot be a part of a URL")));
        }
        let mut url = self.base.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            // Escapes each segment: ids may contain any character.
            segments.clear().extend(["admin", "v1"]).extend(path);
        }
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        let mut request = self.http.request(method, url);
        if let Some(body) = body {
            request = request.json(body);
        }
        if let Some(token) = &self.token {
            request = request.bearer_auth(token.expose_secret());
        }
        if let Some(limit) = within {
            request = request.timeout(limit);
        }
        let answer = request.send().await.map_err(|error| self.not_answered(&error))?;
        let status = answer.status();
        let bytes = answer.bytes().await.map_err(|error| self.not_answered(&error))?;
        let data = serde_json::from_slice(&bytes).ok();
        self.interpret(status, bytes.is_empty(), data)
    }

    fn interpret(
        &self,
        status: StatusCode,
        empty: bool,
        data: Option<Json>,
    ) -> Result<Json, Error> {
        if status == StatusCode::UNAUTHORIZED || status == StatusCode::FORBIDDEN {
            return Err(Error::Token { url: self.base.to_string() });
        }
        let not_floodgate =
            || Error::NotFloodgate { url: self.base.to_string(), status: status.as_u16() };
        if status.is_success() {
            return data.or_else(|| empty.then_some(Json::Null)).ok_or_else(not_floodgate);
        }
        // RFC 9457: Floodgate's problem bodies always have a title.
        let text = |name: &str| data.as_ref()?.get(name)?.as_str().map(str::to_owned);
        let has = |name: &str| data.as_ref().is_some_and(|data| data.get(name).is_some());
        match text("title") {
            // `not-found` without `request_id` means an unknown path, hence another server: a
            // Floodgate server has every path used here, and its 404 names the request.
            Some(_) if text("code").as_deref() == Some("not-found") && !has("request_id") => {
                Err(not_floodgate())
            }
            Some(title) if status.is_client_error() => {
                Err(Error::Refused { status: status.as_u16(), title, detail: text("detail") })
            }
            Some(title) => {
                Err(Error::Unable { status: status.as_u16(), title, detail: text("detail") })
            }
            None => Err(not_floodgate()),
        }
    }

    fn not_answered(&self, error: &reqwest::Error) -> Error {
        let (url, reason) = (self.base.to_string(), innermost(error));
        if error.is_connect() {
            Error::NoServer { url, reason }
        } else {
            Error::Unknown { url, reason }
        }
    }
}

/// The address to connect to: a wildcard bind is reached by loopback. Fails for port 0.
fn reachable(bind: SocketAddr) -> Result<SocketAddr, Error> {
    if bind.port() == 0 {
        return Err(Error::Address(
            "internal.bind has port 0, so the server chose its port when it started".to_owned(),
        ));
    }
    let ip = match bind.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    Ok(SocketAddr::new(ip, bind.port()))
}

fn innermost(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}

#[cfg(test)]
#[path = "admin_tests.rs"]
mod tests;
