//! A response as it grows, and whole.

use overdraft_engine::Finish;
use serde_json::{Map, Value, json};

use super::items::{Items, Numbered};
use crate::http::error::{ApiError, Shape};
use crate::http::figures::Figures;
use crate::http::running::{End, Happening};
use crate::http::sse::{Events, Writer};

pub(crate) struct Response {
    pub(super) id: String,
    pub(super) created: u64,
    pub(super) model: String,
    /// The request's own words.
    pub(super) echoed: Map<String, Value>,
    pub(super) items: Items,
    pub(super) has_begun: bool,
    pub(super) end: Option<End>,
    pub(super) out: Numbered,
}

impl Response {
    fn object(&self, status: &str) -> Value {
        let mut object = json!({
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "background": false,
            "error": null,
            "incomplete_details": null,
            "model": self.model,
            "output": self.items.done,
            "usage": null,
        });
        if let Value::Object(fields) = &mut object {
            fields.extend(self.echoed.clone());
        }
        object
    }

    /// Also told at once: agents wait for the first event.
    fn begin(&mut self) {
        if !std::mem::replace(&mut self.has_begun, true) {
            let object = self.object("in_progress");
            self.out.push("response.created", json!({"response": object}));
            self.out.push("response.in_progress", json!({"response": object}));
        }
    }

    fn take(&mut self, happening: Happening) {
        self.begin();
        match happening {
            Happening::Started { .. } | Happening::Scored { .. } => {}
            Happening::More { pieces, tokens, .. } => self.items.add(pieces, &tokens, &mut self.out),
            Happening::Ended { end, .. } => self.end = Some(end),
        }
    }

    /// The whole response, once all is over.
    fn finished(&mut self, figures: &Figures) -> Value {
        self.begin();
        let is_cut =
            self.end.as_ref().is_none_or(|e| matches!(e.finish, Finish::MaxTokens | Finish::Context));
        let status = if is_cut { "incomplete" } else { "completed" };
        self.items.close(status, &mut self.out);
        let mut object = self.object(status);
        if is_cut {
            object["incomplete_details"] = json!({"reason": "max_output_tokens"});
        }
        object["usage"] = figures.responses_usage();
        figures.add_to(&mut object);
        self.out.push(&format!("response.{status}"), json!({"response": object}));
        object
    }

    /// Everything at once, for a client that waits.
    pub(super) async fn whole(
        mut self,
        mut running: crate::http::running::Running,
    ) -> Result<(Value, Figures), ApiError> {
        while let Some(happening) = running.next().await {
            self.take(happening?);
            // Nobody reads events of a response that comes whole.
            self.out.events = Events::default();
        }
        let object = self.finished(&running.figures);
        Ok((object, running.figures))
    }
}

impl Writer for Response {
    fn happened(&mut self, happening: Happening, _: &Figures, out: &mut Events) {
        self.take(happening);
        out.append(&mut self.out.events);
    }

    fn end(&mut self, figures: &Figures, out: &mut Events) {
        self.finished(figures);
        out.append(&mut self.out.events);
    }

    fn fail(&mut self, error: &ApiError, out: &mut Events) {
        self.begin();
        let body = error.body(Shape::OpenAi);
        let code = error.code.unwrap_or("server_error");
        let mut object = self.object("failed");
        object["error"] = json!({"code": code, "message": body["error"]["message"]});
        self.out.push("response.failed", json!({"response": object}));
        out.append(&mut self.out.events);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::Piece;

    fn response() -> Response {
        let echoed = Map::from_iter([("store".to_owned(), json!(false))]);
        let (id, model) = ("resp_1".into(), "m".into());
        Response {
            id,
            created: 7,
            model,
            echoed,
            items: Items::new(None),
            has_begun: false,
            end: None,
            out: Numbered::default(),
        }
    }

    fn run(pieces: Vec<Piece>, finish: Finish) -> Vec<Value> {
        let (mut response, mut out, figures) = (response(), Events::default(), Figures::default());
        response.happened(Happening::Started { choice: 0 }, &figures, &mut out);
        response.happened(Happening::More { choice: 0, pieces, tokens: vec![] }, &figures, &mut out);
        response.happened(
            Happening::Ended { choice: 0, end: End { finish, called: false, stop: None } },
            &figures,
            &mut out,
        );
        response.end(&figures, &mut out);
        let data = |e: &str| serde_json::from_str(e.split_once("\ndata: ").unwrap().1).unwrap();
        out.text().split_terminator("\n\n").map(data).collect()
    }

    #[test]
    fn events_come_in_the_order_of_the_api_and_are_numbered() {
        let pieces = vec![
            Piece::Reasoning("a".into()),
            Piece::Content("b".into()),
            Piece::CallStart { index: 0, id: "c".into(), name: "f".into() },
            Piece::CallArgs { index: 0, text: "{}".into() },
            Piece::CallEnd { index: 0 },
        ];
        let events = run(pieces, Finish::EndToken);
        let names: Vec<&str> =
            events.iter().map(|e| e["type"].as_str().unwrap().strip_prefix("response.").unwrap()).collect();
        assert_eq!(
            names,
            [
                "created",
                "in_progress",
                "output_item.added",
                "reasoning_text.delta",
                "reasoning_text.done",
                "output_item.done",
                "output_item.added",
                "content_part.added",
                "output_text.delta",
                "output_text.done",
                "content_part.done",
                "output_item.done",
                "output_item.added",
                "function_call_arguments.delta",
                "function_call_arguments.done",
                "output_item.done",
                "completed",
            ]
        );
        assert!(events.iter().enumerate().all(|(i, e)| e["sequence_number"] == i));
        let last = &events.last().unwrap()["response"];
        let kinds: Vec<&str> =
            last["output"].as_array().unwrap().iter().map(|i| i["type"].as_str().unwrap()).collect();
        assert_eq!(kinds, ["reasoning", "message", "function_call"]);
        assert_eq!((&last["status"], &last["store"]), (&json!("completed"), &json!(false)));
    }

    #[test]
    fn an_answer_that_was_cut_is_incomplete() {
        let events = run(vec![Piece::Content("b".into())], Finish::MaxTokens);
        let last = events.last().unwrap();
        assert_eq!(last["type"], "response.incomplete");
        assert_eq!(last["response"]["incomplete_details"]["reason"], "max_output_tokens");
        assert_eq!(last["response"]["output"][0]["status"], "incomplete");
    }
}
