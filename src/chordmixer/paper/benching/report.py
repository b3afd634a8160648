"""The files of a benchmark: JSON for programs, Markdown for people with what the numbers say in words, a picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

from chordmixer import files
from chordmixer.config import from_dict
from chordmixer.paper.benching import cells
from chordmixer.paper.benching.cases import BenchConfig, Setting
from chordmixer.paper.benching.measuring import ROUNDS, SECONDS
from chordmixer.paper.benching.published import PAPER, SOURCE, compares
from chordmixer.paper.benching.results import Reach, Result, ours, ratio
from chordmixer.paper.reproduction.page import Origin, table

FORMAT = 1
DOUBTFUL = 0.25
"""The spread from which on a time is not to be relied on."""


@dataclass(frozen=True)
class Report:
    """All that was measured, and where."""

    place: Origin
    command: str
    """A line for each that went on with it."""
    config: BenchConfig
    threads: int
    settings: tuple[Setting, ...]
    results: tuple[Result, ...] = ()
    reaches: tuple[Reach, ...] = ()

    def has(self, model: str, what: Setting | str) -> bool:
        """Whether a model was measured at a setting, or its longest sequence was searched for in a phase; not if it
        was stopped sooner than it would be now."""
        own: list[Result] | list[Reach]
        if isinstance(what, Setting):
            own = [r for r in self.results if (r.encoder, r.setting) == (model, what.name)]
        else:
            own = [r for r in self.reaches if (r.encoder, r.phase) == (model, what)]
        return any(r.limit is None or r.limit >= self.config.time_limit for r in own)

    def plus(self, new: Result | Reach) -> Report:
        """With one more, in place of what was there of the same."""
        if isinstance(new, Result):
            others = (r for r in self.results if (r.encoder, r.setting) != (new.encoder, new.setting))
            return replace(self, results=(*others, new))
        rest = (r for r in self.reaches if (r.encoder, r.phase) != (new.encoder, new.phase))
        return replace(self, reaches=(*rest, new))

    def at(self, setting: Setting) -> list[Result]:
        """The results at a setting, the fastest in training first, then those that failed."""
        own = [r for r in self.results if r.setting == setting.name]
        return sorted(own, key=lambda r: (r.training is None, r.time("training") or r.time("inference") or 0.0))


def write(report: Report, path: Path, draw: bool = False) -> None:
    """The .json file, .md beside it, and a picture too where there is something to draw."""
    place = asdict(report.place)
    about = {field.name: getattr(report, field.name) for field in fields(report) if field.name != "place"}
    about |= {"config": asdict(report.config)}
    for name in ("settings", "results", "reaches"):
        about[name] = [asdict(own) for own in about[name]]
    files.write_json(path, {"format": FORMAT, **place, **about, "paper": {"source": SOURCE, "table": PAPER}})
    seen = [s for s in report.settings if any(r.inference for r in report.at(s))] if draw else []
    if seen:
        from chordmixer.paper.views import speed  # it knows results; they need not know it

        speed.plot(seen, report.results, path.with_suffix(".png"))
    files.write_text(path.with_suffix(".md"), markdown(report, path.with_suffix(".png").name if seen else ""))


def load(path: Path) -> Report:
    """What `write` wrote."""
    known = files.read_json(path)
    if known.get("format") != FORMAT or not all(f.name in known for f in fields(Report) if f.name != "place"):
        raise ValueError(f"{path} is not a benchmark of this version of chordmixer: give another --out")
    place = {field.name: known[field.name] for field in fields(Origin) if field.name in known}
    own = {field.name: known[field.name] for field in fields(Report) if field.name != "place"}
    return from_dict(Report, {"place": place, **own}, str(path))


def markdown(report: Report, picture: str = "") -> str:
    """The page: a table and some sentences for each setting."""
    place, config = report.place, report.config
    threads = "" if config.device == "cuda" else f", {report.threads} thread{'s' * (report.threads > 1)}"
    parts = [
        f"# Time and memory of encoders, {place.date}",
        f"Made on {place.date} on {place.device}{threads} with torch {place.torch_version}, commit {place.commit}; "
        f"{config.precision}, batches of {config.batch}, backend {config.backend}.",
        f"```sh\n{report.command}\n```" if report.command else "",
    ]
    for setting in report.settings:
        results = report.at(setting)
        heading = f"## {setting.name.capitalize()}, longest {setting.longest:,}"
        rows = [cells.row(result, ours(results, setting.name), setting.base_length) for result in results]
        parts += [heading, "\n".join(table(cells.header(setting.base_length), rows)), *words(results, setting)]
    if report.reaches:
        parts += ["## The longest sequence", "\n".join(table(cells.REACH, [cells.reach(r) for r in report.reaches]))]
    parts += [
        f"![Time and memory]({picture})" if picture else "",
        "## How it was measured",
        "\n".join(_notes(report)),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


# --- In words ---


def words(results: Sequence[Result], setting: Setting) -> list[str]:
    """Who is faster than ChordMixer, and who did not get through."""
    said = []
    if (own := ours(results, setting.name)) is None:
        said.append("ChordMixer was not measured here, so nothing is compared with it.")
    else:
        said += [_faster(results, own, phase, setting) for phase in ("training", "inference") if getattr(own, phase)]
        said += _among_those_that_reach(results, own, setting)
    if shaky := [r.encoder for r in results if any(p and p.spread > DOUBTFUL for p in (r.training, r.inference))]:
        said.append(
            f"Doubtful, since the middle half of the rounds spreads over more than {DOUBTFUL:.0%} of the median: "
            f"{', '.join(shaky)}."
        )
    if stopped := [f"{r.encoder} ({r.verdict}: {r.message})" for r in results if r.failed]:
        said.append(f"Did not get through: {', '.join(stopped)}.")
    return said


def _faster(results: Sequence[Result], own: Result, phase: str, setting: Setting) -> str:
    """
    >>> from chordmixer.paper.benching.cases import fixed
    >>> from chordmixer.paper.benching.results import Phase
    >>> quick, slow = (Phase(ms, 1.0, 1, 1) for ms in (1.0, 2.0))
    >>> both = [Result("cnn", "length 9", training=quick), Result("chordmixer", "length 9", training=slow)]
    >>> _faster(both, both[1], "training", fixed(9, 1))
    'In training these are faster than ChordMixer: cnn (0.50 of its time).'
    """
    shares = [(share, r) for r in results if (share := ratio(r.time(phase), own.time(phase))) and share < 1]
    if not shares:
        return f"In {phase} no other encoder is faster than ChordMixer."
    shares.sort(key=lambda pair: pair[0])
    named = [f"{r.encoder} ({share:.2f} of its time{_sees(r, setting)})" for share, r in shares]
    return f"In {phase} these are faster than ChordMixer: {', '.join(named)}."


def _sees(result: Result, setting: Setting) -> str:
    near = result.receptive_field
    return f", a token sees {near:,}" if near is not None and near < setting.longest else ""


def _among_those_that_reach(results: Sequence[Result], own: Result, setting: Setting) -> list[str]:
    """The fastest of those that see whole sequences and trained on the longest too."""
    there = [r for r in results if r.training and not r.failed and not _sees(r, setting)]
    if own not in there or len(there) < 2:
        return []
    first, second = sorted(there, key=lambda r: r.time("training") or 0.0)[:2]
    share = ratio(second.time("training"), first.time("training")) or 0.0
    return [
        f"Of the {len(there)} that train on {setting.longest:,} tokens and see whole sequences, {first.encoder} is "
        f"the fastest in training; {second.encoder}, the next, takes {share:.2f} times as long."
    ]


def _notes(report: Report) -> list[str]:
    cuda = report.config.device == "cuda"
    clock = "CUDA events" if cuda else "the clock on the wall"
    memory = (
        "what torch's allocator held at most, without what CUDA itself takes"
        if cuda
        else "what was resident at most, beyond Python and torch themselves"
    )
    notes = [
        "Each encoder has its default settings, the Adding problem's embedding and head, and a process of its own.",
        "First its outputs are checked on sequences of up to 2,000 tokens: finite, and the same alone and in a batch "
        "to 1e-4 in float32. Then it is timed.",
        f"Time is of batches, divided by their sequences, by {clock}: the median of {ROUNDS} rounds or more, of "
        f"fewer where these take over {SECONDS:g} s, after one that is not counted. Training is forward, backward "
        "and AdamW.",
        f"Memory is {memory}; where a longest length is named, it includes that of such a sequence alone.",
        "Tokens a second are useful ones, in training where that was possible. Padding is that of rows padded "
        "together; zeros within Fourier transforms are not counted.",
        "A crash, memory that ran out, more time than there was for it: each is a result.",
    ]
    if any(setting.base_length for setting in report.settings):
        notes.append("Lengths of a base length are quantiles of the Adding problem's, short and long in every batch.")
    if any(compares(setting.base_length) for setting in report.settings):
        notes.append(f"The paper: {SOURCE} Its S4 stands beside our S4D.")
    return [f"- {note}" for note in notes]
