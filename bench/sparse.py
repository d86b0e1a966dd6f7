#!/usr/bin/env python3
"""Sparse models beside scikit-learn's logistic regression: prints the test AUC of both and the difference (ours less theirs).

usage: bench/sparse.py DATA [--consistency bsp|ssp|adaptive|async] [--json FILE]

DATA is a folder with agaricus_{train,test}.libsvm.gz and higgs_{train,test}.csv.gz. Needs scikit-learn in
~/.cache/manyhands-peers/ml (or $PEERS/ml): python3 -m venv DIR && DIR/bin/pip install scikit-learn. One setting of ftrl
serves all: of five tried on higgs, that which comes to scikit-learn's loss on the training data in the fewest steps. With
--consistency, tables live on two servers row by row, and two worker processes train."""
import argparse, json, os, subprocess, sys, tempfile, time
from pathlib import Path

root = Path(__file__).resolve().parent.parent
peers = Path(os.environ.get("PEERS", Path.home() / ".cache/manyhands-peers"))
python = peers / "ml/bin/python"
target = Path(os.environ.get("CARGO_TARGET_DIR", root / "target"))

TRAIN = """
[train]
loss = "binary_cross_entropy"
optimizer = {{ ftrl = {{ rate = {rate}, l1 = {l1} }} }}
schedule = "cosine"
batch = 256
epochs = {epochs}
metrics = ["auc"]
"""

# name: data, layer, epochs, rate, l1, least AUC or most below the peer's
CASES = {
    "agaricus, linear": ('train = "{data}/agaricus_train.libsvm.gz"\ntest = "{data}/agaricus_test.libsvm.gz"',
                         "sparse_linear 1", 20, 1.0, 0.0, ("at least", 0.999)),
    "agaricus, hashed, l1": ('train = "{data}/agaricus_train.libsvm.gz"\ntest = "{data}/agaricus_test.libsvm.gz"\n'
                             'hash = {{ bits = 20 }}', "sparse_linear 1", 20, 1.0, 0.1, ("at least", 0.999)),
    "agaricus, factorization machine": ('train = "{data}/agaricus_train.libsvm.gz"\n'
                                        'test = "{data}/agaricus_test.libsvm.gz"', "factorization_machine 8", 20, 1.0, 0.0,
                                        ("at least", 0.999)),
    "higgs, linear over hashed columns": ('train = "{data}/higgs_train.csv.gz"\ntest = "{data}/higgs_test.csv.gz"\n'
                                          'label = "label"\nhash = {{ bits = 16 }}', "sparse_linear 1", 20, 1.0, 0.0,
                                          ("below the peer by at most", 0.002)),
}

PEER = """
import sys, numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.preprocessing import StandardScaler
data, name = sys.argv[1:]
if name == "agaricus":
    from sklearn.datasets import load_svmlight_file
    x, y = load_svmlight_file(f"{data}/agaricus_train.libsvm.gz", n_features=200)
    u, v = load_svmlight_file(f"{data}/agaricus_test.libsvm.gz", n_features=200)
else:
    train = np.loadtxt(f"{data}/higgs_train.csv.gz", delimiter=",", skiprows=1)
    test = np.loadtxt(f"{data}/higgs_test.csv.gz", delimiter=",", skiprows=1)
    scaler = StandardScaler().fit(train[:, 1:])
    x, y, u, v = scaler.transform(train[:, 1:]), train[:, 0], scaler.transform(test[:, 1:]), test[:, 0]
model = LogisticRegression(max_iter=1000).fit(x, y)
print(roc_auc_score(v, model.decision_function(u)))
"""


def ours(data, case, folder, consistency):
    files, layer, epochs, rate, l1, _ = case
    job = "[data]\n" + files.format(data=data) + f'\n[model]\nlayers = ["{layer}"]\n'
    job += TRAIN.format(epochs=epochs, rate=rate, l1=l1)
    more = []
    if consistency:
        job += f'[distribute]\nstrategy = "parameter_server"\nservers = 2\nconsistency = "{consistency}"\n'
        if consistency == "bsp":
            job += '[distribute.tables]\nparameters = "all"\n'
        more = ["--processes", "--workers", "2"]
    path = Path(folder) / "job.toml"
    path.write_text(job)
    out = Path(folder) / "out"
    started = time.perf_counter()
    subprocess.run([target / "release/manyhands", "train", path, "--out", out, "--quiet", "--overwrite", *more], check=True)
    seconds = time.perf_counter() - started
    return json.loads((out / "report.json").read_text())["metrics"]["test"]["auc"], seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--consistency", choices=["bsp", "ssp", "adaptive", "async"])
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    data = arguments.data.resolve()
    theirs, rows = {}, []
    for name, case in CASES.items():
        source = name.split(",")[0]
        if source not in theirs:
            run = subprocess.run([python, "-c", PEER, data, source], check=True, capture_output=True, text=True)
            theirs[source] = float(run.stdout)
        with tempfile.TemporaryDirectory() as folder:
            auc, seconds = ours(data, case, folder, arguments.consistency)
        kind, bound = case[-1]
        difference = auc - theirs[source]
        holds = auc >= bound if kind == "at least" else difference >= -bound
        rows.append({"name": name, "auc": auc, "peer": theirs[source], "difference": difference, "seconds": seconds, "holds": holds})
        print(f"{name:36} ours {auc:.6f}  scikit-learn {theirs[source]:.6f}  difference {difference:+.6f}  "
              f"{seconds:5.1f} s  must: {kind} {bound}  {'holds' if holds else 'MISSED'}", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=2))
    sys.exit(0 if all(row["holds"] for row in rows) else 1)


main()
