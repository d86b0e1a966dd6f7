#!/usr/bin/env python3
"""The MLP of table.toml in PyTorch, on all of UCI Adult.

usage: table.py FOLDER [--seeds 1,2,3] [--threads N] [--json FILE]

A fifth of the rows, drawn by the seed, is the test. Empty cells (`?`) of a category are a value of their own, values that
only the test has share another."""
import torch
from torch import nn, optim

import recipe

chosen = recipe.arguments(__doc__)
columns = recipe.table(chosen.folder / "adult.csv")
labels = torch.tensor([int(cell == ">50K") for cell in columns.pop("income")])
n_rows = len(labels)


def encoded(cells, train):
    """A column as numbers [n_rows, k], fitted on the training rows."""
    try:
        numbers = torch.tensor([float(cell) for cell in cells], dtype=torch.float64)
    except ValueError:
        known = sorted({cells[row] for row in train.tolist()})
        place = {value: idx for idx, value in enumerate(known)}
        indexes = torch.tensor([place.get(cell, len(known)) for cell in cells])
        return nn.functional.one_hot(indexes, len(known) + 1).float()
    known = numbers[train]
    return ((numbers - known.mean()) / known.std(correction=0)).float()[:, None]


def run(_seed):
    order = torch.randperm(n_rows)
    test, train = order.split([round(n_rows / 5), n_rows - round(n_rows / 5)])
    features = torch.cat([encoded(cells, train) for cells in columns.values()], 1)
    model = nn.Sequential(
        nn.Linear(features.shape[1], 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2)
    )
    optimizer = optim.Adam(model.parameters(), 0.001)
    recipe.train(model, nn.CrossEntropyLoss(), optimizer, features[train], labels[train], batch=128, epochs=5)
    return {"accuracy": recipe.accuracy(model, features[test], labels[test])}


recipe.report("table", chosen, run)
