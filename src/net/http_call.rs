//! Single HTTP/1.1 calls, each on a connection of its own: the commands' calls of the admin API,
//! and the demo provider's webhooks.

use std::error::Error;
use std::pin::pin;
use std::time::Duration;

use futures_util::future::{Either, select};
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::header::{CONNECTION, HOST, HeaderValue};
use hyper::http::request::Builder;
use hyper::{Method, Request, Response, Uri};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use url::{Position, Url};

use super::{MaybeTls, Trust};

/// Why a call has no answer.
#[derive(Debug, thiserror::Error)]
pub enum HttpCallError {
    /// Nothing was sent.
    #[error("{0}")]
    NotConnected(String),
    /// The request may have been carried out.
    #[error("{0}")]
    Unanswered(String),
}

/// Makes calls. Ignores proxies of the environment and follows no redirects.
#[derive(Debug, Clone)]
pub struct HttpCaller {
    connect_timeout: Duration,
    /// For `https`.
    trust: Option<Trust>,
}

impl HttpCaller {
    pub fn new(connect_timeout: Duration, trust: Option<Trust>) -> Self {
        Self { connect_timeout, trust }
    }

    /// A call of a URL, without headers of its own.
    pub fn request(method: Method, url: &Url) -> Builder {
        let authority = &url[Position::BeforeHost..Position::AfterPort];
        let target = &url[Position::BeforePath..Position::AfterQuery];
        let target = target.parse().unwrap_or_else(|_| Uri::from_static("/"));
        let builder = Request::builder().method(method).uri(target);
        builder.header(HOST, authority).header(CONNECTION, HeaderValue::from_static("close"))
    }

    /// Calls the server in this URL; without `within` it waits for ever.
    pub async fn call(
        &self,
        url: &Url,
        request: Builder,
        body: Bytes,
        within: Option<Duration>,
    ) -> Result<Response<Bytes>, HttpCallError> {
        let calling = self.exchange(url, request, body);
        let Some(limit) = within else { return calling.await };
        let timed_out =
            |_elapsed| HttpCallError::Unanswered(format!("no answer within {} s", limit.as_secs()));
        tokio::time::timeout(limit, calling).await.map_err(timed_out)?
    }

    async fn exchange(
        &self,
        url: &Url,
        request: Builder,
        body: Bytes,
    ) -> Result<Response<Bytes>, HttpCallError> {
        let not_connected =
            |error: &(dyn Error + 'static)| HttpCallError::NotConnected(innermost(error));
        let unanswered = |error: hyper::Error| {
            let no_http = "the answer is no HTTP; TLS needs https://";
            let reason = if error.is_parse() { no_http.to_owned() } else { innermost(&error) };
            HttpCallError::Unanswered(reason)
        };
        let request = request.body(Full::new(body)).map_err(|error| not_connected(&error))?;
        let connected = tokio::time::timeout(self.connect_timeout, self.connect(url)).await;
        let connected = connected
            .map_err(|_elapsed| HttpCallError::NotConnected("no connection in time".to_owned()))?;
        let stream = connected.map_err(|error| not_connected(&error))?;
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(unanswered)?;
        let answer = pin!(async {
            let answer = sender.send_request(request).await.map_err(unanswered)?;
            let (head, body) = answer.into_parts();
            let body = body.collect().await.map_err(unanswered)?.to_bytes();
            Ok(Response::from_parts(head, body))
        });
        match select(answer, pin!(connection)).await {
            Either::Left((answer, _connection)) => answer,
            // Its error is the answer's, too.
            Either::Right((_ended, answer)) => answer.await,
        }
    }

    async fn connect(&self, url: &Url) -> std::io::Result<MaybeTls<TcpStream>> {
        let (host, port) = (url.host_str().unwrap_or_default(), url.port_or_known_default());
        let name = host.trim_start_matches('[').trim_end_matches(']');
        let connection = TcpStream::connect((name, port.unwrap_or_default())).await?;
        match &self.trust {
            Some(trust) if url.scheme() == "https" => trust.secure(host, connection).await,
            _ => Ok(MaybeTls::Left(connection)),
        }
    }
}

fn innermost(error: &(dyn Error + 'static)) -> String {
    let mut cause = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}
