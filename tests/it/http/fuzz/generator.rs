//! Random requests: sound HTTP with any content, and broken HTTP.

use fastrand::Rng;
use floodgate::http::{INTERNAL, PUBLIC, RouteEntry};

/// What one connection sends at once, and what is to come back.
#[derive(Debug)]
pub struct Exchange {
    /// Sent one after the other: a server must not depend on where the network cuts.
    pub parts: Vec<Vec<u8>>,
    /// Sound requests, in order; empty: the bytes are broken, and any refusal or close will do.
    pub requests: Vec<SoundRequest>,
    /// Nothing follows on the connection.
    pub is_last: bool,
    pub is_public: bool,
}

/// What the answer to a sound request depends on.
#[derive(Debug, Clone)]
pub struct SoundRequest {
    pub is_head: bool,
    /// The server may close the connection before it has read such a body, which resets it.
    pub may_reset: bool,
}

/// Real ids, so that some requests get beyond the first check.
#[derive(Debug, Clone)]
pub struct Known {
    pub request_ids: Vec<String>,
}

const METHODS: [&str; 10] =
    ["GET", "GET", "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "BREW"];

const VALUES: [&str; 26] = [
    "spring",
    "fuzz-1",
    "fuzz-2",
    "sku",
    "none",
    "..",
    ".",
    "%2e%2e%2fetc%2fpasswd",
    "%00",
    "%ff%fe",
    "%E7%A7%92%E6%9D%80",
    "%",
    "%zz",
    "0",
    "-1",
    "1",
    "42",
    "9223372036854775807",
    "18446744073709551616",
    "1-1-AAAAAAAAAAAAAAAA",
    "sold-out",
    "index.html",
    "swagger-ui.css",
    "a+b=c;d",
    "%7B%22a%22%3A1%7D",
    "${jndi:x}",
];

const QUERIES: [&str; 16] = [
    "limit=1",
    "limit=0",
    "limit=501",
    "limit=-1",
    "limit=99999999999999999999",
    "cursor=x",
    "cursor=1",
    "cursor=%00",
    "state=open",
    "state=moon",
    "after=0",
    "after=-1",
    "wait_ms=10",
    "wait_ms=99999999",
    "verbose",
    "since=9&since=9",
];

const HEADERS: [&str; 30] = [
    "X-Buyer-Id: 1",
    "X-Buyer-Id: 2",
    "X-Buyer-Id: 3",
    "X-Buyer-Id: 0",
    "X-Buyer-Id: -1",
    "X-Buyer-Id: 9223372036854775808",
    "X-Buyer-Id: 1\r\nX-Buyer-Id: 2",
    "Content-Type: application/json",
    "Content-Type: application/json",
    "Content-Type: application/json; charset=utf-8",
    "Content-Type: text/plain",
    "Content-Type: application/x-www-form-urlencoded",
    "Authorization: Bearer x",
    "Authorization: Basic eDp5",
    "Accept: */*",
    "Accept-Encoding: gzip, br;q=0.1",
    "Content-Encoding: gzip",
    "If-None-Match: *",
    "If-None-Match: W/\"0\", \"1\"",
    "Last-Event-ID: success",
    "Idempotency-Key: 1-1-AAAAAAAAAAAAAAAA",
    "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    "traceparent: 00-00000000000000000000000000000000-0000000000000000-00",
    "X-Forwarded-For: 203.0.113.9, 198.51.100.1",
    "Forwarded: for=\"[2001:db8::1]\"",
    "Origin: https://evil.example",
    "Sec-Fetch-Site: cross-site",
    "Expect: 100-continue",
    "webhook-id: x\r\nwebhook-timestamp: 1\r\nwebhook-signature: v1,AAAA",
    "Range: bytes=0-5",
];

/// Offers of another protocol: WebSocket is refused, the others are ignored.
const UPGRADES: [&str; 4] = [
    "Connection: Upgrade\r\nUpgrade: websocket\r\n",
    "Upgrade: h2c, websocket\r\n",
    "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n",
    "Connection: Upgrade\r\nUpgrade: TLS/1.2, HTTP/2.0\r\n",
];

const BODIES: [&str; 24] = [
    "",
    "{}",
    "[]",
    "null",
    "{",
    "\"",
    "{\"sku_id\":\"sku\",\"quantity\":1}",
    "{\"sku_id\":\"sku\",\"quantity\":1,\"request_id\":\"1-1-AAAAAAAAAAAAAAAA\"}",
    "{\"sku_id\":\"sku\",\"quantity\":0}",
    "{\"sku_id\":\"sku\",\"quantity\":4294967296}",
    "{\"sku_id\":\"sku\",\"quantity\":1e400}",
    "{\"sku_id\":\"\\ud800\",\"quantity\":1}",
    "{\"sku_id\":\"sku\"}",
    "{\"kind\":\"work\"}",
    "{\"challenge_id\":\"x\",\"answer\":7}",
    "{\"repair\":true}",
    "{\"dry_run\":true,\"sale_id\":\"spring\"}",
    "{\"reason\":\"a reason\"}",
    "{\"title\":\"Spring\"}",
    "{\"delta\":1,\"change_id\":\"c\"}",
    "{\"delta\":-2147483648,\"change_id\":\"d\"}",
    "{\"note\":\"秒杀\"}",
    "action=pay",
    "{\"sale_id\":\"fuzz-1\",\"title\":\"x\",\"starts_at\":\"2020-01-01T00:00:00Z\",\
     \"ends_at\":\"2099-01-01T00:00:00Z\",\"skus\":[{\"sku_id\":\"sku\",\"title\":\"x\",\
     \"price\":1,\"initial_stock\":3,\"policy\":{\"kind\":\"unlimited\"}}]}",
];

/// Whole requests that are not HTTP, or ambiguous.
const BROKEN: [&str; 34] = [
    "\r\n\r\n\r\n",
    "GET\r\n\r\n",
    "GET /livez\r\n\r\n",
    "GET /livez HTTP/9.9\r\nHost: a\r\n\r\n",
    "GET /livez http/1.1\r\nHost: a\r\n\r\n",
    "GET  /livez  HTTP/1.1\r\nHost: a\r\n\r\n",
    "GET /li\0vez HTTP/1.1\r\nHost: a\r\n\r\n",
    "GET /秒杀 HTTP/1.1\r\nHost: a\r\n\r\n",
    "GET /livez HTTP/1.1\nHost: a\n\n",
    "GET /livez HTTP/1.1\r\n\r\n",
    "GET /livez HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    "GET /livez HTTP/1.1\r\nHost : a\r\n\r\n",
    "GET /livez HTTP/1.1\r\nHost: a\r\n folded\r\n\r\n",
    "GET /livez HTTP/1.1\r\nHost: a\r\nno colon\r\n\r\n",
    "GET /livez HTTP/1.1\r\nHost: a\r\n: no name\r\n\r\n",
    "GET /livez HTTP/1.1\r\nHost: a\r\nX: \u{1}\r\n\r\n",
    "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "\u{16}\u{3}\u{1}\u{2}\0\u{1}\0\u{1}\u{fc}\u{3}\u{3}",
    "CONNECT a:443 HTTP/1.1\r\nHost: a\r\n\r\n",
    "GET http://[::1/livez HTTP/1.1\r\nHost: a\r\n\r\n",
    "POST /v1/buy/spring HTTP/1.1\r\n\
     Host: a\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
    "POST /v1/buy/spring HTTP/1.1\r\nHost: a\r\nContent-Length: +5\r\n\r\nhello",
    "POST /v1/buy/spring HTTP/1.1\r\nHost: a\r\nContent-Length: -5\r\n\r\nhello",
    "POST /v1/buy/spring HTTP/1.1\r\nHost: a\r\nContent-Length: 0x5\r\n\r\nhello",
    "POST /v1/buy/spring HTTP/1.1\r\n\
     Host: a\r\nContent-Length: 99999999999999999999\r\n\r\nhello",
    "POST /v1/buy/spring HTTP/1.1\r\nHost: a\r\nContent-Length: 500\r\n\r\nhello",
    "POST /v1/buy/spring HTTP/1.1\r\n\
     Host: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "POST /v1/buy/spring HTTP/1.1\r\n\
     Host: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nhello\r\n",
    "POST /v1/buy/spring HTTP/1.1\r\n\
     Host: a\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n",
    "POST /v1/buy/spring HTTP/1.1\r\n\
     Host: a\r\nTransfer-Encoding: chunked\r\n\r\n5\nhello\n0\n\n",
    "POST /v1/buy/spring HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel",
    "POST /v1/buy/spring HTTP/1.1\r\n\
     Host: a\r\nTransfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
    "POST /v1/buy/spring HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: \u{b}chunked\r\n\r\n0\r\n\r\n",
    "POST /v1/buy/spring HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
];

/// The next exchange: three of four are sound.
pub fn exchange(rng: &mut Rng, known: &Known) -> Exchange {
    let is_public = rng.bool();
    if rng.u8(..4) == 0 {
        let bytes = broken(rng);
        let parts = cut(rng, bytes);
        return Exchange { parts, requests: Vec::new(), is_last: true, is_public };
    }
    let (mut bytes, mut requests, mut is_last) = (Vec::new(), Vec::new(), false);
    let pipelined = if rng.u8(..8) == 0 { rng.usize(2..5) } else { 1 };
    while requests.len() < pipelined && !is_last {
        let sound = sound(rng, known, is_public);
        // actix-http 3.20 answers pipelined requests by the method of the last one that it has
        // read: a HEAD among others gets a body, or takes that of another.
        if pipelined > 1 && sound.request.is_head {
            continue;
        }
        bytes.extend(sound.bytes);
        requests.push(sound.request);
        is_last = sound.is_last;
    }
    Exchange { parts: cut(rng, bytes), requests, is_last, is_public }
}

struct Sound {
    bytes: Vec<u8>,
    request: SoundRequest,
    is_last: bool,
}

fn sound(rng: &mut Rng, known: &Known, is_public: bool) -> Sound {
    let table = if is_public { PUBLIC } else { INTERNAL };
    let entry = &table[rng.usize(..table.len())];
    let fits = rng.u8(..3) > 0;
    let method = if fits { entry.method.as_str() } else { *pick(rng, &METHODS) };
    let target = target(rng, known, entry);
    let is_old = rng.u8(..32) == 0;
    let version = if is_old { "HTTP/1.0" } else { "HTTP/1.1" };
    let mut head = format!("{method} {target} {version}\r\nHost: 127.0.0.1\r\n");
    for _ in 0..rng.u8(..6) {
        let header: &&str = pick(rng, &HEADERS);
        head.push_str(header);
        head.push_str("\r\n");
    }
    if fits && method != "GET" {
        head.push_str("X-Buyer-Id: 7\r\nContent-Type: application/json\r\n");
    }
    if rng.u8(..32) == 0 {
        head.push_str(&format!("X-Long: {}\r\n", "x".repeat(rng.usize(..8_000))));
    }
    let closes = rng.u8(..16) == 0;
    if closes {
        head.push_str("Connection: close\r\n");
    }
    let offers = rng.u8(..16) == 0;
    let offer = if offers { *pick(rng, &UPGRADES) } else { "" };
    head.push_str(offer);
    let has_body = !matches!(method, "GET" | "HEAD") || rng.u8(..8) == 0;
    let body = if has_body { body(rng, known) } else { Vec::new() };
    // A switch to WebSocket is refused before the body.
    let is_refused = offer.contains("websocket");
    // actix-http closes a connection that was to be switched.
    let is_switched = offer.starts_with("Connection: Upgrade");
    let may_reset = body.len() > 16 << 10 || is_refused && !body.is_empty();
    let mut bytes = head.into_bytes();
    if has_body && !is_old && rng.u8(..3) == 0 {
        bytes.extend(b"Transfer-Encoding: chunked\r\n\r\n");
        for chunk in body.chunks(rng.usize(1..2_000)) {
            bytes.extend(format!("{:x}\r\n", chunk.len()).into_bytes());
            bytes.extend(chunk);
            bytes.extend(b"\r\n");
        }
        bytes.extend(b"0\r\n\r\n");
    } else {
        if has_body {
            bytes.extend(format!("Content-Length: {}\r\n", body.len()).into_bytes());
        }
        bytes.extend(b"\r\n");
        bytes.extend(&body);
    }
    let request = SoundRequest { is_head: method == "HEAD", may_reset };
    Sound { bytes, request, is_last: closes || is_old || may_reset || is_refused || is_switched }
}

/// The path of a route with any values for its parameters, and any query.
fn target(rng: &mut Rng, known: &Known, entry: &RouteEntry) -> String {
    let mut path = String::new();
    let mut rest = entry.path;
    while let Some((before, after)) = rest.split_once('{') {
        let (_, after) = after.split_once('}').unwrap_or_default();
        path.push_str(before);
        path.push_str(&value(rng, known));
        rest = after;
    }
    path.push_str(rest);
    // Else the sale that sells is soon over.
    path = path.replace("spring/close", "fuzz-1/close");
    if rng.u8(..32) == 0 {
        path.push_str("/none");
    }
    if rng.u8(..3) == 0 {
        let queries: Vec<_> = (0..rng.usize(1..3)).map(|_| *pick(rng, &QUERIES)).collect();
        path = format!("{path}?{}", queries.join("&"));
    }
    path
}

fn value(rng: &mut Rng, known: &Known) -> String {
    match rng.u8(..8) {
        0 | 1 if !known.request_ids.is_empty() => pick(rng, &known.request_ids).clone(),
        2 => "a".repeat(rng.usize(..600)),
        3 => (0..rng.usize(1..20)).map(|_| rng.alphanumeric()).collect(),
        4 | 5 => "spring".to_owned(),
        _ => (*pick(rng, &VALUES)).to_owned(),
    }
}

fn body(rng: &mut Rng, known: &Known) -> Vec<u8> {
    match rng.u8(..16) {
        5 | 6 if !known.request_ids.is_empty() => {
            let (id, quantity) = (pick(rng, &known.request_ids), rng.u8(..4));
            let body =
                format!("{{\"sku_id\":\"sku\",\"quantity\":{quantity},\"request_id\":\"{id}\"}}");
            body.into_bytes()
        }
        0 => (0..rng.usize(..300)).map(|_| rng.u8(..)).collect(),
        1 => "[".repeat(rng.usize(..4_000)).into_bytes(),
        2 => vec![b' '; rng.usize(..12_000)],
        3 if rng.u8(..8) == 0 => vec![b'x'; rng.usize(..300_000)],
        4 => {
            let text = pick(rng, &BODIES);
            text.bytes().take(rng.usize(..=text.len())).collect()
        }
        _ => pick(rng, &BODIES).as_bytes().to_vec(),
    }
}

fn broken(rng: &mut Rng) -> Vec<u8> {
    match rng.u8(..8) {
        0 => (0..rng.usize(1..600)).map(|_| rng.u8(..)).collect(),
        1 => {
            let headers = "X: y\r\n".repeat(rng.usize(90..400));
            format!("GET /livez HTTP/1.1\r\nHost: a\r\n{headers}\r\n").into_bytes()
        }
        2 => {
            let long = "x".repeat(rng.usize(60_000..200_000));
            format!("GET /livez?{long} HTTP/1.1\r\nHost: a\r\n\r\n").into_bytes()
        }
        3 => {
            // Part of a request, or with one byte of it changed.
            let text = "POST /v1/buy/spring HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Buyer-Id: 1\r\n\
                        Content-Type: application/json\r\nContent-Length: 32\r\n\r\n\
                        {\"sku_id\":\"sku\",\"quantity\":1}\r";
            let mut bytes = text.as_bytes().to_vec();
            let at = rng.usize(..bytes.len());
            bytes[at] = rng.u8(..);
            bytes.truncate(rng.usize(1..=bytes.len()));
            bytes
        }
        _ => pick(rng, &BROKEN).as_bytes().to_vec(),
    }
}

/// Most are sent at once, some in up to four parts.
fn cut(rng: &mut Rng, bytes: Vec<u8>) -> Vec<Vec<u8>> {
    if rng.u8(..6) > 0 || bytes.len() < 4 {
        return vec![bytes];
    }
    let mut ends: Vec<usize> = (0..rng.usize(1..4)).map(|_| rng.usize(1..bytes.len())).collect();
    ends.push(bytes.len());
    ends.sort_unstable();
    ends.dedup();
    let mut start = 0;
    let part = |end: usize| {
        let part = bytes[start..end].to_vec();
        start = end;
        part
    };
    ends.into_iter().map(part).collect()
}

fn pick<'l, T>(rng: &mut Rng, list: &'l [T]) -> &'l T {
    &list[rng.usize(..list.len())]
}
