"""Values out of a line, checked: numbers of tokens, times, names. All raise Unusable, which says what was expected."""

from __future__ import annotations

import json
import reprlib
from typing import Any

from simulator.workload.readers.reading import Unusable

MAX_TOKENS = 2**28 - 1  # of a prompt or an answer; block keys count tokens below 2^28 (prefix.py)
MAX_SECONDS = 1e12

Fields = dict[str, Any]


def json_object(line: bytes) -> Fields:
    """The JSON object of a line."""
    fields = json_value(line)
    if type(fields) is not dict:
        raise Unusable(f"not a JSON object but {shown(fields)}")
    return fields


def json_value(line: bytes) -> Any:
    """The JSON value of a line."""
    try:
        return json.loads(line)
    except json.JSONDecodeError as error:
        raise Unusable(f"not JSON: {error.msg} (character {error.pos + 1})") from error
    except (ValueError, RecursionError) as error:
        raise Unusable(f"not JSON: {error}") from error


def tokens(fields: Fields, key: str, least: int = 1) -> int:
    """A number of tokens, whole and at least ``least``; 512.0 is one."""
    value = fields.get(key)
    if type(value) is int and least <= value <= MAX_TOKENS:
        return value
    if type(value) is float and value.is_integer() and least <= value <= MAX_TOKENS:
        return int(value)
    raise _wrong(fields, key, f"a whole number of tokens >= {least} and <= {MAX_TOKENS}")


def number(fields: Fields, key: str, least: float = -MAX_SECONDS) -> float:
    """A finite number, in the file's unit."""
    value = fields.get(key)
    if (type(value) is float or type(value) is int) and least <= value <= 1000 * MAX_SECONDS:
        return value
    raise _wrong(fields, key, "a number" if least < 0 else f"a number >= {least:g}")


def optional_number(fields: Fields, key: str, least: float = -MAX_SECONDS) -> float | None:
    """The same, or None where the key is absent or null."""
    return None if fields.get(key) is None else number(fields, key, least)


def name(fields: Fields, key: str) -> int | str | None:
    """A number or a text that names something; None where the key is absent, null or empty."""
    value = fields.get(key)
    if value is None or value == "":
        return None
    if type(value) is int or type(value) is str:
        return value
    raise _wrong(fields, key, "a name or a whole number")


def text(fields: Fields, key: str) -> str | None:
    """A name as text; None where there is none."""
    value = name(fields, key)
    return None if value is None else str(value)


def whole(fields: Fields, key: str, least: int = 0) -> int:
    """A whole number."""
    value = fields.get(key)
    if type(value) is int and value >= least:
        return value
    raise _wrong(fields, key, f"a whole number >= {least}")


def shown(value: object) -> str:
    """The value in a message: short, however long or deep it is."""
    return reprlib.repr(value)


def _wrong(fields: Fields, key: str, expected: str) -> Unusable:
    if key not in fields:
        return Unusable(f"key {key!r} is missing, expected {expected}")
    return Unusable(f"{key} is {shown(fields[key])}, expected {expected}")
