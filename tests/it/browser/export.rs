//! The page of a sale as static files: it shows the sale before it has asked the server.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{WIDE, assert_quiet, of, open, sale, shop};
use crate::support::TestApp;
use crate::support::browser::Browser;

/// A static host: the files of a folder with the headers that its file `_headers` has for all of
/// them. Everything else is 404, also the shop.
fn host(folder: PathBuf) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let headers = std::fs::read_to_string(folder.join("_headers")).unwrap();
    let shared = headers.lines().skip(1).take_while(|line| line.starts_with("  "));
    let shared: Vec<&str> = shared.map(str::trim).chain([""]).collect();
    let shared = shared.join("\r\n");
    // A thread for each connection: browsers open some in advance and send nothing. All end with
    // the test process.
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (folder, shared) = (folder.clone(), shared.clone());
            std::thread::spawn(move || drop(serve(stream.unwrap(), &folder, &shared)));
        }
    });
    url
}

fn serve(mut stream: TcpStream, folder: &Path, headers: &str) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    let first = lines.next().transpose()?.unwrap_or_default();
    // The whole head is read: a close with unread bytes resets the connection.
    lines.map_while(Result::ok).take_while(|line| !line.is_empty()).for_each(drop);
    let path = first.split(' ').nth(1).unwrap_or_default().split('?').next().unwrap_or_default();
    let name = if path == "/" { "index.html" } else { path.trim_start_matches('/') };
    let kind = match name.rsplit('.').next() {
        Some("html") => "text/html",
        Some("css") => "text/css",
        Some("js") => "text/javascript",
        _ => "image/svg+xml",
    };
    let (status, body) = std::fs::read(folder.join(name)).map_or((404, Vec::new()), |b| (200, b));
    let length = body.len();
    write!(stream, "HTTP/1.1 {status} X\r\nconnection: close\r\ncontent-length: {length}\r\n")?;
    write!(stream, "content-type: {kind}; charset=utf-8\r\n{headers}\r\n")?;
    stream.write_all(&body)
}

fn export(app: &TestApp, sale: &str, folder: &Path) -> std::process::Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_floodgate"));
    let url = format!("http://{}", app.internal);
    command.args(["sale", "export", sale]).arg(folder).args(["--internal-url", &url]);
    command.args(["--set", "payment.provider=demo"]);
    command.env_clear().current_dir(folder.parent().unwrap()).output().unwrap()
}

#[tokio::test]
async fn an_exported_page_shows_its_sale_without_the_server() {
    let app = shop();
    open(&app, sale(-1_000)).await;
    let temporary = tempfile::tempdir().unwrap();
    let folder = temporary.path().join("public");
    let output = export(&app, "spring", &folder);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let note = String::from_utf8(output.stderr).unwrap();
    assert!(note.ends_with("pass /v1/ and /demo-pay/ to the server\n"), "{note}");
    let served = app.client.get(app.url("/")).send().await.unwrap().text().await.unwrap();
    let page = std::fs::read_to_string(folder.join("index.html")).unwrap();
    let (start, end) = served.split_once("id=\"snapshot\">").unwrap();
    assert!(page.starts_with(start) && page.ends_with(end), "the same page with a snapshot");

    let browser = Browser::start(WIDE, "en").await;
    browser.open(&format!("{}/", host(folder))).await;
    browser.expect("h1", "Spring sale").await;
    browser.expect(&of("phone", ".price"), "4,999.00").await;
    browser.expect(".countdown", "Ends in").await;
    assert_eq!(browser.text(&of("phone", ".left")).await.unwrap(), "", "no old count is shown");
    browser.expect("main", "We cannot reach the shop.").await;
    browser.picture("exported").await;
    assert_quiet(&browser, &["404"]).await;

    let output = export(&app, "none", &temporary.path().join("none"));
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(!temporary.path().join("none").exists(), "nothing is written");
}

#[tokio::test]
async fn an_export_into_a_served_folder_cuts_no_page_and_writes_none_without_its_assets() {
    let app = shop();
    open(&app, sale(-1_000)).await;
    let temporary = tempfile::tempdir().unwrap();
    let folder = temporary.path().join("public");
    let (page, assets) = (folder.join("index.html"), folder.join("assets"));
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(&page, "old").unwrap();
    std::fs::write(&assets, "no folder").unwrap();
    let output = export(&app, "spring", &folder);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert_eq!(std::fs::read_to_string(&page).unwrap(), "old");

    std::fs::remove_file(&assets).unwrap();
    let visited = std::fs::File::open(&page).unwrap();
    let output = export(&app, "spring", &folder);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(std::io::read_to_string(visited).unwrap(), "old", "the file itself is unchanged");
    assert!(std::fs::read_to_string(&page).unwrap().contains("Spring sale"));
    let names = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<_> = names.collect();
    names.sort();
    assert_eq!(names, ["_headers", "assets", "index.html"]);
}
