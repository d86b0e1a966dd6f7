"""Records PyTorch's numbers for operations, gradients, recurrent layers, losses and optimizers.

    python bench/oracle/record_torch.py crates/manyhands-device/tests/data/torch.json

Operands are f32; PyTorch computes in double from them, so what is recorded is the true value rounded to f32, and a
comparison measures the error of the device alone. Seeded: the same PyTorch gives the same file.

A case names the operation in the program's own JSON form (`op`), or a composed function (`function`, `settings`); its
operands; its results; for each result the upstream gradient, or null where nothing flows back; and the gradient of
sum(result * upstream) for each operand, or null for those that have none. Images are NHWC and kernels
[window.., in / groups, out] as in the program; the conversion from PyTorch's NCHW happens here.
"""

import json
import sys

import torch
import torch.nn.functional as F

torch.manual_seed(20260101)
CASES = []


def randn(*shape):
    return torch.randn(*shape, dtype=torch.float32)


def positive(*shape):
    return torch.rand(*shape, dtype=torch.float32) + 0.2


def whole(low, high, *shape):
    """Whole numbers as floats: ties and zeros happen."""
    return torch.randint(low, high, shape).float()


def written(tensor):
    """A tensor in the program's JSON form."""
    tensor = tensor.detach().contiguous()
    names = {torch.int32: "i32", torch.int64: "i64", torch.bool: "bool"}
    dtype = names.get(tensor.dtype, "f32")
    if dtype == "f32":
        tensor = tensor.float()
    return {"dtype": dtype, "shape": list(tensor.shape), "hex": tensor.numpy().tobytes().hex()}


def record(name, what, operands, compute, differentiated=None):
    """`compute` gives one tensor or a list; `differentiated` of them (all by default) have an upstream gradient."""
    doubles = [t.double().requires_grad_() if t.is_floating_point() else t for t in operands]
    results = compute(*doubles)
    results = [results] if torch.is_tensor(results) else list(results)
    n = len(results) if differentiated is None else differentiated
    upstream = [torch.randn(r.shape, dtype=torch.float32) if i < n else None for i, r in enumerate(results)]
    loss = sum((r * u.double()).sum() for r, u in zip(results, upstream) if u is not None)
    wrt = [t for t in doubles if t.is_floating_point()]
    gradients = iter(torch.autograd.grad(loss, wrt, allow_unused=True))
    gradients = [next(gradients) if t.is_floating_point() else None for t in doubles]
    CASES.append({
        "name": name,
        **what,
        "operands": [written(t) for t in operands],
        "results": [written(r) for r in results],
        "upstream": [None if u is None else written(u) for u in upstream],
        "gradients": [None if g is None else written(g) for g in gradients],
    })


def op(value):
    return {"op": value}


def function(name, **settings):
    return {"function": name, "settings": settings}


def elementwise():
    def gelu_slope(x):
        return torch.autograd.grad(F.gelu(x).sum(), x, create_graph=True)[0]

    anywhere = {
        "neg": torch.neg, "abs": torch.abs, "sign": torch.sign, "exp": torch.exp, "expm1": torch.expm1,
        "tanh": torch.tanh, "logistic": torch.sigmoid, "erf": torch.erf, "sin": torch.sin, "cos": torch.cos,
        "floor": torch.floor, "ceil": torch.ceil, "round": torch.round, "relu": torch.relu, "gelu": F.gelu,
        "gelu_slope": gelu_slope, "silu": F.silu, "softplus": lambda x: torch.logaddexp(x, torch.zeros_like(x)),
    }
    above_zero = {"log": torch.log, "log1p": torch.log1p, "sqrt": torch.sqrt, "rsqrt": torch.rsqrt}
    for name, compute in anywhere.items():
        for shape in [(3, 7), (2, 3, 11)]:
            record(name, op({"unary": name}), [randn(*shape) * 3], compute)
    for name, compute in above_zero.items():
        for shape in [(3, 7), (2, 3, 11)]:
            record(name, op({"unary": name}), [positive(*shape) * 4], compute)
    binary = {
        "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div, "max": torch.maximum,
        "min": torch.minimum, "rem": torch.fmod,
    }
    for name, compute in binary.items():
        for shape in [(4, 5), (2, 3, 9)]:
            away = randn(*shape)
            away = away + torch.sign(away) * 0.5
            record(name, op({"binary": name}), [randn(*shape) * 3, away], compute)
    for name in ["max", "min"]:
        record(f"{name} with ties", op({"binary": name}), [whole(0, 3, 4, 6), whole(0, 3, 4, 6)], binary[name])
    record("pow", op({"binary": "pow"}), [positive(3, 8) * 2, randn(3, 8)], torch.pow)
    record("pow of zeros", op({"binary": "pow"}), [whole(0, 3, 4, 7), whole(0, 4, 4, 7)], torch.pow)
    condition = torch.rand(3, 5) > 0.4
    record("select", op("select"), [condition, randn(3, 5), randn(3, 5)], torch.where)


def layout():
    record("broadcast", op({"broadcast": {"shape": [2, 3, 4], "axes": [1]}}), [randn(3)],
           lambda x: x[None, :, None].expand(2, 3, 4))
    record("broadcast of ones", op({"broadcast": {"shape": [5, 3, 4], "axes": [0, 2]}}), [randn(1, 4)],
           lambda x: x[:, None, :].expand(5, 3, 4))
    record("reshape", op({"reshape": {"shape": [6, 2]}}), [randn(3, 4)], lambda x: x.reshape(6, 2))
    record("transpose", op({"transpose": {"order": [2, 0, 1]}}), [randn(2, 3, 5)], lambda x: x.permute(2, 0, 1))
    record("concatenate", op({"concatenate": {"axis": 1}}), [randn(2, 3, 2), randn(2, 1, 2), randn(2, 4, 2)],
           lambda *parts: torch.cat(parts, 1))
    record("slice", op({"slice": {"start": [1, 0], "limit": [5, 9], "stride": [1, 3]}}), [randn(6, 10)],
           lambda x: x[1:5, 0:9:3])

    def pad(x, value):
        rows = torch.full((2, x.shape[1] * 2 - 1), 1.0, dtype=x.dtype) * value
        wide = torch.stack([x, value.expand_as(x)], 2).reshape(x.shape[0], -1)[:, :-1]
        return torch.cat([rows[:1], wide, rows], 0)

    record("pad", op({"pad": {"low": [1, 0], "high": [2, 0], "interior": [0, 1]}}),
           [randn(3, 4), torch.tensor(0.7)], pad)
    rows = torch.tensor([[1, 0, 1], [4, 4, 2]], dtype=torch.int32)
    record("gather of rows", op({"gather": {"axis": 0}}), [randn(5, 4), rows], lambda x, i: x[i.long()])
    record("gather of columns", op({"gather": {"axis": 1}}), [randn(3, 6), rows], lambda x, i: x[:, i.long()])
    record("scatter_add", op({"scatter_add": {"axis": 0}}),
           [randn(5, 4), torch.tensor([3, 3, 0], dtype=torch.int64), randn(3, 4)],
           lambda base, i, updates: base.index_add(0, i, updates))
    for axes in [[0], [1, 2], [0, 1, 2]]:
        record("reduce sum", op({"reduce": {"kind": "sum", "axes": axes}}), [randn(3, 4, 5)],
               lambda x: x.sum(axes))
        record("reduce max", op({"reduce": {"kind": "max", "axes": axes}}), [randn(3, 4, 5)],
               lambda x: x.amax(axes))
        record("reduce min with ties", op({"reduce": {"kind": "min", "axes": axes}}), [whole(0, 3, 3, 4, 5)],
               lambda x: x.amin(axes))
    record("reduce product", op({"reduce": {"kind": "product", "axes": [1]}}), [randn(3, 5)],
           lambda x: x.prod(1))
    record("reduce product with zeros", op({"reduce": {"kind": "product", "axes": [1]}}), [whole(0, 4, 8, 4)],
           lambda x: x.prod(1))
    record("block_square_sums", op("block_square_sums"), [randn(3, 500)],
           lambda x: torch.stack([part.square().sum() for part in x.flatten().split(1024)]))


def products():
    for left in [False, True]:
        for right in [False, True]:
            flags = {k: True for k, v in [("transpose_lhs", left), ("transpose_rhs", right)] if v}
            turn = lambda x, yes: x.transpose(-1, -2) if yes else x
            for batch in [(), (3,), (2, 3)]:
                a = turn(randn(*batch, 4, 5), left).contiguous()
                b = turn(randn(*batch, 5, 6), right).contiguous()
                record("matmul", op({"matmul": flags}), [a, b], lambda a, b: turn(a, left) @ turn(b, right))
            if not left:
                b = turn(randn(5, 6), right).contiguous()
                record("matmul of many by one", op({"matmul": flags}), [randn(2, 3, 4, 5), b],
                       lambda a, b: a @ turn(b, right))
    record("matmul of many columns", op({"matmul": {}}), [randn(17, 40), randn(40, 33)], torch.matmul)


def to_channels_first(x):
    return x.movedim(-1, 1)


def padded(x, padding, value=0.0):
    """Pads [n, channels, spatial..] by pairs per spatial axis."""
    return F.pad(x, [side for pair in reversed(padding) for side in pair], value=value)


def convolutions():
    plain = {"stride": [1, 1], "padding": [[0, 0], [0, 0]], "dilation": [1, 1], "groups": 1}
    settings = [
        ((2, 7, 6, 3), (3, 3), 4, plain),
        ((1, 5, 8, 1), (1, 1), 2, plain),
        ((2, 8, 8, 4), (3, 3), 6, plain | {"padding": [[1, 1], [1, 1]]}),
        ((2, 9, 7, 4), (3, 2), 6, plain | {"stride": [2, 3], "padding": [[1, 0], [0, 1]], "groups": 2}),
        ((1, 9, 9, 2), (2, 3), 4, plain | {"dilation": [2, 3], "padding": [[2, 2], [3, 3]]}),
        ((2, 6, 6, 4), (3, 3), 4, plain | {"groups": 4, "padding": [[1, 1], [1, 1]]}),
        ((1, 8, 9, 5), (4, 4), 17, plain | {"stride": [3, 2], "dilation": [2, 1]}),
        ((3, 11, 3), (4,), 5, {"stride": [1], "padding": [[2, 1]], "dilation": [1], "groups": 1}),
        ((2, 12, 4), (3,), 6, {"stride": [2], "padding": [[0, 0]], "dilation": [2], "groups": 2}),
        ((1, 6, 6, 32), (3, 3), 16, plain | {"padding": [[1, 1], [1, 1]]}),
    ]
    for shape, taps, features, window in settings:
        def convolution(x, kernel):
            call = F.conv1d if len(taps) == 1 else F.conv2d
            kernel = kernel.movedim((-1, -2), (0, 1))
            x = padded(to_channels_first(x), window["padding"])
            groups = {"stride": window["stride"], "dilation": window["dilation"], "groups": window["groups"]}
            return call(x, kernel, **groups).movedim(1, -1)

        kernel = randn(*taps, shape[-1] // window["groups"], features)
        record(f"convolution {len(taps)}-D", op({"convolution": window}), [randn(*shape), kernel], convolution)


def pools():
    settings = [
        ((2, 6, 8, 3), {"window": [2, 2], "stride": [2, 2], "padding": [[0, 0], [0, 0]]}),
        ((2, 7, 7, 2), {"window": [3, 2], "stride": [2, 1], "padding": [[1, 1], [0, 1]]}),
        ((1, 9, 5, 17), {"window": [3, 3], "stride": [3, 2], "padding": [[2, 0], [1, 1]]}),
        ((2, 10, 3), {"window": [3], "stride": [2], "padding": [[1, 0]]}),
    ]
    for shape, pooling in settings:
        one = len(pooling["window"]) == 1
        call = {"kernel_size": pooling["window"], "stride": pooling["stride"]}

        def largest(x):
            x = padded(to_channels_first(x), pooling["padding"], float("-inf"))
            return (F.max_pool1d if one else F.max_pool2d)(x, **call).movedim(1, -1)

        def mean(x, count_padding):
            mean = F.avg_pool1d if one else F.avg_pool2d
            x = to_channels_first(x)
            sums = mean(padded(x, pooling["padding"]), **call)
            if count_padding:
                return sums.movedim(1, -1)
            counts = mean(padded(torch.ones_like(x), pooling["padding"]), **call)
            return (sums / counts).movedim(1, -1)

        record("max_pool", op({"max_pool": pooling}), [randn(*shape)], largest)
        record("average_pool", op({"average_pool": pooling}), [randn(*shape)], lambda x: mean(x, False))
        record("average_pool with padding counted", op({"average_pool": pooling | {"count_padding": True}}),
               [randn(*shape)], lambda x: mean(x, True))


def rows():
    for shape in [(4, 10), (2, 3, 33), (5, 1)]:
        record("softmax", op("softmax"), [randn(*shape) * 3], lambda x: x.softmax(-1))
        record("log_softmax", op("log_softmax"), [randn(*shape) * 3], lambda x: x.log_softmax(-1))
    for shape in [(6, 10), (2, 3, 37)]:
        labels = torch.randint(0, shape[-1], shape[:-1], dtype=torch.int32)
        record("cross_entropy", op("cross_entropy"), [randn(*shape) * 3, labels],
               lambda x, y: F.cross_entropy(x.flatten(0, -2), y.flatten().long(), reduction="none").view(y.shape))
    for shape in [(4, 9), (2, 5, 32)]:
        n = shape[-1]

        def layer_norm(x, scale, bias):
            variance = x.var(-1, correction=0)
            return [F.layer_norm(x, [n], scale, bias, 1e-5), x.mean(-1), (variance + 1e-5).rsqrt()]

        def batch_norm(x, scale, bias):
            flat = x.reshape(-1, n)
            y = F.batch_norm(flat, None, None, scale, bias, training=True, eps=1e-3)
            return [y.view(x.shape), flat.mean(0), flat.var(0, correction=0)]

        operands = [randn(*shape) * 2 + 1, randn(n), randn(n)]
        record("layer_norm", op({"layer_norm": {"epsilon": 1e-5}}), operands, layer_norm, differentiated=1)
        record("batch_norm", op({"batch_norm": {"epsilon": 1e-3}}), operands, batch_norm, differentiated=1)
    operands = [randn(3, 5, 4, 7), randn(7), randn(7)]
    n = 7
    record("batch_norm of images", op({"batch_norm": {"epsilon": 1e-3}}), operands, batch_norm, differentiated=1)


def attention():
    settings = [
        (2, 5, 5, 2, 4, False, None), (2, 6, 6, 2, 3, True, None), (1, 3, 7, 3, 5, True, None),
        (2, 4, 6, 2, 4, False, "pairs"), (2, 5, 5, 2, 4, True, "batch"), (1, 20, 20, 2, 8, True, None),
    ]
    for batch, queries, keys, heads, depth, causal, masked in settings:
        scale = depth ** -0.5
        spec = {"heads": heads, "causal": causal, "scale": scale} | ({"masked": True} if masked else {})
        shapes = {"pairs": (queries, keys), "batch": (batch, queries, keys)}
        mask = torch.rand(shapes[masked]) > 0.4 if masked else None
        if masked:
            mask[..., 0] = True

        def attend(q, k, v, mask=None):
            split = lambda x: x.view(batch, -1, heads, depth).transpose(1, 2)
            may = torch.ones(queries, keys, dtype=torch.bool)
            may = may.tril(keys - queries) if causal else may
            if mask is not None:
                may = may & (mask if mask.dim() == 2 else mask[:, None])
            y = F.scaled_dot_product_attention(split(q), split(k), split(v), attn_mask=may, scale=scale)
            return y.transpose(1, 2).reshape(batch, queries, heads * depth)

        width = heads * depth
        operands = [randn(batch, queries, width), randn(batch, keys, width), randn(batch, keys, width)]
        record("attention", op({"attention": spec}), operands + ([mask] if masked else []), attend)


def losses():
    x, y = randn(4, 6) * 2, randn(4, 6) * 2
    targets = torch.rand(4, 6)
    record("binary_cross_entropy", function("binary_cross_entropy"), [x, targets],
           lambda x, t: F.binary_cross_entropy_with_logits(x, t, reduction="none"))
    record("squared_error", function("squared_error"), [x, y], lambda x, y: F.mse_loss(x, y, reduction="none"))
    record("absolute_error", function("absolute_error"), [x, y], lambda x, y: F.l1_loss(x, y, reduction="none"))
    record("huber", function("huber", delta=1.3), [x, y],
           lambda x, y: F.huber_loss(x, y, reduction="none", delta=1.3))
    signs = torch.sign(randn(4, 6))
    record("hinge", function("hinge"), [x, signs], lambda x, t: (1 - x * t).clamp(min=0))


def recurrent():
    """Layers over batches of sequences of different lengths; weights are [in, gates * hidden] as in the program."""
    length, batch, size, hidden = 6, 3, 4, 5
    for kind, gates in [("lstm", 4), ("gru", 3)]:
        for lengths in [[6, 6, 6], [6, 2, 4]]:
            layer = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}[kind](size, hidden, bidirectional=True).double()
            for reverse in [False, True]:
                suffix = "_reverse" if reverse else ""
                names = [f"weight_ih_l0{suffix}", f"weight_hh_l0{suffix}", f"bias_ih_l0{suffix}", f"bias_hh_l0{suffix}"]

                def run(x, w_in, w_own, b_in, b_own, start, *cell_and_lengths):
                    states = [start] + [t for t in cell_and_lengths if t.is_floating_point()]
                    own = dict(zip(names, [w_in.T, w_own.T, b_in, b_own]))
                    zeros = torch.zeros_like(start)
                    pair = lambda state: torch.stack([zeros, state] if reverse else [state, zeros])
                    first = tuple(pair(s) for s in states) if kind == "lstm" else pair(start)
                    packed = torch.nn.utils.rnn.pack_padded_sequence(x, lengths, enforce_sorted=False)
                    y, last = torch.func.functional_call(layer, own, (packed, first))
                    y, _ = torch.nn.utils.rnn.pad_packed_sequence(y, total_length=length)
                    part = y[..., hidden:] if reverse else y[..., :hidden]
                    return [part] + [s[int(reverse)] for s in (last if kind == "lstm" else [last])]

                operands = [randn(length, batch, size), randn(size, gates * hidden), randn(hidden, gates * hidden),
                            randn(gates * hidden), randn(gates * hidden), randn(batch, hidden)]
                operands += [randn(batch, hidden)] if kind == "lstm" else []
                operands += [torch.tensor(lengths, dtype=torch.int32)]
                record(f"{kind} {lengths}{suffix}", function(kind, reverse=reverse), operands, run)


def optimizers():
    """Three steps of each optimizer on two parameters with given gradients."""
    settings = [
        ({"sgd": {"rate": 0.1}}, lambda p: torch.optim.SGD(p, lr=0.1)),
        ({"adam": {"rate": 0.01, "beta1": 0.8, "beta2": 0.99, "epsilon": 1e-8}},
         lambda p: torch.optim.Adam(p, lr=0.01, betas=(0.8, 0.99), eps=1e-8)),
        ({"sgd": {"rate": 0.1, "weight_decay": 0.01}}, lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.01)),
        ({"sgd": {"rate": 0.1, "momentum": 0.9}}, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)),
        ({"sgd": {"rate": 0.1, "momentum": 0.9, "nesterov": True}},
         lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True)),
        ({"adagrad": {"rate": 0.1, "epsilon": 1e-10}}, lambda p: torch.optim.Adagrad(p, lr=0.1, eps=1e-10)),
        ({"adagrad": {"rate": 0.1, "rate_decay": 0.1, "weight_decay": 0.02}},
         lambda p: torch.optim.Adagrad(p, lr=0.1, lr_decay=0.1, weight_decay=0.02)),
        ({"rmsprop": {"rate": 0.01, "alpha": 0.9}}, lambda p: torch.optim.RMSprop(p, lr=0.01, alpha=0.9)),
        ({"rmsprop": {"rate": 0.01, "alpha": 0.9, "momentum": 0.8, "centered": True}},
         lambda p: torch.optim.RMSprop(p, lr=0.01, alpha=0.9, momentum=0.8, centered=True)),
        ({"adam": {"rate": 0.01, "weight_decay": 0.1}}, lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.1)),
        ({"adamw": {"rate": 0.01, "weight_decay": 0.1}}, lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1)),
    ]
    cases = []
    for clip in [None, ("value", 0.3), ("global_norm", 0.5), ("global_norm", 100.0)]:
        for optimizer_settings, make in settings if clip is None else settings[:2]:
            first = [randn(4, 3), randn(5)]
            parameters = [t.double().requires_grad_() for t in first]
            optimizer = make(parameters)
            steps = []
            for _ in range(3):
                gradients = [randn(4, 3), randn(5)]
                for parameter, gradient in zip(parameters, gradients):
                    parameter.grad = gradient.double()
                if clip and clip[0] == "value":
                    torch.nn.utils.clip_grad_value_(parameters, clip[1])
                if clip and clip[0] == "global_norm":
                    torch.nn.utils.clip_grad_norm_(parameters, clip[1])
                optimizer.step()
                steps.append({"gradients": [written(g) for g in gradients],
                              "parameters": [written(p) for p in parameters]})
            cases.append({"optimizer": optimizer_settings, "clip": clip and {clip[0]: clip[1]},
                          "parameters": [written(p) for p in first], "steps": steps})
    return cases


def main():
    for record_family in [elementwise, layout, products, convolutions, pools, rows, attention, losses, recurrent]:
        record_family()
    recorded = {"torch": torch.__version__, "cases": CASES, "optimizers": optimizers()}
    with open(sys.argv[1], "w") as file:
        json.dump(recorded, file, separators=(",", ":"))
        file.write("\n")


main()
