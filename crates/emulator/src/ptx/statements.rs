//! PTX as statements: an opcode, whom it is for, and its operands, by name.

use super::tokens::{Placed, Token};

/// Reads on from one place of the text.
#[derive(Clone)]
pub(super) struct Cursor<'t, 'a> {
    tokens: &'t [Placed<'a>],
    at: usize,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Operand<'a> {
    Name(&'a str),
    Number(u64),
    /// A share: `1.0`.
    Text(&'a str),
    /// `!%p1`.
    Not(&'a str),
    /// `{a, b}`.
    Several(Vec<Operand<'a>>),
    /// `[base+offset]`.
    Place(&'a str, i64),
    /// `%r1|%p1`.
    Both(&'a str, &'a str),
    /// `(retval0)`.
    List(Vec<Operand<'a>>),
}

#[derive(Clone, Debug)]
pub(super) struct Statement<'a> {
    /// The predicate, and whether it has to be false.
    pub(super) guard: Option<(&'a str, bool)>,
    pub(super) opcode: &'a str,
    pub(super) operands: Vec<Operand<'a>>,
}

pub(super) type Result<T> = std::result::Result<T, String>;

impl<'t, 'a> Cursor<'t, 'a> {
    pub(super) fn new(tokens: &'t [Placed<'a>]) -> Self {
        Self { tokens, at: 0 }
    }

    pub(super) fn line(&self) -> u32 {
        self.tokens.get(self.at).or(self.tokens.last()).map_or(0, |t| t.line)
    }

    pub(super) fn is_at_end(&self) -> bool {
        self.at >= self.tokens.len()
    }

    pub(super) fn peek(&self) -> Option<Token<'a>> {
        self.peek_at(0)
    }

    pub(super) fn peek_at(&self, ahead: usize) -> Option<Token<'a>> {
        self.tokens.get(self.at + ahead).map(|t| t.token)
    }

    pub(super) fn next(&mut self) -> Result<Token<'a>> {
        let token = self.peek().ok_or("the text ends too early")?;
        self.at += 1;
        Ok(token)
    }

    /// Whether the mark is next, which is then behind.
    pub(super) fn takes(&mut self, mark: u8) -> bool {
        let is_next = self.peek() == Some(Token::Mark(mark));
        self.at += usize::from(is_next);
        is_next
    }

    pub(super) fn expect(&mut self, mark: u8) -> Result<()> {
        if self.takes(mark) {
            return Ok(());
        }
        Err(format!("line {}: `{}` was expected, not {:?}", self.line(), mark as char, self.peek()))
    }

    pub(super) fn name(&mut self) -> Result<&'a str> {
        match self.next()? {
            Token::Name(name) => Ok(name),
            other => Err(format!("line {}: a name was expected, not {other:?}", self.line())),
        }
    }

    pub(super) fn number(&mut self) -> Result<u64> {
        let is_negative = self.takes(b'-');
        match self.next()? {
            Token::Number(n) if is_negative => Ok(n.wrapping_neg()),
            Token::Number(n) => Ok(n),
            other => Err(format!("line {}: a number was expected, not {other:?}", self.line())),
        }
    }

    /// Up to and with the next `;`.
    pub(super) fn skip_statement(&mut self) -> Result<()> {
        while !self.takes(b';') {
            self.next()?;
        }
        Ok(())
    }

    /// What stands between this brace, which is next, and its partner.
    pub(super) fn block(&mut self) -> Result<Cursor<'t, 'a>> {
        self.expect(b'{')?;
        let (begin, mut depth) = (self.at, 1);
        while depth > 0 {
            match self.next()? {
                Token::Mark(b'{') => depth += 1,
                Token::Mark(b'}') => depth -= 1,
                _ => {}
            }
        }
        Ok(Cursor { tokens: &self.tokens[begin..self.at - 1], at: 0 })
    }

    /// Labels of this block, without those of blocks inside it.
    pub(super) fn labels(&self) -> Vec<&'a str> {
        let (mut depth, mut found) = (0, Vec::new());
        for pair in self.tokens[self.at..].windows(2) {
            match (pair[0].token, pair[1].token) {
                (Token::Mark(b'{'), _) => depth += 1,
                (Token::Mark(b'}'), _) => depth -= 1,
                (Token::Name(name), Token::Mark(b':')) if depth == 0 => found.push(name),
                _ => {}
            }
        }
        found
    }

    pub(super) fn statement(&mut self) -> Result<Statement<'a>> {
        let guard = if self.takes(b'@') {
            let is_not = self.takes(b'!');
            Some((self.name()?, is_not))
        } else {
            None
        };
        let opcode = self.name()?;
        let mut operands = Vec::new();
        while !self.takes(b';') {
            operands.push(self.operand()?);
            self.takes(b',');
        }
        Ok(Statement { guard, opcode, operands })
    }

    fn operand(&mut self) -> Result<Operand<'a>> {
        Ok(match self.peek() {
            Some(Token::Number(_) | Token::Mark(b'-')) => Operand::Number(self.number()?),
            Some(Token::Text(text)) => {
                self.at += 1;
                Operand::Text(text)
            }
            Some(Token::Mark(b'!')) => {
                self.at += 1;
                Operand::Not(self.name()?)
            }
            Some(Token::Mark(b'{')) => Operand::Several(self.list(b'{', b'}')?),
            Some(Token::Mark(b'(')) => Operand::List(self.list(b'(', b')')?),
            Some(Token::Mark(b'[')) => {
                self.at += 1;
                let base = self.name()?;
                let offset = if self.takes(b'+') { self.number()? as i64 } else { 0 };
                self.expect(b']')?;
                Operand::Place(base, offset)
            }
            _ => {
                let name = self.name()?;
                if self.takes(b'|') { Operand::Both(name, self.name()?) } else { Operand::Name(name) }
            }
        })
    }

    fn list(&mut self, open: u8, close: u8) -> Result<Vec<Operand<'a>>> {
        self.expect(open)?;
        let mut found = Vec::new();
        while !self.takes(close) {
            found.push(self.operand()?);
            self.takes(b',');
        }
        Ok(found)
    }
}
