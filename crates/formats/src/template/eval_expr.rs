//! Running a template: expressions and calls.

use std::sync::Arc;

use super::args::{Args, int_of, text_of};
use super::ast::{CallArgs, Expr, ExprKind, Postfix, PostfixKind};
use super::eval::Render;
use super::meter::{ListBuilder, Outcome, TextBuilder, fault};
use super::value::{Dict, MacroValue, Text, Value};
use super::{clock, filters, methods, ops, predicates, print, seq_filters};

/// A macro's `caller` argument, from `{% call %}`.
const CALLER: &str = "caller";
const FUNCTIONS: [&str; 5] = ["range", "dict", "namespace", "raise_exception", "strftime_now"];

impl Render {
    pub(crate) fn eval(&mut self, expr: &Expr) -> Outcome<Value> {
        self.meter.enter()?;
        self.meter.steps(1)?;
        self.line = expr.line;
        let value = self.eval_kind(expr)?;
        self.line = expr.line;
        self.meter.leave();
        Ok(value)
    }

    #[inline(never)]
    fn eval_kind(&mut self, expr: &Expr) -> Outcome<Value> {
        Ok(match &expr.kind {
            ExprKind::None => Value::None,
            ExprKind::Bool(b) => Value::Bool(*b),
            ExprKind::Int(i) => Value::Int(*i),
            ExprKind::Float(f) => Value::Float(*f),
            ExprKind::Str(text) => Value::Str(Text::from(text)),
            ExprKind::Name(name) => self.name(name),
            ExprKind::List(items) => self.eval_all(items)?.into_list(&mut self.meter)?,
            ExprKind::Tuple(items) => {
                let items = self.eval_all(items)?.into_items();
                Value::tuple(&mut self.meter, items)?
            }
            ExprKind::Dict(entries) => {
                let mut pairs = Vec::new();
                for (key, value) in entries {
                    self.meter.bytes(4 * size_of::<Value>())?;
                    pairs.push((self.eval(key)?, self.eval(value)?));
                }
                Value::Dict(Arc::new(Dict::new(&mut self.meter, pairs)?))
            }
            ExprKind::Not(operand) => Value::Bool(!self.eval(operand)?.is_true()),
            ExprKind::Negative(operand) => {
                let value = self.eval(operand)?;
                ops::negate(&value)?
            }
            ExprKind::Positive(operand) => {
                let value = self.eval(operand)?;
                match value {
                    Value::Float(_) => value,
                    _ => Value::Int(int_of("`+`", &value)?),
                }
            }
            ExprKind::And(operands) => self.eval_until(operands, false)?,
            ExprKind::Or(operands) => self.eval_until(operands, true)?,
            ExprKind::Compare { first, rest } => {
                let mut left = self.eval(first)?;
                for (how, right) in rest {
                    let right = self.eval(right)?;
                    if !ops::compare(&mut self.meter, *how, &left, &right)? {
                        return Ok(Value::Bool(false));
                    }
                    left = right;
                }
                Value::Bool(true)
            }
            ExprKind::Arithmetic { first, rest } => {
                let mut left = self.eval(first)?;
                for (operator, right) in rest {
                    let right = self.eval(right)?;
                    left = ops::arithmetic(&mut self.meter, *operator, &left, &right)?;
                }
                left
            }
            ExprKind::Concat(parts) => {
                let mut out = TextBuilder::default();
                for part in parts {
                    let value = self.eval(part)?;
                    print::print(&mut self.meter, &mut out, &value)?;
                }
                out.into_value(&mut self.meter)?
            }
            ExprKind::Ternary { condition, then, otherwise } => {
                if self.eval(condition)?.is_true() {
                    self.eval(then)?
                } else if let Some(otherwise) = otherwise {
                    self.eval(otherwise)?
                } else {
                    Value::undefined("the value of an `if` without `else`")
                }
            }
            ExprKind::Postfix { base, chain } => {
                let base = self.eval(base)?;
                self.chain(base, chain, None)?
            }
        })
    }

    fn name(&self, name: &Arc<str>) -> Value {
        if let Some(value) = self.lookup(name) {
            return value.clone();
        }
        match FUNCTIONS.iter().find(|function| **function == &**name) {
            Some(function) => Value::Function(function),
            None => Value::Undefined(name.clone()),
        }
    }

    #[inline(never)]
    fn eval_all(&mut self, items: &[Expr]) -> Outcome<ListBuilder> {
        let mut values = ListBuilder::default();
        for item in items {
            let value = self.eval(item)?;
            values.push(&mut self.meter, value)?;
        }
        Ok(values)
    }

    /// The first operand whose truth is `stop`, or the last.
    fn eval_until(&mut self, operands: &[Expr], stop: bool) -> Outcome<Value> {
        let mut value = Value::None;
        for operand in operands {
            value = self.eval(operand)?;
            if value.is_true() == stop {
                break;
            }
        }
        Ok(value)
    }

    /// Follows `.name`, `[index]`, `(args)`, `|filter` and `is test`. `caller` goes to the last call.
    #[inline(never)]
    fn chain(&mut self, mut value: Value, chain: &[Postfix], caller: Option<Value>) -> Outcome<Value> {
        // Arguments inside arguments take three times the stack of other nesting.
        self.meter.enter()?;
        self.meter.enter()?;
        let mut at = 0;
        let mut caller = caller;
        while let Some(postfix) = chain.get(at) {
            self.meter.steps(1)?;
            self.line = postfix.line;
            at += 1;
            value = match &postfix.kind {
                PostfixKind::Attribute(name) => match chain.get(at).map(|next| &next.kind) {
                    Some(PostfixKind::Call(args)) if methods::find(&value, name).is_some() => {
                        at += 1;
                        let args = self.args(args)?;
                        self.line = postfix.line;
                        methods::call(&mut self.meter, &value, name, args)?
                    }
                    _ => self.attribute(&value, name)?,
                },
                PostfixKind::Index(index) => {
                    let index = self.eval(index)?;
                    self.index(&value, &index)?
                }
                PostfixKind::Slice { start, stop, step } => {
                    let mut bounds = [None, None, None];
                    for (bound, expr) in bounds.iter_mut().zip([start, stop, step]) {
                        *bound = expr.as_ref().map(|expr| self.eval(expr)).transpose()?;
                    }
                    ops::slice(&mut self.meter, &value, bounds)?
                }
                PostfixKind::Call(args) => {
                    let mut args = self.args(args)?;
                    self.line = postfix.line;
                    if at == chain.len() {
                        args.named.extend(caller.take().map(|caller| (CALLER.into(), caller)));
                    }
                    self.call(&value, args)?
                }
                PostfixKind::Filter(name, args) => {
                    let args = self.args(args)?;
                    self.line = postfix.line;
                    filters::apply(&mut self.meter, name, &value, args)?
                }
                PostfixKind::Test { name, args, negated } => {
                    let args = self.args(args)?;
                    self.line = postfix.line;
                    Value::Bool(predicates::test(&mut self.meter, name, &value, args)? != *negated)
                }
            };
        }
        self.meter.leave();
        self.meter.leave();
        Ok(value)
    }

    pub(crate) fn eval_call_block(&mut self, call: &Expr, caller: Value) -> Outcome<Value> {
        match &call.kind {
            ExprKind::Postfix { base, chain }
                if matches!(chain.last().map(|last| &last.kind), Some(PostfixKind::Call(_))) =>
            {
                let base = self.eval(base)?;
                self.chain(base, chain, Some(caller))
            }
            _ => fault("`call` wants a macro call"),
        }
    }

    fn attribute(&mut self, value: &Value, name: &Arc<str>) -> Outcome<Value> {
        let found = match value {
            Value::Undefined(missing) => {
                return fault(format!("`{missing}` is undefined, so it has no `{name}`"));
            }
            Value::Namespace(at) => self.namespaces[*at].get(name).cloned(),
            _ => methods::attribute(&mut self.meter, value, name)?,
        };
        Ok(found.unwrap_or_else(|| Value::Undefined(name.clone())))
    }

    #[inline(never)]
    fn index(&mut self, value: &Value, index: &Value) -> Outcome<Value> {
        match (value, index) {
            (Value::Namespace(at), Value::Str(name)) => {
                let found = self.namespaces[*at].get(&name.text).cloned();
                Ok(found.unwrap_or_else(|| Value::Undefined(name.text.clone())))
            }
            _ => seq_filters::item_of(&mut self.meter, value, index),
        }
    }

    #[inline(never)]
    pub(crate) fn args(&mut self, args: &CallArgs) -> Outcome<Args> {
        let mut positional = self.eval_all(&args.positional)?;
        let mut named = Vec::new();
        for (name, value) in &args.named {
            named.push((name.clone(), self.eval(value)?));
        }
        if let Some(spread) = &args.spread {
            let items = self.eval(spread)?.iterate(&mut self.meter)?;
            for item in items {
                positional.push(&mut self.meter, item)?;
            }
        }
        if let Some(spread) = &args.spread_named {
            let Value::Dict(dict) = self.eval(spread)? else { return fault("`**` wants a mapping") };
            for (name, value) in &dict.entries {
                self.meter.bytes(2 * size_of::<Value>())?;
                let Value::Str(name) = name else { return fault("`**` wants names as keys") };
                named.push((name.text.clone(), value.clone()));
            }
        }
        Ok(Args { positional: positional.into_items(), named })
    }

    #[inline(never)]
    fn call(&mut self, function: &Value, args: Args) -> Outcome<Value> {
        match function {
            Value::Macro(macro_value) => self.call_macro(macro_value, args),
            Value::Function("range") => ops::range(&args.positional),
            Value::Function("dict") => Ok(Value::Dict(Arc::new(self.keyword_dict("dict", args)?))),
            Value::Function("namespace") => {
                let fields = self.keyword_dict("namespace", args)?;
                self.namespace(&fields)
            }
            Value::Function("raise_exception") => {
                let [message] = args.bind("raise_exception", ["message"])?;
                let message = print::to_text(&mut self.meter, &message.unwrap_or(Value::None))?;
                fault(format!("the template refuses: {:.500}", message.as_str().unwrap_or_default()))
            }
            Value::Function("strftime_now") => {
                let [format] = args.bind("strftime_now", ["format"])?;
                let format = super::args::required("strftime_now", "format", format)?;
                clock::strftime(&mut self.meter, text_of("strftime_now", &format)?)
            }
            Value::Undefined(name) => {
                fault(format!("`{name}` is undefined or not allowed, so it can't be called"))
            }
            Value::Method(name) => {
                fault(format!("the method `{name}` can only be called where it is looked up"))
            }
            _ => fault(format!("a {} can't be called", function.type_name())),
        }
    }

    /// `dict(mapping, a=1)` and `namespace(mapping, a=1)`.
    #[inline(never)]
    fn keyword_dict(&mut self, what: &str, args: Args) -> Outcome<Dict> {
        let mut pairs = Vec::new();
        for source in &args.positional {
            match source {
                Value::Dict(dict) => {
                    self.meter.bytes(dict.entries.len().saturating_mul(4 * size_of::<Value>()))?;
                    pairs.extend(dict.entries.iter().cloned());
                }
                _ => {
                    for pair in source.iterate(&mut self.meter)? {
                        match pair.items() {
                            Some([key, value]) => pairs.push((key.clone(), value.clone())),
                            _ => return fault(format!("{what} wants a mapping or pairs")),
                        }
                        self.meter.bytes(4 * size_of::<Value>())?;
                    }
                }
            }
        }
        pairs.extend(args.named.into_iter().map(|(name, value)| (ops::text_value(&name), value)));
        Dict::new(&mut self.meter, pairs)
    }

    #[inline(never)]
    fn call_macro(&mut self, called: &MacroValue, args: Args) -> Outcome<Value> {
        let def = &called.def;
        let (at, id) = called.scope;
        if self.scopes.get(at).is_none_or(|scope| scope.id != id) {
            return fault(format!("the macro `{}` is called outside the block it is defined in", def.name));
        }
        if self.macro_depth >= self.meter.max_depth() {
            return fault(format!("macro calls nest more than {} deep", self.meter.max_depth()));
        }
        self.macro_depth += 1;
        let (loop_depth, line) = (std::mem::take(&mut self.loop_depth), self.line);
        self.push_scope(Some(at))?;
        self.bind_macro(called, args)?;
        let value = self.capture(&def.body)?;
        self.pop_scope();
        self.loop_depth = loop_depth;
        self.line = line;
        self.macro_depth -= 1;
        Ok(value)
    }

    #[inline(never)]
    fn bind_macro(&mut self, called: &MacroValue, args: Args) -> Outcome<()> {
        let def = &called.def;
        let mut named = args.named;
        let mut positional = args.positional.into_iter();
        for (param, default) in &def.params {
            let by_name = named.iter().position(|(name, _)| name == param).map(|at| named.remove(at).1);
            let value = match (positional.next(), by_name, default) {
                (Some(_), Some(_), _) => {
                    return fault(format!("{}: the argument `{param}` is given twice", def.name));
                }
                (Some(value), ..) | (None, Some(value), _) => value,
                (None, None, Some(default)) => self.eval(default)?,
                (None, None, None) => Value::Undefined(param.clone()),
            };
            self.assign(param, value)?;
        }
        if let Some(at) = named.iter().position(|(name, _)| &**name == CALLER) {
            let (name, caller) = named.remove(at);
            self.assign(&name, caller)?;
        }
        let surplus: Vec<Value> = positional.collect();
        if def.takes_varargs {
            let surplus = Value::tuple(&mut self.meter, surplus)?;
            self.assign(&"varargs".into(), surplus)?;
        } else if !surplus.is_empty() {
            return fault(format!("the macro `{}` takes at most {} arguments", def.name, def.params.len()));
        }
        if def.takes_kwargs {
            let pairs = named.into_iter().map(|(name, value)| (ops::text_value(&name), value)).collect();
            let kwargs = Value::Dict(Arc::new(Dict::new(&mut self.meter, pairs)?));
            self.assign(&"kwargs".into(), kwargs)?;
        } else if let Some((name, _)) = named.first() {
            return fault(format!("the macro `{}` has no argument `{name}`", def.name));
        }
        Ok(())
    }
}
