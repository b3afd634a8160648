"""The encoder in a PyTorch loop of your own: which half of a sequence of numbers has the larger sum?

python examples/backbone.py --steps 300
"""

import argparse

import torch
from torch import nn

from chordmixer import ChordMixer, Packed


class Network(nn.Module):
    def __init__(self, max_length: int) -> None:
        super().__init__()
        self.encoder = ChordMixer(max_length=max_length, track_size=4, hidden=32, prenorm="layer")
        self.embedding = nn.Linear(2, self.encoder.width)
        self.head = nn.Linear(self.encoder.width, 2)

    def forward(self, x: Packed) -> torch.Tensor:
        y = self.encoder(x.with_values(self.embedding(x.values)))
        return self.head(torch.stack([tokens.mean(dim=0) for tokens in y]))


def batch(sequences: int = 32) -> tuple[Packed, torch.Tensor]:
    """Sequences of 10 to 200 numbers, each beside its place from -1 to 1, and their classes."""
    numbers = [torch.randn(n) for n in torch.randint(10, 200, (sequences,))]
    tokens = [torch.stack([x, torch.linspace(-1, 1, len(x))], dim=1) for x in numbers]
    classes = [int(x[len(x) // 2 :].sum() > x[: len(x) // 2].sum()) for x in numbers]
    return Packed.from_list(tokens), torch.tensor(classes)


def main(steps: int) -> float:
    torch.manual_seed(0)
    network = Network(max_length=200)
    optimizer = torch.optim.AdamW(network.parameters(), lr=3e-3)
    for step in range(steps):
        x, classes = batch()
        loss = nn.functional.cross_entropy(network(x), classes)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            print(f"step {step}: loss {loss.item():.3f}")
    x, classes = batch(500)
    with torch.no_grad():
        accuracy = (network.eval()(x).argmax(dim=1) == classes).float().mean().item()
    print(f"accuracy on 500 new sequences: {accuracy:.3f}")
    return accuracy


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300)
    main(parser.parse_args().steps)
