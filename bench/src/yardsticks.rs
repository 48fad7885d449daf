//! A server that shows what clients and a machine can do: a minimal handler.

use std::net::Ipv4Addr;

use actix_web::{App, HttpResponse, HttpServer, web};
use anyhow::{Context, Result};
use floodgate::cli::exit::Exit;
use floodgate::cli::output::Output;
use serde::{Deserialize, Serialize};

/// Longest body that the minimal handler can answer, in bytes.
const BODY_MAX: usize = 8 * 1024;
const FILLER: [u8; BODY_MAX] = [b'x'; BODY_MAX];

/// The body of a purchase.
#[derive(Deserialize)]
struct Buy {
    sku_id: String,
    quantity: u32,
}

#[derive(Serialize)]
struct Bought<'a> {
    sku_id: &'a str,
    quantity: u32,
    detail: &'a str,
}

/// Runs a minimal actix-web server until the process is killed. It parses the body of a purchase
/// and answers JSON with as many bytes as the last path segment says. It first prints
/// `listening public=HOST:PORT`.
pub async fn handler() -> Result<Exit> {
    let server = HttpServer::new(|| App::new().route("/v1/buy/{bytes}", web::post().to(answer)))
        .workers(crate::meter::cores())
        .bind((Ipv4Addr::LOCALHOST, 0))
        .context("cannot listen")?;
    for address in server.addrs() {
        Output::new(false).data(&(), || format!("listening public={address}"))?;
    }
    server.run().await?;
    Ok(Exit::Done)
}

async fn answer(bytes: web::Path<usize>, buy: web::Json<Buy>) -> HttpResponse {
    let bought = Bought { sku_id: &buy.sku_id, quantity: buy.quantity, detail: "" };
    let envelope_bytes = r#"{"sku_id":"","quantity":0,"detail":""}"#.len() + bought.sku_id.len();
    let filler = FILLER.get(..bytes.saturating_sub(envelope_bytes)).unwrap_or(&FILLER);
    // The filler is ASCII, so the fallback is never used.
    let detail = std::str::from_utf8(filler).unwrap_or_default();
    HttpResponse::Ok().json(Bought { detail, ..bought })
}

#[cfg(test)]
mod tests {
    use actix_web::test;

    use super::*;

    #[actix_web::test]
    async fn the_answer_has_the_wanted_size() {
        let app = App::new().route("/v1/buy/{bytes}", web::post().to(answer));
        let app = test::init_service(app).await;
        let body = r#"{"sku_id":"s","quantity":1}"#;
        for bytes in [100, 250, 777] {
            let request = test::TestRequest::post()
                .uri(&format!("/v1/buy/{bytes}"))
                .insert_header(("content-type", "application/json"))
                .set_payload(body)
                .to_request();
            let answer = test::call_and_read_body(&app, request).await;
            assert_eq!(answer.len(), bytes);
            assert!(serde_json::from_slice::<serde_json::Value>(&answer).is_ok());
        }
    }
}
