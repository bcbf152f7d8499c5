//! A panel of bars made of parts.

use super::svg::{Area, Picture, colour, label, ticks};
use crate::bench::spread::figures;

const BAR: f64 = 24.0;
const GAP: f64 = 10.0;

pub(super) struct Bar {
    pub(super) name: String,
    /// One for each name of the parts.
    pub(super) parts: Vec<f64>,
}

pub(super) fn bars(picture: &mut Picture, title: &str, x_name: &str, parts: &[&str], all: &[Bar]) {
    let height = (all.len() as f64 * (BAR + GAP)).max(20.0 * parts.len() as f64);
    let area = picture.panel(title, height);
    let longest = all.iter().map(|b| b.parts.iter().sum::<f64>()).fold(0.0, f64::max);
    let xs = ticks(longest);
    let scale = area.width / xs[xs.len() - 1];
    for x in &xs {
        let at = area.left + x * scale;
        picture.line("grid", (at, area.top), (at, area.bottom()));
        picture.text(at, area.bottom() + 18.0, "dim", "middle", &label(*x));
    }
    picture.text(area.right(), area.bottom() + 36.0, "dim", "end", x_name);
    for (i, bar) in all.iter().enumerate() {
        let top = area.top + i as f64 * (BAR + GAP) + GAP / 2.0;
        picture.text(area.left - 8.0, top + 17.0, "dim", "end", &bar.name);
        let mut left = area.left;
        for (p, (part, value)) in parts.iter().zip(&bar.parts).enumerate() {
            let width = value * scale;
            let says = format!("{}: {part} {} ms", bar.name, figures(*value));
            picture.bar(&colour(p + 1), Area { left, top, width, height: BAR }, &says);
            left += width;
        }
    }
    for (p, part) in parts.iter().enumerate() {
        picture.legend_in(area, p, p + 1, part);
    }
}
