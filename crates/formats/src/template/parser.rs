//! Tokens into statements.

use std::collections::HashSet;
use std::sync::Arc;

use super::ast::{Block, Expr, For, MacroDef, Node, Postfix, Scoped, Stmt, Target};
use super::lexer::{Lexed, SourceFault, Token, tokenize};
use super::scoping;

pub(crate) type Parsed<T> = Result<T, SourceFault>;

/// Blocks and brackets inside each other. Real templates stay under 20.
const MAX_NESTING: usize = 64;

pub(crate) fn parse(source: &str) -> Parsed<Scoped> {
    let mut parser =
        Parser { tokens: tokenize(source)?, at: 0, nesting: 0, loops: 0, names_seen: Vec::new() };
    let body = parser.block(&[])?;
    match parser.peek() {
        Token::End => {
            let mut root = Scoped { nodes: body, hidden: Vec::new() };
            scoping::resolve(&mut root, HashSet::new(), &mut Vec::new());
            Ok(root)
        }
        _ => parser.fail("unexpected end tag"),
    }
}

pub(crate) struct Parser {
    tokens: Vec<Lexed>,
    at: usize,
    nesting: usize,
    /// Loops around the current statement, for `break` and `continue`.
    loops: usize,
    /// For each macro being parsed: whether `varargs` and `kwargs` were mentioned.
    pub(crate) names_seen: Vec<(bool, bool)>,
}

impl Parser {
    pub(crate) fn peek(&self) -> &Token {
        self.peek_at(0)
    }

    pub(crate) fn peek_at(&self, ahead: usize) -> &Token {
        // The last token is `End`, and nothing steps over it.
        &self.tokens[(self.at + ahead).min(self.tokens.len() - 1)].token
    }

    pub(crate) fn line(&self) -> u32 {
        self.tokens[self.at].line
    }

    pub(crate) fn next(&mut self) -> Token {
        let token = self.peek().clone();
        self.at = (self.at + 1).min(self.tokens.len() - 1);
        token
    }

    pub(crate) fn fail<T>(&self, problem: impl Into<String>) -> Parsed<T> {
        Err(SourceFault { line: self.line(), problem: problem.into() })
    }

    pub(crate) fn unexpected<T>(&self, wanted: &str) -> Parsed<T> {
        self.fail(format!("expected {wanted}, found {}", describe(self.peek())))
    }

    pub(crate) fn is_op(&self, op: &str) -> bool {
        matches!(self.peek(), Token::Op(found) if *found == op)
    }

    pub(crate) fn is_name(&self, name: &str) -> bool {
        matches!(self.peek(), Token::Name(found) if &**found == name)
    }

    pub(crate) fn eat_op(&mut self, op: &str) -> bool {
        let found = self.is_op(op);
        if found {
            self.next();
        }
        found
    }

    pub(crate) fn eat_name(&mut self, name: &str) -> bool {
        let found = self.is_name(name);
        if found {
            self.next();
        }
        found
    }

    pub(crate) fn expect_op(&mut self, op: &str) -> Parsed<()> {
        if self.eat_op(op) { Ok(()) } else { self.unexpected(&format!("`{op}`")) }
    }

    fn expect_name(&mut self, name: &str) -> Parsed<()> {
        if self.eat_name(name) { Ok(()) } else { self.unexpected(&format!("`{name}`")) }
    }

    pub(crate) fn name(&mut self) -> Parsed<Arc<str>> {
        match self.peek() {
            Token::Name(name) => {
                let name = name.clone();
                self.next();
                Ok(name)
            }
            _ => self.unexpected("a name"),
        }
    }

    pub(crate) fn nested<T>(&mut self, parse: impl FnOnce(&mut Self) -> Parsed<T>) -> Parsed<T> {
        if self.nesting == MAX_NESTING {
            return self.fail(format!("blocks or brackets nest more than {MAX_NESTING} deep"));
        }
        self.nesting += 1;
        let result = parse(self);
        self.nesting -= 1;
        result
    }

    fn block_end(&mut self) -> Parsed<()> {
        if *self.peek() == Token::BlockEnd {
            self.next();
            return Ok(());
        }
        self.unexpected("`%}`")
    }

    /// Statements up to a tag named in `ends`, whose `{%` and name are consumed, or up to the end of the file.
    fn block(&mut self, ends: &[&str]) -> Parsed<Block> {
        self.nested(|parser| parser.block_inner(ends))
    }

    fn block_inner(&mut self, ends: &[&str]) -> Parsed<Block> {
        let mut nodes = Block::new();
        loop {
            let line = self.line();
            match self.peek().clone() {
                Token::Text(text) => {
                    self.next();
                    nodes.push(Node { line, stmt: Stmt::Text(text) });
                }
                Token::PrintBegin => {
                    self.next();
                    let value = self.tuple_or_expr(true)?;
                    if self.next() != Token::PrintEnd {
                        self.at -= 1;
                        return self.unexpected("`}}`");
                    }
                    nodes.push(Node { line, stmt: Stmt::Print(value) });
                }
                Token::BlockBegin => {
                    if matches!(self.peek_at(1), Token::Name(name) if ends.contains(&&**name)) {
                        self.next();
                        return Ok(nodes);
                    }
                    self.next();
                    let stmt = self.statement()?;
                    nodes.push(Node { line, stmt });
                }
                _ if ends.is_empty() => return Ok(nodes),
                _ => return self.fail(format!("the file ends, but `{}` is missing", ends.join("` or `"))),
            }
        }
    }

    /// A body and its end tag.
    fn body(&mut self, end: &str) -> Parsed<Scoped> {
        self.block_end()?;
        let body = self.block(&[end])?;
        self.expect_name(end)?;
        self.block_end()?;
        Ok(Scoped { nodes: body, hidden: Vec::new() })
    }

    /// A body that becomes a function of its own: `break` can't leave it.
    fn function_body(&mut self, end: &str) -> Parsed<Scoped> {
        let loops = std::mem::take(&mut self.loops);
        let body = self.body(end);
        self.loops = loops;
        body
    }

    fn statement(&mut self) -> Parsed<Stmt> {
        let name = self.name()?;
        let stmt = match &*name {
            "if" => return self.if_chain(),
            "for" => return self.for_loop(),
            "set" => return self.set(),
            "macro" => return self.macro_definition(),
            "call" => return self.call_block(),
            "with" => return self.with_block(),
            "filter" => {
                let filters = self.filter_chain()?;
                let body = self.function_body("endfilter")?;
                return Ok(Stmt::FilterBlock { filters, body });
            }
            "generation" => return Ok(Stmt::Generation(self.function_body("endgeneration")?)),
            "break" | "continue" if self.loops == 0 => {
                return self.fail(format!("`{name}` outside a loop"));
            }
            "break" => Stmt::Break,
            "continue" => Stmt::Continue,
            _ if name.starts_with("end") || matches!(&*name, "else" | "elif") => {
                return self.fail(format!("`{name}` has nothing to end"));
            }
            _ => return self.fail(format!("unknown tag `{name}`")),
        };
        self.block_end()?;
        Ok(stmt)
    }

    fn if_chain(&mut self) -> Parsed<Stmt> {
        let mut branches = Vec::new();
        let mut otherwise = Block::new();
        loop {
            let condition = self.tuple_or_expr(false)?;
            self.block_end()?;
            branches.push((condition, self.block(&["elif", "else", "endif"])?));
            if self.eat_name("elif") {
                continue;
            }
            if self.eat_name("else") {
                self.block_end()?;
                otherwise = self.block(&["endif"])?;
            }
            self.expect_name("endif")?;
            self.block_end()?;
            return Ok(Stmt::If { branches, otherwise });
        }
    }

    fn for_loop(&mut self) -> Parsed<Stmt> {
        let target = self.target(false)?;
        self.expect_name("in")?;
        let iter = self.tuple_or_expr(false)?;
        let filter = if self.eat_name("if") { Some(self.expr()?) } else { None };
        if self.is_name("recursive") {
            return self.fail("recursive loops are not supported");
        }
        self.block_end()?;
        self.loops += 1;
        let body = Scoped { nodes: self.block(&["else", "endfor"])?, hidden: Vec::new() };
        self.loops -= 1;
        let mut otherwise = Scoped::default();
        if self.eat_name("else") {
            self.block_end()?;
            otherwise.nodes = self.block(&["endfor"])?;
        }
        self.expect_name("endfor")?;
        self.block_end()?;
        Ok(Stmt::For(Box::new(For { target, iter, filter, body, otherwise })))
    }

    /// `a`, `a.b` (if `with_attributes`), `a, b` or `(a, b)`.
    fn target(&mut self, with_attributes: bool) -> Parsed<Target> {
        let mut targets = Vec::new();
        let mut is_tuple = false;
        while self.is_op("(") || matches!(self.peek(), Token::Name(name) if &**name != "in") {
            targets.push(self.single_target(with_attributes)?);
            if !self.eat_op(",") {
                break;
            }
            is_tuple = true;
        }
        match targets.pop() {
            None => self.unexpected("a variable to assign to"),
            Some(only) if !is_tuple => Ok(only),
            Some(last) => {
                targets.push(last);
                Ok(Target::Unpack(targets))
            }
        }
    }

    fn single_target(&mut self, with_attributes: bool) -> Parsed<Target> {
        if self.eat_op("(") {
            let target = self.nested(|parser| parser.target(with_attributes))?;
            self.expect_op(")")?;
            return Ok(target);
        }
        let name = self.name()?;
        if matches!(&*name, "true" | "false" | "none" | "True" | "False" | "None") {
            return self.fail(format!("`{name}` can't be assigned to"));
        }
        if with_attributes && self.eat_op(".") {
            return Ok(Target::Attribute(name, self.name()?));
        }
        Ok(Target::Name(name))
    }

    fn set(&mut self) -> Parsed<Stmt> {
        let target = self.target(true)?;
        if self.eat_op("=") {
            let value = self.tuple_or_expr(true)?;
            self.block_end()?;
            return Ok(Stmt::Set { target, value });
        }
        let filters = if self.eat_op("|") { self.filter_chain()? } else { Vec::new() };
        let body = self.function_body("endset")?;
        Ok(Stmt::SetBlock { target, filters, body })
    }

    fn filter_chain(&mut self) -> Parsed<Vec<Postfix>> {
        let mut filters = vec![self.filter()?];
        while self.eat_op("|") {
            filters.push(self.filter()?);
        }
        Ok(filters)
    }

    fn with_block(&mut self) -> Parsed<Stmt> {
        let mut bindings = Vec::new();
        while *self.peek() != Token::BlockEnd {
            if !bindings.is_empty() {
                self.expect_op(",")?;
            }
            let target = self.single_target(false)?;
            self.expect_op("=")?;
            bindings.push((target, self.expr()?));
        }
        let body = self.body("endwith")?;
        Ok(Stmt::With { bindings, body })
    }

    fn params(&mut self) -> Parsed<Vec<(Arc<str>, Option<Expr>)>> {
        let mut params: Vec<(Arc<str>, Option<Expr>)> = Vec::new();
        self.expect_op("(")?;
        while !self.eat_op(")") {
            if !params.is_empty() {
                self.expect_op(",")?;
            }
            let name = self.name()?;
            let default = if self.eat_op("=") { Some(self.expr()?) } else { None };
            if default.is_none() && params.last().is_some_and(|(_, default)| default.is_some()) {
                return self.fail(format!("parameter `{name}` without a default follows one with"));
            }
            params.push((name, default));
        }
        Ok(params)
    }

    fn macro_definition(&mut self) -> Parsed<Stmt> {
        let name = self.name()?;
        let def = self.definition(name, "endmacro", |parser| parser.params())?;
        Ok(Stmt::Macro(Arc::new(def)))
    }

    fn definition(
        &mut self,
        name: Arc<str>,
        end: &str,
        params: impl FnOnce(&mut Self) -> Parsed<Vec<(Arc<str>, Option<Expr>)>>,
    ) -> Parsed<MacroDef> {
        let params = params(self)?;
        self.names_seen.push((false, false));
        let body = self.function_body(end)?;
        let (takes_varargs, takes_kwargs) = self.names_seen.pop().unwrap_or_default();
        Ok(MacroDef { name, params, body, takes_varargs, takes_kwargs })
    }

    fn call_block(&mut self) -> Parsed<Stmt> {
        let params = if self.is_op("(") { self.params()? } else { Vec::new() };
        let call = self.expr()?;
        let caller = self.definition("caller".into(), "endcall", |_| Ok(params))?;
        Ok(Stmt::CallBlock { call, caller: Arc::new(caller) })
    }
}

fn describe(token: &Token) -> String {
    match token {
        Token::Text(_) => "text".into(),
        Token::PrintBegin => "`{{`".into(),
        Token::PrintEnd => "`}}`".into(),
        Token::BlockBegin => "`{%`".into(),
        Token::BlockEnd => "`%}`".into(),
        Token::Name(name) => format!("`{name:.40}`"),
        Token::Str(text) => format!("the string {text:.40?}"),
        Token::Int(value) => format!("`{value}`"),
        Token::Float(value) => format!("`{value}`"),
        Token::Op(op) => format!("`{op}`"),
        Token::End => "the end of the file".into(),
    }
}
