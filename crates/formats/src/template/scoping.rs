//! Which variables a scope hides before it assigns them.
//!
//! Jinja2 decides when it compiles where a name lives. A scope that assigns a name unconditionally, before anything
//! of its own reads it, owns the name from its start: blocks and macros inside it see it undefined until then, even
//! if the caller gave a variable of that name. Dynamic lookup alone would show the caller's.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::ast::{Block, CallArgs, Expr, ExprKind, Node, Postfix, PostfixKind, Scoped, Stmt, Target};

type Names = HashSet<Arc<str>>;

/// Fills in `hidden` of this scope and of all inside it. `outer` has the names that the scopes around it know.
pub(crate) fn resolve(scope: &mut Scoped, params: Names, outer: &mut Vec<Names>) {
    let mut own = Own { layers: vec![HashMap::new()] };
    for name in params {
        own.note(&name, Seen::Read);
    }
    own.block(&scope.nodes);
    let seen = own.layers.pop().unwrap_or_default();
    let is_hidden = |(name, first): (&Arc<str>, &First)| {
        let unknown = !outer.iter().any(|names| names.contains(name));
        (first.seen == Seen::Assigned && unknown).then(|| name.clone())
    };
    scope.hidden = seen.iter().filter_map(is_hidden).collect();
    outer.push(seen.into_keys().collect());
    inside(&mut scope.nodes, outer);
    outer.pop();
}

fn inside(nodes: &mut [Node], outer: &mut Vec<Names>) {
    for node in nodes {
        match &mut node.stmt {
            Stmt::If { branches, otherwise } => {
                for (_, body) in branches {
                    inside(body, outer);
                }
                inside(otherwise, outer);
            }
            Stmt::For(each) => {
                let mut params = Names::from(["loop".into()]);
                target_names(&each.target, &mut params);
                resolve(&mut each.body, params, outer);
                resolve(&mut each.otherwise, Names::new(), outer);
            }
            Stmt::With { bindings, body } => {
                let mut params = Names::new();
                bindings.iter().for_each(|(target, _)| target_names(target, &mut params));
                resolve(body, params, outer);
            }
            Stmt::Macro(def) | Stmt::CallBlock { caller: def, .. } => {
                // Just parsed, so nobody else holds it.
                if let Some(def) = Arc::get_mut(def) {
                    let params = def.params.iter().map(|(name, _)| name.clone());
                    let params = params.chain(["varargs", "kwargs", "caller"].map(Arc::from)).collect();
                    resolve(&mut def.body, params, outer);
                }
            }
            Stmt::SetBlock { body, .. } | Stmt::FilterBlock { body, .. } | Stmt::Generation(body) => {
                resolve(body, Names::new(), outer);
            }
            Stmt::Text(_) | Stmt::Print(_) | Stmt::Set { .. } | Stmt::Break | Stmt::Continue => {}
        }
    }
}

fn target_names(target: &Target, names: &mut Names) {
    match target {
        Target::Name(name) => drop(names.insert(name.clone())),
        Target::Attribute(..) => {}
        Target::Unpack(targets) => targets.iter().for_each(|target| target_names(target, names)),
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Seen {
    Read,
    Assigned,
}

/// How a scope meets a name first, and whether it assigns it at all.
#[derive(Clone, Copy)]
struct First {
    seen: Seen,
    assigned: bool,
}

/// The names a scope's own statements mention; the branches of an `if` are layers until they are joined.
struct Own {
    layers: Vec<HashMap<Arc<str>, First>>,
}

impl Own {
    fn note(&mut self, name: &Arc<str>, seen: Seen) {
        let known = self.layers.iter().any(|layer| layer.contains_key(name));
        let Some(layer) = self.layers.last_mut() else { return };
        if let Some(first) = layer.get_mut(name) {
            first.assigned |= seen == Seen::Assigned;
        } else if !known {
            layer.insert(name.clone(), First { seen, assigned: seen == Seen::Assigned });
        }
    }

    fn block(&mut self, nodes: &[Node]) {
        for node in nodes {
            match &node.stmt {
                Stmt::Print(expr) => self.expr(expr),
                Stmt::If { branches, otherwise } => {
                    let branches: Vec<_> =
                        branches.iter().map(|(condition, body)| (condition, body)).collect();
                    self.branches(&branches, otherwise);
                }
                Stmt::For(each) => self.expr(&each.iter),
                Stmt::Set { target, value } => {
                    self.expr(value);
                    self.target(target);
                }
                Stmt::SetBlock { target, .. } => self.target(target),
                Stmt::With { bindings, .. } => bindings.iter().for_each(|(_, value)| self.expr(value)),
                Stmt::Macro(def) => self.note(&def.name, Seen::Assigned),
                Stmt::CallBlock { call, .. } => self.expr(call),
                Stmt::FilterBlock { filters, .. } => self.chain(filters),
                Stmt::Text(_) | Stmt::Generation(_) | Stmt::Break | Stmt::Continue => {}
            }
        }
    }

    /// Jinja2 sees three branches: the first, all `elif` together, and `else`. What not all of them assign is
    /// looked up outside.
    fn branches(&mut self, branches: &[(&Expr, &Block)], otherwise: &[Node]) {
        let Some((&(condition, body), elifs)) = branches.split_first() else { return };
        self.expr(condition);
        let first = self.layer(|own| own.block(body));
        let middle = self.layer(|own| {
            for &(condition, body) in elifs {
                own.branches(&[(condition, body)], &[]);
            }
        });
        let last = self.layer(|own| own.block(otherwise));
        let mut joined: HashMap<Arc<str>, (First, usize)> = HashMap::new();
        for (name, first) in [first, middle, last].into_iter().flatten() {
            let (_, count) = joined.get(&name).copied().unwrap_or((first, 0));
            joined.insert(name, (first, count + usize::from(first.assigned)));
        }
        let Some(layer) = self.layers.last_mut() else { return };
        for (name, (first, count)) in joined {
            let seen = if count == 3 { first.seen } else { Seen::Read };
            layer.insert(name, First { seen, assigned: count > 0 });
        }
    }

    fn layer(&mut self, visit: impl FnOnce(&mut Self)) -> HashMap<Arc<str>, First> {
        self.layers.push(HashMap::new());
        visit(self);
        self.layers.pop().unwrap_or_default()
    }

    fn target(&mut self, target: &Target) {
        match target {
            Target::Name(name) => self.note(name, Seen::Assigned),
            Target::Attribute(object, _) => self.note(object, Seen::Read),
            Target::Unpack(targets) => targets.iter().for_each(|target| self.target(target)),
        }
    }

    fn expr(&mut self, expr: &Expr) {
        match &expr.kind {
            ExprKind::Name(name) => self.note(name, Seen::Read),
            ExprKind::List(items)
            | ExprKind::Tuple(items)
            | ExprKind::And(items)
            | ExprKind::Or(items)
            | ExprKind::Concat(items) => items.iter().for_each(|item| self.expr(item)),
            ExprKind::Dict(entries) => entries.iter().for_each(|(key, value)| {
                self.expr(key);
                self.expr(value);
            }),
            ExprKind::Not(operand) | ExprKind::Negative(operand) | ExprKind::Positive(operand) => {
                self.expr(operand);
            }
            ExprKind::Compare { first, rest } => {
                self.expr(first);
                rest.iter().for_each(|(_, right)| self.expr(right));
            }
            ExprKind::Arithmetic { first, rest } => {
                self.expr(first);
                rest.iter().for_each(|(_, right)| self.expr(right));
            }
            ExprKind::Ternary { condition, then, otherwise } => {
                self.expr(condition);
                self.expr(then);
                otherwise.iter().for_each(|otherwise| self.expr(otherwise));
            }
            ExprKind::Postfix { base, chain } => {
                self.expr(base);
                self.chain(chain);
            }
            ExprKind::None | ExprKind::Bool(_) | ExprKind::Int(_) | ExprKind::Float(_) | ExprKind::Str(_) => {
            }
        }
    }

    fn chain(&mut self, chain: &[Postfix]) {
        for postfix in chain {
            match &postfix.kind {
                PostfixKind::Attribute(_) => {}
                PostfixKind::Index(index) => self.expr(index),
                PostfixKind::Slice { start, stop, step } => {
                    [start, stop, step].into_iter().flatten().for_each(|bound| self.expr(bound));
                }
                PostfixKind::Call(args) | PostfixKind::Filter(_, args) | PostfixKind::Test { args, .. } => {
                    self.args(args);
                }
            }
        }
    }

    fn args(&mut self, args: &CallArgs) {
        args.positional.iter().for_each(|arg| self.expr(arg));
        args.named.iter().for_each(|(_, arg)| self.expr(arg));
        args.spread.iter().chain(&args.spread_named).for_each(|arg| self.expr(arg));
    }
}
