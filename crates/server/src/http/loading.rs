//! While the model is loaded: somebody is there and says to wait.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, Response};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;

use super::about;
use super::error::{ApiError, Fault, Shape};

/// How long a client should wait before it asks again.
const RETRY_AFTER: Duration = Duration::from_secs(2);

/// Answers everything but `/live` and the page with 503. Never ends by itself; dropped, it leaves the address to whoever else listens
/// there.
pub async fn loading(listener: TcpListener) {
    let service = hyper::service::service_fn(|request: Request<hyper::body::Incoming>| async move {
        let path = request.uri().path();
        if let Some(page) = crate::page::found(path, request.headers()) {
            return Ok(page);
        }
        let response = match path {
            "/live" => about::live().await,
            "/health" | "/v1/health" | "/ready" => {
                about::status(axum::http::StatusCode::SERVICE_UNAVAILABLE, "loading")
            }
            _ => ApiError::new(Fault::Unavailable, "the model is being loaded")
                .code("loading")
                .retry_after(RETRY_AFTER)
                .response(Shape::of_path(path)),
        };
        Ok::<Response<Body>, Infallible>(response)
    });
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let mut http = http1::Builder::new();
        // One answer to a connection: the next request may find the model ready.
        http.timer(TokioTimer::new()).header_read_timeout(Duration::from_secs(10)).keep_alive(false);
        let connection = http.serve_connection(TokioIo::new(stream), service);
        tokio::spawn(async move {
            let _ = connection.await;
        });
    }
}
