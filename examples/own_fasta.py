"""Your own FASTA files in Python: train, look at the scores, predict, save, load.

python examples/own_fasta.py worm.fa.gz fly.fa.gz --out RUN     one file for each class
python examples/own_fasta.py                                    synthetic files, a quarter of a minute of training
"""

import argparse
import tempfile
from pathlib import Path

from chordmixer import Dataset, Predictor, fit
from chordmixer.data.samples import write_sample


def main(files: list[str], out: str | None, minutes: float | None) -> Predictor:
    folder = Path(tempfile.mkdtemp())
    if not files:
        files = [str(path) for path in write_sample("dna", folder, seed=0) if path.name != "new.fa"]
        minutes = minutes or 0.25
    data = Dataset.from_files(*files)
    predictor = fit(data, out, minutes=minutes)

    scores = predictor.evaluate(data)  # of all records, those of the training among them; the report has the test
    print(f"all records: {scores.headline} {scores.scores[scores.headline].value:.3f}")
    sequences = [entry.sequence for entry in data.entries()][:3]
    print(predictor.classes, predictor.predict_proba(sequences).round(3).tolist())

    predictor.save_pretrained(folder / "model")
    restored = Predictor.from_pretrained(folder / "model")
    assert (restored.predict(sequences) == predictor.predict(sequences)).all()
    print(f"saved with a model card in {folder / 'model'}")
    return restored


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*")
    parser.add_argument("--out", help="the run folder, with a report")
    parser.add_argument("--minutes", type=float)
    args = parser.parse_args()
    main(args.files, args.out, args.minutes)
