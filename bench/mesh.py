#!/usr/bin/env python3
"""Models spread over two workers of one thread each beside one worker, beside all_reduce, and beside PyTorch over gloo, interleaved in one run.

usage: bench/mesh.py [--rounds N] [--only TEXT[,TEXT]] [--json FILE]

Every run is the real `manyhands train`, on data that ships with the examples: a transformer of 8 equal blocks (width 256, sequences of 64), a CNN of 8 near-equal
convolutions, an MLP of wide layers; 8 grains a step. The rate is that of the training steps alone (`compute` of report.json). Models must be equal byte for byte, but for tensor
splits. The best of the rounds counts for both sides, the median is printed beside it. Needs a quiet machine; PyTorch needs bench/peers/setup to have run."""
import argparse, hashlib, json, os, re, statistics, subprocess, sys, tempfile
from pathlib import Path

root = Path(__file__).resolve().parent.parent
peers = Path(os.environ.get("PEERS", Path.home() / ".cache/manyhands-peers"))
python = peers / "torch/bin/python"
target = Path(os.environ.get("CARGO_TARGET_DIR", root / "target"))
manyhands = target / "release/manyhands"
DATA = root / "examples/data"

TRANSFORMER = f"""[data]
train = "{DATA}/shakespeare.txt.gz"
text = {{ unit = "characters", length = 64 }}
[model]
layers = ["embedding 256", "position_embedding", {", ".join(['"transformer 4 causal=true"'] * 8)}, "layer_norm", "dense 73"]
[train]
loss = "cross_entropy"
optimizer = {{ adamw = {{ rate = 0.003 }} }}
batch = 64
grain = 8
steps = 12
"""
IMAGES = f"""[data]
train = {{ image = "{DATA}/fashion/train-images-idx3-ubyte.gz", label = "{DATA}/fashion/train-labels-idx1-ubyte.gz" }}
label = "label"
"""
CONVOLUTIONS = IMAGES + f"""shape = [28, 28, 1]
[model]
layers = ["conv2d 32 3 relu padding=same", {", ".join(['"conv2d 32 3 relu padding=same"'] * 8)}, "max_pool 4", "flatten", "dense 10"]
[train]
loss = "cross_entropy"
optimizer = {{ adam = {{ rate = 0.001 }} }}
batch = 64
grain = 8
steps = 12
"""
WIDE = IMAGES + """[model]
layers = ["dense 2048 relu", "dense 2048 relu", "dense 2048 relu", "dense 2048 relu", "dense 10"]
[train]
loss = "cross_entropy"
optimizer = { sgd = { rate = 0.05, momentum = 0.9 } }
batch = 512
grain = 64
steps = 12
"""
JOBS = {"transformer": TRANSFORMER, "cnn": CONVOLUTIONS, "wide": WIDE}

ONE = ["--workers", 1]
TWO = ["--workers", 2, "--processes"]


def mesh(*settings, processes=True):
    said = [part for setting in settings for part in ("--set", f"distribute.{setting}")]
    return ["--workers", 2, *(["--processes"] if processes else []), *said]


# name: job, ours, the other's (None: PyTorch, by a word), must, aim
CASES = {
    "transformer, pipeline of 2 processes, against one": ("transformer", mesh("strategy=pipeline"), ONE, 1.5, 1.7),
    "transformer, pipeline of 2 threads, against one": ("transformer", mesh("strategy=pipeline", processes=False), ONE, 1.5, 1.7),
    "cnn, pipeline of 2 processes, against one": ("cnn", mesh("strategy=pipeline"), ONE, 1.5, 1.7),
    "cnn, pipeline of 2 threads, against one": ("cnn", mesh("strategy=pipeline", processes=False), ONE, 1.5, 1.7),
    "transformer, sharded level 1, against all_reduce": ("transformer", mesh("strategy=sharded", "level=1"), TWO, 0.9, None),
    "transformer, sharded level 2, against all_reduce": ("transformer", mesh("strategy=sharded", "level=2"), TWO, 0.9, None),
    "transformer, sharded level 3, against all_reduce": ("transformer", mesh("strategy=sharded", "level=3"), TWO, 0.75, None),
    "wide, tensor over shared memory, against one": ("wide", mesh("strategy=tensor"), ONE, 1.5, None),
    "transformer, pipeline, against PyTorch's": ("transformer", mesh("strategy=pipeline"), "pipeline", None, None),
    "transformer, sharded level 3, against FSDP2": ("transformer", mesh("strategy=sharded", "level=3"), "fsdp", None, None),
}


def ours(job, arguments, folder):
    """Samples per second of training steps, and what stands for the model."""
    path, out = Path(folder) / f"{job}.toml", Path(folder) / "out"
    path.write_text(JOBS[job])
    command = [manyhands, "train", path, "--out", out, "--overwrite", "--threads", 1, *arguments]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} failed:\n{done.stdout}{done.stderr}")
    report = json.loads((out / "report.json").read_text())
    return report["samples"] / report["seconds"]["compute"], hashlib.sha256((out / "model.safetensors").read_bytes()).hexdigest()


def torch(kind):
    out = subprocess.run([python, root / "bench/peers/torch_mesh.py", kind], capture_output=True, text=True)
    found = re.search(r" samples/s=([\d.]+)", out.stdout)
    if not found:
        sys.exit(f"torch_mesh.py {kind} failed:\n{out.stdout}{out.stderr[-2000:]}")
    return float(found.group(1))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="")
    parser.add_argument("--json")
    arguments = parser.parse_args()
    subprocess.run(["cargo", "build", "--release", "-q", "-p", "manyhands-cli"], cwd=root, check=True)
    wanted = [part.strip() for part in arguments.only.split(",") if part.strip()]
    rows = []
    print(f"{'case':52} {'ours/s':>9} {'other/s':>9} {'ratio':>6} {'median':>6} {'must':>5} {'aim':>5}")
    for name, (job, mine, theirs, must, aim) in CASES.items():
        if wanted and not any(part in name for part in wanted):
            continue
        if isinstance(theirs, str) and not python.exists():
            print(f"{name:52} PyTorch is not installed: run bench/peers/setup first")
            continue
        rates, others = [], []
        with tempfile.TemporaryDirectory() as folder:
            for _ in range(arguments.rounds):
                rate, model = ours(job, mine, folder)
                rates.append(rate)
                if isinstance(theirs, str):
                    others.append(torch(theirs))
                    continue
                rate, same = ours(job, theirs, folder)
                others.append(rate)
                if model != same and "tensor" not in name:
                    sys.exit(f"{name}: another model than the other way gives")
        ratio, median = max(rates) / max(others), statistics.median(rates) / statistics.median(others)
        verdict = "" if must is None else "aim" if aim and ratio >= aim else "must" if ratio >= must else "MISS"
        print(f"{name:52} {max(rates):9.1f} {max(others):9.1f} {ratio:6.2f} {median:6.2f} {must or '':>5} {aim or '':>5} {verdict}", flush=True)
        rows.append({"case": name, "ours": rates, "other": others, "ratio": ratio, "median_ratio": median})
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(rows, indent=1))


main()
