//! Templates that want the machine: each ends in an error, within its budget of steps and memory. Work is counted, never
//! timed: bytes alive at once, and bytes that were ever allocated.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::Duration;

use overdraft_formats::template::{ChatTemplate, Limits};
use serde_json::{Value, json};

/// Counts the bytes alive on each thread, so that tests beside each other do not see one another.
struct Counting;

thread_local! {
    static ALIVE: Cell<usize> = const { Cell::new(0) };
    static PEAK: Cell<usize> = const { Cell::new(0) };
    static EVER: Cell<usize> = const { Cell::new(0) };
}

fn count(change: impl Fn(usize) -> usize) {
    // Fails only while the thread ends, when nobody measures.
    let _ = ALIVE.try_with(|alive| {
        alive.set(change(alive.get()));
        let _ = PEAK.try_with(|peak| peak.set(peak.get().max(alive.get())));
    });
}

// SAFETY: every call goes to the system allocator unchanged; counting touches no memory of the caller.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(|alive| alive + layout.size());
        let _ = EVER.try_with(|ever| ever.set(ever.get() + layout.size()));
        // SAFETY: the caller's layout, passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(|alive| alive.saturating_sub(layout.size()));
        // SAFETY: the caller's pointer and layout, passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// What `work` returns, the bytes it held at most beyond those held before, and the bytes it allocated over time.
fn measure<T>(work: impl FnOnce() -> T) -> (T, usize, usize) {
    let (before, ever) = (ALIVE.get(), EVER.get());
    PEAK.set(before);
    let result = work();
    (result, PEAK.get() - before, EVER.get() - ever)
}

/// The wall clock, the second net under steps and bytes, is out of the way: these have to hold by themselves.
fn limits() -> Limits {
    Limits { time: Duration::MAX, ..Limits::default() }
}

fn render(source: &str, vars: &Value) -> Result<String, String> {
    let template = ChatTemplate::parse("hostile.jinja", source).map_err(|e| e.to_string())?;
    template.render(vars, &limits()).map_err(|e| e.to_string())
}

/// 16 MiB are the budget; the rest is the source, its tokens, and the error.
const MEMORY: usize = 18 << 20;
/// Allocated over time, freed or not: the most is 22.8 MB.
const CHURN: usize = 32 << 20;

#[track_caller]
fn refuses(source: &str, because: &str) {
    refuses_with(source, &json!({}), because);
}

#[track_caller]
fn refuses_with(source: &str, vars: &Value, because: &str) {
    let (result, memory, churn) = measure(|| render(source, vars));
    let shown: String = source.chars().take(100).collect();
    let problem = result.expect_err(&shown);
    assert!(problem.contains(because), "{shown}\n  {problem}\n  does not say `{because}`");
    assert!(memory <= MEMORY, "{shown}\n  held {memory} bytes");
    assert!(churn <= CHURN, "{shown}\n  allocated {churn} bytes in all");
    eprintln!("{memory:>9} bytes of {churn:>9}  {shown}");
}

#[test]
#[rustfmt::skip]
fn memory_bombs_end_at_the_budget() {
    let bytes = "bytes of memory";
    refuses("{% set x = namespace(s='aaaaaaaaaaaaaaaa') %}{% for i in range(60) %}{% set x.s = x.s ~ x.s %}{% endfor %}", bytes);
    refuses("{% set x = namespace(s='aaaaaaaaaaaaaaaa') %}{% for i in range(60) %}{% set x.s = x.s + x.s %}{% endfor %}", bytes);
    refuses("{% set x = namespace(s=[1]) %}{% for i in range(60) %}{% set x.s = x.s + x.s %}{% endfor %}", "stopped");
    refuses("{% set x = namespace(s='a') %}{% for i in range(60) %}{% set x.s = x.s.replace('a', 'aaaaaaaa') %}{% endfor %}", "stopped");
    refuses("{{ 'a'|indent(1000000000) ~ 'x\ny'|indent(1000000000) }}", bytes);
    refuses("{{ 'x\ny'|indent(99999999999999999999) }}", bytes);
    refuses("{{ 'x'|indent(1000000000, true) }}",            bytes);
    refuses("{{ '%99999999d' % 1 }}",                        bytes);
    refuses("{{ '%-99999999s' % 1 }}",                       bytes);
    refuses("{{ '%*d' % (999999999999, 1) }}",               bytes);
    refuses("{{ '%.99999999f' % 1 }}",                       "99999999 digits");
    refuses("{{ '{:99999999}'.format(1) }}",                 bytes);
    refuses("{{ '{:>{w}}'.format('', w=99999999999) }}",     bytes);
    refuses("{{ '{:.99999999f}'.format(1.5) }}",             "99999999 digits");
    refuses("{{ 'a' * 1000000000 }}",                        bytes);
    refuses("{{ 99999999999999999999 * 'ab' }}",             bytes);
    refuses("{{ [0] * 1000000000 }}",                        "stopped");
    refuses("{{ [[0] * 1000] * 100000000000000000 }}",       "stopped");
    refuses("{{ (0,) * 1000000000 }}",                       "stopped");
    refuses("{{ 'a'.ljust(1000000000) }}",                   bytes);
    refuses("{{ 'a'.center(1000000000) }}",                  bytes);
    refuses("{{ '1'.zfill(1000000000) }}",                   bytes);
    refuses("{{ range(100000)|join('x' * 1000) }}",          "stopped");
    refuses("{{ ('x' * 100000).join(range(100000)|map('string')) }}", "stopped");
    refuses("{{ ('a' * 100000)|replace('', 'b' * 1000) }}",  bytes);
    refuses("{{ ('a' * 100000).replace('a', 'b' * 1000) }}", bytes);
    refuses("{{ ('a' * 1000000)|list|length }}",             "stopped");
    refuses("{{ ('a,' * 1000000).split(',')|length }}",      "stopped");
    refuses("{{ [1]|batch(1000000000, 0)|list }}",           "stopped");
    refuses("{{ ('\x01' * 3000000)|tojson }}",               "stopped");
    refuses("{{ [('\n' * 3000000)] }}",                      "stopped");
    refuses("{{ ('<' * 3000000)|e }}",                       "stopped");
    refuses("{% set x = [1, 2] %}{{ ([[x] * 1000] * 1000) | tojson(indent='        ') }}", "stopped");
    refuses("{% set a = ['xxxxxxxx'] * 400 %}{% set b = [a] * 400 %}{% set c = [b] * 400 %}{{ c }}",        "stopped");
    refuses("{% set a = ['xxxxxxxx'] * 400 %}{% set b = [a] * 400 %}{% set c = [b] * 400 %}{{ c|tojson }}", "stopped");
    refuses("{% for i in range(100000) %}{{ 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx' }}{% endfor %}", "stopped");
    refuses("{{ strftime_now('%c' * 1000000) }}",            "stopped");
    refuses("{{ '{0}'.format('a' * 9000000) ~ '{0}{0}'.format('a' * 3000000) }}", bytes);
    refuses("{% set x %}{% for i in range(99999) %}{% set y %}{{ 'a' * 999 }}{% endset %}{{ y }}{% endfor %}{% endset %}", "stopped");
}

#[test]
#[rustfmt::skip]
fn time_bombs_run_out_of_steps() {
    refuses("{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}{% endfor %}{% endfor %}{% endfor %}", "steps");
    refuses("{{ range(1000000000000) }}",                    "at most 100000");
    refuses("{{ range(1000000000000)|map('string')|list }}", "at most 100000");
    refuses("{{ range(-99999999999999999999999999999999999999, 99999999999999999999999999999999999999) }}", "at most 100000");
    refuses("{{ 9 ** 9 ** 9 }}",                             "too large an integer");
    refuses("{{ 9 ** 999999999999 }}",                       "too large an integer");
    refuses("{{ 170141183460469231731687303715884105727 + 1 }}", "too large an integer");
    refuses("{{ [1, 2][::0] }}",                             "step of a slice is zero");
    refuses("{% set x = range(1000)|list %}{% for a in range(1000) %}{% if [a] in x %}{% endif %}{% endfor %}", "steps");
    refuses("{% set x = 'a' * 4000000 %}{% for a in range(99999) %}{% if 'b' in x %}{% endif %}{% endfor %}", "steps");
    refuses("{% set x = 'a' * 4000000 %}{% for a in range(99999) %}{{ x|length }}{% endfor %}", "steps");
    refuses("{% set x = 'a' * 4000000 %}{% for a in range(99999) %}{{ x.count('aa') }}{% endfor %}", "steps");
    refuses("{% set x = 'a' * 2000000 %}{% set y = 'a' * 2000000 %}{% for a in range(99999) %}{{ x == y }}{% endfor %}", "steps");
    refuses("{% set x = 'a' * 2000000 %}{% set y = 'a' * 2000000 %}{% for a in range(99999) %}{{ x < y }}{% endfor %}", "steps");
    refuses("{% set x = 'é' * 2000000 %}{% for a in range(99999) %}{{ x[-1] }}{% endfor %}", "steps");
    refuses("{% set x = 'a' * 2000000 %}{% for a in range(99999) %}{{ {'a': 1}[x] }}{% endfor %}", "steps");
    refuses("{{ ('a' * 1000000).strip('b' * 1000000 + 'a') }}", "steps");
    refuses("{{ range(99999)|sort|sort|sort|sort }}",        "stopped");
    refuses("{{ range(99999)|unique|list }}",                "stopped");
    refuses("{{ range(99999)|map('map', 'map', 'map', 'string')|list }}", "can't be iterated");
    refuses("{{ 'a'|map(*['map'] * 10000)|list }}",          "stopped");
    refuses("{% macro f() %}{{ g() }}{% endmacro %}{% macro g() %}{{ f() }}{% endmacro %}{{ f() }}", "deep");
    refuses("{% macro f(x) %}{{ f([x]) }}{% endmacro %}{{ f(1) }}", "deep");
    refuses("{% macro f(n) %}{% for i in range(10) %}{% if n %}{{ f(n - 1) }}{% endif %}{% endfor %}{% endmacro %}{{ f(30) }}", "stopped");
    refuses("{% macro f(a=f()) %}{% endmacro %}{{ f() }}",   "deep");
    refuses("{% macro w() %}{{ caller() }}{% endmacro %}{% macro f() %}{% call w() %}{{ f() }}{% endcall %}{% endmacro %}{{ f() }}", "deep");
    refuses("{% set x = namespace(a=[]) %}{% for i in range(99999) %}{% set x.a = [x.a] %}{% endfor %}", "deep");
    refuses("{% set x = namespace(a={}) %}{% for i in range(99999) %}{% set x.a = {'a': x.a} %}{% endfor %}", "deep");
    refuses("{% set x = namespace(a=[]) %}{% for i in range(99999) %}{% set x.a = [x.a]|map('list') %}{% endfor %}", "deep");
    refuses("{% set x = namespace(a=[]) %}{% for i in range(99999) %}{% for j in [x.a] %}{% set x.a = [loop] %}{% endfor %}{% endfor %}", "deep");
}

#[test]
fn deep_nesting_is_refused_while_parsing() {
    let many = 60_000;
    let deep = "nest more than 64 deep";
    let (open, close) = ("(".repeat(many), ")".repeat(many));
    refuses(&format!("{{{{ {open}1{close} }}}}"), deep);
    refuses(&format!("{{{{ {open}"), "not closed");
    for (before, after) in
        [("[", "]"), ("{1:", "}"), ("not ", ""), ("- ", ""), ("f(", ")"), ("1|f(", ")"), ("x[", "]")]
    {
        refuses(&format!("{{{{ {}1{} }}}}", before.repeat(12_000), after.repeat(12_000)), deep);
    }
    refuses(&"{% if a %}".repeat(12_000), deep);
    refuses(&"{% for a in b %}".repeat(8_000), deep);
    refuses(&"{% macro a() %}".repeat(8_000), deep);
    refuses(&format!("{{{{ {}1 }}}}", "1 if 1 else ".repeat(8_000)), deep);
    refuses(&format!("{{{{ 1 {} }}}}", "if 1 ".repeat(12_000)), "16 `if`");
    refuses(&format!("{{% for {}a{} in b %}}", "(".repeat(12_000), ")".repeat(12_000)), deep);
    refuses(&"x".repeat(200 << 10), "at most 131072");
    let ok = format!("{{{{ 0{} }}}}", "+1".repeat(40_000));
    assert_eq!(render(&ok, &json!({})), Ok("40000".into()), "a chain is not depth");
}

/// Parsing has no budget of its own: the size of the source bounds it.
#[test]
fn the_densest_sources_parse_within_the_budget() {
    let fill = |piece: &str| piece.repeat((127 << 10) / piece.len());
    let sources = [
        format!("{{{{ 0{} }}}}", fill("+1")),
        format!("{{{{ a{} }}}}", fill(".a")),
        format!("{{{{ a{} }}}}", fill("|a")),
        format!("{{{{ [{}] }}}}", fill("1,")),
        format!("{{{{ {{{}}} }}}}", fill("1:1,")),
        format!("{{{{ 1{} }}}}", fill("<1")),
        format!("{{{{ 1{} }}}}", fill("~1")),
        format!("{{{{ ''{} }}}}", fill("''")),
        fill("{{a}}"),
        fill("{%set a=1%}"),
        fill("{%if 1%}{%endif%}"),
        fill("a{#"),
        format!("{{% if 0 %}}{}{{% endif %}}", fill("{%elif 0%}{%set a=1%}")),
        (0..6000).map(|n| format!("{{%set a{n}=b{n}%}}")).collect(),
        (0..3000).map(|n| format!("{{%set a{n}=1%}}{{%if 1%}}{{%endif%}}")).collect(),
    ];
    for source in sources {
        assert!(source.len() <= 128 << 10, "{} bytes", source.len());
        let (_, memory, churn) = measure(|| ChatTemplate::parse("dense.jinja", &source).map(drop));
        let shown: String = source.chars().take(30).collect();
        eprintln!("{memory:>9} bytes of {churn:>9}  {shown}");
        assert!(memory <= MEMORY, "{shown}\n  held {memory} bytes");
        assert!(churn <= CHURN, "{shown}\n  allocated {churn} bytes in all");
    }
}

/// The deepest evaluation of each kind stays far from the 2 MiB a thread has: measured 0.25 to 1 MiB.
#[test]
fn the_deepest_evaluation_fits_the_stack() {
    let expression = |before: &str, after: &str| {
        let (before, after) = (before.repeat(50), after.repeat(50));
        format!("{{% macro f() %}}{{{{ {before}f(){after} }}}}{{% endmacro %}}{{{{ f() }}}}")
    };
    let block = |before: &str, after: &str| {
        let (before, after) = (before.repeat(50), after.repeat(50));
        format!("{{% macro f() %}}{before}{{{{ f() }}}}{after}{{% endmacro %}}{{{{ f() }}}}")
    };
    let sources = [
        expression("[", "]"),
        expression("1|default(", ")"),
        expression("1 if 0 else ", ""),
        expression("not ", ""),
        expression("0 or (0 or ", ")"),
        expression("{1:", "}"),
        expression("x(", ")"),
        block("{% if 1 %}", "{% endif %}"),
        block("{% for i in [1] %}", "{% endfor %}"),
        block("{% filter upper %}", "{% endfilter %}"),
        block("{% with a=1 %}", "{% endwith %}"),
        "{{ 'a'|map(*['map'] * 600)|list }}".into(),
    ];
    for source in sources {
        let work = move || render(&source, &json!({ "x": [1] })).expect_err("too deep").contains("too deep");
        let thread = std::thread::Builder::new().stack_size(3 << 19).spawn(work).expect("a thread");
        assert!(thread.join().expect("no panic"));
    }
}

#[test]
fn inputs_are_bounded_too() {
    let mut deep = json!(1);
    for _ in 0..100 {
        deep = json!([deep]);
    }
    refuses_with("{{ x }}", &json!({ "x": deep }), "nests more than 64 deep");
    refuses_with("{{ x|length }}", &json!({ "x": "a".repeat(17 << 20) }), "bytes of memory");
    refuses_with("{{ x|length }}", &json!({ "x": vec![0; 1 << 20] }), "stopped");
}

#[test]
fn cycles_through_namespaces_end() {
    let source =
        "{% set a = namespace() %}{% set a.self = [a, a] %}{{ a.self[0].self[1].self|length }}{{ a.self }}";
    let text = render(source, &json!({})).expect("a namespace may hold itself");
    assert_eq!(text, "2[<Namespace object>, <Namespace object>]");
}

/// Small changes to real sources reach code no one thought of: none may panic or take more than its budget.
#[test]
fn mutated_templates_never_panic_nor_outgrow_their_budget() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/template");
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).expect("a file beside this test");
    let conversations: Vec<Value> = serde_json::from_str(&read("conversations.json")).expect("JSON");
    let grid: Vec<Value> = serde_json::from_str(&read("grid.json")).expect("JSON");
    let mut seeds: Vec<String> = ["chatml", "thinking", "xml_calls", "headers", "channels"]
        .iter()
        .map(|name| read(&format!("{name}.jinja")))
        .collect();
    seeds.extend(grid.iter().filter_map(|row| row["source"].as_str().map(String::from)));
    let limits = Limits { steps: 20_000, bytes: 4 << 20, ..limits() };
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut rendered = 0;
    for round in 0..6000 {
        let mut source = seeds[random.below(seeds.len())].clone();
        for _ in 0..=random.below(4) {
            source = mutate(&source, &seeds, &mut random);
        }
        let vars = &conversations[round % conversations.len()];
        let (result, memory, churn) = measure(|| {
            let template = ChatTemplate::parse("mutated.jinja", &source)?;
            template.render(vars, &limits)
        });
        rendered += usize::from(result.is_ok());
        assert!(memory <= 6 << 20, "{memory} bytes for\n{source}");
        assert!(churn <= 12 << 20, "{churn} bytes in all for\n{source}");
    }
    assert!(rendered > 500, "only {rendered} of 6000 mutants render: the mutations are too rough");
}

struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit.max(1) as u64) as usize
    }
}

fn mutate(source: &str, seeds: &[String], random: &mut Random) -> String {
    let mut chars: Vec<char> = source.chars().collect();
    let at = random.below(chars.len() + 1);
    let end = (at + 1 + random.below(8)).min(chars.len());
    const PIECES: [&str; 24] = [
        "{{",
        "}}",
        "{%",
        "%}",
        "{#",
        "-",
        "|",
        "(",
        ")",
        "[::-1]",
        " is ",
        " not ",
        ".",
        "'",
        "999999999999",
        "~",
        " if ",
        "|tojson",
        "|list",
        "|map('upper')",
        "*",
        "%",
        "\u{1f600}",
        "messages",
    ];
    match random.below(5) {
        0 => drop(chars.drain(at..end)),
        1 => drop(chars.splice(at..at, PIECES[random.below(PIECES.len())].chars())),
        2 => {
            let piece = chars[at..end].to_vec();
            let to = random.below(chars.len() + 1);
            drop(chars.splice(to..to, piece));
        }
        3 => {
            let other: Vec<char> = seeds[random.below(seeds.len())].chars().collect();
            let from = random.below(other.len());
            let until = (from + random.below(40)).min(other.len());
            drop(chars.splice(at..end, other[from..until].iter().copied()));
        }
        _ => {
            if let Some(c) = chars.get_mut(at) {
                *c = char::from(b' ' + random.below(95) as u8);
            }
        }
    }
    chars.into_iter().collect()
}
