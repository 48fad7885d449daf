//! `floodgate sale`: the admin API's operations on sales.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use serde_json::{Value as Json, json};

use super::admin::{AdminClient, CALL_TIMEOUT, Error, SaleVerbArgs, ServerArgs, given};
use super::common::Common;
use super::exit::{CommandFailure, Exit};
use super::export::{self, ExportArgs};
use super::output::{
    Output, field, grouped, list, next_cursor, number, on_one_line, short_cells, table,
};
use super::retention::{ARCHIVE_EXAMPLES, ArchiveArgs, PURGE_EXAMPLES, PurgeArgs};
use super::sale_changes::{RESTOCK_EXAMPLES, RestockArgs, SET_EXAMPLES, SetArgs};
use crate::runtime::clock::{rfc3339, wall_ms};

const EXAMPLES: &str = "\
Examples:
  floodgate sale create sale.json
  floodgate sale open spring
  floodgate sale close spring --reason 'sold out early'
  floodgate sale list
";

/// Verbs that `sale show` shows.
const VERBS_SHOWN: &str = "10";

/// Limit of a reason, in characters.
const REASON_CHARS: usize = 80;

/// Limit of why a number is not known, in characters.
const WHY_CHARS: usize = 200;

const CREATE_EXAMPLES: &str = r#"Examples:
  floodgate sale create sale.json
  generate-sale | floodgate sale create -

  sale.json:
  {"sale_id": "spring", "title": "Spring sale",
   "starts_at": "2030-03-20T20:00:00Z", "ends_at": "2030-03-20T21:00:00Z",
   "ticket_required": false,
   "skus": [{"sku_id": "phone", "title": "Phone", "price": 199900, "initial_stock": 1000,
             "policy": {"kind": "one_per_buyer"}, "buckets": 4,
             "payment_window_s": 900, "bar_lapsed": true}]}
"#;

/// Create, open, pause, close, change, show, archive and purge sales on the running server
#[derive(Debug, Args)]
#[command(before_help = EXAMPLES)]
pub struct SaleArgs {
    #[command(subcommand)]
    verb: Verb,
    #[command(flatten)]
    server: ServerArgs,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Create a sale from a JSON description; it sells after `open`
    #[command(before_help = CREATE_EXAMPLES)]
    Create {
        /// JSON file, or - for stdin
        file: PathBuf,
        /// Why; recorded with who did it
        #[arg(long)]
        reason: Option<String>,
    },
    /// Let a sale sell inside its window
    #[command(before_help = "Examples:\n  floodgate sale open spring\n")]
    Open(SaleVerbArgs),
    /// Hold a sale; `open` lets it go on
    #[command(before_help = "Examples:\n  floodgate sale pause spring\n")]
    Pause(SaleVerbArgs),
    /// End a sale for good
    #[command(before_help = "Examples:\n  floodgate sale close spring\n")]
    Close {
        #[command(flatten)]
        sale: SaleVerbArgs,
        /// Close without a question; without a terminal there is none
        #[arg(long)]
        yes: bool,
    },
    /// Change title, end or terms of a sale that may be running
    #[command(before_help = SET_EXAMPLES)]
    Set(SetArgs),
    /// Add units to a SKU, or take free ones out
    #[command(before_help = RESTOCK_EXAMPLES)]
    Restock(RestockArgs),
    /// Show one sale
    #[command(before_help = "Examples:\n  floodgate sale show spring\n")]
    Show {
        /// The sale's id
        sale_id: String,
    },
    /// Write the page of a sale as static files for a CDN
    #[command(before_help = export::EXAMPLES)]
    Export(ExportArgs),
    /// Write the rows of a finished sale to files, with a manifest of their digests
    #[command(before_help = ARCHIVE_EXAMPLES)]
    Archive(ArchiveArgs),
    /// Delete the rows of an archived sale; its name stays taken
    #[command(before_help = PURGE_EXAMPLES)]
    Purge(PurgeArgs),
    /// Show every sale
    #[command(before_help = "Examples:\n  floodgate sale list\n")]
    List,
}

/// Calls the running server.
pub async fn run(args: &SaleArgs, common: &Common) -> anyhow::Result<Exit> {
    let (client, output) = args.server.connect(common)?;
    let (SaleVerbArgs { sale_id, reason }, verb, phase, next) = match &args.verb {
        Verb::Open(sale) => (sale, "open", "open", "watch it: floodgate sale show"),
        Verb::Pause(sale) => (sale, "pause", "paused", "go on with: floodgate sale open"),
        Verb::Close { sale, yes } => {
            output.confirm(*yes, &format!("sale {} will be closed for good", sale.sale_id))?;
            (sale, "close", "closed", "check it: floodgate audit --sale")
        }
        Verb::Export(export) => return export::run(export, &client, output, common).await,
        Verb::Create { file, reason } => {
            let (description, text) = read_description(file, reason.as_deref())?;
            let sale = client.post_text(&["sales"], text, CALL_TIMEOUT).await;
            let sale = sale.map_err(creation_failure)?;
            let id = field(&description, "sale_id");
            output.data(&sale, || format!("sale {id} is created, and not open yet"))?;
            output.note(&format!("next: floodgate sale open {id}"));
            return Ok(Exit::Done);
        }
        Verb::Set(set) => return set.run(&client, &output).await,
        Verb::Restock(restock) => return restock.run(&client, &output).await,
        Verb::Archive(archive) => return archive.run(&client, &output).await,
        Verb::Purge(purge) => return purge.run(&client, &output).await,
        Verb::Show { sale_id } => return show(&client, &output, sale_id).await,
        Verb::List => {
            let sales = read_list(&client).await?;
            output.data(&json!({ "sales": sales }), || render_list(&output, &sales))?;
            return Ok(Exit::Done);
        }
    };
    let body = given([("reason", json!(reason))]);
    let sale = client.post(&["sales", sale_id, verb], &body, CALL_TIMEOUT).await?;
    output.data(&sale, || format!("sale {sale_id} is {phase}"))?;
    if verb == "open"
        && let Some(hint) = outside_window(&sale, &rfc3339(wall_ms()))
    {
        output.note(&hint);
    }
    output.note(&format!("{next} {sale_id}"));
    Ok(Exit::Done)
}

/// The exit code and the next step for the operator: a repeat of a creation is refused.
fn creation_failure(error: Error) -> CommandFailure {
    let remedy = "`floodgate sale list` shows whether it exists; then create or open it";
    error.into_failure_with(|error| matches!(error, Error::Unknown { .. }).then_some(remedy))
}

/// Prints the sale with its funnel and the last verbs.
async fn show(client: &AdminClient, output: &Output, sale_id: &str) -> anyhow::Result<Exit> {
    let mut sale = client.get(&["sales", sale_id], CALL_TIMEOUT).await?;
    let funnel = client.get(&["sales", sale_id, "funnel"], CALL_TIMEOUT).await?;
    let subject = format!("sale:{sale_id}");
    let query = [("subject", subject.as_str()), ("limit", VERBS_SHOWN)];
    // The rest is shown also while the ledger does not answer.
    let verbs = client.ask(&["verbs"], &query, CALL_TIMEOUT).await.unwrap_or_default();
    if is_counted(&sale, &rfc3339(wall_ms())) {
        let buckets = client.get(&["sales", sale_id, "buckets"], CALL_TIMEOUT).await;
        mark_unknown_stock(&mut sale, &buckets.unwrap_or_default());
    }
    if let Some(sale) = sale.as_object_mut() {
        let part = |of: &Json, name: &str| of.get(name).cloned().unwrap_or_default();
        sale.insert("funnel".to_owned(), part(&funnel, "stages"));
        sale.insert("verbs".to_owned(), part(&verbs, "verbs"));
    }
    output.data(&sale, || {
        [render_sale(output, &sale), render_funnel(&sale), render_verbs(&sale)].join("\n")
    })?;
    Ok(Exit::Done)
}

/// Whether the free units are those of buckets: from the beginning of the window until a purge.
/// The times are in one format.
fn is_counted(sale: &Json, now: &str) -> bool {
    let state = sale.pointer("/retention/state").and_then(Json::as_str);
    let is_deleted = matches!(state, Some("purging" | "purged"));
    field(sale, "phase") != "draft" && field(sale, "starts_at").as_str() <= now && !is_deleted
}

/// What an open sale does not do now, because of its window. The times are in one format.
fn outside_window(sale: &Json, now: &str) -> Option<String> {
    let (starts_at, ends_at) = (field(sale, "starts_at"), field(sale, "ends_at"));
    if ends_at.as_str() <= now {
        return Some(format!("its window ended at {ends_at}: buyers read `ended`"));
    }
    (starts_at.as_str() > now).then(|| format!("it sells from {starts_at} on"))
}

/// Sets `stock_left` of the SKUs whose buckets cannot be read now to null, and says why in
/// `stock_unknown`: the server's number is of the time when it last read them.
fn mark_unknown_stock(sale: &mut Json, buckets: &Json) {
    let Some(skus) = sale.get_mut("skus").and_then(Json::as_array_mut) else { return };
    for sku in skus.iter_mut().filter_map(Json::as_object_mut) {
        let id = sku.get("sku_id").cloned();
        let report = list(buckets, "skus").iter().find(|it| it.get("sku_id") == id.as_ref());
        let is_unread = |health: &str| ["distrusted", "missing", "unavailable"].contains(&health);
        if let Some(report) = report.filter(|report| is_unread(&field(report, "health"))) {
            sku.insert("stock_left".to_owned(), Json::Null);
            sku.insert("stock_unknown".to_owned(), json!(field(report, "why")));
        }
    }
}

/// A description, and its text with the reason at the end. The text is sent, because the server
/// refuses a member that is there twice and names positions in the file.
fn read_description(file: &Path, reason: Option<&str>) -> Result<(Json, String), CommandFailure> {
    let (text, shown) = if file == Path::new("-") {
        (std::io::read_to_string(std::io::stdin()), "stdin".to_owned())
    } else {
        (std::fs::read_to_string(file), file.display().to_string())
    };
    let text = text.map_err(|error| {
        let remedy = "check the path, or pass - to read stdin";
        CommandFailure::unclear(format!("cannot read {shown}: {error}"), remedy)
    })?;
    let description: Json = serde_json::from_str(&text).map_err(|error| {
        let remedy = "`floodgate sale create --help` shows a complete description";
        CommandFailure::unclear(format!("{shown} is not JSON: {error}"), remedy)
    })?;
    let mut text = text.trim_end().to_owned();
    if let (Some(reason), Some(members)) = (reason, description.as_object()) {
        text.pop();
        let comma = if members.is_empty() { "" } else { "," };
        text.push_str(&format!("{comma}\"reason\":{}}}", json!(reason)));
    }
    Ok((description, text))
}

/// Every sale, page by page.
async fn read_list(client: &AdminClient) -> Result<Vec<Json>, Error> {
    let (mut sales, mut cursor) = (Vec::new(), None::<String>);
    loop {
        let after = cursor.iter().map(|cursor| ("cursor", cursor.as_str()));
        let query: Vec<_> = [("limit", "200")].into_iter().chain(after).collect();
        let page = client.ask(&["sales"], &query, CALL_TIMEOUT).await?;
        sales.extend(list(&page, "sales").iter().cloned());
        cursor = next_cursor(&page).map(str::to_owned);
        if cursor.is_none() {
            return Ok(sales);
        }
    }
}

fn render_list(output: &Output, sales: &[Json]) -> String {
    if sales.is_empty() {
        return output.with_flags("no sales; create one: floodgate sale create FILE");
    }
    let row = |sale: &Json| {
        let names = ["sale_id", "phase", "starts_at", "ends_at", "title"];
        let [id, phase, starts, ends, title] = names.map(|name| field(sale, name));
        let phase = match sale.pointer("/retention/state").and_then(Json::as_str) {
            None | Some("kept") => phase,
            Some(state) => format!("{phase}, {state}"),
        };
        vec![id, phase, starts, ends, list(sale, "skus").len().to_string(), title]
    };
    table(&["SALE", "PHASE", "STARTS", "ENDS", "SKUS", "TITLE"], sales.iter().map(row))
}

fn render_sale(output: &Output, sale: &Json) -> String {
    let row = |sku: &Json| {
        let policy = sku.get("policy").unwrap_or(&Json::Null);
        let limit = number(policy, "limit").map_or_else(String::new, |limit| format!(" {limit}"));
        let policy = field(policy, "kind") + &limit;
        let stock_left = number(sku, "stock_left");
        let stock_left = stock_left.map_or_else(|| "?".to_owned(), |units| units.to_string());
        vec![field(sku, "sku_id"), stock_left, field(sku, "price"), policy, field(sku, "title")]
    };
    let skus = list(sale, "skus");
    let unknown = skus.iter().filter(|sku| sku.get("stock_unknown").is_some()).map(|sku| {
        let [id, why] = ["sku_id", "stock_unknown"].map(|name| field(sku, name));
        let why = output.with_flags(&on_one_line(&why, WHY_CHARS));
        format!("FREE of {id} is not known: {why}\n")
    });
    let unknown: String = unknown.collect();
    // In the gates; the funnel's `left` is of the ledger.
    let heading = ["SKU", "FREE", "PRICE", "POLICY", "TITLE"];
    format!(
        "sale {}: {} ({})\nsells from {} to {}, prices in the smallest unit of {}\n{}\n{}{unknown}",
        field(sale, "sale_id"),
        on_one_line(&field(sale, "title"), usize::MAX),
        field(sale, "phase"),
        field(sale, "starts_at"),
        field(sale, "ends_at"),
        field(sale, "currency"),
        render_retention(output, sale),
        table(&heading, skus.iter().map(row)),
    )
}

/// Whether the sale is archived or purged; empty: neither.
fn render_retention(output: &Output, sale: &Json) -> String {
    let Some(retention) = sale.get("retention") else { return String::new() };
    let state = field(retention, "state");
    if state == "kept" {
        return String::new();
    }
    let going_on = match state.as_str() {
        "sealed" | "purging" => output.with_flags("; the same `floodgate sale purge` continues"),
        _ => String::new(),
    };
    let (since, digest) = (field(retention, "since"), field(retention, "archive_digest"));
    format!("{state} since {since}, archive {digest}{going_on}\n")
}

/// Who changed what of the sale, when and why; newest first.
fn render_verbs(sale: &Json) -> String {
    if sale.get("verbs").is_none_or(Json::is_null) {
        return "who changed it is not known: the ledger does not answer\n".to_owned();
    }
    let row =
        |verb| short_cells(verb, &["at", "verb", "detail", "operator", "reason"], REASON_CHARS);
    table(&["AT", "VERB", "WHAT", "BY", "WHY"], list(sale, "verbs").iter().map(row))
}

/// The requests in each stage; a question mark where the count is unavailable.
fn render_funnel(sale: &Json) -> String {
    let row = |stage: &Json| {
        let count = number(stage, "count").map_or_else(|| "?".to_owned(), grouped);
        let age = number(stage, "oldest_age_ms");
        let age = age.map(|ms| format!("{}.{:03} s", ms / 1000, ms % 1000));
        let age = age.unwrap_or_else(|| "-".to_owned());
        vec![field(stage, "stage"), count, field(stage, "unit"), age]
    };
    table(&["STAGE", "COUNT", "UNIT", "OLDEST"], list(sale, "funnel").iter().map(row))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_open_sale_outside_its_window_says_so() {
        let sale = json!({
            "starts_at": "2026-06-01T00:00:00.000Z", "ends_at": "2026-06-02T00:00:00.000Z",
        });
        let hint = |now| outside_window(&sale, now).unwrap_or_default();
        assert!(hint("2026-05-31T23:59:59.999Z").starts_with("it sells from 2026-06-01"));
        assert_eq!(hint("2026-06-01T00:00:00.000Z"), "");
        assert!(hint("2026-06-02T00:00:00.000Z").starts_with("its window ended at 2026-06-02"));
    }
}
