#!/usr/bin/env python3
"""Reading a table beside pyarrow, interleaved in one run: prints the seconds of both and their ratio (above 1: we are faster).

usage: bench/read.py [--rounds N] [--rows N] [--only NAME[,NAME]] [--json FILE]

Both sides read the whole file into columns in memory, with the same number of threads. Needs pyarrow and numpy in
~/.cache/manyhands-peers/ml (or $PEERS/ml): python3 -m venv DIR && DIR/bin/pip install pyarrow numpy. The data is made once,
from a seed, in the data folder beside it. The best of the rounds counts for both sides (machines are shared, so the best is
the least disturbed)."""
import argparse, json, os, subprocess, sys
from pathlib import Path

root = Path(__file__).resolve().parent.parent
peers = Path(os.environ.get("PEERS", Path.home() / ".cache/manyhands-peers"))
python = peers / "ml/bin/python"
target = Path(os.environ.get("CARGO_TARGET_DIR", root / "target"))

MAKE = """
import sys, numpy as np, pyarrow as pa, pyarrow.csv as csv, pyarrow.parquet as parquet
folder, n_rows = sys.argv[1], int(sys.argv[2])
def save(name, columns):
    table = pa.table(columns)
    csv.write_csv(table, f"{folder}/{name}.csv")
    parquet.write_table(table, f"{folder}/{name}.parquet")
r = np.random.default_rng(1)
x = r.standard_normal((n_rows, 20)).round(6)
y = (x @ r.standard_normal(20) + 0.7 + 0.5 * r.standard_normal(n_rows)).round(6)
save("numbers", {f"x{i}": x[:, i] for i in range(20)} | {"y": y})
save("precise", {f"x{i}": r.standard_normal(n_rows // 4) for i in range(20)})
words = np.array(["Private", "State-gov", "Never-married", "Adm-clerical", "United-States", "Bachelors, honours"])
mixed = {f"w{i}": words[r.integers(0, len(words), n_rows // 2)] for i in range(6)}
save("mixed", mixed | {f"n{i}": r.integers(0, 10 ** (i + 1), n_rows // 2) for i in range(6)})
"""

PEER = """
import sys, time, pyarrow as pa, pyarrow.csv as csv, pyarrow.parquet as parquet
path, n_threads = sys.argv[1], int(sys.argv[2])
pa.set_cpu_count(n_threads)
start = time.perf_counter()
if path.endswith(".csv"):
    table = csv.read_csv(path, read_options=csv.ReadOptions(use_threads=n_threads > 1))
else:
    table = parquet.read_table(path, use_threads=n_threads > 1)
print(time.perf_counter() - start, table.num_rows)
"""

# name: file, threads
CASES = {
    f"{name} {kind}, {threads} thread{'s' * (threads > 1)}": (f"{name}.{kind}", threads)
    for kind in ("csv", "parquet") for name in ("numbers", "precise", "mixed") for threads in (1, 2)
}


def ours(path, threads):
    command = [target / "release/examples/read_file", path, str(threads)]
    report = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return report["seconds"], report["rows"]


def peer(path, threads):
    out = subprocess.run([python, "-c", PEER, path, str(threads)], check=True, capture_output=True, text=True).stdout
    seconds, n_rows = out.split()
    return float(seconds), int(n_rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--only", default="")
    parser.add_argument("--json")
    arguments = parser.parse_args()
    if not python.exists():
        sys.exit(f"pyarrow is not installed: python3 -m venv {peers / 'ml'} && {peers / 'ml/bin/pip'} install pyarrow numpy")
    data = peers / f"data/read-{arguments.rows}"
    if not (data / "mixed.parquet").exists():
        data.mkdir(parents=True, exist_ok=True)
        subprocess.run([python, "-c", MAKE, data, str(arguments.rows)], check=True)
    build = ["cargo", "build", "--release", "-q", "-p", "manyhands-data", "--example", "read_file"]
    subprocess.run(build, cwd=root, check=True)
    wanted = [part.strip() for part in arguments.only.split(",") if part.strip()]
    rows = []
    print(f"{'case':28} {'ours s':>8} {'pyarrow s':>9} {'ratio':>6}")
    for name, (file, threads) in CASES.items():
        if wanted and not any(part in name for part in wanted):
            continue
        best, best_peer = float("inf"), float("inf")
        for _ in range(arguments.rounds):
            seconds, n_rows = ours(data / file, threads)
            seconds_peer, n_rows_peer = peer(data / file, threads)
            if n_rows != n_rows_peer:
                sys.exit(f"{file}: {n_rows} rows, pyarrow reads {n_rows_peer}")
            best, best_peer = min(best, seconds), min(best_peer, seconds_peer)
        print(f"{name:28} {best:8.3f} {best_peer:9.3f} {best_peer / best:6.2f}", flush=True)
        rows.append({"case": name, "ours": best, "peer": best_peer, "ratio": best_peer / best})
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(rows, indent=1))


main()
