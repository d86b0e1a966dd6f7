#!/usr/bin/env python3
"""The CNN of fashion_cnn.toml in PyTorch, on all of Fashion-MNIST.

usage: fashion_cnn.py FOLDER [--seeds 1,2,3] [--threads N] [--json FILE]"""
from torch import nn, optim

import recipe

chosen = recipe.arguments(__doc__)
(pictures, labels), (test_pictures, test_labels) = recipe.fashion(chosen.folder / "fashion-mnist")


def run(_seed):
    model = nn.Sequential(
        nn.Conv2d(1, 32, 3, padding="same"), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding="same"), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Dropout(0.25), nn.Linear(64 * 7 * 7, 128), nn.ReLU(), nn.Linear(128, 10),
    )
    optimizer = optim.Adam(model.parameters(), 0.001)
    recipe.train(model, nn.CrossEntropyLoss(), optimizer, pictures, labels, batch=64, epochs=8)
    return {"accuracy": recipe.accuracy(model, test_pictures, test_labels)}


recipe.report("fashion_cnn", chosen, run)
