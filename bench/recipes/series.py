#!/usr/bin/env python3
"""The LSTM of series.toml in PyTorch, on five years of Beijing's air.

usage: series.py FOLDER [--seeds 1,2,3] [--threads N] [--json FILE]

The last fifth of the hours is the test. An hour without a measurement gets the one before; the first ones, which have none
before, are left out. The label is scaled like the column that it is; the errors are in the unit of the table."""
import torch
from torch import nn, optim

import recipe

LENGTH, HIDDEN = 24, 64
NUMBERS = ["pm2.5", "DEWP", "TEMP", "PRES", "Iws", "Is", "Ir"]

chosen = recipe.arguments(__doc__)
columns = recipe.table(chosen.folder / "hourly_beijing_pm.csv")
first = next(row for row, cell in enumerate(columns["pm2.5"]) if cell not in ("", "NA"))
columns = {name: cells[first:] for name, cells in columns.items()}
n_rows = len(columns["pm2.5"])
n_train = n_rows - round(n_rows / 5)


def filled(name):
    """The column as numbers, with the gaps filled."""
    values = []
    for cell in columns[name]:
        values.append(values[-1] if cell in ("", "NA") else float(cell))
    return torch.tensor(values, dtype=torch.float64)


numbers = torch.stack([filled(name) for name in NUMBERS], 1)
mean, deviation = numbers[:n_train].mean(0), numbers[:n_train].std(0, correction=0)
winds = sorted(set(columns["cbwd"][:n_train]))
one_hot = torch.tensor([[float(cell == wind) for wind in winds] for cell in columns["cbwd"]])
features = torch.cat([((numbers - mean) / deviation).float(), one_hot], 1)


def windows(rows):
    """Windows [n, LENGTH, k] within the rows, and the label an hour after each."""
    return features[rows].unfold(0, LENGTH, 1)[:-1].transpose(1, 2).contiguous(), features[rows][LENGTH:, :1]


(inputs, targets), (test_inputs, test_targets) = windows(slice(0, n_train)), windows(slice(n_train, n_rows))


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.head = nn.LSTM(features.shape[1], HIDDEN, batch_first=True), nn.Linear(HIDDEN, 1)

    def forward(self, x):
        return self.head(self.lstm(x)[0][:, -1])


def errors(predicted):
    """In the unit of the table."""
    error = (predicted - test_targets).double() * deviation[0]
    return {"rmse": error.square().mean().sqrt().item(), "mae": error.abs().mean().item()}


def run(_seed):
    model = Network()
    optimizer = optim.Adam(model.parameters(), 0.002)
    recipe.train(model, nn.MSELoss(), optimizer, inputs, targets, batch=128, epochs=5)
    return errors(recipe.predict(model, test_inputs))


print("the last hour again", errors(test_inputs[:, -1, :1]))
recipe.report("series", chosen, run)
