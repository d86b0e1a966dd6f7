//! Keys of models that are spread over workers.

use manyhands_program::mesh::Mesh;

use super::values::{check, outcome};
use super::*;

fn plan(settings: &[&str], n_workers: usize) -> Option<MeshPlan> {
    let mut draft = Draft::from_toml(SMALL).unwrap();
    for setting in settings {
        draft.set(setting).unwrap();
    }
    draft.job().unwrap().distribute.mesh_plan(n_workers).unwrap()
}

fn mesh(data: usize, pipeline: usize, tensor: usize) -> Mesh {
    Mesh { data, pipeline, tensor }
}

const PIPELINE: &str = "distribute.strategy=pipeline";
const TENSOR: &str = "distribute.strategy=tensor";
const SHARDED: &str = "distribute.strategy=sharded";

#[test]
fn strategies_come_to_meshes() {
    let of = |settings: &[&str], n_workers| plan(settings, n_workers).unwrap().mesh;
    assert_eq!(of(&[PIPELINE], 4), mesh(1, 4, 1));
    assert_eq!(of(&[PIPELINE, "distribute.stages=2"], 6), mesh(3, 2, 1));
    assert_eq!(of(&[TENSOR], 4), mesh(1, 1, 4));
    assert_eq!(of(&[SHARDED], 4), mesh(4, 1, 1));
    assert_eq!(of(&["distribute.mesh={data=2, pipeline=2}"], 4), mesh(2, 2, 1));
    for other in ["all_reduce", "local", "parameter_server", "auto"] {
        assert_eq!(plan(&[&format!("distribute.strategy={other}")], 4), None, "{other}");
    }
}

#[test]
fn what_is_left_out_of_a_mesh_has_its_default() {
    let plain = plan(&[PIPELINE], 4).unwrap();
    assert_eq!(plain.schedule, PipelineSchedule::OneForwardOneBackward);
    assert_eq!((plain.chunks_per_stage, plain.level, plain.mirror), (1, None, false));
    assert_eq!(plan(&[SHARDED], 4).unwrap().level, Some(1));
    assert_eq!(plan(&[SHARDED, "distribute.level=3"], 4).unwrap().level, Some(3));
    assert_eq!(plan(&["distribute.mesh={data=2, tensor=2}"], 4).unwrap().level, None);
    let interleaved = [PIPELINE, "distribute.schedule=interleaved"];
    assert_eq!(plan(&interleaved, 4).unwrap().chunks_per_stage, 2);
    let three = [PIPELINE, "distribute.schedule=interleaved", "distribute.chunks=3"];
    assert_eq!(plan(&three, 4).unwrap().chunks_per_stage, 3);
}

#[test]
fn a_mesh_for_another_number_of_workers_names_those_that_fit() {
    check(
        &["distribute.workers=6", "distribute.mesh={data=2, pipeline=2, tensor=2}"],
        "`distribute.mesh` = { data = 2, pipeline = 2, tensor = 2 } is for 8 workers, not 6: only 8 workers would fit",
    );
    check(
        &["distribute.workers=6", "distribute.mesh={data=2, pipeline=2}"],
        "`distribute.mesh` = { data = 2, pipeline = 2 } is for 4 workers, not 6: { data = 3, pipeline = 2 } or { data = 2, pipeline = 3 } would fit",
    );
    check(
        &["distribute.workers=4", PIPELINE, "distribute.stages=3"],
        "`distribute.stages` = 3 cannot be shared out over 4 workers; 2 or 4 would fit",
    );
    check(
        &["distribute.workers=4", PIPELINE, "distribute.stages=5"],
        "`distribute.stages` = 5 cannot be shared out over 4 workers; 4 would fit",
    );
}

#[test]
fn keys_of_meshes_stand_with_what_uses_them() {
    let pipeline = "a pipeline: the strategy `pipeline`, or a mesh with `pipeline` above 1; set `distribute.strategy`";
    for setting in ["stages=2", "schedule=gpipe", "chunks=2", "cut=[\"dense1\"]"] {
        let key = setting.split('=').next().unwrap();
        for strategy in ["distribute.strategy=all_reduce", SHARDED] {
            let expected = format!("`distribute.{key}` needs {pipeline}");
            check(&[strategy, &format!("distribute.{setting}")], &expected);
        }
    }
    check(
        &[PIPELINE, "distribute.chunks=2"],
        "`distribute.chunks` needs the schedule `interleaved`; set `distribute.schedule`",
    );
    check(
        &["distribute.mirror=true"],
        "`distribute.mirror` needs a model that is spread over workers: `pipeline`, `tensor`, `sharded`, `auto` or a mesh; set `distribute.strategy`",
    );
    check(
        &["distribute.mesh={data=4}", "distribute.mirror=true"],
        "`distribute.mirror` has nothing to do with data 4: without `distribute.level` every replica holds all of the state; leave it out",
    );
    check(
        &["distribute.strategy=pipeline", "distribute.workers=2", "distribute.level=2"],
        "`distribute.level` = 2 shares state out over replicas, and a mesh of pipeline 2 has one: take more workers along `data`, fewer `stages`, or leave `level` out",
    );
    check(
        &["distribute.mesh={pipeline=2}", "distribute.level=2"],
        "`distribute.level` needs replicas that share state: the strategy `sharded`, or a mesh with `data` above 1; set `distribute.strategy`",
    );
    check(
        &["distribute.strategy=local", "distribute.mesh={data=2}"],
        "`distribute.mesh` needs a strategy that is a mesh: `pipeline`, `tensor`, `sharded`, or none; set `distribute.strategy`",
    );
    check(
        &[PIPELINE, "distribute.mesh={data=2}"],
        "`distribute.strategy` = \"pipeline\" with `distribute.mesh` = { data = 2 }, which has one worker along `pipeline`; set `distribute.mesh.pipeline` above 1, or leave the strategy out",
    );
    check(
        &[PIPELINE, "distribute.mesh={pipeline=2}", "distribute.stages=2"],
        "`distribute.mesh` and `distribute.stages` exclude each other; leave one of them out",
    );
    check(
        &[PIPELINE, "distribute.split={\"dense0/*\"=1}"],
        "`distribute.split` needs layers that are split: the strategy `tensor`, or a mesh with `tensor` above 1; set `distribute.strategy`",
    );
    let fine = ["distribute.mesh={data=2, pipeline=2}", "distribute.level=3"];
    assert_eq!(outcome(&fine), Ok(()));
    assert_eq!(outcome(&[TENSOR, "distribute.split={\"dense0/*\"=1}"]), Ok(()));
    assert_eq!(outcome(&[SHARDED, "distribute.mirror=true", "distribute.workers=2"]), Ok(()));
}

#[test]
fn values_of_meshes_that_cannot_be_are_refused() {
    check(
        &[SHARDED, "distribute.level=4"],
        "`distribute.level` must be 1 (the optimizer's state is spread), 2 (gradients too) or 3 (parameters too), found 4",
    );
    check(&[PIPELINE, "distribute.stages=0"], "`distribute.stages` must be at least 1, found 0");
    check(&["distribute.mesh={data=0}"], "`distribute.mesh.data` must be at least 1, found 0");
    check(
        &["distribute.memory='much'"],
        "`distribute.memory` must be an amount such as \"2GiB\" or \"800 MB\", found \"much\"",
    );
    check(
        &[PIPELINE, "distribute.workers=4", "distribute.cut=[\"dense1\"]"],
        "`distribute.cut` names 1 layer(s), which makes 2 chunks, and 4 workers have 4; name 3, or leave it out",
    );
    assert_eq!(outcome(&["distribute.memory='2GiB'"]), Ok(()));
    assert_eq!(set("distribute.memory='2GiB'").distribute.memory_bytes(), Some(2 << 30));
}

#[test]
fn only_the_asynchronous_schedule_makes_another_model() {
    let job = |settings: &[&str]| {
        let mut draft = Draft::from_toml(SMALL).unwrap();
        for setting in settings {
            draft.set(setting).unwrap();
        }
        draft.job().unwrap().fingerprint()
    };
    assert_eq!(job(&[]), job(&[PIPELINE, "distribute.schedule=gpipe"]));
    assert_eq!(job(&[]), job(&[SHARDED, "distribute.level=3"]));
    assert_ne!(job(&[]), job(&[PIPELINE, "distribute.schedule=asynchronous"]));
}
