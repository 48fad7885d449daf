//! `floodgate sale`: the admin API's operations on sales.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::{Value as Json, json};

use super::admin::AdminArgs;
use super::exit::{CommandFailure, Exit};
use super::output::{field, grouped, list, table};

/// Long, because opening a sale loads stock into every gate.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);

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

/// Create, open, pause, close and show sales on the running server
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
        admin: AdminArgs,
    },
    /// Let a sale sell inside its window
    #[command(before_help = "Examples:\n  floodgate sale open spring\n")]
    Open(OneSale),
    /// Hold a sale; `open` lets it go on
    #[command(before_help = "Examples:\n  floodgate sale pause spring\n")]
    Pause(OneSale),
    /// End a sale for good
    #[command(before_help = "Examples:\n  floodgate sale close spring\n")]
    Close(OneSale),
    /// Show one sale
    #[command(before_help = "Examples:\n  floodgate sale show spring\n")]
    Show(OneSale),
    /// Show every sale
    #[command(before_help = "Examples:\n  floodgate sale list\n")]
    List {
        #[command(flatten)]
        admin: AdminArgs,
    },
}

#[derive(Debug, Args)]
struct OneSale {
    /// The sale's id
    sale_id: String,
    #[command(flatten)]
    admin: AdminArgs,
}

/// Calls the running server.
pub async fn run(args: &SaleArgs) -> anyhow::Result<Exit> {
    match &args.verb {
        Verb::Create { file, admin } => create(file, admin).await,
        Verb::Open(target) => {
            set_phase(target, "open", "open", "watch it: floodgate sale show").await
        }
        Verb::Pause(target) => {
            set_phase(target, "pause", "paused", "go on with: floodgate sale open").await
        }
        Verb::Close(target) => {
            set_phase(target, "close", "closed", "check it: floodgate audit --sale").await
        }
        Verb::Show(target) => show(target).await,
        Verb::List { admin } => show_all(admin).await,
    }
}

async fn create(file: &Path, admin: &AdminArgs) -> anyhow::Result<Exit> {
    let description = read_description(file)?;
    let client = admin.client()?;
    let sale = client.post(&["sales"], &description, Some(CALL_TIMEOUT)).await?;
    let id = field(&description, "sale_id");
    admin.output().data(&sale, || format!("sale {id} is created, and not open yet"))?;
    admin.output().note(&format!("next: floodgate sale open {id}"));
    Ok(Exit::Done)
}

async fn set_phase(target: &OneSale, verb: &str, phase: &str, next: &str) -> anyhow::Result<Exit> {
    let (id, admin) = (&target.sale_id, &target.admin);
    let path = ["sales", id, verb];
    let sale = admin.client()?.post(&path, &json!({}), Some(CALL_TIMEOUT)).await?;
    admin.output().data(&sale, || format!("sale {id} is {phase}"))?;
    admin.output().note(&format!("{next} {id}"));
    Ok(Exit::Done)
}

async fn show(target: &OneSale) -> anyhow::Result<Exit> {
    let client = target.admin.client()?;
    let mut sale = client.get(&["sales", &target.sale_id], Some(CALL_TIMEOUT)).await?;
    let funnel = client.get(&["sales", &target.sale_id, "funnel"], Some(CALL_TIMEOUT)).await?;
    if let (Some(sale), Some(stages)) = (sale.as_object_mut(), funnel.get("stages")) {
        sale.insert("funnel".to_owned(), stages.clone());
    }
    let text = || format!("{}\n{}", render_sale(&sale), render_funnel(&sale));
    target.admin.output().data(&sale, text)?;
    Ok(Exit::Done)
}

async fn show_all(admin: &AdminArgs) -> anyhow::Result<Exit> {
    let answer = admin.client()?.get(&["sales"], Some(CALL_TIMEOUT)).await?;
    admin.output().data(&answer, || render_list(&answer))?;
    Ok(Exit::Done)
}

fn read_description(file: &Path) -> Result<Json, CommandFailure> {
    let (text, shown) = if file == Path::new("-") {
        (std::io::read_to_string(std::io::stdin()), "stdin".to_owned())
    } else {
        (std::fs::read_to_string(file), file.display().to_string())
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

/// Accepts `{"sales": [..]}`, as the API answers, and a bare array.
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

/// The requests in each stage; a question mark where the count is unavailable.
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
    fn an_unavailable_count_in_a_funnel_is_a_question_mark() {
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
    fn an_unreadable_description_is_named_in_the_error() {
        let error = read_description(Path::new("/nowhere/sale.json")).unwrap_err();
        assert!(error.problem.contains("/nowhere/sale.json"), "{error}");
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "{\"sale_id\": }").unwrap();
        let error = read_description(file.path()).unwrap_err();
        assert_eq!(error.exit, Exit::Unclear);
        assert!(error.problem.contains("line 1 column 13"), "{error}");
    }
}
