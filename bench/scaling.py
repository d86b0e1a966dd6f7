#!/usr/bin/env python3
"""Training on two processes beside one, and beside PyTorch's DistributedDataParallel over gloo, interleaved in one run.

usage: bench/scaling.py [--rounds N] [--only TEXT[,TEXT]] [--data FOLDER] [--json FILE]

Every run is the real `manyhands train` on the pictures that ship with the examples, or on all of Fashion-MNIST (`--data` with its
four files; an epoch of the small one has 39 steps only): inputs, exchange, update and all. The same job runs
on one process and on two (one thread each), and the models must be equal byte for byte. The rate is that of all epochs but the first, in which memory is
touched and workers come together; what is done between epochs is not in it. The best of the rounds counts for both sides (machines are shared, so the best is the least disturbed), the
median is printed beside it, and the core-to-core times, without which a number with two processes says little: cores of virtual machines are near each other or far, and change by themselves.
They are measured before and after each round, and `near` is the median of the rounds in which they stayed near. Needs a quiet machine; DDP needs bench/peers/setup to have run."""
import argparse, hashlib, json, os, re, statistics, subprocess, sys, tempfile
from pathlib import Path

root = Path(__file__).resolve().parent.parent
peers = Path(os.environ.get("PEERS", Path.home() / ".cache/manyhands-peers"))
python = peers / "torch/bin/python"
target = Path(os.environ.get("CARGO_TARGET_DIR", root / "target"))
manyhands = target / "release/manyhands"

SHIPPED = root / "examples/data/fashion"

DATA = """[data]
train = {{ image = "{data}/train-images-idx3-ubyte.gz", label = "{data}/train-labels-idx1-ubyte.gz" }}
label = "label"
{shape}
"""
# 128 samples a process for the MLP and 64 for the CNN, as the peers do it.
JOBS = {
    "mlp": DATA.replace("{shape}\n", "") + """
[model]
layers = ["dense 512 relu", "dense 512 relu", "dense 10"]
[train]
loss = "cross_entropy"
optimizer = {{ sgd = {{ rate = 0.05, momentum = 0.9 }} }}
batch = 256
grain = 128
epochs = {epochs}
""",
    "cnn": DATA.replace("{shape}", "shape = [28, 28, 1]") + """
[model]
layers = ["conv2d 32 3 relu", "conv2d 64 3 relu", "max_pool 2", "flatten", "dense 128 relu", "dense 10"]
[train]
loss = "cross_entropy"
optimizer = {{ adam = {{ rate = 0.001 }} }}
batch = 128
grain = 64
epochs = {epochs}
""",
}
SHARED = ["--processes", "--workers", 2, "--threads", 1, "--transport", "auto"]
TCP = ["--processes", "--workers", 2, "--threads", 1, "--transport", "tcp"]
ONE = ["--workers", 1, "--threads", 1]
NEAR = 100  # nanoseconds

# name: our job and arguments, the peer's (None: DDP), must, aim
CASES = {
    "mlp 2 processes, shared memory, against 1": ("mlp", SHARED, ONE, 1.65, 1.9),
    "cnn 2 processes, shared memory, against 1": ("cnn", SHARED, ONE, 1.8, 1.95),
    "mlp 2 processes, shared memory, against DDP": ("mlp", SHARED, None, 1.7, 2.1),
    "mlp 2 processes, tcp, against DDP": ("mlp", TCP, None, 1.5, 1.9),
}


def core_to_core():
    """Nanoseconds of a ping-pong between the two cores, which are near or far, and change by themselves."""
    out = subprocess.run([manyhands, "bench", "train", "--case", "tiny", "--workers", "2", "--json"], check=True, capture_output=True, text=True)
    return json.loads(out.stdout).get("core_to_core_ns", [])


def ours(job, arguments, folder, data):
    """Samples per second of all epochs but the first, and what stands for the model."""
    path = Path(folder) / f"{job}.toml"
    # The CNN has long steps, so that few are enough.
    data, epochs = (SHIPPED, 3) if job == "cnn" else (data, 16 if data == SHIPPED else 4)
    path.write_text(JOBS[job].format(data=data, epochs=epochs))
    command = [manyhands, "train", path, "--out", Path(folder) / "out", "--overwrite", *arguments]
    said = subprocess.run([str(part) for part in command], check=True, capture_output=True, text=True)
    rates = [float(rate.replace(",", "")) for rate in re.findall(r"^epoch .* ([\d,.]+) samples/s$", said.stdout + said.stderr, re.M)]
    assert len(rates) == epochs, said.stdout + said.stderr
    model = hashlib.sha256((Path(folder) / "out/model.safetensors").read_bytes()).hexdigest()
    return statistics.harmonic_mean(rates[1:]), model


def ddp():
    out = subprocess.run([python, root / "bench/peers/torch_mlp.py", "ddp"], check=True, capture_output=True, text=True).stdout
    return float(re.search(r" samples/s=([\d.]+)", out).group(1))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="")
    parser.add_argument("--data", type=Path, default=SHIPPED)
    parser.add_argument("--json")
    arguments = parser.parse_args()
    subprocess.run(["cargo", "build", "--release", "-q", "-p", "manyhands-cli"], cwd=root, check=True)
    wanted = [part.strip() for part in arguments.only.split(",") if part.strip()]
    rows = []
    print(f"{'case':44} {'ours/s':>9} {'peer/s':>9} {'ratio':>6} {'median':>6} {'near':>6} {'rounds':>6} {'must':>5} {'aim':>5}  core to core, ns")
    for name, (job, mine, theirs, must, aim) in CASES.items():
        if wanted and not any(part in name for part in wanted):
            continue
        if theirs is None and not python.exists():
            print(f"{name:44} PyTorch is not installed: run bench/peers/setup first")
            continue
        rates, peer_rates, probes = [], [], [core_to_core()]
        with tempfile.TemporaryDirectory() as folder:
            for _ in range(arguments.rounds):
                rate, model = ours(job, mine, folder, arguments.data.absolute())
                rates.append(rate)
                if theirs is None:
                    peer_rates.append(ddp())
                else:
                    rate, same = ours(job, theirs, folder, arguments.data.absolute())
                    peer_rates.append(rate)
                    if model != same:
                        sys.exit(f"{name}: two processes give another model than one")
                probes.append(core_to_core())
        ratio = max(rates) / max(peer_rates)
        median = statistics.median(rates) / statistics.median(peer_rates)
        near = [idx for idx in range(arguments.rounds) if max(probes[idx] + probes[idx + 1], default=0) <= NEAR]
        of_near = statistics.median(rates[idx] / peer_rates[idx] for idx in near) if near else None
        all_probes = sum(probes, [])
        times = f"{min(all_probes):.0f} to {max(all_probes):.0f}" if all_probes else ""
        best = max(ratio, of_near or 0)
        verdict = "aim" if best >= aim else "must" if best >= must else "MISS"
        print(f"{name:44} {max(rates):9.0f} {max(peer_rates):9.0f} {ratio:6.2f} {median:6.2f} {of_near or 0:6.2f} {len(near):6} {must:5} {aim:5}  {times:12} {verdict}", flush=True)
        rows.append({"case": name, "ours": rates, "peer": peer_rates, "ratio": ratio, "median_ratio": median, "near_ratio": of_near, "n_near": len(near), "core_to_core_ns": probes})
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(rows, indent=1))


main()
