//! Plots reports. Each case is a panel with a bar for every arm and number of workers, and a whisker from
//! the least to the greatest round.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use plotters::coord::Shift;
use plotters::prelude::*;

use crate::report::{BenchReport, Row};

const WIDTH: u32 = 900;
const TITLE: u32 = 30;
const LINE: u32 = 16;
const LABELS: i32 = 170;
/// Colours by number of workers, distinguishable without colour vision.
const COLOURS: [RGBColor; 4] =
    [RGBColor(0, 114, 178), RGBColor(230, 159, 0), RGBColor(0, 158, 115), RGBColor(204, 121, 167)];

/// Rows that differ only in arm and number of workers.
struct Panel<'r> {
    title: String,
    rows: Vec<&'r Row>,
}

/// Draws reports into an SVG file.
///
/// # Errors
/// If there is nothing to draw or the file cannot be written.
pub fn plot(reports: &[BenchReport], out: &Path) -> Result<()> {
    let panels: Vec<Panel<'_>> = reports.iter().flat_map(panels).collect();
    ensure!(!panels.is_empty(), "the files have no rows to draw");
    let heights: Vec<u32> = panels.iter().map(|p| TITLE + 40 + LINE * p.rows.len() as u32).collect();
    let root = SVGBackend::new(out, (WIDTH, heights.iter().sum())).into_drawing_area();
    let drawn = || -> Result<(), Box<dyn std::error::Error>> {
        root.fill(&WHITE)?;
        let mut rest = root.clone();
        for (panel, height) in panels.iter().zip(&heights) {
            let (area, below) = rest.split_vertically(*height);
            draw(panel, &area)?;
            rest = below;
        }
        root.present()?;
        Ok(())
    };
    drawn().map_err(|e| anyhow::anyhow!("{e}")).with_context(|| format!("cannot write {}", out.display()))
}

fn panels(report: &BenchReport) -> Vec<Panel<'_>> {
    let mut panels: Vec<Panel<'_>> = Vec::new();
    for row in &report.rows {
        let params =
            row.params.iter().map(|(key, value)| format!(" {key} {}", value.to_string().trim_matches('"')));
        let title = format!("{}:{}", report.workload, params.collect::<String>());
        match panels.iter_mut().find(|p| p.title == title) {
            Some(panel) => panel.rows.push(row),
            None => panels.push(Panel { title, rows: vec![row] }),
        }
    }
    panels.iter_mut().for_each(|p| sort(&mut p.rows));
    panels
}

/// Order from the bottom of the plot up: most workers first, then slowest first.
fn sort(rows: &mut [&Row]) {
    let workers = |r: &Row| (r.procs.is_some(), r.procs.unwrap_or(r.threads));
    rows.sort_by(|a, b| workers(b).cmp(&workers(a)).then(b.ns_per_op.median.total_cmp(&a.ns_per_op.median)));
}

fn draw(
    panel: &Panel<'_>,
    area: &DrawingArea<SVGBackend<'_>, Shift>,
) -> Result<(), Box<dyn std::error::Error>> {
    let low = panel.rows.iter().map(|r| r.ns_per_op.min).fold(f64::INFINITY, f64::min) / 2.0;
    let high = panel.rows.iter().map(|r| r.ns_per_op.max).fold(0.0, f64::max) * 1.5;
    let count = panel.rows.len();
    let label = |i: &usize| panel.rows.get(*i).map_or_else(String::new, |r| name(r));
    let mut chart = ChartBuilder::on(area)
        .caption(format!("{} (ns an operation)", panel.title), ("sans-serif", 16))
        .x_label_area_size(24)
        .y_label_area_size(LABELS)
        .margin_right(20)
        .build_cartesian_2d((low..high).log_scale(), (0..count).into_segmented())?;
    chart
        .configure_mesh()
        .disable_y_mesh()
        .y_labels(count)
        .y_label_formatter(&|y| match y {
            SegmentValue::CenterOf(i) => label(i),
            _ => String::new(),
        })
        .x_label_formatter(&|x| format!("{x:.0}"))
        .draw()?;
    for (i, row) in panel.rows.iter().enumerate() {
        let colour = COLOURS[(row.procs.unwrap_or(row.threads).max(1) - 1) % COLOURS.len()];
        let (from, to) = (SegmentValue::Exact(i), SegmentValue::Exact(i + 1));
        let bar = Rectangle::new([(low, from), (row.ns_per_op.median, to)], colour.mix(0.7).filled());
        let middle = SegmentValue::CenterOf(i);
        let whisker =
            PathElement::new([(row.ns_per_op.min, middle.clone()), (row.ns_per_op.max, middle)], BLACK);
        chart.draw_series([bar])?;
        chart.draw_series([whisker])?;
    }
    Ok(())
}

fn name(row: &Row) -> String {
    match (row.procs, row.threads) {
        (Some(procs), _) => format!("{}, {procs} processes", row.arm),
        (None, 1) => format!("{}, 1 thread", row.arm),
        (None, n) => format!("{}, {n} threads", row.arm),
    }
}
