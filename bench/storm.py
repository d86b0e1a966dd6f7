#!/usr/bin/env python3
"""Faults at random moments of a training on real processes: the bytes of the model must be those of one worker left alone.

usage: bench/storm.py --manyhands PATH [--mode kills|servers|coordinator|resume|drain|slow|garbage|all] [--kills 100] [--stops 20]
                      [--workers 4] [--servers 3] [--epochs N] [--job JOB] [--seed S] [--json]

Standard library only. Every mode first proves that its faults fired, then compares model.safetensors byte for byte, the loss of every
step and of every epoch, and the ledger of the last checkpoint with an undisturbed run of one worker. The exit code is 1 if anything differs.
Mode servers kills servers of parameters and workers, 20 unless --kills says otherwise, and has `manyhands bench history` prove what was recorded meanwhile.

What the files prove of "every sample once an epoch": the ledger counts samples and steps, and every step is there once with
its loss to the last bit. Which samples a step had is not written anywhere; equal bytes of model and losses stand for it."""
import argparse, glob, hashlib, json, os, random, re, signal, socket, statistics, struct, subprocess, sys, tempfile, threading, time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PATIENCE = 300  # a run that takes longer than this hangs


class Failed(Exception):
    """A promise that was not kept."""


def step_times(out):
    """When each step of a run was done, and its loss, from the records that TensorBoard reads: [(time, step, loss)]."""
    found = []
    for path in sorted(glob.glob(f"{out}/events/*")):
        data, at = Path(path).read_bytes(), 0
        while at + 12 <= len(data):
            size, = struct.unpack_from("<Q", data, at)
            body, at = data[at + 12:at + 12 + size], at + 16 + size
            place = body.find(b"\ntrain/loss\x15")
            if place > 0 and body[0] == 0x09 and body[9] == 0x10:
                step, shift, idx = 0, 0, 10
                while True:
                    step |= (body[idx] & 127) << shift
                    shift, idx = shift + 7, idx + 1
                    if body[idx - 1] < 128:
                        break
                found.append((struct.unpack_from("<d", body, 1)[0], step, body[place + 12:place + 16].hex()))
    return found


def outcome(out):
    """What must not depend on how a run went."""
    report = json.loads(Path(out, "report.json").read_text())
    ledger = json.loads(sorted(Path(out, "checkpoints").glob("step-*"))[-1].joinpath("state.json").read_text())
    return {
        "model": hashlib.sha256(Path(out, "model.safetensors").read_bytes()).hexdigest(),
        "history": ledger["history"],
        "step_losses": ledger["extra"].get("losses"),
        "counted": {key: ledger[key] for key in ("epoch", "batch", "step", "samples", "epoch_samples")},
        "metrics": report["metrics"],
    }


def compare(calm, other, name):
    for key, value in calm.items():
        if other[key] != value:
            raise Failed(f"{name}: {key} differs from the undisturbed run: {str(other[key])[:300]} is not {str(value)[:300]}")


class Processes:
    """All processes of a run; they end with it, each by its id."""

    def __init__(self):
        self.all = []

    def start(self, command, log, lines=None, prefix=(), **more):
        """Starts a process whose output goes to a file, and line by line, with its time, to `lines`."""
        file = open(log, "ab")
        command = [*prefix, *map(str, command)]
        if lines is None:
            process = subprocess.Popen(command, stdout=file, stderr=file, stdin=subprocess.DEVNULL, **more)
        else:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, **more)

            def follow():
                for line in process.stdout:
                    lines.append((time.time(), line.decode(errors="replace").rstrip()))
                    file.write(line)
                    file.flush()
            threading.Thread(target=follow, daemon=True).start()
        self.all.append(process)
        return process

    def stop(self):
        for process in self.all:
            if process.poll() is None:
                for number in (signal.SIGCONT, signal.SIGKILL):
                    try:
                        process.send_signal(number)
                    except ProcessLookupError:
                        pass
        for process in self.all:
            process.wait()


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def rss(pid):
    """Megabytes of memory that a process holds."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", text).group(1)) / 1024
    except (OSError, AttributeError):
        return 0.0


class Cluster:
    """A coordinator, named workers and a driver of this machine, in a folder."""

    def __init__(self, arguments, folder, host="127.0.0.1", prefix=lambda name: ()):
        self.arguments, self.folder, self.prefix = arguments, Path(folder), prefix
        self.folder.mkdir(parents=True, exist_ok=True)
        self.processes, self.workers, self.said = Processes(), {}, []
        self.n_started = 0
        self.address = f"{host}:{free_port()}"
        self.secret = self.folder / "secret"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.processes.stop()

    def start_coordinator(self):
        command = [self.arguments.manyhands, "coordinator", "--listen", self.address, "--secret", self.secret, "--log", self.folder / "log"]
        self.coordinator = self.processes.start(command, self.folder / "coordinator.txt", self.said, self.prefix("coordinator"))
        until = time.time() + 10
        while not self.secret.exists() and time.time() < until:
            time.sleep(0.02)
        return self.coordinator

    def start_worker(self, name, *more, join=None):
        command = [self.arguments.manyhands, "worker", "--join", join or self.address, "--secret", self.secret, "--name", name, "--threads", 1, *more]
        self.workers[name] = self.processes.start(command, self.folder / f"{name}.txt", None, self.prefix(name))
        self.n_started += 1
        return self.workers[name]

    def start_server(self, name):
        command = [self.arguments.manyhands, "server", "--join", self.address, "--secret", self.secret, "--name", name]
        return self.processes.start(command, self.folder / f"{name}.txt", None, self.prefix(name))

    def train(self, out, *more):
        sets = settings(self.arguments)
        command = [self.arguments.manyhands, "train", self.arguments.job, "--cluster", self.address, "--secret", self.secret,
                   "--out", out, *sets, *more]
        self.driver = self.processes.start(command, self.folder / "driver.txt", None, self.prefix("driver"))
        return self.driver

    def status(self):
        command = [*self.prefix("driver"), self.arguments.manyhands, "status", "--cluster", self.address, "--secret", str(self.secret), "--json"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
        return json.loads(done.stdout) if done.returncode == 0 else None

    def is_running(self):
        return self.driver.poll() is None

    def wait_for_members(self, n):
        until = time.time() + PATIENCE
        while time.time() < until:
            status = self.status()
            if status and len(status["members"]) >= n:
                return
            time.sleep(0.05)
        raise Failed(f"there are not {n} workers: {self.tail()}")

    def wait_for_step(self, step):
        until = time.time() + PATIENCE
        while time.time() < until and self.is_running():
            status = self.status()
            if status and status["steps"] >= step:
                return status
            time.sleep(0.05)
        raise Failed(f"step {step} did not come: {self.tail()}")

    def wait(self, patience=PATIENCE):
        try:
            code = self.driver.wait(patience)
        except subprocess.TimeoutExpired:
            raise Failed(f"the run hangs: {self.status()} {self.tail()}") from None
        if code != 0:
            raise Failed(f"the driver ended with {code}: {self.tail()}")

    def tail(self, n=12):
        texts = [f"--- {path.name}\n" + "\n".join(path.read_text(errors="replace").splitlines()[-n:])
                 for path in sorted(self.folder.glob("*.txt"))]
        return "\n".join(texts)


def settings(arguments):
    """What all runs of a comparison set beyond the job."""
    sets = [f"train.epochs={arguments.epochs}", "output.checkpoint_seconds=1", *arguments.set]
    return [part for one in sets for part in ("--set", one)]


def run_calm(arguments, folder):
    """One worker that nobody disturbs: what everything is compared with."""
    out = Path(folder) / "calm"
    sets = settings(arguments)
    start = time.time()
    command = [arguments.manyhands, "train", arguments.job, "--workers", "1", "--threads", "1", "--out", out, "--quiet", *sets]
    subprocess.run(list(map(str, command)), check=True, stdout=subprocess.DEVNULL)
    return {"out": out, "seconds": time.time() - start, "outcome": outcome(out)}


def spread(values):
    values = sorted(values)
    if not values:
        return {"n": 0}
    return {"n": len(values), "median": round(statistics.median(values), 4), "max": round(values[-1], 4)}


def kill_figures(cluster, out, kills):
    """How soon a kill was noticed, and how soon after it a step was done."""
    steps = sorted(step_times(out))
    noticed, next_step = [], []
    for at, name, _ in kills:
        sentence = re.compile(rf"the connection of worker {name} \(member \d+\) closed|worker {name} .*silent")
        said = [when for when, line in list(cluster.said) if when >= at - 0.002 and sentence.search(line)]
        if said and said[0] - at < 30:
            noticed.append(max(0.0, said[0] - at))
        # The step that was under way at the kill may end without the killed one; the next after it cannot.
        after = [when for when, _, _ in steps if when > at]
        if after:
            next_step.append(after[0] - at)
    gaps = [b[0] - a[0] for a, b in zip(steps, steps[1:])]
    return {"kill_to_noticed_s": spread(noticed), "kill_to_next_step_s": spread(next_step), "between_steps_s": spread(gaps)}


def kills(arguments, folder, calm):
    """kill -9 of workers, whose replacements come, and SIGSTOP for 1 to 5 s."""
    chance = random.Random(arguments.seed)
    events = ["kill"] * (100 if arguments.kills is None else arguments.kills) + ["stop"] * arguments.stops
    chance.shuffle(events)
    with Cluster(arguments, folder) as cluster:
        cluster.start_coordinator()
        for idx in range(arguments.workers):
            cluster.start_worker(f"w{idx}")
        out = cluster.folder / "out"
        cluster.train(out)
        cluster.wait_for_step(1)
        done, stopped, n_name = [], {}, arguments.workers
        start = time.time()
        n_stops, n_early = 0, 0
        while events and cluster.is_running():
            time.sleep(chance.uniform(0.0, 2 * arguments.pause))
            for pid_name, until in list(stopped.items()):
                if time.time() >= until:
                    cluster.workers[pid_name].send_signal(signal.SIGCONT)
                    del stopped[pid_name]
            alive = [name for name, one in cluster.workers.items() if one.poll() is None and name not in stopped]
            # One worker is left in peace: all of them lost is another mode.
            if len(alive) < 2:
                n_early += 1
                if len(cluster.workers) - len(stopped) > 1 or n_early < 1000:
                    continue
            name = chance.choice(alive)
            event = events.pop()
            if event == "kill":
                victim = cluster.workers.pop(name)
                at = time.time()
                victim.kill()
                code = victim.wait()
                if code != -signal.SIGKILL:
                    raise Failed(f"{name} ended with {code} before it was killed: {cluster.tail()}")
                done.append((at, name, event))
                cluster.start_worker(f"w{n_name}")
                n_name += 1
            else:
                cluster.workers[name].send_signal(signal.SIGSTOP)
                stopped[name] = time.time() + chance.uniform(1, 5)
                n_stops += 1
        storm_seconds = time.time() - start
        was_running = cluster.is_running()
        if events:
            raise Failed(f"kills: the run was over after {len(done)} kills and {n_stops} stops, {len(events)} short: more epochs are needed (--epochs)")
        for name in stopped:
            cluster.workers[name].send_signal(signal.SIGCONT)
        cluster.wait()
        figures = kill_figures(cluster, out, done)
        compare(calm["outcome"], outcome(out), "kills")
        steps = [step for _, step, _ in sorted(step_times(out))]
        restarts = sum("all workers are lost" in line for line in (cluster.folder / "driver.txt").read_text().splitlines())
        ended_early = [name for name, one in cluster.workers.items() if one.poll() is not None]
        if ended_early:
            raise Failed(f"workers {ended_early} ended by themselves: {cluster.tail()}")
        return {"kills": len(done), "stops": n_stops, "storm_seconds": round(storm_seconds, 1), "outlived_the_storm": was_running,
                "views": sum("goes on from step" in line for _, line in cluster.said),
                "restarts_from_checkpoint": restarts, "steps_seen": len(steps), "steps_seen_once": len(set(steps)), **figures}


def servers(arguments, folder, calm):
    """kill -9 of servers of parameters and of workers, whose replacements come. Every parameter has two holders."""
    chance = random.Random(arguments.seed)
    n_kills = arguments.kills if arguments.kills is not None else 20
    history = Path(folder) / "history.jsonl"
    os.environ["MANYHANDS_HISTORY"] = str(history)
    with Cluster(arguments, folder) as cluster:
        cluster.start_coordinator()
        serving = {f"s{idx}": cluster.start_server(f"s{idx}") for idx in range(arguments.servers)}
        for idx in range(arguments.workers):
            cluster.start_worker(f"w{idx}")
        out = cluster.folder / "out"
        cluster.train(out, "--set", 'distribute.strategy="parameter_server"', "--set", f"distribute.servers={arguments.servers}",
                      "--set", "distribute.replication=2", "--set", 'distribute.tables={parameters = "all"}')
        cluster.wait_for_step(1)
        done, n_name, start = [], max(arguments.workers, arguments.servers), time.time()
        while len(done) < n_kills and cluster.is_running():
            time.sleep(chance.uniform(0.2, 2 * arguments.pause + 0.2))
            # Faults are told apart by steps: the next comes when the run goes on after the last.
            status = cluster.status()
            if not status or not cluster.is_running():
                continue
            cluster.wait_for_step(status["steps"] + 2)
            kind = chance.choice(["server", "worker"])
            alive = serving if kind == "server" else cluster.workers
            name = chance.choice(sorted(alive))
            victim = alive.pop(name)
            at = time.time()
            victim.kill()
            code = victim.wait()
            if code != -signal.SIGKILL:
                raise Failed(f"{name} ended with {code} before it was killed: {cluster.tail()}")
            done.append((at, name, kind))
            if kind == "server":
                serving[f"s{n_name}"] = cluster.start_server(f"s{n_name}")
            else:
                cluster.start_worker(f"w{n_name}")
            n_name += 1
        storm_seconds, was_running = time.time() - start, cluster.is_running()
        cluster.wait()
        if len(done) < n_kills:
            raise Failed(f"servers: the run was over after {len(done)} of {n_kills} kills: more epochs are needed")
        # Servers note how their shards stood when the job is over.
        for one in serving.values():
            one.send_signal(signal.SIGTERM)
        for one in serving.values():
            one.wait(30)
        del os.environ["MANYHANDS_HISTORY"]
        compare(calm["outcome"], outcome(out), "servers")
        proof = subprocess.run([arguments.manyhands, "bench", "history", str(history), "--json"], capture_output=True, text=True, timeout=PATIENCE)
        if proof.returncode != 0:
            raise Failed(f"servers: the history is no proof: {proof.stderr}")
        return {"kills": {kind: sum(one == kind for *_, one in done) for kind in ("server", "worker")},
                "storm_seconds": round(storm_seconds, 1), "outlived_the_storm": was_running,
                "restarts_from_checkpoint": (cluster.folder / "driver.txt").read_text().count("going on from"),
                "history": json.loads(proof.stdout), **takeovers(out, done)}


def takeovers(out, kills):
    """How long after each kill the second step was done: the first may have been under way without the killed one."""
    steps = sorted(when for when, _, _ in step_times(out))
    figures = {}
    for kind in ("server", "worker"):
        after = [[when for when in steps if when > at] for at, _, one in kills if one == kind]
        figures[f"{kind}_kill_to_second_step_s"] = spread([times[1] - at for (at, _, _), times in
                                                           zip([one for one in kills if one[2] == kind], after) if len(times) > 1])
    return figures


def coordinator(arguments, folder, calm):
    """The coordinator is killed and started again ten times; a worker dies while it is away, every third time."""
    chance = random.Random(arguments.seed)
    with Cluster(arguments, folder) as cluster:
        cluster.start_coordinator()
        for idx in range(arguments.workers):
            cluster.start_worker(f"w{idx}")
        out = cluster.folder / "out"
        cluster.train(out)
        cluster.wait_for_step(1)
        n_kills, n_name, restarted = 0, arguments.workers, []
        while n_kills < 10 and cluster.is_running():
            time.sleep(chance.uniform(0.2, 1.5))
            cluster.coordinator.kill()
            cluster.coordinator.wait()
            n_kills += 1
            if n_kills % 3 == 0:
                name = chance.choice(sorted(cluster.workers))
                cluster.workers.pop(name).kill()
                cluster.start_worker(f"w{n_name}")
                n_name += 1
            time.sleep(chance.uniform(0.05, 1.5))
            restarted.append(time.time())
            cluster.start_coordinator()
        was_running = cluster.is_running()
        cluster.wait()
        compare(calm["outcome"], outcome(out), "coordinator")
        steps = sorted(when for when, _, _ in step_times(out))
        gaps = [b - a for a, b in zip(steps, steps[1:])]
        return {"coordinator_kills": n_kills, "outlived_the_storm": was_running, "between_steps_s": spread(gaps)}


def resume(arguments, folder, calm):
    """Everything is killed at a random moment, and resumed with other numbers of workers, as processes and in one process."""
    chance = random.Random(arguments.seed)
    rounds = []
    for idx, (n_workers, processes) in enumerate([(1, True), (3, True), (5, True), (1, False), (3, False)]):
        with Cluster(arguments, Path(folder) / str(idx)) as cluster:
            cluster.start_coordinator()
            for place in range(arguments.workers):
                cluster.start_worker(f"w{place}")
            out = cluster.folder / "out"
            cluster.train(out)
            cluster.wait_for_step(1)
            until = time.time() + chance.uniform(1.2, max(1.5, 0.6 * calm["seconds"]))
            while (time.time() < until or not list(out.glob("checkpoints/step-*/manifest.json"))) and cluster.is_running():
                time.sleep(0.01)
            was_running = cluster.is_running()
            cluster.processes.stop()
            if not was_running:
                raise Failed("resume: the run was over before it was killed: more epochs are needed")
            command = [arguments.manyhands, "resume", str(out), "--workers", str(n_workers), "--quiet", *(["--processes"] if processes else [])]
            done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
            if done.returncode != 0:
                raise Failed(f"resume with {n_workers} workers ended with {done.returncode}: {done.stderr}")
            compare(calm["outcome"], outcome(out), f"resume with {n_workers}")
            report = json.loads((out / "report.json").read_text())
            rounds.append({"workers": n_workers, "processes": processes, "resumed_from_step": report["resumed_from_step"]})
    return {"resumed": rounds}


def drain(arguments, folder, calm):
    """Workers are asked to leave, one after the other, and others come."""
    with Cluster(arguments, folder) as cluster:
        cluster.start_coordinator()
        for idx in range(arguments.workers):
            cluster.start_worker(f"w{idx}")
        out = cluster.folder / "out"
        cluster.train(out)
        cluster.wait_for_step(1)
        seconds = []
        for idx in range(arguments.workers):
            name = f"w{idx}"
            leaving = cluster.workers.pop(name)
            start = time.time()
            if idx % 2:
                leaving.send_signal(signal.SIGTERM)
            else:
                command = [arguments.manyhands, "worker", "--join", cluster.address, "--secret", str(cluster.secret), "--name", name, "--drain"]
                done = subprocess.run(command, capture_output=True, text=True, timeout=30)
                if done.returncode != 0:
                    raise Failed(f"drain of {name}: {done.stderr}")
            try:
                code = leaving.wait(20)
            except subprocess.TimeoutExpired:
                raise Failed(f"{name} did not leave: {cluster.tail()}") from None
            if code != 0:
                raise Failed(f"{name} left with {code}: {cluster.tail()}")
            seconds.append(time.time() - start)
            cluster.start_worker(f"x{idx}")
            time.sleep(0.5)
        was_running = cluster.is_running()
        cluster.wait()
        compare(calm["outcome"], outcome(out), "drain")
        lost = [line for _, line in cluster.said if "closed" in line and "driver" not in line]
        return {"drains": len(seconds), "seconds_to_leave": spread(seconds), "outlived_the_storm": was_running, "counted_as_lost": lost}


def slow(arguments, folder, calm):
    """A worker runs for a fifth of the time only: its grains go to others, and it is not dropped."""
    with Cluster(arguments, folder) as cluster:
        cluster.start_coordinator()
        for idx in range(arguments.workers):
            cluster.start_worker(f"w{idx}")
        out = cluster.folder / "out"
        cluster.train(out)
        cluster.wait_for_step(1)
        n_cycles, seen, slowest = 0, {}, cluster.workers["w0"]
        while cluster.is_running():
            slowest.send_signal(signal.SIGSTOP)
            time.sleep(0.08)
            slowest.send_signal(signal.SIGCONT)
            time.sleep(0.02)
            n_cycles += 1
            if n_cycles % 20 == 0:
                status = cluster.status()
                for member in (status or {}).get("members", []):
                    if member["seconds_per_grain"]:
                        seen.setdefault(member["name"], []).append(round(1000 * member["seconds_per_grain"], 2))
        cluster.wait()
        compare(calm["outcome"], outcome(out), "slow")
        steps = sorted(when for when, _, _ in step_times(out))
        return {"cycles": n_cycles, "ms_a_grain": {name: values[-1] for name, values in sorted(seen.items())},
                "decisions": [line for _, line in cluster.said if any(word in line for word in ("slower", "rests", "silent", "dropped"))][:8],
                "seconds_of_steps": round(steps[-1] - steps[0], 2), "calm_seconds": round(calm["seconds"], 2)}


def listening_ports(pids):
    """TCP ports on which these processes listen: {port: pid}."""
    inodes = {}
    for pid in pids:
        for one in glob.glob(f"/proc/{pid}/fd/*"):
            try:
                match = re.match(r"socket:\[(\d+)\]", os.readlink(one))
            except OSError:
                continue
            if match:
                inodes[match.group(1)] = pid
    ports = {}
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        part = line.split()
        if part[3] == "0A" and part[9] in inodes:
            ports[int(part[1].split(":")[1], 16)] = inodes[part[9]]
    return ports


def visit(kind, port, chance):
    """One unwelcome connection. Gives the socket where it is to stay open."""
    one = socket.create_connection(("127.0.0.1", port), timeout=5)
    try:
        if kind == "noise":
            one.sendall(chance.randbytes(chance.randrange(1, 5000)))
        elif kind == "too_long":
            one.sendall(b"\xff" * 8 + chance.randbytes(64))
        elif kind == "huge":
            one.sendall(b"\xff" * 65536 * 4)
        elif kind == "http":
            one.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        elif kind == "half_open":
            one.sendall(chance.randbytes(chance.randrange(0, 3)))
            return one
    except OSError:
        pass  # it was shut out while it spoke, as it should be
    one.close()
    return None


def garbage(arguments, folder, calm):
    """10,000 unwelcome connections to coordinator, workers and driver while they train."""
    chance = random.Random(arguments.seed)
    with Cluster(arguments, folder) as cluster:
        cluster.start_coordinator()
        for idx in range(arguments.workers):
            cluster.start_worker(f"w{idx}", "--transport", "tcp")
        out = cluster.folder / "out"
        cluster.train(out)
        cluster.wait_for_step(1)
        named = {cluster.coordinator.pid: "coordinator", cluster.driver.pid: "driver"}
        named.update({one.pid: name for name, one in cluster.workers.items()})
        ports = listening_ports(named)
        before = {name: rss(pid) for pid, name in named.items()}
        wrong = cluster.folder / "wrong"
        other = Cluster(arguments, cluster.folder / "other")
        with other:
            other.start_coordinator()
        wrong.write_bytes(other.secret.read_bytes())
        wrong.chmod(0o600)
        counts, open_ones, refused, peak = {}, [], 0, dict(before)
        kinds = ["noise", "too_long", "huge", "http", "half_open", "nothing"]
        n, wrong_codes = 0, []
        while n < arguments.connections and cluster.is_running():
            kind, port = chance.choice(kinds), chance.choice(sorted(ports))
            try:
                held = visit(kind, port, chance)
            except OSError:
                refused += 1
                held = None
            n += 1
            counts[kind] = counts.get(kind, 0) + 1
            if held:
                open_ones.append(held)
            if len(open_ones) > 800:
                open_ones.pop(0).close()
            if n % 500 == 0:
                for pid, name in named.items():
                    peak[name] = max(peak[name], rss(pid))
                command = [arguments.manyhands, "status", "--cluster", cluster.address, "--secret", str(wrong)]
                wrong_codes.append(subprocess.run(command, capture_output=True, timeout=30).returncode)
        was_running = cluster.is_running()
        after = {name: rss(pid) for pid, name in named.items()}
        cluster.wait()
        for one in open_ones:
            one.close()
        compare(calm["outcome"], outcome(out), "garbage")
        grown = {name: round(peak[name] - before[name], 1) for name in before}
        if max(grown.values()) > 100:
            raise Failed(f"memory grew: {grown} MB")
        lost = [line for _, line in cluster.said if "closed" in line or "silent" in line or "dropped" in line]
        return {"connections": n, "kinds": counts, "not_connected": refused, "ports": sorted(ports.values()).__len__(),
                "still_running_after": was_running, "wrong_secret_exit_codes": sorted(set(wrong_codes)),
                "rss_mb": {name: [round(before[name], 1), round(after[name], 1), round(peak[name], 1)] for name in before}, "lost": lost}


MODES = {"kills": kills, "servers": servers, "coordinator": coordinator, "resume": resume, "drain": drain, "slow": slow, "garbage": garbage}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--manyhands", default=str(ROOT / "target/release/manyhands"))
    parser.add_argument("--mode", choices=[*MODES, "all"], default="kills")
    parser.add_argument("--job", default=str(ROOT / "examples/fashion.toml"))
    parser.add_argument("--kills", type=int, default=None, help="100 of workers, or 20 in the mode servers")
    parser.add_argument("--servers", type=int, default=3)
    parser.add_argument("--stops", type=int, default=20)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--set", action="append", default=[], help="sets a key of the job, as `train.grain=4`")
    parser.add_argument("--pause", type=float, default=0.4, help="mean seconds between two faults")
    parser.add_argument("--connections", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--keep", help="a folder that is kept; a temporary one unless said")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    # Asked to end, it still ends what it started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    arguments.manyhands = str(Path(arguments.manyhands).resolve())
    arguments.seed = arguments.seed if arguments.seed is not None else random.randrange(1 << 30)
    with tempfile.TemporaryDirectory(prefix="storm-") as folder:
        folder = Path(arguments.keep or folder).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        calm = run_calm(arguments, folder)
        figures, failures = {"seed": arguments.seed, "calm_seconds": round(calm["seconds"], 2)}, {}
        for name in MODES if arguments.mode == "all" else [arguments.mode]:
            start = time.time()
            try:
                figures[name] = {**MODES[name](arguments, folder / name, calm), "seconds": round(time.time() - start, 1), "same_bytes": True}
            except Failed as failure:
                failures[name] = str(failure)
            if not arguments.json:
                print(f"{name}: {json.dumps(figures[name], indent=1) if name in figures else 'FAILED: ' + failures[name]}", flush=True)
        figures["failures"] = failures
        if arguments.json:
            print(json.dumps(figures, indent=1))
        sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
