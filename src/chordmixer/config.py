"""Configs are frozen dataclasses; here they come from and go to plain dictionaries (JSON, TOML).

`from_dict` is also how every JSON file of a run is read: by the types of a dataclass's fields. Unknown keys, wrong
types and numbers out of range are errors that name the key, the rule and the cure.
"""

from __future__ import annotations

import difflib
import math
import reprlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, asdict, fields, is_dataclass, replace
from functools import cache
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")

LARGEST = 2**63 - 1
"""A whole number above it fits no file format, and no tensor."""

LONGEST = 1 << 40
"""Tokens of a sequence that a network may be built for."""
MANY = 10**9
"""Records that a task may be asked to make."""
DEEPEST = 16
"""How often tables may stand within tables."""

_SHORT = reprlib.Repr()
_SHORT.maxlevel, _SHORT.maxstring, _SHORT.maxother, _SHORT.maxlong = 3, 80, 80, 40


def to_dict(config: Any) -> dict[str, Any]:
    """Nested dictionaries of plain values."""
    return asdict(config)


def compared(config: Any) -> Any:
    """The plain values of the fields that two equal configs share: not where files lie."""
    if is_dataclass(config):
        return {f.name: compared(getattr(config, f.name)) for f in fields(config) if f.compare}
    return list(config) if isinstance(config, tuple) else config


def first_difference(here: Mapping[str, Any], there: Mapping[str, Any]) -> tuple[str, Any, Any] | None:
    """The first setting of both in which two nested dictionaries differ, and its two values.

    >>> first_difference({"a": {"b": 1, "c": 2}}, {"a": {"b": 1, "c": 3}})
    ('a.c', 2, 3)
    """
    for name in (name for name in here if name in there):
        own, other = here[name], there[name]
        if isinstance(own, Mapping) and isinstance(other, Mapping):
            if found := first_difference(own, other):
                return f"{name}.{found[0]}", *found[1:]
        elif own != other:
            return name, own, other
    return None


def from_dict(cls: type[T], given: Mapping[str, Any], where: str, *, undefined: bool = False) -> T:
    """A dataclass from a dictionary that may leave out what has a default; `where` stands in errors.

    Settings are finite. Of measured numbers some may not be: with `undefined`, null is read as NaN.
    """
    if not isinstance(given, Mapping):
        raise ValueError(f"{where}={_SHORT.repr(given)} is not a table of settings: give one")
    values = {
        key: _value(_kinds(cls, key, where, given)[key], value, f"{where}.{key}", undefined)
        for key, value in given.items()
    }
    for name in (f.name for f in fields(cls) if f.default is MISSING and f.default_factory is MISSING):  # type: ignore[arg-type]
        if name not in values:
            raise ValueError(f"{where}.{name} is missing: it has no default; give it")
    try:
        return cls(**values)
    except ValueError as error:  # of a field's range
        raise ValueError(f"{where}: {error}") from None


def typed(kind: Any, value: Any, where: str, *, undefined: bool = False) -> Any:
    """A JSON value as a type such as `dict[str, list[int]]`, or an error; `undefined` as for `from_dict`.

    >>> typed(dict[int, float], {"50": 1}, "percentiles")
    {50: 1.0}
    """
    return _value(kind, value, where, undefined)


def override(config: T, given: Mapping[str, Any], where: str = "") -> T:
    """A copy of a config with some fields changed; nested configs take nested dictionaries.

    A config whose fields depend on each other may say in `changing` what it is before a change.

    >>> from chordmixer.models import ChordMixerConfig
    >>> override(ChordMixerConfig(), {"hidden": 96}).hidden
    96
    """
    changes = {}
    config = config.changing(given) if hasattr(config, "changing") else config
    for key, value in given.items():
        path = f"{where}.{key}" if where else key
        kinds = _kinds(type(config), key, where, given)
        current = getattr(config, key)
        nested = is_dataclass(current) and isinstance(value, Mapping)
        changes[key] = override(current, value, path) if nested else _value(kinds[key], value, path, False)
    return replace(config, **changes)  # type: ignore[type-var]


def check_numbers(config: Any, **limits: tuple[float, float]) -> None:
    """Refuse numbers of a dataclass outside their limits, both of which are allowed: for its `__post_init__`.

    All numbers are finite. Whole numbers without limits here are 0 or more, and fit 64 bits.

    >>> from chordmixer.models import ChordMixerConfig
    >>> ChordMixerConfig(hidden=2 * 10**12)
    Traceback (most recent call last):
    ValueError: hidden=2,000,000,000,000 is too large: give 1,048,576 or less
    """
    for field in fields(config):
        value, whole = getattr(config, field.name), field.type in ("int", int)
        if isinstance(value, bool) or value is None or not (whole or isinstance(value, Real)):
            continue
        if whole and not isinstance(value, Integral):
            raise ValueError(f"{field.name}={value!r} is not a whole number: give one")
        if not math.isfinite(value):
            raise ValueError(f"{field.name}={value!r} is not finite: give a finite number")
        low, high = limits.get(field.name, (0, LARGEST) if isinstance(value, Integral) else (-math.inf, math.inf))
        if value < low:
            raise ValueError(f"{field.name}={value} is too small: give {low} or more")
        if value > high:
            raise ValueError(f"{field.name}={value:,} is too large: give {high:,} or less")


def check_depth(value: T, where: str) -> T:
    """The value, unless lists and tables stand within each other more than `DEEPEST` times."""
    level: list[Any] = [value]
    for _ in range(DEEPEST + 1):
        level = [v for part in level if isinstance(part, (dict, list)) for v in _parts(part)]
    if level:
        raise ValueError(f"{where} is nested more than {DEEPEST} times: give a flatter one")
    return value


def _parts(given: dict[str, Any] | list[Any]) -> Iterable[Any]:
    return given.values() if isinstance(given, dict) else given


def _kinds(cls: type, key: str, where: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The types of a config's fields, once it is sure that `key` is one; some may follow from what else is given."""
    names = [f.name for f in fields(cls)]
    if key not in names:
        close = difflib.get_close_matches(key, names, n=1)
        cure = f"did you mean {close[0]}?" if close else f"choose from {', '.join(names)}"
        raise ValueError(f"{f'{where}.{key}' if where else key} is not a setting: {cure}")
    try:
        return _hints(cls) | (cls.kinds(given) if hasattr(cls, "kinds") else {})
    except ValueError as error:
        raise ValueError(f"{where}: {error}" if where else str(error)) from None


@cache
def _hints(cls: type) -> dict[str, Any]:
    """A command asks for those of the same few classes thousands of times."""
    return get_type_hints(cls)


def _value(kind: Any, value: Any, where: str, undefined: bool) -> Any:
    """The value as the field's type, or an error."""
    if is_dataclass(kind) and isinstance(kind, type):
        return from_dict(kind, value, where, undefined=undefined)
    origin, options = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return _of_union(options, value, where, undefined)
    if origin is Literal:
        if value not in options:
            shown = ", ".join(map(str, options))
            raise ValueError(f"{where}={_SHORT.repr(value)} is not a choice: give one of {shown}")
        return value
    if origin in (tuple, list):
        return _of_list(origin, options, value, where, undefined)
    if origin in (dict, Counter):
        return _of_table(origin, options, value, where, undefined)
    if kind is float:
        return _real(value, where, undefined)
    if kind is Any:
        return check_depth(value, where)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ValueError(f"{where}={_SHORT.repr(value)} is not of type {kind.__name__}: give one that is")
    if kind is int and abs(value) > LARGEST:
        raise ValueError(f"{where}={_SHORT.repr(value)} is beyond 64 bits: give a smaller number")
    return value


def _of_union(options: tuple[Any, ...], value: Any, where: str, undefined: bool) -> Any:
    if NoneType in options and (value is None or value == "none" or value == ""):
        return None
    kinds = [option for option in options if option is not NoneType]
    for kind in kinds[:-1]:
        try:
            return _value(kind, value, where, undefined)
        except ValueError:
            continue
    return _value(kinds[-1], value, where, undefined)


def _of_list(build: Callable[[Any], Any], options: tuple[Any, ...], value: Any, where: str, undefined: bool) -> Any:
    """Of any length, but for `tuple[X, Y]`."""
    if not isinstance(value, (list, tuple)):
        raise ValueError(f"{where}={_SHORT.repr(value)} is not a list: give one")
    if build is list or options[1:] == (...,):
        return build([_value(options[0], v, where, undefined) for v in value])
    if len(value) != len(options):
        raise ValueError(f"{where}={_SHORT.repr(value)} has {len(value)} items: give {len(options)}")
    return build([_value(kind, v, where, undefined) for kind, v in zip(options, value, strict=True)])


def _of_table(build: Callable[[Any], Any], options: tuple[Any, ...], value: Any, where: str, undefined: bool) -> Any:
    """JSON has no keys that are numbers: a whole number is read from its digits."""
    if not isinstance(value, Mapping):
        raise ValueError(f"{where}={_SHORT.repr(value)} is not a table: give one")
    key_kind, value_kind = options if len(options) == 2 else (options[0], int)
    read = {}
    for key, item in value.items():
        path = f"{where}.{_SHORT.repr(key)[1:-1]}"
        if key_kind is int and not (key.isascii() and key.isdecimal() and len(key) < 19):
            raise ValueError(f"{path} is not named by a whole number: give one that is")
        name = int(key) if key_kind is int else _value(key_kind, key, path, undefined)
        read[name] = _value(value_kind, item, path, undefined)
    return build(read)


def _real(value: Any, where: str, undefined: bool) -> float:
    if undefined and value is None:
        return math.nan
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, float))
        or (isinstance(value, int) and abs(value) > LARGEST)
    ):
        raise ValueError(f"{where}={_SHORT.repr(value)} is not of type float: give one that is")
    if not undefined and not math.isfinite(value):
        raise ValueError(f"{where}={value!r} is not finite: give a finite number")
    return float(value)
