//! `floodgate sale set` and `floodgate sale restock`: a sale that changes while it runs.

use clap::Args;
use serde_json::{Value as Json, json};

use super::admin::{AdminClient, CALL_TIMEOUT, SaleVerbArgs, given};
use super::exit::{CommandFailure, Exit};
use super::output::{Output, field};

pub const SET_EXAMPLES: &str = "\
Examples:
  floodgate sale set spring --ends-at 2030-03-20T22:00:00Z --reason 'an hour longer'
  floodgate sale set spring --sku phone --price 189900
  floodgate sale set spring --sku phone --payment-window 600
";

pub const RESTOCK_EXAMPLES: &str = "\
Examples:
  floodgate sale restock spring phone 500 --change-id delivery-2030-117
  floodgate sale restock spring phone -200 --change-id damaged-4 --reason 'water damage'
";

/// What changes in a sale; what is not given stays.
#[derive(Debug, Args)]
pub struct SetArgs {
    /// Title of the sale or, with --sku, of the SKU
    #[arg(long)]
    title: Option<String>,
    /// First instant after the window, RFC 3339
    #[arg(long, value_name = "TIME", value_parser = time)]
    ends_at: Option<String>,
    /// The SKU whose title or terms change
    #[arg(long, value_name = "SKU")]
    sku: Option<String>,
    /// Price of one unit, a whole number of the currency's smallest unit
    #[arg(long, requires = "sku", allow_negative_numbers = true,
          value_parser = clap::value_parser!(i64).range(0..))]
    price: Option<i64>,
    /// Most units over all orders of a buyer (policy quota)
    #[arg(long, requires = "sku")]
    limit: Option<u32>,
    /// Most units in one order
    #[arg(long, requires = "sku")]
    max_quantity: Option<u32>,
    /// How long an order may stay unpaid, seconds; 0: for ever
    #[arg(long, requires = "sku", value_name = "SECONDS")]
    payment_window: Option<i32>,
    #[command(flatten)]
    sale: SaleVerbArgs,
}

/// A change of the stock.
#[derive(Debug, Args)]
pub struct RestockArgs {
    /// The sale's id
    sale_id: String,
    /// The SKU's id
    sku_id: String,
    /// Units to add; negative: free units to take out
    #[arg(allow_negative_numbers = true)]
    delta: i32,
    /// Names the change: a repeat with the same id changes nothing
    #[arg(long, value_name = "ID")]
    change_id: String,
    /// Why; stored with the change
    #[arg(long)]
    reason: Option<String>,
}

fn time(text: &str) -> Result<String, &'static str> {
    let time = chrono::DateTime::parse_from_rfc3339(text);
    time.map(|_| text.to_owned())
        .map_err(|_invalid| "a time such as 2030-03-20T20:00:00Z is needed")
}

impl SetArgs {
    /// The body of the request, without what stays.
    fn body(&self) -> Json {
        let (of_sale, of_sku) = match &self.sku {
            None => (self.title.as_ref(), None),
            Some(_) => (None, self.title.as_ref()),
        };
        let sku = self.sku.as_ref().map(|sku| {
            vec![given([
                ("sku_id", json!(sku)),
                ("title", json!(of_sku)),
                ("price", json!(self.price)),
                ("limit", json!(self.limit)),
                ("max_quantity", json!(self.max_quantity)),
                ("payment_window_s", json!(self.payment_window)),
            ])]
        });
        given([
            ("title", json!(of_sale)),
            ("ends_at", json!(self.ends_at)),
            ("skus", json!(sku)),
            ("reason", json!(self.sale.reason)),
        ])
    }

    pub async fn run(&self, client: &AdminClient, output: &Output) -> anyhow::Result<Exit> {
        let body = self.body();
        let sku = body.pointer("/skus/0").and_then(Json::as_object);
        let is_empty = !["title", "ends_at", "skus"].iter().any(|name| body.get(name).is_some());
        // A SKU without a term has only its id.
        if is_empty || sku.is_some_and(|sku| sku.len() == 1) {
            let of_sku = self.sku.as_ref().map(|sku| format!(" in SKU {sku}"));
            let problem = format!("nothing to change{}", of_sku.unwrap_or_default());
            let remedy = "give --title, --ends-at (without --sku) or, with --sku, --title, \
                          --price, --limit, --max-quantity or --payment-window";
            return Err(CommandFailure::unclear(problem, remedy).into());
        }
        let sale_id = &self.sale.sale_id;
        let sale = client.patch(&["sales", sale_id], &body, CALL_TIMEOUT).await?;
        output.data(&sale, || format!("sale {sale_id} is changed"))?;
        output.note(&format!("watch it: floodgate sale show {sale_id}"));
        Ok(Exit::Done)
    }
}

impl RestockArgs {
    pub async fn run(&self, client: &AdminClient, output: &Output) -> anyhow::Result<Exit> {
        let Self { sale_id, sku_id, delta, change_id, reason } = self;
        let body = given([
            ("delta", json!(delta)),
            ("change_id", json!(change_id)),
            ("reason", json!(reason)),
        ]);
        let path = ["sales", sale_id, "skus", sku_id, "stock"];
        let changed = client.post(&path, &body, CALL_TIMEOUT).await?;
        output.data(&changed, || {
            let names = ["changed", "initial_stock", "stock_left"];
            let [units, initial, left] = names.map(|name| field(&changed, name));
            let is_repeat = changed.get("repeated").is_some();
            let now = if is_repeat { "already done, nothing changed: " } else { "" };
            let done = format!("stock of {sku_id} changed by {units}, of {delta} wanted");
            format!("{now}{done}; initial stock {initial}, {left} left")
        })?;
        output.note(&format!("watch it: floodgate sale show {sale_id}"));
        Ok(Exit::Done)
    }
}
