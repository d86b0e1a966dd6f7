//! What is said of models that do not fit.

use expect_test::{Expect, expect};
use manyhands::model::{InputSpec, TargetSpec};
use manyhands::program::DType;

use super::{adam, classes, features, image, input, loss, model, number, table};

fn check_error(text: &str, inputs: &[InputSpec], expected: Expect) {
    match model(text, inputs, classes(3)) {
        Ok(_) => panic!("no error"),
        Err(error) => expected.assert_eq(&error.to_string()),
    }
}

#[test]
fn mistakes_in_a_list_say_which_layer_and_what_would_be_right() {
    let list = |layers: &str| format!("layers = [{layers}]");
    let flat = features(&[10]);
    check_error(
        "",
        &flat,
        expect![[
            r#"the model is empty; write `layers = ["dense 512 relu", "dense 10"]`, or [[model.node]]"#
        ]],
    );
    check_error(
        &list("\"dense 3\""),
        &table(),
        expect![
            "`model.layers` takes one input, but the data has `features`, `town`, `trade`; write [[model.node]], whose `inputs` say which goes where"
        ],
    );
    check_error(
        &list("\"dens 3\""),
        &flat,
        expect![
            "layer 1: there is no layer `dens` (did you mean `dense`?); there are dense, conv1d, conv2d, max_pool, average_pool, global_max_pool, global_average_pool, batch_norm, layer_norm, dropout, embedding, position_embedding, sparse_linear, factorization_machine, flatten, reshape, simple_rnn, gru, lstm, bidirectional, attention, transformer, residual, add, multiply, average, concatenate, relu, gelu, tanh, sigmoid, softmax, leaky_relu, elu, silu, softplus"
        ],
    );
    check_error(
        &list("\"dense\""),
        &flat,
        expect!["layer 1: the layer in `dense`: missing field `units`"],
    );
    check_error(
        &list("\"dense 4\", \"dense 3 unit=4\""),
        &flat,
        expect![
            "layer 2: the layer `dense` has no setting `unit` (did you mean `units`?); it has units, activation, bias, init"
        ],
    );
    check_error(
        &list("\"dense 0\""),
        &flat,
        expect![
            "layer 1, `dense 0`, gets numbers of shape [10] per sample: `units` must be at least 1, not 0"
        ],
    );
    check_error(
        &list("\"dense 4 rely\""),
        &flat,
        expect![
            "layer 1: the layer in `dense 4 rely`: unknown variant `rely`, expected one of `linear`, `relu`, `gelu`, `tanh`, `sigmoid`, `softmax`, `leaky_relu`, `elu`, `silu`, `softplus`"
        ],
    );
    check_error(
        &list("\"dense 4\", \"conv2d 8 3\""),
        &flat,
        expect![
            "layer 2, `conv2d 8 3`, gets numbers of shape [4] per sample: it takes images of shape [height, width] or [height, width, channels] per sample"
        ],
    );
    check_error(
        &list("\"conv2d 8 13\""),
        &image(),
        expect![
            "layer 1, `conv2d 8 13`, gets numbers of shape [12, 12] per sample: `size` must be such that a window, which spans [13, 13], fits into [12, 12] (or `padding=same`), not [13, 13]"
        ],
    );
    check_error(
        &list("\"conv2d 8 [3,3,3]\""),
        &image(),
        expect![
            "layer 1, `conv2d 8 [3,3,3]`, gets numbers of shape [12, 12] per sample: `size` must be a number of at least 1, or 2 of them, not [3, 3, 3]"
        ],
    );
    check_error(
        &list("\"conv2d 8 3\", \"conv2d 9 3 groups=4\""),
        &image(),
        expect![
            "layer 2, `conv2d 9 3 groups=4`, gets numbers of shape [10, 10, 8] per sample: `groups` must be a divisor of the 8 channels that come in and the 9 filters, not 4"
        ],
    );
    check_error(
        &list("\"reshape [10, 1]\", \"max_pool 11\""),
        &flat,
        expect![
            "layer 2, `max_pool 11`, gets numbers of shape [10, 1] per sample: `size` must be such that a window, which spans [11], fits into [10] (or `padding=same`), not [11]"
        ],
    );
    check_error(
        &list("\"lstm 4\""),
        &flat,
        expect![
            "layer 1, `lstm 4`, gets numbers of shape [10] per sample: it takes sequences of shape [length, width] per sample"
        ],
    );
    check_error(
        &list("\"max_pool\""),
        &flat,
        expect![
            "layer 1, `max_pool`, gets numbers of shape [10] per sample: it takes sequences of shape [length, channels] or images of shape [height, width, channels] per sample"
        ],
    );
    check_error(
        &list("\"dropout 1\""),
        &flat,
        expect![
            "layer 1, `dropout 1`, gets numbers of shape [10] per sample: `rate` must be at least 0 and below 1, not 1"
        ],
    );
    check_error(
        &list("\"attention 5\""),
        &features(&[4, 12]),
        expect![
            "layer 1, `attention 5`, gets numbers of shape [4, 12] per sample: `heads` must be a divisor of the width, which is 12, not 5"
        ],
    );
    check_error(
        &list("\"reshape [3,4]\""),
        &flat,
        expect![
            "layer 1, `reshape [3,4]`, gets numbers of shape [10] per sample: `shape` must be sizes whose product is 10 (of numbers of shape [10] per sample), -1 at most once, not [3, 4]"
        ],
    );
    check_error(
        &list("\"add\""),
        &flat,
        expect![
            "layer 1, `add`, gets numbers of shape [10] per sample: it takes several inputs, not 1"
        ],
    );
    check_error(
        &list("\"embedding 3\""),
        &flat,
        expect![
            "layer 1, `embedding 3`, gets numbers of shape [10] per sample: it takes indices (tokens, or categories that are not one-hot)"
        ],
    );
    let tokens = [input("tokens", DType::I32, &[6])];
    check_error(
        &list("\"dense 3\""),
        &tokens,
        expect![
            "layer 1, `dense 3`, gets indices of shape [6] per sample: it takes numbers; put `embedding WIDTH` between it and the indices"
        ],
    );
    check_error(
        &list("\"embedding 3 5\""),
        &tokens,
        expect![
            "layer 1, `embedding 3 5`, gets indices of shape [6] per sample: `categories` must be at least the 7 of the data, not 5"
        ],
    );
    check_error(
        &list("'bidirectional \"dense 3\"'"),
        &features(&[4, 12]),
        expect![[
            r#"layer 1, `bidirectional "dense 3"`, gets numbers of shape [4, 12] per sample: only layers that go along a sequence (simple_rnn, gru, lstm) run backwards"#
        ]],
    );
    check_error(
        &list("{ residual = { layers = [\"dense 4\", \"relu\"] } }"),
        &flat,
        expect![[
            r#"layer 1, `{"residual":{"layers":["dense 4","relu"]}}`, gets numbers of shape [10] per sample: its layers give numbers of shape [4] per sample, which cannot be added to what went in; both must have the same shape (no projection is put in): give the last layer as many outputs as the first has inputs, and convolutions `padding=same` and stride 1"#
        ]],
    );
    check_error(
        &list("{ residual = { layers = [\"dense 10\", \"lstm 10\"] } }"),
        &flat,
        expect![[
            r#"layer 1, `{"residual":{"layers":["dense 10","lstm 10"]}}`, gets numbers of shape [10] per sample: its layer 2, `lstm 10`, gets numbers of shape [10] per sample: it takes sequences of shape [length, width] per sample"#
        ]],
    );
}

#[test]
fn mistakes_in_a_graph_name_the_node() {
    let node = |name: &str, layer: &str, inputs: &str| {
        format!("[[node]]\nname = \"{name}\"\nlayer = \"{layer}\"\ninputs = [{inputs}]\n")
    };
    let two = |inputs: &str| node("a", "dense 3", inputs) + &node("late", "dense 3", "");
    check_error(
        &node("a", "dense 3", ""),
        &table(),
        expect![
            "node `a` is the first and says no `inputs`; the data has `features`, `town`, `trade`"
        ],
    );
    check_error(
        &two("\"feature\""),
        &table(),
        expect![
            "node `a` takes `feature`, which is not there (did you mean `features`?); it can take `features`, `town`, `trade`"
        ],
    );
    check_error(
        &two("\"late\""),
        &table(),
        expect![
            "node `a` takes `late`, which comes later, and nodes take only what is before them; it can take `features`, `town`, `trade`"
        ],
    );
    check_error(
        &node("town", "dense 3", "\"features\""),
        &table(),
        expect![
            "there are two nodes or inputs of the data called `town`; give each node a name of its own"
        ],
    );
    check_error(
        &node("a/b", "dense 3", "\"features\""),
        &table(),
        expect![
            "the node name `a/b` must have at least one character and no `/`, since weights are named after it"
        ],
    );
    check_error(
        &node("a", "add", "\"features\", \"town\""),
        &table(),
        expect![
            "node `a`, `add`, gets numbers of shape [5] per sample and one index per sample: it takes numbers; put `embedding WIDTH` between it and the indices"
        ],
    );
    let unlike = node("a", "dense 4", "\"features\"") + &node("b", "add", "\"a\", \"features\"");
    check_error(
        &unlike,
        &table(),
        expect![
            "node `b`, `add`, gets numbers of shape [4] per sample and numbers of shape [5] per sample: it takes inputs of one shape"
        ],
    );
    let both = format!("layers = [\"dense 3\"]\n{}", node("a", "dense 3", ""));
    check_error(
        &both,
        &features(&[5]),
        expect!["the model has both `layers` and [[model.node]]; keep one of them"],
    );
    check_error(
        &node("a", "dense 3", ""),
        &[input("rate", DType::F32, &[5])],
        expect!["the data has an input called `rate`, a name that is taken; rename the column"],
    );
}

fn check_misfit(text: &str, shape: &[usize], target: TargetSpec, choice: &str, expected: Expect) {
    let model = model(text, &features(shape), target).unwrap();
    let error = model.evaluation_program(4, loss(choice).as_ref()).unwrap_err();
    expected.assert_eq(&error.to_string());
}

#[test]
fn a_last_layer_that_does_not_fit_the_target_is_told_what_to_be() {
    let nine = "layers = [\"dense 4 relu\", \"dense 9\"]";
    check_misfit(
        nine,
        &[5],
        classes(10),
        "cross_entropy",
        expect![
            "the last layer (layer 2, `dense 9`) gives 9 scores but the data has 10 classes; write `dense 10`"
        ],
    );
    check_misfit(
        nine,
        &[5],
        number(),
        "squared_error",
        expect![
            "the last layer (layer 2, `dense 9`) gives [9] per sample but the loss takes [1]; end with `dense 1`"
        ],
    );
    check_misfit(
        nine,
        &[5],
        classes(2),
        "binary_cross_entropy",
        expect![
            "the last layer (layer 2, `dense 9`) gives [9] per sample but the loss takes [1]; end with `dense 1`"
        ],
    );
    check_misfit(
        nine,
        &[5],
        classes(10),
        "hinge",
        expect![
            "the last layer (layer 2, `dense 9`) feeds a loss that tells two classes apart, but the data has 10; use the loss `cross_entropy` and `dense 10`"
        ],
    );
    check_misfit(
        nine,
        &[6, 5],
        classes(9),
        "cross_entropy",
        expect![
            "the last layer (layer 2, `dense 9`) gives [6, 9] per sample but the loss takes [9]; end with `flatten` (or a pooling, or a recurrent layer without `sequences`) and `dense 9`"
        ],
    );
    check_misfit(
        nine,
        &[5],
        classes(9),
        "huber",
        expect![
            "the last layer (layer 2, `dense 9`) feeds a loss that takes numbers, but the target is i32"
        ],
    );
    let tokens = TargetSpec { dtype: DType::I32, shape: vec![6], n_classes: Some(9) };
    check_misfit(
        "layers = [\"lstm 9\"]",
        &[6, 5],
        tokens,
        "cross_entropy",
        expect![
            "the last layer (layer 1, `lstm 9`) gives [9] per sample but the loss takes [6, 9]; keep a result for each element of the sequence, and end with `dense 9`"
        ],
    );
}

#[test]
fn class_weights_need_one_weight_per_class() {
    let model = model("layers = [\"dense 3\"]", &features(&[5]), classes(3)).unwrap();
    let loss = loss("cross_entropy");
    let error = model.training_program(4, loss.as_ref(), &adam(), None, Some(&[1.0, 2.0]));
    expect!["class weights need one weight for each of the 3 classes, not 2"]
        .assert_eq(&error.unwrap_err().to_string());
}
