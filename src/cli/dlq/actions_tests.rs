//! Operations on dead letters, against a minimal HTTP server.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use super::*;
use crate::cli::admin::ServerArgs;
use crate::config::Settings;

/// Reads a whole request; returns its first line without the version.
fn read(stream: &mut TcpStream) -> String {
    let (mut request, mut bytes) = (String::new(), [0; 4096]);
    loop {
        let read = stream.read(&mut bytes).unwrap();
        request.push_str(std::str::from_utf8(&bytes[..read]).unwrap());
        let is_complete =
            request.starts_with("GET") && request.ends_with("\r\n\r\n") || request.ends_with("{}");
        if read == 0 || is_complete {
            return request.split(" HTTP/").next().unwrap().to_owned();
        }
    }
}

/// A server that answers by `answer`, or closes the connection on `None`; and its requests.
fn server(
    answer: impl Fn(&str) -> Option<(u16, Json)> + Send + 'static,
) -> (AdminClient, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let args =
        ServerArgs { internal_url: Some(format!("http://{}", listener.local_addr().unwrap())) };
    let client = AdminClient::new(&args, &Settings::for_test("sqlite://./x.db")).unwrap();
    let requests = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&requests);
    // The thread ends with the test process.
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let line = read(&mut stream).replace("/admin/v1/dead-letters", "");
            log.lock().unwrap().push(line.clone());
            if let Some((status, body)) = answer(&line) {
                let (body, close) = (body.to_string(), "connection: close\r\n");
                let length = body.len();
                let head =
                    format!("HTTP/1.1 {status} X\r\n{close}content-length: {length}\r\n\r\n");
                stream.write_all((head + &body).as_bytes()).unwrap();
            }
        }
    });
    (client, requests)
}

fn page_of(ids: [&str; 2], next: Option<&str>) -> (u16, Json) {
    let dead_letters = ids.map(|id| json!({ "id": id }));
    (200, json!({ "dead_letters": dead_letters, "next_cursor": next }))
}

fn done(done: &str, state: &str) -> (u16, Json) {
    (200, json!({ "done": done, "dead_letter": { "state": state } }))
}

fn refused() -> (u16, Json) {
    (409, json!({ "title": "Dead letter not replayable", "detail": "it is cut\u{1b}[2J" }))
}

#[tokio::test]
async fn open_dead_letters_are_replayed_page_by_page_up_to_the_limit() {
    let (client, requests) = server(|line| {
        Some(match line {
            "GET ?state=open&origin=relay&limit=3" => page_of(["9", "8"], Some("8")),
            "GET ?state=open&origin=relay&limit=2&cursor=8" => page_of(["7", "6"], Some("6")),
            "POST /7/replay" => done("published", "open"),
            "POST /8/replay" => done("resolved", "replayed"),
            "POST /6/replay" => done("published", "replayed"),
            _ => refused(),
        })
    });
    let mut run = Run::default();
    run.replay_open(&client, Some("relay"), 3, None).await;
    let order = requests
        .lock()
        .unwrap()
        .iter()
        .filter(|line| line.starts_with('P'))
        .cloned()
        .collect::<Vec<_>>();
    assert_eq!(order, ["POST /8/replay", "POST /9/replay", "POST /6/replay", "POST /7/replay"]);
    let summary = run.summary();
    assert!(run.failed.is_none() && summary["next_cursor"] == "6", "{summary}");
    let counts = ["num_published", "num_resolved", "num_refused"].map(|name| summary[name].clone());
    assert_eq!(counts, [json!(2), json!(1), json!(1)]);

    requests.lock().unwrap().clear();
    run.replay_open(&client, None, 3, Some("6".to_owned())).await;
    assert!(requests.lock().unwrap().is_empty(), "the limit is reached");
}

#[tokio::test]
async fn refused_dead_letters_do_not_block_others_and_are_tried_once() {
    let (client, requests) = server(|line| {
        Some(match line {
            "GET ?state=open&limit=2" => page_of(["9", "8"], Some("8")),
            "GET ?state=open&limit=2&cursor=8" => page_of(["8", "7"], None),
            _ => refused(),
        })
    });
    let mut run = Run::default();
    run.replay_open(&client, None, 2, None).await;
    assert_eq!(requests.lock().unwrap().len(), 2 + 3);
    assert_eq!((&run.next_cursor, &run.summary()["num_refused"]), (&None, &json!(3)));

    // A server that ignores cursors.
    let (client, requests) = server(|line| {
        let is_list = line.starts_with("GET");
        Some(if is_list { page_of(["9", "8"], Some("8")) } else { refused() })
    });
    let mut run = Run::default();
    run.replay_open(&client, None, 2, None).await;
    assert_eq!(requests.lock().unwrap().len(), 2 + 2);
    assert!(run.failed.is_none() && run.next_cursor.is_none(), "{run:?}");
}

#[tokio::test]
async fn an_unknown_outcome_is_not_counted_as_not_tried() {
    let (client, _) = server(|line| match line {
        "POST /1/replay" => Some(done("already", "replayed")),
        _ => None,
    });
    let mut run = Run::default();
    run.each(&client, &["1", "2", "3"].map(str::to_owned), "replay", &json!({})).await;
    let summary = run.summary();
    assert_eq!(summary["dead_letters"][1]["id"], "2");
    assert!(summary["dead_letters"][1]["unknown"].is_string(), "{summary}");
    let counts = ["num_already", "num_unknown", "num_not_tried"].map(|name| summary[name].clone());
    assert_eq!(counts, [1, 1, 1].map(|count| json!(count)));
    assert!(run.failed.unwrap().remedy.contains("repeats do no harm"));
    let text = render_results(&summary);
    assert!(text.contains("\ndead letter 2: may have been done: http"), "{text}");

    let problem = json!({ "title": "Broker away", "code": "broker-away" });
    let (client, _) = server(move |_| Some((503, problem.clone())));
    let mut run = Run::default();
    run.each(&client, &["1".to_owned()], "replay", &json!({})).await;
    assert_eq!(run.summary()["num_unknown"], 1);
    let failure = run.failed.unwrap();
    assert_eq!(failure.exit, Exit::Unclear);
    assert!(failure.remedy.contains("`floodgate doctor`"), "{failure}");
    assert!(!may_be_done(&Error::NoServer { url: String::new(), reason: String::new() }));
}

#[test]
fn results_are_listed_and_counted() {
    let results = vec![
        json!({ "id": "1", "done": "published", "state": "replayed" }),
        json!({ "id": "2", "done": "published", "state": "open" }),
        json!({ "id": "3", "done": "resolved", "state": "replayed" }),
        json!({ "id": "4", "refused": "Not replayable: it is cut\u{1b}[2J" }),
    ];
    let summary = Run { num_requested: 5, results, ..Run::default() }.summary();
    let expected = [
        "dead letter 1: published",
        "dead letter 2: published, and it is open again",
        "dead letter 3: resolved",
        "dead letter 4: refused: Not replayable: it is cut.[2J",
        "2 published, 1 resolved (their requests had ended), 1 refused, 1 not tried",
    ];
    assert_eq!(render_results(&summary).lines().collect::<Vec<_>>(), expected);
    assert_eq!(render_results(&Run::default().summary()), "nothing to do: no open dead letter");
}
