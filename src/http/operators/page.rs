//! The operators' page, embedded in the program.
//!
//! Page and assets need no token: they say nothing of this installation. What they show comes from
//! the other routes of this listener, which do.

use std::sync::LazyLock;

use actix_web::http::header::LOCATION;
use actix_web::{HttpRequest, HttpResponse, web};

use crate::http::middleware::embedded::{
    Asset, HTML, PICTURE, REVALIDATE, SCRIPT, STYLE, Text, WebFolder, assets,
};
use crate::http::middleware::problem::Handled;

/// The page before its placeholders are filled.
const INDEX: &str = include_str!("../../../web/ops/index.html");

/// Every file of `web/ops/` except the page.
const ASSETS: &[Asset] = &assets!["ops":
    "ops.css" STYLE,
    "uplot.min.css" STYLE,
    "icon.svg" PICTURE,
    "uplot.min.js" SCRIPT,
    "htm-preact.min.js" SCRIPT,
    "main.js" SCRIPT,
    "api.js" SCRIPT,
    "state.js" SCRIPT,
    "parts.js" SCRIPT,
    "overview.js" SCRIPT,
    "charts.js" SCRIPT,
    "sales.js" SCRIPT,
    "diagnosis.js" SCRIPT,
    "dead_letters.js" SCRIPT,
    "bulk.js" SCRIPT,
    "payments.js" SCRIPT,
    "history.js" SCRIPT,
    "trace.js" SCRIPT,
    "actors.js" SCRIPT,
    "audit.js" SCRIPT,
];

static FOLDER: LazyLock<WebFolder> = LazyLock::new(|| WebFolder::new(INDEX, ASSETS));

static PAGE: LazyLock<Text> =
    LazyLock::new(|| Text::new(HTML, INDEX.replace("{{assets}}", &FOLDER.path())));

/// Redirects to `/ops/`: the page's relative links need the slash.
#[utoipa::path(
    get, path = "/ops", operation_id = "redirectToOps", tag = "operators' page",
    responses((status = 307, description = "to /ops/", headers(("Location" = String)))),
)]
pub async fn to_page() -> HttpResponse {
    HttpResponse::TemporaryRedirect().insert_header((LOCATION, "ops/")).finish()
}

/// Redirects to `/ops/`, also below a prefix.
#[utoipa::path(
    get, path = "/", operation_id = "redirectRootToOps", tag = "operators' page",
    responses((status = 307, description = "to /ops/", headers(("Location" = String)))),
)]
pub async fn root() -> HttpResponse {
    to_page().await
}

/// The operators' page: every view is this page, told by its query.
#[utoipa::path(
    get, path = "/ops/", operation_id = "showOps", tag = "operators' page",
    responses((status = 200, description = "the page", body = String, content_type = "text/html",
        headers(("ETag" = String)))),
)]
pub async fn page(request: HttpRequest) -> HttpResponse {
    PAGE.respond(&request, REVALIDATE)
}

/// An asset of the operators' page; `version` is a hash of all of them.
#[utoipa::path(
    get, path = "/ops/assets/{version}/{file}",
    operation_id = "readOpsAsset", tag = "operators' page",
    responses((status = 200, description = "the file", headers(("ETag" = String)), content(
        ("text/javascript"), ("text/css"), ("image/svg+xml"),
    ))),
)]
pub async fn asset(request: HttpRequest, path: web::Path<(String, String)>) -> Handled {
    FOLDER.serve(&request, &path)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_file_of_the_folder_is_embedded() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/web/ops");
        let entries = std::fs::read_dir(folder).unwrap();
        let files: BTreeSet<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        let embedded = ASSETS.iter().map(|asset| asset.name.to_owned());
        let others = ["index.html".to_owned(), "vendored.md".to_owned()];
        assert_eq!(files, embedded.chain(others).collect());
        assert!(FOLDER.gzip_bytes() > 0);
    }

    #[test]
    fn vendored_files_are_as_published() {
        let listed = include_str!("../../../web/ops/vendored.md");
        for name in ["htm-preact.min.js", "uplot.min.js", "uplot.min.css"] {
            let asset = ASSETS.iter().find(|asset| asset.name == name).unwrap();
            let sum = sha256(asset.text);
            let is_listed = listed.lines().any(|line| line.contains(name) && line.contains(&sum));
            assert!(is_listed, "{name} {sum}");
        }
    }

    fn sha256(bytes: &[u8]) -> String {
        use sha2::{Digest, Sha256};
        crate::domain::text::hex(&Sha256::digest(bytes))
    }

    #[test]
    fn every_path_of_the_page_is_relative() {
        let scripts = ASSETS.iter().filter(|asset| asset.kind != PICTURE);
        let texts = scripts.map(|asset| String::from_utf8_lossy(asset.text).into_owned());
        for text in texts.chain([INDEX.to_owned()]) {
            for absolute in ["\"/admin", "`/admin", "src=\"/", "href=\"/"] {
                assert!(!text.contains(absolute), "{absolute}");
            }
        }
    }
}
