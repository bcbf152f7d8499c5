//! A kernel's body: declarations, labels, calls (whose functions are written in where they are called), and operands.

use std::collections::HashMap;

use super::module::{Function, Parameter, Surroundings, type_bytes, variable};
use super::names::{Name, Scopes, special};
use super::statements::{Cursor, Operand, Result, Statement};
use super::tokens::Token;
use super::{arithmetic, convert, memory, sync};
use crate::code::{
    AnyReg, CONSTANT, Code, Guard, Instruction, Lanes, Op, Place, Pred, Reg, Space, Special, Wide, WideReg,
};
use crate::exec::SHARED_BASE;

pub(super) struct Lowered {
    pub(super) code: Code,
    pub(super) param_bytes: usize,
    pub(super) static_shared: usize,
}

pub(super) struct Body<'m, 't, 'a> {
    around: &'m Surroundings<'t, 'a>,
    code: Code,
    scopes: Scopes<'a>,
    /// Where each leads to, once known. Until the end a branch holds the label's number.
    labels: Vec<usize>,
    constants: HashMap<u32, Reg>,
    wide_constants: HashMap<u64, WideReg>,
    specials: HashMap<Special, Reg>,
    cells: HashMap<(usize, i64), AnyReg>,
    n_cells: usize,
    /// Registers of 16 bits, series by series.
    short: Vec<std::ops::Range<u32>>,
    static_shared: usize,
    /// The statement is of 16 bits: its numbers have no more.
    has_short_numbers: bool,
    /// Where `ret` leads to, in functions that are called.
    returns: Vec<usize>,
    /// Of the statement that is read.
    line: u32,
    guard: Option<Guard>,
}

pub(super) fn lower<'t, 'a>(
    around: &Surroundings<'t, 'a>,
    parameters: &[Parameter<'a>],
    text: Cursor<'t, 'a>,
) -> Result<Lowered> {
    let mut body = Body {
        around,
        code: Code::default(),
        scopes: Scopes::default(),
        labels: Vec::new(),
        constants: HashMap::new(),
        wide_constants: HashMap::new(),
        specials: HashMap::new(),
        cells: HashMap::new(),
        n_cells: 0,
        short: Vec::new(),
        static_shared: around.static_shared,
        has_short_numbers: false,
        returns: Vec::new(),
        line: 0,
        guard: None,
    };
    body.scopes.enter();
    for (name, at) in &around.globals {
        body.scopes.innermost().declare(name, Name::Address(*at));
    }
    for (name, at) in &around.shared {
        body.scopes.innermost().declare(name, Name::Address(SHARED_BASE + *at as u64));
    }
    let mut param_bytes = 0usize;
    body.scopes.enter();
    for p in parameters {
        param_bytes = param_bytes.next_multiple_of(p.alignment.max(1));
        body.scopes.innermost().declare(p.name, Name::Address(param_bytes as u64));
        param_bytes += p.bytes;
    }
    // Its end is where its own variables end, which is known behind the body: as registers of its own, named like a special.
    let dynamic = body.new_wide();
    let mut alignment = 1;
    for (name, wanted) in &around.dynamic_shared {
        body.scopes.innermost().declare(name, Name::Wide(dynamic));
        alignment = alignment.max(*wanted);
    }
    body.block(text)?;
    body.emit(Op::Exit);
    let labels = std::mem::take(&mut body.labels);
    for instruction in &mut body.code.instructions {
        if let Op::Branch(to) = &mut instruction.op {
            *to = labels[*to];
        }
    }
    body.code.dynamic_shared = dynamic;
    super::allocate::allocate(&mut body.code);
    // What the launch adds lies behind it.
    let static_shared = body.static_shared.next_multiple_of(alignment);
    Ok(Lowered { code: body.code, param_bytes, static_shared })
}

impl<'t, 'a> Body<'_, 't, 'a> {
    fn block(&mut self, mut text: Cursor<'t, 'a>) -> Result<()> {
        self.scopes.enter();
        for label in text.labels() {
            let id = self.new_label();
            self.scopes.innermost().declare_label(label, id);
        }
        while !text.is_at_end() {
            let line = text.line();
            self.line = line;
            self.guard = None;
            self.part(&mut text)
                .map_err(|e| if e.starts_with("line ") { e } else { format!("line {line}: {e}") })?;
        }
        self.scopes.leave();
        Ok(())
    }

    fn part(&mut self, text: &mut Cursor<'t, 'a>) -> Result<()> {
        match (text.peek(), text.peek_at(1)) {
            (Some(Token::Mark(b'{')), _) => self.block(text.block()?),
            (Some(Token::Mark(b';')), _) => text.expect(b';'),
            (Some(Token::Name(label)), Some(Token::Mark(b':'))) => {
                text.name()?;
                text.expect(b':')?;
                let id = self.scopes.label(label)?;
                self.labels[id] = self.code.instructions.len();
                Ok(())
            }
            (Some(Token::Name(".reg")), _) => self.registers(text),
            (Some(Token::Name(word @ (".shared" | ".local" | ".param"))), _) => self.memory(word, text),
            (Some(Token::Name(".pragma" | ".loc" | ".file")), _) => text.skip_statement(),
            _ => {
                let statement = text.statement()?;
                self.statement(&statement)
            }
        }
    }

    /// `.reg .b32 %r<8>, a;`
    fn registers(&mut self, text: &mut Cursor<'t, 'a>) -> Result<()> {
        text.name()?;
        let suffix = text.name()?;
        while !text.takes(b';') {
            let name = text.name()?;
            let mut n = 1;
            let is_series = text.takes(b'<');
            if is_series {
                n = text.number()? as u32;
                text.expect(b'>')?;
            }
            let first = if suffix == ".pred" {
                self.code.n_preds += n;
                Name::Pred(Pred(self.code.n_preds - n))
            } else if type_bytes(suffix)? == 8 {
                self.code.n_wide += n;
                Name::Wide(WideReg(self.code.n_wide - n))
            } else {
                self.code.n_regs += n;
                if type_bytes(suffix)? == 2 {
                    self.short.push(self.code.n_regs - n..self.code.n_regs);
                }
                Name::Reg(Reg(self.code.n_regs - n))
            };
            match is_series {
                true => self.scopes.innermost().declare_series(name, first, n),
                false => self.scopes.innermost().declare(name, first),
            }
            text.takes(b',');
        }
        Ok(())
    }

    fn memory(&mut self, word: &str, text: &mut Cursor<'t, 'a>) -> Result<()> {
        text.name()?;
        let v = variable(text)?;
        text.expect(b';')?;
        let bytes = v.bytes.ok_or_else(|| format!("`{}` has no size", v.name))?;
        let room = match word {
            ".shared" => &mut self.static_shared,
            ".local" => &mut self.code.local_bytes,
            _ => {
                self.n_cells += 1;
                self.scopes.innermost().declare(v.name, Name::Cell(self.n_cells - 1));
                return Ok(());
            }
        };
        let at = room.next_multiple_of(v.alignment.max(1));
        *room = at + bytes;
        // A block's own memory begins where its first address is not zero.
        let base = if word == ".shared" { SHARED_BASE as usize } else { 0 };
        self.scopes.innermost().declare(v.name, Name::Address((base + at) as u64));
        Ok(())
    }

    fn statement(&mut self, s: &Statement<'a>) -> Result<()> {
        if let Some((name, is_not)) = s.guard {
            let Name::Pred(pred) = self.scopes.find(name)? else {
                return Err(format!("`{name}` is no predicate"));
            };
            self.guard = Some(Guard { pred, is_not });
        }
        let parts: Vec<&str> = s.opcode.split('.').collect();
        self.has_short_numbers = matches!(parts.last(), Some(&("b16" | "u16" | "s16")));
        match (parts[0], &s.operands[..]) {
            ("bra", [Operand::Name(label)]) => {
                let id = self.scopes.label(label)?;
                self.emit(Op::Branch(id));
            }
            ("ret", []) => match self.returns.last() {
                Some(&id) => self.emit(Op::Branch(id)),
                None => self.emit(Op::Exit),
            },
            ("exit", []) => self.emit(Op::Exit),
            ("trap", []) => self.emit(Op::Trap),
            ("call", operands) => self.call(operands)?,
            (_, operands) => {
                let is_known = memory::lower(self, &parts, operands)?
                    || sync::lower(self, &parts, operands)?
                    || convert::lower(self, &parts, operands)?
                    || arithmetic::lower(self, &parts, operands)?;
                if !is_known {
                    return Err(format!("`{}` is not known", s.opcode));
                }
            }
        }
        Ok(())
    }

    /// `call (results), name, (arguments)`.
    fn call(&mut self, operands: &[Operand<'a>]) -> Result<()> {
        let (results, name, arguments) = match operands {
            [Operand::List(results), Operand::Name(name), Operand::List(arguments)] => {
                (&results[..], name, &arguments[..])
            }
            [Operand::List(results), Operand::Name(name)] => (&results[..], name, &[][..]),
            [Operand::Name(name), Operand::List(arguments)] => (&[][..], name, &arguments[..]),
            _ => return Err("a call of this form is not known".into()),
        };
        if self.guard.is_some() {
            return Err("a call under a predicate is not known".into());
        }
        let functions = &self.around.functions;
        let Function { results: formal_results, parameters, body } =
            functions.get(name).cloned().ok_or_else(|| format!("there is no function `{name}`"))?;
        if self.returns.len() > 8 {
            return Err(format!("`{name}` calls too deep"));
        }
        let mut cells = Vec::new();
        for (formal, actual) in formal_results.iter().zip(results).chain(parameters.iter().zip(arguments)) {
            let Operand::Name(actual) = actual else { return Err("an argument that is no name".into()) };
            cells.push((formal.name, self.scopes.find(actual)?));
        }
        let aside = self.scopes.set_aside();
        self.scopes.enter();
        for (name, cell) in cells {
            self.scopes.innermost().declare(name, cell);
        }
        let end = self.new_label();
        self.returns.push(end);
        self.block(body)?;
        self.returns.pop();
        self.labels[end] = self.code.instructions.len();
        self.scopes.restore(aside);
        Ok(())
    }

    pub(super) fn emit(&mut self, op: Op) {
        self.code.instructions.push(Instruction { guard: self.guard, op, line: self.line });
    }

    fn new_label(&mut self) -> usize {
        self.labels.push(usize::MAX);
        self.labels.len() - 1
    }

    pub(super) fn new_reg(&mut self) -> Reg {
        self.code.n_regs += 1;
        Reg(self.code.n_regs - 1)
    }

    pub(super) fn new_wide(&mut self) -> WideReg {
        self.code.n_wide += 1;
        WideReg(self.code.n_wide - 1)
    }

    pub(super) fn is_short(&self, reg: Reg) -> bool {
        self.short.iter().any(|series| series.contains(&reg.0))
    }

    pub(super) fn constant(&mut self, value: u32) -> Reg {
        *self.constants.entry(value).or_insert_with(|| {
            self.code.constants.push([value; 32] as Lanes);
            Reg(CONSTANT | (self.code.constants.len() - 1) as u32)
        })
    }

    pub(super) fn wide_constant(&mut self, value: u64) -> WideReg {
        *self.wide_constants.entry(value).or_insert_with(|| {
            self.code.wide_constants.push([value; 32] as Wide);
            WideReg(CONSTANT | (self.code.wide_constants.len() - 1) as u32)
        })
    }

    /// Of up to 32 bits.
    pub(super) fn reg(&mut self, operand: &Operand<'a>) -> Result<Reg> {
        match operand {
            Operand::Number(n) if self.has_short_numbers => Ok(self.constant(*n as u32 & 0xffff)),
            Operand::Number(n) => Ok(self.constant(*n as u32)),
            Operand::Name(name) => {
                if let Some(special) = special(name) {
                    if let Some(reg) = self.specials.get(&special) {
                        return Ok(*reg);
                    }
                    let reg = self.new_reg();
                    self.specials.insert(special, reg);
                    self.code.specials.push((special, reg));
                    return Ok(reg);
                }
                match self.scopes.find(name)? {
                    Name::Reg(reg) => Ok(reg),
                    Name::Address(at) => Ok(self.constant(at as u32)),
                    Name::Wide(wide) => {
                        let reg = self.new_reg();
                        let guard = self.guard.take();
                        self.emit(Op::Narrow(|d, a| (0..32).for_each(|l| d[l] = a[l] as u32), reg, wide));
                        self.guard = guard;
                        Ok(reg)
                    }
                    other => Err(format!("`{name}` is {other:?}, no register of 32 bits")),
                }
            }
            other => Err(format!("{other:?} is no register")),
        }
    }

    pub(super) fn regs<const N: usize>(&mut self, operands: &[Operand<'a>]) -> Result<[Reg; N]> {
        let found = operands.iter().map(|o| self.reg(o)).collect::<Result<Vec<_>>>()?;
        let n = found.len();
        found.try_into().map_err(|_| format!("{n} operands for {N}"))
    }

    pub(super) fn wide(&mut self, operand: &Operand<'a>) -> Result<WideReg> {
        match operand {
            Operand::Number(n) => Ok(self.wide_constant(*n)),
            Operand::Name(name) => match self.scopes.find(name)? {
                Name::Wide(reg) => Ok(reg),
                Name::Address(at) => Ok(self.wide_constant(at)),
                other => Err(format!("`{name}` is {other:?}, no register of 64 bits")),
            },
            other => Err(format!("{other:?} is no register")),
        }
    }

    pub(super) fn wides<const N: usize>(&mut self, operands: &[Operand<'a>]) -> Result<[WideReg; N]> {
        let found = operands.iter().map(|o| self.wide(o)).collect::<Result<Vec<_>>>()?;
        let n = found.len();
        found.try_into().map_err(|_| format!("{n} operands for {N}"))
    }

    /// Either, by the bytes of the instruction's type.
    pub(super) fn any(&mut self, operand: &Operand<'a>, bytes: usize) -> Result<AnyReg> {
        match bytes {
            8 => self.wide(operand).map(AnyReg::Wide),
            _ => self.reg(operand).map(AnyReg::Reg),
        }
    }

    /// As it was declared: what is loaded may be narrower than its register. Numbers are of the instruction's bytes.
    pub(super) fn own(&mut self, operand: &Operand<'a>, bytes: usize) -> Result<AnyReg> {
        match operand {
            Operand::Name(name) if special(name).is_none() => match self.scopes.find(name)? {
                Name::Wide(reg) => Ok(AnyReg::Wide(reg)),
                _ => self.any(operand, bytes),
            },
            _ => self.any(operand, bytes),
        }
    }

    /// The predicate, and whether it is meant to be false.
    pub(super) fn pred(&mut self, operand: &Operand<'a>) -> Result<(Pred, bool)> {
        let (name, is_not) = match operand {
            Operand::Name(name) => (name, false),
            Operand::Not(name) => (name, true),
            Operand::Number(n) => return Ok((Pred(CONSTANT | u32::from(*n != 0)), false)),
            other => return Err(format!("{other:?} is no predicate")),
        };
        match self.scopes.find(name)? {
            Name::Pred(pred) => Ok((pred, is_not)),
            other => Err(format!("`{name}` is {other:?}, no predicate")),
        }
    }

    /// A predicate that may not be negated.
    pub(super) fn plain_pred(&mut self, operand: &Operand<'a>) -> Result<Pred> {
        match self.pred(operand)? {
            (pred, false) => Ok(pred),
            _ => Err("a negated predicate is not known here".into()),
        }
    }

    pub(super) fn place(&mut self, operand: &Operand<'a>, space: Space) -> Result<Place> {
        let Operand::Place(name, offset) = operand else { return Err(format!("{operand:?} is no place")) };
        let base = match self.scopes.find(name)? {
            Name::Reg(reg) => AnyReg::Reg(reg),
            Name::Wide(reg) => AnyReg::Wide(reg),
            Name::Address(at) => AnyReg::Wide(self.wide_constant(at)),
            other => return Err(format!("`{name}` is {other:?}, no address")),
        };
        Ok(Place { space, base, offset: *offset })
    }

    /// The register of an argument or result of a call, where the operand is one.
    pub(super) fn cell(&mut self, operand: &Operand<'a>, bytes: usize) -> Result<Option<AnyReg>> {
        let Operand::Place(name, offset) = operand else { return Ok(None) };
        let Name::Cell(cell) = self.scopes.find(name)? else { return Ok(None) };
        if let Some(reg) = self.cells.get(&(cell, *offset)) {
            return Ok(Some(*reg));
        }
        let reg = match bytes {
            8 => AnyReg::Wide(self.new_wide()),
            _ => AnyReg::Reg(self.new_reg()),
        };
        self.cells.insert((cell, *offset), reg);
        Ok(Some(reg))
    }
}
