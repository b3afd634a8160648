"""Convert configs, which are frozen dataclasses, from and to dictionaries (JSON, TOML).

Every JSON file of a run is read by `from_dict`, which checks it against the types of a dataclass. Unknown keys, wrong
types and numbers out of range are errors that name the key, the rule and the cure.
"""

from __future__ import annotations

import difflib
import math
import reprlib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import MISSING, asdict, fields, is_dataclass, replace
from functools import cache
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")

MAX_INT = 2**63 - 1
"""The largest integer in a file or a tensor."""

LONGEST = 1 << 40
"""Largest `max_length` of a network, in tokens."""
MAX_RECORDS = 10**9
"""Maximum number of records that a task generates."""
MOST_MEMBERS = 20
"""Maximum number of folds or replicates of an ensemble."""
MAX_DEPTH = 16
"""Maximum depth of nested tables."""

_REPR = reprlib.Repr()
_REPR.maxlevel, _REPR.maxstring, _REPR.maxother, _REPR.maxlong = 3, 80, 80, 40


def to_dict(config: Any) -> dict[str, Any]:
    """Convert a config to nested dictionaries."""
    return asdict(config)


def compared(config: Any) -> Any:
    """The values of the fields that define equality, as in JSON; paths, for instance, are excluded."""
    if is_dataclass(config):
        return {f.name: compared(getattr(config, f.name)) for f in fields(config) if f.compare}
    return list(config) if isinstance(config, tuple) else config


def first_difference(here: Mapping[str, Any], there: Mapping[str, Any]) -> tuple[str, Any, Any] | None:
    """Find the first setting of both nested dictionaries with different values, and return it with the two values.

    >>> first_difference({"a": {"b": 1, "c": 2}}, {"a": {"b": 1, "c": 3}})
    ('a.c', 2, 3)
    """
    for name in (name for name in here if name in there):
        value, other_value = here[name], there[name]
        if isinstance(value, Mapping) and isinstance(other_value, Mapping):
            if difference := first_difference(value, other_value):
                return f"{name}.{difference[0]}", *difference[1:]
        elif value != other_value:
            return name, value, other_value
    return None


def from_dict(cls: type[T], document: Mapping[str, Any], where: str, *, undefined: bool = False) -> T:
    """Build a dataclass from a dictionary; fields with a default are optional. Error messages begin with `where`.

    Settings are finite. Measured numbers may be undefined: with `undefined`, null is read as NaN.
    """
    if not isinstance(document, Mapping):
        raise ValueError(f"{where}={_REPR.repr(document)} is not a table of settings: give one")
    values = {
        key: typed(_kinds(cls, key, where, document)[key], value, f"{where}.{key}", undefined=undefined)
        for key, value in document.items()
    }
    for name in (f.name for f in fields(cls) if f.default is MISSING and f.default_factory is MISSING):  # type: ignore[arg-type]
        if name not in values:
            raise ValueError(f"{where}.{name} is missing: it has no default; give it")
    try:
        return cls(**values)
    except ValueError as error:  # a field is out of range
        raise ValueError(f"{where}: {error}") from None


def override(config: T, new_values: Mapping[str, Any], where: str = "") -> T:
    """Copy a config with some fields changed; nested configs take nested dictionaries.

    A config with fields that depend on each other may adapt itself first, by a method `changing`.

    >>> from chordmixer.models import ChordMixerConfig
    >>> override(ChordMixerConfig(), {"hidden": 96}).hidden
    96
    """
    changes = {}
    config = config.changing(new_values) if hasattr(config, "changing") else config
    for key, value in new_values.items():
        path = f"{where}.{key}" if where else key
        kinds = _kinds(type(config), key, where, new_values)
        current = getattr(config, key)
        nested = is_dataclass(current) and isinstance(value, Mapping)
        changes[key] = override(current, value, path) if nested else typed(kinds[key], value, path)
    return replace(config, **changes)  # type: ignore[type-var]


def check_numbers(config: Any, **limits: tuple[float, float]) -> None:
    """Check the numbers of a dataclass against inclusive limits, in its `__post_init__`.

    All numbers must be finite. Integers without limits must be 0 or more, and fit 64 bits.

    >>> from chordmixer.models import ChordMixerConfig
    >>> ChordMixerConfig(hidden=2 * 10**12)
    Traceback (most recent call last):
    ValueError: hidden=2,000,000,000,000 is too large: give 1,048,576 or less
    """
    for field in fields(config):
        value, is_integer = getattr(config, field.name), field.type in ("int", int)
        if isinstance(value, bool) or value is None or not (is_integer or isinstance(value, Real)):
            continue
        if is_integer and not isinstance(value, Integral):
            raise ValueError(f"{field.name}={value!r} is not a whole number: give one")
        if not math.isfinite(value):
            raise ValueError(f"{field.name}={value!r} is not finite: give a finite number")
        low, high = limits.get(field.name, (0, MAX_INT) if isinstance(value, Integral) else (-math.inf, math.inf))
        if value < low:
            raise ValueError(f"{field.name}={value} is too small: give {low} or more")
        if value > high:
            raise ValueError(f"{field.name}={value:,} is too large: give {high:,} or less")


def check_depth(value: T, where: str) -> T:
    """Return the value, or raise an error if lists and tables are nested more than `MAX_DEPTH` times."""
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH + 1):
        tables = [[*part.values()] if isinstance(part, dict) else part for part in level]
        level = [item for table in tables if isinstance(table, list) for item in table]
    if level:
        raise ValueError(f"{where} is nested more than {MAX_DEPTH} times: give a flatter one")
    return value


def _kinds(cls: type, key: str, where: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """The types of a config's fields, which must include `key`; some types depend on the other values."""
    names = [f.name for f in fields(cls)]
    if key not in names:
        close = difflib.get_close_matches(key, names, n=1)
        cure = f"did you mean {close[0]}?" if close else f"choose from {', '.join(names)}"
        raise ValueError(f"{f'{where}.{key}' if where else key} is not a setting: {cure}")
    try:
        return _hints(cls) | (cls.kinds(values) if hasattr(cls, "kinds") else {})
    except ValueError as error:
        raise ValueError(f"{where}: {error}" if where else str(error)) from None


_hints = cache(get_type_hints)
"""Cached, since a command needs the types of the same few classes thousands of times."""


def typed(kind: Any, value: Any, where: str, *, undefined: bool = False) -> Any:
    """Check and convert a JSON value to a type such as `dict[str, list[int]]`; `undefined` as for `from_dict`.

    >>> typed(dict[int, float], {"50": 1}, "percentiles")
    {50: 1.0}
    """
    if is_dataclass(kind) and isinstance(kind, type):
        return from_dict(kind, value, where, undefined=undefined)
    origin, options = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return _of_union(options, value, where, undefined)
    if origin is Literal:
        if value not in options:
            choices = ", ".join(map(str, options))
            raise ValueError(f"{where}={_REPR.repr(value)} is not a choice: give one of {choices}")
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
        raise ValueError(f"{where}={_REPR.repr(value)} is not of type {kind.__name__}: give one that is")
    if kind is int and abs(value) > MAX_INT:
        raise ValueError(f"{where}={_REPR.repr(value)} is beyond 64 bits: give a smaller number")
    return value


def _of_union(options: tuple[Any, ...], value: Any, where: str, undefined: bool) -> Any:
    if NoneType in options and (value is None or value == "none" or value == ""):
        return None
    kinds = [option for option in options if option is not NoneType]
    for kind in kinds[:-1]:
        try:
            return typed(kind, value, where, undefined=undefined)
        except ValueError:
            continue
    return typed(kinds[-1], value, where, undefined=undefined)


def _of_list(build: Callable[[Any], Any], options: tuple[Any, ...], value: Any, where: str, undefined: bool) -> Any:
    """Convert a list; only `tuple[X, Y]` has a fixed length."""
    if not isinstance(value, (list, tuple)):
        raise ValueError(f"{where}={_REPR.repr(value)} is not a list: give one")
    if build is list or options[1:] == (...,):
        return build([typed(options[0], v, where, undefined=undefined) for v in value])
    if len(value) != len(options):
        raise ValueError(f"{where}={_REPR.repr(value)} has {len(value)} items: give {len(options)}")
    return build([typed(kind, v, where, undefined=undefined) for kind, v in zip(options, value, strict=True)])


def _of_table(build: Callable[[Any], Any], options: tuple[Any, ...], value: Any, where: str, undefined: bool) -> Any:
    """Convert a table; integer keys are read from their digits, since JSON keys are strings."""
    if not isinstance(value, Mapping):
        raise ValueError(f"{where}={_REPR.repr(value)} is not a table: give one")
    key_kind, value_kind = options if len(options) == 2 else (options[0], int)
    converted = {}
    for key, item in value.items():
        path = f"{where}.{_REPR.repr(key)[1:-1]}"
        if key_kind is int and not (key.isascii() and key.isdecimal() and len(key) < 19):
            raise ValueError(f"{path} is not named by a whole number: give one that is")
        name = int(key) if key_kind is int else typed(key_kind, key, path, undefined=undefined)
        converted[name] = typed(value_kind, item, path, undefined=undefined)
    return build(converted)


def _real(value: Any, where: str, undefined: bool) -> float:
    if undefined and value is None:
        return math.nan
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, float))
        or (isinstance(value, int) and abs(value) > MAX_INT)
    ):
        raise ValueError(f"{where}={_REPR.repr(value)} is not of type float: give one that is")
    if not undefined and not math.isfinite(value):
        raise ValueError(f"{where}={value!r} is not finite: give a finite number")
    return float(value)
