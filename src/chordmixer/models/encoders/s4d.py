"""S4D: one long convolution per channel, whose kernel is a sum of decaying waves (Gu, Gupta, Goel and Re 2022).

The diagonal form of S4 (Gu, Goel and Re 2022), with the S4D-Lin start. A channel has `modes` complex states h that
follow h' = A h + x, read out by C; held constant over a step dt, that is a convolution with

    K_l = 2 Re sum over modes of C (exp(dt A) - 1) / A * exp(l dt A),        A = -exp(log_re) + i im,

done by the fast Fourier transform, then D x is added, GELU, a linear map to twice the width and a GLU. Layers and
width are the ChordMixer paper's for S4 on the Adding problem. Ours: the diagonal form, and behind it the MLP that
most encoders have. Receptive field: the token and all before it. Cost: O(N log N) a layer.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log, pi, sqrt

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from chordmixer.models.encoders.layers import Residual, check_settings
from chordmixer.models.encoders.packed_layers import PackedStack, long_convolution
from chordmixer.packed import Packed


@dataclass(frozen=True)
class S4dConfig:
    """The defaults are the paper's for S4 on the Adding problem."""

    max_length: int
    """The longest sequence that is accepted; no weight depends on it."""
    width: int = 32
    """Number of channels per token."""
    layers: int = 4
    """Number of blocks."""
    modes: int = 32
    """Number of complex states per channel."""
    expansion: int = 2
    """Hidden width of each MLP, as a multiple of `width`."""
    dropout: float = 0.0
    """Share of each part's output that is set to zero in training."""

    def __post_init__(self) -> None:
        check_settings(self)


class DiagonalStateSpace(nn.Module):
    """The convolution, GELU, and a GLU over channels."""

    def __init__(self, width: int, modes: int) -> None:
        super().__init__()
        self.log_dt = nn.Parameter(torch.empty(width).uniform_(log(1e-3), log(1e-1)))
        self.log_re = nn.Parameter(torch.full((width, modes), log(0.5)))
        self.im = nn.Parameter(pi * torch.arange(modes).float().repeat(width, 1))
        self.read = nn.Parameter(torch.randn(width, modes, 2) * sqrt(0.5))  # C: real and imaginary parts
        self.skip = nn.Parameter(torch.randn(width))  # D
        self.out = nn.Linear(width, 2 * width)

    def kernel(self, length: int) -> Float[Tensor, "N C"]:
        """K_0 to K_(length-1), in pieces of about sqrt(N) positions.

        The wave at position piece * size + rest is the product of one at piece * size and one at rest, so the sum
        over modes is a matrix product, without a tensor of N times modes.

        >>> DiagonalStateSpace(width=8, modes=4).kernel(1000).shape
        torch.Size([1000, 8])
        """
        size = ceil(sqrt(length))
        a = torch.complex(-self.log_re.exp(), self.im)
        step = self.log_dt.exp()[:, None] * a
        weight = 2 * torch.view_as_complex(self.read) * torch.expm1(step) / a
        place = torch.arange(size, device=step.device)
        rest = torch.exp(step[:, :, None] * place)
        pieces = weight[:, :, None] * torch.exp(step[:, :, None] * (size * place))
        waves = (pieces.transpose(1, 2) @ rest).real
        return waves.flatten(1)[:, :length].T

    def forward(self, values: Float[Tensor, "T C"], x: Packed) -> Float[Tensor, "T C"]:
        mixed = long_convolution(x.with_values(values), self.kernel(max(x.lengths))) + self.skip * values
        return F.glu(self.out(F.gelu(mixed)), dim=1)


class S4d(PackedStack):
    """State spaces with a diagonal matrix, one per channel.

    >>> encoder = S4d(S4dConfig(max_length=100, width=8))
    >>> encoder(Packed.from_list([torch.randn(n, 8) for n in (100, 1)])).values.shape
    torch.Size([101, 8])
    >>> encoder.small_rate[:3]
    ('blocks.0.mixer.log_dt', 'blocks.0.mixer.log_re', 'blocks.0.mixer.im')
    """

    Config = S4dConfig

    def __init__(self, config: S4dConfig) -> None:
        super().__init__(
            config,
            (
                Residual(
                    config.width, DiagonalStateSpace(config.width, config.modes), config.expansion, config.dropout
                )
                for _ in range(config.layers)
            ),
        )

    @property
    def small_rate(self) -> tuple[str, ...]:
        """Parameters of dt and A: they need a small learning rate, 1e-3 or less, and no weight decay."""
        names = (name for name, _ in self.named_parameters())
        return tuple(name for name in names if name.endswith((".log_dt", ".log_re", ".im")))
