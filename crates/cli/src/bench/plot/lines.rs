//! A panel of lines.

use super::svg::{Picture, colour, label, ticks};
use crate::bench::spread::figures;

const HEIGHT: f64 = 240.0;

/// Points in the order of their x; a single one is a dot.
pub(crate) struct Line {
    pub(crate) name: String,
    pub(crate) points: Vec<(f64, f64)>,
}

pub(super) fn lines(picture: &mut Picture, title: &str, x_name: &str, y_name: &str, series: &[Line]) {
    let area = picture.panel(title, HEIGHT);
    let all = || series.iter().flat_map(|s| &s.points);
    let (xs, ys) =
        (ticks(all().map(|p| p.0).fold(0.0, f64::max)), ticks(all().map(|p| p.1).fold(0.0, f64::max)));
    let (x_max, y_max) = (xs[xs.len() - 1], ys[ys.len() - 1]);
    let place =
        |(x, y): (f64, f64)| (area.left + x / x_max * area.width, area.bottom() - y / y_max * area.height);
    for y in &ys {
        let (_, at) = place((0.0, *y));
        picture.line("grid", (area.left, at), (area.right(), at));
        picture.text(area.left - 8.0, at + 4.0, "dim", "end", &label(*y));
    }
    for x in &xs {
        let (at, _) = place((*x, 0.0));
        picture.line("axis", (at, area.bottom()), (at, area.bottom() + 4.0));
        picture.text(at, area.bottom() + 18.0, "dim", "middle", &label(*x));
    }
    picture.line("axis", (area.left, area.bottom()), (area.right(), area.bottom()));
    picture.text(area.left, area.top - 8.0, "dim", "start", y_name);
    picture.text(area.right(), area.bottom() + 36.0, "dim", "end", x_name);
    for (i, line) in series.iter().enumerate() {
        let points: Vec<(f64, f64)> = line.points.iter().map(|p| place(*p)).collect();
        if points.len() > 1 {
            picture.polyline(&colour(i), &points);
        }
        for (point, (x, y)) in points.iter().zip(&line.points) {
            picture.dot(&colour(i), *point, &format!("{}: {} at {}", line.name, figures(*y), figures(*x)));
        }
        picture.legend(area, i, &line.name);
    }
}
