//! A report as JSON, as a table for a terminal, as Markdown, as CSV.

use anyhow::{Context as _, Result};
use comfy_table::{CellAlignment, Table, TableStyle, presets};

use crate::harness::schedule::Params;
use crate::harness::spread::Spread;
use crate::report::{BenchReport, Ratio, Row, Scaling};

/// Output formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// For a terminal.
    Table,
    /// The complete report; the crate's `README.md` explains the keys.
    Json,
    /// The rows only.
    Csv,
    /// Tables for a document.
    Markdown,
}

/// Formats a report, with a line feed at the end.
///
/// # Errors
/// If it cannot be encoded.
pub fn write(report: &BenchReport, format: Format) -> Result<String> {
    match format {
        Format::Json => Ok(serde_json::to_string_pretty(report)? + "\n"),
        Format::Csv => csv(report),
        Format::Table => Ok(tables(report, presets::NOTHING, "")),
        Format::Markdown => Ok(tables(report, presets::ASCII_MARKDOWN, "\n")),
    }
}

fn tables(report: &BenchReport, style: TableStyle, gap: &str) -> String {
    let m = &report.machine;
    let mut out = format!(
        "{}: {} CPUs of {}, Linux {}, load {:.1}, steal {:.1}%, dentries {}\n",
        report.workload,
        m.cpus,
        m.model,
        m.kernel,
        m.load[0],
        m.steal * 100.0,
        m.dentry_state.first().copied().unwrap_or(0),
    );
    for note in &report.notes {
        out.push_str(&format!("note: {note}\n"));
    }
    let parts = [rows(&report.rows), ratios(&report.ratios), scaling(&report.scaling)];
    for mut table in parts.into_iter().flatten() {
        table.load_style(style);
        out.push_str(&format!("{gap}{}\n", table.trim_fmt()));
    }
    out
}

fn table(head: Vec<String>, lines: Vec<Vec<String>>, left: usize) -> Option<Table> {
    if lines.is_empty() {
        return None;
    }
    let mut table = Table::new();
    table.set_header(head);
    table.add_rows(lines);
    for column in table.column_iter_mut().skip(left) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    Some(table)
}

fn rows(rows: &[Row]) -> Option<Table> {
    let keys = keys(rows.iter().map(|r| &r.params));
    let head = [
        &["arm", "threads"].map(str::to_owned)[..],
        &keys,
        &["ns/op", "min", "max", "M ops/s", "dropped", "undropped ns/op"].map(str::to_owned),
        &server_head(rows.iter().any(|r| r.server_cpu_ns_per_op.is_some()), "server ns/op"),
    ]
    .concat();
    let line = |r: &Row| {
        let figures = [
            ns(r.ns_per_op.median),
            ns(r.ns_per_op.min),
            ns(r.ns_per_op.max),
            format!("{:.2}", r.ops_per_s.median / 1e6),
            format!("{:.1}%", r.dropped * 100.0),
            ns(r.undropped_ns_per_op),
        ];
        let server =
            r.server_cpu_ns_per_op.map_or_else(Vec::new, |s| [s.median, s.min, s.max].map(ns).to_vec());
        let names = vec![r.arm.clone(), workers(r.threads, r.procs)];
        [names, values(&keys, &r.params), figures.to_vec(), server].concat()
    };
    table(head, rows.iter().map(line).collect(), 1)
}

/// Heads of three more columns, if any row has servers. Rows without servers leave these columns out.
fn server_head(served: bool, what: &str) -> Vec<String> {
    if served { [what, "min", "max"].map(str::to_owned).to_vec() } else { Vec::new() }
}

fn ratios(ratios: &[Ratio]) -> Option<Table> {
    let keys = keys(ratios.iter().map(|r| &r.params));
    let head = [
        &["arm", "vs", "threads"].map(str::to_owned)[..],
        &keys,
        &["time ratio", "min", "max"].map(str::to_owned),
        &server_head(ratios.iter().any(|r| r.server_cpu.is_some()), "server ratio"),
    ]
    .concat();
    let line = |r: &Ratio| {
        let names = vec![r.arm.clone(), r.vs.clone(), workers(r.threads, r.procs)];
        let server = r.server_cpu.as_ref().map_or_else(Vec::new, spread);
        [names, values(&keys, &r.params), spread(&r.ratio), server].concat()
    };
    table(head, ratios.iter().map(line).collect(), 2)
}

fn scaling(all: &[Scaling]) -> Option<Table> {
    let keys = keys(all.iter().map(|s| &s.params));
    let head = [
        &["arm", "threads"].map(str::to_owned)[..],
        &keys,
        &["scaling", "min", "max", "of null's", "min", "max"].map(str::to_owned),
    ]
    .concat();
    let line = |s: &Scaling| {
        let of_null = s.of_null.as_ref().map_or_else(|| vec![String::new(); 3], spread);
        [
            vec![s.arm.clone(), workers(s.threads, s.procs)],
            values(&keys, &s.params),
            spread(&s.scaling),
            of_null,
        ]
        .concat()
    };
    table(head, all.iter().map(line).collect(), 1)
}

/// Keys of the workload's parameters, in the order of their first appearance.
fn keys<'a>(params: impl Iterator<Item = &'a Params>) -> Vec<String> {
    let mut keys: Vec<String> = Vec::new();
    for key in params.flat_map(|p| p.keys()) {
        if !keys.contains(key) {
            keys.push(key.clone());
        }
    }
    keys
}

fn values(keys: &[String], params: &Params) -> Vec<String> {
    let plain = |v: &serde_json::Value| v.as_str().map_or_else(|| v.to_string(), str::to_owned);
    keys.iter().map(|key| params.get(key).map_or_else(String::new, plain)).collect()
}

fn workers(threads: usize, procs: Option<usize>) -> String {
    procs.map_or_else(|| threads.to_string(), |procs| format!("{procs} procs"))
}

fn spread(s: &Spread) -> Vec<String> {
    [s.median, s.min, s.max].map(|v| format!("{v:.2}")).to_vec()
}

/// Prints three significant figures.
fn ns(value: f64) -> String {
    if value < 100.0 { format!("{value:.1}") } else { format!("{value:.0}") }
}

fn csv(report: &BenchReport) -> Result<String> {
    let keys = keys(report.rows.iter().map(|r| &r.params));
    let mut writer = csv::Writer::from_writer(Vec::new());
    let figures = [
        "ops_per_s",
        "ops_per_s_min",
        "ops_per_s_max",
        "ns_per_op",
        "ns_per_op_min",
        "ns_per_op_max",
        "dropped",
        "undropped_ns_per_op",
        "huge_page_bytes",
        "server_cpu_ns_per_op",
        "server_cpu_ns_per_op_min",
        "server_cpu_ns_per_op_max",
    ];
    let head = ["workload", "arm", "threads", "procs"]
        .into_iter()
        .chain(keys.iter().map(String::as_str))
        .chain(figures);
    writer.write_record(head)?;
    for r in &report.rows {
        let (ops, ns) = (r.ops_per_s, r.ns_per_op);
        let figures = [
            ops.median,
            ops.min,
            ops.max,
            ns.median,
            ns.min,
            ns.max,
            r.dropped,
            r.undropped_ns_per_op,
            r.huge_page_bytes as f64,
        ];
        let server = r.server_cpu_ns_per_op.map_or_else(
            || [const { String::new() }; 3],
            |s| [s.median, s.min, s.max].map(|f| f.to_string()),
        );
        let names = vec![
            report.workload.clone(),
            r.arm.clone(),
            r.threads.to_string(),
            r.procs.unwrap_or(1).to_string(),
        ];
        writer.write_record(
            [names, values(&keys, &r.params), figures.map(|f| f.to_string()).to_vec(), server.to_vec()]
                .concat(),
        )?;
    }
    let bytes = writer.into_inner().map_err(|e| e.into_error()).context("cannot encode CSV")?;
    String::from_utf8(bytes).context("cannot encode CSV")
}
