//! `bench op`: one op by itself, and its share of what the machine can do.

use std::process::ExitCode;

use overdraft_cpu::workload::{self, Cost, OPS, Runner, Size, SizeError, Workload};
use overdraft_formats::DType;
use overdraft_plan::BackendError;
use serde_json::{Value, json};

use super::args::OpArgs;
use super::machine::Limits;
use super::plot::Line;
use super::spread::{Spread, figures};
use super::table::Table;
use super::{about, check_files, draw, plot, report};
use crate::config::{computing, kv_type};
use crate::failure::{Failure, Result};
use crate::output::Output;
use crate::screen::Screen;

/// One line of the table.
struct Measured {
    dtype: Option<DType>,
    rows: usize,
    seconds: Spread,
    cost: Cost,
    is_int8: bool,
}

impl Measured {
    fn per_second(&self, amount: f64) -> f64 {
        if self.seconds.median > 0.0 { amount / self.seconds.median } else { 0.0 }
    }

    fn bytes_per_second(&self) -> f64 {
        self.per_second(self.cost.bytes)
    }

    fn multiply_adds_per_second(&self) -> f64 {
        self.per_second(self.cost.multiply_adds)
    }

    /// Shares of the read bandwidth and of the int8 peak; the latter only where int8 is what it multiplies.
    fn shares(&self, limits: &Limits) -> (f64, Option<f64>) {
        let int8 = self.multiply_adds_per_second() / limits.int8_per_second;
        (self.bytes_per_second() / limits.bytes_per_second, self.is_int8.then_some(int8))
    }
}

pub(crate) fn op(args: &OpArgs) -> Result<ExitCode> {
    let Some(name) = &args.name else { return list() };
    let spec = workload::find(name).ok_or_else(|| {
        let names: Vec<&str> = OPS.iter().map(|o| o.name).collect();
        Failure::input(format!("no op is called {name}")).hint(format!("ops: {}", names.join(", ")))
    })?;
    check_files(&args.output, Some(&args.picture))?;
    let dims = match &args.shape {
        Some(text) => dims(text)?,
        None => spec.dims.iter().map(|d| d.1).collect(),
    };
    let (device, threads) = computing(&args.computing, &Screen::new(args.output.quiet))?;
    let types: Vec<DType> = args.types.iter().map(|t| dtype(t)).collect::<Result<_>>()?;
    let mut sizes: Vec<Size> = types
        .iter()
        .map(|dtype| Size {
            dims: dims.clone(),
            dtype: *dtype,
            kv: kv_type(args.kv),
            depth: args.depth as usize,
            working_set: (args.working_set as usize) << 20,
            most_copies: usize::MAX,
        })
        .collect();
    if !spec.has_type {
        sizes.truncate(1);
    }
    // Sizes first: nothing is measured of what is refused later.
    let workloads: Vec<Workload> =
        sizes.iter().map(|s| Workload::new(spec, s)).collect::<std::result::Result<_, SizeError>>()?;
    let limits = (!args.times.no_limits).then(|| Limits::measure(threads)).transpose()?;
    let mut measured = Vec::new();
    for (size, workload) in sizes.iter().zip(&workloads) {
        for rows in &args.rows {
            let rows = *rows as usize;
            let mut runner = Runner::new(workload, device.open(threads, None)?.0, rows)?;
            runner.run()?;
            let seconds = (0..args.times.repeats)
                .map(|_| runner.seconds())
                .collect::<std::result::Result<Vec<f64>, BackendError>>()?;
            let dtype = spec.has_type.then_some(size.dtype);
            let (cost, is_int8) = (workload.cost(rows), workload.is_int8);
            measured.push(Measured { dtype, rows, seconds: Spread::of(seconds), cost, is_int8 });
        }
    }
    let shape = dims.iter().map(usize::to_string).collect::<Vec<_>>().join("x");
    let describe = device.open(threads, None)?.0.describe();
    let headline = format!("{} {shape}, {describe}, repeats: {}\n\n", spec.name, args.times.repeats);
    let json = json!({
        "bench": "op",
        "about": about::as_json(),
        "op": spec.name,
        "shape": dims,
        "device": describe,
        "working_set_mib": args.working_set,
        "depth": args.depth,
        "repeats": args.times.repeats,
        "limits": limits.map(|l| l.as_json()),
        "rows": measured.iter().map(|m| as_json(m, limits.as_ref())).collect::<Vec<Value>>(),
    });
    draw(&args.picture, || picture(&headline, &measured))?;
    report(&args.output, &format!("{headline}{}", table(&measured, limits.as_ref())), &json)?;
    Ok(ExitCode::SUCCESS)
}

fn list() -> Result<ExitCode> {
    let mut table = Table::new(&["op", "--shape", "unless given"]);
    for op in &OPS {
        let names: Vec<&str> = op.dims.iter().map(|d| d.0).collect();
        let usual: Vec<String> = op.dims.iter().map(|d| d.1.to_string()).collect();
        table.row(vec![op.name.into(), names.join(" x "), usual.join("x")]);
    }
    Output::new().write(&table.to_string())?;
    Ok(ExitCode::SUCCESS)
}

fn dims(text: &str) -> Result<Vec<usize>> {
    let parts = text.split(['x', 'X', '×']).map(|d| d.trim().parse().map_err(|_| d));
    parts.collect::<std::result::Result<_, _>>().map_err(|bad| {
        Failure::input(format!("--shape {text}: `{bad}` is not a number")).hint("such as --shape 4096x4096")
    })
}

fn dtype(text: &str) -> Result<DType> {
    DType::all().find(|d| d.name().eq_ignore_ascii_case(text.trim())).ok_or_else(|| {
        let names: Vec<&str> =
            DType::all().filter(|d| d.is_float() || d.is_quantised()).map(DType::name).collect();
        Failure::input(format!("--type {text}: no such type")).hint(format!("types: {}", names.join(", ")))
    })
}

fn table(measured: &[Measured], limits: Option<&Limits>) -> String {
    let mut table = Table::new(&[
        "type",
        "rows",
        "us, median (quartiles)",
        "GB/s",
        "GFLOP/s",
        "of read bandwidth",
        "of int8 peak",
    ]);
    let share = |s: Option<f64>| s.map_or_else(|| "-".into(), |s| format!("{:.0} %", 100.0 * s));
    for m in measured {
        let shares = limits.map(|l| m.shares(l));
        let micros = Spread {
            median: 1e6 * m.seconds.median,
            q1: 1e6 * m.seconds.q1,
            q3: 1e6 * m.seconds.q3,
            ..m.seconds
        };
        table.row(vec![
            m.dtype.map_or("-", DType::name).into(),
            m.rows.to_string(),
            micros.to_string(),
            figures(m.bytes_per_second() / 1e9),
            figures(2.0 * m.multiply_adds_per_second() / 1e9),
            share(shares.map(|s| s.0)),
            share(shares.and_then(|s| s.1)),
        ]);
    }
    let note = limits.map_or_else(String::new, |l| {
        let (read, int8) = (figures(l.bytes_per_second / 1e9), figures(l.int8_per_second / 1e9));
        format!("\nlimits of {} threads: {read} GB/s read, {int8} G int8 multiply-adds/s\n", l.threads)
    });
    format!("{table}{note}")
}

fn as_json(m: &Measured, limits: Option<&Limits>) -> Value {
    let shares = limits.map(|l| m.shares(l));
    json!({
        "type": m.dtype.map(DType::name),
        "rows": m.rows,
        "seconds": m.seconds.as_json(),
        "bytes": m.cost.bytes,
        "multiply_adds": m.cost.multiply_adds,
        "bytes_per_second": m.bytes_per_second(),
        "flops_per_second": 2.0 * m.multiply_adds_per_second(),
        "share_of_read_bandwidth": shares.map(|s| s.0),
        "share_of_int8_peak": shares.and_then(|s| s.1),
    })
}

fn picture(headline: &str, measured: &[Measured]) -> String {
    let mut lines: Vec<Line> = Vec::new();
    for m in measured {
        let name = m.dtype.map_or("op", DType::name).to_string();
        let point = (m.rows as f64, 2.0 * m.multiply_adds_per_second() / 1e9);
        match lines.iter_mut().find(|l| l.name == name) {
            Some(line) => line.points.push(point),
            None => lines.push(Line { name, points: vec![point] }),
        }
    }
    plot::of_lines(headline, "Speed against rows", "rows", "GFLOP/s", &lines)
}

impl From<SizeError> for Failure {
    fn from(error: SizeError) -> Self {
        Self::input(error.to_string()).hint("`overdraft bench op` lists every op with its dimensions")
    }
}

impl From<BackendError> for Failure {
    fn from(error: BackendError) -> Self {
        Self::internal(error.to_string())
    }
}
