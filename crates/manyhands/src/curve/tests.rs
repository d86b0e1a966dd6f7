//! What the picture shows.

use super::*;

fn series(name: &str, points: Vec<(f64, f64)>) -> Series {
    Series { name: name.to_string(), points }
}

fn curve() -> Curve {
    let loss = |at: f64| 0.3 + 2.0 / (1.0 + at / 200.0);
    let noisy = |idx: usize| loss(idx as f64) + 0.1 * ((idx * 7919 % 101) as f64 / 101.0 - 0.5);
    let epochs =
        |from: fn(f64) -> f64| (1..=8).map(|e| (e as f64 * 600.0, from(e as f64))).collect();
    Curve {
        title: "fashion <mlp> & co".to_string(),
        x_label: "step".to_string(),
        panels: vec![
            Panel {
                label: "loss".to_string(),
                series: vec![
                    series("train", (1..=4800).map(|idx| (idx as f64, noisy(idx))).collect()),
                    series("validation", epochs(|e| 0.45 + 0.8 / e)),
                ],
            },
            Panel {
                label: "accuracy".to_string(),
                series: vec![series("validation", epochs(|e| 0.9 - 0.2 / e))],
            },
        ],
    }
}

fn count(svg: &str, what: &str) -> usize {
    svg.matches(what).count()
}

#[test]
fn a_line_per_series_a_dot_per_epoch_and_a_band_where_points_were_joined() {
    let svg = curve().to_svg();
    // One line each, and one each in the legend.
    assert_eq!(count(&svg, "class=\"s0 line\""), 2);
    assert_eq!(count(&svg, "class=\"s1 line\""), 4);
    assert_eq!(count(&svg, "class=\"s0 band\""), 1);
    assert_eq!(count(&svg, "class=\"s1 dot\""), 16);
    assert!(svg.len() < 20_000, "small: {} bytes", svg.len());
}

#[test]
fn the_legend_tells_the_last_values() {
    let svg = curve().to_svg();
    assert!(svg.contains(">validation 0.550<"), "{svg}");
    assert!(svg.contains(">validation 0.875<"), "{svg}");
}

#[test]
fn text_of_the_user_is_escaped() {
    let svg = curve().to_svg();
    assert!(svg.contains("fashion &lt;mlp&gt; &amp; co"));
    assert!(!svg.contains("<mlp>"));
    assert_eq!(escaped("a\u{0}\"b"), "a &quot;b");
}

#[test]
fn a_loss_that_is_not_a_number_leaves_a_gap() {
    let points = vec![(1.0, 1.0), (2.0, 0.9), (3.0, f64::NAN), (4.0, 0.8), (5.0, 0.7)];
    let panel = Panel { label: "loss".to_string(), series: vec![series("train", points)] };
    let svg = Curve { panels: vec![panel], ..curve() }.to_svg();
    assert_eq!(count(&svg, "class=\"s0 line\""), 3, "two stretches and the legend");
    assert!(!svg.contains("NaN"));
}

#[test]
fn a_run_without_points_still_has_a_picture() {
    let panel = Panel { label: "loss".to_string(), series: vec![series("train", vec![])] };
    let svg = Curve { panels: vec![panel], ..curve() }.to_svg();
    assert!(svg.contains(">nothing yet<"));
    assert!(Curve { panels: vec![], ..curve() }.to_svg().ends_with("</svg>\n"));
}

#[test]
fn many_series_share_the_colours_there_are() {
    let many = (0..9).map(|idx| series(&format!("s{idx}"), vec![(1.0, 1.0), (2.0, 2.0)])).collect();
    let panel = Panel { label: "loss".to_string(), series: many };
    let svg = Curve { panels: vec![panel], ..curve() }.to_svg();
    assert_eq!(count(&svg, "class=\"s0 line\""), 4, "the seventh has the first colour again");
}

#[test]
fn a_long_title_is_cut_to_the_width() {
    let title = "é".repeat(200);
    let svg = Curve { title, ..curve() }.to_svg();
    assert!(svg.contains(&format!(">{}…<", "é".repeat(76))));
}
