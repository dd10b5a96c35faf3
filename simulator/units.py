"""How people write quantities, and what they mean: counts, durations, sizes, rates and shares.

Readers call the functions, pydantic models use the annotated types; inside, all is seconds, bytes and plain numbers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Annotated

from pydantic import BeforeValidator, PlainSerializer

from simulator.errors import InputError

# vLLM's rule (`human_readable_int`): lower-case suffixes are powers of ten, upper-case ones powers of two.
_DECIMAL_SUFFIX = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY_SUFFIX = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_SECONDS = {
    unit: Decimal(factor)
    for unit, factor in {
        "us": "1e-6", "µs": "1e-6", "μs": "1e-6", "ms": "1e-3", "s": "1", "min": "60", "h": "3600", "d": "86400",
    }.items()
}  # fmt: skip
_BYTES = {
    "B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40,
}  # fmt: skip
_BITS = {"kbit": 10**3, "Mbit": 10**6, "Gbit": 10**9, "Tbit": 10**12}
_PER = {"/s": Decimal(1), "/min": Decimal(60), "/h": Decimal(3600)}

_NUMBER = r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?"
_QUANTITY = re.compile(rf"({_NUMBER})\s*([^\s\d.+-]\S*)?", re.ASCII)
_SUFFIXED = re.compile(r"(\d+(?:\.\d+)?)([kKmMgGtT])", re.ASCII)
_DOUBTFUL_TARGET_S = 10  # from which on a bare number may be meant in ms
_MAX_EXPONENT = 30  # keeps "1e999999999" from becoming an integer of a billion digits

_A_COUNT = "a whole number like 2048, '32k' (32000), '32K' (32768) or 1e5"
_A_DURATION = "a duration like 0.5 (seconds), '30 ms', '3 s', '20 min' or '1 h'"
_A_SIZE = "a size like 4096 (bytes), '64 GiB' or '1.5 GB'"
_A_RATE = "a rate like 6 (per second), '90/min' or '3600/h'"
_A_BANDWIDTH = "a bandwidth like 12.5e9 (bytes per second), '12.5 GB/s' or '100 Gbit/s'"
_A_SHARE = "a share between 0 and 1, or like '92 %'"
_A_NUMBER = "a number like 1.5 or 2e-3"


def _refuse(value: object, expected: str) -> InputError:
    return InputError(f"got {value!r}, expected {expected}")


def _split(value: object, expected: str) -> tuple[Decimal, str]:
    """The number and the unit ("" when bare) of ``value``; finite, else an InputError that says what was expected."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise _refuse(value, expected)
    text = value.strip() if isinstance(value, str) else repr(float(value) if isinstance(value, float) else value)
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise _refuse(value, expected)
    amount = Decimal(match[1])
    # A subnormal or huge number is a slip of the pen whatever the unit; it would also be slow as an exact integer.
    if amount and abs(amount.adjusted()) > (_MAX_EXPONENT if isinstance(value, str) else 308):
        raise _refuse(value, expected)
    return amount, match[2] or ""


def number(value: object) -> float:
    """A finite number of any sign; ``1e5`` is one, although YAML 1.1 reads it as text. Raises InputError."""
    amount, unit = _split(value, _A_NUMBER)
    if unit:
        raise _refuse(value, _A_NUMBER)
    return float(amount)


def count(value: object) -> int:
    """A whole number >= 0 in vLLM's notation: ``32k`` is 32,000, ``32K`` 32,768, ``1.5k`` 1,500. Raises InputError.

    As in vLLM, decimals go with the lower-case suffixes only, and what is left after the point is cut off.
    """
    if isinstance(value, str) and (match := _SUFFIXED.fullmatch(value.strip())):
        digits, suffix = match.groups()
        if suffix in _DECIMAL_SUFFIX:
            return int(float(digits) * _DECIMAL_SUFFIX[suffix])
        if not digits.isdigit():
            raise InputError(f"got {value!r}, expected no decimals before {suffix} (a power of two); "
                             f"{digits + suffix.lower()!r} would be the power of ten")  # fmt: skip
        return int(digits) * _BINARY_SUFFIX[suffix]
    amount, unit = _split(value.replace("_", "") if isinstance(value, str) else value, _A_COUNT)
    if unit or amount < 0 or amount != amount.to_integral_value():
        raise _refuse(value, _A_COUNT)
    return int(amount)


def positive_count(value: object) -> int:
    """A count >= 1. Raises InputError."""
    result = count(value)
    if result < 1:
        raise InputError(f"got {value!r}, expected at least 1")
    return result


def duration_s(value: object) -> float:
    """Seconds >= 0 from ``'30 ms'``, ``'3s'``, ``'20 min'``, ``'1h'`` or a bare number of them. Raises InputError."""
    amount, unit = _split(value, _A_DURATION)
    if amount < 0 or (unit and unit not in _SECONDS):
        raise _refuse(value, _A_DURATION)
    return float(amount * _SECONDS[unit or "s"])


def positive_duration_s(value: object) -> float:
    """Seconds > 0. Raises InputError."""
    return _positive(value, duration_s(value))


def target_s(value: object) -> float:
    """Seconds > 0 of a latency that is promised. Raises InputError, for a bare number of 10 or more too: hardly anybody
    promises so many seconds, and many mean milliseconds.
    """
    found_s = positive_duration_s(value)
    if found_s >= _DOUBTFUL_TARGET_S and not _split(value, _A_DURATION)[1]:
        raise InputError(f"{value} means {value} s; write {value} ms, or {value} s if that is meant")
    return found_s


def write_seconds(value_s: float) -> str:
    """A duration as people write it, to be read back as the same float: ``30 s``."""
    return f"{repr(value_s).removesuffix('.0')} s"


def size_bytes(value: object) -> int:
    """Bytes >= 0 from ``'64 GiB'``, ``'1.5 GB'``, vLLM's ``'64G'`` or a bare number of bytes. Raises InputError.

    The fraction of a byte that ``'0.1 GiB'`` leaves is cut off.
    """
    if isinstance(value, str) and _SUFFIXED.fullmatch(value.strip()):
        return count(value)
    amount, unit = _split(value, _A_SIZE)
    whole = amount == amount.to_integral_value()
    if amount < 0 or (unit and unit not in _BYTES) or (unit in ("", "B") and not whole):
        raise _refuse(value, _A_SIZE)
    return int(amount * _BYTES[unit or "B"])


def rate(value: object) -> float:
    """Events per second > 0 from a bare number, ``'6/s'``, ``'90/min'`` or ``'3600/h'``. Raises InputError."""
    amount, unit = _split(value, _A_RATE)
    if amount < 0 or (unit and unit not in _PER):
        raise _refuse(value, _A_RATE)
    return _positive(value, float(amount / _PER[unit or "/s"]))


def bandwidth(value: object) -> float:
    """Bytes per second > 0 from a bare number, ``'12.5 GB/s'`` or ``'100 Gbit/s'``. Raises InputError."""
    amount, unit = _split(value, _A_BANDWIDTH)
    size = unit.removesuffix("/s")
    if amount < 0 or (unit and (size == unit or size not in {*_BYTES, *_BITS})):
        raise _refuse(value, _A_BANDWIDTH)
    per_unit = Decimal(_BITS[size]) / 8 if size in _BITS else Decimal(_BYTES[size or "B"])
    return _positive(value, float(amount * per_unit))


def share(value: object) -> float:
    """A fraction between 0 and 1, bare or in per cent (``'92 %'``). Raises InputError."""
    amount, unit = _split(value, _A_SHARE)
    fraction = amount / 100 if unit == "%" else amount
    if unit not in ("", "%") or not 0 <= fraction <= 1:
        raise _refuse(value, _A_SHARE)
    return float(fraction)


def positive_number(value: object) -> float:
    """A finite number > 0. Raises InputError."""
    return _positive(value, number(value))


def _positive(value: object, result: float) -> float:
    if not (result > 0 and math.isfinite(result)):
        raise InputError(f"got {value!r}, expected more than 0")
    return result


def _reads(parse: Callable[[object], float]) -> BeforeValidator:
    return BeforeValidator(parse, json_schema_input_type=float | str)


Seconds = Annotated[float, _reads(duration_s)]
PositiveSeconds = Annotated[float, _reads(positive_duration_s)]
# Written with its unit, without which it may be refused.
TargetSeconds = Annotated[float, _reads(target_s), PlainSerializer(write_seconds)]
Bytes = Annotated[int, _reads(size_bytes)]
Count = Annotated[int, _reads(count)]
PositiveCount = Annotated[int, _reads(positive_count)]
Rate = Annotated[float, _reads(rate)]
Bandwidth = Annotated[float, _reads(bandwidth)]
Share = Annotated[float, _reads(share)]
Number = Annotated[float, _reads(number)]
PositiveNumber = Annotated[float, _reads(positive_number)]
