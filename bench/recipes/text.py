#!/usr/bin/env python3
"""The character transformer of text.toml in PyTorch, on all of Shakespeare.

usage: text.py FOLDER [--seeds 1,2,3] [--threads N] [--json FILE]

The last tenth of the text is the test. Sequences lie side by side; each character is predicted from those before it in
its sequence."""
import math

import torch
from torch import nn, optim
from torch.nn import functional

import recipe

LENGTH, WIDTH, HEADS = 64, 128, 4

chosen = recipe.arguments(__doc__)
text = recipe.opened(chosen.folder / "shakespeare.txt").decode()
n_train = len(text) - round(len(text) / 10)
vocabulary = {character: token for token, character in enumerate(sorted(set(text[:n_train])))}


def sequences(part):
    """Tokens [n, LENGTH] and the tokens that follow them, of the same shape; what is left over at the end is not used."""
    tokens = torch.tensor([vocabulary[character] for character in part])
    n_tokens = (len(tokens) - 1) // LENGTH * LENGTH
    return tokens[:n_tokens].view(-1, LENGTH), tokens[1 : n_tokens + 1].view(-1, LENGTH)


(tokens, following), (test_tokens, test_following) = sequences(text[:n_train]), sequences(text[n_train:])


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.project = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.expand, self.contract = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        heads = self.qkv(self.norm1(x)).unflatten(2, (3, HEADS, WIDTH // HEADS)).permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.project(seen.transpose(1, 2).flatten(2))
        return x + self.contract(functional.gelu(self.expand(self.norm2(x))))


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(len(vocabulary), WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(Block(), Block())
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, len(vocabulary))

    def forward(self, tokens):
        return self.head(self.norm(self.blocks(self.tokens(tokens) + self.positions.weight)))


def loss(logits, following):
    return functional.cross_entropy(logits.flatten(0, 1), following.flatten())


def run(_seed):
    model = Transformer()
    optimizer = optim.AdamW(model.parameters(), 0.003)
    recipe.train(model, loss, optimizer, tokens, following, batch=64, epochs=1, warm_up=100, clip=1.0)
    model.eval()
    with torch.no_grad():
        parts = zip(test_tokens.split(500), test_following.split(500))
        total = sum(loss(model(part), after).item() * after.numel() for part, after in parts)
    mean = total / test_following.numel()
    return {"loss": mean, "perplexity": math.exp(mean)}


recipe.report("text", chosen, run)
