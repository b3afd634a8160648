"""Configs are frozen dataclasses; here they come from and go to plain dictionaries (JSON, TOML).

Unknown keys and wrong types are errors that name the key, the rule and the cure.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import MISSING, asdict, fields, is_dataclass, replace
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")


def to_dict(config: Any) -> dict[str, Any]:
    """Nested dictionaries of plain values."""
    return asdict(config)


def from_dict(cls: type[T], given: Mapping[str, Any], where: str) -> T:
    """A config from a dictionary that may leave out what has a default; `where` stands in errors."""
    if not isinstance(given, Mapping):
        raise ValueError(f"{where}={given!r} is not a table of settings: give one")
    values = {
        key: _value(_kinds(cls, key, where, given)[key], value, f"{where}.{key}") for key, value in given.items()
    }
    for name in (f.name for f in fields(cls) if f.default is MISSING and f.default_factory is MISSING):  # type: ignore[arg-type]
        if name not in values:
            raise ValueError(f"{where}.{name} is missing: it has no default; give it")
    return cls(**values)


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
        changes[key] = override(current, value, path) if nested else _value(kinds[key], value, path)
    return replace(config, **changes)  # type: ignore[type-var]


def _kinds(cls: type, key: str, where: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The types of a config's fields, once it is sure that `key` is one; some may follow from what else is given."""
    names = [f.name for f in fields(cls)]
    if key not in names:
        close = difflib.get_close_matches(key, names, n=1)
        cure = f"did you mean {close[0]}?" if close else f"choose from {', '.join(names)}"
        raise ValueError(f"{f'{where}.{key}' if where else key} is not a setting: {cure}")
    return get_type_hints(cls) | (cls.kinds(given) if hasattr(cls, "kinds") else {})


def _value(kind: Any, value: Any, where: str) -> Any:
    """The value as the field's type, or an error."""
    if is_dataclass(kind) and isinstance(kind, type):
        return from_dict(kind, value, where)
    origin, options = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        if value is None or (value in ("none", "") and NoneType in options):
            kind = next((o for o in options if o is NoneType), options[0])
        else:
            kind = next(o for o in options if o is not NoneType)
        return None if kind is NoneType else _value(kind, value, where)
    if origin is Literal:
        if value not in options:
            raise ValueError(f"{where}={value!r} is not a choice: give one of {', '.join(map(str, options))}")
        return value
    if origin is tuple:
        if not isinstance(value, (list, tuple)):
            raise ValueError(f"{where}={value!r} is not a list: give one")
        return tuple(_value(options[0], v, where) for v in value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ValueError(f"{where}={value!r} is not of type {kind.__name__}: give one that is")
    return value
