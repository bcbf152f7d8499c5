//! `overdraft run`: one prompt, one text.

use std::process::ExitCode;

use overdraft_engine::EngineError;
pub(crate) use overdraft_server::http::raw_tokens;
use serde_json::json;

use crate::args::{ConversationArgs, RunArgs};
use crate::config::{self, Answering, Machine};
use crate::draft;
use crate::failure::Result;
use crate::figures;
use crate::generate::{Ended, generate, request};
use crate::input;
use crate::interrupt;
use crate::model::Model;
use crate::output::{Output, Reader};
use crate::prompt::{ChatPrompt, Message};
use crate::screen::Screen;

impl ConversationArgs {
    pub(crate) fn wants_chat(&self) -> bool {
        (self.chat || self.system.is_some()) && !self.no_chat
    }
}

pub(crate) fn run(args: &RunArgs) -> Result<ExitCode> {
    interrupt::listen();
    let screen = Screen::new(args.quiet);
    let model = Model::open(args.model.pair.model.as_deref())?;
    let machine = Machine::resolve(&args.model, model.hyper.context, &screen)?;
    let is_chat = args.conversation.wants_chat();
    let answering = Answering::resolve(&args.sampling, &model, is_chat)?;
    let prompt = input::prompt(args, model.is_demo)?;
    let tokens = if is_chat {
        let mut messages = Vec::new();
        messages.extend(args.conversation.system.as_ref().map(|text| Message::system(text)));
        messages.push(Message::user(&prompt.text));
        ChatPrompt::new(&model)?.tokens(&messages)?
    } else {
        raw_tokens(&model.tokenizer, &prompt.text)
    };

    // Before the weights are read: a context that memory shortens can only refuse more.
    if tokens.len() >= machine.context {
        let (prompt, context, trained) = (tokens.len(), machine.context, model.hyper.context);
        return Err(EngineError::PromptTooLong { prompt, context, trained }.into());
    }

    model.greet(&screen);
    if prompt.is_demo {
        screen.greet("no prompt given, so here is one; yours goes behind `overdraft run`");
    }
    let draft = draft::choose(&args.model, &model, &screen)?;
    let mut engine = model.start(&machine, draft.as_ref(), &screen)?;
    let costs = model.cost_cache(&machine, draft.as_ref(), &engine);
    let recalled = costs.as_ref().is_some_and(|c| c.recall(&mut engine));
    let mut output = Output::new().show_draft(args.model.drafting.show_draft);
    let request = request(tokens, &answering);
    let answer = if args.json {
        generate(&mut engine, request, &screen, |_| Ok(Reader::There))?
    } else {
        // A continuation reads better below what it continues.
        if prompt.is_shown && !is_chat && output.is_terminal {
            screen.echo(&prompt.text);
        }
        generate(&mut engine, request, &screen, |event| output.write_event(event))?
    };
    costs.inspect(|c| c.keep(&engine));
    if args.json {
        let object = json!({
            "text": answer.text,
            "tokens": answer.tokens,
            "finish_reason": answer.ended.name(),
            "figures": figures::as_json(&answer.stats, &engine),
            "settings": config::as_json(&machine, &answering, engine.config().context, is_chat),
            "model": model.as_json(),
            "draft": draft.as_ref().map(|d| d.name()),
            "costs_recalled": recalled,
        });
        output.write(&format!("{object}\n"))?;
    } else if output.is_terminal {
        output.end_line()?;
    }
    screen.figures(&figures::line(&answer.stats, &engine, answer.ended));
    Ok(match answer.ended {
        Ended::Interrupted => ExitCode::from(interrupt::EXIT_CODE),
        Ended::Finished(_) | Ended::ReaderGone => ExitCode::SUCCESS,
    })
}
