//! Tokens into expressions. The precedences are Jinja2's: `~` binds tighter than `+`, a filter or test tighter
//! than any operator, and `-` tighter than `**`.

use std::sync::Arc;

use super::ast::{CallArgs, Comparison, Expr, ExprKind, Operator, Postfix, PostfixKind};
use super::lexer::Token;
use super::parser::{Parsed, Parser};

type Rule = fn(&mut Parser) -> Parsed<Expr>;

impl Parser {
    /// `a` or `a, b`. In a `for`, `if` starts the loop's filter instead of a ternary.
    pub(crate) fn tuple_or_expr(&mut self, with_ternary: bool) -> Parsed<Expr> {
        self.nested(|parser| {
            let line = parser.line();
            let item: Rule = if with_ternary { Parser::ternary } else { Parser::or };
            let first = item(parser)?;
            if !parser.is_op(",") {
                return Ok(first);
            }
            let mut items = vec![first];
            while parser.eat_op(",") && !parser.at_expr_end() {
                items.push(item(parser)?);
            }
            Ok(Expr { line, kind: ExprKind::Tuple(items) })
        })
    }

    fn at_expr_end(&self) -> bool {
        matches!(self.peek(), Token::PrintEnd | Token::BlockEnd | Token::End)
            || self.is_op(")")
            || self.is_op("]")
            || self.is_op("=")
            || self.is_name("if")
    }

    pub(crate) fn expr(&mut self) -> Parsed<Expr> {
        self.nested(Parser::ternary)
    }

    fn ternary(&mut self) -> Parsed<Expr> {
        let line = self.line();
        let mut value = self.or()?;
        let mut conditions = 0;
        while self.eat_name("if") {
            conditions += 1;
            if conditions > 16 {
                return self.fail("more than 16 `if` in one expression");
            }
            let condition = Box::new(self.or()?);
            let otherwise = if self.eat_name("else") { Some(Box::new(self.expr()?)) } else { None };
            value = Expr { line, kind: ExprKind::Ternary { condition, then: Box::new(value), otherwise } };
        }
        Ok(value)
    }

    fn chain(&mut self, word: &str, operand: Rule, make: impl FnOnce(Vec<Expr>) -> ExprKind) -> Parsed<Expr> {
        let line = self.line();
        let first = operand(self)?;
        if !self.is_name(word) {
            return Ok(first);
        }
        let mut operands = vec![first];
        while self.eat_name(word) {
            operands.push(operand(self)?);
        }
        Ok(Expr { line, kind: make(operands) })
    }

    fn or(&mut self) -> Parsed<Expr> {
        self.chain("or", Parser::and, ExprKind::Or)
    }

    fn and(&mut self) -> Parsed<Expr> {
        self.chain("and", Parser::not, ExprKind::And)
    }

    fn not(&mut self) -> Parsed<Expr> {
        let line = self.line();
        if self.eat_name("not") {
            let operand = Box::new(self.nested(Parser::not)?);
            return Ok(Expr { line, kind: ExprKind::Not(operand) });
        }
        self.comparison()
    }

    fn comparison(&mut self) -> Parsed<Expr> {
        let line = self.line();
        let first = self.sum()?;
        let mut rest = Vec::new();
        loop {
            let comparison = match self.peek() {
                Token::Op("==") => Comparison::Equal,
                Token::Op("!=") => Comparison::NotEqual,
                Token::Op("<") => Comparison::Less,
                Token::Op("<=") => Comparison::LessEqual,
                Token::Op(">") => Comparison::Greater,
                Token::Op(">=") => Comparison::GreaterEqual,
                Token::Name(name) if &**name == "in" => Comparison::In,
                Token::Name(name)
                    if &**name == "not"
                        && matches!(self.peek_at(1), Token::Name(name) if &**name == "in") =>
                {
                    self.next();
                    Comparison::NotIn
                }
                _ => break,
            };
            self.next();
            rest.push((comparison, self.sum()?));
        }
        if rest.is_empty() {
            return Ok(first);
        }
        Ok(Expr { line, kind: ExprKind::Compare { first: Box::new(first), rest } })
    }

    fn arithmetic(&mut self, operators: &[(&str, Operator)], operand: Rule) -> Parsed<Expr> {
        let line = self.line();
        let first = operand(self)?;
        let mut rest = Vec::new();
        while let Some(&(_, operator)) = operators.iter().find(|(op, _)| self.is_op(op)) {
            self.next();
            rest.push((operator, operand(self)?));
        }
        if rest.is_empty() {
            return Ok(first);
        }
        Ok(Expr { line, kind: ExprKind::Arithmetic { first: Box::new(first), rest } })
    }

    fn sum(&mut self) -> Parsed<Expr> {
        self.arithmetic(&[("+", Operator::Add), ("-", Operator::Subtract)], Parser::concat)
    }

    fn concat(&mut self) -> Parsed<Expr> {
        let line = self.line();
        let first = self.product()?;
        if !self.is_op("~") {
            return Ok(first);
        }
        let mut parts = vec![first];
        while self.eat_op("~") {
            parts.push(self.product()?);
        }
        Ok(Expr { line, kind: ExprKind::Concat(parts) })
    }

    fn product(&mut self) -> Parsed<Expr> {
        let operators = [
            ("*", Operator::Multiply),
            ("/", Operator::Divide),
            ("//", Operator::FloorDivide),
            ("%", Operator::Modulo),
        ];
        self.arithmetic(&operators, Parser::power)
    }

    fn power(&mut self) -> Parsed<Expr> {
        self.arithmetic(&[("**", Operator::Power)], |parser| parser.unary(true))
    }

    fn unary(&mut self, with_filters: bool) -> Parsed<Expr> {
        let line = self.line();
        let base = if self.eat_op("-") {
            let operand = self.nested(|parser| parser.unary(false))?;
            Expr { line, kind: ExprKind::Negative(Box::new(operand)) }
        } else if self.eat_op("+") {
            let operand = self.nested(|parser| parser.unary(false))?;
            Expr { line, kind: ExprKind::Positive(Box::new(operand)) }
        } else {
            self.primary()?
        };
        let mut chain = Vec::new();
        while let Some(postfix) = self.access()? {
            chain.push(postfix);
        }
        while let Some(postfix) = self.filter_or_test(with_filters)? {
            chain.push(postfix);
        }
        if chain.is_empty() {
            return Ok(base);
        }
        Ok(Expr { line, kind: ExprKind::Postfix { base: Box::new(base), chain } })
    }

    fn filter_or_test(&mut self, with_filters: bool) -> Parsed<Option<Postfix>> {
        let line = self.line();
        if !with_filters {
            Ok(None)
        } else if self.eat_op("|") {
            self.filter().map(Some)
        } else if self.eat_name("is") {
            self.test(line).map(Some)
        } else if self.is_op("(") {
            Ok(Some(Postfix { line, kind: PostfixKind::Call(self.call_args()?) }))
        } else {
            Ok(None)
        }
    }

    fn primary(&mut self) -> Parsed<Expr> {
        let line = self.line();
        let kind = match self.peek().clone() {
            Token::Name(name) => {
                self.next();
                match &*name {
                    "true" | "True" => ExprKind::Bool(true),
                    "false" | "False" => ExprKind::Bool(false),
                    "none" | "None" => ExprKind::None,
                    _ => {
                        self.note_name(&name);
                        ExprKind::Name(name)
                    }
                }
            }
            Token::Str(text) => {
                self.next();
                let mut joined = String::new();
                while let Token::Str(more) = self.peek() {
                    joined.push_str(more);
                    self.next();
                }
                ExprKind::Str(if joined.is_empty() { text } else { format!("{text}{joined}").into() })
            }
            Token::Int(value) => {
                self.next();
                ExprKind::Int(*value)
            }
            Token::Float(value) => {
                self.next();
                ExprKind::Float(value)
            }
            Token::Op("(") => {
                self.next();
                if self.eat_op(")") {
                    return Ok(Expr { line, kind: ExprKind::Tuple(Vec::new()) });
                }
                let inner = self.tuple_or_expr(true)?;
                self.expect_op(")")?;
                return Ok(inner);
            }
            Token::Op("[") => {
                self.next();
                ExprKind::List(self.items("]", Parser::expr)?)
            }
            Token::Op("{") => {
                self.next();
                ExprKind::Dict(self.items("}", |parser| {
                    let key = parser.expr()?;
                    parser.expect_op(":")?;
                    Ok((key, parser.expr()?))
                })?)
            }
            _ => return self.unexpected("an expression"),
        };
        Ok(Expr { line, kind })
    }

    fn items<T>(&mut self, end: &str, item: fn(&mut Parser) -> Parsed<T>) -> Parsed<Vec<T>> {
        let mut items = Vec::new();
        while !self.eat_op(end) {
            if !items.is_empty() {
                self.expect_op(",")?;
                if self.eat_op(end) {
                    break;
                }
            }
            items.push(item(self)?);
        }
        Ok(items)
    }

    fn note_name(&mut self, name: &str) {
        if let Some((varargs, kwargs)) = self.names_seen.last_mut() {
            *varargs |= name == "varargs";
            *kwargs |= name == "kwargs";
        }
    }

    /// `.name`, `[index]`, `[start:stop:step]` or `(arguments)`.
    fn access(&mut self) -> Parsed<Option<Postfix>> {
        let line = self.line();
        let kind = if self.eat_op(".") {
            match self.next() {
                Token::Name(name) => PostfixKind::Attribute(name),
                Token::Int(value) => PostfixKind::Index(Box::new(Expr { line, kind: ExprKind::Int(*value) })),
                _ => return self.fail("expected a name after `.`"),
            }
        } else if self.eat_op("[") {
            let kind = self.nested(Parser::subscript)?;
            self.expect_op("]")?;
            kind
        } else if self.is_op("(") {
            PostfixKind::Call(self.call_args()?)
        } else {
            return Ok(None);
        };
        Ok(Some(Postfix { line, kind }))
    }

    fn subscript(&mut self) -> Parsed<PostfixKind> {
        let bound = |parser: &mut Parser| -> Parsed<Option<Box<Expr>>> {
            if parser.is_op(":") || parser.is_op("]") {
                return Ok(None);
            }
            Ok(Some(Box::new(parser.expr()?)))
        };
        let start = if self.is_op(":") { None } else { Some(Box::new(self.tuple_or_expr(true)?)) };
        if !self.eat_op(":") {
            return match start {
                Some(index) => Ok(PostfixKind::Index(index)),
                None => self.unexpected("an index"),
            };
        }
        let stop = bound(self)?;
        let step = if self.eat_op(":") { bound(self)? } else { None };
        Ok(PostfixKind::Slice { start, stop, step })
    }

    /// After `|`.
    pub(crate) fn filter(&mut self) -> Parsed<Postfix> {
        let line = self.line();
        let name = self.dotted_name()?;
        let args = if self.is_op("(") { self.call_args()? } else { CallArgs::default() };
        Ok(Postfix { line, kind: PostfixKind::Filter(name, args) })
    }

    fn dotted_name(&mut self) -> Parsed<Arc<str>> {
        let mut name = self.name()?;
        while self.eat_op(".") {
            name = format!("{name}.{}", self.name()?).into();
        }
        Ok(name)
    }

    /// After `is`.
    fn test(&mut self, line: u32) -> Parsed<Postfix> {
        let negated = self.eat_name("not");
        let name = self.dotted_name()?;
        let takes_operand = match self.peek() {
            Token::Name(name) => !matches!(&**name, "else" | "or" | "and" | "if" | "in" | "not"),
            Token::Str(_) | Token::Int(_) | Token::Float(_) | Token::Op("[" | "{") => true,
            _ => false,
        };
        let mut args = CallArgs::default();
        if self.is_op("(") {
            args = self.call_args()?;
        } else if self.is_name("is") {
            return self.fail("tests can't be chained with `is`");
        } else if takes_operand {
            let base = self.primary()?;
            let mut chain = Vec::new();
            while let Some(postfix) = self.access()? {
                chain.push(postfix);
            }
            args.positional.push(Expr { line, kind: ExprKind::Postfix { base: Box::new(base), chain } });
        }
        Ok(Postfix { line, kind: PostfixKind::Test { name, args, negated } })
    }

    fn call_args(&mut self) -> Parsed<CallArgs> {
        self.expect_op("(")?;
        let mut args = CallArgs::default();
        let mut first = true;
        while !self.eat_op(")") {
            if !first {
                self.expect_op(",")?;
                if self.eat_op(")") {
                    break;
                }
            }
            first = false;
            self.call_arg(&mut args)?;
        }
        Ok(args)
    }

    fn call_arg(&mut self, args: &mut CallArgs) -> Parsed<()> {
        if self.eat_op("*") {
            args.spread = Some(Box::new(self.expr()?));
        } else if self.eat_op("**") {
            args.spread_named = Some(Box::new(self.expr()?));
        } else if matches!((self.peek(), self.peek_at(1)), (Token::Name(_), Token::Op("="))) {
            let name = self.name()?;
            self.next();
            args.named.push((name, self.expr()?));
        } else if !args.named.is_empty() {
            return self.fail("a positional argument follows a named one");
        } else {
            args.positional.push(self.expr()?);
        }
        Ok(())
    }
}
