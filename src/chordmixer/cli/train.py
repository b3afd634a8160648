"""The commands `train` and `pretrain`, which create a run, and `plan`, which estimates its cost."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from chordmixer.cli import options
from chordmixer.cli.options import FileOptions, LabelOptions, RunOptions, TrainOptions, argument, option
from chordmixer.cli.output import print_line, show_comparison, show_lengths
from chordmixer.terminal import first_rank, tell

if TYPE_CHECKING:
    from chordmixer.data.reading import Reading
    from chordmixer.fitting import Fitted
    from chordmixer.training import Experiment
    from chordmixer.training.evaluation import Evaluation

SMALL = 2_000
"""Number of training records below which `train` suggests --folds."""

Out = Annotated[Path | None, option("The run folder to create.")]
Resume = Annotated[bool, option("Continue an interrupted run.", None, "--resume")]


@options.with_options
def train(
    inputs: Annotated[
        list[str],
        argument(
            "Files to learn from, or a task of the paper: adding, fragments, image, listops, pathfinder, retrieval, "
            "text. With --resume alone: a run folder."
        ),
    ],
    args: TrainOptions,
    files: LabelOptions,
    out: Out = None,
    resume: Resume = False,
    baselines: Annotated[
        bool, option("Also fit baselines, and predict with the network, the best of them, or both.")
    ] = True,
    ladder: Annotated[
        bool, option("Also train the network without its encoder, to measure what long range adds.", None, "--ladder")
    ] = False,
    base_length: Annotated[int | None, option("Base length, lambda, of the task adding.")] = None,
) -> None:
    """Train on files or on a task of the paper, test, and write a run folder.

    chordmixer train worm.fa.gz fly.fa.gz --out RUN

    chordmixer train genes.fa --labels genes.csv --group header:gene --out RUN

    chordmixer train genes.fa --labels genes.csv --from PRETRAINED --out RUN

    chordmixer train genes.fa --labels genes.csv --folds 5 --out RUN

    chordmixer train --resume RUN

    chordmixer train adding --base-length 200 --out RUN
    """
    from chordmixer import fitting

    paths, reading = files.named(inputs)
    if resume and out is None:
        others = len(paths) > 1 or files != LabelOptions() or base_length is not None
        out, experiment = _resumed(paths[0], args, TrainOptions, others)
    else:
        out = _new_folder(out, resume)
        build = _task_experiment if _is_task(paths) else _files_experiment
        experiment = build(paths, reading, args, base_length)
    if experiment.task != "files":
        _train_task(experiment, out, resume, args.unverified, baselines)
        return
    keywords: dict[str, Any] = {"resume": resume, "unverified": args.unverified}
    fitted = fitting.run_files(experiment, out, baselines=baselines, ladder=ladder, **keywords)
    if fitted is not None:
        _conclude(fitted, out)


@options.with_options
def pretrain(
    inputs: Annotated[
        list[str], argument("Files to learn from; labels are ignored. With --resume alone: a run folder.")
    ],
    args: RunOptions,
    files: FileOptions,
    out: Out = None,
    resume: Resume = False,
    baselines: Annotated[bool, option("Also score Markov chains on the same masked tokens.")] = True,
    group: options.Group = None,
) -> None:
    """Learn from files without labels, by predicting masked tokens: 30 % of the letters are masked.

    chordmixer pretrain genomes.fa.gz --out PRE

    chordmixer pretrain genomes.fa.gz --set data.span=6 --set model.decoder=none --out PRE

    chordmixer pretrain --resume PRE

    chordmixer embed PRE genes.fa -o embeddings.parquet
    """
    from chordmixer.training.loop import train as run

    if resume and out is None:
        others = len(inputs) > 1 or files != FileOptions() or group is not None
        out, experiment = _resumed(inputs[0], args, RunOptions, others)
        if experiment.task != "masking":
            raise ValueError(
                f"{out} is a run of {experiment.task}: continue with chordmixer train --resume "
                f"{shlex.quote(str(out))}"
            )
    else:
        out = _new_folder(out, resume)
        experiment = _masking_experiment(inputs, replace(files.reading(), group=group), args)
    _introduce(experiment)
    evaluation = run(experiment, out, resume=resume, unverified=args.unverified)
    if first_rank():
        _conclude_pretraining(evaluation, out, baselines, experiment.data.cache)


@options.with_options
def plan(
    inputs: options.Inputs,
    args: TrainOptions,
    files: LabelOptions,
    pretrain: Annotated[bool, option("Plan `pretrain`, not `train`.", None, "--pretrain")] = False,
    time: Annotated[bool, option("Measure a few steps to estimate the time of a run.")] = True,
    out: Annotated[Path | None, option("", hidden=True)] = None,
    baselines: Annotated[bool, option("", hidden=True)] = True,
) -> None:
    """Show what `train` would do with files: batches, memory, time, and records that would not fit.

    It takes the options of `train`, or with --pretrain those of `pretrain`, and writes nothing.

    chordmixer plan worm.fa.gz fly.fa.gz

    chordmixer plan genes.fa --labels genes.csv --from PRETRAINED --freeze

    chordmixer plan genomes.fa.gz --pretrain
    """
    from chordmixer.models import Model
    from chordmixer.models.growing import take_over
    from chordmixer.views.plan import plan_lines

    paths, reading = files.named(inputs)
    if pretrain:
        _refuse(files, ("labels", "rank", "on_unmatched"))
        _refuse(args, ("target_type", "on_rare", "rc", "folds", "replicates", "start", "freeze"))
        experiment = _masking_experiment(paths, reading, args)
    else:
        experiment = args.files_experiment(paths, reading)
        if args.start is not None:
            take_over(Model(experiment.model), Model.from_pretrained(args.start))  # the same refusals as `train`
    for line in plan_lines(experiment, timed=time):
        print_line(line)
    command = "pretrain" if pretrain else "train"
    print_line(f"Next:  chordmixer {command} with the same files and options{'' if out else ', and --out RUN'}")


# --- The experiment of each command ---


def _new_folder(out: Path | None, resume: bool) -> Path:
    if out is None:
        raise ValueError("no folder for the run: add --out RUN")
    if resume:
        options.check_resume(out)
    return out


def _resumed(run: str, args: RunOptions, kind: Callable[..., RunOptions], others: bool) -> tuple[Path, Experiment]:
    """The folder and experiment of a run to resume; of all options only the cache may differ."""
    from chordmixer.training import Experiment

    if others or args != kind(cache=args.cache, unverified=args.unverified):
        raise ValueError("--resume RUN takes its settings from the run: leave out the other options")
    return Path(run), Experiment.load(Path(run), cache=args.cache, unverified=args.unverified)


def _is_task(paths: list[str]) -> bool:
    """Whether the first argument is the name of a task of the paper and not an existing file."""
    from chordmixer import recipes

    return paths[0] in recipes.RECIPES and not Path(paths[0]).exists()


def _task_experiment(paths: list[str], reading: Reading, args: TrainOptions, base_length: int | None) -> Experiment:
    """Build the experiment for a task of the paper."""
    from chordmixer import recipes
    from chordmixer.data.reading import Reading
    from chordmixer.tasks import task_class
    from chordmixer.training.fine_tuning import start_from

    name, *others = paths
    if others or reading != Reading() or args.data([]) != TrainOptions().data([]):
        raise ValueError(
            f"{name} is a task, not a file, and takes no files beside it: leave them out; if it needs data, "
            "name them with --set data.source=PATH or data.files=[...]"
        )
    for flag, number in (("--folds", args.folds), ("--replicates", args.replicates)):
        if number is not None:
            raise ValueError(f"{flag} is for files with labels: leave it out with a task of the paper")
    if args.freeze and args.start is None:
        raise ValueError("--freeze keeps the encoder of a trained run as it is: add --from RUN")
    recipe = recipes.load(recipes.RECIPES[name])

    def started(data: Any) -> Experiment:
        base: Experiment = recipe(data)
        return base if args.start is None else start_from(base, args.start, args.freeze, args.unverified)

    lengths = [] if base_length is None else [f"data.base_length={base_length}"]
    return args.build(started, task_class(name).Config(), lengths + args.changes())


def _files_experiment(paths: list[str], reading: Reading, args: TrainOptions, base_length: int | None) -> Experiment:
    """Build the experiment for files, which must exist."""
    from chordmixer import recipes

    for path in paths:
        if path != "-" and not Path(path).exists():
            raise ValueError(
                f"{path} is neither a file nor a task: give the path of a file or folder, or one of "
                f"{', '.join(recipes.RECIPES)}"
            )
    if paths[0] in recipes.RECIPES:
        print_line(
            f"{paths[0]} is here as a file or folder, and is read as one; for the task of this name, start elsewhere"
        )
    if base_length is not None:
        raise ValueError("--base-length is an option of the task adding: leave it out, or name that task")
    return args.files_experiment(paths, reading)


def _masking_experiment(paths: list[str], reading: Reading, args: RunOptions) -> Experiment:
    """Build the experiment of `pretrain`."""
    from chordmixer.config import override
    from chordmixer.recipes.masking import masking
    from chordmixer.tasks.masking import MaskingConfig

    data = override(MaskingConfig(reading=reading), RunOptions.data(args, paths), "data")
    return args.build(masking, data, args.changes())


def _refuse(args: FileOptions | RunOptions, names: tuple[str, ...]) -> None:
    """Refuse options of `train` that `pretrain` does not have."""
    for name in names:
        if getattr(args, name) != getattr(type(args), name):
            flag = "--from" if name == "start" else f"--{name.replace('_', '-')}"
            raise ValueError(f"{flag} is an option of train, not of pretrain: leave out {flag} or --pretrain")


# --- What is printed before and after ---


def _train_task(experiment: Experiment, out: Path, resume: bool, unverified: bool, baselines: bool) -> None:
    """Train on a task of the paper, or resume pre-training, and show the scores."""
    from chordmixer import recipes
    from chordmixer.training.loop import train as run
    from chordmixer.views.report import write_report

    evaluation = run(experiment, out, resume=resume, unverified=unverified)
    if not first_rank():
        return
    if experiment.task == "masking":  # `pretrain` prints a comparison of its own
        show_lengths([evaluation], out)
        return
    cache = getattr(experiment.data, "cache", None)
    show_comparison(evaluation, recipes.load(recipes.TASK_BASELINES)(out, cache) if baselines else [], out)
    tell(f"report: {write_report(out)}")


def _conclude(fitted: Fitted, out: Path) -> None:
    """Show the scores of a run on files with those of the baselines, the report, and the next commands."""
    from chordmixer.views.runs import Run

    show_comparison(fitted.evaluation, fitted.compared, out)
    tell(f"report: {fitted.report}")
    saved, run_name = Run.load(out), shlex.quote(str(out))
    tell(f"Next:  chordmixer predict {run_name} NEW_FILES -o answers.tsv")
    if not saved.ensemble:
        tell(f"       chordmixer embed {run_name} FILES -o embeddings.parquet")
    tell(f"       chordmixer explain {run_name} FILES -o why.html")
    tell(f"       chordmixer evaluate {run_name} OTHER_FILES")
    if not saved.ensemble and saved.data and saved.data.split["sizes"].get("training", SMALL) < SMALL:
        tell("small data: --folds 5 gives cross-validated scores and an ensemble")


def _introduce(experiment: Experiment) -> None:
    """Show which records were read for pre-training, and how they are split and cut into segments."""
    if not first_rank():
        return
    task: Any = experiment.build_task()
    for line in task.account.lines():
        print_line(line)
    sizes = ", ".join(f"{len(ranges.starts):,} for {part}" for part, ranges in task.ranges.items())
    print_line(f"split ({task.method}): {sizes}")
    if task.segmented:
        counts = ", ".join(f"{len(task.records(part)):,} for {part}" for part in task.ranges)
        print_line(f"segments of {task.config.shortest:,} to {task.max_length:,} tokens: {counts}")


def _conclude_pretraining(evaluation: Evaluation, out: Path, baselines: bool, cache: str | None) -> None:
    """Show the scores of pre-training with those of the Markov chains, and the next commands."""
    from chordmixer.training.results import compare
    from chordmixer.views.runs import Run
    from chordmixer.views.verdict import baseline_sentence

    chains = compare(out, cache) if baselines else []
    best = max(chains, key=lambda chain: chain.scores["accuracy"].value, default=None)
    show_lengths([evaluation, *([best] if best else [])], out)
    for scored in [*chains, evaluation]:
        print_line(f"{'the model' if scored is evaluation else scored.encoder}: {_accuracy(scored)}")
    for name in evaluation.scores:
        if name.startswith("accuracy_"):
            letter = name.removeprefix("accuracy_")
            print_line(f"  of {letter}: {_accuracy(evaluation, f'_{letter}')}")
    if chains:
        for sentence in baseline_sentence(Run.load(out).baselines, "accuracy", "Train longer, or give more data."):
            print_line(sentence)
    run = shlex.quote(str(out))
    tell(
        f"Next:  chordmixer embed {run} FILES -o embeddings.parquet\n"
        f"       chordmixer train LABELLED_FILES --from {run} --out RUN"
    )


def _accuracy(scored: Evaluation, suffix: str = "") -> str:
    accuracy, perplexity = (scored.scores[name + suffix].value for name in ("accuracy", "perplexity"))
    return f"accuracy {accuracy:.3f}, perplexity {perplexity:.3f}"
