"""The fields of a result file, read with errors that name file, field, what was found and what was expected."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from simulator.errors import InputError

_MOST = 10**15  # tokens, requests: beyond this a number is a slip


@dataclass(frozen=True)
class Fields:
    """One object of a result file. ``where`` is the file (and line); ``path`` leads to the object, "" at the top.

    Absent and null are the same: None. Every reader raises InputError for a value of another kind.
    """

    values: Mapping[str, Any]
    where: str
    path: str = ""

    def has(self, *keys: str) -> bool:
        """Whether all of these are there and not null."""
        return all(self.values.get(key) is not None for key in keys)

    def problem(self, key: str, found: object, expected: str) -> InputError:
        """The error of one field."""
        return InputError(f"{self.where}: {self._named(key)} is {shown(found)}, expected {expected}")

    def inner(self, *keys: str) -> Fields:
        """The object under these keys, empty where there is none."""
        here = self
        for key in keys:
            value = here.values.get(key)
            if value is None:
                value = {}
            if not isinstance(value, Mapping):
                raise here.problem(key, value, "an object")
            here = Fields(value, self.where, here._named(key))
        return here

    def listed(self, key: str) -> Iterator[Fields]:
        """The objects of a list, none where there is no list."""
        for index, value in enumerate(self._list(key)):
            name = f"{key}[{index}]"
            if not isinstance(value, Mapping):
                raise self.problem(name, value, "an object")
            yield Fields(value, self.where, self._named(name))

    def text(self, key: str) -> str | None:
        """A text; numbers become one."""
        value = self.values.get(key)
        if value is None or isinstance(value, str):
            return value or None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.problem(key, value, "a text")
        return str(value)

    def number(self, key: str) -> float | None:
        """A finite number >= 0."""
        return None if self.values.get(key) is None else self._checked(key, self.values[key])

    def needed(self, key: str, meaning: str) -> float:
        """A finite number > 0 without which nothing can be said."""
        value = self.number(key)
        if value is None:
            raise InputError(f"{self.where}: {self._named(key)} is missing, expected {meaning}")
        if value <= 0:
            raise self.problem(key, value, "more than 0")
        return value

    def count(self, key: str) -> int | None:
        """A whole number >= 0; 12.0 is one."""
        value = self.number(key)
        if value is None:
            return None
        if value != int(value) or value > _MOST:
            raise self.problem(key, self.values[key], "a whole number >= 0")
        return int(value)

    def counts(self, key: str) -> tuple[int, ...]:
        """A list of whole numbers >= 0, empty where there is none."""
        found = self.numbers(key)
        for index, value in enumerate(found):
            if value != int(value) or value > _MOST:
                raise self.problem(f"{key}[{index}]", value, "a whole number >= 0")
        return tuple(map(int, found))

    def numbers(self, key: str) -> tuple[float, ...]:
        """A list of finite numbers >= 0, empty where there is none."""
        return tuple(self._checked(f"{key}[{index}]", value) for index, value in enumerate(self._list(key)))

    def sums(self, key: str) -> tuple[float, ...]:
        """A list of lists of numbers, each summed up."""
        sums = []
        for index, row in enumerate(self._list(key)):
            inner = Fields({f"{key}[{index}]": row}, self.where, self.path)
            sums.append(math.fsum(inner.numbers(f"{key}[{index}]")))
        return tuple(sums)

    def texts(self, key: str) -> tuple[Any, ...]:
        """A list of anything, empty where there is none."""
        return tuple(self._list(key))

    def _list(self, key: str) -> list[Any]:
        value = self.values.get(key)
        if value is None:
            return []
        if not isinstance(value, list):
            raise self.problem(key, value, "a list")
        return value

    def _checked(self, key: str, value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.problem(key, value, "a number")
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not (math.isfinite(number) and number >= 0):
            raise self.problem(key, value, "a finite number >= 0")
        return number

    def _named(self, key: str) -> str:
        return f"{self.path}.{key}" if self.path else key


def shown(value: object) -> str:
    """A value in a message: short, on one line."""
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, list | tuple):
        return "a list"
    if isinstance(value, int) and abs(value) > _MOST:
        return "a number beyond all counting"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def optional_sum(*values: float | None) -> float | None:
    """The sum, where all are known."""
    known = [value for value in values if value is not None]
    return math.fsum(known) if len(known) == len(values) else None
