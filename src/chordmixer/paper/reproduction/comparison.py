"""The page of trained runs: scores beside the paper's and the baselines', by length, and settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from statistics import mean
from typing import Any

from chordmixer.config import to_dict
from chordmixer.models import ChordMixerConfig
from chordmixer.paper.reproduction import entries
from chordmixer.paper.reproduction.entries import RunEntry
from chordmixer.paper.reproduction.experiments import listed
from chordmixer.paper.reproduction.page import PageContent, png, table
from chordmixer.paper.reproduction.running import DataSummary, Losses, TrainedRun
from chordmixer.training import Evaluation
from chordmixer.training.intervals import Difference
from chordmixer.views import metrics, verdict
from chordmixer.views.plan import duration
from chordmixer.views.plots import plot_lengths
from chordmixer.views.runs import Scored
from chordmixer.views.tables import CONSTANT, WIDE, interval_name, mean_over_seeds, percent_cell


def compare(
    name: str,
    entry: RunEntry,
    trained: Sequence[TrainedRun],
    seen: DataSummary,
    warnings: list[str],
    given: bool,
    losses: Losses | None = None,
    differences: Mapping[str, Difference] | None = None,
) -> PageContent:
    """The page's content; `given` says whether the user gave data, or a rule made them.

    `losses` are those that the rates of the runs were chosen by, where there was a choice; `differences` are those of
    each model to the best baseline.
    """
    losses, differences = losses or {}, differences or {}
    runs, baselines = evaluations(entry, trained), trained[0].baselines
    models = mean_over_seeds(runs[: len(trained)])
    parts = [
        _scores(entry, trained, models, baselines, rate=bool(losses)),
        [f"{_metric(entry)} Rows are in the order of their scores."],
        [why_below(entry, trained, models, seen, given)],
        _losses(losses),
        [_beside_baselines(baselines, entry.metric, differences) if baselines else ""],
        [f"In brackets: {interval_name(runs)}. {_data(seen)}"],
        _by_length(runs),
        _settings(entry, trained),
    ]
    body = [line for part in parts if any(part) for line in (*part, "")][:-1]
    numbers = {
        "data": asdict(seen),
        "interval": interval_name(runs),
        "models": [{"encoder": model.encoder, "scores": _numbers(model)} for model in models],
        "less_the_best_baseline": {model: asdict(own) for model, own in differences.items()},
        "baselines": [{"name": b.name, "sentence": b.sentence, "scores": _numbers(b.evaluation)} for b in baselines],
        "validation_loss_by_rate": {
            model: {f"{rate:g}": loss for rate, loss in own.items()} for model, own in losses.items()
        },
        "runs": [_run(run) for run in trained],
    }
    apart = [*entry.differences, *([] if given else entry.if_by_rule), *_seeds(entry, trained)]
    picture = png(lambda path: plot_lengths(runs, path, entry.title))
    return PageContent(name, entry, body, numbers, warnings, apart, {"": picture})


def evaluations(entry: RunEntry, trained: Sequence[TrainedRun]) -> list[Evaluation]:
    """With the paper's metric first, and behind the runs the best baseline by it, where any was scored."""
    runs = [replace(run.evaluation, headline=entry.metric) for run in trained]
    if best := verdict.best_baseline(trained[0].baselines, entry.metric):
        runs.append(replace(best.evaluation, encoder=f"baseline: {best.name}", headline=entry.metric))
    return runs


# --- Markdown ---


def _scores(
    entry: RunEntry,
    trained: Sequence[TrainedRun],
    models: Sequence[Evaluation],
    baselines: Sequence[Scored],
    rate: bool,
) -> list[str]:
    known = any(model.encoder in entry.paper for model in models)
    header = ["model", f"{entry.metric} here, %", *(["the paper, %", "here less the paper"] if known else [])]
    header += [*(["rate"] if rate else []), "runs", "steps a run", "time a run"]
    rows = list[tuple[float, list[str]]]()
    for model in models:
        own = [run for run in trained if run.evaluation.encoder == model.encoder]
        score, paper = model.scores[entry.metric], entry.paper.get(model.encoder)
        beside = ["", ""] if paper is None else [f"{paper:.2f}", f"{100 * score.value - paper:+.2f}"]
        numbers = [f"{own[0].experiment.training.learning_rate:g}"] if rate else []
        numbers += [str(len(own)), f"{round(mean(run.steps for run in own)):,}", _time(own)]
        rows.append(
            (score.value, [model.encoder, str(percent_cell(score, 2, 2)), *(beside if known else []), *numbers])
        )
    blank = [""] * (len(header) - 2)
    for baseline in baselines:
        score = baseline.evaluation.scores[entry.metric]
        rows.append((score.value, [f"baseline: {baseline.name}", str(percent_cell(score, 2, 2)), *blank]))
    guessing = models[0].guessing[entry.metric]
    rows.append((guessing, [CONSTANT, f"{100 * guessing:.2f}", *blank]))
    return table(header, [row for _, row in sorted(rows, key=lambda own: _rank(own[0], entry.metric))])


def _rank(score: float, metric: str) -> float:
    """What rows are sorted by, the best first and undefined scores last."""
    if score != score:
        return float("inf")
    return score if metric in metrics.LESS_IS_BETTER else -score


def _metric(entry: RunEntry) -> str:
    """What the numbers are."""
    meaning = metrics.MEANINGS[entry.metric].rstrip(".")
    right = f" {entry.right}" if entry.right else ""
    return f"{metrics.title(entry.metric)}: {meaning}; here in per cent.{right}"


def _losses(losses: Losses) -> list[str]:
    """A row a model, a column a rate."""
    tried = sorted({rate for own in losses.values() for rate in own})
    rows = [[model, *(f"{own[rate]:.4g}" for rate in tried)] for model, own in losses.items()]
    return table(["lowest validation loss at a rate of", *(f"{rate:g}" for rate in tried)], rows) if rows else []


def _beside_baselines(baselines: Sequence[Scored], metric: str, differences: Mapping[str, Difference]) -> str:
    """Whether the best of them wins, and what each is."""
    what = "; ".join(f"{own.name}: {own.sentence}" for own in baselines)
    best = verdict.best_baseline(baselines, metric)
    wins = [against(replace(best.evaluation, encoder=best.name), metric, differences)] if best else []
    how = "Baselines are fitted on the training records, as strongly as the validation records want it."
    return " ".join([*wins, how, f"{what[0].upper()}{what[1:]}."])


def against(best: Evaluation, metric: str, differences: Mapping[str, Difference]) -> str:
    """How each model stands to the best baseline, on the same records."""
    found = dict[str, list[str]]()
    for model, difference in differences.items():
        found.setdefault(verdict.compared(difference, "{}"), []).append(model)
    said = [f"{stands.format(listed(names))}." for stands, names in found.items()]
    return " ".join([f"The best baseline, {best.encoder}, reaches {100 * best.scores[metric].value:.2f} %.", *said])


def _data(seen: DataSummary) -> str:
    counts = ", ".join(f"{count:,} {part}" for part, count in seen.records.items())
    classes = f" in {len(seen.classes)} classes" if seen.classes else ""
    return (
        f"Data: {counts} records of {seen.shortest:,} to {seen.longest:,} tokens{classes}. The test records were "
        "scored once a run, with the weights that the validation records chose."
    )


def _by_length(runs: list[Evaluation]) -> list[str]:
    """A row a length bin; of many models a row each, whose intervals would be too many to read."""
    metric = runs[0].headline
    models = sorted(mean_over_seeds(runs), key=lambda own: _rank(own.scores[metric].value, metric))
    bins = [(str(row.percentile), f"{row.shortest:,} to {row.longest:,}") for row in runs[0].by_length]
    if len(models) > WIDE:
        rows = [
            [model.encoder, *(percent_cell(row.scores[metric]).value for row in model.by_length)] for model in models
        ]
        header = ["% by length percentile", *(f"{percentile}: {own}" for percentile, own in bins)]
        return [*table(header, rows), "", "The intervals of these stand in the JSON file beside this page."]
    rows = [
        [*own, f"{row.records:,}", *(str(percent_cell(model.by_length[i].scores[metric], 1, 1)) for model in models)]
        for i, (own, row) in enumerate(zip(bins, runs[0].by_length, strict=True))
    ]
    return table(["length percentile", "lengths", "records", *(f"{model.encoder}, %" for model in models)], rows)


def _settings(entry: RunEntry, trained: Sequence[TrainedRun]) -> list[str]:
    """Of ChordMixer, or else the first model, beside the paper's and its code's; then the sizes of other encoders."""
    experiment = min((run.experiment for run in trained), key=lambda own: own.model.encoder != "chordmixer")
    networks = {run.experiment.model.encoder: run.experiment.model.network for run in trained}
    way = "in the same way" + (
        ", each at its rate" if len({run.experiment.training.learning_rate for run in trained}) > 1 else ""
    )
    sizes = [
        f"{name}: " + ", ".join(f"{key} {value}" for key, value in to_dict(own).items() if key != "max_length")
        for name, own in networks.items()
        if not isinstance(own, ChordMixerConfig)
    ]
    head = ["setting", f"here, {experiment.model.encoder}", "the paper", "its released code"]
    others = f"The others train {way}, padded versions with smaller batches. Their sizes: {'; '.join(sizes)}."
    rows = entries.rows(experiment, entry.hyper, entry.released)
    return [*table(head, rows), *(["", others] if sizes else [])]


def _seeds(entry: RunEntry, trained: Sequence[TrainedRun]) -> list[str]:
    own = len({run.experiment.training.seed for run in trained})
    if not entry.seeds or own == entry.seeds:
        return []
    return [f"The paper's is a mean of {entry.seeds} runs with other seeds; this is {own} a model."]


def _time(runs: Sequence[TrainedRun]) -> str:
    taken = duration(mean(run.seconds for run in runs))
    return f"over {taken}" if any(run.killed for run in runs) else taken


# --- For programs ---


def _numbers(evaluation: Evaluation) -> dict[str, Any]:
    return {name: asdict(score) for name, score in evaluation.scores.items()}


def _run(run: TrainedRun) -> dict[str, Any]:
    experiment = run.experiment
    return {
        "seed": experiment.training.seed,
        "seconds": round(run.seconds, 1),
        "some_seconds_unknown": run.killed,
        "steps": run.steps,
        "settings": {"model": to_dict(experiment.model), "training": to_dict(experiment.training)},
        **asdict(run.evaluation),
    }


def why_below(
    entry: RunEntry, trained: Sequence[TrainedRun], models: Sequence[Evaluation], seen: DataSummary, given: bool
) -> str:
    """A sentence on the models that score below their numbers in the paper; empty where none does.

    `given` says whether the user gave data, or a rule made them.
    """
    below = {
        model.encoder: entry.paper[model.encoder] - 100 * model.scores[entry.metric].value
        for model in models
        if model.encoder in entry.paper
    }
    points = ", ".join(f"{name} by {gap:.2f} points" for name, gap in below.items() if gap > 0)
    if not points:
        return ""
    known = list(_known(entry, trained, seen, given))
    why = f"what is known to differ is {'; '.join(known)}" if known else "no difference in protocol is known"
    return f"Below the paper is {points}: {why}. How much each of these costs was not measured."


def _known(entry: RunEntry, trained: Sequence[TrainedRun], seen: DataSummary, given: bool) -> Iterator[str]:
    experiment = min((run.experiment for run in trained), key=lambda own: own.model.encoder != "chordmixer")
    training, network = experiment.training, experiment.model.network
    if entry.released and training.epochs < entry.released.epochs:
        yield f"fewer epochs ({training.epochs:,} at most, {entry.released.epochs:,} in the released code)"
    if training.steps or training.minutes:
        yield f"an early end ({f'{training.steps:,} steps' if training.steps else f'{training.minutes:g} min'})"
    if entry.hyper and isinstance(network, ChordMixerConfig):
        theirs = (entry.hyper.hidden, entry.hyper.track_size, entry.hyper.rate)
        if (network.hidden, network.track_size, training.learning_rate) != theirs:
            yield "other settings (table below)"
    if {name.lower() for name in entry.classes} - {name.lower() for name in seen.classes}:
        yield "other classes than the paper's"
    elif not given and entry.if_by_rule:
        yield "data of our own generator, not the release's"
    runs = len({run.experiment.training.seed for run in trained})
    if runs < entry.seeds:
        yield f"{runs} run{'' if runs == 1 else 's'} where the paper has the mean of {entry.seeds}"
    if entry.differences:
        yield "the protocol (end of this page)"
