from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from chordmixer.config import from_dict, override, to_dict


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


def test_json_lists_become_tuples() -> None:
    assert from_dict(Outer, {"name": "a", "sizes": [1, 2]}, "file").sizes == (1, 2)


def test_override_changes_only_what_is_given() -> None:
    before = Outer("a", (1, 2), inner=Inner(kind="round"))
    after = override(before, {"quick": True, "inner": {"size": 8}})
    assert after == Outer("a", (1, 2), True, Inner(8, kind="round"))
    assert before.inner.size == 4


@pytest.mark.parametrize(
    ("key", "given", "expected"),
    [
        ("kind", "round", "round"),
        ("kind", None, None),
        ("kind", "none", None),
        ("kind", "", None),
        ("share", 1, 1.0),
    ],
)
def test_values(key: str, given: Any, expected: Any) -> None:
    for config in (override(Inner(kind="square"), {key: given}), from_dict(Inner, {key: given}, "file")):
        assert getattr(config, key) == expected and type(getattr(config, key)) is type(expected)


@pytest.mark.parametrize(
    ("given", "message"),
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
def test_errors(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        override(Outer("a"), given)
    with pytest.raises(ValueError, match=message.replace("^", r"^run\.json: model\.", 1)):
        from_dict(Outer, {"name": "a", **given}, "run.json: model")


def test_a_missing_setting_is_named() -> None:
    with pytest.raises(ValueError, match=r"run\.json.*name"):
        from_dict(Outer, {"quick": True}, "run.json")


def test_a_list_is_not_a_table() -> None:
    with pytest.raises(ValueError, match=r"run\.json.*not a table of settings"):
        from_dict(Outer, [], "run.json")  # type: ignore[arg-type]
