#!/usr/bin/env python3
"""Training a model whose state is several times what a worker may take, with the limit enforced by the system.

usage: bench/memory.py [--workers N] [--blocks N] [--width N] [--times X] [--steps N] [--set KEY=VALUE ...] [--json FILE]

A transformer of equal blocks (AdamW: 16 bytes of state for each weight, gradients included) is trained by worker processes each of which lies in a control group of its own with a memory limit of
the state divided by --times; shared memory counts. Without control groups (they need root) the limit is RLIMIT_DATA, which does not count shared memory. The process that trains has no limit. Prints the most that
each worker took, and checks that the same job on one worker is refused beforehand under that limit."""
import argparse, json, os, resource, socket, subprocess, sys, tempfile, time
from pathlib import Path

root = Path(__file__).resolve().parent.parent
target = Path(os.environ.get("CARGO_TARGET_DIR", root / "target"))
manyhands = target / "release/manyhands"
GROUPS = Path("/sys/fs/cgroup/memory")


def job(arguments):
    layers = ['"transformer 4 causal=true"'] * arguments.blocks
    return f"""[data]
train = "{root}/examples/data/shakespeare.txt.gz"
text = {{ unit = "characters", length = 32 }}
[model]
layers = ["embedding {arguments.width}", "position_embedding", {", ".join(layers)}, "layer_norm", "dense 73"]
[train]
loss = "cross_entropy"
optimizer = {{ adamw = {{ rate = 0.001 }} }}
batch = {arguments.workers}
grain = 1
steps = {arguments.steps}
[output]
checkpoint_seconds = 3600.0
"""


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class Limit:
    """A control group for one worker, or a limit on its data."""

    def __init__(self, name, n_bytes):
        self.n_bytes, self.folder = n_bytes, GROUPS / f"manyhands-{os.getpid()}-{name}"
        try:
            self.folder.mkdir()
            (self.folder / "memory.limit_in_bytes").write_text(str(n_bytes))
        except OSError:
            self.folder = None

    def enter(self):
        if self.folder:
            (self.folder / "cgroup.procs").write_text(str(os.getpid()))
        else:
            resource.setrlimit(resource.RLIMIT_DATA, (self.n_bytes, self.n_bytes))

    def most(self):
        return int((self.folder / "memory.max_usage_in_bytes").read_text()) if self.folder else None

    def remove(self):
        if self.folder:
            self.folder.rmdir()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--blocks", type=int, default=24)
    parser.add_argument("--width", type=int, default=640)
    parser.add_argument("--times", type=float, default=4.0)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--set", action="append", default=[], help="such as distribute.level=3; sharded at level 3 unless said")
    parser.add_argument("--json")
    arguments = parser.parse_args()
    subprocess.run(["cargo", "build", "--release", "-q", "-p", "manyhands-cli"], cwd=root, check=True)
    settings = arguments.set or ["distribute.strategy=sharded", "distribute.level=3"]
    said = [part for setting in [*settings, f"distribute.workers={arguments.workers}"] for part in ("--set", setting)]
    n_weights = arguments.blocks * (12 * arguments.width**2 + 13 * arguments.width) + arguments.width * (2 * 73 + 34) + 73
    state, processes, limits = 16 * n_weights, [], []
    limit = int(state / arguments.times)
    print(f"{n_weights:,} weights: {state / 1e6:.0f} MB of state; {limit / 1e6:.0f} MB for each of {arguments.workers} workers, {arguments.times:g} times less")
    with tempfile.TemporaryDirectory() as folder:
        path, secret = Path(folder) / "job.toml", Path(folder) / "secret"
        path.write_text(job(arguments))
        refused = subprocess.run([manyhands, "train", path, "--workers", "1", "--set", f"distribute.memory={limit}B", "--out", f"{folder}/one"], capture_output=True, text=True)
        words = (refused.stderr or refused.stdout).strip().splitlines()
        print(f"one worker: {'refused' if refused.returncode else 'NOT refused'}: {words[-1] if words else ''}")
        address = f"127.0.0.1:{free_port()}"
        try:
            processes.append(subprocess.Popen([manyhands, "coordinator", "--listen", address, "--secret", secret], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
            while not secret.exists():
                time.sleep(0.05)
            for worker in range(arguments.workers):
                limits.append(Limit(worker, limit))
                command = [manyhands, "worker", "--join", address, "--secret", secret, "--threads", "1", "--name", f"worker-{worker}"]
                processes.append(subprocess.Popen(list(map(str, command)), preexec_fn=limits[-1].enter, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
            command = [manyhands, "train", path, "--cluster", address, "--secret", secret, "--out", f"{folder}/out", *said]
            done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=1200)
            most = [one.most() for one in limits]
            print(done.stdout[-1500:] if done.returncode else "trained", done.stderr[-1500:] if done.returncode else "")
            print("most memory by worker, MB:", [round(one / 1e6) if one else None for one in most], f"limit {limit / 1e6:.0f}")
            row = {"state": state, "limit": limit, "most": most, "settings": settings, "refused": words[-1:], "trained": done.returncode == 0}
            if arguments.json:
                Path(arguments.json).write_text(json.dumps(row, indent=1))
        finally:
            for process in processes:
                process.kill()
                process.wait()
            for one in limits:
                one.remove()
    return done.returncode


sys.exit(main())
