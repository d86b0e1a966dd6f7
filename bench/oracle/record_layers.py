"""Records PyTorch's numbers for layers and losses: forward, and the gradient of a weighted sum of what comes out.

    python bench/oracle/record_layers.py crates/manyhands/tests/data/layers.json

PyTorch computes in double from f32 values, so what is recorded is the true value rounded to f32. Seeded: the same PyTorch
gives the same file.

A case has the layers as a job writes them (`layers`, or `nodes` with the data's inputs); the data (`inputs`, with the axis of
samples); every weight by its name in the model; `output`; `upstream`, one factor per output; and the gradients of
sum(output * upstream) for weights and float inputs. Images are NHWC, kernels [window.., in / groups, out], dense weights
[in, out], gates along the columns: the conversion happens here. `mode` is `training` or `evaluating`; `statistics` are
running statistics before, `updated` after the step.
"""

import json
import sys

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(20260201)
CASES = []


def randn(*shape):
    return torch.randn(*shape, dtype=torch.float32)


def written(tensor):
    """A tensor in the program's JSON form."""
    tensor = tensor.detach().contiguous()
    names = {torch.int32: "i32", torch.int64: "i64"}
    dtype = names.get(tensor.dtype, "f32")
    if dtype == "f32":
        tensor = tensor.float()
    return {"dtype": dtype, "shape": list(tensor.shape), "hex": tensor.numpy().tobytes().hex()}


def double(tensors):
    return {n: t.double().requires_grad_() if t.is_floating_point() else t for n, t in tensors.items()}


def record(name, model, inputs, weights, compute, statistics=None, updated=None, mode="training", categories=None):
    """`compute(x, w, s)` gives the output from dicts of inputs, weights and statistics, as the model holds them."""
    x, w = double(inputs), double(weights)
    s = {n: t.double() for n, t in (statistics or {}).items()}
    output = compute(x, w, s)
    upstream = randn(*output.shape)
    wrt = {n: t for n, t in [*x.items(), *w.items()] if t.requires_grad}
    gradients = torch.autograd.grad((output * upstream.double()).sum(), list(wrt.values()))
    case = {
        "name": name, **model, "mode": mode, "categories": categories,
        "inputs": {n: written(t) for n, t in inputs.items()},
        "weights": {n: written(t) for n, t in weights.items()},
        "statistics": {n: written(t) for n, t in (statistics or {}).items()},
        "updated": {n: written(t) for n, t in (updated(x, s) if updated else {}).items()},
        "output": written(output), "upstream": written(upstream),
        "gradients": {n: written(g) for n, g in zip(wrt, gradients)},
    }
    CASES.append(case)


def layers(*texts):
    return {"layers": list(texts)}


def node(name, layer, *inputs):
    return {"name": name, "layer": layer, "inputs": list(inputs)}


def nodes(*listed):
    return {"nodes": list(listed)}


def first(x):
    return x.movedim(-1, 1)


def last(x):
    return x.movedim(1, -1)


def denses():
    w = {"dense0/weight": randn(5, 4), "dense0/bias": randn(4)}
    run = lambda f: lambda x, w, s: f(x["features"] @ w["dense0/weight"] + w["dense0/bias"])
    functions = {
        "linear": lambda x: x, "relu": F.relu, "gelu": F.gelu, "tanh": torch.tanh, "sigmoid": torch.sigmoid,
        "softmax": lambda x: F.softmax(x, -1), "leaky_relu": F.leaky_relu, "elu": F.elu, "silu": F.silu,
        "softplus": F.softplus,
    }
    for name, f in functions.items():
        record(f"dense {name}", layers(f"dense 4 {name}"), {"features": randn(3, 5)}, w, run(f))
        if name != "linear":
            record(f"layer {name}", layers("dense 4", name), {"features": randn(3, 5)}, w, run(f))
    record("leaky_relu 0.3", layers("dense 4", "leaky_relu 0.3"), {"features": randn(3, 5)}, w,
           run(lambda x: F.leaky_relu(x, 0.3)))
    record("elu 0.5", layers("dense 4", "elu alpha=0.5"), {"features": randn(3, 5)}, w, run(lambda x: F.elu(x, 0.5)))
    record("dense on the last axis", layers("dense 4"), {"features": randn(3, 6, 5)}, w, run(lambda x: x))
    record("dense without bias", layers("dense 4 bias=false"), {"features": randn(3, 5)}, {"dense0/weight": randn(5, 4)},
           lambda x, w, s: x["features"] @ w["dense0/weight"])
    record("flatten", layers("flatten", "dense 4"), {"features": randn(3, 5, 2)},
           {"dense0/weight": randn(10, 4), "dense0/bias": randn(4)},
           lambda x, w, s: x["features"].flatten(1) @ w["dense0/weight"] + w["dense0/bias"])
    record("reshape", layers("reshape [5,-1]", "dense 4"), {"features": randn(3, 10)},
           {"dense0/weight": randn(2, 4), "dense0/bias": randn(4)},
           lambda x, w, s: x["features"].reshape(3, 5, 2) @ w["dense0/weight"] + w["dense0/bias"])


def convolutions():
    settings = [
        ("conv2d 4 3", (2, 7, 6, 3), (3, 3), {}),
        ("conv2d 4 [3,2] relu stride=2", (2, 7, 6, 3), (3, 2), {"stride": 2}),
        ("conv2d 4 3 padding=same", (2, 7, 6, 3), (3, 3), {"padding": "same"}),
        ("conv2d 4 2 padding=same", (2, 5, 5, 3), (2, 2), {"padding": "same"}),
        ("conv2d 4 3 dilation=2 padding=same", (1, 9, 8, 2), (3, 3), {"padding": "same", "dilation": 2}),
        ("conv2d 6 3 groups=2", (2, 5, 6, 4), (3, 3), {"groups": 2}),
        ("conv2d 4 3", (2, 7, 6), (3, 3), {}),
        ("conv1d 5 3", (2, 9, 3), (3,), {}),
        ("conv1d 5 4 padding=same", (2, 9, 3), (4,), {"padding": "same"}),
        ("conv1d 5 3 tanh stride=2 dilation=2", (2, 11, 3), (3,), {"stride": 2, "dilation": 2}),
    ]
    for text, shape, taps, options in settings:
        filters = int(text.split()[1])
        channels = shape[-1] if len(shape) == len(taps) + 2 else 1
        weights = {"conv0/kernel": randn(*taps, channels // options.get("groups", 1), filters), "conv0/bias": randn(filters)}

        def run(x, w, s):
            x = x["features"] if len(shape) == len(taps) + 2 else x["features"][..., None]
            call = F.conv1d if len(taps) == 1 else F.conv2d
            y = last(call(first(x), w["conv0/kernel"].movedim((-1, -2), (0, 1)), w["conv0/bias"], **options))
            return y.relu() if "relu" in text else y.tanh() if "tanh" in text else y

        record(text, layers(text), {"features": randn(*shape)}, weights, run)
    # Same with a stride is not PyTorch's: the edges get what makes the result ceil(size / stride), the odd one after.
    record("conv2d 4 3 stride=2 padding=same", layers("conv2d 4 3 stride=2 padding=same"), {"features": randn(2, 8, 7, 3)},
           {"conv0/kernel": randn(3, 3, 3, 4), "conv0/bias": randn(4)},
           lambda x, w, s: last(F.conv2d(F.pad(first(x["features"]), (1, 1, 0, 1)),
                                         w["conv0/kernel"].movedim((-1, -2), (0, 1)), w["conv0/bias"], stride=2)))


def pools():
    images, sequences = (2, 6, 7, 3), (2, 9, 3)
    settings = [
        ("max_pool 2", images, lambda x: F.max_pool2d(x, 2)),
        ("max_pool", sequences, lambda x: F.max_pool1d(x, 2)),
        ("max_pool 3 stride=1", images, lambda x: F.max_pool2d(x, 3, 1)),
        ("max_pool [2,3] stride=[1,2]", images, lambda x: F.max_pool2d(x, (2, 3), (1, 2))),
        ("max_pool 3 stride=2 padding=same", (2, 7, 7, 3), lambda x: F.max_pool2d(x, 3, 2, 1)),
        ("average_pool 2", images, lambda x: F.avg_pool2d(x, 2)),
        ("average_pool 3", sequences, lambda x: F.avg_pool1d(x, 3)),
        ("average_pool 3 stride=2 padding=same", (2, 7, 7, 3),
         lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False)),
        ("global_average_pool", images, lambda x: x.mean((2, 3))),
        ("global_max_pool", images, lambda x: x.amax((2, 3))),
        ("global_average_pool", sequences, lambda x: x.mean(2)),
    ]
    for text, shape, f in settings:
        record(text, layers(text), {"features": randn(*shape)}, {}, lambda x, w, s: last(f(first(x["features"]))))


def norms():
    for shape in [(6, 5), (3, 4, 2, 5)]:
        weights = {"batch_norm0/scale": randn(5), "batch_norm0/bias": randn(5)}
        statistics = {"batch_norm0/mean": randn(5), "batch_norm0/variance": torch.rand(5) + 0.5}
        for mode in ["training", "evaluating"]:
            def run(x, w, s):
                mean, variance = s["batch_norm0/mean"].clone(), s["batch_norm0/variance"].clone()
                return last(F.batch_norm(first(x["features"]), mean, variance, w["batch_norm0/scale"],
                                         w["batch_norm0/bias"], training=mode == "training", momentum=0.2))

            def updated(x, s):
                mean, variance = s["batch_norm0/mean"].clone(), s["batch_norm0/variance"].clone()
                F.batch_norm(first(x["features"]), mean, variance, training=mode == "training", momentum=0.2)
                return {"batch_norm0/mean": mean, "batch_norm0/variance": variance}

            record(f"batch_norm {mode}", layers("batch_norm 0.2"), {"features": randn(*shape) * 2 + 1}, weights, run,
                   statistics, updated, mode)
    weights = {"layer_norm0/scale": randn(5), "layer_norm0/bias": randn(5)}
    record("layer_norm", layers("layer_norm"), {"features": randn(3, 4, 5)}, weights,
           lambda x, w, s: F.layer_norm(x["features"], [5], w["layer_norm0/scale"], w["layer_norm0/bias"]))
    record("dropout that answers", layers("dropout 0.5"), {"features": randn(3, 4, 5)}, {}, lambda x, w, s: x["features"] * 1,
           mode="evaluating")


def embeddings():
    tokens = torch.tensor([[1, 0, 1, 6], [4, 4, 2, 0]], dtype=torch.int32)
    table = {"embedding0/table": randn(7, 3)}
    record("embedding", layers("embedding 3"), {"tokens": tokens}, table,
           lambda x, w, s: w["embedding0/table"][x["tokens"].long()], categories=7)
    record("embedding of a category", layers("embedding 3 7"), {"tokens": tokens[0]}, table,
           lambda x, w, s: w["embedding0/table"][x["tokens"].long()])
    record("position_embedding", layers("embedding 3", "position_embedding"), {"tokens": tokens},
           table | {"position_embedding0/table": randn(4, 3)},
           lambda x, w, s: w["embedding0/table"][x["tokens"].long()] + w["position_embedding0/table"], categories=7)


def recurrent_weights(scope, size, units, gates):
    return {f"{scope}/weight_input": randn(size, gates * units), f"{scope}/weight_state": randn(units, gates * units),
            f"{scope}/bias_input": randn(gates * units), f"{scope}/bias_state": randn(gates * units)}


def recurrents():
    size, units = 4, 5
    kinds = {"simple_rnn": (nn.RNN, 1, {}), "simple_rnn relu": (nn.RNN, 1, {"nonlinearity": "relu"}),
             "gru": (nn.GRU, 3, {}), "lstm": (nn.LSTM, 4, {})}
    for kind, (make, gates, options) in kinds.items():
        name = kind.split()[0]
        extra = " activation=relu" if "relu" in kind else ""
        for sequences in [False, True]:
            text = f"{name} {units}{' sequences=true' if sequences else ''}{extra}"
            for both in [False, True]:
                scope = f"{'bidirectional0' if both else name + '0'}"
                parts = [f"{scope}/forward", f"{scope}/backward"] if both else [scope]
                weights = {n: w for part in parts for n, w in recurrent_weights(part, size, units, gates).items()}
                layer = make(size, units, batch_first=True, bidirectional=both, **options).double()

                def run(x, w, s):
                    own = {}
                    for part, suffix in zip(parts, ["", "_reverse"]):
                        own |= {f"weight_ih_l0{suffix}": w[f"{part}/weight_input"].T,
                                f"weight_hh_l0{suffix}": w[f"{part}/weight_state"].T,
                                f"bias_ih_l0{suffix}": w[f"{part}/bias_input"],
                                f"bias_hh_l0{suffix}": w[f"{part}/bias_state"]}
                    y, state = torch.func.functional_call(layer, own, (x["features"],))
                    state = state[0] if gates == 4 else state
                    return y if sequences else torch.cat(list(state), -1)

                record(f"{'bidirectional ' if both else ''}{text}",
                       layers(f'bidirectional "{text}"' if both else text), {"features": randn(3, 6, size)}, weights, run)


def linear_weights(scope, size, units):
    return {f"{scope}/weight": randn(size, units) * 0.5, f"{scope}/bias": randn(units)}


def multi_head(q, k, v, heads, causal):
    split = lambda x: x.unflatten(-1, (heads, -1)).transpose(1, 2)
    y = F.scaled_dot_product_attention(split(q), split(k), split(v), is_causal=causal)
    return y.transpose(1, 2).flatten(2)


def attentions():
    width = 6
    dense = lambda w, scope, x: x @ w[f"{scope}/weight"] + w[f"{scope}/bias"]
    for causal in [False, True]:
        weights = linear_weights("attention0/qkv", width, 3 * width) | linear_weights("attention0/project", width, width)
        text = f"attention 2 causal={str(causal).lower()}"
        # PyTorch's own layer, which holds its weights the other way round.
        layer = nn.MultiheadAttention(width, 2, batch_first=True).double()

        def run(x, w, s):
            own = {"in_proj_weight": w["attention0/qkv/weight"].T, "in_proj_bias": w["attention0/qkv/bias"],
                   "out_proj.weight": w["attention0/project/weight"].T, "out_proj.bias": w["attention0/project/bias"]}
            x = x["features"]
            mask = torch.ones(5, 5, dtype=torch.bool).triu(1) if causal else None
            return torch.func.functional_call(layer, own, (x, x, x), {"attn_mask": mask, "need_weights": False})[0]

        record(text, layers(text), {"features": randn(2, 5, width)}, weights, run)
    for named in [["a", "b"], ["a", "b", "c"]]:
        widths = {"a": width, "b": 4, "c": 3}
        sources = [named[0], named[1], named[-1]]
        weights = {}
        for scope, source in zip(["query", "key", "value"], sources):
            weights |= linear_weights(f"look/{scope}", widths[source], width)
        weights |= linear_weights("look/project", width, width)

        def run(x, w, s):
            q, k, v = (dense(w, f"look/{scope}", x[source]) for scope, source in zip(["query", "key", "value"], sources))
            return dense(w, "look/project", multi_head(q, k, v, 3, False))

        shapes = {"a": (2, 5, width), "b": (2, 7, 4), "c": (2, 7, 3)}
        record(f"attention to {named[1:]}", nodes(node("look", "attention 3", *named)),
               {n: randn(*shapes[n]) for n in named}, weights, run)
    for text, hidden, causal in [("transformer 2 8 true", 8, True), ("transformer 3", 4 * width, False)]:
        heads = int(text.split()[1])
        scope = "transformer0"
        weights = {}
        for norm in ["norm1", "norm2"]:
            weights |= {f"{scope}/{norm}/scale": randn(width), f"{scope}/{norm}/bias": randn(width)}
        for part, (size, units) in {"qkv": (width, 3 * width), "project": (width, width), "expand": (width, hidden),
                                    "contract": (hidden, width)}.items():
            weights |= linear_weights(f"{scope}/{part}", size, units)
        # PyTorch's own block, with its norms first.
        layer = nn.TransformerEncoderLayer(width, heads, hidden, 0.0, "gelu", batch_first=True, norm_first=True).double()

        def run(x, w, s):
            held = {"self_attn.in_proj_": "qkv", "self_attn.out_proj.": "project", "linear1.": "expand",
                    "linear2.": "contract"}
            own = {}
            for theirs, ours in held.items():
                own |= {f"{theirs}weight": w[f"{scope}/{ours}/weight"].T, f"{theirs}bias": w[f"{scope}/{ours}/bias"]}
            for norm in ["norm1", "norm2"]:
                own |= {f"{norm}.weight": w[f"{scope}/{norm}/scale"], f"{norm}.bias": w[f"{scope}/{norm}/bias"]}
            mask = torch.ones(5, 5, dtype=torch.bool).triu(1) if causal else None
            return torch.func.functional_call(layer, own, (x["features"],), {"src_mask": mask})

        record(text, layers(text), {"features": randn(2, 5, width)}, weights, run)


def combinations():
    a, b, c = {"a": randn(3, 4)}, {"b": randn(3, 4)}, {"c": randn(3, 2)}
    record("add", nodes(node("sum", "add", "a", "b")), a | b, {}, lambda x, w, s: x["a"] + x["b"])
    record("add of one twice", nodes(node("sum", "add", "a", "a", "b")), a | b, {}, lambda x, w, s: 2 * x["a"] + x["b"])
    record("multiply", nodes(node("product", "multiply", "a", "b")), a | b, {}, lambda x, w, s: x["a"] * x["b"])
    record("average", nodes(node("mean", "average", "a", "b")), a | b, {}, lambda x, w, s: (x["a"] + x["b"]) / 2)
    record("concatenate", nodes(node("all", "concatenate", "a", "c")), a | c, {}, lambda x, w, s: torch.cat([x["a"], x["c"]], 1))
    record("concatenate along the first axis", nodes(node("all", "concatenate 0", "a", "b")),
           {"a": randn(3, 2, 4), "b": randn(3, 5, 4)}, {}, lambda x, w, s: torch.cat([x["a"], x["b"]], 1))
    weights = linear_weights("residual0/dense0", 4, 7) | linear_weights("residual0/dense1", 7, 4)
    dense = lambda w, scope, x: x @ w[f"{scope}/weight"] + w[f"{scope}/bias"]
    record("residual", {"layers": [{"residual": {"layers": ["dense 7 relu", "dense 4"]}}]}, {"features": randn(3, 4)}, weights,
           lambda x, w, s: x["features"] + dense(w, "residual0/dense1", dense(w, "residual0/dense0", x["features"]).relu()))
    record("a graph", nodes(node("deep", "dense 5 relu", "a"), node("wide", "dense 5", "c"), node("both", "add", "deep", "wide"),
                            node("out", "dense 2")), a | c,
           linear_weights("deep", 4, 5) | linear_weights("wide", 2, 5) | linear_weights("out", 5, 2),
           lambda x, w, s: dense(w, "out", dense(w, "deep", x["a"]).relu() + dense(w, "wide", x["c"])))


def losses():
    """A loss on what a model of one layer that does nothing gives: the mean, its gradient, and each loss."""
    cases = []
    scores, labels = randn(6, 4) * 2, torch.randint(0, 4, (6,), dtype=torch.int32)
    tokens, next_tokens = randn(2, 3, 5), torch.randint(0, 5, (2, 3), dtype=torch.int32)
    one, binary = randn(6, 1) * 2, torch.randint(0, 2, (6,), dtype=torch.int32)
    numbers = randn(6)
    weights4, weights2 = torch.rand(4) + 0.3, torch.rand(2) + 0.3
    signs = lambda t: t.double() * 2 - 1
    entropy = lambda **more: lambda x, t: F.cross_entropy(x.flatten(0, -2), t.flatten().long(), reduction="none", **more)
    settings = [
        ("cross_entropy", scores, labels, None, entropy(), lambda x: x.softmax(-1)),
        ("cross_entropy", scores, labels, weights4, entropy(), lambda x: x.softmax(-1)),
        ("cross_entropy", tokens, next_tokens, None, entropy(), lambda x: x.softmax(-1)),
        ("cross_entropy smoothing=0.1", scores, labels, None, entropy(label_smoothing=0.1), lambda x: x.softmax(-1)),
        ("binary_cross_entropy", one, binary, None,
         lambda x, t: F.binary_cross_entropy_with_logits(x[:, 0], t.double(), reduction="none"), torch.sigmoid),
        ("binary_cross_entropy", one, binary, weights2,
         lambda x, t: F.binary_cross_entropy_with_logits(x[:, 0], t.double(), reduction="none"), torch.sigmoid),
        ("hinge", one, binary, None, lambda x, t: (1 - x[:, 0] * signs(t)).clamp(min=0), torch.sigmoid),
        ("squared_error", one, numbers, None, lambda x, t: (x[:, 0] - t) ** 2, lambda x: x * 1),
        ("absolute_error", one, numbers, None, lambda x, t: (x[:, 0] - t).abs(), lambda x: x * 1),
        ("huber", one, numbers, None, lambda x, t: F.huber_loss(x[:, 0], t, reduction="none"), lambda x: x * 1),
        ("huber 0.3", one, numbers, None, lambda x, t: F.huber_loss(x[:, 0], t, reduction="none", delta=0.3), lambda x: x * 1),
    ]
    for text, output, target, weights, f, answer in settings:
        x = output.double().requires_grad_()
        own = f(x, target.double() if target.is_floating_point() else target)
        factors = torch.ones_like(own) if weights is None else weights.double()[target.flatten().long()]
        mean = (own * factors).sum() / factors.sum()
        cases.append({"loss": text, "output": written(output), "target": written(target),
                      "class_weights": None if weights is None else written(weights), "losses": written(own),
                      "mean": written(mean), "gradient": written(torch.autograd.grad(mean, x)[0]),
                      "prediction": written(answer(x))})
    return cases


def main():
    for family in [denses, convolutions, pools, norms, embeddings, recurrents, attentions, combinations]:
        family()
    recorded = {"torch": torch.__version__, "cases": CASES, "losses": losses()}
    with open(sys.argv[1], "w") as file:
        json.dump(recorded, file, separators=(",", ":"))
        file.write("\n")


main()
