//! Draws predictions: processors and operations a second, both logarithmic, one panel for each workload.

use std::path::Path;

use anyhow::{Context as _, Result, anyhow, ensure};
use plotters::coord::Shift;
use plotters::prelude::*;

use super::Prediction;

const WIDTH: u32 = 900;
const HEIGHT: u32 = 420;
/// Distinguishable without colour vision.
const COLOURS: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(230, 159, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(213, 94, 0),
];

/// Draws predictions into an SVG file.
///
/// # Errors
/// If there are none, or the file cannot be written.
pub fn plot(predictions: &[Prediction], out: &Path) -> Result<()> {
    let title = |p: &Prediction| format!("{} {}", p.workload, p.params);
    let mut titles: Vec<String> = predictions.iter().map(title).collect();
    titles.dedup();
    ensure!(!titles.is_empty(), "there is nothing to draw");
    let root = SVGBackend::new(out, (WIDTH, HEIGHT * titles.len() as u32)).into_drawing_area();
    let drawn = || -> Result<(), Box<dyn std::error::Error>> {
        root.fill(&WHITE)?;
        for (area, panel) in root.split_evenly((titles.len(), 1)).iter().zip(&titles) {
            let arms: Vec<&Prediction> = predictions.iter().filter(|p| title(p) == *panel).collect();
            draw(panel, &arms, area)?;
        }
        root.present()?;
        Ok(())
    };
    drawn().map_err(|e| anyhow!("{e}")).with_context(|| format!("cannot write {}", out.display()))
}

fn draw(
    title: &str,
    arms: &[&Prediction],
    area: &DrawingArea<SVGBackend<'_>, Shift>,
) -> Result<(), Box<dyn std::error::Error>> {
    let processors = arms.iter().flat_map(|p| p.processors.iter().copied());
    let (few, many) = (processors.clone().min().unwrap_or(1), processors.max().unwrap_or(1));
    let rates = arms.iter().flat_map(|p| p.ops_per_s.iter().map(|rate| rate / 1e6));
    let low = rates.clone().fold(f64::INFINITY, f64::min) / 1.5;
    let high = rates.fold(0.0, f64::max) * 1.5;
    let mut chart = ChartBuilder::on(area)
        .caption(format!("{title}: predicted million operations a second"), ("sans-serif", 16))
        .x_label_area_size(36)
        .y_label_area_size(60)
        .margin_right(20)
        .build_cartesian_2d((few as f64..many as f64 * 1.01).log_scale(), (low..high).log_scale())?;
    chart.configure_mesh().x_desc("processors").x_label_formatter(&|x| format!("{x:.0}")).draw()?;
    for (i, arm) in arms.iter().enumerate() {
        let colour = COLOURS[i % COLOURS.len()];
        let points = arm.processors.iter().zip(&arm.ops_per_s).map(|(n, rate)| (*n as f64, rate / 1e6));
        let points: Vec<(f64, f64)> = points.collect();
        chart
            .draw_series([PathElement::new(points, colour.stroke_width(2))])?
            .label(&arm.arm)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], colour.stroke_width(2)));
    }
    chart.configure_series_labels().position(SeriesLabelPosition::UpperLeft).border_style(BLACK).draw()?;
    Ok(())
}
