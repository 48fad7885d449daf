//! The served OpenAPI documents: a validator accepts them, and the server keeps them.

use floodgate::config::Tier;
use secrecy::SecretString;
use serde_json::{Value as Json, json};
use tempfile::TempDir;

use super::{one_per_buyer, selling};
use crate::support::TestApp;
use crate::support::app::fresh_settings;
use crate::support::python::{program, text};

/// Random cases of each operation and of each phase of Schemathesis.
const CASES: &str = "10";

const SEED: &str = "1";

const TOKEN: &str = "a token of operators";

/// The documents of both listeners.
async fn documents(app: &TestApp) -> [(&'static str, Json); 2] {
    let mut found = Vec::new();
    for address in [app.public, app.internal] {
        let answer = app.client.get(format!("http://{address}/openapi.json")).send().await.unwrap();
        assert_eq!(answer.status(), 200);
        found.push(answer.json().await.unwrap());
    }
    let internal = found.pop().unwrap();
    [("public", found.pop().unwrap()), ("internal", internal)]
}

#[tokio::test]
async fn a_validator_accepts_both_documents() {
    let app = selling(one_per_buyer(), 5).await;
    let folder = TempDir::new().unwrap();
    for (name, document) in documents(&app).await {
        assert!(document["openapi"].as_str().unwrap().starts_with("3.1"), "{name}");
        let file = folder.path().join(name);
        std::fs::write(&file, document.to_string()).unwrap();
        let output = program("openapi-spec-validator").arg(&file).output().unwrap();
        assert!(output.status.success(), "{name}: {}", text(&output));
    }
}

#[tokio::test]
async fn a_validator_refuses_a_document_with_an_operation_id_twice() {
    let app = selling(one_per_buyer(), 5).await;
    let [(_, mut document), _] = documents(&app).await;
    document["paths"]["/v1/orders"]["get"]["operationId"] = json!("listSales");
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("twice");
    std::fs::write(&file, document.to_string()).unwrap();
    let output = program("openapi-spec-validator").arg(&file).output().unwrap();
    assert!(!output.status.success() && text(&output).contains("listSales"), "{}", text(&output));
}

/// Statuses, media types, headers and bodies of the answers to requests that the documents allow,
/// and to those that they do not. Left out: that the server accepts all that the documents allow
/// (cursors and times have rules of their own); on the public listener that it checks credentials,
/// which mode `header` does not; on the internal one the start of an audit, which is `busy` while
/// another runs, and the feed, which may be told to wait for longer than Schemathesis does.
#[tokio::test]
async fn schemathesis_finds_no_answer_that_the_documents_do_not_describe() {
    let (mut settings, _stores) = fresh_settings(Tier::Memory);
    settings.admin.token = SecretString::from(TOKEN);
    let app = TestApp::start(settings);
    let folder = TempDir::new().unwrap();
    let of_listener = [
        (app.public, "X-Buyer-Id: 42".to_owned(), "positive_data_acceptance,ignored_auth"),
        (app.internal, format!("Authorization: Bearer {TOKEN}"), "positive_data_acceptance"),
    ];
    for (address, credentials, excluded) in of_listener {
        let mut command = program("st");
        command.current_dir(folder.path()).env("NO_COLOR", "1");
        command.args(["run", &format!("http://{address}/openapi.json")]);
        command.args(["--header", &credentials, "--seed", SEED, "--max-examples", CASES]);
        command.args(["--checks", "all", "--exclude-checks", excluded, "--warnings", "off"]);
        command.args(["--phases", "coverage,fuzzing", "--generation-database", "none"]);
        command.args(["--exclude-path", "/admin/v1/audits"]);
        command.args(["--exclude-path", "/admin/v1/order-events"]);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", text(&output));
        assert!(text(&output).contains("generated"), "{}", text(&output));
    }
    let ready = app.client.get(format!("http://{}/readyz", app.internal)).send().await.unwrap();
    assert_eq!(ready.status(), 200);
}

#[tokio::test]
async fn the_body_of_a_webhook_has_a_schema() {
    let app = selling(one_per_buyer(), 5).await;
    let [(_, document), _] = documents(&app).await;
    let webhook = &document["paths"]["/v1/payments/events"]["post"];
    let body = &webhook["requestBody"]["content"]["application/json"]["schema"];
    assert_eq!(body["$ref"], "#/components/schemas/EventBody");
    let data = &document["components"]["schemas"]["EventData"];
    assert_eq!(data["required"], json!(["payment_id", "amount", "currency"]));
}

/// The smallest and the greatest `limit` of a document are those of the server.
#[tokio::test]
async fn limits_of_pages_are_those_of_the_documents() {
    let app = selling(one_per_buyer(), 5).await;
    let mut checked = 0;
    for ((_, document), address) in
        documents(&app).await.into_iter().zip([app.public, app.internal])
    {
        for (path, item) in document["paths"].as_object().unwrap() {
            let parameters = item["get"]["parameters"].as_array().into_iter().flatten();
            let Some(limit) = parameters.into_iter().find(|one| one["name"] == "limit") else {
                continue;
            };
            let number = |key: &str| limit["schema"][key].as_u64().unwrap();
            let (least, most) = (number("minimum"), number("maximum"));
            // Without a sale these have nothing to list.
            if path.contains('{') {
                continue;
            }
            for (value, status) in [(least - 1, 400), (least, 200), (most, 200), (most + 1, 400)] {
                let url = format!("http://{address}{path}?limit={value}");
                let call = app.client.get(&url).header("x-buyer-id", "1");
                assert_eq!(call.send().await.unwrap().status(), status, "{url}");
            }
            checked += 1;
        }
    }
    assert!(checked >= 6, "{checked} lists");
}
