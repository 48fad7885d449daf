//! What the name of a member or a parameter says of its text, in all schemas: an id has a pattern,
//! a time is RFC 3339.

use serde_json::{Map, Value};

/// Names of one format, its pattern, and its greatest length.
const PATTERNS: [(&[&str], &str, u32); 6] = [
    (&["sale_id", "sku_id", "change_id"], "^[A-Za-z0-9._-]{1,64}$", 64),
    // A ticket, or a sale's id.
    (&["path_id"], "^[A-Za-z0-9._~-]{1,128}$", 128),
    // Operators may leave out all but the number.
    (&["request_id", "again", "replaced_by"], "^[0-9]{1,19}(-[0-9]{1,10}-[A-Za-z0-9_-]{16})?$", 47),
    (&["buyer_id"], "^[1-9][0-9]{0,18}$", 19),
    (&["dead_letter_id", "audit_id", "repair_id", "sku_no"], "^[0-9]{1,20}$", 20),
    (&["trace_id"], "^[0-9a-f]{32}$", 32),
];

/// Names of times; so is every other that ends in `_at`.
const TIMES: [&str; 4] = ["at", "time", "pay_by", "server_time"];

/// Adds the formats to all properties of schemas and to all parameters of a document.
pub fn add_formats(document: &mut Value) {
    match document {
        Value::Array(items) => items.iter_mut().for_each(add_formats),
        Value::Object(members) => {
            if let Some(Value::Object(properties)) = members.get_mut("properties") {
                properties.iter_mut().for_each(|(name, schema)| add_format(name, schema));
            }
            if let Some(Value::String(name)) = members.get("name").cloned()
                && members.contains_key("in")
                && let Some(schema) = members.get_mut("schema")
            {
                add_format(&name, schema);
            }
            members.values_mut().for_each(add_formats);
        }
        _ => {}
    }
}

/// Adds the format of the name to the schema of a text that has none of its own.
fn add_format(name: &str, schema: &mut Value) {
    let Value::Object(schema) = schema else { return };
    let has_own = ["format", "pattern", "enum"].iter().any(|key| schema.contains_key(*key));
    if has_own || !is_text(schema) {
        return;
    }
    if TIMES.contains(&name) || name.ends_with("_at") {
        schema.insert("format".to_owned(), "date-time".into());
    }
    if let Some((_, pattern, max)) = PATTERNS.iter().find(|(names, ..)| names.contains(&name)) {
        schema.insert("pattern".to_owned(), (*pattern).into());
        schema.insert("maxLength".to_owned(), (*max).into());
    }
}

/// Whether the values of a schema are texts, or texts and null.
fn is_text(schema: &Map<String, Value>) -> bool {
    match schema.get("type") {
        Some(Value::Array(types)) => types.iter().any(|one| one == "string"),
        Some(one) => one == "string",
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn texts_get_the_format_of_their_name() {
        let mut document = json!({
            "parameters": [
                {"name": "sale_id", "in": "path", "schema": {"type": "string"}},
                {"name": "limit", "in": "query", "schema": {"type": "integer"}},
            ],
            "Sale": {"properties": {
                "sale_id": {"type": ["string", "null"]},
                "ends_at": {"type": "string"},
                "at": {"type": "integer"},
                "again": {"type": "string", "enum": ["x"]},
                "title": {"type": "string"},
            }},
        });
        add_formats(&mut document);
        let (sale_id, of_sale) = (&document["parameters"][0], &document["Sale"]["properties"]);
        assert_eq!(sale_id["schema"]["pattern"], "^[A-Za-z0-9._-]{1,64}$");
        assert_eq!(of_sale["sale_id"]["maxLength"], 64);
        assert_eq!(of_sale["ends_at"]["format"], "date-time");
        for untouched in ["at", "again", "title"] {
            assert!(of_sale[untouched].get("format").is_none(), "{untouched}");
            assert!(of_sale[untouched].get("pattern").is_none(), "{untouched}");
        }
        assert!(document["parameters"][1]["schema"].get("pattern").is_none());
    }
}
