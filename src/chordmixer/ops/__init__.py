"""The one door to the operations on packed tokens: pure functions of tensors.

`reference.py` defines them in plain torch.
"""

from chordmixer.ops.reference import Mlp, Norm, block, mix, normalise, rotate, segment_mean

__all__ = ["Mlp", "Norm", "block", "mix", "normalise", "rotate", "segment_mean"]
