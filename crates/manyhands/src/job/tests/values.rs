//! Checks of values: one sentence each.

use super::*;

/// The job with a key changed, refused or not.
pub(super) fn outcome(settings: &[&str]) -> Result<(), String> {
    let mut draft = Draft::from_toml(SMALL).unwrap();
    for setting in settings {
        draft.set(setting).unwrap();
    }
    match draft.job() {
        Ok(_) => Ok(()),
        Err(JobError::Check { problem, .. }) => Err(problem.to_string()),
        Err(other) => panic!("{other}"),
    }
}

#[track_caller]
pub(super) fn check(settings: &[&str], expected: &str) {
    assert_eq!(outcome(settings), Err(expected.to_string()));
}

fn grain(batch: usize) -> usize {
    TrainSpec { batch, ..TrainSpec::default() }.samples_per_grain()
}

#[test]
fn a_batch_is_cut_into_the_most_grains_of_at_least_16_samples() {
    assert_eq!([grain(128), grain(256), grain(64), grain(100)], [16, 32, 16, 20]);
    assert_eq!([grain(16), grain(31), grain(7), grain(1)], [16, 31, 7, 1]);
    assert_eq!([grain(113), grain(120)], [113, 20]);
    for batch in 1..400 {
        assert!(batch % grain(batch) == 0 && batch / grain(batch) <= 8);
    }
}

#[test]
fn a_grain_that_does_not_divide_names_those_that_do() {
    let expected = "`train.grain` = 100 does not divide `train.batch` = 128; 64 or 128 would";
    check(&["train.grain=100"], expected);
    let expected = "`train.grain` = 200 does not divide `train.batch` = 128; 128 would";
    check(&["train.grain=200"], expected);
}

#[test]
fn counts_must_be_positive() {
    let keys = ["train.batch", "train.grain", "train.epochs", "train.steps", "distribute.workers"];
    let more = ["distribute.threads", "output.keep", "data.memory", "data.shuffle_window"];
    for key in keys.into_iter().chain(more) {
        check(&[&format!("{key}=0")], &format!("`{key}` must be at least 1, found 0"));
    }
    check(&["data.window={length=0}"], "`data.window.length` must be at least 1, found 0");
    check(
        &["data.window={length=2, stride=0}"],
        "`data.window.stride` must be at least 1, found 0",
    );
    check(&["data.text={length=0}"], "`data.text.length` must be at least 1, found 0");
    check(&["data.shape=[28, 0]"], "`data.shape` must be at least 1, found 0");
}

#[test]
fn shares_lie_between_0_and_1_and_leave_something() {
    let expected = "`data.test` must be a share between 0 and 1, or files, found 1";
    check(&["data.test=1"], expected);
    check(
        &["data.test=0.5", "data.validation=0.5"],
        "`data.test` = 0.5 and `data.validation` = 0.5 together leave nothing to train on; their sum must be below 1",
    );
    assert_eq!(outcome(&["data.test=0.5", "data.validation=0.4"]), Ok(()));
}

#[test]
fn a_model_is_layers_or_nodes() {
    let node = "model.node=[{name='a', layer='dense 1'}]";
    check(&[node], "`model.layers` and `model.node` exclude each other; leave one of them out");
    assert_eq!(outcome(&["model.layers=[]", node]), Ok(()));
    assert!(outcome(&["model.layers=[]"]).unwrap_err().starts_with("`model` is empty"));
}

#[test]
fn nodes_have_names_of_their_own_and_take_what_comes_before() {
    let nodes = |nodes: &str| outcome(&["model.layers=[]", &format!("model.node={nodes}")]);
    let twice = nodes("[{name='a', layer='add'}, {name='a', layer='add'}]").unwrap_err();
    assert_eq!(twice, "two entries of `model.node` have the name `a`; give each its own");
    let later =
        nodes("[{name='a', layer='add', inputs=['b']}, {name='b', layer='add'}]").unwrap_err();
    assert_eq!(later, "`model.node` `a` takes `b`, which does not come before it; put `b` first");
}

#[test]
fn what_is_monitored_is_measured() {
    check(
        &["train.metrics=['accuracy']", "train.monitor=acuracy"],
        "`train.monitor` = \"acuracy\" is not measured (did you mean `accuracy`?); it can be loss, accuracy",
    );
    assert_eq!(outcome(&["train.metrics=['top_k 3']", "train.monitor=top_k"]), Ok(()));
    assert_eq!(outcome(&["train.metrics=['top_k 3']", "train.monitor=top_k 3"]), Ok(()));
}

#[test]
fn judging_needs_data_to_judge_by() {
    for setting in
        ["train.keep_best=true", "train.early_stopping={patience=2}", "train.schedule=plateau"]
    {
        let key = setting.split('=').next().unwrap();
        check(&[setting], &format!("`{key}` needs data to judge by; set `data.validation`"));
        assert_eq!(outcome(&[setting, "data.validation=0.1"]), Ok(()));
    }
}

#[test]
fn other_values_that_cannot_be() {
    check(
        &["data.window={length=2}", "data.text={length=2}"],
        "`data.window` and `data.text` exclude each other; leave one of them out",
    );
    check(
        &["output.checkpoint_seconds=-1"],
        "`output.checkpoint_seconds` must be a finite number of at least 0, found -1",
    );
    check(&["train.clip.value=0"], "`train.clip` must be above 0 and finite, found 0");
    check(
        &["train.class_weights={a=-2}"],
        "`train.class_weights.a` must be a finite number of at least 0, found -2",
    );
    check(
        &["data.features=['x', 'y']"],
        "`data.features` has the label `y`; leave it out, since it is what is predicted",
    );
    check(&["data.train=[]"], "`data.train` is empty; name a file, or a glob such as data/*.csv");
    check(
        &["data.separator=é"],
        "`data.separator` must be one ASCII character other than a quote or a line end, found 'é'",
    );
    let seed = outcome(&["train.seed=9223372036854775808"]).unwrap_err();
    assert_eq!(seed, "`train.seed` must be below 2^63, found 9223372036854775808");
}

#[test]
fn keys_of_servers_are_for_their_strategy_alone() {
    let needs = "`distribute.servers` needs servers, which only the strategy `parameter_server` has; set `distribute.strategy`";
    check(&["distribute.servers=2"], needs);
    let ours = "distribute.strategy=parameter_server";
    assert_eq!(outcome(&[ours, "distribute.servers=2"]), Ok(()));
    check(&[ours, "distribute.servers=0"], "`distribute.servers` must be at least 1, found 0");
    let few = "`distribute.replication` = 2 needs as many servers, and `distribute.servers` = 1";
    check(&[ours, "distribute.replication=2"], few);
    let empty = "`distribute.tables.parameters` is empty; name parameters, such as [\"embedding/*\"], or write \"auto\"";
    check(&[ours, "distribute.tables.parameters=[]"], empty);
    assert_eq!(outcome(&[ours, "distribute.tables.parameters=all"]), Ok(()));
    assert_eq!(outcome(&[ours, "distribute.tables.parameters=[\"dense*\"]"]), Ok(()));
}

#[test]
fn a_staleness_that_means_nothing_is_told() {
    let ours = "distribute.strategy=parameter_server";
    let ssp = "distribute.consistency=ssp";
    let range = "`distribute.staleness` must be a number of steps from 0 to 1000 (`consistency = \"async\"` waits for nobody), found ";
    check(&[ours, ssp, "distribute.staleness=-1"], &format!("{range}-1"));
    check(&[ours, ssp, "distribute.staleness=1000000"], &format!("{range}1000000"));
    assert_eq!(outcome(&[ours, ssp, "distribute.staleness=0"]), Ok(()));
    let needs = "`distribute.staleness` needs the consistency `ssp`; set `distribute.consistency`";
    check(&[ours, "distribute.staleness=3"], needs);
}

#[test]
fn foresight_is_for_those_who_miss_something() {
    let ours = "distribute.strategy=parameter_server";
    let needs = "`distribute.foresight` needs workers that need not wait for each other (`ssp`, `adaptive` or `async`); set `distribute.consistency`";
    check(&[ours, "distribute.foresight=false"], needs);
    let stale = "distribute.consistency=async";
    assert_eq!(outcome(&[ours, stale, "distribute.foresight=false"]), Ok(()));
}

#[test]
fn a_star_stands_for_anything() {
    let yes =
        [("*", "w"), ("embedding/*", "embedding/w"), ("*/bias", "a/b/bias"), ("a*b*c", "axbxc")];
    let no = [("w", "v"), ("embedding/*", "dense/w"), ("*/bias", "bias"), ("a*b", "ac")];
    assert!(yes.iter().all(|(pattern, name)| matches(pattern, name)));
    assert!(!no.iter().any(|(pattern, name)| matches(pattern, name)));
}

#[test]
fn settings_of_traffic_that_change_the_model_are_refused_where_its_bits_are_promised() {
    let ours = "distribute.strategy=parameter_server";
    let told = |key: &str| {
        format!(
            "`distribute.traffic.{key}` changes what servers add up, and `distribute.consistency` = \"bsp\" promises the model of one worker, byte for byte; leave it out, or set `distribute.consistency` to \"ssp\", \"adaptive\" or \"async\""
        )
    };
    for (key, value) in [("values", "8-bit"), ("values", "f16"), ("significance", "0.001")] {
        let said = format!("distribute.traffic.{key}={value}");
        check(&[ours, &said], &told(key));
        assert_eq!(outcome(&[ours, "distribute.consistency=async", &said]), Ok(()));
    }
    let exact = ["distribute.traffic.zero_runs=true", "distribute.traffic.key_lists=true"];
    assert_eq!(outcome(&[&[ours], &exact[..]].concat()), Ok(()));
    check(
        &[exact[0]],
        "`distribute.traffic` needs servers, which only the strategy `parameter_server` has; set `distribute.strategy`",
    );
    check(
        &[ours, "distribute.consistency=ssp", "distribute.traffic.significance=-1.0"],
        "`distribute.traffic.significance` must be at least 0 and finite, found -1",
    );
}
