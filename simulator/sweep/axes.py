"""What a sweep varies: one key of the scenario each, over listed values, steps of a range, or the whole of one."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, NamedTuple

from simulator.counts import counted
from simulator.errors import InputError
from simulator.scenario import strict_yaml
from simulator.scenario.changes import KeyPath, read_path, write_path, write_value

_PIECE = r"\s*([+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)(\s*)([^\s\d:,.+-][^\s:,]*)?\s*"
_RANGE = re.compile(rf"{_PIECE}:{_PIECE}(?::{_PIECE})?", re.ASCII)
_QUANTITY = re.compile(_PIECE, re.ASCII)
_EXPECTED = "values like 4,8,16, a range like 0.3:0.9:0.1 or, with --samples, one like 0.3:0.9"
_MOST_VALUES = 10_000


class _Number(NamedTuple):
    """A number as it was written, with its unit ("" for none) and what stands between."""

    value: Decimal
    space: str
    unit: str


@dataclass(frozen=True)
class Axis:
    """One varied key. ``values`` are what the scenario file would say; of a whole range (``ends``) there are none."""

    path: KeyPath
    values: tuple[Any, ...]
    ends: tuple[_Number, _Number] | None = None

    @property
    def name(self) -> str:
        """The key as people write it."""
        return write_path(self.path)

    @property
    def is_plain(self) -> bool:
        """Whether all values are numbers without a unit."""
        if self.ends is not None:
            return not any(end.unit for end in self.ends)
        return not any(isinstance(value, bool) or not isinstance(value, int | float) for value in self.values)

    def at(self, share: float) -> Any:
        """The value at this share (0 to 1, 1 left out) of the list, or of the range from its low to its high end.

        Ends that are whole numbers as written give whole numbers, each as likely as any other.
        """
        if self.ends is None:
            return self.values[int(share * len(self.values))]
        low, high = self.ends
        if _is_whole(low.value) and _is_whole(high.value):
            drawn = low.value + math.floor(share * int(high.value - low.value + 1))
        else:
            width = float(high.value - low.value)
            digits = 5 - math.floor(math.log10(width))  # a hundred-thousandth of the range and finer
            drawn = Decimal(repr(round(float(low.value) + share * width, digits)))
        return _written(drawn, high if high.unit else low)


def read_axis(text: str) -> Axis:
    """Read ``KEY=VALUES``: ``a,b,c`` as in YAML, ``start:stop:step`` with its stop, or ``low:high``.

    The ends and the step of a range have the same unit, if any. Raises InputError.
    """
    key, equals, spec = text.partition("=")
    where = f"--vary {text}"
    if not equals or not key.strip():
        raise InputError(f"{where}: got no KEY=VALUES, expected a key of the scenario and {_EXPECTED}")
    try:
        path = read_path(key.strip())
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    if match := _RANGE.fullmatch(spec):
        return _read_range(path, match, where)
    values = strict_yaml.read(f"values: [{spec}]", where)["values"]
    if len(values) < 2:
        raise InputError(f"{where}: got {counted(len(values), 'value')}, expected two or more, "
                         f"or {_EXPECTED.partition(', ')[2]}")  # fmt: skip
    return Axis(path, tuple(values))


def numbers(values: Sequence[Any]) -> list[float] | None:
    """The values as numbers in their common unit; None where they have none."""
    if common_unit(values) is None:
        return None
    return [float(found.value) for value in values if (found := _quantity(value)) is not None]


def common_unit(values: Sequence[Any]) -> str | None:
    """The unit of all values, "" for plain numbers; None where some are no numbers, or in other units. 0 has any."""
    found = [_quantity(value) for value in values]
    if any(one is None for one in found):
        return None
    units = {one.unit for one in found if one is not None and (one.value or one.unit)}
    return (units or {""}).pop() if len(units) <= 1 else None


def label(value: Any) -> str:
    """A value in a table: a policy as reports name it, anything else as people write it."""
    if isinstance(value, dict) and "policy" in value:
        parameters = ", ".join(f"{name}={write_value(one)}" for name, one in value.items() if name != "policy")
        return f"{value['policy']}({parameters})" if parameters else str(value["policy"])
    return write_value(value)


def _quantity(value: Any) -> _Number | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    match = _QUANTITY.fullmatch(str(value))
    return _Number(Decimal(match[1]), match[2], match[3] or "") if match else None


def _read_range(path: KeyPath, match: re.Match[str], where: str) -> Axis:
    pieces = [
        _Number(Decimal(match[place]), match[place + 1], match[place + 2] or "")
        for place in (1, 4, 7) if match[place] is not None
    ]  # fmt: skip
    units = {piece.unit for piece in pieces if piece.value}
    if len(units) > 1:
        raise InputError(f"{where}: units differ, expected the same one for each number of the range")
    low, high = pieces[:2]
    if low.value >= high.value:
        raise InputError(f"{where}: got {low.value} before {high.value}, expected a range that rises")
    if len(pieces) == 2:
        return Axis(path, (), (low, high))
    step = pieces[2]
    if step.value <= 0:
        raise InputError(f"{where}: got a step of {step.value}, expected more than 0")
    count = int((high.value - low.value) / step.value) + 1
    if not 2 <= count <= _MOST_VALUES:
        raise InputError(f"{where}: {counted(count, 'value')}, expected 2 to {_MOST_VALUES:,}")
    return Axis(path, tuple(_written(low.value + place * step.value, step) for place in range(count)))


def _written(value: Decimal, like: _Number) -> Any:
    """The number as a scenario file says it, in the unit and manner of another one."""
    if like.unit:
        return f"{_plain(value)}{like.space}{like.unit}"
    return int(value) if _is_whole(value) and _is_whole(like.value) else float(value)


def _plain(value: Decimal) -> str:
    return format(value.normalize(), "f")


def _is_whole(value: Decimal) -> bool:
    """Whether the number was written without a point."""
    exponent = value.as_tuple().exponent
    return isinstance(exponent, int) and exponent >= 0
