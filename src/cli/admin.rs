//! A client of the running server's admin API.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use clap::Args;
use hyper::body::Bytes;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use hyper::{Method, Response, StatusCode};
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Value as Json, json};
use url::Url;

use super::common::Common;
use super::exit::{CommandFailure, Exit};
use super::output::{Output, field};
use crate::config::Settings;
use crate::net::{HttpCallError, HttpCaller, Trust, explain};
use crate::runtime::clock;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Long, because opening a sale loads stock into every gate, a replay awaits its confirm, and
/// finding a request in an outbox reads the whole queue.
pub(super) const CALL_TIMEOUT: Option<Duration> = Some(Duration::from_secs(30));

/// Longer than a server waits for its ledger and its stock.
const READY_TIMEOUT: Option<Duration> = Some(Duration::from_secs(5));

/// Configuration sections that a client of the admin API reads.
pub const SECTIONS: [&str; 2] = ["admin.", "internal.bind"];

/// Address of the running server.
#[derive(Debug, Args)]
pub struct ServerArgs {
    /// Internal listener of the running server, such as `http://127.0.0.1:9090` [default: from
    /// internal.bind]
    #[arg(long, value_name = "URL", global = true)]
    pub internal_url: Option<String>,
}

impl ServerArgs {
    /// A client of the server, and the output for its answers.
    pub fn connect(&self, common: &Common) -> anyhow::Result<(AdminClient, Output)> {
        let settings = common.settings_for(&SECTIONS)?;
        Ok((AdminClient::new(self.internal_url.as_deref(), &settings)?, common.output()))
    }
}

#[derive(Debug, Args)]
pub struct SaleVerbArgs {
    /// The sale's id
    pub sale_id: String,
    /// Why; recorded with who did it
    #[arg(long)]
    pub reason: Option<String>,
}

/// Why a call of the admin API failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{0}")]
    Address(String),
    #[error("{0:?} is no id: it is empty, or would be another path")]
    Id(String),
    #[error("admin.ca_file is needed for {url}: {problem}")]
    Authority { url: String, problem: String },
    #[error("no server answers at {url} ({reason})")]
    NoServer { url: String, reason: String },
    /// The request was sent and not answered: it may or may not have been carried out.
    #[error("{url} did not answer in time or broke off ({reason}): the outcome is not known")]
    Unknown { url: String, reason: String },
    #[error("{url} does not accept the admin token")]
    Token { url: String },
    /// A 4xx answer with a problem body.
    #[error("{problem}")]
    Refused { status: u16, code: String, problem: String },
    /// A 5xx answer with a problem body.
    #[error("the server cannot do it now (status {status}): {problem}")]
    Unable { status: u16, code: String, problem: String },
    #[error("{url} is not Floodgate's admin API (status {status})")]
    NotFloodgate { url: String, status: u16 },
}

impl Error {
    /// Whether the server refuses the subject of the call, and not every such call: the token may
    /// do it, and the server has a broker.
    pub fn is_about_one(&self) -> bool {
        matches!(self, Self::Refused { status, code, .. } if *status != 403 && code != "no-broker")
    }

    /// The exit code and the next step for the operator.
    pub fn into_failure(self) -> CommandFailure {
        let remedy = match &self {
            Self::Address(_) => "give --internal-url http://HOST:PORT or https://HOST:PORT",
            Self::Id(_) => "give the id as a list or an answer of the server shows it",
            Self::Authority { .. } => {
                "name in admin.ca_file the PEM file of the authority that signed its certificate"
            }
            Self::NoServer { .. } => {
                "start it with `floodgate serve`, or name its internal listener with \
                 --internal-url; `floodgate doctor` checks the rest"
            }
            Self::Unknown { .. } => "check `floodgate sale list`, then repeat: repeats do no harm",
            Self::Token { .. } => {
                "commands send admin.token, or the first `operate` one of admin.tokens_file: give \
                 the server's with --set admin.token_file=FILE, with the token alone in it"
            }
            Self::Refused { status: 403, .. } => {
                "give a token with the scope `operate`: --set admin.token_file=FILE"
            }
            Self::Refused { status: 404, .. } => {
                "`floodgate sale list` shows every sale, `floodgate sale show ID` its SKUs"
            }
            Self::Refused { .. } => "change the request; nothing was changed",
            Self::Unable { .. } => "see `floodgate doctor` and the server's log",
            Self::NotFloodgate { .. } => {
                "name the internal listener (not the public one): --internal-url"
            }
        };
        let exit = match &self {
            Self::Authority { .. } | Self::Token { .. } | Self::Refused { status: 403, .. } => {
                Exit::Configuration
            }
            Self::Refused { .. } => Exit::Negative,
            _ => Exit::Unclear,
        };
        CommandFailure::new(exit, self.to_string(), remedy)
    }

    /// [`Self::into_failure`] with the remedy that a command has for this error, if it has one.
    pub fn into_failure_with<T: Into<String>>(
        self,
        remedy: impl FnOnce(&Self) -> Option<T>,
    ) -> CommandFailure {
        let remedy: Option<String> = remedy(&self).map(Into::into);
        let failure = self.into_failure();
        CommandFailure { remedy: remedy.unwrap_or(failure.remedy), ..failure }
    }
}

type Answer = Result<Json, Error>;

/// A client of one server's internal listener.
#[derive(Debug)]
pub struct AdminClient {
    base: Url,
    token: Option<SecretString>,
    http: HttpCaller,
}

impl AdminClient {
    /// A client of the server at `url`, or at `internal.bind` without it.
    pub fn new(url: Option<&str>, settings: &Settings) -> Result<Self, Error> {
        let token = settings.admin.bearer();
        let ca_file = &settings.admin.ca_file;
        if let Some(url) = url {
            return Self::at(url, token, ca_file);
        }
        let is_tls = !settings.internal.tls_cert_file.as_os_str().is_empty();
        let scheme = if is_tls { "https" } else { "http" };
        let address = reachable(settings.internal.bind)?;
        Self::at(&format!("{scheme}://{address}"), token, ca_file)
    }

    /// A client of the internal listener `url`, whose authority is in `ca_file`.
    pub fn at(url: &str, token: Option<SecretString>, ca_file: &Path) -> Result<Self, Error> {
        let base = Url::parse(url)
            .map_err(|error| Error::Address(format!("{url:?} is not a URL: {error}")))?;
        let trust = match base.scheme() {
            "http" => None,
            "https" => Some(
                Trust::read(ca_file)
                    .map_err(|problem| Error::Authority { url: url.to_owned(), problem })?,
            ),
            _ => return Err(Error::Address(format!("{url:?} is neither http:// nor https://"))),
        };
        Ok(Self { base, token, http: HttpCaller::new(CONNECT_TIMEOUT, trust) })
    }

    /// Creates and opens a sale that began a minute ago and ends in a day.
    pub async fn open_sale(&self, sale: &str, title: &str, skus: &[Json]) -> Result<(), Error> {
        let time = |ms| clock::rfc3339(clock::wall_ms() + ms);
        let description = json!({
            "sale_id": sale,
            "title": title,
            "starts_at": time(-60_000),
            "ends_at": time(86_400_000),
            "ticket_required": false,
            "skus": skus,
        });
        self.post(&["sales"], &description, None).await?;
        self.post(&["sales", sale, "open"], &json!({}), None).await?;
        Ok(())
    }

    /// `GET` below `/admin/v1`.
    pub async fn get(&self, path: &[&str], within: Option<Duration>) -> Answer {
        self.call(Method::GET, path, &[], None, within).await
    }

    /// `GET` below `/admin/v1` with query parameters.
    pub async fn ask(
        &self,
        path: &[&str],
        query: &[(&str, &str)],
        within: Option<Duration>,
    ) -> Answer {
        self.call(Method::GET, path, query, None, within).await
    }

    /// `POST` below `/admin/v1`; waits without limit when `within` is `None`.
    pub async fn post(&self, path: &[&str], body: &Json, within: Option<Duration>) -> Answer {
        self.post_text(path, body.to_string(), within).await
    }

    /// [`Self::post`] of a body that is JSON as the operator wrote it.
    pub async fn post_text(&self, path: &[&str], body: String, within: Option<Duration>) -> Answer {
        self.call(Method::POST, path, &[], Some(body), within).await
    }

    /// `PATCH` below `/admin/v1`.
    pub async fn patch(&self, path: &[&str], body: &Json, within: Option<Duration>) -> Answer {
        self.call(Method::PATCH, path, &[], Some(body.to_string()), within).await
    }

    /// The body at a path of the internal listener; `None` on any error or error status.
    pub async fn text(&self, path: &str, within: Duration) -> Option<String> {
        let mut url = self.base.clone();
        url.set_path(&format!("{}{path}", self.base.path().trim_end_matches('/')));
        let answer = self.send(Method::GET, &url, None, Some(within)).await.ok()?;
        let text = String::from_utf8(answer.body().to_vec()).ok()?;
        answer.status().is_success().then_some(text)
    }

    /// Whether the server's ledger answers it, by `/readyz`; `None`: no server answers.
    pub async fn ledger_answers(&self) -> Option<bool> {
        let mut url = self.base.clone();
        url.set_path(&format!("{}/readyz", self.base.path().trim_end_matches('/')));
        url.set_query(Some("verbose"));
        let answer = self.send(Method::GET, &url, None, READY_TIMEOUT).await.ok()?;
        let ready: Json = serde_json::from_slice(answer.body()).ok()?;
        let mut checks = ready.get("checks")?.as_array()?.iter();
        checks.find(|check| field(check, "name") == "ledger")?.get("ok")?.as_bool()
    }

    async fn send(
        &self,
        method: Method,
        url: &Url,
        body: Option<String>,
        within: Option<Duration>,
    ) -> Result<Response<Bytes>, Error> {
        let mut request = HttpCaller::request(method, url);
        if let Some(token) = &self.token {
            let value = HeaderValue::from_str(&format!("Bearer {}", token.expose_secret()));
            let mut value = value.map_err(|_not_a_header| Error::Token { url: url.to_string() })?;
            value.set_sensitive(true);
            request = request.header(AUTHORIZATION, value);
        }
        if body.is_some() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        let body = body.unwrap_or_default();
        let answer = self.http.call(url, request, body.into(), within).await;
        answer.map_err(|error| self.not_answered(error))
    }

    async fn call(
        &self,
        method: Method,
        path: &[&str],
        query: &[(&str, &str)],
        body: Option<String>,
        within: Option<Duration>,
    ) -> Answer {
        if let Some(dots) = path.iter().find(|segment| matches!(**segment, "." | ".." | "")) {
            return Err(Error::Id((*dots).to_owned()));
        }
        let mut url = self.base.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            // Below the prefix of a proxy, if there is one. Escapes each segment: ids may contain
            // any character.
            segments.pop_if_empty().extend(["admin", "v1"]).extend(path);
        }
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        let answer = self.send(method, &url, body, within).await?;
        let mut data = self.interpret(path, answer.status(), answer.body())?;
        let is_repeat = answer.headers().contains_key("idempotent-replayed");
        if let (Some(members), true) = (data.as_object_mut(), is_repeat) {
            members.insert("repeated".to_owned(), json!(true));
        }
        Ok(data)
    }

    fn interpret(&self, path: &[&str], status: StatusCode, body: &[u8]) -> Answer {
        let not_floodgate =
            || Error::NotFloodgate { url: self.base.to_string(), status: status.as_u16() };
        let data: Option<Json> = serde_json::from_slice(body).ok();
        let text = |name: &str| data.as_ref()?.get(name)?.as_str();
        // A 403 with a problem says what the token may not do.
        let is_refused = status == StatusCode::FORBIDDEN && text("title").is_none();
        if status == StatusCode::UNAUTHORIZED || is_refused {
            return Err(Error::Token { url: self.base.to_string() });
        }
        if status.is_success() {
            return data
                .or_else(|| body.is_empty().then_some(Json::Null))
                .ok_or_else(not_floodgate);
        }
        // RFC 9457: Floodgate's problem bodies always have a title.
        let has = |name: &str| data.as_ref().is_some_and(|data| data.get(name).is_some());
        // `not-found` that names nothing means an unknown path, hence another server: a Floodgate
        // server has every path used here, and its 404 names the request or the payment.
        let names_something = has("request_id") || has("payment");
        let is_unknown_path = text("code") == Some("not-found") && !names_something;
        let title = text("title").filter(|_| !is_unknown_path).ok_or_else(not_floodgate)?;
        let detail = text("detail").map_or_else(String::new, |detail| format!(": {detail}"));
        let code = text("code").unwrap_or_default().to_owned();
        let subject = match path {
            ["sales", sale, ..] if !detail.contains(sale) => format!("sale {sale}: "),
            _ => String::new(),
        };
        let (number, problem) = (status.as_u16(), format!("{subject}{title}{detail}"));
        Err(if status.is_client_error() {
            Error::Refused { status: number, code, problem }
        } else {
            Error::Unable { status: number, code, problem }
        })
    }

    fn not_answered(&self, error: HttpCallError) -> Error {
        let url = self.base.to_string();
        match error {
            HttpCallError::NotConnected(reason) => {
                let reason = explain(reason, "admin.ca_file", "--internal-url");
                Error::NoServer { url, reason }
            }
            HttpCallError::Unanswered(reason) => Error::Unknown { url, reason },
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

/// The members of a request that are not null.
pub(super) fn given<const N: usize>(members: [(&str, Json); N]) -> Json {
    members.into_iter().filter(|(_, value)| !value.is_null()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_addresses_are_reached_by_loopback() {
        let reach = |bind: &str| reachable(bind.parse().unwrap()).unwrap().to_string();
        assert_eq!(reach("0.0.0.0:9090"), "127.0.0.1:9090");
        assert_eq!(reach("[::]:9090"), "[::1]:9090");
        assert_eq!(reach("10.0.0.7:9090"), "10.0.0.7:9090");
        assert!(reachable("127.0.0.1:0".parse().unwrap()).is_err());
    }
}
