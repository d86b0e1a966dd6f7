#!/usr/bin/env python3
"""All-reduce in tree order beside gloo and OpenMPI, interleaved in one run: prints the times of both and how many times faster ours is.

usage: bench/collectives.py [--rounds N] [--only TEXT[,TEXT]] [--json FILE]

Needs bench/peers/setup to have run (PyTorch brings gloo), OpenMPI with its compiler (Debian: openmpi-bin, libopenmpi-dev), and a quiet machine.
Each round runs ours and the peer one after the other; the best round of each side counts, since machines are shared and the best is the
least disturbed. Ratios are those of the median and of the mean call of a round (gloo's calls differ a lot); the smaller one must reach the goal. "of limit" is
the rate at which each rank sends (2 (n - 1) / n of the bytes) against one loopback TCP stream (26.7 Gbit/s) or a memcpy (10 GB/s)."""
import argparse, json, os, subprocess, sys, tempfile
from pathlib import Path

root = Path(__file__).resolve().parent.parent
peers = Path(os.environ.get("PEERS", Path.home() / ".cache/manyhands-peers"))
python = peers / "torch/bin/python"
target = Path(os.environ.get("CARGO_TARGET_DIR", root / "target"))
K, M = 1 << 10, 1 << 20
LIMITS = {"tcp": 26.7 / 8, "tcp_encrypted": 26.7 / 8, "shm": 10.0}  # GB/s

# our transport, the peer, processes: bytes to must and aim (how many times faster than the peer)
CASES = [
    ("tcp", "gloo", 2, {4 * K: (10, 30), 64 * K: (10, 30), M: (3, 6), 16 * M: (1.3, 1.8), 64 * M: (1.3, 1.8)}),
    ("tcp", "openmpi tcp", 2, {16 * M: (1.0, 1.5), 64 * M: (1.0, 1.5)}),
    ("tcp", "openmpi tcp", 4, {16 * M: (1.0, 1.5), 64 * M: (1.0, 1.5)}),
    ("shm", "openmpi shm", 2, {4 * K: (0.3, 1), M: (0.8, 1.2), 16 * M: (1.0, 1.4), 64 * M: (1.5, 2.5)}),
    ("tcp_encrypted", "ours tcp", 2, {16 * M: (0, 0.5)}),
]


def rows(command, **variables):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, env={**os.environ, **variables})
    if done.returncode != 0:
        sys.exit(f"{command[0]} failed:\n{done.stderr}")
    lines = [line for line in done.stdout.splitlines() if line.startswith(("{", "["))]
    found = json.loads(lines[0]) if lines[0].startswith("[") else [json.loads(line) for line in lines]
    return {row["n_bytes"]: row for row in found}


def ours(transport, n, sizes):
    sizes = ",".join(map(str, sizes))
    return rows([target / "release/examples/collective_speed", "--transport", transport, "--processes", n, "--sizes", sizes,
                 "--algorithm", "direct", "--json"])


def openmpi(program, n, sizes, over_tcp):
    over = ["--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", "lo"] if over_tcp else []
    return rows(["mpirun", "--oversubscribe", "-n", n, *over, program, *sizes],
                OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")


def peer(name, program, n, sizes):
    if name == "gloo":
        return rows([python, root / "bench/peers/gloo_allreduce.py", n, ",".join(map(str, sizes))])
    if name.startswith("ours"):
        return ours(name.split()[1], n, sizes)
    return openmpi(program, n, sizes, name.endswith("tcp"))


def keep_best(best, found):
    for n_bytes, row in found.items():
        known = best.setdefault(n_bytes, row)
        best[n_bytes] = {key: min(known[key], row[key]) for key in ("median_us", "mean_us", "best_us")}


def show(n_bytes):
    return f"{n_bytes // M} MiB" if n_bytes >= M else f"{n_bytes // K} KiB"


def measure(case, program, n_rounds):
    transport, name, n, sizes = case
    mine, theirs = {}, {}
    for _ in range(n_rounds):
        keep_best(mine, ours(transport, n, sizes))
        keep_best(theirs, peer(name, program, n, sizes))
    for n_bytes, (must, aim) in sizes.items():
        us, peer_us = mine[n_bytes]["median_us"], theirs[n_bytes]["median_us"]
        ratio, mean_ratio = peer_us / us, theirs[n_bytes]["mean_us"] / mine[n_bytes]["mean_us"]
        of_limit = 2 * (n - 1) / n * n_bytes / us / 1e3 / LIMITS[transport]
        reached = min(ratio, mean_ratio)
        verdict = "aim" if reached >= aim else "must" if reached >= must else "MISS"
        print(f"{transport:14} {name:12} {n:2} {show(n_bytes):>7} {us:11.1f} {peer_us:11.1f} {ratio:7.2f} {mean_ratio:7.2f} "
              f"{must:5} {aim:5} {of_limit:8.0%}  {verdict}", flush=True)
        yield {"transport": transport, "peer": name, "n_processes": n, "n_bytes": n_bytes, "ours": mine[n_bytes], "theirs": theirs[n_bytes],
               "ratio": ratio, "ratio_of_means": mean_ratio, "must": must, "aim": aim, "of_limit": of_limit}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="")
    parser.add_argument("--json")
    arguments = parser.parse_args()
    if not python.exists():
        sys.exit("PyTorch is not installed: run bench/peers/setup first")
    subprocess.run(["cargo", "build", "--release", "-q", "-p", "manyhands-net", "--example", "collective_speed"], cwd=root, check=True)
    wanted = [part.strip() for part in arguments.only.split(",") if part.strip()]
    found = []
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "mpi_allreduce"
        subprocess.run(["mpicc", "-O3", "-o", program, root / "bench/peers/mpi_allreduce.c"], check=True)
        print(f"{'ours':14} {'peer':12} {'n':>2} {'bytes':>7} {'ours us':>11} {'peer us':>11} {'ratio':>7} {'means':>7} {'must':>5} "
              f"{'aim':>5} {'of limit':>8}")
        for case in CASES:
            if not wanted or any(part in f"{case[0]} {case[1]}" for part in wanted):
                found += measure(case, program, arguments.rounds)
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(found, indent=1))


main()
