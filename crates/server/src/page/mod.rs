//! What a browser sees at `/`: one page, its style and its scripts, carried in the binary and served as they were written.
//!
//! The files are the same for everybody and hold nothing of the model or its users, so they need no key; the page asks its
//! reader for one and sends it with its requests.

use std::hash::{DefaultHasher, Hash, Hasher};

use axum::body::Body;
use axum::extract::Path;
use axum::extract::rejection::PathRejection;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header};

use crate::http::error::{ApiError, Fault, Shape};

struct File {
    /// Below `/page/`.
    name: &'static str,
    kind: &'static str,
    text: &'static str,
}

macro_rules! files {
    ($($kind:literal: $($name:literal)*;)*) => {
        &[$($(File { name: $name, kind: $kind, text: include_str!(concat!("web/", $name)) }),*),*]
    };
}

const FILES: &[File] = files! {
    "text/html; charset=utf-8": "page.html";
    "text/css; charset=utf-8": "page.css" "answer.css" "figures.css";
    "image/svg+xml": "icon.svg";
    "text/javascript; charset=utf-8":
        "app.mjs" "align.mjs" "answer.mjs" "ask.mjs" "compare.mjs" "conversation.mjs" "door.mjs" "elements.mjs"
        "errors.mjs" "figures.mjs" "markdown.mjs" "meter.mjs" "plots.mjs" "settings.mjs" "settings_form.mjs"
        "sse.mjs" "turn.mjs" "write.mjs";
};

/// Nothing but our own files, and text is never made into elements: `trusted-types 'none'` refuses `innerHTML` and its kin
/// in the browser itself.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
     base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";

pub(crate) async fn page(headers: HeaderMap) -> Response<Body> {
    found("/", &headers).unwrap_or_else(nothing)
}

pub(crate) async fn file(name: Result<Path<String>, PathRejection>, headers: HeaderMap) -> Response<Body> {
    let path = name.map(|Path(name)| format!("/page/{name}"));
    path.ok().and_then(|path| found(&path, &headers)).unwrap_or_else(nothing)
}

/// The answer for a path of ours, also while the model is not there yet.
pub(crate) fn found(path: &str, asked: &HeaderMap) -> Option<Response<Body>> {
    let name = if path == "/" { "page.html" } else { path.strip_prefix("/page/")? };
    let file = FILES.iter().find(|file| file.name == name)?;
    let tag = HeaderValue::from_str(&tag(file.text)).ok()?;
    let is_known = asked.get_all(header::IF_NONE_MATCH).iter().any(|known| lists(known, &tag));
    let mut response = Response::new(if is_known { Body::empty() } else { Body::from(file.text) });
    if is_known {
        *response.status_mut() = StatusCode::NOT_MODIFIED;
    }
    let said = [
        (header::CONTENT_TYPE, file.kind),
        // A newer server has a newer page: the browser asks each time, and hears 304.
        (header::CACHE_CONTROL, "no-cache"),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ];
    let headers = response.headers_mut();
    headers.extend(said.map(|(name, value)| (name, HeaderValue::from_static(value))));
    headers.insert(header::ETAG, tag);
    Some(response)
}

fn nothing() -> Response<Body> {
    let message = "the page has no such file; a reload fetches the page of this version";
    ApiError::new(Fault::NotFound, message).code("unknown_file").response(Shape::OpenAi)
}

/// Of the content alone: the same text has the same tag in every process.
fn tag(text: &str) -> String {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    format!("\"{:016x}\"", hasher.finish())
}

/// Whether `If-None-Match` names this tag; proxies may have weakened it.
fn lists(known: &HeaderValue, tag: &HeaderValue) -> bool {
    let (Ok(known), Ok(tag)) = (known.to_str(), tag.to_str()) else { return false };
    known.split(',').map(str::trim).any(|one| one == "*" || one.strip_prefix("W/").unwrap_or(one) == tag)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_file_of_the_page_is_served_and_every_import_is_there() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/page/web");
        let on_disk: BTreeSet<String> = std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        assert_eq!(on_disk, FILES.iter().map(|f| f.name.to_owned()).collect());
        for file in FILES {
            for imported in file.text.split("from './").skip(1).filter_map(|rest| rest.split('\'').next()) {
                assert!(on_disk.contains(imported), "{} imports {imported}", file.name);
            }
        }
    }

    #[test]
    fn the_page_names_no_other_place_and_makes_no_elements_of_text() {
        for file in FILES {
            // The name of a kind of elements, which no browser fetches.
            let text = file.text.replace("http://www.w3.org/2000/svg", "");
            for never in [
                "http://",
                "https://",
                "url(//",
                "innerHTML",
                "outerHTML",
                "insertAdjacentHTML",
                "document.write",
                "eval(",
                "new Function",
                " style=",
                "onclick=",
                "onload=",
                "onerror=",
                "<style",
            ] {
                assert!(!text.contains(never), "{} has {never}", file.name);
            }
        }
    }

    #[test]
    #[rustfmt::skip]
    fn a_browser_that_has_the_file_is_not_sent_it_again() {
        let own = tag(FILES[0].text);
        for (known, status) in [
            (own.clone(), 304), (format!("W/{own}"), 304), (format!("\"other\", {own}"), 304), ("*".into(), 304),
            ("\"other\"".into(), 200), (own.trim_matches('"').to_owned(), 200), (String::new(), 200),
        ] {
            let asked = HeaderMap::from_iter([(header::IF_NONE_MATCH, HeaderValue::from_str(&known).unwrap())]);
            assert_eq!(found("/", &asked).unwrap().status(), status, "{known}");
        }
        assert!(found("/page/../mod.rs", &HeaderMap::new()).is_none());
    }
}
