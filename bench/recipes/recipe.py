"""What the PyTorch recipes share: arguments, reading, the training loop with its schedule, and the report.

It follows what a job says, in PyTorch's own words: samples are shuffled anew each epoch, the last short batch counts, the
rate falls along a cosine over all steps, times a line that rises over those of the warm-up, and the test comes after the
last epoch."""
import argparse, csv, gzip, json, math, statistics, time
from pathlib import Path

import numpy, torch


def arguments(description):
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="the folder with the full data; README.md says what lies in it")
    parser.add_argument("--seeds", default="1,2,3", help="which seeds to run, with commas between")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path, help="write the results into this file too")
    return parser.parse_args()


def opened(path):
    """The bytes of a file that may be compressed: `path` or `path.gz`."""
    packed = path.with_name(path.name + ".gz")
    return gzip.open(packed).read() if packed.exists() else path.read_bytes()


def idx(path):
    data = opened(path)
    shape = numpy.frombuffer(data, ">u4", data[3], 4)
    return numpy.frombuffer(data, numpy.uint8, offset=4 + 4 * data[3]).reshape(shape).copy()


def fashion(folder):
    """Training and test part: pictures divided by 255 as [n, 1, 28, 28], and labels."""
    def part(name):
        pictures = torch.from_numpy(idx(folder / f"{name}-images-idx3-ubyte")).float()[:, None] / 255
        return pictures, torch.from_numpy(idx(folder / f"{name}-labels-idx1-ubyte")).long()
    return part("train"), part("t10k")


def table(path):
    """Columns of text by name."""
    rows = list(csv.reader(opened(path).decode().splitlines()))
    return dict(zip(rows[0], zip(*rows[1:])))


def rate_factor(step, n_steps, warm_up):
    """What the rate is multiplied with at a step; the first step is 0."""
    rise = (step + 1) / warm_up if step < warm_up else 1
    return rise * 0.5 * (1 + math.cos(math.pi * step / n_steps))


def train(model, loss, optimizer, inputs, targets, batch, epochs, warm_up=0, clip=None):
    n_samples = len(inputs)
    n_steps = epochs * math.ceil(n_samples / batch)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate_factor(step, n_steps, warm_up))
    model.train()
    for _ in range(epochs):
        order = torch.randperm(n_samples)
        for chosen in order.split(batch):
            optimizer.zero_grad(set_to_none=True)
            loss(model(inputs[chosen]), targets[chosen]).backward()
            if clip:
                torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            schedule.step()


def predict(model, inputs, batch=1000):
    model.eval()
    with torch.no_grad():
        return torch.cat([model(part) for part in inputs.split(batch)])


def accuracy(model, inputs, labels):
    return (predict(model, inputs).argmax(1) == labels).float().mean().item()


def report(name, chosen, run):
    """Runs `run(seed)`, which returns metrics by name, for every seed and prints each and their means."""
    torch.set_num_threads(chosen.threads)
    results = []
    for seed in map(int, chosen.seeds.split(",")):
        torch.manual_seed(seed)
        start = time.perf_counter()
        results.append({"seed": seed, **run(seed), "seconds": time.perf_counter() - start})
        print(name, " ".join(f"{key} {value:.5g}" for key, value in results[-1].items()), flush=True)
    means = {key: statistics.mean(result[key] for result in results) for key in results[0] if key != "seed"}
    print(name, "mean", " ".join(f"{key} {value:.5g}" for key, value in means.items()))
    if chosen.json:
        chosen.json.write_text(json.dumps({"recipe": name, "torch": torch.__version__, "runs": results, "mean": means}, indent=2))
