//! How much memory a sparse table takes that is filled with all its rows, and how long a pull of some of them takes then.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::{MeasureError, Scene, Settings, Underway};
use crate::tables::client::Table;
use crate::tables::error::TableError;
use crate::tables::spec::{Consistency, TableSpec, mix};
use crate::tables::store::RowInit;

/// Rows of a push while the table is filled.
const ROWS_AT_A_TIME: u64 = 50_000;
/// Timed pulls.
const N_PULLS: usize = 1000;

/// What came of it. Servers and workers are threads of one process, so its memory is that of all of them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Scale {
    /// Rows that were made.
    pub n_rows: u64,
    /// Elements of a row.
    pub width: usize,
    /// Bytes of the values alone.
    pub raw_bytes: u64,
    /// The most memory that the process had until the table was full, as the system says.
    pub peak_bytes: u64,
    /// The same as a multiple of the values alone.
    pub peak_of_raw: f64,
    /// The memory of the process before there was a row.
    pub bytes_before: u64,
    /// Seconds until all rows were there.
    pub seconds: f64,
    /// Keys of a pull.
    pub n_keys: usize,
    /// The middle of the pulls, in microseconds.
    pub median_us: f64,
    /// All but one of a hundred pulls took at most this, in microseconds.
    pub percentile_99_us: f64,
}

/// Fills a table of rows under the rule that adds, then pulls from it.
pub fn scale(settings: &Settings) -> Result<Scale, MeasureError> {
    let scene = Scene::new(settings)?;
    let Settings { n_rows, width, replication, n_keys, .. } = *settings;
    let consistency = Consistency::Async;
    let spec = TableSpec { consistency, replication, ..TableSpec::rows(width, RowInit::Zeros) };
    let bytes_before = memory_of_this_process("VmRSS:")?;
    let start = Instant::now();
    fill(&scene, &spec)?;
    let seconds = start.elapsed().as_secs_f64();
    let peak_bytes = memory_of_this_process("VmHWM:")?;
    let mut pulls = pulls(&scene, &spec)?;
    pulls.sort_unstable();
    let at = |share: f64| pulls[(share * (pulls.len() - 1) as f64) as usize].as_secs_f64() * 1e6;
    let raw_bytes = n_rows * width as u64 * 4;
    let peak_of_raw = peak_bytes as f64 / raw_bytes as f64;
    let (median_us, percentile_99_us) = (at(0.5), at(0.99));
    Ok(Scale {
        n_rows,
        width,
        raw_bytes,
        peak_bytes,
        peak_of_raw,
        bytes_before,
        seconds,
        n_keys,
        median_us,
        percentile_99_us,
    })
}

const NAME: &str = "scale";

/// Every worker makes its part of the rows.
fn fill(scene: &Scene, spec: &TableSpec) -> Result<(), MeasureError> {
    let Settings { n_workers, n_rows, width, .. } = scene.settings;
    let underway = Underway::new(n_workers);
    let values = vec![1e-3; ROWS_AT_A_TIME as usize * width];
    let own = |worker: usize| n_rows * worker as u64 / n_workers as u64;
    let worker = |idx: usize| -> Result<(), MeasureError> {
        let tables = scene.client(idx)?;
        let table = tables.open(NAME, spec.clone())?;
        let (mut first, end) = (own(idx), own(idx + 1));
        while first < end {
            let rows = first..end.min(first + ROWS_AT_A_TIME);
            first = rows.end;
            let mut keys: Vec<u64> = rows.map(mix).collect();
            keys.sort_unstable();
            underway.add(idx, table.push(&keys, &values[..keys.len() * width])?)?;
        }
        Ok(tables.flush()?)
    };
    let worker = &worker;
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..n_workers).map(|idx| scope.spawn(move || worker(idx))).collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().map_err(|_| MeasureError::Panicked)?)
    })
}

/// One worker pulls rows from all over the table.
fn pulls(scene: &Scene, spec: &TableSpec) -> Result<Vec<Duration>, MeasureError> {
    let tables = scene.client(0)?;
    let table = tables.open(NAME, spec.clone())?;
    let Settings { n_rows, width, n_keys, .. } = scene.settings;
    let mut out = vec![0.0; n_keys * width];
    let pull = |table: &Table, n: usize, out: &mut [f32]| -> Result<Duration, TableError> {
        let key = |idx: usize| mix(mix((n * n_keys + idx) as u64 + 1) % n_rows);
        let mut keys: Vec<u64> = (0..n_keys).map(key).collect();
        keys.sort_unstable();
        keys.dedup();
        let out = &mut out[..keys.len() * width];
        let start = Instant::now();
        table.pull(&keys, out)?.wait()?;
        Ok(start.elapsed())
    };
    for n in 0..N_PULLS / 10 {
        pull(&table, n, &mut out)?;
    }
    let timed = (N_PULLS..2 * N_PULLS).map(|n| Ok(pull(&table, n, &mut out)?));
    timed.collect()
}

/// A line of what the system knows of this process, in bytes.
fn memory_of_this_process(line: &str) -> Result<u64, MeasureError> {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let found = text.lines().find_map(|one| one.strip_prefix(line));
    let kilobytes = found.and_then(|one| one.split_whitespace().next()?.parse::<u64>().ok());
    kilobytes.map(|kilobytes| kilobytes * 1024).ok_or(MeasureError::NoMemoryFigures)
}
