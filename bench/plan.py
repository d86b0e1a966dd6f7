#!/usr/bin/env python3
"""What `manyhands plan` predicts for a step beside what training takes, for the models of `bench train` on one and two workers of one thread each.

usage: bench/plan.py [--rounds N] [--only TEXT[,TEXT]] [--json FILE]

Jobs are made on data that ships with the examples: an MLP, a CNN of two convolutions, a language model of two blocks, each with 8 grains a step. Every round plans once and trains
once with each strategy, so that a busy machine disturbs both alike; the medians are compared. A prediction within 25 % is good. Needs a quiet machine."""
import argparse, json, os, statistics, subprocess, sys, tempfile
from pathlib import Path

root = Path(__file__).resolve().parent.parent
target = Path(os.environ.get("CARGO_TARGET_DIR", root / "target"))
manyhands = target / "release/manyhands"
DATA = root / "examples/data"

IMAGES = f"""[data]
train = {{ image = "{DATA}/fashion/train-images-idx3-ubyte.gz", label = "{DATA}/fashion/train-labels-idx1-ubyte.gz" }}
label = "label"
"""
JOBS = {
    "mlp": (400, IMAGES + """[model]
layers = ["dense 512 relu", "dense 512 relu", "dense 10"]
[train]
loss = "cross_entropy"
optimizer = { sgd = { rate = 0.01, momentum = 0.9 } }
batch = 128
grain = 16
"""),
    "cnn": (40, IMAGES + """shape = [28, 28, 1]
[model]
layers = ["conv2d 32 3 relu", "conv2d 64 3 relu", "max_pool 2", "flatten", "dense 128 relu", "dense 10"]
[train]
loss = "cross_entropy"
optimizer = { adam = { rate = 0.001 } }
batch = 64
grain = 8
"""),
    "lm": (40, f"""[data]
train = "{DATA}/shakespeare.txt.gz"
text = {{ unit = "characters", length = 128 }}
[model]
layers = ["embedding 256", "position_embedding", "transformer 4 causal=true", "transformer 4 causal=true", "layer_norm", "dense 73"]
[train]
loss = "cross_entropy"
optimizer = {{ adam = {{ rate = 0.001 }} }}
batch = 8
grain = 1
"""),
}
# As the planner calls it: workers and settings.
STRATEGIES = {
    "one worker": (1, []),
    "all_reduce x 2": (2, []),
    "pipeline x 2": (2, ["strategy=pipeline"]),
    "sharded 1 x 2": (2, ["strategy=sharded", "level=1"]),
    "sharded 2 x 2": (2, ["strategy=sharded", "level=2"]),
    "sharded 3 x 2": (2, ["strategy=sharded", "level=3"]),
}
WITHIN = 0.25


def run(*command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def predicted(path):
    """Milliseconds of a step by strategy."""
    plan = json.loads(run(manyhands, "plan", path, "--workers", 2, "--json", "--set", "distribute.threads=1"))
    return {one["candidate"]["name"]: one["seconds"] * 1e3 for one in plan["predictions"]}


def measured(path, folder, strategy, steps):
    """The mean over steps, in milliseconds."""
    workers, settings = STRATEGIES[strategy]
    said = [part for setting in settings for part in ("--set", f"distribute.{setting}")]
    out = Path(folder) / "out"
    run(manyhands, "train", path, "--out", out, "--overwrite", "--threads", 1, "--workers", workers, "--set", f"train.steps={steps}", *said)
    report = json.loads((out / "report.json").read_text())
    return report["seconds"]["compute"] / report["steps"] * 1e3


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="")
    parser.add_argument("--json")
    arguments = parser.parse_args()
    subprocess.run(["cargo", "build", "--release", "-q", "-p", "manyhands-cli"], cwd=root, check=True)
    wanted = [part.strip() for part in arguments.only.split(",") if part.strip()]
    rows = []
    print(f"{'model, strategy':28} {'predicted':>10} {'measured':>10} {'off':>7}")
    with tempfile.TemporaryDirectory() as folder:
        for job, (steps, text) in JOBS.items():
            names = [name for name in STRATEGIES if not wanted or any(part in f"{job}, {name}" for part in wanted)]
            if not names:
                continue
            path = Path(folder) / f"{job}.toml"
            path.write_text(text)
            said, took = {name: [] for name in names}, {name: [] for name in names}
            for _ in range(arguments.rounds):
                predictions = predicted(path)
                for name in names:
                    said[name].append(predictions[name])
                    took[name].append(measured(path, folder, name, steps))
            for name in names:
                own, real = statistics.median(said[name]), statistics.median(took[name])
                off = own / real - 1
                verdict = "" if abs(off) <= WITHIN else "MISS"
                print(f"{job + ', ' + name:28} {own:7.2f} ms {real:7.2f} ms {off:+7.0%} {verdict}", flush=True)
                rows.append({"model": job, "strategy": name, "predicted_ms": said[name], "measured_ms": took[name], "off": off})
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(rows, indent=1))


main()
