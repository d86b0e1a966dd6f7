"""Records the rates of PyTorch's schedulers, stepped once a step from a rate of 1.

    python bench/oracle/record_schedules.py crates/manyhands/src/schedules/torch.json
"""

import json
import sys

import torch
from torch.optim import lr_scheduler as schedulers

MONITORED = [1.0, 0.9, 0.895, 0.891, 0.8, 0.8, 0.8, 0.8, 0.8, 0.8, 0.8]


def optimizer():
    return torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)


def rates(make, n_steps, values=None):
    sgd = optimizer()
    scheduler = make(sgd)
    found = []
    for step in range(n_steps):
        found.append(sgd.param_groups[0]["lr"])
        sgd.step()
        scheduler.step(*([values[step]] if values else []))
    return found + [sgd.param_groups[0]["lr"]]


recorded = {
    "torch": torch.__version__,
    "step 2 0.5": rates(lambda o: schedulers.StepLR(o, 2, 0.5), 7),
    "exponential 0.9": rates(lambda o: schedulers.ExponentialLR(o, 0.9), 7),
    "linear 0.2": rates(lambda o: schedulers.LinearLR(o, 1.0, 0.2, 8), 7),
    "cosine 0.1": rates(lambda o: schedulers.CosineAnnealingLR(o, 8, 0.1), 7),
    "one_cycle": rates(lambda o: schedulers.OneCycleLR(o, 1.0, 8), 7),
    "one_cycle 0.5 10 100": rates(
        lambda o: schedulers.OneCycleLR(o, 1.0, 8, pct_start=0.5, div_factor=10, final_div_factor=100), 7
    ),
    "monitored": MONITORED,
    # The rate before each epoch and after the last: after k values it is entry k.
    "plateau 1 0.5 0.01 0.2": rates(
        lambda o: schedulers.ReduceLROnPlateau(
            o, factor=0.5, patience=1, threshold=0.01, threshold_mode="abs", min_lr=0.2
        ),
        len(MONITORED),
        MONITORED,
    ),
}

with open(sys.argv[1], "w") as file:
    json.dump(recorded, file, indent=1)
    file.write("\n")
