//! Finds fixed words in text that comes character by character.

/// Holds back what may be the beginning of a word: never more than the longest of them.
#[derive(Clone, Debug, Default)]
pub(super) struct TagFinder {
    held: String,
}

pub(super) enum Found {
    /// The character may belong to a word.
    Waiting,
    Tag(&'static str),
    /// The first character held, which begins no word. Ask again with [`TagFinder::retry`].
    Text(char),
}

impl TagFinder {
    pub(super) fn push(&mut self, c: char, tags: &[&'static str]) -> Found {
        self.held.push(c);
        self.look(tags)
    }

    /// After [`Found::Text`]: what the characters behind it are. `None` when there are none.
    pub(super) fn retry(&mut self, tags: &[&'static str]) -> Option<Found> {
        if self.held.is_empty() { None } else { Some(self.look(tags)) }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.held.is_empty()
    }

    /// What is held when the text ends, or when other words matter from here on.
    pub(super) fn take(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    fn look(&mut self, tags: &[&'static str]) -> Found {
        if let Some(tag) = tags.iter().find(|tag| **tag == self.held) {
            self.held.clear();
            return Found::Tag(tag);
        }
        if tags.iter().any(|tag| tag.starts_with(self.held.as_str())) {
            return Found::Waiting;
        }
        match self.held.chars().next() {
            Some(first) => {
                self.held.drain(..first.len_utf8());
                Found::Text(first)
            }
            None => Found::Waiting,
        }
    }
}
