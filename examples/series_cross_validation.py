"""Cross-validation by scikit-learn on time series of unequal lengths: slow waves against fast ones, in noise.

python examples/series_cross_validation.py --records 120 --steps 60
"""

import argparse

import numpy as np
from sklearn.model_selection import cross_val_score

from chordmixer import ChordMixerClassifier


def waves(records: int) -> tuple[list[np.ndarray], np.ndarray]:
    rng = np.random.default_rng(0)
    classes = np.arange(records) % 2
    series = []
    for fast in classes:
        time = np.arange(rng.integers(30, 120))
        wave = np.sin(time * (0.5 if fast else 0.25) + rng.uniform(0, 6))
        series.append((wave + rng.normal(0, 0.5, len(time))).astype(np.float32))
    return series, np.where(classes, "fast", "slow")


def main(records: int, steps: int, folds: int) -> np.ndarray:
    series, classes = waves(records)
    classifier = ChordMixerClassifier(settings={"training.steps": steps}, random_state=0)
    scores = cross_val_score(classifier, series, classes, cv=folds)
    print(f"accuracy of {folds} folds: {scores.mean():.3f} ({', '.join(f'{score:.3f}' for score in scores)})")
    return scores


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=120)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--folds", type=int, default=3)
    main(**vars(parser.parse_args()))
