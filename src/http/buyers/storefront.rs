//! The storefront: its page, its assets and the pages of the problem codes, embedded in the
//! program.
//!
//! The files of `web/store/` are served below one folder that is named by the hash of all of them:
//! relative imports stay inside one version, so that a roll-out never mixes modules. The texts are
//! compressed once.

use std::io::Write;
use std::sync::LazyLock;

use actix_web::http::header::{
    ACCEPT_ENCODING, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_TYPE, ETAG, HeaderName, HeaderValue,
    IF_NONE_MATCH, VARY,
};
use actix_web::web::Bytes;
use actix_web::{HttpRequest, HttpResponse, web};
use flate2::Compression;
use flate2::write::GzEncoder;
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use crate::config::AuthMode;
use crate::http::middleware::problem::{Handled, ProblemCode};
use crate::http::state::State;

/// The headers of every page: scripts, styles and connections of this origin only, no markup from
/// text, no frames.
pub const PAGE_HEADERS: [(&str, &str); 5] = [
    (
        "content-security-policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
         connect-src 'self'; worker-src 'self'; form-action 'self'; base-uri 'none'; \
         frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
    ),
    ("referrer-policy", "no-referrer"),
    ("x-content-type-options", "nosniff"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
];

const HTML: &str = "text/html; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const REVALIDATE: HeaderValue = HeaderValue::from_static("no-cache");
const FOR_EVER: HeaderValue = HeaderValue::from_static("public, max-age=31536000, immutable");

/// The page before its placeholders are filled.
const INDEX: &str = include_str!("../../../web/store/index.html");

macro_rules! assets {
    ($($name:literal $kind:expr),+ $(,)?) => {
        [$(Asset {
            name: $name,
            kind: $kind,
            text: include_bytes!(concat!("../../../web/store/", $name)),
        }),+]
    };
}

/// A file of the storefront.
#[derive(Debug, Clone, Copy)]
pub struct Asset {
    pub name: &'static str,
    kind: &'static str,
    pub text: &'static [u8],
}

/// Every file of `web/store/` except the page.
pub const ASSETS: &[Asset] = &assets![
    "store.css" "text/css; charset=utf-8",
    "icon.svg" "image/svg+xml",
    "main.js" SCRIPT,
    "api.js" SCRIPT,
    "button.js" SCRIPT,
    "purchase.js" SCRIPT,
    "records.js" SCRIPT,
    "sale.js" SCRIPT,
    "sku.js" SCRIPT,
    "challenge.js" SCRIPT,
    "orders.js" SCRIPT,
    "dom.js" SCRIPT,
    "words.js" SCRIPT,
    "en.js" SCRIPT,
    "zh.js" SCRIPT,
];

/// A text with its compressed form.
#[derive(Debug)]
struct Text {
    kind: &'static str,
    plain: Bytes,
    gzip: Bytes,
    tag: HeaderValue,
}

impl Text {
    fn new(kind: &'static str, plain: impl Into<Bytes>) -> Self {
        let plain = plain.into();
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        // Writing into memory does not fail; without a compressed form the plain one is sent.
        let written = encoder.write_all(&plain).and_then(|()| encoder.finish());
        let tag = HeaderValue::try_from(format!("W/\"{:016x}\"", xxh3_64(&plain)));
        Self {
            kind,
            gzip: written.map(Bytes::from).unwrap_or_default(),
            tag: tag.unwrap_or(HeaderValue::from_static("\"\"")),
            plain,
        }
    }

    /// The text in a form that the client accepts, or 304 if the client has it.
    fn respond(&self, request: &HttpRequest, cache: HeaderValue) -> HttpResponse {
        let sent = |name| {
            let values = request.headers().get_all(name).filter_map(|value| value.to_str().ok());
            values.flat_map(|value| value.split(',').map(str::trim))
        };
        let is_known = sent(IF_NONE_MATCH).any(|tag| self.tag == tag);
        let mut answer = if is_known { HttpResponse::NotModified() } else { HttpResponse::Ok() };
        answer.insert_header((CACHE_CONTROL, cache)).insert_header((ETAG, self.tag.clone()));
        answer.insert_header((VARY, HeaderValue::from_static("accept-encoding")));
        for (name, value) in PAGE_HEADERS {
            let name = HeaderName::from_static(name);
            answer.insert_header((name, HeaderValue::from_static(value)));
        }
        if is_known {
            return answer.finish();
        }
        answer.insert_header((CONTENT_TYPE, HeaderValue::from_static(self.kind)));
        if !self.gzip.is_empty() && sent(ACCEPT_ENCODING).any(accepts_gzip) {
            answer.insert_header((CONTENT_ENCODING, HeaderValue::from_static("gzip")));
            return answer.body(self.gzip.clone());
        }
        answer.body(self.plain.clone())
    }
}

/// Whether one entry of `Accept-Encoding` allows gzip.
fn accepts_gzip(entry: &str) -> bool {
    let (name, quality) = entry.split_once(';').unwrap_or((entry, "q=1"));
    let quality = quality.trim().strip_prefix("q=").and_then(|number| number.parse::<f32>().ok());
    ["gzip", "*"].contains(&name.trim()) && quality.is_some_and(|quality| quality > 0.0)
}

/// The hash of the page and all assets: the name of their folder.
static VERSION: LazyLock<String> = LazyLock::new(|| {
    let mut hasher = Xxh3::new();
    hasher.update(INDEX.as_bytes());
    for asset in ASSETS {
        hasher.update(asset.name.as_bytes());
        hasher.update(asset.text);
    }
    format!("{:016x}", hasher.digest())
});

static TEXTS: LazyLock<Vec<Text>> = LazyLock::new(|| {
    ASSETS.iter().map(|asset| Text::new(asset.kind, Bytes::from_static(asset.text))).collect()
});

static PAGES: LazyLock<[Text; 2]> =
    LazyLock::new(|| [AuthMode::Header, AuthMode::Jwt].map(|mode| Text::new(HTML, html(mode, ""))));

/// The folder of the assets, relative to the page.
pub fn assets_folder() -> String {
    format!("assets/{}", *VERSION)
}

/// The page. `snapshot` is the JSON document of a sale that the page shows before it has asked the
/// server, or empty.
pub fn html(mode: AuthMode, snapshot: &str) -> String {
    let auth = match mode {
        AuthMode::Header => "header",
        AuthMode::Jwt => "jwt",
    };
    // A `<` could end the element that holds the document.
    let snapshot = snapshot.replace('<', "\\u003c");
    let page = INDEX.replace("{{assets}}", &assets_folder()).replace("{{auth}}", auth);
    page.replace("{{snapshot}}", &snapshot)
}

/// The storefront: every view is this page, told by its query.
#[utoipa::path(
    get, path = "/", tag = "storefront",
    responses((status = 200, description = "the page", body = String, content_type = "text/html")),
)]
pub async fn page(request: HttpRequest, state: State) -> HttpResponse {
    let [by_header, by_token] = &*PAGES;
    let page = match state.settings.auth.mode {
        AuthMode::Header => by_header,
        AuthMode::Jwt => by_token,
    };
    page.respond(&request, REVALIDATE)
}

/// An asset of the storefront; `version` is a hash of all of them.
#[utoipa::path(
    get, path = "/assets/{version}/{file}", tag = "storefront",
    responses((status = 200, description = "the file", body = String)),
)]
pub async fn asset(request: HttpRequest, path: web::Path<(String, String)>) -> Handled {
    let (version, file) = path.into_inner();
    let mut texts = ASSETS.iter().zip(TEXTS.iter());
    let found = texts.find(|(asset, _)| asset.name == file && version == *VERSION);
    let (_, text) = found.ok_or(ProblemCode::NotFound)?;
    Ok(text.respond(&request, FOR_EVER))
}

/// What a problem code means: the page that `type` of a problem document refers to.
#[utoipa::path(
    get, path = "/problems/{code}", tag = "documents",
    responses((status = 200, description = "the page", body = String, content_type = "text/html")),
)]
pub async fn problem(request: HttpRequest, code: web::Path<String>) -> Handled {
    let known = ProblemCode::ALL.iter().find(|known| known.as_str() == code.as_str());
    let code = known.ok_or(ProblemCode::NotFound)?;
    let page = format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <meta name=\"color-scheme\" content=\"light dark\"><title>{title}</title>\
         <link rel=\"stylesheet\" href=\"../{assets}/store.css\">\
         <link rel=\"icon\" href=\"../{assets}/icon.svg\">\
         <main class=\"page prose\"><p class=\"eyebrow\">{status} {name}</p><h1>{title}</h1>\
         <p>{detail}</p><p><a href=\"../docs/\">The interface</a></p></main></html>\n",
        assets = assets_folder(),
        title = code.title(),
        status = code.status(),
        name = code.as_str(),
        detail = code.detail(),
    );
    Ok(Text::new(HTML, page).respond(&request, REVALIDATE))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Most bytes that a first visit of a sale's page transfers, compressed.
    const PAGE_BYTES_MAX: usize = 60 * 1024;

    #[test]
    fn every_file_of_the_folder_is_embedded_and_the_whole_is_small() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/web/store");
        let entries = std::fs::read_dir(folder).unwrap();
        let files: BTreeSet<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        let embedded = ASSETS.iter().map(|asset| asset.name.to_owned());
        assert_eq!(files, embedded.chain(["index.html".to_owned()]).collect());
        let bytes = |text: &Text| text.gzip.len();
        let total = TEXTS.iter().map(bytes).sum::<usize>() + bytes(&PAGES[0]);
        assert!(TEXTS.iter().all(|text| !text.gzip.is_empty()));
        assert!(total <= PAGE_BYTES_MAX, "{total} bytes");
    }

    #[test]
    fn the_page_names_no_other_host_and_no_placeholder() {
        let page = html(AuthMode::Header, r#"{"title":"</script><b>"}"#);
        assert!(!page.contains("{{") && !page.contains("</script><b>"), "{page}");
        let scripts = ASSETS.iter().map(|asset| String::from_utf8_lossy(asset.text).into_owned());
        for text in scripts.chain([page]) {
            let without_names = text.replace("http://www.w3.org/2000/svg", "");
            assert!(!without_names.contains("http://") && !without_names.contains("https://"));
        }
    }

    #[test]
    fn an_encoding_is_used_only_where_the_client_accepts_it() {
        for accepted in ["gzip", "gzip;q=0.5", "*", "gzip; q=1"] {
            assert!(accepts_gzip(accepted), "{accepted}");
        }
        for refused in ["", "br", "gzip;q=0", "identity", "x-gzip"] {
            assert!(!accepts_gzip(refused), "{refused}");
        }
    }
}
