from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from chordmixer.config import check_numbers, compared, first_difference, from_dict, override, to_dict


@dataclass(frozen=True)
class Inner:
    size: int = 4
    share: float = 0.5
    kind: Literal["round", "square"] | None = None


@dataclass(frozen=True)
class Outer:
    name: str
    sizes: tuple[int, ...] = ()
    quick: bool = False
    inner: Inner = field(default_factory=Inner)


def test_round_trip() -> None:
    outer = Outer("a", (1, 2), True, Inner(8, 0.25, "round"))
    assert from_dict(Outer, to_dict(outer), "file") == outer


def test_where_files_lie_is_not_compared() -> None:
    @dataclass(frozen=True)
    class Data:
        inner: Inner
        sizes: tuple[int, ...] = (1, 2)
        path: str = field(default="", compare=False)

    first, second = (compared(Data(Inner(share=share), path=path)) for share, path in ((0.5, "a"), (0.7, "b")))
    assert first == {"inner": {"size": 4, "share": 0.5, "kind": None}, "sizes": [1, 2]}
    assert first_difference(first, second) == ("inner.share", 0.5, 0.7)
    assert first_difference(first, {"sizes": [1, 2]}) is None  # of an earlier version, which had fewer settings


def test_json_lists_become_tuples() -> None:
    assert from_dict(Outer, {"name": "a", "sizes": [1, 2]}, "file").sizes == (1, 2)


def test_override_changes_only_what_is_given() -> None:
    before = Outer("a", (1, 2), inner=Inner(kind="round"))
    after = override(before, {"quick": True, "inner": {"size": 8}})
    assert after == Outer("a", (1, 2), True, Inner(8, kind="round"))
    assert before.inner.size == 4


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("kind", "round", "round"),
        ("kind", None, None),
        ("kind", "none", None),
        ("kind", "", None),
        ("share", 1, 1.0),
    ],
)
def test_values(key: str, value: Any, expected: Any) -> None:
    for config in (override(Inner(kind="square"), {key: value}), from_dict(Inner, {key: value}, "file")):
        assert getattr(config, key) == expected and type(getattr(config, key)) is type(expected)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"nmae": "b"}, r"^nmae is not a setting: did you mean name\?$"),
        ({"xyz": 1}, "^xyz is not a setting: choose from name, sizes, quick, inner$"),
        ({"inner": {"sise": 1}}, r"^inner\.sise is not a setting: did you mean size\?$"),
        ({"inner": {"size": "8"}}, r"^inner\.size='8' is not of type int: give one that is$"),
        ({"inner": {"size": 8.0}}, r"^inner\.size=8\.0 is not of type int"),
        ({"inner": {"size": True}}, r"^inner\.size=True is not of type int"),
        ({"inner": {"size": None}}, r"^inner\.size=None is not of type int"),
        ({"inner": {"share": True}}, r"^inner\.share=True is not of type float"),
        ({"inner": {"kind": "oval"}}, r"^inner\.kind='oval' is not a choice: give one of round, square$"),
        ({"inner": 3}, "^inner=3 is not a table of settings: give one$"),
        ({"quick": 1}, "^quick=1 is not of type bool"),
        ({"sizes": 3}, "^sizes=3 is not a list: give one$"),
        ({"sizes": [1, "2"]}, "^sizes='2' is not of type int"),
    ],
    ids=str,
)
def test_errors(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        override(Outer("a"), settings)
    with pytest.raises(ValueError, match=message.replace("^", r"^run\.json: model\.", 1)):
        from_dict(Outer, {"name": "a", **settings}, "run.json: model")


def test_a_missing_setting_is_named() -> None:
    with pytest.raises(ValueError, match=r"run\.json.*name"):
        from_dict(Outer, {"quick": True}, "run.json")


def test_a_list_is_not_a_table() -> None:
    with pytest.raises(ValueError, match=r"run\.json.*not a table of settings"):
        from_dict(Outer, [], "run.json")  # type: ignore[arg-type]


# --- JSON files of a run are read by the same rules ---


@dataclass(frozen=True)
class Results:
    scores: dict[str, float]
    percentiles: dict[int, int] = field(default_factory=dict)
    pairs: list[tuple[str, int]] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    either: str | int = ""
    about: dict[str, Any] = field(default_factory=dict)


def test_containers_are_read_by_their_types() -> None:
    values = {
        "scores": {"r2": None, "mse": 1},
        "percentiles": {"50": 3},
        "pairs": [["a", 1]],
        "counts": {"x": 2},
        "either": 3,
        "about": {"any": [1, {"thing": None}]},
    }
    results = from_dict(Results, values, "file", undefined=True)
    assert math.isnan(results.scores["r2"]) and results.scores["mse"] == 1.0 and results.either == 3
    assert (results.percentiles, results.pairs, results.counts) == ({50: 3}, [("a", 1)], Counter(x=2))


def nested(levels: int) -> Any:
    value: Any = 0
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"scores": []}, r"^file\.scores=\[\] is not a table: give one$"),
        ({"scores": {"r2": None}}, r"^file\.scores\.r2=None is not of type float"),
        ({"scores": {"r2": float("nan")}}, r"^file\.scores\.r2=nan is not finite: give a finite number$"),
        ({"scores": {"r2": 10**400}}, r"^file\.scores\.r2=1000.*0000 is not of type float"),
        ({"scores": {}, "percentiles": {"2_0": 1}}, r"^file\.percentiles\.2_0 is not named by a whole number"),
        ({"scores": {}, "percentiles": {"2": 2**63}}, r"^file\.percentiles\.2=9223372036854775808 is beyond 64 bits"),
        ({"scores": {}, "pairs": [["a", 1, 2]]}, r"^file\.pairs=\['a', 1, 2\] has 3 items: give 2$"),
        ({"scores": {}, "pairs": {"a": 1}}, r"^file\.pairs=.* is not a list: give one$"),
        ({"scores": {}, "counts": {"x": "y"}}, r"^file\.counts\.x='y' is not of type int"),
        ({"scores": {}, "either": []}, r"^file\.either=\[\] is not of type int"),
        ({"scores": {}, "about": {"a": nested(5000)}}, r"^file\.about\.a is nested more than 16 times"),
        ({"scores": nested(5000)}, r"^file\.scores=.* is not a table"),
        ({"scores": "x" * 10**6}, r"^file\.scores=.{,90} is not a table"),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, str) else "",
)
def test_hostile_values_are_one_short_line(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as raised:
        from_dict(Results, values, "file")
    assert len(str(raised.value)) < 200


@dataclass(frozen=True)
class Numbered:
    count: int = 1
    share: float = 0.5
    most: int | None = None

    def __post_init__(self) -> None:
        check_numbers(self, count=(1, 1000), most=(1, 5))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"count": 0}, "count=0 is too small: give 1 or more"),
        ({"count": 10**6}, "count=1,000,000 is too large: give 1,000 or less"),
        ({"count": 2.0}, "count=2.0 is not a whole number: give one"),
        ({"share": math.inf}, "share=inf is not finite: give a finite number"),
        ({"share": math.nan}, "share=nan is not finite: give a finite number"),
        ({"most": 6}, "most=6 is too large: give 5 or less"),
    ],
)
def test_numbers_have_limits(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        Numbered(**given)
    with pytest.raises(ValueError, match=r"^run\.json[:.]"):
        from_dict(Numbered, given, "run.json")
