//! The OpenAPI documents, the metrics table and the API manual match the interface.

use floodgate::http::{INTERNAL, PUBLIC};
use reqwest::redirect::Policy;
use serde_json::{Value as Json, json};

use super::{one_per_buyer, problem, selling};

#[tokio::test]
async fn each_listener_describes_its_routes_with_their_refusals() {
    let app = selling(one_per_buyer(), 5).await;
    let mut documents = Vec::new();
    for (address, table) in [(app.public, PUBLIC), (app.internal, INTERNAL)] {
        let url = format!("http://{address}/openapi.json");
        let document: Json = app.client.get(url).send().await.unwrap().json().await.unwrap();
        for entry in table {
            let path = entry.path.replace(":.*}", "}");
            let operation = &document["paths"][&path][entry.method.as_str().to_lowercase()];
            let responses = operation["responses"].as_object().unwrap_or_else(|| panic!("{path}"));
            assert!(responses.keys().any(|status| status < &"400".to_owned()), "{path}");
            for code in entry.refusals {
                let described = &responses[&code.status().to_string()];
                let text = described["description"].as_str().unwrap();
                assert!(text.split(", ").any(|named| named == code.as_str()), "{path}: {text}");
            }
            for status in ["405", "408", "431", "500"] {
                let name = responses[status]["$ref"].as_str().unwrap();
                let name = name.strip_prefix("#/components/responses/").unwrap();
                assert!(document["components"]["responses"][name].is_object(), "{path} {status}");
            }
        }
        let schemas = &document["components"]["schemas"];
        for reference in document.to_string().split("\"#/components/schemas/").skip(1) {
            let name = reference.split('"').next().unwrap();
            assert!(schemas.get(name).is_some(), "{name} is not described");
        }
        documents.push(document);
    }
    let buy = &documents[0]["paths"]["/v1/buy/{path_id}"]["post"];
    let conflicts = "sold-out, already-purchased, quota-exceeded, discarded, cancelled-by-buyer, \
                     queue-timeout";
    assert_eq!(buy["responses"]["409"]["description"], conflicts);
    assert!(buy["responses"]["409"]["content"]["application/problem+json"].is_object());
    for (status, headers) in [
        ("200", vec!["Location", "Idempotent-Replayed", "traceparent"]),
        ("202", vec!["Location", "Retry-After", "Idempotent-Replayed", "traceparent"]),
        ("401", vec!["WWW-Authenticate", "traceparent"]),
        ("403", vec!["Retry-After", "Idempotent-Replayed"]),
        ("429", vec!["Retry-After", "RateLimit", "RateLimit-Policy"]),
        ("503", vec!["Retry-After"]),
    ] {
        let described = &buy["responses"][status]["headers"];
        for header in headers {
            assert!(described[header].is_object(), "{status} {header}");
        }
    }
    assert_eq!(buy["security"][0]["buyer"], json!([]));
    let parameters = buy["parameters"].as_array().unwrap();
    let key = parameters.iter().find(|parameter| parameter["name"] == "Idempotency-Key").unwrap();
    assert_eq!((&key["in"], &key["required"]), (&json!("header"), &json!(false)));
    let order = &documents[0]["components"]["schemas"]["OrderView"]["properties"];
    for id in ["request_id", "sale_id", "sku_id", "buyer_id"] {
        assert_eq!(order[id]["type"], "string", "{id}");
        assert!(order[id]["pattern"].is_string(), "{id}");
    }
    assert_eq!(order["placed_at"]["format"], "date-time");
}

#[tokio::test]
async fn a_document_is_compressed_and_a_reader_who_has_it_gets_no_second_copy() {
    let app = selling(one_per_buyer(), 5).await;
    for address in [app.public, app.internal] {
        let get = |name: &'static str, value: &str| {
            let call = app.client.get(format!("http://{address}/openapi.json"));
            call.header(name, value).send()
        };
        let packed = get("accept-encoding", "gzip").await.unwrap();
        assert_eq!(packed.headers()["content-type"], "application/json");
        assert_eq!(packed.headers()["cache-control"], "max-age=60");
        assert_eq!(packed.headers()["content-encoding"], "gzip");
        let tag = packed.headers()["etag"].to_str().unwrap().to_owned();
        let plain = get("accept-encoding", "identity").await.unwrap();
        assert_eq!(plain.headers()["etag"], tag);
        let length = plain.bytes().await.unwrap().len();
        assert!(packed.bytes().await.unwrap().len() < length / 4, "of {length} bytes");
        assert_eq!(get("if-none-match", &tag).await.unwrap().status(), 304);
    }
}

#[tokio::test]
async fn the_page_is_served_from_here() {
    let app = selling(one_per_buyer(), 5).await;
    let redirect = reqwest::Client::builder().redirect(Policy::none()).build().unwrap();
    let redirect = redirect.get(app.url("/docs")).send().await.unwrap();
    let location = redirect.headers()["location"].to_str().unwrap();
    assert_eq!((redirect.status().as_u16(), location), (308, "/docs/"));
    assert_eq!(redirect.headers()["cache-control"], "max-age=60");
    let page = app.client.get(app.url("/docs")).send().await.unwrap();
    assert_eq!(page.url().path(), "/docs/", "redirected");
    assert_eq!(page.headers()["content-type"], "text/html");
    let text = page.text().await.unwrap();
    assert!(!text.contains("https://"), "the page loads nothing from other hosts: {text}");
    for address in [app.public, app.internal] {
        let setup = format!("http://{address}/docs/swagger-initializer.js");
        let setup = app.client.get(setup).send().await.unwrap();
        let policy = setup.headers()["content-security-policy"].to_str().unwrap();
        assert!(policy.contains("frame-ancestors 'none'"), "{policy}");
        assert!(setup.text().await.unwrap().contains("/openapi.json"));
    }
}

#[tokio::test]
async fn every_exposed_metric_is_in_the_table_of_metrics() {
    let app = selling(one_per_buyer(), 1).await;
    for buyer in [1, 2] {
        app.buy("sale", buyer, json!({"sku_id": "sku", "quantity": 1})).await;
    }
    let metrics = app.client.get(format!("http://{}/metrics", app.internal)).send().await.unwrap();
    let kind = metrics.headers()["content-type"].to_str().unwrap().to_owned();
    assert!(kind.starts_with("application/openmetrics-text"), "{kind}");
    let text = metrics.text().await.unwrap();
    let manual = include_str!("../../../docs/operate/metrics.md");
    for line in text.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
        let (name, kind) = line.split_once(' ').unwrap();
        let name = match kind {
            "counter" => format!("{name}_total"),
            "info" => format!("{name}_info"),
            _ => name.to_owned(),
        };
        assert!(manual.contains(&format!("| `{name}` | {kind} |")), "{name} {kind}");
    }
    for line in [
        "floodgate_buy_total{outcome=\"placed\"} 1",
        "floodgate_buy_total{outcome=\"sold-out\"} 1",
        "floodgate_http_requests_total{route=\"/v1/buy/{path_id}\",status=\"200\"} 1",
        "floodgate_http_requests_total{route=\"/v1/buy/{path_id}\",status=\"409\"} 1",
        "floodgate_stock_left{sale=\"sale\",sku=\"sku\"} 0",
        "floodgate_orders_placed_total 1",
        "floodgate_actor_restarts_total{kind=\"ledger_writer\",reason=\"panicked\"} 0",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}\n{text}");
    }
}

#[test]
fn the_table_of_codes_is_in_the_api_document() {
    let manual = include_str!("../../../docs/api.md");
    for code in floodgate::http::ProblemCode::ALL {
        let (name, status) = (format!("`{}`", code.as_str()), code.status().to_string());
        let is_row = |line: &str| {
            let mut cells = line.split('|').skip(1).map(str::trim);
            cells.next().is_some_and(|codes| codes.split(", ").any(|code| code == name))
                && cells.next() == Some(&*status)
        };
        assert!(manual.lines().any(is_row), "{name} {status}");
    }
}

#[tokio::test]
async fn every_number_that_names_something_is_a_string() {
    fn check(at: &str, json: &Json) {
        match json {
            Json::Object(members) => members.iter().for_each(|(name, value)| {
                let is_name = name.ends_with("_id") || name == "sku_no";
                assert!(!is_name || value.is_string() || value.is_null(), "{at}.{name}");
                check(&format!("{at}.{name}"), value);
            }),
            Json::Array(items) => items.iter().for_each(|item| check(at, item)),
            _ => {}
        }
    }
    let app = selling(one_per_buyer(), 5).await;
    let (_, bought) = app.buy_json("sale", 1, json!({"sku_id": "sku", "quantity": 1})).await;
    check("buy", &bought);
    for path in ["/v1/sales", "/v1/orders"] {
        check(path, &app.get(path, 1).await.1);
    }
    let id = bought["request_id"].as_str().unwrap();
    let trace = format!("/requests/{id}/trace");
    for path in ["/sales", "/sales/sale/buckets", "/stats", &trace] {
        check(path, &app.admin(path, None).await);
    }
}

/// A call that takes a query refuses members that it does not know: a misspelt filter must not
/// become no filter. A call that takes none does not look at it.
#[tokio::test]
async fn queries_are_read_strictly_where_there_are_any() {
    let app = selling(one_per_buyer(), 5).await;
    let mut num_strict = 0;
    for address in [app.public, app.internal] {
        let url = |path: &str| format!("http://{address}{path}");
        let document = app.client.get(url("/openapi.json")).send().await.unwrap();
        let document: Json = document.json().await.unwrap();
        let paths = document["paths"].as_object().unwrap().iter();
        let is_api = |path: &str| ["/v1/", "/admin/v1/"].iter().any(|at| path.starts_with(at));
        for (path, methods) in paths.filter(|(path, _)| is_api(path)) {
            for (method, operation) in methods.as_object().unwrap() {
                let parameters = operation["parameters"].as_array();
                let is_in = |parameter: &Json| parameter["in"] == "query";
                let has_query = parameters.is_some_and(|all| all.iter().any(is_in));
                if method != "get" && !has_query {
                    continue;
                }
                let path = path.replace("{sale_id}", "sale").replace(['{', '}'], "");
                let send = async |query: &str| {
                    let method = method.to_uppercase().parse().unwrap();
                    let call = app.client.request(method, url(&format!("{path}{query}")));
                    call.header("x-buyer-id", "1").json(&json!({})).send().await.unwrap()
                };
                let answer = send("?no_such_member=1").await;
                if has_query {
                    let body = problem(answer, 400, "invalid-request").await;
                    let detail = body["detail"].as_str().unwrap();
                    assert!(detail.contains("no_such_member"), "{path}: {detail}");
                    num_strict += 1;
                } else {
                    assert_eq!(answer.status(), send("").await.status(), "{path}");
                }
            }
        }
    }
    assert!(num_strict >= 10, "{num_strict} calls with a query");
}
