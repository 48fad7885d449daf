//! Pages that are embedded in the program, and how they are served.
//!
//! The files of a folder of `web/` are served below one folder that is named by the hash of all of
//! them: relative imports stay inside one version, so that a roll-out never mixes modules. The
//! texts are compressed once.

use std::io::Write;

use actix_web::http::header::{
    AcceptEncoding, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_TYPE, ETag, Encoding, EntityTag,
    Header, HeaderValue, IfNoneMatch, VARY,
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
    hash: u64,
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
            hash: xxh3_64(&plain),
            plain,
        }
    }

    /// The text in a form that the client accepts, or 304 if the client has it.
    pub fn respond(&self, request: &HttpRequest, cache: HeaderValue) -> HttpResponse {
        let (mut answer, is_known) = tagged(request, self.hash, cache);
        answer.insert_header((VARY, "accept-encoding"));
        for header in PAGE_HEADERS {
            answer.insert_header(header);
        }
        if is_known {
            return answer.finish();
        }
        answer.insert_header((CONTENT_TYPE, self.kind));
        if !self.gzip.is_empty() && accepts_gzip(request) {
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

/// 304 if `If-None-Match` has the tag of this hash, or is `*`, else 200; and whether it is 304.
pub fn tagged(request: &HttpRequest, hash: u64, cache: HeaderValue) -> (HttpResponseBuilder, bool) {
    let tag = EntityTag::new_weak(format!("{hash:016x}"));
    let is_known = match IfNoneMatch::parse(request) {
        Ok(IfNoneMatch::Any) => true,
        Ok(IfNoneMatch::Items(known)) => known.iter().any(|known| known.weak_eq(&tag)),
        Err(_) => false,
    };
    let mut answer = if is_known { HttpResponse::NotModified() } else { HttpResponse::Ok() };
    answer.insert_header((CACHE_CONTROL, cache)).insert_header(ETag(tag));
    (answer, is_known)
}

fn accepts_gzip(request: &HttpRequest) -> bool {
    let forms = [Encoding::gzip(), Encoding::identity()];
    let accepted = AcceptEncoding::parse(request).ok();
    accepted.and_then(|it| it.negotiate(forms.iter())) == Some(Encoding::gzip())
}

#[cfg(test)]
mod tests {
    use actix_web::http::header::ACCEPT_ENCODING;
    use actix_web::test::TestRequest;

    use super::*;

    #[test]
    fn an_encoding_is_used_only_where_the_client_accepts_it() {
        let accepts = |text| {
            accepts_gzip(
                &TestRequest::get().insert_header((ACCEPT_ENCODING, text)).to_http_request(),
            )
        };
        for accepted in ["gzip", "gzip;q=0.5", "gzip; q=1", "br, gzip", "*;q=0, gzip"] {
            assert!(accepts(accepted), "{accepted}");
        }
        for refused in ["", "br", "gzip;q=0", "identity", "*", "gzip;q=0, *", "*, gzip;q=0"] {
            assert!(!accepts(refused), "{refused}");
        }
    }
}
