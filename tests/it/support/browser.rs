//! A headless Chromium, driven through chromedriver. The W3C `WebDriver` protocol is a few JSON
//! calls.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use reqwest::{Client, Method};
use serde_json::{Value as Json, json};
use tempfile::TempDir;

use super::random::number_from_env as from_env;
use super::wait::until;

/// The key under which `WebDriver` returns an element.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

/// One browser with a profile of its own; closed when dropped.
pub struct Browser {
    driver: Child,
    session: String,
    http: Client,
    _profile: TempDir,
}

impl Browser {
    /// A browser whose page is `width` pixels wide and prefers `language`.
    pub async fn start(width: u32, language: &str) -> Self {
        // A browser may fail to start on a crowded machine; it says so before any test began.
        for _ in 0..2 {
            if let Ok(browser) = Self::try_start(width, language).await {
                return browser;
            }
        }
        Self::try_start(width, language).await.unwrap_or_else(|error| panic!("{error:#}"))
    }

    async fn try_start(width: u32, language: &str) -> Result<Self, Json> {
        let mut driver = Command::new("chromedriver")
            .arg("--port=0")
            .stdout(Stdio::piped())
            .spawn()
            .expect("chromedriver is installed by scripts/test-deps.sh");
        let lines = BufReader::new(driver.stdout.take().unwrap()).lines().map_while(Result::ok);
        let port = lines.filter_map(|line| {
            let (_, port) = line.split_once("started successfully on port ")?;
            port.trim_end_matches('.').parse::<u16>().ok()
        });
        // It chooses a port that is free in IPv4, and ends if it is not in IPv6.
        let Some(port) = { port }.next() else {
            driver.wait().unwrap();
            return Err(json!("chromedriver has not started"));
        };
        let profile = tempfile::tempdir().unwrap();
        let folder = format!("--user-data-dir={}", profile.path().display());
        let capabilities = json!({"capabilities": {"alwaysMatch": {
            "goog:chromeOptions": {
                "args": ["--headless=new", "--no-sandbox", "--disable-gpu",
                    "--disable-dev-shm-usage", folder],
                "prefs": {"intl.accept_languages": language},
            },
            "goog:loggingPrefs": {"browser": "ALL"},
        }}});
        let http = Client::new();
        let base = format!("http://127.0.0.1:{port}/session");
        let mut browser = Self { driver, session: base, http, _profile: profile };
        let session = browser.try_call(Method::POST, "", capabilities).await?;
        browser.session = format!("{}/{}", browser.session, session["sessionId"].as_str().unwrap());
        browser
            .emulate(
                "Emulation.setDeviceMetricsOverride",
                json!({
                    "width": width, "height": 900, "deviceScaleFactor": 1, "mobile": false,
                }),
            )
            .await;
        Ok(browser)
    }

    async fn try_call(&self, method: Method, path: &str, body: Json) -> Result<Json, Json> {
        let call = self.http.request(method.clone(), format!("{}{path}", self.session));
        let call = if method == Method::POST { call.json(&body) } else { call };
        let mut answer: Json = call.send().await.unwrap().json().await.unwrap();
        let value = answer["value"].take();
        if value.get("error").is_some() { Err(value) } else { Ok(value) }
    }

    async fn call(&self, method: Method, path: &str, body: Json) -> Json {
        let answer = self.try_call(method, path, body.clone()).await;
        answer.unwrap_or_else(|error| panic!("{path} {body}: {error:#}"))
    }

    pub async fn open(&self, url: &str) {
        self.call(Method::POST, "/url", json!({"url": url})).await;
    }

    pub async fn reload(&self) {
        self.call(Method::POST, "/refresh", json!({})).await;
    }

    pub async fn back(&self) {
        self.call(Method::POST, "/back", json!({})).await;
    }

    /// Opens a tab of the same profile and moves to it. Returns the tab left behind.
    pub async fn new_tab(&self) -> Json {
        let left = self.call(Method::GET, "/window", Json::Null).await;
        let tab = self.call(Method::POST, "/window/new", json!({"type": "tab"})).await;
        self.to_tab(&tab["handle"]).await;
        left
    }

    pub async fn to_tab(&self, handle: &Json) {
        self.call(Method::POST, "/window", json!({"handle": handle})).await;
    }

    /// Runs the body of a function; its value, or that of its promise.
    pub async fn run(&self, script: &str) -> Json {
        let body = json!({"script": script, "args": []});
        self.call(Method::POST, "/execute/sync", body).await
    }

    /// A command of the `DevTools` protocol.
    pub async fn emulate(&self, command: &str, parameters: Json) -> Json {
        let body = json!({"cmd": command, "params": parameters});
        self.call(Method::POST, "/goog/cdp/execute", body).await
    }

    /// The text of the first element, if it is there.
    pub async fn text(&self, selector: &str) -> Option<String> {
        let script = format!("return document.querySelector({})?.innerText", json!(selector));
        self.run(&script).await.as_str().map(str::to_owned)
    }

    /// Waits until the element's text contains `part`.
    pub async fn expect(&self, selector: &str, part: &str) -> String {
        until(&format!("{part:?} in {selector}"), async || {
            self.text(selector).await.filter(|text| text.contains(part))
        })
        .await
    }

    /// Waits until the script returns `value`.
    pub async fn becomes(&self, script: &str, value: impl Into<Json>) {
        let value = value.into();
        until(&format!("{value} of {script}"), async || {
            (self.run(script).await == value).then_some(())
        })
        .await;
    }

    /// Moves the focus to the element.
    pub async fn focus(&self, selector: &str) {
        let selector = json!(selector);
        let script = format!(
            "const element = document.querySelector({selector}); element?.focus(); \
             return element !== null && element === document.activeElement"
        );
        self.becomes(&script, true).await;
    }

    /// Clicks the element as a person does: as soon as it is visible and not covered.
    pub async fn click(&self, selector: &str) {
        let body = json!({"using": "css selector", "value": selector});
        until(&format!("a click on {selector}"), async || {
            let found = self.call(Method::POST, "/elements", body.clone()).await;
            let click = format!("/element/{}/click", found[0][ELEMENT].as_str()?);
            // Refused: the page has just replaced the element, or another one covers it.
            self.try_call(Method::POST, &click, json!({})).await.ok()
        })
        .await;
    }

    /// Presses keys, at the element that has the focus.
    pub async fn press(&self, keys: &str) {
        let strokes = keys.chars().flat_map(|key| {
            [json!({"type": "keyDown", "value": key}), json!({"type": "keyUp", "value": key})]
        });
        let strokes: Vec<Json> = strokes.collect();
        let source = json!({"type": "key", "id": "keys", "actions": strokes});
        self.call(Method::POST, "/actions", json!({"actions": [source]})).await;
    }

    /// Messages of the browser since the last call: errors, warnings, violations of the policy.
    pub async fn log(&self) -> Vec<String> {
        let entries = self.call(Method::POST, "/se/log", json!({"type": "browser"})).await;
        let entries = entries.as_array().unwrap().iter();
        entries.map(|entry| entry["message"].as_str().unwrap().to_owned()).collect()
    }

    /// Writes a picture to the folder of `FLOODGATE_SCREENSHOTS`, if that is set: for a person.
    pub async fn picture(&self, name: &str) {
        let Some(folder) = from_env::<PathBuf>("FLOODGATE_SCREENSHOTS") else { return };
        let picture = self.call(Method::GET, "/screenshot", Json::Null).await;
        let bytes = STANDARD.decode(picture.as_str().unwrap()).unwrap();
        std::fs::write(folder.join(format!("{name}.png")), bytes).unwrap();
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Chromedriver ends the browsers that it started when it is asked to shut down.
        let port = self.session.split('/').nth(2).unwrap_or_default().to_owned();
        drop(shut_down(&port));
        drop(self.driver.kill());
        drop(self.driver.wait());
    }
}

/// A blocking call: the event loop of the test may have ended.
fn shut_down(address: &str) -> std::io::Result<()> {
    use std::io::{Read, Write};
    let mut socket = std::net::TcpStream::connect(address)?;
    socket.set_read_timeout(Some(std::time::Duration::from_secs(10)))?;
    write!(socket, "GET /shutdown HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
    socket.read_to_end(&mut Vec::new()).map(drop)
}
