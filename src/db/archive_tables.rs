//! The tables of an archive: which rows belong to a sale, their order, and their columns.
//!
//! The rows are read as text of one form, so that every database gives the same bytes: numbers in
//! decimal digits, bytes in hexadecimal digits.

use serde_json::{Map, Value};

use super::Error;
use super::rows::readable;
use crate::domain::ArchiveTable;

/// How rows are found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArchiveScope {
    /// By the number of the sale.
    Sale,
    /// By the number of the SKU.
    Sku,
    /// By the request of an order or recorded failure of the SKU.
    Request,
}

/// How a column is written in JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ColumnKind {
    Number,
    /// A number beyond the 53 bits of JSON: written as text.
    Id,
    Text,
    /// Written in hexadecimal digits.
    Bytes,
}
use ColumnKind::{Bytes, Id, Number, Text};

/// One table of an archive.
#[derive(Debug)]
pub struct TableSpec {
    pub scope: ArchiveScope,
    /// The columns that order the rows of a scope. Those of scope `Request` follow the request's.
    pub key: &'static [&'static str],
    pub columns: &'static [(&'static str, ColumnKind)],
    /// The columns of units and money, and the one that each change of a row increments: their sums
    /// show a change between two reads.
    pub sums: &'static [&'static str],
}

/// The columns of a table whose sums are compared.
pub fn summed_columns(table: ArchiveTable) -> &'static [&'static str] {
    spec(table).sums
}

macro_rules! tables {
    ($($table:ident $scope:ident by [$($key:ident)+] sums [$($sum:ident)*]
        { $($column:ident $kind:ident)+ })+) => {
        /// The table's rows.
        pub fn spec(table: ArchiveTable) -> &'static TableSpec {
            match table {
                $(ArchiveTable::$table => &TableSpec {
                    scope: ArchiveScope::$scope,
                    key: &[$(stringify!($key)),+],
                    columns: &[$((stringify!($column), $kind)),+],
                    sums: &[$(stringify!($sum)),*],
                },)+
            }
        }
    };
}

tables! {
    Sales Sale by [sale_no] sums [] {
        sale_no Number sale_id Text title Text starts_at_ms Number ends_at_ms Number
        phase Number epoch Number opened_at_ms Number closed_at_ms Number
        created_at_ms Number currency Text ticket_required Number
    }
    SalePhases Sale by [epoch phase] sums [] {
        sale_no Number epoch Number phase Number changed_at_ms Number applied_at_ms Number
    }
    Skus Sku by [sku_no] sums [initial_stock available] {
        sku_no Number sale_no Number sku_id Text title Text price Number initial_stock Number
        available Number policy_kind Text policy_limit Number max_quantity Number buckets Number
        payment_window_s Number bar_lapsed Number slot_returns Number ends_max Number
        queue_timeout_s Number
    }
    Terms Sku by [epoch] sums [] {
        sku_no Number epoch Number since_ms Number price Number policy_limit Number
        max_quantity Number payment_window_s Number
    }
    StockChanges Sku by [change_no] sums [units] {
        sku_no Number change_id Text change_no Number wanted Number units Number total Number
        reason Text at_ms Number
    }
    Orders Sku by [buyer_id slot] sums [quantity amount version] {
        sku_no Number buyer_id Id slot Id request_id Id epoch Number quantity Number amount Number
        state Number placed_at_ms Number pay_by_ms Number trace_id Bytes published_at_ms Number
        recorded_at_ms Number version Number due_ms Number counts_for_limit Number
    }
    OrderEvents Request by [version] sums [] {
        request_id Id version Number sku_no Number buyer_id Id kind Number at_ms Number
        due_ms Number actor Text reason Text payment_id Text limit_back Number num_orders Number
        placed Bytes feed_no Number unfulfilled Number
    }
    Payments Sku by [buyer_id request_id attempt_no] sums [price received refunded_total] {
        sku_no Number buyer_id Id request_id Id attempt_no Number provider Text payment_id Text
        url Text price Number currency Text state Number received Number received_currency Text
        refunded_total Number refund_attempts Number refund_due_ms Number reason Text
    }
    PaymentEvents Request by [provider event_id] sums [] {
        provider Text event_id Text payment_id Text request_id Id outcome Number received Number
        currency Text refunded_total Number at_ms Number attempt Text
    }
    FailedRequests Sku by [request_id] sums [quantity] {
        request_id Id sku_no Number buyer_id Id quantity Number reason Text first_request_id Id
        owned Number quota Number recorded_at_ms Number
    }
    Quotas Sku by [buyer_id] sums [owned] {
        sku_no Number buyer_id Id owned Number quota Number
    }
    Bars Sku by [buyer_id request_id] sums [] {
        sku_no Number buyer_id Id request_id Id at_ms Number exempt_id Id
    }
    Repairs Sku by [repair_no] sums [] {
        repair_no Number sku_no Number request_id Id verdict Number action Text outcome Number
        detail Text at_ms Number
    }
}

/// Texts as one JSON array, in SQL.
pub fn array(texts: impl Iterator<Item = String>) -> String {
    format!("CAST(JSON_ARRAY({}) AS CHAR)", texts.collect::<Vec<_>>().join(", "))
}

/// The elements of such an array.
pub fn elements(array: &str) -> Result<Vec<Option<String>>, Error> {
    let parsed = serde_json::from_str(array).ok();
    readable(parsed, || "a row for the archive".to_owned(), "array", array)
}

impl TableSpec {
    /// All columns of a row as one JSON array, in SQL.
    pub fn row(&self) -> String {
        array(self.columns.iter().map(|(name, kind)| match kind {
            // HEX of NULL is an empty text in SQLite.
            Bytes => format!("CASE WHEN {name} IS NULL THEN NULL ELSE LOWER(HEX({name})) END"),
            Text => (*name).to_owned(),
            Number | Id => format!("CAST({name} AS CHAR)"),
        }))
    }

    /// A row as a JSON object.
    pub fn object(&self, row: &str) -> Result<Map<String, Value>, Error> {
        let mut object = Map::new();
        for ((name, kind), text) in self.columns.iter().zip(elements(row)?) {
            let value = match (text, kind) {
                (None, _) => Value::Null,
                (Some(digits), Number) => {
                    let number = digits.parse::<i64>().ok();
                    readable(number, || "a row for the archive".to_owned(), name, digits)?.into()
                }
                (Some(text), Id | Text | Bytes) => text.into(),
            };
            object.insert((*name).to_owned(), value);
        }
        Ok(object)
    }

    /// The key of a row, if it consists of numbers.
    pub fn key_of(&self, row: &Map<String, Value>) -> Result<Vec<i64>, Error> {
        let number = |name: &&str| {
            let value = row.get(*name).unwrap_or(&Value::Null);
            let number = value.as_i64().or_else(|| value.as_str()?.parse().ok());
            readable(number, || "a row for the archive".to_owned(), name, value)
        };
        self.key.iter().map(number).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_keep_ids_as_text_and_numbers_as_numbers() {
        let row = "[\"1\", \"9223372036854775807\", \"4\", \"-3\", null]";
        let object = spec(ArchiveTable::Bars).object(row).unwrap();
        let expected = "{\"at_ms\":-3,\"buyer_id\":\"9223372036854775807\",\"exempt_id\":null,\
                        \"request_id\":\"4\",\"sku_no\":1}";
        assert_eq!(Value::from(object.clone()).to_string(), expected);
        assert_eq!(spec(ArchiveTable::Bars).key_of(&object).unwrap(), [i64::MAX, 4]);
        assert!(spec(ArchiveTable::Repairs).key_of(&object).is_err());
        assert!(spec(ArchiveTable::Bars).object("[\"one\"]").is_err());
    }

    #[test]
    fn keys_and_sums_are_columns() {
        for table in ArchiveTable::ALL {
            let spec = spec(table);
            let has = |name: &&str| spec.columns.iter().any(|(column, _)| column == name);
            assert!(spec.key.iter().chain(spec.sums).all(has), "{}", table.name());
        }
    }
}
