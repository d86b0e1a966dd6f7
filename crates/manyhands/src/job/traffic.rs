//! The keys of `[distribute.traffic]`: how fewer bytes move between workers and servers.

use manyhands_net::tables::traffic::rounding::Rounding;
use manyhands_net::tables::traffic::significance::Significance;
use manyhands_net::tables::traffic::{REMEMBERED_KEYS, TrafficSpec as TableTraffic};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::check::CheckError;
use super::{Consistency, DistributeSpec};

/// How fewer bytes move between workers and servers. What each setting saved is told at the end of a run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TrafficSpec {
    /// How gradients go to servers. What rounding takes away goes with the next gradient of the same parameter. Not under `consistency = "bsp"`, which
    /// promises every bit.
    pub values: PushedValues,
    /// Gradients stay with a worker while their sum is below this everywhere in a row or a block of a parameter, for at most eight steps. Not under
    /// `consistency = "bsp"`. What stays goes before a checkpoint and at the end, so both have it; grains that are done again because a worker came or left
    /// count twice.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub significance: Option<f64>,
    /// Whether lists of rows go as a short digest where the server has seen them. The model is the same.
    pub key_lists: bool,
    /// Whether runs of zeros go as their length: for gradients and parameters that are mostly zero. The model is the same.
    pub zero_runs: bool,
}

impl Default for TrafficSpec {
    fn default() -> TrafficSpec {
        let values = PushedValues::default();
        TrafficSpec { values, significance: None, key_lists: true, zero_runs: false }
    }
}

/// How gradients go to servers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PushedValues {
    /// As they are.
    #[default]
    #[serde(rename = "f32")]
    F32,
    /// As 16-bit floats: half of the bytes.
    #[serde(rename = "f16")]
    F16,
    /// As 8-bit integers with a scale for every 256: about a quarter of the bytes.
    #[serde(rename = "8-bit")]
    EightBit,
}

impl TrafficSpec {
    /// The filters of a table.
    pub(crate) fn of_table(&self) -> TableTraffic {
        TableTraffic {
            key_lists: self.key_lists.then_some(REMEMBERED_KEYS),
            rounding: match self.values {
                PushedValues::F32 => Rounding::None,
                PushedValues::F16 => Rounding::F16,
                PushedValues::EightBit => Rounding::EightBit,
            },
            significance: self.significance.map(|threshold| Significance::of(threshold as f32)),
            zero_runs: self.zero_runs,
        }
    }
}

/// Checks the keys of traffic.
pub(super) fn check_traffic(distribute: &DistributeSpec) -> Result<(), CheckError> {
    let Some(traffic) = distribute.traffic else { return Ok(()) };
    if let Some(found) = traffic.significance.filter(|one| !(*one as f32).is_finite() || *one < 0.0)
    {
        let key = "distribute.traffic.significance".to_string();
        return Err(CheckError::Range { key, range: "at least 0 and finite", found });
    }
    let lossy = [
        ("distribute.traffic.values", traffic.values != PushedValues::F32),
        ("distribute.traffic.significance", traffic.significance.is_some()),
    ];
    match lossy.into_iter().find(|(_, is_lossy)| *is_lossy) {
        Some((key, _)) if distribute.consistency == Consistency::Bsp => {
            Err(CheckError::NotExact { key })
        }
        _ => Ok(()),
    }
}
