//! What a template says, after parsing. Chains (`a ~ b ~ c`, `x.y.z|f|g`, `elif`) are flat lists, so that only
//! real nesting is depth: parsing counts it, and evaluating and dropping may recurse over it.

use std::sync::Arc;

pub(crate) type Block = Vec<Node>;

/// A block with variables of its own.
#[derive(Debug, Default)]
pub(crate) struct Scoped {
    pub(crate) nodes: Block,
    /// Undefined here until assigned, whatever the caller gave: see `scoping`.
    pub(crate) hidden: Vec<Arc<str>>,
}

#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) line: u32,
    pub(crate) stmt: Stmt,
}

#[derive(Debug)]
pub(crate) enum Stmt {
    Text(Arc<str>),
    Print(Expr),
    If {
        branches: Vec<(Expr, Block)>,
        otherwise: Block,
    },
    For(Box<For>),
    Set {
        target: Target,
        value: Expr,
    },
    SetBlock {
        target: Target,
        filters: Vec<Postfix>,
        body: Scoped,
    },
    With {
        bindings: Vec<(Target, Expr)>,
        body: Scoped,
    },
    Macro(Arc<MacroDef>),
    CallBlock {
        call: Expr,
        caller: Arc<MacroDef>,
    },
    FilterBlock {
        filters: Vec<Postfix>,
        body: Scoped,
    },
    /// `{% generation %}`: the body, with its own variables.
    Generation(Scoped),
    Break,
    Continue,
}

#[derive(Debug)]
pub(crate) struct For {
    pub(crate) target: Target,
    pub(crate) iter: Expr,
    pub(crate) filter: Option<Expr>,
    pub(crate) body: Scoped,
    pub(crate) otherwise: Scoped,
}

#[derive(Debug)]
pub(crate) enum Target {
    Name(Arc<str>),
    /// `namespace.attribute`
    Attribute(Arc<str>, Arc<str>),
    Unpack(Vec<Target>),
}

#[derive(Debug)]
pub(crate) struct MacroDef {
    pub(crate) name: Arc<str>,
    pub(crate) params: Vec<(Arc<str>, Option<Expr>)>,
    pub(crate) body: Scoped,
    /// Whether the body mentions `varargs` or `kwargs`: without, surplus arguments are an error.
    pub(crate) takes_varargs: bool,
    pub(crate) takes_kwargs: bool,
}

#[derive(Debug)]
pub(crate) struct Expr {
    pub(crate) line: u32,
    pub(crate) kind: ExprKind,
}

#[derive(Debug)]
pub(crate) enum ExprKind {
    None,
    Bool(bool),
    Int(i128),
    Float(f64),
    Str(Arc<str>),
    Name(Arc<str>),
    List(Vec<Expr>),
    Tuple(Vec<Expr>),
    Dict(Vec<(Expr, Expr)>),
    Not(Box<Expr>),
    Negative(Box<Expr>),
    Positive(Box<Expr>),
    And(Vec<Expr>),
    Or(Vec<Expr>),
    Compare {
        first: Box<Expr>,
        rest: Vec<(Comparison, Expr)>,
    },
    /// Operators of one precedence, left to right.
    Arithmetic {
        first: Box<Expr>,
        rest: Vec<(Operator, Expr)>,
    },
    Concat(Vec<Expr>),
    /// `then if condition else otherwise`
    Ternary {
        condition: Box<Expr>,
        then: Box<Expr>,
        otherwise: Option<Box<Expr>>,
    },
    Postfix {
        base: Box<Expr>,
        chain: Vec<Postfix>,
    },
}

#[derive(Debug)]
pub(crate) struct Postfix {
    pub(crate) line: u32,
    pub(crate) kind: PostfixKind,
}

#[derive(Debug)]
pub(crate) enum PostfixKind {
    Attribute(Arc<str>),
    Index(Box<Expr>),
    Slice { start: Option<Box<Expr>>, stop: Option<Box<Expr>>, step: Option<Box<Expr>> },
    Call(CallArgs),
    Filter(Arc<str>, CallArgs),
    Test { name: Arc<str>, args: CallArgs, negated: bool },
}

#[derive(Debug, Default)]
pub(crate) struct CallArgs {
    pub(crate) positional: Vec<Expr>,
    pub(crate) named: Vec<(Arc<str>, Expr)>,
    /// `*rest` and `**rest`
    pub(crate) spread: Option<Box<Expr>>,
    pub(crate) spread_named: Option<Box<Expr>>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
    In,
    NotIn,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Operator {
    Add,
    Subtract,
    Multiply,
    Divide,
    FloorDivide,
    Modulo,
    Power,
}
