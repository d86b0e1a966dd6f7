//! Reads a whole file into columns in memory and prints how long that took, as JSON: `read_file PATH THREADS`.

use std::path::Path;
use std::time::Instant;

use manyhands_data::{ReadOptions, Source, read};

#[allow(clippy::print_stdout)] // What it prints is what it is for.
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(path), Some(n_threads)) = (arguments.next(), arguments.next()) else {
        return Err("usage: read_file PATH THREADS".into());
    };
    let options = ReadOptions { n_threads: n_threads.parse()?, ..ReadOptions::default() };
    let start = Instant::now();
    let reader = read(&Source::One(path), Path::new(""), &options)?;
    let n_columns = reader.schema().fields().len();
    let mut blocks = Vec::new();
    for block in reader {
        blocks.push(block?.rows);
    }
    let seconds = start.elapsed().as_secs_f64();
    let n_rows: usize = blocks.iter().map(|rows| rows.num_rows()).sum();
    println!("{{\"seconds\": {seconds}, \"rows\": {n_rows}, \"columns\": {n_columns}}}");
    Ok(())
}
