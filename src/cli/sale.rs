//! `floodgate sale`: the verbs of the admin API.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::{Value as Json, json};

use super::admin::With;
use super::exit::{CommandFailure, Exit};
use super::output::{field, grouped, list, table};

/// Opening loads stock into every gate, so it may take a while.
const PATIENCE: Duration = Duration::from_secs(30);

const EXAMPLES: &str = "\
Examples:
  floodgate sale create sale.json
  floodgate sale open spring
  floodgate sale list
";

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

/// Create, open, pause, close and look at sales on the running server
#[derive(Debug, Args)]
#[command(before_help = EXAMPLES)]
pub struct SaleArgs {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Create a sale from a JSON description; it sells after `open`
    #[command(before_help = CREATE_EXAMPLES)]
    Create {
        /// JSON file, or - for stdin
        file: PathBuf,
        #[command(flatten)]
        with: With,
    },
    /// Let a sale sell inside its window
    #[command(before_help = "Examples:\n  floodgate sale open spring\n")]
    Open(One),
    /// Hold a sale; `open` lets it go on
    #[command(before_help = "Examples:\n  floodgate sale pause spring\n")]
    Pause(One),
    /// End a sale for good
    #[command(before_help = "Examples:\n  floodgate sale close spring\n")]
    Close(One),
    /// Show one sale
    #[command(before_help = "Examples:\n  floodgate sale show spring\n")]
    Show(One),
    /// Show every sale
    #[command(before_help = "Examples:\n  floodgate sale list\n")]
    List {
        #[command(flatten)]
        with: With,
    },
}

#[derive(Debug, Args)]
struct One {
    /// The sale's id
    sale_id: String,
    #[command(flatten)]
    with: With,
}

/// Carries out one verb.
pub async fn run(args: &SaleArgs) -> anyhow::Result<Exit> {
    match &args.verb {
        Verb::Create { file, with } => create(file, with).await,
        Verb::Open(one) => turn(one, "open", "open", "watch it: floodgate sale show").await,
        Verb::Pause(one) => turn(one, "pause", "paused", "go on with: floodgate sale open").await,
        Verb::Close(one) => turn(one, "close", "closed", "check it: floodgate audit --sale").await,
        Verb::Show(one) => show(one).await,
        Verb::List { with } => show_all(with).await,
    }
}

async fn create(file: &Path, with: &With) -> anyhow::Result<Exit> {
    let description = read_description(file)?;
    let client = with.client()?;
    let sale = client.post(&["sales"], &description, Some(PATIENCE)).await?;
    let id = field(&description, "sale_id");
    with.output().data(&sale, || format!("sale {id} is created, and not open yet"))?;
    with.output().note(&format!("next: floodgate sale open {id}"));
    Ok(Exit::Done)
}

async fn turn(one: &One, verb: &str, becomes: &str, next: &str) -> anyhow::Result<Exit> {
    let (id, with) = (&one.sale_id, &one.with);
    let path = ["sales", id, verb];
    let sale = with.client()?.post(&path, &json!({}), Some(PATIENCE)).await?;
    with.output().data(&sale, || format!("sale {id} is {becomes}"))?;
    with.output().note(&format!("{next} {id}"));
    Ok(Exit::Done)
}

async fn show(one: &One) -> anyhow::Result<Exit> {
    let client = one.with.client()?;
    let mut sale = client.get(&["sales", &one.sale_id], Some(PATIENCE)).await?;
    let funnel = client.get(&["sales", &one.sale_id, "funnel"], Some(PATIENCE)).await?;
    if let (Some(sale), Some(stages)) = (sale.as_object_mut(), funnel.get("stages")) {
        sale.insert("funnel".to_owned(), stages.clone());
    }
    let text = || format!("{}\n{}", render_sale(&sale), render_funnel(&sale));
    one.with.output().data(&sale, text)?;
    Ok(Exit::Done)
}

async fn show_all(with: &With) -> anyhow::Result<Exit> {
    let answer = with.client()?.get(&["sales"], Some(PATIENCE)).await?;
    with.output().data(&answer, || render_list(&answer))?;
    Ok(Exit::Done)
}

fn read_description(file: &Path) -> Result<Json, CommandFailure> {
    let shown = file.display();
    let (text, shown) = if file == Path::new("-") {
        let mut text = String::new();
        (std::io::stdin().read_to_string(&mut text).map(|_bytes| text), "stdin".to_owned())
    } else {
        (std::fs::read_to_string(file), shown.to_string())
    };
    let text = text.map_err(|error| {
        let remedy = "check the path, or pass - to read stdin";
        CommandFailure::new(Exit::Unclear, format!("cannot read {shown}: {error}"), remedy)
    })?;
    serde_json::from_str(&text).map_err(|error| {
        let remedy = "`floodgate sale create --help` shows a complete description";
        CommandFailure::new(Exit::Unclear, format!("{shown} is not JSON: {error}"), remedy)
    })
}

/// `{"sales": [..]}`, as lists of the API are; a bare list is understood too.
fn render_list(answer: &Json) -> String {
    let sales = answer.get("sales").unwrap_or(answer).as_array().map_or(&[][..], Vec::as_slice);
    if sales.is_empty() {
        return "no sales; create one: floodgate sale create FILE".to_owned();
    }
    let rows: Vec<Vec<String>> = sales
        .iter()
        .map(|sale| {
            let mut row: Vec<String> = ["sale_id", "phase", "starts_at", "ends_at"]
                .iter()
                .map(|name| field(sale, name))
                .collect();
            row.push(list(sale, "skus").len().to_string());
            row.push(field(sale, "title"));
            row
        })
        .collect();
    table(&["SALE", "PHASE", "STARTS", "ENDS", "SKUS", "TITLE"], &rows)
}

fn render_sale(sale: &Json) -> String {
    let rows: Vec<Vec<String>> = list(sale, "skus")
        .iter()
        .map(|sku| {
            let policy = sku.get("policy").map_or_else(
                || "-".to_owned(),
                |policy| match policy.get("limit").and_then(Json::as_u64) {
                    Some(limit) => format!("{} {limit}", field(policy, "kind")),
                    None => field(policy, "kind"),
                },
            );
            let name = |name| field(sku, name);
            vec![name("sku_id"), name("stock_left"), name("price"), policy, name("title")]
        })
        .collect();
    format!(
        "sale {}: {} ({})\nsells from {} to {}\n\n{}",
        field(sale, "sale_id"),
        field(sale, "title"),
        field(sale, "phase"),
        field(sale, "starts_at"),
        field(sale, "ends_at"),
        table(&["SKU", "LEFT", "PRICE", "POLICY", "TITLE"], &rows),
    )
}

/// Where the requests are. What nobody could count is a question mark.
fn render_funnel(sale: &Json) -> String {
    let rows: Vec<Vec<String>> = list(sale, "funnel")
        .iter()
        .map(|stage| {
            let count = match stage.get("count").and_then(Json::as_u64) {
                Some(count) => grouped(count),
                None => "?".to_owned(),
            };
            let age = stage.get("oldest_age_ms").and_then(Json::as_u64);
            let age = age
                .map_or_else(|| "-".to_owned(), |ms| format!("{}.{:03} s", ms / 1000, ms % 1000));
            vec![field(stage, "stage"), count, field(stage, "unit"), age]
        })
        .collect();
    table(&["STAGE", "COUNT", "OF", "OLDEST"], &rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_funnel_tells_what_nobody_could_count() {
        let text = render_funnel(&json!({ "funnel": [
            { "stage": "unsettled", "count": 1200, "unit": "requests", "oldest_age_ms": 31_007 },
            { "stage": "broker", "count": null, "unit": "messages", "oldest_age_ms": null },
        ] }));
        assert!(text.contains("\nunsettled  1,200  requests  31.007 s"), "{text}");
        assert!(text.contains("\nbroker     ?      messages  -"), "{text}");
    }

    fn sale() -> Json {
        json!({
            "sale_id": "spring", "title": "Spring", "phase": "open",
            "starts_at": "2030-01-01T00:00:00Z", "ends_at": "2030-01-02T00:00:00Z",
            "skus": [{ "sku_id": "phone", "title": "Phone", "stock_left": 3, "price": 10,
                       "policy": { "kind": "quota", "limit": 2 } }],
        })
    }

    #[test]
    fn sales_are_shown_as_tables() {
        let text = render_sale(&sale());
        assert!(text.starts_with("sale spring: Spring (open)\n"), "{text}");
        assert!(text.contains("\nphone  3     10     quota 2  Phone\n"), "{text}");
        for answer in [json!([sale()]), json!({ "sales": [sale()] })] {
            assert!(render_list(&answer).contains("spring"), "{answer}");
        }
        assert!(render_list(&json!([])).contains("floodgate sale create"));
    }

    #[test]
    fn the_description_in_the_help_is_json() {
        let (_, json) = CREATE_EXAMPLES.split_once("sale.json:\n").unwrap();
        let description: Json = serde_json::from_str(json).unwrap();
        assert_eq!(description["skus"][0]["initial_stock"], 1000);
    }

    #[test]
    fn a_description_that_cannot_be_read_is_named() {
        let error = read_description(Path::new("/nowhere/sale.json")).unwrap_err();
        assert!(error.problem.contains("/nowhere/sale.json"), "{error}");
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "{\"sale_id\": }").unwrap();
        let error = read_description(file.path()).unwrap_err();
        assert_eq!(error.exit, Exit::Unclear);
        assert!(error.problem.contains("line 1 column 13"), "{error}");
    }
}
