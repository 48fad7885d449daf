//! The endpoints of operators and probes.

use floodgate::config::Tier;
use reqwest::Response;
use reqwest::redirect::Policy;
use serde_json::{Value as Json, json};

use super::{Case, cases, fresh, one_per_buyer, problem, selling, unlimited};
use crate::support::TestApp;
use crate::support::app::sale_body;
use crate::support::process::Server;
use crate::support::wait::until;

async fn post(app: &TestApp, path: &str, body: &Json) -> Response {
    let url = format!("http://{}/admin/v1{path}", app.internal);
    app.client.post(url).json(body).send().await.unwrap()
}

async fn get(app: &TestApp, path: &str) -> Response {
    app.client.get(format!("http://{}{path}", app.internal)).send().await.unwrap()
}

#[tokio::test]
async fn a_sale_is_created_once_and_shown_as_it_was_described() {
    let app = fresh();
    let body = sale_body("sale", json!({"kind": "quota", "limit": 3}), 7, 4);
    let created = post(&app, "/sales", &body).await;
    assert_eq!(created.status(), 201);
    assert_eq!(created.headers()["location"], "/admin/v1/sales/sale");
    let created: Json = created.json().await.unwrap();
    assert_eq!((&created["phase"], &created["epoch"]), (&json!("draft"), &json!(0)));
    let sku = &created["skus"][0];
    assert_eq!((&sku["initial_stock"], &sku["stock_left"]), (&json!(7), &json!(7)));
    assert_eq!(sku["buckets"], 4);
    assert_eq!(sku["policy"], json!({"kind": "quota", "limit": 3, "max_quantity": 1_000_000}));
    assert_eq!(created["currency"], "CNY");
    assert_eq!(sku["slot_returns"], json!(["cancelled", "timed_out"]));
    assert_eq!((&sku["ends_max"], &sku["queue_timeout_s"]), (&json!(3), &json!(0)));
    problem(post(&app, "/sales", &body).await, 409, "sale-exists").await;

    let shown = app.admin("/sales/sale", None).await;
    assert_eq!(shown, created);
    assert_eq!(app.admin("/sales", None).await["sales"], json!([created]));
}

#[tokio::test]
async fn the_list_of_sales_has_pages() {
    let app = fresh();
    for sale in ["first", "second", "third"] {
        let body = sale_body(sale, one_per_buyer(), 1, 1);
        assert_eq!(post(&app, "/sales", &body).await.status(), 201);
    }
    let ids = |page: &Json| {
        let sales = page["sales"].as_array().unwrap();
        sales.iter().map(|sale| sale["sale_id"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let page = app.admin("/sales?limit=2", None).await;
    assert_eq!(ids(&page), ["first", "second"]);
    let cursor = page["next_cursor"].as_str().unwrap();
    let last = app.admin(&format!("/sales?limit=2&cursor={cursor}"), None).await;
    assert_eq!((ids(&last), last.get("next_cursor")), (vec!["third".to_owned()], None));
    for query in ["limit=0", "limit=201", "cursor=x", "phase=open"] {
        let answer = get(&app, &format!("/admin/v1/sales?{query}")).await;
        problem(answer, 400, "invalid-request").await;
    }
}

/// Its series ends; before it was closed, it may still be opened again.
#[tokio::test]
async fn a_closed_sale_of_long_ago_is_in_no_scrape() {
    let app = fresh();
    let mut body = sale_body("past", one_per_buyer(), 1, 1);
    body["starts_at"] = json!("2020-01-01T00:00:00Z");
    body["ends_at"] = json!("2020-01-02T00:00:00Z");
    assert_eq!(post(&app, "/sales", &body).await.status(), 201);
    let is_scraped = async || {
        let text = get(&app, "/metrics").await.text().await.unwrap();
        text.contains("floodgate_stock_left{sale=\"past\",sku=\"sku\"} 1")
    };
    app.admin("/sales/past/open", Some(json!({}))).await;
    assert!(is_scraped().await);
    app.admin("/sales/past/close", Some(json!({}))).await;
    assert!(!is_scraped().await);
}

#[tokio::test]
async fn a_sale_keeps_its_currency_and_what_its_ended_orders_free() {
    let app = fresh();
    let mut body = sale_body("sale", one_per_buyer(), 1, 1);
    body["currency"] = json!("EUR");
    for (name, value) in [
        ("slot_returns", json!(["refunded"])),
        ("ends_max", json!(0)),
        ("payment_window_s", json!(0)),
        ("queue_timeout_s", json!(600)),
        ("bar_lapsed", json!(true)),
    ] {
        body["skus"][0][name] = value;
    }
    assert_eq!(post(&app, "/sales", &body).await.status(), 201);
    let shown = app.admin("/sales/sale", None).await;
    assert_eq!(shown["currency"], "EUR");
    let sku = &shown["skus"][0];
    assert_eq!((&sku["slot_returns"], &sku["ends_max"]), (&json!(["refunded"]), &json!(0)));
    assert_eq!(sku["queue_timeout_s"], 600);
    assert_eq!((&sku["payment_window_s"], &sku["bar_lapsed"]), (&json!(0), &json!(true)));
}

#[tokio::test]
async fn faults_of_a_description_are_all_named() {
    let app = fresh();
    let mut body = sale_body("sale", one_per_buyer(), 0, 0);
    body["ends_at"] = body["starts_at"].clone();
    let problem_body = problem(post(&app, "/sales", &body).await, 400, "invalid-request").await;
    assert_eq!(problem_body["faults"].as_array().unwrap().len(), 3, "{problem_body}");

    let mut changes = vec![
        ("/starts_at", json!("tomorrow"), "body: starts_at: a time such as"),
        ("/starts_at", json!("0000-01-01T00:00:00+02:00"), "a time such as"),
        ("/ends_at", json!("9999-12-31T23:59:59-02:00"), "a time such as"),
        ("/ends_at", json!("+20000-01-01T00:00:00Z"), "a time such as"),
        ("/skus/0/policy", json!(["unlimited", null, null]), "an object"),
        ("/skus/0", json!(["sku", "A thing", 100, 1, {"kind": "unlimited"}]), "an object"),
        ("/ticket_required", json!(1), "body"),
        ("/skus", json!([]), "skus"),
        ("/skus/0/policy", json!({"kind": "first_come"}), "policy.kind"),
        ("/skus/0/policy", json!({"kind": "quota"}), "policy.limit"),
        ("/skus/0/policy", json!({"kind": "unlimited", "limit": 5}), "the policy quota"),
        ("/skus/0/policy", json!({"kind": "unlimited", "max_quantity": 0}), "policy.max_quantity"),
        ("/skus/0/initial_stock", json!(-1), "body: skus[0].initial_stock: invalid value"),
        ("/skus/0/price", json!(1.5), "body: skus[0].price: invalid type"),
        ("/title", json!("茶".repeat(201)), "1 to 200 characters"),
        ("/title", json!(" \u{3000}"), "not blank"),
        ("/skus/0/title", json!("Tea\u{7}"), "without control characters"),
    ];
    for id in ["", ".", "..", "a b", "a/b", "a:b", "{a}", "ä", &"x".repeat(65)] {
        changes.push(("/sale_id", json!(id), "body: sale_id: must be 1 to 64 characters out of"));
    }
    for (pointer, value, expected) in changes {
        let mut body = sale_body("sale", one_per_buyer(), 1, 1);
        *body.pointer_mut(pointer).unwrap() = value;
        let problem_body = problem(post(&app, "/sales", &body).await, 400, "invalid-request").await;
        assert!(
            problem_body["detail"].as_str().unwrap().contains(expected),
            "{pointer}: {problem_body}"
        );
    }
    for id in ["sale-2026.11_21", &"x".repeat(64)] {
        let created = post(&app, "/sales", &sale_body(id, one_per_buyer(), 1, 1)).await;
        assert_eq!(created.status(), 201, "{id}");
    }
    for (name, value) in [
        ("slot_returns", json!(["paid"])),
        ("slot_returns", json!(["cancelled", "lost"])),
        ("ends_max", json!(1_001)),
        ("payment_window_s", json!(-1)),
        ("queue_timeout_s", json!(-1)),
        ("queue_timeout_s", json!(2_592_001)),
    ] {
        let mut body = sale_body("sale", one_per_buyer(), 1, 1);
        body["skus"][0][name] = value;
        let found = problem(post(&app, "/sales", &body).await, 400, "invalid-request").await;
        assert!(found.to_string().contains(name), "{found}");
    }
    for currency in ["eur", "EURO", ""] {
        let mut body = sale_body("sale", one_per_buyer(), 1, 1);
        body["currency"] = json!(currency);
        let found = problem(post(&app, "/sales", &body).await, 400, "invalid-request").await;
        assert!(found.to_string().contains("ISO 4217"), "{found}");
    }
    let mut body = sale_body("sale", one_per_buyer(), 1, 1);
    body["colour"] = json!("red");
    let problem_body = problem(post(&app, "/sales", &body).await, 400, "invalid-request").await;
    assert!(problem_body["detail"].as_str().unwrap().contains("colour"), "{problem_body}");
}

#[tokio::test]
async fn verbs_are_repeat_safe_and_know_the_phases() {
    let app = selling(one_per_buyer(), 5).await;
    let (empty, before) = (json!({}), app.admin("/sales/sale", None).await["epoch"].clone());
    for _ in 0..2 {
        let opened: Json = post(&app, "/sales/sale/open", &empty).await.json().await.unwrap();
        assert_eq!((&opened["phase"], &opened["epoch"]), (&json!("open"), &before));
    }
    assert_eq!(post(&app, "/sales/sale/close", &empty).await.status(), 200);
    let problem_body =
        problem(post(&app, "/sales/sale/open", &empty).await, 409, "phase-conflict").await;
    assert_eq!((&problem_body["from"], &problem_body["to"]), (&json!("closed"), &json!("open")));
    let final_phase =
        "sale sale is closed and cannot become open; that is final: create another sale";
    assert_eq!(problem_body["detail"], final_phase);
    let draft = post(&app, "/sales", &sale_body("draft", one_per_buyer(), 1, 1)).await;
    assert_eq!(draft.status(), 201);
    let refused = post(&app, "/sales/draft/pause", &empty).await;
    let refused = problem(refused, 409, "phase-conflict").await.to_string();
    assert!(refused.contains("cannot become paused; possible now: open, close"), "{refused}");
    for verb in ["open", "pause", "close"] {
        let unknown = post(&app, &format!("/sales/other/{verb}"), &empty).await;
        problem(unknown, 404, "unknown-sku").await;
    }
    problem(get(&app, "/admin/v1/sales/other").await, 404, "unknown-sku").await;
    problem(get(&app, "/admin/v1/sales/a%20b/funnel").await, 404, "unknown-sku").await;
}

#[tokio::test]
async fn operators_see_actors_numbers_funnel_and_audit() {
    let app = selling(one_per_buyer(), 5).await;
    let bought = app.bought("sale", 1, json!({"sku_id": "sku", "quantity": 1})).await;
    assert_eq!(bought["state"], "success");

    let actors = app.admin("/actors", None).await;
    assert_eq!(actors["all_up"], true);
    let kinds: Vec<_> = actors["actors"].as_array().unwrap().iter().map(|a| &a["kind"]).collect();
    assert!(kinds.contains(&&json!("stock_gate")) && kinds.contains(&&json!("ledger_writer")));
    let stats = app.admin("/stats", None).await;
    assert_eq!((&stats["tier"], &stats["ready"]), (&json!(app.settings.tier), &json!(true)));
    assert_eq!(stats["orders_placed"], 1);
    until("the stock that is left", async || {
        (app.admin("/stats", None).await["skus"][0]["stock_left"] == 4).then_some(())
    })
    .await;
    assert_eq!(app.stage("sale", "committed").await, 1);
    app.assert_audit_holds().await;
    let audited = app.admin("/audit", Some(json!({"sale_id": "sale", "repair": false}))).await;
    assert_eq!(audited["num_orders"], 1);
    let repaired = app.admin("/audit", Some(json!({"repair": true}))).await;
    assert_eq!((&repaired["holds"], &repaired["repairs"]), (&json!(true), &json!([])));
    assert_eq!(app.admin("/repairs", None).await, json!({"repairs": []}));
    let begun = app.admin("/audits", Some(json!({"sale_id": "sale", "dry_run": true}))).await;
    assert_eq!((&begun["audit_id"], &begun["state"]), (&json!("1"), &json!("running")));
    until("the report of the audit", async || {
        let audit = app.admin("/audits/1", None).await;
        (audit["state"] == "done" && audit["report"]["holds"] == true).then_some(())
    })
    .await;
    problem(get(&app, "/admin/v1/audits/2").await, 404, "not-found").await;
    problem(get(&app, "/admin/v1/repairs?limit=0").await, 400, "invalid-request").await;
    problem(post(&app, "/audits", &json!({"sale_id": "x"})).await, 404, "unknown-sku").await;
    problem(post(&app, "/audit", &json!({"sale_id": "x"})).await, 404, "unknown-sku").await;
}

#[tokio::test]
async fn an_audit_without_a_body_covers_everything() {
    let app = selling(one_per_buyer(), 5).await;
    let url = format!("http://{}/admin/v1/audit", app.internal);
    let audited: Json = app.client.post(url).send().await.unwrap().json().await.unwrap();
    assert_eq!(audited["holds"], true);
    let at = chrono::DateTime::parse_from_rfc3339(audited["checked_at"].as_str().unwrap()).unwrap();
    assert_eq!(json!(at.timestamp_millis()), audited["checked_at_ms"]);
}

#[tokio::test]
async fn the_way_of_one_request_is_found_by_id_and_by_number() {
    let app = selling(unlimited(), 5).await;
    let id = app.request_id("sale", 7).await;
    let path = |id: &str| format!("/admin/v1/requests/{id}/trace");
    problem(get(&app, &path(&id)).await, 404, "not-found").await;
    let purchase = json!({"sku_id": "sku", "quantity": 2, "request_id": id});
    let call = app.client.post(app.url("/v1/buy/sale")).header("x-buyer-id", "7").json(&purchase);
    let traceparent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let bought = call.header("traceparent", traceparent).send().await.unwrap();
    assert!(bought.status().is_success(), "{bought:?}");
    app.bought("sale", 7, purchase).await;
    let (number, _) = id.split_once('-').unwrap();
    for id in [id.as_str(), number] {
        let trace: Json = get(&app, &path(id)).await.json().await.unwrap();
        assert_eq!((&trace["buyer_id"], &trace["sku_id"]), (&json!("7"), &json!("sku")));
        assert_eq!(trace["trace_id"], "4bf92f3577b34da6a3ce929d0e0e4736");
        assert!(trace["took_ms"].is_u64() && trace["next"].to_string().contains("done: it is an"));
        let stages: Vec<_> = trace["stages"].as_array().unwrap().iter().collect();
        let names: Vec<_> = stages.iter().map(|s| &s["stage"]).collect();
        match app.settings.tier {
            Tier::Pipeline => assert_eq!(names, ["gate", "relay", "ledger"]),
            _ => assert_eq!(names, ["gate", "ledger"]),
        }
        for stage in stages.into_iter().filter(|stage| stage["stage"] != "relay") {
            assert_eq!(
                (&stage["state"], &stage["quantity"]),
                (&json!("pending_payment"), &json!(2))
            );
            assert!(stage["at"].is_string());
        }
    }
    problem(get(&app, &path("x")).await, 400, "invalid-request").await;
}

#[tokio::test]
async fn no_cache_keeps_what_operators_see_and_no_browser_guesses_its_type() {
    let app = selling(one_per_buyer(), 5).await;
    for path in ["sales", "dead-letters", "stats", "actors"] {
        let answer = get(&app, &format!("/admin/v1/{path}")).await;
        assert_eq!(answer.status(), 200, "{path}");
        assert_eq!(answer.headers()["cache-control"], "no-store", "{path}");
        assert_eq!(answer.headers()["x-content-type-options"], "nosniff", "{path}");
        assert_eq!(answer.headers()["cross-origin-resource-policy"], "same-origin", "{path}");
    }
    for buyer in ["1", "none"] {
        let call = app.client.post(app.url("/v1/buy/sale")).header("x-buyer-id", buyer);
        let answer = call.json(&json!({"sku_id": "sku", "quantity": 1})).send().await.unwrap();
        assert_eq!(answer.headers()["x-content-type-options"], "nosniff", "{buyer}");
    }
}

/// By a relative reference: a proxy may serve the listener below a prefix.
#[tokio::test]
async fn the_root_leads_to_the_page() {
    let app = fresh();
    let client = reqwest::Client::builder().redirect(Policy::none()).build().unwrap();
    for path in ["/", "/ops"] {
        let answer = client.get(format!("http://{}{path}", app.internal)).send().await.unwrap();
        assert_eq!(answer.status(), 307, "{path}");
        assert_eq!(answer.headers()["location"], "ops/", "{path}");
    }
    let page = get(&app, "/").await;
    assert_eq!((page.status().as_u16(), page.url().path()), (200, "/ops/"));
}

#[tokio::test]
async fn probes_are_answered() {
    // A process whose ledger did not answer in time is not ready for a moment; it is always alive.
    let answered = async |app: &TestApp, path: &str| {
        until(path, async || {
            let answer = get(app, path).await;
            let may_wait = path != "/livez" && answer.status() == 503;
            assert!(may_wait || answer.status() == 200, "{path}: {}", answer.status());
            (answer.status() == 200).then_some(answer)
        })
        .await
    };
    let app = selling(one_per_buyer(), 5).await;
    for path in ["/livez", "/readyz", "/healthz"] {
        let answer = answered(&app, path).await;
        assert_eq!(answer.headers()["cache-control"], "no-store", "{path}");
        assert_eq!(answer.json::<Json>().await.unwrap(), json!({"status": "ok"}));
    }
    let verbose: Json = answered(&app, "/readyz?verbose").await.json().await.unwrap();
    let checks = verbose["checks"].as_array().unwrap();
    let names: Vec<_> = checks.iter().map(|check| &check["name"]).collect();
    assert_eq!(names, ["accepting", "actors", "ledger", "stock"]);
    for check in checks {
        // In tier `pipeline` an API process answers buyers without the ledger.
        let is_optional = app.settings.tier == Tier::Pipeline && check["name"] == "ledger";
        assert_eq!((&check["ok"], &check["required"]), (&json!(true), &json!(!is_optional)));
    }
}

/// Who did what, why, with which result; and that a caller was refused, but not how often.
#[tokio::test]
async fn verbs_and_refused_operators_leave_lines_in_the_log() {
    const TOKEN: &str = "the-token-of-ann-0123456789";
    const OF_READER: &str = "the-token-of-bob-9876543210";
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tokens");
    let tokens = format!("ann operate {TOKEN}\nbob read {OF_READER}\n");
    std::fs::write(&file, tokens).unwrap();
    let server =
        Server::start(folder.path(), &[("FLOODGATE__ADMIN__TOKENS_FILE", file.to_str().unwrap())]);
    let url = format!("http://{}/admin/v1/sales/none/open", server.internal);
    let open = |token: &str| {
        let call = reqwest::Client::new().post(&url).bearer_auth(token);
        call.json(&json!({"reason": "the courier is back"})).send()
    };
    for _ in 0..20 {
        assert_eq!(open("the-token-of-nobody-012345").await.unwrap().status(), 401);
    }
    for _ in 0..3 {
        assert_eq!(open(OF_READER).await.unwrap().status(), 403);
    }
    assert_eq!(open(TOKEN).await.unwrap().status(), 404);
    let log = until("the line of the verb", async || {
        Some(server.log()).filter(|log| log.contains("the courier is back"))
    })
    .await;
    let verbs: Vec<_> = log.lines().filter(|line| line.contains("operator: verb")).collect();
    let forbidden = |line: &&&str| line.contains("bob") && line.contains("403");
    assert_eq!(verbs.iter().filter(forbidden).count(), 3, "{verbs:?}");
    let verb = verbs.last().unwrap();
    for part in ["ann", "/admin/v1/sales/none/open", "the courier is back", "404", "trace_id"] {
        assert!(verb.contains(part), "{part}: {verb}");
    }
    let refused = log.lines().filter(|line| line.contains("operator: refused")).count();
    assert!((1..20).contains(&refused), "{refused} lines");
    assert!(!log.contains("the-token-of"), "{log}");
}

/// Cases that hold in every tier.
pub const CASES: &[Case] = &cases![
    a_sale_is_created_once_and_shown_as_it_was_described,
    the_list_of_sales_has_pages,
    a_closed_sale_of_long_ago_is_in_no_scrape,
    a_sale_keeps_its_currency_and_what_its_ended_orders_free,
    faults_of_a_description_are_all_named,
    verbs_are_repeat_safe_and_know_the_phases,
    operators_see_actors_numbers_funnel_and_audit,
    an_audit_without_a_body_covers_everything,
    the_way_of_one_request_is_found_by_id_and_by_number,
    no_cache_keeps_what_operators_see_and_no_browser_guesses_its_type,
    the_root_leads_to_the_page,
    probes_are_answered,
];
