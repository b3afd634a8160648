"""`pretrain`: learn from files without labels."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from chordmixer.cli import options, settings
from chordmixer.cli.looking import first_rank, say, show
from chordmixer.terminal import tell

if TYPE_CHECKING:
    from chordmixer.training import Evaluation, Experiment


@options.reading_files
def pretrain(
    inputs: Annotated[
        list[str],
        typer.Argument(
            metavar="FILES",
            help="Files to learn from; labels are not looked at. With --resume alone: a run folder.",
            show_default=False,
        ),
    ],
    reading: Any,
    out: Annotated[Path | None, typer.Option(help="The run folder to make.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run that is there.")] = False,
    baselines: Annotated[bool, typer.Option(help="Also score Markov chains on the same masked tokens.")] = True,
    group: Annotated[
        str | None,
        typer.Option(
            help="Records of a group never cross a split: files, header:NAME or header:/REGEX/.",
            rich_help_panel=options.READING,
        ),
    ] = None,
    split: options.Split = "auto",
    tokenizer: options.Tokenizer = "auto",
    on_bad: options.OnBad = None,
    cache: options.Cache = None,
    epochs: options.Epochs = None,
    minutes: options.Minutes = None,
    seed: options.Seed = None,
    device: options.TrainingDevice = None,
    unverified: options.Unverified = False,
    config: options.Config = None,
    set: options.Settings = None,
) -> None:
    """Learn from files without labels: 30 % of their letters are masked and inferred from the rest.

    chordmixer pretrain genomes.fa.gz --out PRE

    chordmixer pretrain genomes.fa.gz --set data.span=6 --set model.decoder=none --out PRE

    chordmixer pretrain --resume PRE

    chordmixer embed PRE genes.fa -o embeddings.parquet
    """
    from chordmixer.config import override
    from chordmixer.recipes import masking
    from chordmixer.tasks.masking import MaskingConfig
    from chordmixer.training import Experiment
    from chordmixer.training import train as run

    data = {
        "files": inputs,
        "split": {"method": split},
        "tokenizer": {"name": tokenizer, "on_bad": on_bad or "error"},
        "cache": None if cache is None else str(cache),
    }
    changes = [*settings.shorthands(None, epochs, minutes, seed, device), *(set or [])]
    known = override(MaskingConfig(reading=replace(reading, group=group)), data, "data")
    if resume and out is None:
        if len(inputs) > 1 or known != MaskingConfig() or config or changes:
            raise ValueError("--resume RUN takes its settings from the run: leave out the other options")
        out = Path(inputs[0])
        experiment = Experiment.load(out, cache=cache, unverified=unverified)
        if experiment.task != "masking":
            raise ValueError(
                f"{out} is a run of {experiment.task}: go on with chordmixer train --resume {shlex.quote(str(out))}"
            )
    elif out is None:
        raise ValueError("no folder for the run: add --out RUN")
    else:
        if resume:
            settings.check_resume(out)
        experiment = settings.build(lambda given: masking(given, say), known, config, changes)
    _introduce(experiment)
    evaluation = run(experiment, out, resume=resume, unverified=unverified)
    if first_rank():
        _conclude(evaluation, out, baselines, experiment.data.cache)


def _introduce(experiment: Experiment) -> None:
    """What was read, and how it is split and cut."""
    if not first_rank():
        return
    task: Any = experiment.build_task()
    for line in task.account.lines():
        say(line)
    sizes = ", ".join(f"{len(own.starts):,} for {part}" for part, own in task.stretches.items())
    say(f"split ({task.method}): {sizes}")
    if task.segmented:
        parts = {part: len(task.records(part)) for part in task.stretches}
        counts = ", ".join(f"{count:,} for {part}" for part, count in parts.items())
        say(f"segments of {task.config.shortest:,} to {task.max_length:,} tokens: {counts}")


def _conclude(evaluation: Evaluation, out: Path, baselines: bool, cache: str | None) -> None:
    """The scores beside those of the Markov chains, and what to do next."""
    from chordmixer.training.outcome import compare

    chains = compare(out, say, cache) if baselines else []
    best = max(chains, key=lambda chain: chain.scores["accuracy"].value, default=None)
    show([evaluation, *([best] if best else [])], out)
    for own in [*chains, evaluation]:
        say(f"{'the model' if own is evaluation else own.encoder}: {_found(own)}")
    for name in evaluation.scores:
        if name.startswith("accuracy_"):
            letter = name.removeprefix("accuracy_")
            say(f"  of {letter}: {_found(evaluation, f'_{letter}')}")
    for sentence in _verdict(out) if chains else []:
        say(sentence)
    run = shlex.quote(str(out))
    tell(
        f"Next:  chordmixer embed {run} FILES -o embeddings.parquet\n"
        f"       chordmixer train LABELLED_FILES --from {run} --out RUN"
    )


def _found(own: Evaluation, suffix: str = "") -> str:
    accuracy, perplexity = (own.scores[name + suffix].value for name in ("accuracy", "perplexity"))
    return f"accuracy {accuracy:.3f}, perplexity {perplexity:.3f}"


def _verdict(out: Path) -> Iterator[str]:
    """Whether the model finds more masked tokens than the best chain."""
    from chordmixer.views.runs import Run
    from chordmixer.views.verdict import best_baseline, compared

    best = best_baseline(Run.load(out).baselines, "accuracy")
    if best is None:
        return
    yield f"best baseline, {best.name}: {best.evaluation.scores['accuracy'].value:.3f}. {compared(best.difference)}."
    if best.difference and best.difference.high is not None and best.difference.high < 0:
        yield "Counting neighbours does better: train longer, or give more data."
