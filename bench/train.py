#!/usr/bin/env python3
"""Training steps beside PyTorch, interleaved in one run: prints samples per second of both and their ratio.

usage: bench/train.py [--rounds N] [--only NAME[,NAME]] [--json FILE]

Needs bench/peers/setup to have run, and a quiet machine. The best of the rounds counts for both sides (machines are
shared, so the best is the least disturbed). Every case with two threads or workers comes with the core-to-core time
before and after, without which it says little."""
import argparse, json, os, re, subprocess, sys
from pathlib import Path

root = Path(__file__).resolve().parent.parent
peers = Path(os.environ.get("PEERS", Path.home() / ".cache/manyhands-peers"))
python = peers / "torch/bin/python"
target = Path(os.environ.get("CARGO_TARGET_DIR", root / "target"))

# name: our arguments, the peer's (None: another row of ours), must, aim
CASES = {
    "mlp 1 thread": (["mlp", 1, 1], ["train", "mlp", 1], 1.1, 1.25),
    "mlp 2 threads": (["mlp", 2, 1], ["train", "mlp", 2], 1.1, 1.4),
    "lm 1 thread": (["lm", 1, 1], ["train", "lm", 1], 1.0, 1.2),
    "lm 2 threads": (["lm", 2, 1], ["train", "lm", 2], 1.1, 1.4),
    "cnn 1 thread": (["cnn", 1, 1], ["train", "cnn", 1], 1.3, 1.7),
    "cnn 2 threads": (["cnn", 2, 1], ["train", "cnn", 2], 1.3, 1.8),
    "tiny 1 thread": (["tiny", 1, 1], ["train", "tiny", 1], 10, 20),
    "mlp 2 workers, against DDP": (["mlp", 1, 2], ["ddp"], 1.8, 2.4),
    "mlp 2 workers, against 1": (["mlp", 1, 2], ["ours", "mlp", 1, 1], 1.7, 1.95),
    "cnn 2 workers, against 1": (["cnn", 1, 2], ["ours", "cnn", 1, 1], 1.8, 1.95),
    "mlp in 4 grains, against 1": (["mlp", 1, 1, 32], ["ours", "mlp", 1, 1], 0.92, 0.98),
}


def ours(case, threads, workers, grain=None):
    command = [target / "release/manyhands", "bench", "train", "--case", case, "--threads", str(threads),
               "--workers", str(workers), "--json"]
    command += ["--grain", str(grain)] if grain else []
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def torch(case, threads):
    iterations = {"tiny": 200, "mlp": 20}.get(case, 10)
    out = subprocess.run([python, root / "bench/peers/torch_train.py", "cpu", case, f"threads={threads}", f"iters={iterations}"],
                         check=True, capture_output=True, text=True).stdout
    return float(re.search(r"samples/s ([\d.]+)", out).group(1))


def ddp():
    """The mean over the run; our side counts with its median group there, not with its best."""
    out = subprocess.run([python, root / "bench/peers/torch_mlp.py", "ddp"], check=True, capture_output=True, text=True).stdout
    return float(re.search(r" samples/s=([\d.]+)", out).group(1))


def peer(kind, *rest):
    if kind == "ours":
        return ours(*rest)["samples_per_second"]
    return torch(*rest) if kind == "train" else ddp()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="")
    parser.add_argument("--json")
    arguments = parser.parse_args()
    if not python.exists():
        sys.exit("PyTorch is not installed: run bench/peers/setup first")
    subprocess.run(["cargo", "build", "--release", "-q", "-p", "manyhands-cli"], cwd=root, check=True)
    wanted = [part.strip() for part in arguments.only.split(",") if part.strip()]
    rows = []
    print(f"{'case':28} {'ours/s':>10} {'peer/s':>10} {'ratio':>6} {'must':>5} {'aim':>5}  core to core, ns")
    for name, (mine, theirs, must, aim) in CASES.items():
        if wanted and not any(part in name for part in wanted):
            continue
        best, best_peer, probes = 0.0, 0.0, []
        for _ in range(arguments.rounds):
            report = ours(*mine)
            median = theirs == ["ddp"]
            rate = report["samples_per_second"] * (report["ms_per_step"] / report["median_ms_per_step"] if median else 1)
            best = max(best, rate)
            best_peer = max(best_peer, peer(*theirs))
            probes += report.get("core_to_core_ns", [])
        ratio = best / best_peer
        near = f"{min(probes):.0f} to {max(probes):.0f}" if probes else ""
        verdict = "aim" if ratio >= aim else "must" if ratio >= must else "MISS"
        print(f"{name:28} {best:10.1f} {best_peer:10.1f} {ratio:6.2f} {must:5} {aim:5}  {near:12} {verdict}", flush=True)
        rows.append({"case": name, "ours": best, "peer": best_peer, "ratio": ratio, "core_to_core_ns": probes})
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(rows, indent=1))


main()
