//! What the compiler says of its kernels, read from the cubin itself: registers, and bytes of local memory a thread.

/// A kernel's appetite.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Kernel {
    pub(crate) name: String,
    pub(crate) registers: u32,
    /// Spilled registers and arrays that found no register.
    pub(crate) stack_bytes: u32,
}

/// Attributes of `.nv.info` whose value is (symbol, number).
const REGISTERS: u8 = 0x2f;
const STACK: u8 = 0x12;
/// The entry's value follows it, its length in the entry's last half word.
const LONG: u8 = 0x04;

struct Section {
    name: u32,
    offset: usize,
    size: usize,
    link: usize,
}

fn u16_at(b: &[u8], at: usize) -> Option<usize> {
    Some(usize::from(u16::from_le_bytes(b.get(at..at + 2)?.try_into().ok()?)))
}

fn u32_at(b: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(b.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(b: &[u8], at: usize) -> Option<usize> {
    Some(u64::from_le_bytes(b.get(at..at + 8)?.try_into().ok()?) as usize)
}

fn text_at(b: &[u8], at: usize) -> Option<&str> {
    let rest = b.get(at..)?;
    std::str::from_utf8(&rest[..rest.iter().position(|c| *c == 0)?]).ok()
}

/// The kernels of a cubin by name, or `None` for what is no cubin.
pub(crate) fn kernels(cubin: &[u8]) -> Option<Vec<Kernel>> {
    let (table, size, n, names) =
        (u64_at(cubin, 0x28)?, u16_at(cubin, 0x3a)?, u16_at(cubin, 0x3c)?, u16_at(cubin, 0x3e)?);
    let sections: Vec<Section> = (0..n)
        .map(|i| {
            let at = table + i * size;
            Some(Section {
                name: u32_at(cubin, at)?,
                offset: u64_at(cubin, at + 24)?,
                size: u64_at(cubin, at + 32)?,
                link: u32_at(cubin, at + 40)? as usize,
            })
        })
        .collect::<Option<_>>()?;
    let named = |wanted: &str| {
        let names = sections.get(names)?;
        sections.iter().find(|s| text_at(cubin, names.offset + s.name as usize) == Some(wanted))
    };
    let (symbols, info) = (named(".symtab")?, named(".nv.info")?);
    let strings = sections.get(symbols.link)?;
    let symbol = |i: usize| text_at(cubin, strings.offset + u32_at(cubin, symbols.offset + 24 * i)? as usize);
    let mut found: Vec<Kernel> = Vec::new();
    let mut stacks: Vec<(String, u32)> = Vec::new();
    let (mut at, end) = (info.offset, info.offset + info.size);
    while at < end {
        let (format, attribute, len) = (*cubin.get(at)?, *cubin.get(at + 1)?, u16_at(cubin, at + 2)?);
        at += 4;
        if format == LONG {
            if attribute == REGISTERS || attribute == STACK {
                let name = symbol(u32_at(cubin, at)? as usize)?.to_string();
                let value = u32_at(cubin, at + 4)?;
                match attribute {
                    REGISTERS => found.push(Kernel { name, registers: value, stack_bytes: 0 }),
                    _ => stacks.push((name, value)),
                }
            }
            at += len;
        }
    }
    for kernel in &mut found {
        kernel.stack_bytes = stacks.iter().find(|s| s.0 == kernel.name)?.1;
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    Some(found)
}
