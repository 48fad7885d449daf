//! `floodgate sale export`: the page of a sale as static files, for a CDN in front of the server.

use std::fmt::Write;
use std::fs::File;
use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::{Map, Value as Json};

use super::admin::{AdminClient, CALL_TIMEOUT};
use super::archive_files::replace;
use super::common::Common;
use super::exit::{CommandFailure, Exit};
use super::output::{Output, list};
use crate::config::PaymentBackend;
use crate::http::buyers::storefront::{ASSETS, assets_folder, html};
use crate::http::middleware::embedded::PAGE_HEADERS;

pub const EXAMPLES: &str = "\
Examples:
  floodgate sale export spring public/         page, assets and their headers
  floodgate sale export spring public/ --set auth.mode=jwt
auth.mode and payment.provider must be those of the server: the page is made for them.
";

/// What a buyer may see of a sale and of its SKUs without asking the server.
const SALE_MEMBERS: [&str; 7] =
    ["sale_id", "title", "phase", "starts_at", "ends_at", "currency", "ticket_required"];
const SKU_MEMBERS: [&str; 6] =
    ["sku_id", "title", "price", "policy", "initial_stock", "stock_left"];

#[derive(Debug, Args)]
pub struct ExportArgs {
    /// The sale's id
    sale_id: String,
    /// Folder for the files; made if it is missing
    folder: PathBuf,
}

/// Writes the page, its assets, and the headers with which they must be served.
pub async fn run(
    args: &ExportArgs,
    client: &AdminClient,
    output: Output,
    common: &Common,
) -> anyhow::Result<Exit> {
    let sale = client.get(&["sales", &args.sale_id], CALL_TIMEOUT).await?;
    let settings = common.settings_for(&[])?;
    let (mode, provider) = (settings.auth.mode, settings.payment.provider);
    let assets = assets_folder();
    let mut files = Vec::new();
    for asset in ASSETS {
        files.push((format!("{assets}/{}", asset.name), asset.text.to_vec()));
    }
    files.push(("_headers".to_owned(), headers(&assets).into_bytes()));
    // Last, because it names the assets, and the folder may be served already.
    let page = html(mode, provider, &snapshot(&sale).to_string());
    files.push(("index.html".to_owned(), page.into_bytes()));
    for (name, text) in &files {
        write(&args.folder.join(name), text)?;
    }
    let names: Vec<&str> = files.iter().map(|(name, _)| name.as_str()).collect();
    output.data(&serde_json::json!({"folder": args.folder, "files": names}), || {
        format!("{} files are in {}", names.len(), args.folder.display())
    })?;
    let pages = if provider == PaymentBackend::Demo { " and /demo-pay/" } else { "" };
    let pass = format!("pass /v1/{pages} to the server");
    output.note(&format!("serve them with the headers of the file _headers, and {pass}"));
    Ok(Exit::Done)
}

fn write(file: &Path, text: &[u8]) -> anyhow::Result<()> {
    if let Some(folder) = file.parent() {
        std::fs::create_dir_all(folder).map_err(|error| cannot_write(folder, error))?;
    }
    let create = |path: &Path| File::options().write(true).create(true).truncate(true).open(path);
    replace(file, text, create).map_err(|error| cannot_write(file, error))?;
    Ok(())
}

/// A file or folder of the user's choice cannot be written.
pub(super) fn cannot_write(path: &Path, error: impl std::fmt::Display) -> CommandFailure {
    let problem = format!("{} cannot be written: {error}", path.display());
    let remedy = "name a folder that this user may write, with room in it, and repeat the command";
    CommandFailure::unclear(problem, remedy)
}

/// The sale without what only operators see.
fn snapshot(sale: &Json) -> Json {
    let mut public = members(sale, &SALE_MEMBERS);
    let skus = list(sale, "skus").iter().map(|sku| Json::Object(members(sku, &SKU_MEMBERS)));
    public.insert("skus".to_owned(), skus.collect());
    Json::Object(public)
}

fn members(of: &Json, names: &[&str]) -> Map<String, Json> {
    let found = names.iter().filter_map(|name| Some(((*name).to_owned(), of.get(*name)?.clone())));
    found.collect()
}

/// The headers per path, in the form that static hosts read.
fn headers(assets: &str) -> String {
    let mut text = String::from("/*\n");
    for (name, value) in PAGE_HEADERS {
        // Writing into a string does not fail.
        let _ = writeln!(text, "  {name}: {value}");
    }
    text.push_str("  cache-control: no-cache\n");
    let _ = write!(text, "/{assets}/*\n  ! cache-control\n");
    text.push_str("  cache-control: public, max-age=31536000, immutable\n");
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_snapshot_has_only_what_buyers_see() {
        let sale = json!({
            "sale_id": "spring", "epoch": 3, "title": "Spring",
            "skus": [{"sku_id": "phone", "price": 5, "sku_no": 7, "bar_lapsed": true}],
        });
        let expected = json!({
            "sale_id": "spring", "title": "Spring", "skus": [{"sku_id": "phone", "price": 5}],
        });
        assert_eq!(snapshot(&sale), expected);
    }
}
