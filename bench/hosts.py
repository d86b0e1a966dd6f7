#!/usr/bin/env python3
"""Machines that are network namespaces: links that are slow, late, cut and cut one way. The bytes of the model must be those of one worker.

usage: bench/hosts.py --manyhands PATH [--only CASE[,CASE]] [--epochs N] [--workers 3] [--json]        (as root)

Each host is a namespace with one worker and one cable to a bridge; the first has the coordinator and the driver as well. Bandwidth is limited by
`tc tbf`. Delay is made by proxies: a worker's connections, in and out, pass through a process that holds bytes back. Cuts are made at the bridge's
end of a cable; a one-way cut takes the host's neighbours away from it (a false hardware address), so that it hears all and is heard by nobody.
The cases overlap_100mbit, overlap_1gbit and overlap_unlimited measure steps and run only when asked for.
Every byte on the cable of the second host is looked at in the plain case: nothing of the inputs or the model's names may be readable."""
import argparse, json, os, re, signal, socket, subprocess, sys, tempfile, threading, time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from storm import PATIENCE, ROOT, Cluster, Failed, compare, outcome, run_calm, spread, step_times  # noqa: E402

TAG = f"mh{os.getpid() % 10000}"


def ip(*arguments, check=True):
    return subprocess.run(["ip", *map(str, arguments)], check=check, capture_output=True, text=True)


class Hosts:
    """Namespaces on a bridge, each with one cable. They are removed whatever happens."""

    def __init__(self, n_hosts):
        self.n_hosts, self.bridge = n_hosts, f"{TAG}br"

    def name(self, idx):
        return f"{TAG}h{idx}"

    def cable(self, idx):
        """The bridge's end of a host's cable."""
        return f"{TAG}c{idx}"

    def address(self, idx):
        return f"10.77.{os.getpid() % 200}.{idx + 1}"

    def inside(self, idx):
        return ["ip", "netns", "exec", self.name(idx)]

    def __enter__(self):
        try:
            ip("link", "add", self.bridge, "type", "bridge")
            ip("link", "set", self.bridge, "up")
            for idx in range(self.n_hosts):
                ip("netns", "add", self.name(idx))
                ip("link", "add", self.cable(idx), "type", "veth", "peer", "name", "eth0", "netns", self.name(idx))
                ip("link", "set", self.cable(idx), "master", self.bridge)
                ip("link", "set", self.cable(idx), "up")
                ip("-n", self.name(idx), "link", "set", "lo", "up")
                ip("-n", self.name(idx), "link", "set", "eth0", "up")
                ip("-n", self.name(idx), "addr", "add", f"{self.address(idx)}/24", "dev", "eth0")
        except subprocess.CalledProcessError as error:
            self.__exit__()
            raise SystemExit(f"namespaces cannot be made ({error.stderr.strip()}): this needs root") from None
        return self

    def __exit__(self, *_):
        for idx in range(self.n_hosts):
            ip("netns", "del", self.name(idx), check=False)
            ip("link", "del", self.cable(idx), check=False)
        ip("link", "del", self.bridge, check=False)

    def limit(self, idx, rate):
        """Both directions of a host's cable carry no more than this."""
        shape = ["root", "tbf", "rate", rate, "burst", "64kb", "latency", "200ms"]
        subprocess.run(["tc", "qdisc", "add", "dev", self.cable(idx), *shape], check=True)
        subprocess.run([*self.inside(idx), "tc", "qdisc", "add", "dev", "eth0", *shape], check=True)

    def cut(self, idx, is_cut):
        ip("link", "set", self.cable(idx), "down" if is_cut else "up")

    def mute(self, idx, is_mute):
        """The host's frames go nowhere; it still receives: its neighbours get a hardware address that nobody has."""
        for other in range(self.n_hosts):
            if other == idx:
                continue
            if is_mute:
                ip("-n", self.name(idx), "neigh", "replace", self.address(other), "lladdr", "02:00:00:00:00:99", "nud", "permanent", "dev", "eth0")
            else:
                ip("-n", self.name(idx), "neigh", "del", self.address(other), "dev", "eth0", check=False)

    def n_bytes(self, idx):
        folder = Path(f"/sys/class/net/{self.cable(idx)}/statistics")
        return sum(int((folder / f"{way}_bytes").read_text()) for way in ("rx", "tx"))


class Capture:
    """All bytes that pass a cable, as far as they fit."""

    def __init__(self, device, most=64 << 20):
        self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
        self.socket.bind((device, 0))
        self.socket.settimeout(0.2)
        self.bytes, self.most, self.is_over = bytearray(), most, False
        self.thread = threading.Thread(target=self.follow, daemon=True)
        self.thread.start()

    def follow(self):
        while not self.is_over and len(self.bytes) < self.most:
            try:
                self.bytes += self.socket.recv(1 << 16)[54:]
            except TimeoutError:
                pass

    def end(self):
        self.is_over = True
        self.thread.join()
        self.socket.close()
        return bytes(self.bytes)


# A proxy is a process of its own inside a namespace: it forwards one port to an address, and holds every byte back for a while.
PROXY = r"""
import socket, sys, threading, time, collections
listen, port, to, to_port, delay = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), float(sys.argv[5])
def pump(a, b):
    held, more = collections.deque(), threading.Condition()
    def write():
        while True:
            with more:
                while not held: more.wait()
                at, data = held.popleft()
            time.sleep(max(0.0, at - time.monotonic()))
            try:
                if data is None: b.shutdown(socket.SHUT_WR); return
                b.sendall(data)
            except OSError: return
    threading.Thread(target=write, daemon=True).start()
    while True:
        try: data = a.recv(1 << 16)
        except OSError: data = b''
        with more: held.append((time.monotonic() + delay, data or None)); more.notify()
        if not data: return
server = socket.create_server((listen, port), backlog=64)
while True:
    one, _ = server.accept()
    try: other = socket.create_connection((to, to_port), timeout=5)
    except OSError: one.close(); continue
    other.settimeout(None)
    for s in (one, other): s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for a, b in ((one, other), (other, one)): threading.Thread(target=pump, args=(a, b), daemon=True).start()
"""


def run(arguments, folder, hosts, calm, fault=None, patience=PATIENCE, join=None):
    """One run on all hosts; `fault` happens when some steps are done."""
    place = lambda name: 0 if name in ("coordinator", "driver") else int(name[1:])
    with Cluster(arguments, folder, hosts.address(0), lambda name: hosts.inside(place(name))) as cluster:
        cluster.start_coordinator()
        if join:
            join(cluster)
        for idx in range(hosts.n_hosts):
            cluster.start_worker(f"w{idx}", join=join and idx > 0 and f"{hosts.address(idx)}:{cluster.address.split(':')[1]}" or None)
        cluster.wait_for_members(hosts.n_hosts)
        out = cluster.folder / "out"
        before = [hosts.n_bytes(idx) for idx in range(hosts.n_hosts)]
        cluster.train(out)
        cluster.wait_for_step(10)
        at = time.time()
        status = cluster.status()
        if len(status["members"]) != hosts.n_hosts or len({member["host"] for member in status["members"]}) != hosts.n_hosts:
            raise Failed(f"not every worker is on a host of its own: {status}")
        if not all(member["is_in_view"] for member in status["members"]):
            raise Failed(f"not every worker takes part: {status}")
        if fault:
            fault(cluster)
        was_running = cluster.is_running()
        cluster.wait(patience)
        compare(calm["outcome"], outcome(out), folder.name)
        steps = sorted(when for when, _, _ in step_times(out))
        gaps = [b - a for a, b in zip(steps, steps[1:])]
        moved = [hosts.n_bytes(idx) - start for idx, start in enumerate(before)]
        sentences = [line.strip() for when, line in cluster.said if when >= at and re.match(r" +\d", line)]
        return {"still_running_after_the_fault": was_running, "seconds_of_steps": round(steps[-1] - steps[0], 2), "between_steps_s": spread(gaps),
                "mb_on_each_cable": [round(n / 1e6, 1) for n in moved], "decisions": sentences[:12], "same_bytes": True}


def plain(arguments, folder, hosts, calm):
    # Inputs are to be on the cable.
    arguments = argparse.Namespace(**{**vars(arguments), "set": [*arguments.set, "distribute.read=driver"]})
    capture = Capture(hosts.cable(1))
    figures = run(arguments, folder, hosts, calm)
    seen = capture.end()
    words = [word for word in (b"dense", b"weight", b"Want", b"Inputs", b"heartbeat", b"Heartbeat", b"\"step\"", b"seconds_per_grain", b"w1")
             if len(word) > 3 and word in seen]
    zeros = seen.count(bytes(64))
    if words or len(seen) < 1_000_000:
        raise Failed(f"{len(seen)} bytes were captured, and these words in them are readable: {words}")
    # Pictures are mostly zeros; in encrypted bytes 64 zeros in a row do not happen, but headers are padded.
    return {**figures, "captured_mb": round(len(seen) / 1e6, 1), "readable_words": words, "runs_of_zeros": zeros}


def reading(arguments, folder, hosts, calm):
    """Workers that find the data read it: all but the one on the driver's host."""
    figures = run(arguments, folder, hosts, calm)
    said = (folder / "driver.txt").read_text()
    readers = sorted(set(re.findall(r"(w\d+) reads its samples itself", said)))
    if readers != [f"w{idx}" for idx in range(1, hosts.n_hosts)]:
        raise Failed(f"{readers} read: {said}")
    return {**figures, "readers": readers}


def bandwidth(arguments, folder, hosts, calm):
    for idx in range(hosts.n_hosts):
        hosts.limit(idx, "100mbit")
    return run(arguments, folder, hosts, calm, patience=600)


def delay(arguments, folder, hosts, calm):
    """50 ms each way between the workers on hosts 1, 2, ... and the coordinator; their links among each other are not delayed, since
    their ports are not known before they listen."""
    def join(cluster):
        host, port = cluster.address.split(":")
        for idx in range(1, hosts.n_hosts):
            command = [*hosts.inside(idx), sys.executable, "-c", PROXY, hosts.address(idx), port, host, port, "0.05"]
            cluster.processes.start(command, cluster.folder / f"proxy{idx}.txt")
        time.sleep(0.5)
    return run(arguments, folder, hosts, calm, join=join)


def partition(arguments, folder, hosts, calm):
    def fault(cluster):
        hosts.cut(2, True)
        time.sleep(10)
        hosts.cut(2, False)
        if not cluster.is_running():
            raise Failed("the run was over before the cut healed: more epochs are needed")
    return run(arguments, folder, hosts, calm, fault)


def driver_cut(arguments, folder, hosts, calm):
    """The host of the coordinator and the driver is cut from all others for 10 s, and has no worker of its own any more."""
    def fault(cluster):
        cluster.workers.pop("w0").kill()
        time.sleep(0.5)
        hosts.cut(0, True)
        time.sleep(10)
        hosts.cut(0, False)
        if not cluster.is_running():
            raise Failed("the run was over before the cut healed: more epochs are needed")
    return run(arguments, folder, hosts, calm, fault)


def one_way(arguments, folder, hosts, calm):
    def fault(cluster):
        hosts.mute(1, True)
        time.sleep(8)
        hosts.mute(1, False)
        if not cluster.is_running():
            raise Failed("the run was over before the cut healed: more epochs are needed")
    return run(arguments, folder, hosts, calm, fault)


def overlap(rate):
    """Steps whose sums travel during the backward pass, and after it, in turns; meant for a larger model (`--job examples/fashion.toml --workers 2`)."""
    def measure(arguments, folder, hosts, calm):
        for idx in range(hosts.n_hosts if rate else 0):
            hosts.limit(idx, rate)
        found = {"never": [], "always": []}
        for turn in range(3):
            for rule, steps in found.items():
                own = argparse.Namespace(**{**vars(arguments), "set": [*arguments.set, f"distribute.overlap={rule}"]})
                figures = run(own, folder / f"{rule}{turn}", hosts, calm, patience=600)
                steps.append(figures["between_steps_s"]["median"])
        best = {rule: min(steps) for rule, steps in found.items()}
        return {"step_s": found, "always_by_never": round(best["always"] / best["never"], 3), "same_bytes": True}
    return measure


# Measurements that run only when they are asked for.
MEASURED = {"overlap_100mbit": overlap("100mbit"), "overlap_1gbit": overlap("1gbit"), "overlap_unlimited": overlap(None)}
CASES = {"plain": plain, "reading": reading, "bandwidth": bandwidth, "delay": delay, "partition": partition, "driver_cut": driver_cut, "one_way": one_way}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--manyhands", default=str(ROOT / "target/release/manyhands"))
    parser.add_argument("--job", default=str(ROOT / "examples/digits.toml"))
    parser.add_argument("--only", default="")
    parser.add_argument("--epochs", type=int, default=2000)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--set", action="append", default=[], help="sets a key of the job; grains of 4 samples unless said, so that all hosts have some")
    parser.add_argument("--keep")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    # Asked to end, it still removes what it made.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    arguments.manyhands = str(Path(arguments.manyhands).resolve())
    arguments.set = arguments.set or ["train.grain=4"]
    wanted = [part for part in arguments.only.split(",") if part] or list(CASES)
    with tempfile.TemporaryDirectory(prefix="hosts-") as folder:
        folder = Path(arguments.keep or folder).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        calm = run_calm(arguments, folder)
        figures, failures = {"calm_seconds": round(calm["seconds"], 2)}, {}
        for name in wanted:
            try:
                with Hosts(arguments.workers) as hosts:
                    figures[name] = {**CASES, **MEASURED}[name](arguments, folder / name, hosts, calm)
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
