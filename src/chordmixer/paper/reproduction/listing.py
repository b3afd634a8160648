"""The list that `chordmixer reproduce` shows: a table where there is room, else some lines for each entry."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from chordmixer.paper.reproduction.costs import Cost, Planned
from chordmixer.paper.reproduction.entries import Figure, RunEntry
from chordmixer.training.devices import format_bytes
from chordmixer.views.axes import compact
from chordmixer.views.plan import duration

WIDE = 120
"""Columns of a terminal from which on there is a table."""


def listing(entries: Mapping[str, RunEntry | Figure], costs: Mapping[str, Cost], width: int) -> RenderableType:
    """Every entry: what it is, the paper's number, the data that it needs, what it costs here."""
    facts = {name: (_what(e), _paper(e), _data(e), _cost(e, costs.get(name))) for name, e in entries.items()}
    if width < WIDE:
        return Group(*(_lines(name, *own) for name, own in facts.items()))
    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 2, 0, 0), expand=True)
    grid.add_column("name", style="bold", no_wrap=True)
    for title, ratio in (("what", 4), ("the paper", 4), ("data", 6), ("a run here takes about", 4)):
        grid.add_column(title, ratio=ratio, overflow="fold")
    for name, own in facts.items():
        grid.add_row(name, *map(Text, own))
    return grid


def _lines(name: str, what: str, paper: str, data: str, cost: str) -> Group:
    named = {"paper": paper, "data": data, "takes": cost}
    rows = [Padding(Text(f"{key}: {value}"), (0, 0, 0, 4)) for key, value in named.items() if value]
    return Group(Text.assemble((name, "bold"), f"  {what}"), *rows)


def _what(entry: RunEntry | Figure) -> str:
    return f"{entry.title} ({entry.where or 'ours'})"


def _paper(entry: RunEntry | Figure) -> str:
    if isinstance(entry, RunEntry) and "chordmixer" in entry.paper:
        return f"{entry.metric} {entry.paper['chordmixer']:.2f} %"
    return entry.claim or "not in it"


def _data(entry: RunEntry | Figure) -> str:
    data = entry.data
    if data.by_rule:
        return "made by rule" + (", or --data FOLDER of the release" if data.setting else "")
    return f"--data {data.needs}; {data.get}"


def _cost(entry: RunEntry | Figure, cost: Cost | None) -> str:
    if cost is None:
        return f"depends on the data ({entry.data.size})" if entry.data.size else "seconds"
    return words(cost)


def words(cost: Cost) -> str:
    """
    >>> words(Cost("cpu", 50_000, 21_000_000, 10, 1_200_000_000, 16_000_000_000, 7_300.0))
    '2.0 hours, 1.2 GB of 16.0 GB on cpu; 10 epochs of 50k records, 21M tokens'
    """
    time = "" if cost.seconds is None else f"{duration(cost.seconds)}, "
    passes = f"{cost.epochs} epoch{'' if cost.epochs == 1 else 's'}"
    short = "" if cost.memory <= cost.free else ", too much"
    memory = f"{format_bytes(cost.memory)} of {format_bytes(cost.free)}" if cost.memory else "memory not counted,"
    return (
        f"{time}{memory} on {cost.device}{short}; {passes} of "
        f"{compact(cost.records)} records, {compact(float(f'{cost.tokens:.2g}'))} tokens"
    )


def plan_lines(name: str, plans: Sequence[Planned]) -> Iterator[str]:
    """What `--plan` says of an entry: a line a model, and the time of all runs where there are several."""
    for model, _, cost in plans:
        yield f"a run of {name} with {model} takes about {words(cost)}"
    runs = sum(own.runs for own in plans)
    if runs > 1 and all(own.cost.seconds is not None for own in plans):
        whole = sum(own.runs * (own.cost.seconds or 0.0) for own in plans)
        yield f"{runs} runs one after the other take about {duration(whole)}"
    yield "Validation and test are counted, baselines are not; a run may end earlier."
