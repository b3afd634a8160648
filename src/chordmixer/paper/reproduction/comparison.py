"""The page of trained runs: scores beside the paper's and the baselines', by length, and settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from statistics import mean
from typing import Any

from chordmixer.config import to_dict
from chordmixer.models import ChordMixerConfig
from chordmixer.paper.reproduction import entries
from chordmixer.paper.reproduction.entries import RunEntry
from chordmixer.paper.reproduction.experiments import listed
from chordmixer.paper.reproduction.page import PageContent, png, table
from chordmixer.paper.reproduction.running import DataSummary, Losses, TrainedRun
from chordmixer.training import Experiment
from chordmixer.training.evaluation import Evaluation
from chordmixer.training.intervals import Difference
from chordmixer.views import metrics, verdict
from chordmixer.views.metrics import duration
from chordmixer.views.plots import plot_lengths
from chordmixer.views.tables import CONSTANT, MAX_COLUMNS, interval_name, mean_over_seeds, percent_cell


@dataclass(frozen=True)
class Comparison:
    """Trained runs of an entry, to be shown beside the paper's numbers."""

    entry: RunEntry
    trained: Sequence[TrainedRun]
    seen: DataSummary
    given: bool  # whether the user gave data, or a rule made them
    losses: Losses = field(
        default_factory=dict
    )  # by which the rates of the runs were chosen, where there was a choice
    differences: Mapping[str, Difference] = field(default_factory=dict)  # of each model to the best baseline

    @cached_property
    def runs(self) -> list[Evaluation]:
        """With the paper's metric first, and behind the runs the best baseline by it, where any was scored."""
        runs = [replace(run.evaluation, headline=self.entry.metric) for run in self.trained]
        if best := verdict.best_baseline(self.trained[0].baselines, self.entry.metric):
            runs.append(replace(best.evaluation, encoder=f"baseline: {best.name}", headline=self.entry.metric))
        return runs

    @cached_property
    def models(self) -> list[Evaluation]:
        return mean_over_seeds(self.runs[: len(self.trained)])

    @property
    def experiment(self) -> Experiment:
        """That of ChordMixer, or else of the first model."""
        return min((run.experiment for run in self.trained), key=lambda own: own.model.encoder != "chordmixer")

    @property
    def seeds(self) -> int:
        return len({run.experiment.training.seed for run in self.trained})

    def page(self, name: str, warnings: list[str]) -> PageContent:
        """All that is shown, for people and for programs."""
        entry, baselines = self.entry, self.trained[0].baselines
        parts = [
            self._scores(),
            [f"{self._metric()} Rows are in the order of their scores."],
            [self.why_below()],
            self._losses(),
            [self.beside_baselines()],
            [f"In brackets: {interval_name(self.runs)}. {self._data()}"],
            self._by_length(),
            self._settings(),
        ]
        body = [line for part in parts if any(part) for line in (*part, "")][:-1]
        numbers = {
            "data": asdict(self.seen),
            "interval": interval_name(self.runs),
            "models": [{"encoder": model.encoder, "scores": _numbers(model)} for model in self.models],
            "less_the_best_baseline": {model: asdict(own) for model, own in self.differences.items()},
            "baselines": [
                {"name": own.name, "sentence": own.sentence, "scores": _numbers(own.evaluation)} for own in baselines
            ],
            "validation_loss_by_rate": {
                model: {f"{rate:g}": loss for rate, loss in own.items()} for model, own in self.losses.items()
            },
            "runs": [_run(run) for run in self.trained],
        }
        differences = [*entry.differences, *([] if self.given else entry.if_by_rule)]
        if entry.seeds and self.seeds != entry.seeds:
            of_seeds = f"The paper's is a mean of {entry.seeds} runs with other seeds; this is {self.seeds} a model."
            differences.append(of_seeds)
        picture = png(lambda path: plot_lengths(self.runs, path, entry.title))
        return PageContent(name, entry, body, numbers, warnings, differences, {"": picture})

    # --- Markdown ---

    def _scores(self) -> list[str]:
        entry, rate = self.entry, bool(self.losses)
        known = any(model.encoder in entry.paper for model in self.models)
        header = ["model", f"{entry.metric} here, %", *(["the paper, %", "here less the paper"] if known else [])]
        header += [*(["rate"] if rate else []), "runs", "steps a run", "time a run"]
        rows = list[tuple[float, list[str]]]()
        for model in self.models:
            own = [run for run in self.trained if run.evaluation.encoder == model.encoder]
            score, paper = model.scores[entry.metric], entry.paper.get(model.encoder)
            beside = ["", ""] if paper is None else [f"{paper:.2f}", f"{100 * score.value - paper:+.2f}"]
            numbers = [f"{own[0].experiment.training.learning_rate:g}"] if rate else []
            numbers += [str(len(own)), f"{round(mean(run.steps for run in own)):,}", _time(own)]
            cells = [model.encoder, str(percent_cell(score, 2, 2)), *(beside if known else []), *numbers]
            rows.append((score.value, cells))
        blank = [""] * (len(header) - 2)
        for baseline in self.trained[0].baselines:
            score = baseline.evaluation.scores[entry.metric]
            rows.append((score.value, [f"baseline: {baseline.name}", str(percent_cell(score, 2, 2)), *blank]))
        guessing = self.models[0].guessing[entry.metric]
        rows.append((guessing, [CONSTANT, f"{100 * guessing:.2f}", *blank]))
        return table(header, [row for _, row in sorted(rows, key=lambda own: self._rank(own[0]))])

    def _rank(self, score: float) -> float:
        """What rows are sorted by, the best first and undefined scores last."""
        if score != score:
            return float("inf")
        return score if self.entry.metric in metrics.LESS_IS_BETTER else -score

    def _metric(self) -> str:
        meaning = metrics.MEANINGS[self.entry.metric].rstrip(".")
        right = f" {self.entry.right}" if self.entry.right else ""
        return f"{metrics.title(self.entry.metric)}: {meaning}; here in per cent.{right}"

    def _losses(self) -> list[str]:
        """One row per model, one column per learning rate."""
        tried = sorted({rate for own in self.losses.values() for rate in own})
        rows = [[model, *(f"{own[rate]:.4g}" for rate in tried)] for model, own in self.losses.items()]
        return table(["lowest validation loss at a rate of", *(f"{rate:g}" for rate in tried)], rows) if rows else []

    def beside_baselines(self) -> str:
        """How each model stands to the best baseline, on the same records, and what each baseline is."""
        baselines, metric = self.trained[0].baselines, self.entry.metric
        said = []
        if best := verdict.best_baseline(baselines, metric):
            reached = 100 * best.evaluation.scores[metric].value
            said.append(f"The best baseline, {best.name}, reaches {reached:.2f} %.")
            found = dict[str, list[str]]()
            for model, difference in self.differences.items():
                found.setdefault(verdict.compared(difference, "{}"), []).append(model)
            said += [f"{stands.format(listed(names))}." for stands, names in found.items()]
        what = "; ".join(f"{own.name}: {own.sentence}" for own in baselines)
        how = "Baselines are fitted on the training records, as strongly as the validation records want it."
        return " ".join([*said, how, f"{what[0].upper()}{what[1:]}."]) if baselines else ""

    def _data(self) -> str:
        seen = self.seen
        counts = ", ".join(f"{count:,} {part}" for part, count in seen.records.items())
        classes = f" in {len(seen.classes)} classes" if seen.classes else ""
        return (
            f"Data: {counts} records of {seen.shortest:,} to {seen.longest:,} tokens{classes}. The test records were "
            "scored once a run, with the weights that the validation records chose."
        )

    def _by_length(self) -> list[str]:
        """A row a length bin; of many models a row each, whose intervals would be too many to read."""
        metric, first = self.entry.metric, self.runs[0].by_length
        models = sorted(mean_over_seeds(self.runs), key=lambda own: self._rank(own.scores[metric].value))
        bins = [(str(row.percentile), f"{row.shortest:,} to {row.longest:,}") for row in first]
        if len(models) > MAX_COLUMNS:
            scores = [[percent_cell(row.scores[metric]).value for row in model.by_length] for model in models]
            header = ["% by length percentile", *(f"{percentile}: {own}" for percentile, own in bins)]
            rows = [[model.encoder, *own] for model, own in zip(models, scores, strict=True)]
            return [*table(header, rows), "", "The intervals of these stand in the JSON file beside this page."]
        rows = [
            [*own, f"{row.records:,}", *(str(percent_cell(of.by_length[i].scores[metric], 1, 1)) for of in models)]
            for i, (own, row) in enumerate(zip(bins, first, strict=True))
        ]
        return table(["length percentile", "lengths", "records", *(f"{model.encoder}, %" for model in models)], rows)

    def _settings(self) -> list[str]:
        """Beside the paper's and its code's; then the sizes of other encoders."""
        networks = {run.experiment.model.encoder: run.experiment.model.network for run in self.trained}
        rates = {run.experiment.training.learning_rate for run in self.trained}
        sizes = [
            f"{name}: " + ", ".join(f"{key} {value}" for key, value in to_dict(own).items() if key != "max_length")
            for name, own in networks.items()
            if not isinstance(own, ChordMixerConfig)
        ]
        head = ["setting", f"here, {self.experiment.model.encoder}", "the paper", "its released code"]
        way = "in the same way" + (", each at its rate" if len(rates) > 1 else "")
        others = f"The others train {way}, padded versions with smaller batches. Their sizes: {'; '.join(sizes)}."
        rows = entries.rows(self.experiment, self.entry.hyper, self.entry.released)
        return [*table(head, rows), *(["", others] if sizes else [])]

    def why_below(self) -> str:
        """A sentence on the models that score below their numbers in the paper; empty where none does."""
        metric, paper = self.entry.metric, self.entry.paper
        known = [model for model in self.models if model.encoder in paper]
        below = {model.encoder: paper[model.encoder] - 100 * model.scores[metric].value for model in known}
        points = ", ".join(f"{name} by {gap:.2f} points" for name, gap in below.items() if gap > 0)
        if not points:
            return ""
        apart = list(self._known_differences())
        why = f"what is known to differ is {'; '.join(apart)}" if apart else "no difference in protocol is known"
        return f"Below the paper is {points}: {why}. How much each of these costs was not measured."

    def _known_differences(self) -> Iterator[str]:
        entry, training, network = self.entry, self.experiment.training, self.experiment.model.network
        if entry.released and training.epochs < entry.released.epochs:
            yield f"fewer epochs ({training.epochs:,} at most, {entry.released.epochs:,} in the released code)"
        if training.steps or training.minutes:
            yield f"an early end ({f'{training.steps:,} steps' if training.steps else f'{training.minutes:g} min'})"
        if entry.hyper and isinstance(network, ChordMixerConfig):
            theirs = (entry.hyper.hidden, entry.hyper.track_size, entry.hyper.rate)
            if (network.hidden, network.track_size, training.learning_rate) != theirs:
                yield "other settings (table below)"
        if {name.lower() for name in entry.classes} - {name.lower() for name in self.seen.classes}:
            yield "other classes than the paper's"
        elif not self.given and entry.if_by_rule:
            yield "data of our own generator, not the release's"
        if self.seeds < entry.seeds:
            several = "" if self.seeds == 1 else "s"
            yield f"{self.seeds} run{several} where the paper has the mean of {entry.seeds}"
        if entry.differences:
            yield "the protocol (end of this page)"


def _time(runs: Sequence[TrainedRun]) -> str:
    taken = duration(mean(run.seconds for run in runs))
    return f"over {taken}" if any(run.killed for run in runs) else taken


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
