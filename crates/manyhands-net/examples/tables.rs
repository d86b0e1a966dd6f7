//! Parameter tables in a program of one's own, with a rule of one's own: two servers keep the largest value that any of two workers pushed.
//!
//! Everything runs in this process here. Between machines the same calls go over a `Station` (`tables::network::OnStation`): `cargo run --release -p manyhands-net --example tables`.

#![allow(clippy::print_stdout)] // an example talks

use std::sync::Arc;

use manyhands_net::tables::client::{ClientSettings, Tables};
use manyhands_net::tables::directing::{DirectorProcess, DirectorSettings};
use manyhands_net::tables::network::{Network, WithinProcess};
use manyhands_net::tables::rules::{At, Rule, RuleError, RuleSpec, Rules};
use manyhands_net::tables::serving::{ServerProcess, ServerSettings};
use manyhands_net::tables::spec::{Consistency, TableSpec};
use manyhands_net::tables::store::RowInit;

/// Keeps the larger of what is there and what is pushed.
struct Largest;

impl Rule for Largest {
    fn n_slots(&self) -> usize {
        0
    }

    fn apply(
        &mut self,
        _at: At,
        values: &mut [f32],
        _slots: &mut [&mut [f32]],
        update: &[f32],
    ) -> Result<(), RuleError> {
        values.iter_mut().zip(update).for_each(|(value, new)| *value = value.max(*new));
        Ok(())
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let network: Arc<dyn Network> = Arc::new(WithinProcess::new());
    let settings = DirectorSettings { n_servers: 2, ..DirectorSettings::default() };
    let director = DirectorProcess::start(network.clone(), &settings, |_| ())?;
    let serve = |name: &str| {
        let rules = Rules::with_built_in().add("largest", |_settings| Ok(Box::new(Largest)));
        let settings = ServerSettings::new(name, director.reach().clone());
        ServerProcess::start(network.clone(), ServerSettings { rules, ..settings })
    };
    let servers = [serve("first")?, serve("second")?];

    let spec = TableSpec {
        rule: RuleSpec::Own { name: "largest".into(), settings: serde_json::Value::Null },
        consistency: Consistency::Async,
        replication: 2,
        ..TableSpec::rows(2, RowInit::Zeros)
    };
    let open = |name: &str| {
        let settings = ClientSettings::new(name, director.reach().clone());
        let tables = Tables::connect(network.clone(), settings)?;
        let table = tables.open("records", spec.clone())?;
        Ok::<_, Box<dyn std::error::Error>>((tables, table))
    };
    let ((_one, mine), (_other, theirs)) = (open("one")?, open("other")?);

    let keys = [7, 1_000_000_007];
    let ticket = mine.push(&keys, &[1.0, 8.0, 3.0, 3.0])?;
    theirs.push(&keys, &[5.0, 2.0, 3.0, 9.0])?.wait()?;
    ticket.wait()?;
    // Each of the two servers has all of it, so one may go.
    let [first, _second] = servers;
    drop(first);
    let mut values = [0.0; 4];
    theirs.pull(&keys, &mut values)?.wait()?;
    println!("{keys:?}: {values:?}");
    assert_eq!(values, [5.0, 8.0, 3.0, 9.0]);
    Ok(())
}
