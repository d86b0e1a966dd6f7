#!/usr/bin/env python3
"""The MLP of fashion_mlp.toml in PyTorch, on all of Fashion-MNIST.

usage: fashion_mlp.py FOLDER [--seeds 1,2,3] [--threads N] [--json FILE]"""
from torch import nn, optim

import recipe

chosen = recipe.arguments(__doc__)
(pictures, labels), (test_pictures, test_labels) = recipe.fashion(chosen.folder / "fashion-mnist")


def run(_seed):
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
    optimizer = optim.Adam(model.parameters(), 0.002)
    recipe.train(model, nn.CrossEntropyLoss(), optimizer, pictures, labels, batch=128, epochs=5)
    return {"accuracy": recipe.accuracy(model, test_pictures, test_labels)}


recipe.report("fashion_mlp", chosen, run)
