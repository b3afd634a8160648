from __future__ import annotations

import numpy as np

from chordmixer.tasks.targets import Regression
from chordmixer.training.baselines.kernel import fit_kernel


def test_a_curve_that_no_line_follows() -> None:
    chance = np.random.default_rng(0)
    rows = chance.normal(size=(300, 2)).astype(np.float32)
    answers = 50 + 9 * np.sin(2 * rows[:, 0]) * rows[:, 1]
    target = Regression.of(answers[:200])
    models = list(fit_kernel(rows[:200], answers[:200], target, (0.5, 2.0), (1.0, 0.01)))
    errors = [
        float(target.losses(*_tensors(model.scores(rows[200:], target), answers[200:])).mean()) for model in models
    ]
    assert len(errors) == 4 and min(errors) < 0.1


def test_a_row_depends_on_its_record_alone() -> None:
    chance = np.random.default_rng(0)
    rows = chance.normal(size=(64, 21)).astype(np.float32)
    model = next(fit_kernel(rows, rows[:, 0], Regression()))
    every = model.scores(rows, Regression())
    assert all((model.scores(rows[i : i + 1], Regression()) == every[i]).all() for i in range(64))


def _tensors(outputs: np.ndarray, answers: np.ndarray) -> tuple:
    import torch

    return torch.from_numpy(outputs), torch.from_numpy(answers)
