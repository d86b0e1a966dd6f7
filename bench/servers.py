#!/usr/bin/env python3
"""Training with parameters on servers beside training by all-reduce: how much longer a step takes under BSP, interleaved in one run.

usage: bench/servers.py [--rounds N] [--only TEXT[,TEXT]] [--data FOLDER] [--json FILE]

Every run is the real `manyhands train` of the MLP of bench/scaling.py, on two processes of one thread each, with all weights on servers, which are processes beside them, or
with none. The models must be equal byte for byte. The rate is that of all epochs but the first; the best of the rounds counts for both sides, the ratio of the
medians is printed beside it. Needs a quiet machine: servers share the cores with the workers."""
import argparse, hashlib, json, os, re, statistics, subprocess, sys, tempfile
from pathlib import Path

root = Path(__file__).resolve().parent.parent
target = Path(os.environ.get("CARGO_TARGET_DIR", root / "target"))
manyhands = target / "release/manyhands"
SHIPPED = root / "examples/data/fashion"

JOB = """[data]
train = {{ image = "{data}/train-images-idx3-ubyte.gz", label = "{data}/train-labels-idx1-ubyte.gz" }}
label = "label"
[model]
layers = ["dense 512 relu", "dense 512 relu", "dense 10"]
[train]
loss = "cross_entropy"
optimizer = {{ {optimizer} }}
batch = 256
grain = 128
epochs = {epochs}
"""
SGD = "sgd = { rate = 0.05, momentum = 0.9 }"
ADAM = "adam = { rate = 0.001 }"

# name: optimizer, transport, servers. How many times as long as by all-reduce it may take is the aim of all of them.
CASES = {
    "1 server, shared memory": (SGD, "auto", 1),
    "2 servers, shared memory": (SGD, "auto", 2),
    "1 server, tcp": (SGD, "tcp", 1),
    "2 servers, tcp": (SGD, "tcp", 2),
    "adam, 2 servers, shared memory": (ADAM, "auto", 2),
}
AIM = 1.3


def train(optimizer, transport, n_servers, folder, data):
    """Samples per second of all epochs but the first, and what stands for the model."""
    path, epochs = Path(folder) / "mlp.toml", 12 if data == SHIPPED else 3
    path.write_text(JOB.format(data=data, epochs=epochs, optimizer=optimizer))
    on_servers = ["--set", "distribute.strategy=parameter_server", "--set", f"distribute.servers={n_servers}", "--set", "distribute.replication=1",
                  "--set", 'distribute.tables={parameters = "all"}']
    command = [manyhands, "train", path, "--out", Path(folder) / "out", "--overwrite", "--processes", "--workers", 2, "--threads", 1, "--transport", transport]
    command += on_servers if n_servers else []
    said = subprocess.run([str(part) for part in command], check=True, capture_output=True, text=True)
    rates = [float(rate.replace(",", "")) for rate in re.findall(r"^epoch .* ([\d,.]+) samples/s$", said.stdout + said.stderr, re.M)]
    assert len(rates) == epochs, said.stdout + said.stderr
    model = hashlib.sha256((Path(folder) / "out/model.safetensors").read_bytes()).hexdigest()
    return statistics.harmonic_mean(rates[1:]), model


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="")
    parser.add_argument("--data", type=Path, default=SHIPPED)
    parser.add_argument("--json")
    arguments = parser.parse_args()
    if not manyhands.exists():
        sys.exit(f"{manyhands} is not there: cargo build --release")
    wanted = [part.strip() for part in arguments.only.split(",") if part.strip()]
    rows = []
    print(f"{'case':32} {'all-reduce/s':>12} {'servers/s':>10} {'times':>6} {'median':>6} {'aim':>5}")
    for name, (optimizer, transport, n_servers) in CASES.items():
        if wanted and not any(part in name for part in wanted):
            continue
        rates = {0: [], n_servers: []}
        with tempfile.TemporaryDirectory() as folder:
            for _ in range(arguments.rounds):
                models = set()
                for n in rates:
                    rate, model = train(optimizer, transport, n, folder, arguments.data.absolute())
                    rates[n].append(rate)
                    models.add(model)
                if len(models) > 1:
                    sys.exit(f"{name}: servers make another model")
        without, with_servers = rates[0], rates[n_servers]
        times = max(without) / max(with_servers)
        median = statistics.median(without) / statistics.median(with_servers)
        verdict = "aim" if times <= AIM else "MISS"
        print(f"{name:32} {max(without):12.0f} {max(with_servers):10.0f} {times:6.2f} {median:6.2f} {AIM:5} {verdict}", flush=True)
        rows.append({"case": name, "all_reduce": without, "servers": with_servers, "times": times, "median_times": median})
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(rows, indent=1))


main()
