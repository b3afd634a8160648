"""The page of trained runs: scores beside those of the paper and of baselines, scores by length, and settings."""

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
from chordmixer.paper.reproduction.experiments import join_names
from chordmixer.paper.reproduction.page import PageContent, png, table
from chordmixer.paper.reproduction.running import DataSummary, Losses, TrainedRun
from chordmixer.training import Experiment
from chordmixer.training.evaluation import Evaluation
from chordmixer.training.intervals import Difference
from chordmixer.views import metrics, verdict
from chordmixer.views.metrics import duration
from chordmixer.views.plots import plot_lengths
from chordmixer.views.tables import CONSTANT, WIDE, interval_name, mean_over_seeds, percent_cell


@dataclass(frozen=True)
class Comparison:
    """Trained runs of an entry, for a page that compares them with the paper."""

    entry: RunEntry
    trained: Sequence[TrainedRun]
    data: DataSummary
    user_data: bool  # whether the user gave data; else a rule generated them
    losses: Losses = field(default_factory=dict)  # validation losses that chose learning rates; empty: a single rate
    differences: Mapping[str, Difference] = field(default_factory=dict)  # of each model from the best baseline

    @cached_property
    def runs(self) -> list[Evaluation]:
        """Evaluations with the paper's metric as headline; the last one is the best baseline, if any was scored."""
        runs = [replace(run.evaluation, headline=self.entry.metric) for run in self.trained]
        if best := verdict.best_baseline(self.trained[0].baselines, self.entry.metric):
            runs.append(replace(best.evaluation, encoder=f"baseline: {best.name}", headline=self.entry.metric))
        return runs

    @cached_property
    def models(self) -> list[Evaluation]:
        return mean_over_seeds(self.runs[: len(self.trained)])

    @property
    def experiment(self) -> Experiment:
        """The experiment of ChordMixer, or else of the first model."""
        return min((run.experiment for run in self.trained), key=lambda e: e.model.encoder != "chordmixer")

    @property
    def seeds(self) -> int:
        return len({run.experiment.training.seed for run in self.trained})

    def page(self, name: str, warnings: list[str]) -> PageContent:
        """The content of the page: Markdown, numbers for JSON, and the plot by length."""
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
            "data": asdict(self.data),
            "interval": interval_name(self.runs),
            "models": [{"encoder": model.encoder, "scores": _numbers(model)} for model in self.models],
            "less_the_best_baseline": {model: asdict(difference) for model, difference in self.differences.items()},
            "baselines": [
                {"name": b.name, "sentence": b.sentence, "scores": _numbers(b.evaluation)} for b in baselines
            ],
            "validation_loss_by_rate": {
                model: {f"{rate:g}": loss for rate, loss in by_rate.items()} for model, by_rate in self.losses.items()
            },
            "runs": [_run(run) for run in self.trained],
        }
        differences = [*entry.differences, *([] if self.user_data else entry.if_by_rule)]
        if entry.seeds and self.seeds != entry.seeds:
            seeds = f"The paper's is a mean of {entry.seeds} runs with other seeds; this is {self.seeds} a model."
            differences.append(seeds)
        picture = png(lambda path: plot_lengths(self.runs, path, entry.title))
        return PageContent(name, entry, body, numbers, warnings, differences, {"": picture})

    # --- Markdown ---

    def _scores(self) -> list[str]:
        entry, rate = self.entry, bool(self.losses)
        in_paper = any(model.encoder in entry.paper for model in self.models)
        header = ["model", f"{entry.metric} here, %", *(["the paper, %", "here less the paper"] if in_paper else [])]
        header += [*(["rate"] if rate else []), "runs", "steps a run", "time a run"]
        rows = list[tuple[float, list[str]]]()
        for model in self.models:
            runs = [run for run in self.trained if run.evaluation.encoder == model.encoder]
            score, paper = model.scores[entry.metric], entry.paper.get(model.encoder)
            compared = ["", ""] if paper is None else [f"{paper:.2f}", f"{100 * score.value - paper:+.2f}"]
            numbers = [f"{runs[0].experiment.training.learning_rate:g}"] if rate else []
            numbers += [str(len(runs)), f"{round(mean(run.steps for run in runs)):,}", _time(runs)]
            cells = [model.encoder, str(percent_cell(score, 2, 2)), *(compared if in_paper else []), *numbers]
            rows.append((score.value, cells))
        blank = [""] * (len(header) - 2)
        for baseline in self.trained[0].baselines:
            score = baseline.evaluation.scores[entry.metric]
            rows.append((score.value, [f"baseline: {baseline.name}", str(percent_cell(score, 2, 2)), *blank]))
        guessing = self.models[0].guessing[entry.metric]
        rows.append((guessing, [CONSTANT, f"{100 * guessing:.2f}", *blank]))
        return table(header, [row for _, row in sorted(rows, key=lambda scored: self._sort_key(scored[0]))])

    def _sort_key(self, score: float) -> float:
        """Sort key of a score: the best first, undefined scores last."""
        if score != score:
            return float("inf")
        return score if self.entry.metric in metrics.LESS_IS_BETTER else -score

    def _metric(self) -> str:
        meaning = metrics.MEANINGS[self.entry.metric].rstrip(".")
        right = f" {self.entry.right}" if self.entry.right else ""
        return f"{metrics.title(self.entry.metric)}: {meaning}; here in per cent.{right}"

    def _losses(self) -> list[str]:
        """Table of validation losses, one row per model, one column per learning rate."""
        rates = sorted({rate for by_rate in self.losses.values() for rate in by_rate})
        rows = [[model, *(f"{by_rate[rate]:.4g}" for rate in rates)] for model, by_rate in self.losses.items()]
        return table(["lowest validation loss at a rate of", *(f"{rate:g}" for rate in rates)], rows) if rows else []

    def beside_baselines(self) -> str:
        """Sentences that compare each model with the best baseline on the same records and describe the baselines."""
        baselines, metric = self.trained[0].baselines, self.entry.metric
        sentences = []
        if best := verdict.best_baseline(baselines, metric):
            value = 100 * best.evaluation.scores[metric].value
            sentences.append(f"The best baseline, {best.name}, reaches {value:.2f} %.")
            by_verdict = dict[str, list[str]]()
            for model, difference in self.differences.items():
                by_verdict.setdefault(verdict.compared(difference, "{}"), []).append(model)
            sentences += [f"{template.format(join_names(names))}." for template, names in by_verdict.items()]
        descriptions = "; ".join(f"{baseline.name}: {baseline.sentence}" for baseline in baselines)
        fitting = "Baselines are fitted on the training records, as strongly as the validation records want it."
        return " ".join([*sentences, fitting, f"{descriptions[0].upper()}{descriptions[1:]}."]) if baselines else ""

    def _data(self) -> str:
        data = self.data
        counts = ", ".join(f"{count:,} {part}" for part, count in data.records.items())
        classes = f" in {len(data.classes)} classes" if data.classes else ""
        return (
            f"Data: {counts} records of {data.shortest:,} to {data.longest:,} tokens{classes}. The test records were "
            "scored once a run, with the weights that the validation records chose."
        )

    def _by_length(self) -> list[str]:
        """Table by length: one row per length bin, or, for many models, one row per model without intervals."""
        metric, first = self.entry.metric, self.runs[0].by_length
        models = sorted(mean_over_seeds(self.runs), key=lambda model: self._sort_key(model.scores[metric].value))
        bins = [(str(row.percentile), f"{row.shortest:,} to {row.longest:,}") for row in first]
        if len(models) > WIDE:
            scores = [[percent_cell(row.scores[metric]).value for row in model.by_length] for model in models]
            header = ["% by length percentile", *(f"{percentile}: {lengths}" for percentile, lengths in bins)]
            rows = [[model.encoder, *cells] for model, cells in zip(models, scores, strict=True)]
            return [*table(header, rows), "", "The intervals of these stand in the JSON file beside this page."]
        rows = [
            [*names, f"{row.records:,}", *(str(percent_cell(m.by_length[i].scores[metric], 1, 1)) for m in models)]
            for i, (names, row) in enumerate(zip(bins, first, strict=True))
        ]
        return table(["length percentile", "lengths", "records", *(f"{model.encoder}, %" for model in models)], rows)

    def _settings(self) -> list[str]:
        """Table of settings here, in the paper and in its released code; then the sizes of other encoders."""
        networks = {run.experiment.model.encoder: run.experiment.model.network for run in self.trained}
        rates = {run.experiment.training.learning_rate for run in self.trained}
        sizes = [
            f"{name}: "
            + ", ".join(f"{key} {value}" for key, value in to_dict(network).items() if key != "max_length")
            for name, network in networks.items()
            if not isinstance(network, ChordMixerConfig)
        ]
        head = ["setting", f"here, {self.experiment.model.encoder}", "the paper", "its released code"]
        way = "in the same way" + (", each at its rate" if len(rates) > 1 else "")
        others = f"The others train {way}, padded versions with smaller batches. Their sizes: {'; '.join(sizes)}."
        rows = entries.rows(self.experiment, self.entry.hyper, self.entry.released)
        return [*table(head, rows), *(["", others] if sizes else [])]

    def why_below(self) -> str:
        """A sentence on the models that score below the paper's numbers; empty if none does."""
        metric, paper = self.entry.metric, self.entry.paper
        known = [model for model in self.models if model.encoder in paper]
        below = {model.encoder: paper[model.encoder] - 100 * model.scores[metric].value for model in known}
        points = ", ".join(f"{name} by {gap:.2f} points" for name, gap in below.items() if gap > 0)
        if not points:
            return ""
        causes = list(self._known_differences())
        why = f"what is known to differ is {'; '.join(causes)}" if causes else "no difference in protocol is known"
        return f"Below the paper is {points}: {why}. How much each of these costs was not measured."

    def _known_differences(self) -> Iterator[str]:
        entry, training, network = self.entry, self.experiment.training, self.experiment.model.network
        if entry.released and training.epochs < entry.released.epochs:
            yield f"fewer epochs ({training.epochs:,} at most, {entry.released.epochs:,} in the released code)"
        if training.steps or training.minutes:
            yield f"an early end ({f'{training.steps:,} steps' if training.steps else f'{training.minutes:g} min'})"
        if entry.hyper and isinstance(network, ChordMixerConfig):
            in_paper = (entry.hyper.hidden, entry.hyper.track_size, entry.hyper.rate)
            if (network.hidden, network.track_size, training.learning_rate) != in_paper:
                yield "other settings (table below)"
        if {name.lower() for name in entry.classes} - {name.lower() for name in self.data.classes}:
            yield "other classes than the paper's"
        elif not self.user_data and entry.if_by_rule:
            yield "data of our own generator, not the release's"
        if self.seeds < entry.seeds:
            plural = "" if self.seeds == 1 else "s"
            yield f"{self.seeds} run{plural} where the paper has the mean of {entry.seeds}"
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
