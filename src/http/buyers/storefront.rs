//! The storefront: its page, its assets and the pages of the problem codes, embedded in the
//! program.

use std::collections::HashMap;
use std::sync::LazyLock;

use actix_web::{HttpRequest, HttpResponse, web};

use crate::config::{AuthMode, PaymentBackend};
use crate::http::middleware::embedded::{
    Asset, HTML, PICTURE, REVALIDATE, SCRIPT, STYLE, Text, WebFolder, assets,
};
use crate::http::middleware::problem::{Handled, ProblemCode};
use crate::http::state::State;

/// The page before its placeholders are filled.
const INDEX: &str = include_str!("../../../web/store/index.html");

/// Every file of `web/store/` except the page.
pub const ASSETS: &[Asset] = &assets!["store":
    "store.css" STYLE,
    "icon.svg" PICTURE,
    "main.js" SCRIPT,
    "api.js" SCRIPT,
    "button.js" SCRIPT,
    "purchase.js" SCRIPT,
    "records.js" SCRIPT,
    "sale.js" SCRIPT,
    "sku.js" SCRIPT,
    "challenge.js" SCRIPT,
    "work.js" SCRIPT,
    "orders.js" SCRIPT,
    "dom.js" SCRIPT,
    "words.js" SCRIPT,
    "en.js" SCRIPT,
    "zh.js" SCRIPT,
];

static FOLDER: LazyLock<WebFolder> = LazyLock::new(|| WebFolder::new(INDEX, ASSETS));

/// The folder of the assets, relative to the page.
pub fn assets_folder() -> String {
    FOLDER.path()
}

/// The page, which offers payment where there is a provider. `snapshot` is the JSON document of a
/// sale that the page shows before it has asked the server, or empty.
pub fn html(mode: AuthMode, provider: PaymentBackend, snapshot: &str) -> String {
    let auth = match mode {
        AuthMode::Header => "header",
        AuthMode::Jwt => "jwt",
    };
    // A `<` could end the element that holds the document.
    let snapshot = snapshot.replace('<', "\\u003c");
    let payments = if provider == PaymentBackend::None { "off" } else { "on" };
    let page = INDEX.replace("{{assets}}", &assets_folder()).replace("{{auth}}", auth);
    let page = page.replace("{{payments}}", payments);
    page.replace("{{snapshot}}", &snapshot)
}

/// The storefront: every view is this page, told by its query.
#[utoipa::path(
    get, path = "/", operation_id = "showStorefront", tag = "storefront",
    responses((status = 200, description = "the page", body = String, content_type = "text/html",
        headers(("ETag" = String)))),
)]
pub async fn page(request: HttpRequest, state: State) -> HttpResponse {
    let (mode, provider) = (state.settings.auth.mode, state.settings.payment.provider);
    let page = state.storefront.get_or_init(|| Text::new(HTML, html(mode, provider, "")));
    page.respond(&request, REVALIDATE)
}

/// An asset of the storefront; `version` is a hash of all of them.
#[utoipa::path(
    get, path = "/assets/{version}/{file}",
    operation_id = "readStorefrontAsset", tag = "storefront",
    responses((status = 200, description = "the file", headers(("ETag" = String)), content(
        ("text/javascript"), ("text/css"), ("image/svg+xml"),
    ))),
)]
pub async fn asset(request: HttpRequest, path: web::Path<(String, String)>) -> Handled {
    FOLDER.serve(&request, &path)
}

/// What a problem code means: the page that `type` of a problem document refers to.
#[utoipa::path(
    get, path = "/problems/{code}", operation_id = "explainProblem", tag = "documents",
    responses((status = 200, description = "the page", body = String, content_type = "text/html",
        headers(("ETag" = String)))),
)]
pub async fn problem(request: HttpRequest, code: web::Path<String>) -> Handled {
    let page = PROBLEM_PAGES.get(code.as_str()).ok_or(ProblemCode::NotFound)?;
    Ok(page.respond(&request, REVALIDATE))
}

/// The page of each problem code.
static PROBLEM_PAGES: LazyLock<HashMap<&str, Text>> = LazyLock::new(|| {
    ProblemCode::ALL.iter().map(|code| (code.as_str(), problem_page(*code))).collect()
});

fn problem_page(code: ProblemCode) -> Text {
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
    Text::new(HTML, page)
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
        let page = Text::new(HTML, html(AuthMode::Header, PaymentBackend::None, ""));
        let total = FOLDER.gzip_bytes() + page.gzip_bytes();
        assert!(total > 0);
        assert!(total <= PAGE_BYTES_MAX, "{total} bytes");
    }

    #[test]
    fn the_page_names_no_other_host_and_no_placeholder() {
        let page = html(AuthMode::Header, PaymentBackend::None, r#"{"title":"</script><b>"}"#);
        assert!(!page.contains("{{") && !page.contains("</script><b>"), "{page}");
        let scripts = ASSETS.iter().map(|asset| String::from_utf8_lossy(asset.text).into_owned());
        for text in scripts.chain([page]) {
            let without_names = text.replace("http://www.w3.org/2000/svg", "");
            assert!(!without_names.contains("http://") && !without_names.contains("https://"));
        }
    }
}
