//! `overdraft chat`: a conversation, line by line.

mod command;
mod conversation;
mod lines;

use std::process::ExitCode;

use overdraft_engine::{Engine, EngineError, human};

use crate::args::ChatArgs;
use crate::config::{Answering, Machine};
use crate::draft;
use crate::failure::{Failure, Result};
use crate::figures;
use crate::generate::{Ended, generate, request};
use crate::interrupt;
use crate::model::Model;
use crate::output::{Output, Reader};
use crate::prompt::ChatPrompt;
use crate::screen::{self, Screen};
use command::{Command, HELP};
use conversation::Conversation;
use lines::Lines;

pub(crate) fn chat(args: &ChatArgs) -> Result<ExitCode> {
    interrupt::listen();
    let screen = Screen::new(args.quiet);
    let model = Model::open(args.model.pair.model.as_deref())?;
    let machine = Machine::resolve(&args.model, model.hyper.context, &screen)?;
    let answering = Answering::resolve(&args.sampling, &model, true)?;
    let prompt = ChatPrompt::new(&model)?;
    model.greet(&screen);
    let draft = draft::choose(&args.model, &model, &screen)?;
    let mut engine = model.start(&machine, draft.as_ref(), &screen)?;
    let costs = model.cost_cache(&machine, draft.as_ref(), &engine);
    costs.as_ref().inspect(|c| {
        c.recall(&mut engine);
    });
    let conversation = Conversation::new(args.system.clone());
    let mut chat = Chat {
        engine,
        prompt,
        answering,
        conversation,
        screen,
        output: Output::new().show_draft(args.model.drafting.show_draft),
        last_figures: None,
    };
    let mut lines = Lines::open()?;
    if lines.is_terminal() {
        screen.greet("/help lists the commands, Ctrl-C stops an answer, Ctrl-D leaves");
    }
    while let Some(line) = lines.next()? {
        let went_well = match Command::parse(&line) {
            Command::Exit => break,
            Command::Nothing => Ok(Reader::There),
            Command::Say(text) => chat.answer(text),
            other => chat.obey(other),
        };
        match went_well {
            Ok(Reader::There) => {}
            Ok(Reader::Gone) => break,
            // A person can mend it and go on; a script would talk to the wrong conversation.
            Err(failure) if lines.is_terminal() && failure.code == 2 => {
                screen::error(&failure.message, failure.hint.as_deref());
            }
            Err(failure) => return Err(failure),
        }
    }
    costs.inspect(|c| c.keep(&chat.engine));
    Ok(ExitCode::SUCCESS)
}

struct Chat {
    engine: Engine,
    prompt: ChatPrompt,
    answering: Answering,
    conversation: Conversation,
    screen: Screen,
    output: Output,
    last_figures: Option<String>,
}

impl Chat {
    fn obey(&mut self, command: Command<'_>) -> Result<Reader> {
        match command {
            Command::Clear => {
                self.conversation.clear();
                self.screen.note("the conversation is empty again; a system message stays");
            }
            Command::System(text) => {
                self.conversation.set_system(text);
                let what = if text.is_empty() { "removed" } else { "set" };
                self.screen.note(&format!("system message {what}, from the next answer on"));
            }
            Command::Stats => self.show_stats()?,
            Command::Help => screen::line(HELP),
            Command::Unknown(name) => {
                return Err(Failure::input(format!("there is no command /{name}")).hint("/help lists them"));
            }
            Command::Say(_) | Command::Nothing | Command::Exit => {}
        }
        Ok(Reader::There)
    }

    /// Answers `text`. When that fails, the conversation is as before.
    fn answer(&mut self, text: &str) -> Result<Reader> {
        self.conversation.say(text);
        let answered = self.fit().and_then(|tokens| {
            let request = request(tokens, &self.answering);
            generate(&mut self.engine, request, &self.screen, |event| self.output.write_event(event))
        });
        let answer = answered.inspect_err(|_| self.conversation.unsay())?;
        self.output.end_line()?;
        let figures = figures::line(&answer.stats, &self.engine, answer.ended);
        self.screen.greet(&figures);
        self.last_figures = Some(figures);
        if answer.text.is_empty() && answer.ended == Ended::Interrupted {
            self.conversation.unsay();
        } else {
            self.conversation.hear(&answer.text);
        }
        Ok(if answer.ended == Ended::ReaderGone { Reader::Gone } else { Reader::There })
    }

    /// The conversation's tokens, its oldest turns left out if need be.
    fn fit(&mut self) -> Result<Vec<u32>> {
        let context = self.engine.config().context;
        // A quarter is kept for the answer, unless less was asked for.
        let room = context - self.answering.max_tokens.min(context / 4).max(1);
        let (tokens, dropped) = self.conversation.fit(room, |messages| self.prompt.tokens(messages))?;
        if dropped > 0 {
            let s = if dropped == 1 { "" } else { "s" };
            self.screen
                .note(&format!("the context is full; the oldest {dropped} turn{s} left the conversation"));
        }
        if tokens.len() >= context {
            let trained = self.engine.decoder().hyper.context;
            return Err(EngineError::PromptTooLong { prompt: tokens.len(), context, trained }.into());
        }
        Ok(tokens)
    }

    fn show_stats(&mut self) -> Result<()> {
        let context = self.engine.config().context;
        let used = match self.conversation.messages().as_slice() {
            [] => 0,
            messages => self.prompt.tokens(messages)?.len(),
        };
        let turns = self.conversation.n_turns();
        let s = if turns == 1 { "" } else { "s" };
        screen::line(&format!("conversation: {turns} turn{s}, {used} of {context} tokens"));
        let ledger = self.engine.ledger();
        let parts: Vec<String> = ledger
            .lines
            .iter()
            .filter(|l| l.1 > 0)
            .map(|(what, n)| format!("{what} {}", human(*n)))
            .collect();
        let taken = self.engine.device_bytes_taken();
        let taken = taken.map_or(String::new(), |n| format!("; taken on the device: {}", human(n)));
        screen::line(&format!("memory: {} ({}){taken}", human(ledger.total()), parts.join(", ")));
        screen::line(&format!("last answer: {}", self.last_figures.as_deref().unwrap_or("none yet")));
        Ok(())
    }
}
