//! Reads data and walks through epochs of it, with times: what a training loop would wait for.
//! Usage: epoch DATA.json [FOLDER] [BATCH] [classes|numbers|tokens] [EPOCHS]
#![allow(clippy::print_stdout)]

use std::time::Instant;

use manyhands_data::{Data, Order, Target};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let argument = |at: usize, or: &str| arguments.get(at).cloned().unwrap_or_else(|| or.into());
    let spec = serde_json::from_str(&std::fs::read_to_string(argument(0, "data.json"))?)?;
    let folder = argument(1, ".");
    let batch: usize = argument(2, "256").parse()?;
    let target = match argument(3, "classes").as_str() {
        "numbers" => Target::Numbers,
        "tokens" => Target::NextToken,
        _ => Target::Classes,
    };
    let data = Data::open(&spec, target, 1, folder.as_ref(), std::env::temp_dir().as_ref())?;
    println!("{:?}", data.summary);
    for epoch in 0..argument(4, "5").parse()? {
        let started = Instant::now();
        let mut n_bytes = 0;
        for batch in data.train.batches(Order::Shuffled { seed: 1, epoch }, batch, 0) {
            let batch = batch?;
            n_bytes += batch.input(0, 0..batch.n_samples()).len();
        }
        let seconds = started.elapsed().as_secs_f64();
        let rate = data.train.n_samples() as f64 / seconds;
        println!("epoch {epoch}: {seconds:.4} s, {rate:.0} samples/s, {n_bytes} bytes");
    }
    Ok(())
}
