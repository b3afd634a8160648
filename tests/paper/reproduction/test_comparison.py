"""Our scores beside the paper's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from chordmixer.paper.reproduction.catalogue import ENTRIES
from chordmixer.paper.reproduction.comparison import Comparison
from chordmixer.paper.reproduction.entries import RunEntry
from chordmixer.paper.reproduction.experiments import with_encoder, with_seed
from chordmixer.paper.reproduction.page import PageContent
from chordmixer.paper.reproduction.running import DataSummary, TrainedRun
from chordmixer.training import Experiment
from chordmixer.training.evaluation import Evaluation
from chordmixer.training.intervals import Difference
from chordmixer.views.runs import Scored

Evaluated = Callable[[str, float], Evaluation]
SEEN = DataSummary({"training": 64}, 30, 9_000, ["no", "yes"])


def entry(name: str) -> RunEntry:
    found = ENTRIES[name]
    assert isinstance(found, RunEntry)
    return found


@pytest.fixture
def compared(tiny: Experiment, evaluated: Evaluated) -> Callable[..., PageContent]:
    def make(
        name: str,
        runs: list[tuple[str, int, float]],
        given: bool = False,
        killed: bool = False,
        baselines: dict[str, float] | None = None,
        beside: dict[str, Difference] | None = None,
    ) -> PageContent:
        scored = [Scored(k, f"what {k} is", evaluated(k, value)) for k, value in (baselines or {}).items()]
        trained = [
            TrainedRun(
                with_seed(with_encoder(tiny, encoder), seed),
                evaluated(encoder, value),
                120.0,
                killed,
                1500 + seed,
                scored,
            )
            for encoder, seed, value in runs
        ]
        seen = DataSummary({"training": 64, "validation": 16, "test": 32}, 30, 9_000, ["no", "yes"])
        return Comparison(entry(name), trained, seen, given, differences=beside or {}).page(name, ["mind!"])

    return make


def test_numbers_beside_the_papers(compared: Callable[..., PageContent]) -> None:
    result = compared("listops", [("chordmixer", 0, 0.55), ("pointwise", 0, 0.2)])
    assert result.body[:5] == [
        "| model | accuracy here, % | the paper, % | here less the paper | runs | steps a run | time a run |",
        "|---|---|---|---|---|---|---|",
        "| chordmixer | 55.00 (50.00-60.00) | 60.12 | -5.12 | 1 | 1,500 | 2 min |",
        "| pointwise | 20.00 (15.00-25.00) |  |  | 1 | 1,500 | 2 min |",
        "| constant prediction | 12.50 |  |  |  |  |  |",
    ]
    text = "\n".join(result.body)
    assert (
        "In brackets: 95 % interval. Data: 64 training, 16 validation, 32 test records of 30 to 9,000 tokens" in text
    )
    assert "| 50 | 30 to 99 | 20 | 55.0 (50.0-60.0) | 20.0 (15.0-25.0) |" in text
    assert "| 100 | 100 to 9,000 | 12 | - | - |" in text
    assert "| learning rate | 0.001 | 0.007 |" in text and "| hidden H | 4 | 88 |" in text
    assert (
        "Accuracy: the share of correct predictions; with several labels per record, all of them must be correct; "
        "here in per cent. Rows are in the order of their scores." in text
    )
    assert (
        "\nBelow the paper is chordmixer by 5.12 points: what is known to differ is fewer epochs (2 at most, " in text
    )
    assert result.warnings == ["mind!"] and result.pictures[""].startswith(b"\x89PNG")


def test_baselines_beside(compared: Callable[..., PageContent]) -> None:
    """All in the first table, the best by length, and a sentence that says whom it beats."""
    models = [("chordmixer", 0, 0.55), ("lstm", 0, 0.2), ("s4d", 0, 0.38), ("cnn", 0, 0.36)]
    beside = {
        "chordmixer": Difference("accuracy", 0.18, 0.15, 0.21, "records"),
        "lstm": Difference("accuracy", -0.17, -0.2, -0.14, "records"),
        "s4d": Difference("accuracy", 0.01, -0.02, 0.04, "records"),
        "cnn": Difference("accuracy", -0.01, -0.04, 0.02, "records"),
    }
    result = compared("listops", models, baselines={"length alone": 0.18, "2-grams": 0.37}, beside=beside)
    text = "\n".join(result.body)
    ranked = [
        "chordmixer",
        "s4d",
        "baseline: 2-grams",
        "cnn",
        "lstm",
        "baseline: length alone",
        "constant prediction",
    ]
    assert [line.split(" | ")[0].removeprefix("| ") for line in result.body[2:9]] == ranked
    assert result.body[4] == "| baseline: 2-grams | 37.00 (32.00-42.00) |  |  |  |  |  |"
    by_length = text.partition("| % by length percentile")[2].splitlines()[2:7]
    assert [line.split(" | ")[0].removeprefix("| ") for line in by_length] == ranked[:5]
    assert (
        "The best baseline, 2-grams, reaches 37.00 %. chordmixer is better by 0.180 (0.150 to 0.210). lstm is worse "
        "by 0.170 (0.140 to 0.200). Tied with s4d and cnn: the test set cannot separate them. Baselines " in text
    )
    assert result.numbers["less_the_best_baseline"]["lstm"]["high"] == -0.14
    assert "as the validation records want it. Length alone: what length alone is; 2-grams: what 2-grams is." in text
    assert (
        "| % by length percentile | 50: 30 to 99 | 100: 100 to 9,000 |" in text
        and "\n| baseline: 2-grams | 37.0 | " in text
    )
    assert "The intervals of these stand in the JSON file beside this page." in text
    assert [m["encoder"] for m in result.numbers["models"]] == ["chordmixer", "lstm", "s4d", "cnn"]
    assert [(b["name"], b["scores"]["accuracy"]["value"]) for b in result.numbers["baselines"]] == [
        *(("length alone", 0.18), ("2-grams", 0.37))
    ]
    assert result.pictures[""] != compared("listops", models).pictures[""]
    assert "baseline" not in "\n".join(compared("listops", models).body).lower()


def test_models_that_cannot_be_compared(tiny: Experiment, evaluated: Evaluated) -> None:
    few = {name: Difference("accuracy", -0.4, None, None, "records") for name in ("chordmixer", "lstm")}
    scored = [Scored("5-grams", "what they are", evaluated("5-grams", 0.89))]
    run = TrainedRun(tiny, evaluated("chordmixer", 0.5), 1.0, False, 9, scored)
    said = Comparison(entry("listops"), [run], SEEN, False, differences=few).beside_baselines()
    assert said.startswith(
        "The best baseline, 5-grams, reaches 89.00 %. Too few test records for a comparison with chordmixer and lstm."
    )


def test_rivals_have_their_own_sizes(compared: Callable[..., PageContent]) -> None:
    text = "\n".join(compared("listops", [("lstm", 0, 0.3), ("chordmixer", 0, 0.5)]).body)
    assert (
        "| setting | here, chordmixer | the paper | its released code |" in text
        and "| hidden H | 4 | 88 | 88 |" in text
    )
    assert "Their sizes: lstm: width 128, layers 2, direction forward, dropout 0.0." in text
    alone = "\n".join(compared("listops", [("lstm", 0, 0.3)]).body)
    assert "| setting | here, lstm | the paper | its released code |" in alone and "hidden H" not in alone


def test_without_a_number_in_the_paper(compared: Callable[..., PageContent]) -> None:
    result = compared("adding-200", [("chordmixer", 0, 0.99)])
    assert result.body[0] == "| model | accuracy here, % | runs | steps a run | time a run |"
    assert result.body[3] == "| constant prediction | 12.50 |  |  |  |"
    assert "here in per cent. An answer is right within 0.04 of the true one. Rows" in result.body[5]
    assert not any("Below the paper" in line for line in result.body)


def test_several_seeds(compared: Callable[..., PageContent]) -> None:
    result = compared("adding-200", [("chordmixer", seed, 0.9 + 0.02 * seed) for seed in range(3)])
    assert "| chordmixer | 92.00 (90.00-94.00) | 3 | 1,501 | 2 min |" in result.body
    assert result.numbers["interval"] == "lowest to highest of 3 runs"
    assert not any("mean of 3 runs" in line for line in result.differences)
    single = compared("adding-200", [("chordmixer", 0, 0.9)])
    assert single.differences[-1] == "The paper's is a mean of 3 runs with other seeds; this is 1 a model."


def test_numbers_for_programs(compared: Callable[..., PageContent]) -> None:
    numbers = compared("listops", [("chordmixer", 7, 0.55)]).numbers
    assert numbers["models"][0]["scores"]["accuracy"]["value"] == 0.55
    (run,) = numbers["runs"]
    assert (run["seed"], run["seconds"], run["encoder"], run["records"]) == (7, 120.0, "chordmixer", 32)
    assert run["settings"]["training"]["seed"] == 7 and numbers["data"]["classes"] == ["no", "yes"]


def test_data_by_rule_are_a_difference(compared: Callable[..., PageContent]) -> None:
    made, given = (compared("listops", [("chordmixer", 0, 0.5)], given=g).differences for g in (False, True))
    assert made == [
        *given,
        "The data come from our own generator by the published rule, not from the release's files.",
    ]


def test_time_that_is_not_all_known(compared: Callable[..., PageContent]) -> None:
    assert "| over 2 min |" in compared("adding-200", [("chordmixer", 0, 0.5)], killed=True).body[2]


def test_the_papers_metric_comes_first(tiny: Experiment, evaluated: Evaluated) -> None:
    trained = TrainedRun(tiny, replace(evaluated("chordmixer", 0.5), headline="mse"), 1.0, False, 9)
    assert Comparison(entry("listops"), [trained], SEEN, False).runs[0].headline == "accuracy"
    scored = [Scored(name, "", replace(evaluated(name, v), headline="mse")) for name, v in (("a", 0.4), ("b", 0.6))]
    _, best = Comparison(entry("listops"), [replace(trained, baselines=scored)], SEEN, False).runs
    assert (best.encoder, best.headline) == ("baseline: b", "accuracy")


def said(name: str, experiment: Experiment, own: Evaluation, given: bool = False, **changes: object) -> str:
    run = TrainedRun(experiment, own, 1.0, False, 9)
    return Comparison(replace(entry(name), **changes), [run], SEEN, given).why_below()  # type: ignore[arg-type]


def test_what_is_known_to_differ(tiny: Experiment, evaluated: Evaluated) -> None:
    assert said("listops", tiny, evaluated("chordmixer", 0.55)) == (
        "Below the paper is chordmixer by 5.12 points: what is known to differ is fewer epochs (2 at most, 200 in "
        "the released code); other settings (table below); data of our own generator, not the release's; the "
        "protocol (end of this page). How much each of these costs was not measured."
    )
    short = replace(tiny, training=replace(tiny.training, steps=1_500))
    words = said("listops", short, evaluated("chordmixer", 0.55), given=True, classes=("a",), seeds=3)
    assert "; an early end (1,500 steps); " in words and "generator" not in words
    assert "; other classes than the paper's; 1 run where the paper has the mean of 3; " in words


def test_nothing_to_explain(tiny: Experiment, evaluated: Evaluated) -> None:
    assert said("listops", tiny, evaluated("chordmixer", 0.61)) == ""
    assert said("listops", tiny, evaluated("lstm", 0.2)) == "", "no number of the paper's"
    bare = {"hyper": None, "released": None, "differences": ()}
    words = said("listops", tiny, evaluated("chordmixer", 0.55), given=True, **bare)
    assert "points: no difference in protocol is known." in words
