"""The paper's table of peak memory and running time (Khalitov et al., ICLR 2023), as it stands there."""

from __future__ import annotations

SOURCE = (
    'Khalitov et al. (ICLR 2023), appendix, "Peak memory and running time comparison": the Adding problem on one '
    "Tesla V100 of 32 GB, padded to the longest of a batch but for Linformer. It does not say whether the time is of "
    "training or of inference, nor the batches; a dash is where it has no number."
)

Cost = tuple[float, float]
"""Peak memory in GB, milliseconds a sequence."""

PAPER: dict[int, dict[str, Cost]] = {
    200: {
        "lstm": (1.5, 460),
        "tree_lstm": (25.3, 9831),
        "cnn": (1.4, 3.3),
        "tcn": (1.4, 5.1),
        "transformer": (1.9, 9.8),
        "linformer": (1.6, 12.5),
        "reformer": (2.0, 23.3),
        "longformer": (1.7, 11.1),
        "luna": (1.7, 16.6),
        "s4d": (1.4, 3.2),
        "poolformer": (1.4, 3.9),
        "cosformer": (1.5, 8.7),
        "chordmixer": (1.5, 4.9),
    },
    128_000: {"poolformer": (13.6, 378), "cosformer": (22.6, 994), "chordmixer": (23.1, 604)},
}
"""By base length and encoder; its S4 stands beside our S4D. At 128,000 it has dashes for all others."""


def cost(base_length: int | None, encoder: str) -> Cost | None:
    """
    >>> cost(200, "cnn"), cost(128_000, "cnn"), cost(None, "cnn")
    ((1.4, 3.3), None, None)
    """
    return PAPER.get(base_length or 0, {}).get(encoder)


def compares(base_length: int | None) -> bool:
    """Whether the paper measured at this base length."""
    return base_length in PAPER
