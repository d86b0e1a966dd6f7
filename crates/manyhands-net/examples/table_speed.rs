//! How fast tables are here: `cargo run --release -p manyhands-net --example table_speed [tcp|shm|inproc] [rounds]`.

#![allow(clippy::print_stdout)] // an example talks

use manyhands_net::measure::Transport;
use manyhands_net::tables::measure::{Settings, run};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let transport = match arguments.next().as_deref() {
        Some("shm") => Transport::Shm,
        Some("inproc") => Transport::Inproc,
        _ => Transport::Tcp,
    };
    let n_rounds = arguments.next().map_or(Ok(50), |text| text.parse())?;
    for row in run(&Settings { transport, n_rounds, ..Settings::default() })? {
        println!(
            "{:6} {:11} {:5}  {:8.2} M keys/s  {:8.1} MB/s  median {:9.0} us",
            row.table,
            row.what,
            row.consistency,
            row.keys_per_second / 1e6,
            row.bytes_per_second / 1e6,
            row.median_us,
        );
    }
    Ok(())
}
