"""The training loop: run folder, epochs, steps, validation, checkpoints and test set."""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor, nn

from chordmixer import terminal
from chordmixer.data import Batch, Loader, Records, draws
from chordmixer.models import Model
from chordmixer.models.context_parallel import ContextParallel, reduce_gradients, shard
from chordmixer.models.norms import BatchShare, Standard
from chordmixer.tasks.targets import Classification, MultiLabel, target_outputs
from chordmixer.training import captured, checkpoints, ensemble, fine_tuning, ranks, results, speed
from chordmixer.training.captured import CapturedSteps
from chordmixer.training.checkpoints import State
from chordmixer.training.devices import keep_freed_memory, release_freed_memory, start_accelerator
from chordmixer.training.evaluation import Evaluation, Predictions, predict_records
from chordmixer.training.experiment import Experiment, check_context_parallel, check_lengths
from chordmixer.training.forecast import (
    check_memory,
    dry_run,
    explaining_out_of_memory,
    largest_batch,
    may_keep_memory,
)
from chordmixer.training.optimiser import Budget, Ema, Optimiser, PendingStep, update_statistics
from chordmixer.training.progress import Display, Interrupted, Interrupts, Journal, introduction, tensorboard_writer
from chordmixer.training.run_folder import RunFolder, recording_provenance
from chordmixer.training.strands import averaged

LEARNED = 0.95
"""Patience starts when the validation loss is below this share of the loss of the best constant prediction."""
OVERFITTED = 0.2
"""Patience also starts when the training loss is below this share of it, since the run has then left its plateau."""
STEPS_UNREAD = 25
"""Maximum number of steps on a GPU whose losses have not been read yet."""


def train(
    experiment: Experiment,
    out: Path | str,
    *,
    resume: bool = False,
    console: Console | None = None,
    unverified: bool = False,
    resumed_as: Path | None = None,
) -> Evaluation:
    """Train into the run folder `out`, or resume the run there; return the best model's scores on the test set.

    For an ensemble (`--folds`, `--replicates`) all members are trained, without baselines, and the scores are those
    of their mean. `resumed_as` is the folder to pass to `--resume`, if this run is part of another run.
    """
    from chordmixer.training import nested_runs  # it imports this module

    console = console or terminal.console()
    experiment = speed.settle_precision(experiment, Path(out))
    if ensemble.kind_and_size(experiment):
        return nested_runs.train_members(
            experiment, Path(out), resume=resume, console=console, unverified=unverified, baselines=False
        )
    options: dict[str, Any] = {"console": console, "unverified": unverified, "resumed_as": resumed_as}
    experiment, resume = nested_runs.run_trials(experiment, Path(out), resume=resume, **options)
    with closing(TrainingRun(experiment, Path(out), resume, **options)) as run:
        return run.train()


class TrainingRun:
    """One training run: model, optimiser, data and folder."""

    def __init__(
        self,
        experiment: Experiment,
        out: Path,
        resume: bool,
        console: Console,
        unverified: bool = False,
        resumed_as: Path | None = None,
    ) -> None:
        """`resumed_as` is the folder to pass to `--resume`, if this run is part of another run."""
        self.experiment, self.config, self.out = experiment, experiment.training, out
        self.resumed_as = resumed_as or out
        self.captured: CapturedSteps | None = None
        self.watch: Callable[[int, float], None] | None = None
        """Called after each validation with the step and the loss; an exception that it raises ends the run."""
        self.accelerator = start_accelerator(self.config)
        self.main = self.accelerator.is_main_process
        self.display = Display(console, quiet=not self.main)
        check_context_parallel(experiment)
        self.task = experiment.build_task()
        self.training, self.validation, self.test = map(self.task.records, ("training", "validation", "test"))
        for records in (self.training, self.validation, self.test):
            check_lengths(records, experiment.model.network.max_length, self.config)
        self.shares = self.accelerator.num_processes // self.config.context_parallel
        """Number of shares into which the records of a batch are divided over ranks."""
        self.share = self.accelerator.process_index // self.config.context_parallel
        sampler = self.config.sampler(self.training.lengths, self.share, self.shares)
        self.loader = Loader(self.training, sampler, self.config.workers, self.accelerator.device, drawing=True)
        check_memory(experiment, self.training.lengths, self.accelerator.device, self.training.name)
        if may_keep_memory(experiment, self.training.lengths, self.accelerator.device):
            keep_freed_memory()
        torch.manual_seed(self.config.seed)
        self.model = Model(experiment.model)
        fine_tuning.initialise(self.model, self.config, out)
        if self.config.tensorboard:
            tensorboard_writer()  # raises an error without the package, before the folder is created
        self.folder = RunFolder(experiment, out, resume, unverified)
        try:
            self._begin()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Release the lock of the folder, and the memory of graphs and of earlier steps."""
        self.captured = None
        self.folder.close()
        release_freed_memory()

    def _begin(self) -> None:
        self.split = self.config.context_parallel > 1
        self.wrapped = self._splitting_sequences() if self.split else self.accelerator.prepare(self.model)
        self.standards = [module for module in self.model.modules() if isinstance(module, Standard)]
        self.optimiser = Optimiser(self.model, self.config, max(self.training.lengths))
        self.unread: list[PendingStep] = []
        self.journal = Journal(self.out, self.config.tensorboard) if self.main else None
        self.state = self._restore()
        self.threads = speed.choose_training_threads(
            self.experiment, self.loader.sampler, self.accelerator.device, self.state.threads
        )
        self.state.threads = self.threads.threads
        self.budget = Budget(self.config, self.state)
        steps = self.config.epochs * -(-len(self.loader.sampler.batches) // self.config.accumulate)
        horizon = self.config.ema * min(steps, self.config.steps or steps)
        self.ema = Ema(self.model, horizon, self.state.ema) if self.config.ema else None
        if captured.possible(self.config, self.accelerator.device, self.accelerator.num_processes):
            self.captured = CapturedSteps(self.model, self.wrapped, self.task.target, self.optimiser, self.ema)

    def _splitting_sequences(self) -> nn.Module:
        """The model for context parallelism: ranks have the same batches, and each takes a part of every sequence."""
        parallel = ContextParallel(self.model)
        parallel.register_forward_pre_hook(lambda _, inputs: (shard(*inputs),))
        wrapped: nn.Module = self.accelerator.prepare_model(parallel, evaluation_mode=True)  # without DDP
        return wrapped

    def train(self) -> Evaluation:
        """Train to the end; return the scores on the test set."""
        self.learn()
        return self._finish()

    def learn(self) -> float:
        """Take all remaining steps; return the validation loss of the best weights."""
        device = self.accelerator.device
        if not self.state.finished:
            recording = recording_provenance(self.out, device) if self.main else nullcontext()
            with recording, speed.single_threaded_host(device):
                self._learn()
        return self.state.best_loss

    def _learn(self) -> None:
        self.saved = time.monotonic()
        self._describe()
        if self.state.step == 0:
            self._dry_run()
        with Interrupts() as self.interrupts, self.display:
            while self._goes_on():
                self._epoch()
            self.state.finished = True
            self._save()
            self._leave_if_asked()

    def _goes_on(self) -> bool:
        """Whether an epoch or its validation, which follows a checkpoint of the last step, remains to be done."""
        unfinished = self.budget.spent < 1 or self.state.batch > 0
        return self.state.epoch < self.config.epochs and unfinished and not self._out_of_patience()

    def _dry_run(self) -> None:
        """Try the largest batch, so that too little memory shows at the start."""
        records = largest_batch(self.loader.sampler, self.config.epochs)
        model = self.wrapped if self.split else self.model
        dry_run(model, self.loader.batch(records), self.task.target, self.training.name(records[0]))

    def _epoch(self) -> None:
        state, sampler = self.state, self.loader.sampler
        batches = self.loader.epoch(state.epoch, state.batch)
        count = len(sampler.batches)
        self.wrapped.train()
        while state.batch < count and self.budget.spent < 1:
            with self.budget.counting():
                self.advance(batches)
            if self._evaluates_now():
                self.read_results()
                self._validate(state.loss_sum / state.sequences)
            self._save_if_due()
            if self._out_of_patience():
                return
        self.read_results()
        mean = state.loss_sum / state.sequences
        state.epoch, state.batch, state.loss_sum, state.sequences = state.epoch + 1, 0, 0.0, 0
        last = state.epoch == self.config.epochs or self.budget.spent == 1
        if last or state.epoch % self.config.evaluate_epochs == 0:
            self.display.say(f"epoch {state.epoch} of {self.config.epochs}: training loss {mean:.5f}")
            if not self._evaluates_now():  # otherwise the last step was already evaluated
                self._validate(mean)

    def _evaluates_now(self) -> bool:
        """Whether an evaluation is due after this step by `evaluate_every`."""
        return self.config.evaluate_every > 0 and self.state.step % self.config.evaluate_every == 0

    def advance(self, batches: Iterator[Batch]) -> None:
        """Take the next step of an epoch with these batches."""
        first, planned = self.state.batch, self.loader.sampler.batches
        group = planned[first : first + self.config.accumulate]
        self._step([next(batches) for _ in group], group, (first + len(group) / 2) / len(planned))

    def _step(self, batches: list[Batch], group: list[list[int]], share: float) -> None:
        """Take an optimiser step on the gradients of several batches.

        `group` has the records of each batch over all ranks, `share` the finished share of the epoch. Nothing here
        waits for the device: `read_results` finds the first step that was not finite.
        """
        state, done = self.state, max((self.state.epoch + share) / self.config.epochs, self.budget.spent)
        learning_rate = self.optimiser.learning_rate(done)
        records = [i for batch in group for i in batch]
        result = self._captured_step(batches[0], learning_rate)
        result = self._eager_step(batches, group, len(records), learning_rate) if result is None else result

        tokens = sum(self.loader.sampler.lengths[i] for i in records)
        self.unread.append(PendingStep(state.step, state.batch, done, learning_rate, records, tokens, result))
        state.step, state.batch = state.step + 1, state.batch + len(batches)
        if len(self.unread) >= (1 if self.accelerator.device.type == "cpu" else STEPS_UNREAD):
            self.read_results()

    def _captured_step(self, batch: Batch, learning_rate: float) -> Tensor | None:
        """Take a step as a CUDA graph; None if that is not possible."""
        if self.captured is None:
            return None
        self._seed(draws.key(self.config.seed, self.state.step, 0, 0))
        with explaining_out_of_memory(batch.lengths, self.accelerator.device, self.training.name(batch.indices[0])):
            return self.captured.step(batch, learning_rate, self.state.step + 1)

    def _eager_step(
        self, batches: list[Batch], group: list[list[int]], sequences: int, learning_rate: float
    ) -> Tensor:
        """Take a step on the gradients of several batches; return the loss and the gradient norm."""
        losses = []
        for number, (batch, records) in enumerate(zip(batches, group, strict=True)):
            self._seed(draws.key(self.config.seed, self.state.step, number, self.accelerator.process_index))
            losses.append(self._backward(batch, records, sequences, last=batch is batches[-1]))
        if self.split:
            reduce_gradients(self.model)
        total = ranks.total(torch.stack(losses).sum()) / self.config.context_parallel
        result = self.optimiser.step(total, learning_rate)
        if self.ema:
            self.ema.update(self.ema.weight(self.state.step + 1))
        return result

    def _backward(self, batch: Batch, records: list[int], sequences: int, last: bool) -> Tensor:
        """Add the gradients of this rank's share of a batch; return the sum of its losses.

        `records` are those of the batch over all ranks. DDP averages gradients over ranks, so that each rank scales
        its sum to a mean over all records; ranks that split sequences all have the same sum. A rank without a share
        of the batch has a record whose loss does not count.
        """
        first = self.training.name(batch.indices[0])
        shared = self.shares > 1
        counts = not shared or bool(self.loader.sampler.shares(records)[self.share])
        for standard in self.standards:
            standard.share = BatchShare(len(records), counts, ranks.total) if shared else None
        with (
            self.accelerator.no_sync(self.wrapped) if not last else nullcontext(),
            explaining_out_of_memory(batch.lengths, self.accelerator.device, first),
        ):
            rows = target_outputs(self.task.target, self.wrapped, batch.inputs, batch.targets)
            losses = self.task.target.losses(rows, batch.targets)
            losses = losses if batch.weights is None else losses * batch.weights
            losses = losses if counts else losses * 0
            self.accelerator.backward(losses.sum() * self.shares / sequences)
        return losses.detach().sum()

    def _seed(self, key: int) -> None:
        """Seed dropout; `torch.manual_seed` would also queue a call for devices that do not exist."""
        torch.default_generator.manual_seed(key)
        if self.accelerator.device.type == "cuda":
            torch.cuda.manual_seed(key)

    def read_results(self) -> None:
        """Read the losses of the last steps; this is the only place where the loop waits for the device."""
        state, unread, self.unread = self.state, self.unread, []
        if not unread:
            return
        for pending, (loss, norm) in zip(unread, torch.stack([p.result for p in unread]).tolist(), strict=True):
            if not math.isfinite(loss + norm):
                self._refuse_step(pending, loss)
            mean = loss / len(pending.records)
            state.loss_sum, state.sequences = state.loss_sum + loss, state.sequences + len(pending.records)
            done = max(pending.done, self.budget.after(pending.step + 1))
            self.display.update(done, state.epoch, pending.step + 1, mean, pending.tokens)
            if self.journal and (pending.step + 1) % 10 == 0:
                self.journal.write(
                    pending.step + 1, "training", loss=mean, learning_rate=pending.learning_rate, norm=norm
                )

    def _refuse_step(self, pending: PendingStep, loss: float) -> None:
        """Save the weights before this step and stop; the optimiser has skipped this step and later ones."""
        self.state.step, self.state.batch = pending.step, pending.batch
        self._save()
        raise ValueError(
            pending.not_finite(loss, [self.training.name(i) for i in pending.records], self.config.precision)
        )

    def _validate(self, training_loss: float) -> None:
        """Score the validation set, store the best weights, and count evaluations without improvement.

        The best weights have the highest headline metric, and with equal metrics the lowest loss. For numbers and
        tokens, and if the metric is undefined, as ROC-AUC is for a single class, they have the lowest loss.
        """
        state, target = self.state, self.task.target
        with self.ema.in_place() if self.ema else nullcontext():
            model = self.wrapped if self.split else self.model
            update_statistics(model, self.loader, state.epoch, self.config.precision == "bf16")
            predictions = self._predict(self.validation)
            weights = {k: v.detach().cpu().clone() for k, v in self.model.state_dict().items()}
        scores = ranks.from_main_rank(lambda: self._score(predictions))  # the same numbers on machines that differ
        loss, uncalibrated, constant, metrics = scores
        learned = state.best_loss < LEARNED * constant or training_loss < OVERFITTED * constant
        score = metrics[target.headline] if isinstance(target, Classification | MultiLabel) else math.nan
        score = score if math.isfinite(score) else -loss
        if (score, -loss) > (state.best_score, -state.best_loss):
            state.best_score, state.best_loss, state.best_step, state.waited = score, loss, state.step, 0
            state.best_weights = weights
        elif learned:
            state.waited += 1
        if self.journal:
            self.journal.write(
                state.step, "validation", loss=loss, uncalibrated=uncalibrated, epoch=state.epoch, **metrics
            )
        self.wrapped.train()
        headline = target.headline
        self.display.say(f"  validation at step {state.step}: loss {loss:.5f}, {headline} {metrics[headline]:.3f}")
        if self.watch:
            self.watch(state.step, loss)

    def _score(self, predictions: Predictions) -> tuple[float, float, float, dict[str, float]]:
        """The loss after and before calibration, the loss of the best constant prediction, and the metrics."""
        target = self.task.target
        loss, uncalibrated = predictions.calibrated_loss(target), predictions.loss(target)
        if not math.isfinite(uncalibrated):
            names = ", ".join(predictions.not_finite()[:8])
            raise ValueError(
                f"validation loss {uncalibrated} at step {self.state.step} is not finite, records {names}: "
                f"look at these records or lower the learning rate of {self.config.learning_rate:.2g}"
            )
        metrics = target.metrics(predictions.outputs, predictions.targets)
        return loss, uncalibrated, predictions.constant(target).loss(target), metrics

    def _predict(self, records: Records) -> Predictions:
        """The outputs for all records, on every rank."""
        device, target = self.accelerator.device, self.task.target
        network = averaged(self.wrapped, self.task.complement, device)
        return predict_records(network, records, self.config, device, target)

    def _out_of_patience(self) -> bool:
        return 0 < self.config.patience <= self.state.waited

    def _save_if_due(self) -> None:
        self.folder.check()
        due = self.config.checkpoint_every and self.state.step % self.config.checkpoint_every == 0
        overdue = time.monotonic() - self.saved > 60 * self.config.checkpoint_minutes
        if due or overdue:
            self._save()
        self._leave_if_asked()

    def _leave_if_asked(self) -> None:
        if caught := ranks.maximum(self.interrupts.caught):
            self._save()
            run = shlex.quote(str(self.resumed_as))
            self.display.say(f"stopped at step {self.state.step}; go on: chordmixer train --resume {run}")
            raise Interrupted(caught)

    def _save(self) -> None:
        self.read_results()
        if self.journal:
            self.state.lines = self.journal.lines
            self.state.ema = self.ema.values if self.ema else {}
            self.folder.save(self.state, self.model, self.optimiser.adam)
        self.saved = time.monotonic()

    def _restore(self) -> State:
        checkpoint = self.folder.checkpoint
        for line in self.folder.messages():
            self.display.say(line)
        state = checkpoints.load(checkpoint, self.model, self.optimiser.adam) if checkpoint else State()
        if self.journal:
            self.journal.keep(state.lines)
        if self.config.start and not checkpoint:  # from here on the run does not need the other run
            self.folder.save(state, self.model, self.optimiser.adam)
        return state

    def _describe(self) -> None:
        sampler, weights = self.loader.sampler, sum(p.numel() for p in self.model.parameters())
        network = f"{self.experiment.model.encoder} with {weights:,} weights on {self.accelerator.device}"
        lines = introduction(self.experiment.task, sampler, network, self.config.epochs)
        for line in [
            *lines,
            *self.budget.messages(),
            *fine_tuning.messages(self.config),
            self.threads.line,
            self._hint(),
        ]:
            if line:
                self.display.say(line)
        done = (self.state.epoch + self.state.batch / len(sampler)) / self.config.epochs
        self.display.start = max(done, self.budget.spent)

    def _hint(self) -> str:
        """Settings with which several ranks take the same steps in fewer passes; empty if there are none."""
        count, accumulate = self.accelerator.num_processes // self.config.context_parallel, self.config.accumulate
        if count == 1 or accumulate == 1:
            return ""
        fewer = -(-accumulate // count)
        larger = self.loader.sampler.tokens * accumulate // fewer
        return (
            f"{count} ranks share each of the {accumulate} batches of a step: training.accumulate={fewer} and "
            f"training.batch_tokens={larger} take steps as large with larger shares"
        )

    def _finish(self) -> Evaluation:
        """Write the best weights, the scores, and the manifest; return the scores on the test set."""
        if self.journal:
            self.journal.close()
        self.model.load_state_dict(self.state.best_weights)
        parts = {"validation": self.validation} if self.task.keeps_validation else {}
        with speed.single_threaded_host(self.accelerator.device):
            predictions = {part: self._predict(records) for part, records in {**parts, "test": self.test}.items()}
        self.folder.check()
        return ranks.from_main_rank(lambda: self._write_results(predictions))

    def _write_results(self, predictions: dict[str, Predictions]) -> Evaluation:
        evaluation = results.evaluate_parts(self.experiment, self.task, predictions)
        results.write_results(self.out, self.task, self.state.best_weights, evaluation, predictions)
        return evaluation["test"]
