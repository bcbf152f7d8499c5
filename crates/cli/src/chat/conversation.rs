//! What has been said, and what of it still fits.

use crate::failure::Result;
use crate::prompt::Message;

pub(super) struct Conversation {
    system: Option<Message>,
    /// User, assistant, user, ...
    turns: Vec<Message>,
}

impl Conversation {
    pub(super) fn new(system: Option<String>) -> Self {
        Self { system: system.filter(|s| !s.is_empty()).map(|s| Message::system(&s)), turns: Vec::new() }
    }

    pub(super) fn set_system(&mut self, text: &str) {
        self.system = (!text.is_empty()).then(|| Message::system(text));
    }

    pub(super) fn clear(&mut self) {
        self.turns.clear();
    }

    pub(super) fn say(&mut self, text: &str) {
        self.turns.push(Message::user(text));
    }

    /// Takes back what was said last and got no answer.
    pub(super) fn unsay(&mut self) {
        self.turns.pop_if(|m| m.role == "user");
    }

    pub(super) fn hear(&mut self, text: &str) {
        self.turns.push(Message::assistant(text));
    }

    pub(super) fn messages(&self) -> Vec<Message> {
        self.system.iter().chain(&self.turns).cloned().collect()
    }

    /// Questions with or without an answer.
    pub(super) fn n_turns(&self) -> usize {
        self.turns.iter().filter(|m| m.role == "user").count()
    }

    /// Drops the oldest turns until at most `room` tokens are left, but never the last; gives the tokens and how
    /// many turns went. Halves what may stay each time it is far too much, so that a long conversation is not
    /// rendered once for each of its turns.
    pub(super) fn fit(
        &mut self,
        room: usize,
        mut tokens_of: impl FnMut(&[Message]) -> Result<Vec<u32>>,
    ) -> Result<(Vec<u32>, usize)> {
        let mut dropped = 0;
        loop {
            let tokens = tokens_of(&self.messages())?;
            let turns = self.n_turns();
            if tokens.len() <= room || turns <= 1 {
                return Ok((tokens, dropped));
            }
            let drop = if tokens.len() / 4 > room { turns / 2 } else { 1 };
            self.turns.drain(..2 * drop);
            dropped += drop;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conversation(turns: usize) -> Conversation {
        let mut c = Conversation::new(Some("be brief".into()));
        for i in 0..turns {
            c.say(&format!("question {i}"));
            c.hear(&format!("answer {i}"));
        }
        c.say("last");
        c
    }

    #[test]
    fn the_oldest_turns_leave_and_the_system_message_stays() {
        // Ten tokens a message.
        let count = |m: &[Message]| Ok(vec![0; 10 * m.len()]);
        for (turns, room, left, dropped) in
            [(3, 80, 8, 0), (3, 79, 6, 1), (3, 40, 4, 2), (3, 5, 2, 3), (0, 5, 2, 0), (999, 40, 4, 998)]
        {
            let mut c = conversation(turns);
            let (tokens, n) = c.fit(room, count).unwrap();
            assert_eq!((tokens.len(), n), (10 * left, dropped), "{turns} turns, room for {room}");
            let messages = c.messages();
            assert_eq!(messages[0].role, "system");
            assert_eq!(messages[1].role, "user", "a conversation starts with a question");
            assert_eq!(messages.last().unwrap().content, "last");
        }
    }

    #[test]
    fn a_question_without_an_answer_can_be_taken_back() {
        let mut c = conversation(1);
        c.unsay();
        c.unsay();
        assert_eq!(c.n_turns(), 1, "what was answered stays");
        c.clear();
        assert_eq!(c.messages(), [Message::system("be brief")]);
        c.set_system("");
        assert!(c.messages().is_empty());
    }
}
