//! Pages that are embedded in the program, and how they are served.
//!
//! The files of a folder of `web/` are served below one folder that is named by the hash of all of
//! them: relative imports stay inside one version, so that a roll-out never mixes modules. The
//! texts are compressed once.

use std::io::Write;

use actix_web::http::header::{
    ACCEPT_ENCODING, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_TYPE, ETAG, HeaderName, HeaderValue,
    IF_NONE_MATCH, VARY,
};
use actix_web::web::Bytes;
use actix_web::{HttpRequest, HttpResponse, HttpResponseBuilder};
use flate2::Compression;
use flate2::write::GzEncoder;
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use super::problem::{Handled, ProblemCode};

/// The headers of every page: scripts, styles and connections of this origin only, no markup from
/// text, no frames. The only trusted type is the address of the storefront's worker.
pub const PAGE_HEADERS: [(&str, &str); 5] = [
    (
        "content-security-policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
         connect-src 'self'; worker-src 'self'; form-action 'self'; base-uri 'none'; \
         frame-ancestors 'none'; require-trusted-types-for 'script'; \
         trusted-types floodgate-worker",
    ),
    ("referrer-policy", "no-referrer"),
    ("x-content-type-options", "nosniff"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
];

pub const HTML: &str = "text/html; charset=utf-8";
pub const SCRIPT: &str = "text/javascript; charset=utf-8";
pub const STYLE: &str = "text/css; charset=utf-8";
pub const PICTURE: &str = "image/svg+xml";
pub const JSON: &str = "application/json";
pub const REVALIDATE: HeaderValue = HeaderValue::from_static("no-cache");
const FOR_EVER: HeaderValue = HeaderValue::from_static("public, max-age=31536000, immutable");

/// A file of a page.
#[derive(Debug, Clone, Copy)]
pub struct Asset {
    pub name: &'static str,
    pub kind: &'static str,
    pub text: &'static [u8],
}

/// Embeds files of a folder, each with its media type.
macro_rules! assets {
    ($folder:literal: $($name:literal $kind:expr),+ $(,)?) => {
        [$($crate::http::middleware::embedded::Asset {
            name: $name,
            kind: $kind,
            text: include_bytes!(concat!("../../../web/", $folder, "/", $name)),
        }),+]
    };
}
pub(in crate::http) use assets;

/// The assets of a page, under their version.
#[derive(Debug)]
pub struct WebFolder {
    version: String,
    texts: Vec<(&'static str, Text)>,
}

impl WebFolder {
    /// `index` is the page before its placeholders are filled.
    pub fn new(index: &str, assets: &[Asset]) -> Self {
        let mut hasher = Xxh3::new();
        hasher.update(index.as_bytes());
        for asset in assets {
            hasher.update(asset.name.as_bytes());
            hasher.update(asset.text);
        }
        let text =
            |asset: &Asset| (asset.name, Text::new(asset.kind, Bytes::from_static(asset.text)));
        Self {
            version: format!("{:016x}", hasher.digest()),
            texts: assets.iter().map(text).collect(),
        }
    }

    /// The folder of the assets, relative to the page.
    pub fn path(&self) -> String {
        format!("assets/{}", self.version)
    }

    /// The file of a path of version and name, if the version is this one.
    ///
    /// # Errors
    /// `not-found`.
    pub fn serve(&self, request: &HttpRequest, path: &(String, String)) -> Handled {
        let (version, file) = path;
        let found = self.texts.iter().find(|(name, _)| name == file && *version == self.version);
        let (_, text) = found.ok_or(ProblemCode::NotFound)?;
        Ok(text.respond(request, FOR_EVER))
    }

    /// Compressed bytes of all files together.
    #[cfg(test)]
    pub fn gzip_bytes(&self) -> usize {
        self.texts.iter().map(|(_, text)| text.gzip_bytes()).sum()
    }
}

/// A text with its compressed form.
#[derive(Debug)]
pub struct Text {
    kind: &'static str,
    plain: Bytes,
    gzip: Bytes,
    tag: String,
}

impl Text {
    pub fn new(kind: &'static str, plain: impl Into<Bytes>) -> Self {
        let plain = plain.into();
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        // Writing into memory does not fail; without a compressed form the plain one is sent.
        let written = encoder.write_all(&plain).and_then(|()| encoder.finish());
        Self {
            kind,
            gzip: written.map(Bytes::from).unwrap_or_default(),
            tag: format!("W/\"{:016x}\"", xxh3_64(&plain)),
            plain,
        }
    }

    /// The text in a form that the client accepts, or 304 if the client has it.
    pub fn respond(&self, request: &HttpRequest, cache: HeaderValue) -> HttpResponse {
        let (mut answer, is_known) = tagged(request, &self.tag, cache);
        answer.insert_header((VARY, "accept-encoding"));
        for header in PAGE_HEADERS {
            answer.insert_header(header);
        }
        if is_known {
            return answer.finish();
        }
        answer.insert_header((CONTENT_TYPE, self.kind));
        if !self.gzip.is_empty() && accepts_gzip(sent(request, ACCEPT_ENCODING)) {
            answer.insert_header((CONTENT_ENCODING, "gzip"));
            return answer.body(self.gzip.clone());
        }
        answer.body(self.plain.clone())
    }

    /// Bytes of the compressed form.
    #[cfg(test)]
    pub fn gzip_bytes(&self) -> usize {
        self.gzip.len()
    }
}

/// The entries of a header that is a list.
fn sent(request: &HttpRequest, name: HeaderName) -> impl Iterator<Item = &str> {
    let values = request.headers().get_all(name).filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',').map(str::trim))
}

/// 304 if `If-None-Match` has the tag, or is `*`, else 200; and whether it is 304. Weak tags equal
/// strong ones (RFC 9110, 13.1.2).
pub fn tagged(request: &HttpRequest, tag: &str, cache: HeaderValue) -> (HttpResponseBuilder, bool) {
    let mut known = sent(request, IF_NONE_MATCH);
    let is_known = known.any(|known| known == "*" || opaque(known) == opaque(tag));
    let mut answer = if is_known { HttpResponse::NotModified() } else { HttpResponse::Ok() };
    answer.insert_header((CACHE_CONTROL, cache)).insert_header((ETAG, tag));
    (answer, is_known)
}

fn opaque(tag: &str) -> &str {
    tag.strip_prefix("W/").unwrap_or(tag)
}

/// Whether the entries of `Accept-Encoding` allow gzip: the one of this name decides, `*` only
/// without one (RFC 9110, 12.5.3).
fn accepts_gzip<'e>(entries: impl Iterator<Item = &'e str>) -> bool {
    let (mut named, mut other) = (None, None);
    for entry in entries {
        let (name, quality) = entry.split_once(';').unwrap_or((entry, "q=1"));
        let quality = quality.trim().strip_prefix("q=").and_then(|text| text.parse::<f32>().ok());
        let is_allowed = quality.is_some_and(|quality| quality > 0.0);
        match name.trim() {
            "gzip" => named = Some(is_allowed),
            "*" => other = Some(is_allowed),
            _ => {}
        }
    }
    named.or(other).unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_encoding_is_used_only_where_the_client_accepts_it() {
        for accepted in ["gzip", "gzip;q=0.5", "*", "gzip; q=1", "br, gzip", "*;q=0, gzip"] {
            assert!(accepts_gzip(accepted.split(',')), "{accepted}");
        }
        for refused in ["", "br", "gzip;q=0", "identity", "x-gzip", "gzip;q=0, *", "*, gzip;q=0"] {
            assert!(!accepts_gzip(refused.split(',')), "{refused}");
        }
    }
}
