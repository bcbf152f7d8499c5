//! The sheet that panels are drawn on.

use std::fmt::Write;

const WIDTH: f64 = 760.0;
const MARGIN: f64 = 20.0;

/// Colours that differ in lightness too, for light and dark paper.
const STYLE: &str = "\
:root{--paper:#fff;--ink:#1b1f24;--dim:#667;--grid:#e3e6ea;--c0:#4a4f57;--c1:#0b63c4;--c2:#c4511d;--c3:#14855a;--c4:#8a3fb0;--c5:#a07400}\
@media(prefers-color-scheme:dark){:root{--paper:#14171b;--ink:#e8eaed;--dim:#9aa3ad;--grid:#2c3138;--c0:#b4bac2;--c1:#6db1ff;--c2:#ff9a66;--c3:#55cf9b;--c4:#cf93f0;--c5:#e3bb4a}}\
text{font:13px system-ui,sans-serif;fill:var(--ink)}.dim{fill:var(--dim);font-size:12px}.title{font-weight:600;font-size:15px}\
.grid{stroke:var(--grid)}.axis{stroke:var(--dim)}.line{fill:none;stroke-width:2}";

/// How many colours there are; after them they begin anew.
const COLOURS: usize = 6;

pub(super) fn colour(i: usize) -> String {
    format!("var(--c{})", i % COLOURS)
}

/// Panels one below another.
pub(super) struct Picture {
    body: String,
    height: f64,
}

/// Where to draw, in the picture's own numbers.
#[derive(Clone, Copy)]
pub(super) struct Area {
    pub(super) left: f64,
    pub(super) top: f64,
    pub(super) width: f64,
    pub(super) height: f64,
}

impl Area {
    pub(super) fn right(&self) -> f64 {
        self.left + self.width
    }

    pub(super) fn bottom(&self) -> f64 {
        self.top + self.height
    }
}

impl Picture {
    pub(super) fn new(headline: &str) -> Self {
        let mut picture = Self { body: String::new(), height: MARGIN + 16.0 };
        // A long headline is cut in two at a comma, to stay on the sheet.
        let lines = match headline.char_indices().filter(|(_, c)| *c == ',').map(|(i, _)| i).find(|i| *i > 70)
        {
            Some(cut) if headline.len() > 100 => vec![&headline[..=cut], headline[cut + 1..].trim_start()],
            _ => vec![headline],
        };
        for line in lines {
            picture.text(MARGIN, picture.height, "dim", "start", line);
            picture.height += 18.0;
        }
        picture
    }

    /// Room for a panel with its title: the area inside its axes, with space for labels around.
    pub(super) fn panel(&mut self, title: &str, height: f64) -> Area {
        self.text(MARGIN, self.height + 20.0, "title", "start", title);
        let area = Area { left: 80.0, top: self.height + 48.0, width: WIDTH - 80.0 - 150.0, height };
        self.height = area.bottom() + 56.0;
        area
    }

    pub(super) fn text(&mut self, x: f64, y: f64, class: &str, anchor: &str, text: &str) {
        let text = escape(text);
        self.push(format!(
            "<text x=\"{x:.1}\" y=\"{y:.1}\" class=\"{class}\" text-anchor=\"{anchor}\">{text}</text>"
        ));
    }

    pub(super) fn line(&mut self, class: &str, from: (f64, f64), to: (f64, f64)) {
        let ((x1, y1), (x2, y2)) = (from, to);
        self.push(format!(
            "<line class=\"{class}\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>"
        ));
    }

    pub(super) fn polyline(&mut self, colour: &str, points: &[(f64, f64)]) {
        let points: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        self.push(format!("<polyline class=\"line\" stroke=\"{colour}\" points=\"{}\"/>", points.join(" ")));
    }

    pub(super) fn dot(&mut self, colour: &str, (x, y): (f64, f64), says: &str) {
        let says = escape(says);
        self.push(format!(
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\" fill=\"{colour}\"><title>{says}</title></circle>"
        ));
    }

    pub(super) fn bar(&mut self, colour: &str, area: Area, says: &str) {
        let Area { left, top, width, height } = area;
        let says = escape(says);
        self.push(format!(
            "<rect x=\"{left:.1}\" y=\"{top:.1}\" width=\"{width:.2}\" height=\"{height:.1}\" fill=\"{colour}\"><title>{says}</title></rect>"
        ));
    }

    /// A name in its colour, right of the panel.
    pub(super) fn legend(&mut self, area: Area, i: usize, name: &str) {
        self.legend_in(area, i, i, name);
    }

    /// The `i`-th name, in another colour than the `i`-th.
    pub(super) fn legend_in(&mut self, area: Area, i: usize, hue: usize, name: &str) {
        let (x, y) = (area.right() + 16.0, area.top + 10.0 + 20.0 * i as f64);
        self.bar(&colour(hue), Area { left: x, top: y - 9.0, width: 12.0, height: 12.0 }, name);
        self.text(x + 18.0, y + 2.0, "", "start", name);
    }

    fn push(&mut self, element: String) {
        self.body.push_str(&element);
        self.body.push('\n');
    }

    pub(super) fn finish(self) -> String {
        let (height, mut svg) = (self.height, String::new());
        // Writing to a string cannot fail.
        let _ = write!(
            svg,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height:.0}\" width=\"{WIDTH}\" \
             height=\"{height:.0}\">\n<style>{STYLE}</style>\n<rect width=\"100%\" height=\"100%\" fill=\"var(--paper)\"/>\n\
             {}</svg>\n",
            self.body
        );
        svg
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Round numbers from 0 to the first at or past `max`, a handful of them.
pub(super) fn ticks(max: f64) -> Vec<f64> {
    if !max.is_finite() || max <= 0.0 {
        return vec![0.0, 1.0];
    }
    let rough = max / 5.0;
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 2.5, 5.0, 10.0].map(|m| m * power).into_iter().find(|s| *s >= rough * 0.999);
    let step = step.unwrap_or(10.0 * power);
    let n = (max / step - 1e-9).ceil() as usize;
    (0..=n).map(|i| i as f64 * step).collect()
}

/// A tick's label, without needless zeros.
pub(super) fn label(x: f64) -> String {
    let text = format!("{x:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_cover_the_largest() {
        for (max, last, n) in
            [(100.0, 100.0, 6), (47.0, 50.0, 6), (1.3, 1.5, 4), (0.0, 1.0, 2), (961.0, 1000.0, 6)]
        {
            let ticks = ticks(max);
            assert!((ticks[ticks.len() - 1] - last).abs() < 1e-9, "{max}: {ticks:?}");
            assert_eq!(ticks.len(), n, "{max}: {ticks:?}");
        }
        assert_eq!(label(2.50), "2.5");
        assert_eq!(label(100.0), "100");
    }

    #[test]
    fn names_cannot_break_the_picture() {
        let mut picture = Picture::new("a < b & \"c\"");
        let area = picture.panel("</svg>", 100.0);
        picture.legend(area, 9, "<script>");
        let svg = picture.finish();
        assert_eq!(svg.matches("</svg>").count(), 1, "{svg}");
        assert!(!svg.contains("<script>") && svg.contains("a &lt; b &amp; &quot;c&quot;"), "{svg}");
    }
}
