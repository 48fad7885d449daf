//! A client of the running server's admin API.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use clap::Args;
use reqwest::{Method, StatusCode, Url};
use secrecy::{ExposeSecret, SecretString};
use serde_json::Value as Json;

use super::exit::{Exit, Failure};
use crate::config::Settings;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Sections of the configuration that a client of the server needs.
pub const SECTIONS: [&str; 2] = ["admin.", "internal."];

/// Where the running server is.
#[derive(Debug, Clone, Default, Args)]
pub struct ServerArgs {
    /// Internal listener of the running server, such as `http://127.0.0.1:9090` [default: from
    /// internal.bind]
    #[arg(long, value_name = "URL")]
    pub internal_url: Option<String>,
}

/// Why the server did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The address cannot be used.
    #[error("{0}")]
    Address(String),
    /// Nothing listens there.
    #[error("no server answers at {url} ({reason})")]
    NoServer {
        /// Where.
        url: String,
        /// What the system said.
        reason: String,
    },
    /// The request was sent, and no answer came: it may or may not have been done.
    #[error("{url} did not answer in time or broke off ({reason}): the outcome is not known")]
    Unknown {
        /// Where.
        url: String,
        /// What happened.
        reason: String,
    },
    /// The token is missing or wrong.
    #[error("{url} does not accept the admin token")]
    Token {
        /// Where.
        url: String,
    },
    /// The server said no.
    #[error("{title}{}", detail.as_ref().map_or(String::new(), |text| format!(": {text}")))]
    Refused {
        /// Status of the answer.
        status: u16,
        /// Short form.
        title: String,
        /// Long form.
        detail: Option<String>,
    },
    /// The server cannot do it now.
    #[error("the server cannot do it now (status {status}): {title}")]
    Unable {
        /// Status of the answer.
        status: u16,
        /// What it said.
        title: String,
    },
    /// The answer is none of ours.
    #[error("{url} answered with something else than Floodgate's admin API (status {status})")]
    Stranger {
        /// Where.
        url: String,
        /// Status of the answer.
        status: u16,
    },
}

impl Error {
    /// The exit and the next step for a person.
    #[must_use]
    pub fn into_failure(self) -> Failure {
        let (exit, remedy) = match &self {
            Self::Address(_) => (Exit::Unclear, "give --internal-url http://HOST:PORT"),
            Self::NoServer { .. } => (
                Exit::Unclear,
                "start it with `floodgate serve`, or name its internal listener with \
                 --internal-url; `floodgate doctor` looks further",
            ),
            Self::Unknown { .. } => {
                (Exit::Unclear, "look with `floodgate sale list`, then repeat: repeats do no harm")
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
            Self::Stranger { .. } => {
                (Exit::Unclear, "name the internal listener (not the public one): --internal-url")
            }
        };
        Failure::new(exit, self.to_string(), remedy)
    }
}

/// Speaks to one server.
#[derive(Debug)]
pub struct AdminClient {
    base: Url,
    token: Option<SecretString>,
    http: reqwest::Client,
}

impl AdminClient {
    /// A client of the server that was named, or of the one these settings describe.
    ///
    /// # Errors
    /// The address cannot be used.
    pub fn new(args: &ServerArgs, settings: &Settings) -> Result<Self, Error> {
        let text = match &args.internal_url {
            Some(url) => url.clone(),
            None => format!("http://{}", reachable(settings.internal.bind)?),
        };
        let base = Url::parse(&text)
            .map_err(|error| Error::Address(format!("{text:?} is not a URL: {error}")))?;
        if base.scheme() != "http" || base.cannot_be_a_base() {
            return Err(Error::Address(format!(
                "{text:?} is not an http:// URL; the internal listener speaks plain HTTP"
            )));
        }
        // A proxy from the environment has no business between an operator and this machine.
        let http = reqwest::Client::builder()
            .no_proxy()
            .connect_timeout(CONNECT_TIMEOUT)
            .build()
            .map_err(|error| Error::Address(error.to_string()))?;
        Ok(Self { base, token: settings.admin.bearer().cloned(), http })
    }

    /// `GET` below `/admin/v1`.
    ///
    /// # Errors
    /// Every way in which there is no answer of the kind asked for.
    pub async fn get(&self, path: &[&str], within: Option<Duration>) -> Result<Json, Error> {
        self.call(Method::GET, path, None, within).await
    }

    /// `POST` below `/admin/v1`; waits as long as it takes when `within` is `None`.
    ///
    /// # Errors
    /// As [`AdminClient::get`].
    pub async fn post(
        &self,
        path: &[&str],
        body: &Json,
        within: Option<Duration>,
    ) -> Result<Json, Error> {
        self.call(Method::POST, path, Some(body), within).await
    }

    /// Whether a Floodgate server is alive there.
    pub async fn is_alive(&self) -> bool {
        let mut url = self.base.clone();
        url.set_path("/livez");
        let answer = self.http.get(url).timeout(CONNECT_TIMEOUT).send().await;
        answer.is_ok_and(|answer| answer.status().is_success())
    }

    async fn call(
        &self,
        method: Method,
        path: &[&str],
        body: Option<&Json>,
        within: Option<Duration>,
    ) -> Result<Json, Error> {
        if let Some(dots) = path.iter().find(|segment| matches!(**segment, "." | ".." | "")) {
            return Err(Error::Address(format!("{dots:?} cannot be a part of a URL")));
        }
        let mut url = self.base.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            // Escapes what a sale's name may hold.
            segments.clear().extend(["admin", "v1"]).extend(path);
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
        self.judge(status, bytes.is_empty(), data)
    }

    fn judge(&self, status: StatusCode, empty: bool, data: Option<Json>) -> Result<Json, Error> {
        if status == StatusCode::UNAUTHORIZED || status == StatusCode::FORBIDDEN {
            return Err(Error::Token { url: self.base.to_string() });
        }
        let stranger = || Error::Stranger { url: self.base.to_string(), status: status.as_u16() };
        if status.is_success() {
            return data.or_else(|| empty.then_some(Json::Null)).ok_or_else(stranger);
        }
        // RFC 9457: our refusals always have a title.
        let text = |name: &str| data.as_ref()?.get(name)?.as_str().map(str::to_owned);
        match text("title") {
            // The path is of our making: a server that lacks it is not the one that was meant.
            Some(_) if text("code").as_deref() == Some("not-found") => Err(stranger()),
            Some(title) if status.is_client_error() => {
                Err(Error::Refused { status: status.as_u16(), title, detail: text("detail") })
            }
            Some(title) => Err(Error::Unable { status: status.as_u16(), title }),
            None => Err(stranger()),
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

/// An address to connect to: "all addresses" is reached by loopback.
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
mod tests {
    use std::io::{Read, Write};

    use super::*;

    fn client(url: &str) -> Result<AdminClient, Error> {
        let args = ServerArgs { internal_url: Some(url.to_owned()) };
        AdminClient::new(&args, &Settings::for_test("sqlite://./x.db"))
    }

    fn judged(status: u16, body: Option<Json>) -> Result<Json, Error> {
        let status = StatusCode::from_u16(status).unwrap();
        client("http://127.0.0.1:1").unwrap().judge(status, body.is_none(), body)
    }

    #[test]
    fn answers_are_told_apart() {
        let problem = || Some(serde_json::json!({ "title": "no such sale", "detail": "s9" }));
        assert_eq!(judged(200, None).unwrap(), Json::Null);
        let cases = [
            (401, problem(), Exit::Configuration),
            (403, None, Exit::Configuration),
            (404, problem(), Exit::Negative),
            (409, problem(), Exit::Negative),
            (404, Some(serde_json::json!({ "title": "x", "code": "not-found" })), Exit::Unclear),
            (404, None, Exit::Unclear),
            (503, problem(), Exit::Unclear),
            (502, None, Exit::Unclear),
        ];
        for (status, body, exit) in cases {
            assert_eq!(judged(status, body).unwrap_err().into_failure().exit, exit, "{status}");
        }
        let text = judged(404, problem()).unwrap_err().into_failure().to_string();
        assert!(text.contains("no such sale: s9\n    -> "), "{text}");
    }

    #[test]
    fn all_addresses_are_reached_by_loopback() {
        let reach = |bind: &str| reachable(bind.parse().unwrap()).unwrap().to_string();
        assert_eq!(reach("0.0.0.0:9090"), "127.0.0.1:9090");
        assert_eq!(reach("[::]:9090"), "[::1]:9090");
        assert_eq!(reach("10.0.0.7:9090"), "10.0.0.7:9090");
        assert!(reachable("127.0.0.1:0".parse().unwrap()).is_err());
    }

    #[test]
    fn addresses_that_cannot_work_are_named() {
        for url in ["localhost:9090", "https://x", "://"] {
            let text = client(url).unwrap_err().to_string();
            assert!(text.contains(url), "{text}");
        }
    }

    #[tokio::test]
    async fn a_closed_port_is_no_server_and_a_silent_one_is_unknown() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let silent = client(&url).unwrap();
        let answer = silent.get(&["sales"], Some(Duration::from_millis(50))).await;
        assert!(matches!(answer, Err(Error::Unknown { .. })), "{answer:?}");

        drop(listener);
        let answer = client(&url).unwrap().get(&["sales"], None).await;
        assert!(matches!(answer, Err(Error::NoServer { .. })), "{answer:?}");
        assert!(!client(&url).unwrap().is_alive().await);
    }

    /// Answers one request with `answer` and returns what was asked.
    fn serve_once(answer: &'static str) -> (String, std::thread::JoinHandle<String>) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut asked = String::new();
            while !asked.contains("{}") {
                let mut bytes = [0; 1024];
                let read = stream.read(&mut bytes).unwrap();
                asked.push_str(std::str::from_utf8(&bytes[..read]).unwrap());
            }
            stream.write_all(answer.as_bytes()).unwrap();
            asked
        });
        (url, server)
    }

    #[tokio::test]
    async fn a_request_carries_token_escaped_path_and_body() {
        let (url, server) =
            serve_once("HTTP/1.1 200 OK\r\ncontent-length: 11\r\n\r\n{\"ok\":true}");
        let mut settings = Settings::for_test("sqlite://./x.db");
        settings.admin.token = "s3cret".into();
        let args = ServerArgs { internal_url: Some(url) };
        let client = AdminClient::new(&args, &settings).unwrap();
        let answer = client.post(&["sales", "a b/c", "open"], &serde_json::json!({}), None).await;
        assert_eq!(answer.unwrap()["ok"], true);
        let asked = server.join().unwrap();
        assert!(asked.starts_with("POST /admin/v1/sales/a%20b%2Fc/open HTTP/1.1\r\n"), "{asked}");
        assert!(asked.contains("authorization: Bearer s3cret\r\n"), "{asked}");

        let dots = client.get(&["sales", ".."], None).await;
        assert!(matches!(dots, Err(Error::Address(_))), "{dots:?}");
    }
}
