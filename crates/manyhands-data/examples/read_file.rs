//! Reads a whole file into columns in memory and prints how long that took, as JSON: `read_file PATH THREADS`.

use std::path::Path;
use std::time::Instant;

use arrow::array::ArrayData;
use manyhands_data::{ReadOptions, Source, read};
use memmap2::MmapMut;

/// Where the columns are kept. Blocks are small and meant to be used and let go, so that the next ones reuse their memory; who
/// keeps everything does it in huge pages, or the system spends longer on handing out small ones than the file takes to decode.
#[derive(Default)]
struct Kept {
    segments: Vec<MmapMut>,
    n_free: usize,
    n_bytes: usize,
}

impl Kept {
    const SEGMENT_BYTES: usize = 32 << 20;

    fn keep(&mut self, column: &ArrayData) -> std::io::Result<()> {
        let nulls = column.nulls().map(|nulls| nulls.validity());
        for buffer in column.buffers().iter().map(|buffer| buffer.as_slice()).chain(nulls) {
            self.append(buffer)?;
        }
        column.child_data().iter().try_for_each(|child| self.keep(child))
    }

    fn append(&mut self, mut bytes: &[u8]) -> std::io::Result<()> {
        self.n_bytes += bytes.len();
        while !bytes.is_empty() {
            if self.n_free == 0 {
                let segment = MmapMut::map_anon(Self::SEGMENT_BYTES)?;
                #[cfg(target_os = "linux")]
                // A system without huge pages refuses, and ordinary ones do.
                let _ = segment.advise(memmap2::Advice::HugePage);
                self.segments.push(segment);
                self.n_free = Self::SEGMENT_BYTES;
            }
            let (now, rest) = bytes.split_at(bytes.len().min(self.n_free));
            if let Some(segment) = self.segments.last_mut() {
                let start = segment.len() - self.n_free;
                segment[start..start + now.len()].copy_from_slice(now);
            }
            self.n_free -= now.len();
            bytes = rest;
        }
        Ok(())
    }
}

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
    let (mut kept, mut n_rows) = (Kept::default(), 0);
    for block in reader {
        let rows = block?.rows;
        n_rows += rows.num_rows();
        for column in rows.columns() {
            kept.keep(&column.to_data())?;
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    let n_bytes = kept.n_bytes;
    println!(
        "{{\"seconds\": {seconds}, \"rows\": {n_rows}, \"columns\": {n_columns}, \"bytes\": {n_bytes}}}"
    );
    Ok(())
}
