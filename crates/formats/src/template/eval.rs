//! Running a template: statements, variables and output.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::ast::{Block, Expr, For, Node, Postfix, PostfixKind, Scoped, Stmt, Target};
use super::filters;
use super::meter::{Limits, Meter, Outcome, TextBuilder, fault};
use super::print;
use super::value::{Dict, LoopState, MacroValue, Seq, Value};

/// The variables of one block that has its own: the file, a loop's round, a macro call.
pub(crate) struct Scope {
    pub(crate) id: u64,
    /// The scope around it, further down the stack.
    pub(crate) parent: Option<usize>,
    pub(crate) names: HashMap<Arc<str>, Value>,
    /// What its entries cost, given back when the scope ends: a loop makes one for every round.
    paid: usize,
}

#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Flow {
    Next,
    Break,
    Continue,
}

pub(crate) struct Render {
    pub(crate) meter: Meter,
    /// The line being worked on, for errors.
    pub(crate) line: u32,
    pub(crate) scopes: Vec<Scope>,
    pub(crate) namespaces: Vec<HashMap<Arc<str>, Value>>,
    pub(crate) macro_depth: usize,
    pub(crate) loop_depth: usize,
    out: TextBuilder,
    scopes_made: u64,
}

impl Render {
    pub(crate) fn new(limits: &Limits) -> Self {
        Self {
            meter: Meter::new(limits),
            line: 1,
            scopes: Vec::new(),
            namespaces: Vec::new(),
            macro_depth: 0,
            loop_depth: 0,
            out: TextBuilder::default(),
            scopes_made: 0,
        }
    }

    pub(crate) fn run(&mut self, body: &Scoped, vars: &serde_json::Value) -> Outcome<()> {
        let vars = super::json::from_json(&mut self.meter, vars, 0)?;
        let Value::Dict(vars) = &vars else { return fault("the variables are not a JSON object") };
        self.push_scope(None)?;
        for (name, value) in &vars.entries {
            if let Value::Str(name) = name {
                self.assign(&name.text, value.clone())?;
            }
        }
        // What the file assigns lies above what it was given, as in Jinja2's context.
        self.push_scope(Some(0))?;
        self.scoped(body)?;
        Ok(())
    }

    pub(crate) fn into_output(self) -> String {
        self.out.into_string()
    }

    pub(crate) fn push_scope(&mut self, parent: Option<usize>) -> Outcome<()> {
        self.meter.enter()?;
        self.scopes_made += 1;
        self.scopes.push(Scope { id: self.scopes_made, parent, names: HashMap::new(), paid: 0 });
        Ok(())
    }

    pub(crate) fn pop_scope(&mut self) {
        if let Some(scope) = self.scopes.pop() {
            self.meter.give_back(scope.paid);
        }
        self.meter.leave();
    }

    fn current_scope(&self) -> Option<usize> {
        self.scopes.len().checked_sub(1)
    }

    pub(crate) fn assign(&mut self, name: &Arc<str>, value: Value) -> Outcome<()> {
        // A hash map at its emptiest spends about this much on an entry.
        let price = 4 * size_of::<Value>();
        self.meter.bytes(price)?;
        if let Some(scope) = self.scopes.last_mut() {
            scope.paid += price;
            scope.names.insert(name.clone(), value);
        }
        Ok(())
    }

    pub(crate) fn lookup(&self, name: &Arc<str>) -> Option<&Value> {
        let mut at = self.current_scope();
        while let Some(scope) = at.and_then(|at| self.scopes.get(at)) {
            if let Some(value) = scope.names.get(name) {
                return Some(value);
            }
            at = scope.parent;
        }
        None
    }

    /// Runs a block in the scope just pushed for it.
    fn scoped(&mut self, body: &Scoped) -> Outcome<Flow> {
        for name in &body.hidden {
            self.assign(name, Value::Undefined(name.clone()))?;
        }
        self.block(&body.nodes)
    }

    fn block(&mut self, body: &Block) -> Outcome<Flow> {
        self.meter.enter()?;
        for node in body {
            let flow = self.node(node)?;
            if flow != Flow::Next {
                self.meter.leave();
                return Ok(flow);
            }
        }
        self.meter.leave();
        Ok(Flow::Next)
    }

    #[inline(never)]
    fn node(&mut self, node: &Node) -> Outcome<Flow> {
        self.line = node.line;
        self.meter.steps(1)?;
        match &node.stmt {
            Stmt::Text(text) => self.out.push(&mut self.meter, text)?,
            Stmt::Print(expr) => {
                let value = self.eval(expr)?;
                print::print(&mut self.meter, &mut self.out, &value)?;
            }
            Stmt::If { branches, otherwise } => {
                for (condition, body) in branches {
                    if self.eval(condition)?.is_true() {
                        return self.block(body);
                    }
                }
                return self.block(otherwise);
            }
            Stmt::For(each) => self.for_loop(each)?,
            Stmt::Set { target, value } => {
                let value = self.eval(value)?;
                self.assign_target(target, value)?;
            }
            Stmt::SetBlock { target, filters, body } => {
                let text = self.capture_scoped(body)?;
                let value = self.filter_all(text, filters)?;
                self.assign_target(target, value)?;
            }
            Stmt::With { bindings, body } => return self.with_block(bindings, body),
            Stmt::Macro(def) => {
                let value = self.close_over(def)?;
                self.assign(&def.name, value)?;
            }
            Stmt::CallBlock { call, caller } => {
                let caller = self.close_over(caller)?;
                let value = self.eval_call_block(call, caller)?;
                print::print(&mut self.meter, &mut self.out, &value)?;
            }
            Stmt::FilterBlock { filters, body } => {
                let text = self.capture_scoped(body)?;
                let value = self.filter_all(text, filters)?;
                print::print(&mut self.meter, &mut self.out, &value)?;
            }
            Stmt::Generation(body) => {
                let value = self.capture_scoped(body)?;
                print::print(&mut self.meter, &mut self.out, &value)?;
            }
            Stmt::Break => return Ok(Flow::Break),
            Stmt::Continue => return Ok(Flow::Continue),
        }
        Ok(Flow::Next)
    }

    fn close_over(&mut self, def: &Arc<super::ast::MacroDef>) -> Outcome<Value> {
        self.meter.bytes(size_of::<MacroValue>())?;
        let at = self.scopes.len() - 1;
        let scope = (at, self.scopes[at].id);
        Ok(Value::Macro(Arc::new(MacroValue { def: def.clone(), scope })))
    }

    #[inline(never)]
    fn with_block(&mut self, bindings: &[(Target, Expr)], body: &Scoped) -> Outcome<Flow> {
        let mut values = Vec::with_capacity(bindings.len());
        for (_, value) in bindings {
            values.push(self.eval(value)?);
        }
        self.push_scope(self.current_scope())?;
        for ((target, _), value) in bindings.iter().zip(values) {
            self.assign_target(target, value)?;
        }
        let flow = self.scoped(body)?;
        self.pop_scope();
        Ok(flow)
    }

    /// What `body` prints, as a string.
    #[inline(never)]
    pub(crate) fn capture(&mut self, body: &Scoped) -> Outcome<Value> {
        let outer = std::mem::take(&mut self.out);
        self.scoped(body)?;
        let printed = std::mem::replace(&mut self.out, outer);
        printed.into_value(&mut self.meter)
    }

    #[inline(never)]
    fn capture_scoped(&mut self, body: &Scoped) -> Outcome<Value> {
        self.push_scope(self.current_scope())?;
        let value = self.capture(body)?;
        self.pop_scope();
        Ok(value)
    }

    #[inline(never)]
    fn filter_all(&mut self, mut value: Value, chain: &[Postfix]) -> Outcome<Value> {
        for postfix in chain {
            if let PostfixKind::Filter(name, args) = &postfix.kind {
                let args = self.args(args)?;
                self.line = postfix.line;
                value = filters::apply(&mut self.meter, name, &value, args)?;
            }
        }
        Ok(value)
    }

    fn assign_target(&mut self, target: &Target, value: Value) -> Outcome<()> {
        match target {
            Target::Name(name) => self.assign(name, value),
            Target::Attribute(object, attribute) => {
                let Some(Value::Namespace(at)) = self.lookup(object) else {
                    return fault(format!("`{object}.{attribute}` can't be set: only a namespace's can"));
                };
                let at = *at;
                self.meter.bytes(4 * size_of::<Value>())?;
                self.namespaces[at].insert(attribute.clone(), value);
                Ok(())
            }
            Target::Unpack(targets) => {
                let items = value.iterate(&mut self.meter)?;
                if items.len() != targets.len() {
                    let (want, have) = (targets.len(), items.len());
                    return fault(format!("{want} variables can't take {have} values"));
                }
                for (target, item) in targets.iter().zip(items) {
                    self.assign_target(target, item)?;
                }
                Ok(())
            }
        }
    }

    #[inline(never)]
    fn for_loop(&mut self, each: &For) -> Outcome<()> {
        let iterable = self.eval(&each.iter)?;
        let mut items = iterable.iterate(&mut self.meter)?;
        if let Some(filter) = &each.filter {
            let mut kept = Vec::new();
            for item in items {
                self.push_scope(self.current_scope())?;
                self.assign_target(&each.target, item.clone())?;
                let keep = self.eval(filter)?.is_true();
                self.pop_scope();
                if keep {
                    self.meter.bytes(2 * size_of::<Value>())?;
                    kept.push(item);
                }
            }
            items = kept;
        }
        self.loop_depth += 1;
        // Jinja2 runs `else` unless a round got to its end: `break` and `continue` do not.
        let mut completed = false;
        let items = Seq::new(&mut self.meter, items)?;
        let state = Arc::new(LoopState { items, index: AtomicUsize::new(0), depth: self.loop_depth });
        let name: Arc<str> = "loop".into();
        for (index, item) in state.items.items.iter().enumerate() {
            state.index.store(index, Ordering::Relaxed);
            self.meter.steps(1)?;
            self.push_scope(self.current_scope())?;
            self.assign(&name, Value::Loop(state.clone()))?;
            self.assign_target(&each.target, item.clone())?;
            let flow = self.scoped(&each.body)?;
            self.pop_scope();
            completed |= flow == Flow::Next;
            if flow == Flow::Break {
                break;
            }
        }
        self.loop_depth -= 1;
        if !completed {
            self.push_scope(self.current_scope())?;
            self.scoped(&each.otherwise)?;
            self.pop_scope();
        }
        Ok(())
    }

    pub(crate) fn namespace(&mut self, fields: &Dict) -> Outcome<Value> {
        self.meter.bytes((1 + fields.entries.len()).saturating_mul(4 * size_of::<Value>()))?;
        let mut names = HashMap::new();
        for (name, value) in &fields.entries {
            if let Value::Str(name) = name {
                names.insert(name.text.clone(), value.clone());
            }
        }
        self.namespaces.push(names);
        Ok(Value::Namespace(self.namespaces.len() - 1))
    }
}
