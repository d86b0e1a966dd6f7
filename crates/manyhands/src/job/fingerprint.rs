//! A fingerprint of what a job computes: a checkpoint goes on only under the job that it came from.

use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use super::{Consistency, Job, PipelineSchedule, Strategy};

impl Job {
    /// The SHA-256, in hexadecimal, of the parts that change the trained model: data, model and training. How many workers
    /// do it, how much memory they take and where results go make no difference.
    pub fn fingerprint(&self) -> String {
        let mut data = self.data.clone();
        data.memory = None;
        let mut train = self.train.clone();
        train.grain = Some(train.samples_per_grain());
        // Serializing plain data of this crate does not fail; a value that it could not show would be missing, not wrong.
        let parts = [
            ("data", serde_json::to_value(data)),
            ("model", serde_json::to_value(&self.model)),
            ("train", serde_json::to_value(train)),
        ];
        // Only what departs from the bits of one worker counts.
        let local = (self.distribute.strategy == Strategy::Local)
            .then(|| ("local", serde_json::to_value(self.distribute.local.unwrap_or_default())));
        let consistency = self.distribute.consistency;
        let is_stale = self.distribute.strategy == Strategy::ParameterServer
            && consistency != Consistency::Bsp;
        let stale = is_stale.then(|| ("consistency", serde_json::to_value(consistency)));
        // Splits along the tensor axis round otherwise, but a checkpoint goes on under any mesh.
        let schedule = self.distribute.schedule;
        let asynchronous = (schedule == Some(PipelineSchedule::Asynchronous))
            .then(|| ("schedule", serde_json::to_value(schedule)));
        let whole: Map<String, Value> = parts
            .into_iter()
            .chain(local)
            .chain(stale)
            .chain(asynchronous)
            .map(|(name, part)| (name.to_string(), sorted(part.unwrap_or_default())))
            .collect();
        let digest = Sha256::digest(Value::Object(whole).to_string());
        digest.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// The value with the keys of every table in the order of their names.
fn sorted(value: Value) -> Value {
    match value {
        Value::Array(list) => Value::Array(list.into_iter().map(sorted).collect()),
        Value::Object(map) => {
            let mut entries: Vec<_> =
                map.into_iter().map(|(key, value)| (key, sorted(value))).collect();
            entries.sort_by(|a, b| a.0.cmp(&b.0));
            Value::Object(entries.into_iter().collect())
        }
        other => other,
    }
}
