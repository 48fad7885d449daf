//! `floodgate sale archive` and `floodgate sale purge`: the end of a finished sale.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use serde_json::{Value as Json, json};

use super::admin::{AdminClient, CALL_TIMEOUT, Error, SaleVerbArgs};
use super::archive_files::{ArchivedFile, MANIFEST, Manifest, TableWriter};
use super::exit::{CommandFailure, Exit};
use super::export::cannot_write;
use super::output::{Output, field, grouped, list, number, table};
use crate::domain::ArchiveTable;

pub const ARCHIVE_EXAMPLES: &str = "\
Examples:
  floodgate sale archive spring --to archives/spring
  sha256sum archives/spring/manifest.json
";

pub const PURGE_EXAMPLES: &str = "\
Examples:
  floodgate sale purge spring --archive archives/spring
  floodgate sale purge spring --archive archives/spring --reason 'orders are in the books'
";

/// Long, because every row of the sale is counted.
const COMPARE_TIMEOUT: Option<Duration> = Some(Duration::from_secs(600));

#[derive(Debug, Args)]
pub struct ArchiveArgs {
    /// Folder for the files; made if it is missing
    #[arg(long, value_name = "FOLDER")]
    to: PathBuf,
    #[command(flatten)]
    sale: SaleVerbArgs,
}

#[derive(Debug, Args)]
pub struct PurgeArgs {
    /// Folder of the sale's archive
    #[arg(long, value_name = "FOLDER")]
    archive: PathBuf,
    #[command(flatten)]
    sale: SaleVerbArgs,
}

impl ArchiveArgs {
    pub async fn run(&self, client: &AdminClient, output: &Output) -> anyhow::Result<Exit> {
        let Self { to, sale: SaleVerbArgs { sale_id, reason } } = self;
        let path = ["sales", sale_id, "archive"];
        let waiting = client.get(&path, COMPARE_TIMEOUT).await?;
        let open = list(&waiting, "open");
        if !open.is_empty() {
            return Err(unfinished(sale_id, open).into());
        }
        begin(to, sale_id)?;
        let mut files = Vec::with_capacity(ArchiveTable::ALL.len());
        for table in ArchiveTable::ALL {
            files.push(write_table(client, sale_id, table, to).await?);
        }
        let manifest = Manifest::new(sale_id, files);
        let digest = manifest.write(to).map_err(|error| cannot_write(to, error))?.to_string();
        let tables = manifest.contents();
        let body = json!({ "digest": digest, "tables": tables, "reason": reason });
        let archived = client.post(&path, &body, COMPARE_TIMEOUT).await;
        archived.map_err(|error| with_remedy(error, sale_id))?;
        let data = json!({ "folder": to, "digest": digest, "tables": manifest.tables });
        output.data(&data, || format!("{}\ndigest {digest}", render(&manifest)))?;
        output.note(&format!("next: floodgate sale purge {sale_id} --archive {}", to.display()));
        Ok(Exit::Done)
    }
}

/// Writes all rows of a table, page by page.
async fn write_table(
    client: &AdminClient,
    sale: &str,
    table: ArchiveTable,
    folder: &Path,
) -> anyhow::Result<ArchivedFile> {
    let failed = |error: std::io::Error| cannot_write(folder, error);
    let mut file = TableWriter::create(folder, table).map_err(failed)?;
    let mut after: Option<String> = None;
    loop {
        let query: Vec<(&str, &str)> = after.iter().map(|next| ("after", next.as_str())).collect();
        let path = ["sales", sale, "archive", table.name()];
        let page = client.ask(&path, &query, CALL_TIMEOUT).await?;
        for row in list(&page, "rows") {
            file.write(row).map_err(failed)?;
        }
        after = page.get("next").and_then(Json::as_str).map(str::to_owned);
        if after.is_none() {
            return Ok(file.finish().map_err(failed)?);
        }
    }
}

/// Makes the folder ready for an archive of the sale: a manifest of before is no longer valid.
fn begin(folder: &Path, sale: &str) -> Result<(), CommandFailure> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
    made.map_err(|error| cannot_write(folder, error))?;
    let Some((before, _)) = Manifest::read(folder)? else { return Ok(()) };
    if before.sale_id != sale {
        let problem = format!("{} has the archive of {}", folder.display(), before.sale_id);
        return Err(CommandFailure::unclear(problem, "name another folder"));
    }
    std::fs::remove_file(folder.join(MANIFEST)).map_err(|error| cannot_write(folder, error))
}

fn render(manifest: &Manifest) -> String {
    let row = |file: &ArchivedFile| {
        let sums = file.contents.sums.iter().map(|(name, sum)| format!("{name} {sum}"));
        let (rows, bytes) = (grouped(file.contents.rows), grouped(file.bytes));
        let sums: Vec<String> = sums.collect();
        vec![file.contents.table.name().to_owned(), rows, bytes, sums.join(", ")]
    };
    table(&["TABLE", "ROWS", "BYTES", "SUMS"], manifest.tables.iter().map(row))
}

fn unfinished(sale: &str, open: &[Json]) -> CommandFailure {
    let texts = open.iter().map(|one| {
        let (what, remedy) = (field(one, "what").replace('_', " "), field(one, "remedy"));
        // The server names the command without the sale.
        let of = if remedy.contains("floodgate sale") { format!(" {sale}") } else { String::new() };
        format!("{} {what}: {remedy}{of}", field(one, "num"))
    });
    let texts: Vec<String> = texts.collect();
    let problem = format!("sale {sale} is not finished: {}", texts.join("; "));
    CommandFailure::new(Exit::Negative, problem, "then repeat the command; nothing was changed")
}

impl PurgeArgs {
    pub async fn run(&self, client: &AdminClient, output: &Output) -> anyhow::Result<Exit> {
        let Self { archive, sale: SaleVerbArgs { sale_id, reason } } = self;
        let Some((manifest, digest)) = Manifest::read(archive)? else {
            let problem = format!("{} has no {MANIFEST}", archive.display());
            let remedy = format!("archive the sale: floodgate sale archive {sale_id} --to FOLDER");
            return Err(CommandFailure::unclear(problem, remedy).into());
        };
        if manifest.sale_id != *sale_id {
            let problem = format!("{} is the archive of {}", archive.display(), manifest.sale_id);
            return Err(CommandFailure::unclear(problem, "name its own").into());
        }
        manifest.verify(archive)?;
        let digest = digest.to_string();
        let tables = manifest.contents();
        let body = json!({ "digest": digest, "tables": tables, "reason": reason });
        let (mut num_rows, mut longest_ms) = (0, 0);
        loop {
            let path = ["sales", sale_id, "purge"];
            let purge = client.post(&path, &body, COMPARE_TIMEOUT).await;
            let purge = purge.map_err(|error| with_remedy(error, sale_id))?;
            num_rows += number(&purge, "num_rows").unwrap_or(0);
            longest_ms = longest_ms.max(number(&purge, "longest_ms").unwrap_or(0));
            if field(&purge, "state") == "purged" {
                break;
            }
            output.note(&format!("{} rows are deleted", grouped(num_rows)));
        }
        let data = json!({
            "sale_id": sale_id, "state": "purged", "num_rows": num_rows, "longest_ms": longest_ms,
            "archive_digest": digest,
        });
        output.data(&data, || {
            let rows = grouped(num_rows);
            format!("sale {sale_id} is purged: {rows} rows, at most {longest_ms} ms at once")
        })?;
        output.note(&format!("keep the archive {}: digest {digest}", archive.display()));
        Ok(Exit::Done)
    }
}

fn with_remedy(error: Error, sale: &str) -> CommandFailure {
    let again = format!("archive the sale again: floodgate sale archive {sale} --to FOLDER");
    error.into_failure_with(|error| match error {
        Error::Refused { code, .. } if code == "archive-differs" => Some(again.as_str()),
        Error::Refused { code, .. } if code == "sale-unfinished" => {
            Some("`floodgate sale archive` lists what is missing")
        }
        Error::Unable { .. } | Error::Unknown { .. } => {
            Some("repeat the same command: it continues where it stopped")
        }
        _ => None,
    })
}
