"""A model is three parts: an embedding, an encoder, a head. Every encoder shares the other two."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch
from huggingface_hub import PyTorchModelHubMixin
from jaxtyping import Float
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from chordmixer import files, ops
from chordmixer.config import LONGEST, check_numbers, from_dict, to_dict, typed
from chordmixer.models import encoders, strategies
from chordmixer.models.chordmixer import ChordMixerConfig
from chordmixer.models.embeddings import EMBEDDINGS, StartMark, add_standardised
from chordmixer.models.heads import HEADS, StandardHead, TokensHead, log_lengths
from chordmixer.models.norms import Norm
from chordmixer.models.positions import PositionEmbedding
from chordmixer.models.stem import Stem, StemConfig
from chordmixer.models.words import Words, WordsConfig
from chordmixer.packed import Packed, check_packed

FORMAT = 2
"""Version of config.json and of the weights' names; other versions are refused when read."""


@dataclass(frozen=True)
class ModelConfig:
    """Settings of a model: embedding, encoder and head."""

    inputs: int
    """Vocabulary size for `tokens`, channels per token for `real`."""
    outputs: int
    """Number of outputs of the head: the number of classes, or 1 for a regression."""
    embedding: Literal["tokens", "real"] = "tokens"
    """Type of the inputs: token ids or real numbers."""
    head: Literal[
        "average",
        "standard",
        "maximum",
        "mean_maximum",
        "attention",
        "mean_maximum_attention",
        "class_token",
        "flat",
        "last",
        "pair",
        "tokens",
        "variant",
    ] = "average"
    """How outputs are computed from the encoder's tokens. `pair` has one output for two sequences, `variant` one for
    a window with either allele, and `flat` has weights for each position. `standard` is the mean with each channel
    standardised over records; `maximum`, `mean_maximum`, `attention` and `mean_maximum_attention` are standardised
    too."""
    head_dropout: float = 0.0
    """Share of a standardised head's features that are set to zero in training. Default 0."""
    strategy: strategies.Name = "packed"
    """How sequences of different lengths reach the encoder. All but `packed` pad with zeros that count as tokens, as
    the paper did for the other encoders: to the longest of the batch, so that outputs depend on the batch, or to
    `max_length`; `truncate` keeps the first tokens, `segment` averages the outputs of segments."""
    piece_length: int | None = None
    """Number of tokens that `truncate` keeps, or of a segment; None: the paper's 16,000 and 2,000."""
    encoder: str = "chordmixer"
    """A name in `chordmixer.models.ENCODERS`."""
    final_norm: Literal["layer"] | None = None
    """Normalisation of the encoder's tokens before the head."""
    within_record: bool = False
    """Give the network each real channel twice: as it is, and standardised within its record. Default: no."""
    drop_tokens: float = 0.0
    """Share of the tokens whose embedding is replaced by zeros in training."""
    mark_start: bool = False
    """Add a learned vector to each sequence's first token. ChordMixer rotates in a circle: without the mark, all
    rotations of a sequence have the same output, which is right for a plasmid and wrong for a formula."""
    positions: int = 0
    """Tokens at either end of a sequence that get a learned vector for their position, added to the embedding: for
    records that are aligned. Default 0: none, as in the paper."""
    stem: StemConfig = field(default_factory=StemConfig)
    """Convolutions before the encoder, for local patterns. Default: none, as in the paper."""
    length: bool = False
    """Whether a standardised head also reads the logarithm of each sequence's length. Pooling hides it. Default: no,
    as in the paper."""
    words: WordsConfig = field(default_factory=WordsConfig)
    """K-mers with embeddings of their own, added to the tokens; a standardised head also reads their mean.
    Default: none, as in the paper."""
    decoder: Literal["network"] | None = None
    """A second network between the encoder and a head with one output per token, with the same settings and final
    norm, as in the paper's autoencoder. None: the head reads the encoder's tokens, a light decoder."""
    network: Any = field(default_factory=ChordMixerConfig)
    """The settings of the encoder, an instance of its class's `Config`; `max_length` counts the user's tokens."""

    def __post_init__(self) -> None:
        sizes = {
            "inputs": (1, 1 << 26),
            "outputs": (1, 1 << 24),
            "piece_length": (1, LONGEST),
            "positions": (0, 1 << 16),
        }
        check_numbers(self, **sizes)
        config_class = encoders.encoder_class(self.encoder).Config
        if not isinstance(self.network, config_class):
            raise ValueError(
                f"encoder={self.encoder!r} does not take a {type(self.network).__name__}: give network="
                f"{config_class.__name__}(max_length=...)"
            )
        if not 0 <= self.drop_tokens < 1 or (self.drop_tokens and self.embedding != "tokens"):
            raise ValueError(
                f"drop_tokens={self.drop_tokens} with embedding={self.embedding!r} is not possible: give a share "
                "below 1, and 0 for real numbers, where zero is a number too"
            )
        if self.within_record and self.embedding != "real":
            raise ValueError(
                f"within_record=true with embedding={self.embedding!r} is not possible: only real numbers have a "
                "mean and a spread; set within_record=false"
            )
        if self.words.lengths and self.embedding != "tokens":
            raise ValueError(
                f"words.lengths={list(self.words.lengths)} with embedding={self.embedding!r} is not possible: real "
                "numbers have no words; set words.lengths=[]"
            )
        pooled = issubclass(HEADS[self.head], StandardHead)
        if not 0 <= self.head_dropout < 1 or (self.head_dropout and not pooled):
            raise ValueError(
                f"head_dropout={self.head_dropout} with head={self.head!r} is not possible: give a share below 1, "
                "and a standardised head such as standard or mean_maximum"
            )
        strategies.check_strategy(self.strategy, self.piece_length, self.head)
        if self.decoder and self.head != "tokens":
            raise ValueError(
                f"decoder={self.decoder!r} is for answers to every token, and head={self.head!r} gives one a record: "
                "set head=tokens, or decoder=none"
            )

    @staticmethod
    def kinds(settings: Mapping[str, Any]) -> dict[str, Any]:
        """Types of the fields whose type depends on other fields: `network` depends on `encoder`."""
        return {"network": encoders.encoder_class(settings.get("encoder", ModelConfig.encoder)).Config}

    def changing(self, changes: Mapping[str, Any]) -> ModelConfig:
        """The config that changes are applied to: another encoder starts from its default settings."""
        return self.with_encoder(changes.get("encoder", self.encoder))

    def with_encoder(self, name: str) -> ModelConfig:
        """The same model with another encoder, with that encoder's default sizes and the same maximum length.

        >>> ModelConfig(inputs=5, outputs=2).with_encoder("cosformer").network.layers
        2
        """
        kind = encoders.encoder_class(name).Config
        network = self.network if isinstance(self.network, kind) else kind(max_length=self.network.max_length)
        return replace(self, encoder=name, network=network)


class Model(nn.Module, PyTorchModelHubMixin, library_name="chordmixer", license="mit"):  # type: ignore[call-arg]
    """Embedding, encoder, head: `model(packed)` is (B, outputs) for pooled heads, a `Packed` for per-token ones.

    With the head `pair`, sequences 2i and 2i + 1 have one output, so there are B / 2.

    >>> network = ChordMixerConfig(max_length=100, track_size=4, hidden=16)
    >>> model = Model(ModelConfig(inputs=5, outputs=2, network=network))
    >>> model(Packed.from_list([torch.tensor([0, 1, 2]), torch.tensor([4])])).shape
    torch.Size([2, 2])
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        head = HEADS[config.head]
        self.strategy = strategies.STRATEGIES[config.strategy](config.network.max_length, config.piece_length)
        encoder_config = replace(config.network, max_length=self.strategy.longest + head.extra)
        self.encoder = encoders.build(config.encoder, encoder_config)
        width = int(self.encoder.width)  # type: ignore[arg-type]  # every encoder has one
        inputs = config.inputs * (2 if config.within_record else 1)
        self.embedding = EMBEDDINGS[config.embedding](inputs, width, config.drop_tokens)
        self.start = StartMark(width) if config.mark_start else nn.Identity()
        self.positions = PositionEmbedding(config.positions, width) if config.positions else None
        stem_inputs = width if config.embedding == "tokens" else inputs
        self.stem = Stem(config.stem, stem_inputs, width) if config.stem.layers else None
        self.words = Words(config.words, width) if config.words.lengths else None
        self.final_norm = Norm(config.final_norm, width)
        self.decoder = encoders.build(config.encoder, encoder_config) if config.decoder else None
        self.decoder_norm = Norm(config.final_norm if config.decoder else None, width)
        self.head = self._head(head, width, encoder_config.max_length)
        self.frozen = False

    def _head(self, head: type[TokensHead], width: int, longest: int) -> TokensHead:
        config = self.config
        if not issubclass(head, StandardHead):
            return head.for_length(width, config.outputs, longest)
        further = (config.words.width if config.words.lengths else 0) + config.length
        return head(width, config.outputs, further if config.strategy == "packed" else 0, config.head_dropout)

    def freeze(self) -> None:
        """Train only the head from now on; all parts before it are fixed and run in evaluation mode."""
        if self.head.extra:
            raise ValueError(
                f"model.head={self.config.head!r} learns through the encoder, which is frozen: set model.head=average"
            )
        self.frozen = True
        for part in self._before_head():
            part.requires_grad_(False)
        self.train(self.training)

    def train(self, mode: bool = True) -> Model:
        super().train(mode)
        for part in self._before_head() if self.frozen else ():
            part.eval()
        return self

    def _before_head(self) -> tuple[nn.Module, ...]:
        parts = (
            self.embedding,
            self.start,
            self.positions,
            self.stem,
            self.words,
            self.encoder,
            self.final_norm,
        )
        return tuple(part for part in parts if part is not None)

    def encode(self, x: Packed) -> Packed:
        """The encoder's tokens, before the head."""
        if self.config.strategy != "packed":
            raise ValueError(
                f"strategy={self.config.strategy!r} gives the encoder other tokens than the sequences have: only "
                "packed ones have a vector for each of theirs; train with strategy=packed"
            )
        return self._encode(x)[0]

    def _encode(self, x: Packed) -> tuple[Packed, tuple[Tensor, ...]]:
        """The head's inputs: the encoder's tokens, of the sequences or of the strategy's pieces of them, and further
        features of the sequences if the head reads any."""
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.frozen):
            tokens, further = self._embed(x)
            y = self.encoder(self.head.prepare(self.strategy.split(tokens)))
            return y.with_values(ops.normalise(y.values, y.offsets, self.final_norm.state())), further

    def _embed(self, x: Packed) -> tuple[Packed, tuple[Tensor, ...]]:
        """The encoder's input, which is the sum of embedding, start mark, positions, stem and words; and further
        features of the sequences for the head, which are mean word vectors and the length."""
        x = add_standardised(x) if self.config.within_record else x
        tokens: Packed = self.start(self.embedding(x))
        if self.positions is not None:
            tokens = self.positions(tokens)
        reads_further = isinstance(self.head, StandardHead) and self.config.strategy == "packed"
        further: list[Tensor] = []
        if self.stem is not None:
            local = self.stem(tokens if self.config.embedding == "tokens" else x)
            tokens = tokens.with_values(tokens.values + local)
        if self.words is not None:
            vectors, added = self.words(x)
            tokens = tokens.with_values(tokens.values + added)
            if reads_further:
                further.append(ops.segment_mean(vectors, x.offsets))
        if self.config.length and reads_further:
            further.append(log_lengths(x.offsets.diff()))
        return tokens, (torch.cat(further, dim=1),) if further else ()

    def _decode(self, x: Packed) -> Packed:
        if self.decoder is None:
            return x
        y: Packed = self.decoder(x)
        return y.with_values(ops.normalise(y.values, y.offsets, self.decoder_norm.state()))

    def forward(self, x: Packed) -> Float[Tensor, "B outputs"] | Packed:
        check_packed(x)
        x, marks = self.head.split_marks(x)
        y, further = self._encode(x)
        outputs: Tensor | Packed = self.head(self._decode(y), *marks, *further)
        return outputs if isinstance(outputs, Packed) else self.strategy.combine(outputs, x)

    def _save_pretrained(self, save_directory: Path) -> None:
        """The hub mixin's hook: write the config and the weights as safetensors, each file atomically."""
        config = files.json_bytes({"format": FORMAT, "model": to_dict(self.config)})
        weights = files.tensor_bytes(self.state_dict())
        files.write_recorded(save_directory, {"config.json": config, "model.safetensors": weights})

    @classmethod
    def from_pretrained(cls, source: str | Path, *, device: str = "cpu", **hub: Any) -> Model:
        """A trained model, ready for evaluation, from a run folder or a repository of the Hugging Face hub.

        Where a manifest.json records the config, as in every folder that this package wrote, config and weights are
        verified by their SHA-256; a folder without a manifest is not verified.
        """
        folder = downloaded(source, ["config.json", "model.safetensors", files.MANIFEST], hub)
        if "config.json" in files.recorded(folder):
            files.verify(folder, ["config.json", "model.safetensors"])
        config = read_config(folder)
        wanted = from_dict(ModelConfig, config["model"], f"{folder / 'config.json'}: model")
        weights = files.read_tensors(folder / "model.safetensors")
        with without_memory():  # a config may ask for more memory than there is
            shapes = {name: value.shape for name, value in cls(wanted).state_dict().items()}
        if mismatches := sorted(shapes.items() ^ {name: value.shape for name, value in weights.items()}.items()):
            raise ValueError(
                f"{folder / 'model.safetensors'} does not fit its config.json, first at {mismatches[0][0]}: "
                "use the two files of one run"
            )
        model = cls(wanted)
        model.load_state_dict(weights)
        return model.to(torch.device(device)).eval()


class _SkipInit(TorchFunctionMode):
    """Skip random initialisation on the meta device, where it would load torch's compiler, which takes seconds."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = kwargs or {}
        if func in (nn.init.normal_, Tensor.normal_):
            return args[0] if args else options["tensor"]
        return func(*args, **options)


@contextmanager
def without_memory() -> Iterator[None]:
    """Context in which models are built without memory for weights; too large weights raise a ValueError."""
    try:
        with torch.device("meta"), _SkipInit():
            yield
    except (RuntimeError, OverflowError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"a model of these settings has too many weights to count ({reason}): give smaller ones"
        ) from None


def read_config(folder: Path) -> dict[str, Any]:
    """Read the config.json of a model or run folder; raise a ValueError if its format is another version."""
    config = files.read_json(folder / "config.json")
    if config.get("format") != FORMAT or "model" not in config:
        raise ValueError(
            f"{folder / 'config.json'} has format {config.get('format')!r}: this version of chordmixer reads "
            f"format {FORMAT}; use the version that wrote it, or train again"
        )
    kinds = {"task": str, "version": str, "data": dict[str, Any], "model": dict[str, Any], "training": dict[str, Any]}
    for name in kinds.keys() & config.keys():
        typed(kinds[name], config[name], f"{folder / 'config.json'}: {name}")
    return config


def downloaded(source: Path | str, patterns: Sequence[str], hub: Mapping[str, Any]) -> Path:
    """The path of a local folder (also as file://PATH), or of files downloaded from a Hugging Face repository."""
    folder = str(source).removeprefix("file://")
    if files.is_folder(folder):
        return Path(folder)
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(str(source), allow_patterns=list(patterns), **hub))
    except (ValueError, OSError) as error:  # the hub's errors are subclasses of these
        raise ValueError(
            f"{str(source)[:100]} is neither a folder nor a repository that can be reached: give a run folder or a "
            "Hugging Face repository id"
        ) from error
