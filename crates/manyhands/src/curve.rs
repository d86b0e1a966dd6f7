//! The loss curve of a run as a small picture (SVG) that reads well on light and on dark pages.
//!
//! A pure function from points to text: no clock, no file. Panels lie one above the other and share the horizontal axis, so
//! that a loss and an accuracy need not share a scale.

mod axis;

use std::fmt::Write;

use axis::{Axis, Scale, tick_label};

/// A picture of how a run went.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    /// What stands above it.
    pub title: String,
    /// What the horizontal axis counts, such as `step`.
    pub x_label: String,
    /// The panels, from the top.
    pub panels: Vec<Panel>,
}

/// Lines that share a vertical axis.
#[derive(Clone, Debug, PartialEq)]
pub struct Panel {
    /// What the vertical axis measures, such as `loss`.
    pub label: String,
    /// The lines. Lines of one name have one colour in all panels.
    pub series: Vec<Series>,
}

/// A line.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// Its name in the legend, such as `validation`.
    pub name: String,
    /// Its points, from left to right. One that is not finite leaves a gap.
    pub points: Vec<(f64, f64)>,
}

const WIDTH: f64 = 720.0;
const LEFT: f64 = 62.0;
const RIGHT: f64 = 24.0;
const TITLE_HEIGHT: f64 = 40.0;
const HEADER_HEIGHT: f64 = 26.0;
const PANEL_HEIGHT: f64 = 180.0;
const PANEL_GAP: f64 = 18.0;
const BOTTOM: f64 = 46.0;

/// Longer lines are drawn as the mean of so many stretches, over a band from the lowest to the highest point of each.
const MOST_POINTS: usize = 240;
/// Lines with at most so many points show each of them.
const MOST_DOTS: usize = 30;

/// Colours by order of appearance: on light pages, on dark pages.
const COLOURS: [[&str; 2]; 6] = [
    ["#2563eb", "#7aa5ff"],
    ["#d9480f", "#ff9c66"],
    ["#0d8a5f", "#4fd1a5"],
    ["#8b3fd1", "#c9a0ff"],
    ["#b8336a", "#ff8fb8"],
    ["#5c6670", "#b4bec8"],
];

impl Curve {
    /// The picture as the text of an SVG file.
    pub fn to_svg(&self) -> String {
        let names = self.names();
        let panels: Vec<Vec<Line>> = self
            .panels
            .iter()
            .map(|panel| panel.series.iter().map(|series| Line::new(series, &names)).collect())
            .collect();
        let all_lines = || panels.iter().flatten();
        let x_axis = Axis::linear(all_lines().flat_map(Line::x_values), 7)
            .span(LEFT, WIDTH - RIGHT)
            .with_whole_ticks(all_lines().flat_map(Line::x_values).all(|x| x.fract() == 0.0));
        let panel_height = HEADER_HEIGHT + PANEL_HEIGHT;
        let n_panels = panels.len() as f64;
        let height =
            TITLE_HEIGHT + n_panels * panel_height + (n_panels - 1.0).max(0.0) * PANEL_GAP + BOTTOM;
        let mut svg = Svg::new(height, names.len(), &self.title);
        for (idx, (panel, lines)) in self.panels.iter().zip(&panels).enumerate() {
            let top = TITLE_HEIGHT + idx as f64 * (panel_height + PANEL_GAP) + HEADER_HEIGHT;
            svg.panel(panel, lines, &x_axis, top);
        }
        svg.x_labels(&x_axis, &self.x_label, height - BOTTOM);
        svg.finish()
    }

    /// The names of all lines, by first appearance.
    fn names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for series in self.panels.iter().flat_map(|panel| &panel.series) {
            if !names.contains(&series.name.as_str()) {
                names.push(&series.name);
            }
        }
        names
    }
}

/// A line as it is drawn.
struct Line<'a> {
    name: &'a str,
    colour_idx: usize,
    last: Option<f64>,
    points: Vec<Option<Drawn>>,
}

/// A point as it is drawn: one of the line, or the mean of several with their lowest and highest.
#[derive(Clone, Copy)]
struct Drawn {
    x: f64,
    y: f64,
    low: f64,
    high: f64,
}

impl<'a> Line<'a> {
    fn new(series: &'a Series, names: &[&str]) -> Line<'a> {
        let points = match series.points.len() > MOST_POINTS {
            true => thinned(&series.points),
            false => series.points.iter().map(|&point| drawn(&[point])).collect(),
        };
        let colour_idx = names.iter().position(|name| *name == series.name).unwrap_or(0);
        let last = series.points.iter().rev().map(|&(_, y)| y).find(|y| y.is_finite());
        Line { name: &series.name, colour_idx, last, points }
    }

    fn present(&self) -> impl Iterator<Item = &Drawn> {
        self.points.iter().flatten()
    }

    fn x_values(&self) -> impl Iterator<Item = f64> {
        self.present().map(|point| point.x)
    }

    fn y_values(&self) -> impl Iterator<Item = f64> {
        self.present().map(|point| point.y)
    }
}

/// The mean of some neighbouring points, if any is finite.
fn drawn(points: &[(f64, f64)]) -> Option<Drawn> {
    let finite: Vec<(f64, f64)> =
        points.iter().copied().filter(|(x, y)| x.is_finite() && y.is_finite()).collect();
    let n_points = finite.len() as f64;
    let low = finite.iter().map(|point| point.1).reduce(f64::min)?;
    let high = finite.iter().map(|point| point.1).reduce(f64::max)?;
    // The place is that of the last one, so that the first and last ends of an axis are true.
    let x = finite.last()?.0;
    Some(Drawn { x, y: finite.iter().map(|point| point.1 / n_points).sum(), low, high })
}

/// Cut into stretches of nearly equal numbers of points.
fn thinned(points: &[(f64, f64)]) -> Vec<Option<Drawn>> {
    let edge = |idx: usize| idx * points.len() / MOST_POINTS;
    (0..MOST_POINTS).map(|idx| drawn(&points[edge(idx)..edge(idx + 1)])).collect()
}

/// The text of the picture as it grows.
struct Svg {
    text: String,
}

impl Svg {
    fn new(height: f64, n_colours: usize, title: &str) -> Svg {
        let mut style = [String::new(), String::new()];
        for (idx, colours) in COLOURS.iter().enumerate().take(n_colours) {
            for (rules, colour) in style.iter_mut().zip(colours) {
                *rules += &format!(".s{idx}{{stroke:{colour};fill:{colour}}}");
            }
        }
        let title = escaped(&cut(title));
        let [light, dark] = style;
        let text = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\" role=\"img\">\n\
             <title>{title}</title>\n\
             <style>\n\
             text{{font:12px system-ui,-apple-system,\"Segoe UI\",Helvetica,Arial,sans-serif;fill:#3d444d}}\n\
             .title{{font-size:15px;font-weight:600;fill:#1f2328}} .label{{font-weight:600}}\n\
             .page{{fill:#fff}} .grid{{stroke:#e4e8ec}} .frame{{stroke:#9aa4ae}}\n\
             .line{{fill:none!important;stroke-width:1.8;stroke-linejoin:round;stroke-linecap:round}}\n\
             .band{{stroke:none!important;fill-opacity:.16}} .dot{{stroke:none!important}}\n\
             {light}\n\
             @media (prefers-color-scheme:dark){{text{{fill:#b7c0c9}} .title{{fill:#f0f3f6}} .page{{fill:#14181d}}\n\
             .grid{{stroke:#2a3138}} .frame{{stroke:#66707a}}\n\
             {dark}}}\n\
             </style>\n\
             <rect class=\"page\" width=\"{WIDTH}\" height=\"{height}\" rx=\"8\"/>\n\
             <text class=\"title\" x=\"{LEFT}\" y=\"28\">{title}</text>\n"
        );
        Svg { text }
    }

    fn panel(&mut self, panel: &Panel, lines: &[Line<'_>], x_axis: &Axis, top: f64) {
        let bottom = top + PANEL_HEIGHT;
        let y_axis = Axis::fitting(lines.iter().flat_map(Line::y_values), 5).span(bottom, top);
        self.header(panel, lines, &y_axis, top - 9.0);
        for &tick in &y_axis.ticks {
            let (y, label) = (y_axis.place(tick), tick_label(tick, &y_axis.ticks));
            self.rule("grid", (LEFT, y), (WIDTH - RIGHT, y));
            self.label(LEFT - 8.0, y + 4.0, "end", &label);
        }
        for &tick in &x_axis.ticks {
            let x = x_axis.place(tick);
            self.rule("grid", (x, top), (x, bottom));
        }
        self.rule("frame", (LEFT, bottom), (WIDTH - RIGHT, bottom));
        for line in lines {
            self.line(line, x_axis, &y_axis);
        }
        if lines.iter().all(|line| line.present().next().is_none()) {
            self.label((LEFT + WIDTH - RIGHT) / 2.0, (top + bottom) / 2.0, "middle", "nothing yet");
        }
    }

    /// What the panel measures on the left, its lines with their last values on the right.
    fn header(&mut self, panel: &Panel, lines: &[Line<'_>], y_axis: &Axis, y: f64) {
        let scale = if y_axis.scale == Scale::Logarithmic { " (logarithmic)" } else { "" };
        let label = escaped(&panel.label);
        let _ = writeln!(
            self.text,
            "<text class=\"label\" x=\"{LEFT}\" y=\"{y}\">{label}{scale}</text>"
        );
        let mut right = WIDTH - RIGHT;
        for line in lines.iter().rev() {
            let value = line.last.map(|last| format!(" {}", short(last))).unwrap_or_default();
            let text = format!("{}{value}", line.name);
            self.label(right, y, "end", &text);
            // Letters of the usual fonts are about this wide on average.
            right -= 6.4 * text.chars().count() as f64 + 8.0;
            let colour = line.colour_idx % COLOURS.len();
            let _ = writeln!(
                self.text,
                "<path class=\"s{colour} line\" d=\"M{:.1} {:.1}h14\"/>",
                right - 14.0,
                y - 4.0
            );
            right -= 32.0;
        }
    }

    fn line(&mut self, line: &Line<'_>, x_axis: &Axis, y_axis: &Axis) {
        let colour = line.colour_idx % COLOURS.len();
        let at = |x: f64, y: f64| format!("{:.1} {:.1}", x_axis.place(x), y_axis.place(y));
        for run in line.points.split(Option::is_none) {
            let run: Vec<&Drawn> = run.iter().flatten().collect();
            if run.iter().any(|point| point.low < point.high) {
                let above = run.iter().map(|point| at(point.x, point.high));
                let below = run.iter().rev().map(|point| at(point.x, point.low));
                let outline: Vec<String> = above.chain(below).collect();
                let d = outline.join("L");
                let _ = writeln!(self.text, "<path class=\"s{colour} band\" d=\"M{d}Z\"/>");
            }
            if run.len() > 1 {
                let d: Vec<String> = run.iter().map(|point| at(point.x, point.y)).collect();
                let d = d.join("L");
                let _ = writeln!(self.text, "<path class=\"s{colour} line\" d=\"M{d}\"/>");
            }
            if run.len() == 1 || line.points.len() <= MOST_DOTS {
                for point in run {
                    let (x, y) = (x_axis.place(point.x), y_axis.place(point.y));
                    let _ = writeln!(
                        self.text,
                        "<circle class=\"s{colour} dot\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2.6\"/>"
                    );
                }
            }
        }
    }

    fn x_labels(&mut self, x_axis: &Axis, label: &str, bottom: f64) {
        for &tick in &x_axis.ticks {
            let text = tick_label(tick, &x_axis.ticks);
            self.label(x_axis.place(tick), bottom + 17.0, "middle", &text);
        }
        self.label((LEFT + WIDTH - RIGHT) / 2.0, bottom + 36.0, "middle", label);
    }

    fn rule(&mut self, class: &str, from: (f64, f64), to: (f64, f64)) {
        let ((x1, y1), (x2, y2)) = (from, to);
        let _ =
            writeln!(self.text, "<path class=\"{class}\" d=\"M{x1:.1} {y1:.1}L{x2:.1} {y2:.1}\"/>");
    }

    fn label(&mut self, x: f64, y: f64, anchor: &str, text: &str) {
        let text = escaped(text);
        let _ = writeln!(
            self.text,
            "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{text}</text>"
        );
    }

    fn finish(mut self) -> String {
        self.text.push_str("</svg>\n");
        self.text
    }
}

/// A title that fits the width.
fn cut(title: &str) -> String {
    const LONGEST: usize = 76;
    match title.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", title[..end].trim_end()),
        None => title.to_string(),
    }
}

/// Three or four digits of a number.
pub(crate) fn short(value: f64) -> String {
    match value.abs() {
        size if size != 0.0 && !(1e-3..1e5).contains(&size) => format!("{value:.2e}"),
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.3}"),
    }
}

/// Text that means itself inside XML; letters that XML does not allow become spaces.
fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            letter if letter.is_control() || matches!(letter, '\u{fffe}' | '\u{ffff}') => {
                safe.push(' ')
            }
            letter => safe.push(letter),
        }
    }
    safe
}

#[cfg(test)]
mod tests;
