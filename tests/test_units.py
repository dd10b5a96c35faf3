"""Quantities: vLLM's integer rule, and what is refused with which words."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator import units
from simulator.errors import InputError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # vLLM's own examples (`human_readable_int`).
        ("1k", 1_000), ("1K", 1_024), ("25.6k", 25_600), ("2M", 2 * 2**20), ("32k", 32_000), ("32K", 32_768),
        ("2m", 2_000_000), ("1g", 10**9), ("1G", 2**30), ("1t", 10**12), ("1T", 2**40), (" 7 ", 7), ("1_000", 1000),
        # Exponents are numbers, whichever type YAML made of them.
        ("1e5", 100_000), (1e5, 100_000), (0, 0), (2048, 2048),
    ],
)  # fmt: skip
def test_count_follows_vllm(text: object, expected: int) -> None:
    assert units.count(text) == expected


@pytest.mark.parametrize(
    "value", ["1.5", 1.5, -1, "-1", "", "k", "0x10", "12 k", "nan", math.nan, math.inf, "inf", None, True, [1], "1e400"]
)
def test_count_refuses(value: object) -> None:
    with pytest.raises(InputError) as error:
        units.count(value)
    assert str(error.value) == f"got {value!r}, expected a whole number like 2048, '32k' (32000), '32K' (32768) or 1e5"


def test_decimals_with_a_power_of_two_are_refused_as_in_vllm() -> None:
    with pytest.raises(InputError, match=r"^got '1\.5K', expected no decimals before K .*'1\.5k' would be"):
        units.count("1.5K")


def test_positive_count_refuses_zero() -> None:
    with pytest.raises(InputError, match="^got 0, expected at least 1$"):
        units.positive_count(0)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30 ms", 0.03), ("3s", 3.0), ("20 min", 1200.0), ("1h", 3600.0), ("1 d", 86400.0), (2, 2.0), ("5 us", 5e-6),
     ("1.5e3 ms", 1.5), ("7µs", 7e-6), (0, 0.0)],
)  # fmt: skip
def test_durations_are_seconds(text: object, seconds: float) -> None:
    assert units.duration_s(text) == seconds


@pytest.mark.parametrize("value", ["3 m", "-3 s", -1, "10:30", "s", "3 parsecs", math.nan, math.inf, True, "1 h 30"])
def test_duration_refuses(value: object) -> None:
    with pytest.raises(InputError) as error:
        units.duration_s(value)
    expected = "a duration like 0.5 (seconds), '30 ms', '3 s', '20 min' or '1 h'"
    assert str(error.value) == f"got {value!r}, expected {expected}"


@pytest.mark.parametrize(("value", "seconds"), [(0.08, 0.08), (9.5, 9.5), ("2", 2.0), ("80 ms", 0.08), ("500 s", 500)])
def test_targets_are_seconds(value: object, seconds: float) -> None:
    assert units.target_s(value) == seconds


@pytest.mark.parametrize("value", [80, 10, 500.0, "80", "1e3"])
def test_a_target_that_may_be_meant_in_ms_needs_its_unit(value: object) -> None:
    with pytest.raises(InputError) as error:
        units.target_s(value)
    assert str(error.value) == f"{value} means {value} s; write {value} ms, or {value} s if that is meant"
    for unit in ("ms", "s", "min"):
        assert units.target_s(f"{value} {unit}") == units.duration_s(f"{value} {unit}")


@given(st.floats(min_value=1e-9, max_value=1e9))
def test_a_target_reads_back_as_it_is_written(seconds: float) -> None:
    assert units.target_s(units.write_seconds(seconds)) == seconds


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [("64 GiB", 64 * 2**30), ("1.5 GB", 1_500_000_000), ("64G", 64 * 2**30), ("64g", 64 * 10**9), (4096, 4096),
     ("3 kB", 3000)],
)  # fmt: skip
def test_sizes_are_bytes(text: object, num_bytes: int) -> None:
    assert units.size_bytes(text) == num_bytes


@pytest.mark.parametrize("value", ["64 GIB", "0.5", "1.5 B", -1, "-1 GiB", "many", math.nan, False])
def test_size_refuses(value: object) -> None:
    with pytest.raises(InputError) as error:
        units.size_bytes(value)
    assert str(error.value) == f"got {value!r}, expected a size like 4096 (bytes), '64 GiB' or '1.5 GB'"


@pytest.mark.parametrize(("text", "per_s"), [(6, 6.0), ("6/s", 6.0), ("90/min", 1.5), ("7200 /h", 2.0)])
def test_rates_are_per_second(text: object, per_s: float) -> None:
    assert units.rate(text) == per_s


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0, "more than 0"), ("6/d", "a rate like 6 (per second), '90/min' or '3600/h'"),
     (-2, "a rate like 6 (per second), '90/min' or '3600/h'")],
)  # fmt: skip
def test_rate_refuses(value: object, expected: str) -> None:
    with pytest.raises(InputError) as error:
        units.rate(value)
    assert str(error.value) == f"got {value!r}, expected {expected}"


@pytest.mark.parametrize(
    ("text", "per_s"),
    [("12.5 GB/s", 12.5e9), ("100 Gbit/s", 12.5e9), ("1GiB/s", 2.0**30), (3, 3.0), ("8 kbit/s", 1000.0)],
)
def test_bandwidths_are_bytes_per_second(text: object, per_s: float) -> None:
    assert units.bandwidth(text) == per_s


@pytest.mark.parametrize("value", ["12 GB", "100 Gbit", "5 /s", "5 m/s", -1, "-1 GB/s", math.nan, True])
def test_bandwidth_refuses(value: object) -> None:
    with pytest.raises(InputError) as error:
        units.bandwidth(value)
    assert str(error.value).startswith(f"got {value!r}, expected a bandwidth like 12.5e9 (bytes per second)")


@pytest.mark.parametrize(("text", "fraction"), [("92 %", 0.92), (0.92, 0.92), (0, 0.0), (1, 1.0), ("100%", 1.0)])
def test_shares_are_fractions(text: object, fraction: float) -> None:
    assert units.share(text) == fraction


@pytest.mark.parametrize("value", [1.01, -0.1, "101 %", "half", math.nan])
def test_share_refuses(value: object) -> None:
    with pytest.raises(InputError) as error:
        units.share(value)
    assert str(error.value) == f"got {value!r}, expected a share between 0 and 1, or like '92 %'"


_LENGTHS = st.floats(min_value=1e-9, max_value=1e9)
_FACTORS = {"us": Fraction(1, 10**6), "ms": Fraction(1, 1000), "s": 1, "min": 60, "h": 3600, "d": 86400}


@given(_LENGTHS, st.sampled_from(sorted(_FACTORS)))
def test_a_duration_is_the_nearest_float_of_what_is_written(amount: float, unit: str) -> None:
    written = Fraction(repr(amount)) * _FACTORS[unit]
    assert units.duration_s(f"{amount!r} {unit}") == float(written)
    assert units.duration_s(f"{amount!r}{unit}") == float(written)


@given(_LENGTHS)
def test_bare_numbers_are_unchanged(amount: float) -> None:
    assert units.duration_s(amount) == amount
    assert units.duration_s(repr(amount)) == amount
    assert units.number(-amount) == -amount
    assert units.rate(amount) == amount


@given(st.integers(min_value=0, max_value=10**15))
def test_counts_and_sizes_read_back(amount: int) -> None:
    assert units.count(amount) == units.count(str(amount)) == amount
    assert units.count(f"{amount}K") == amount * 1024
    assert units.size_bytes(f"{amount} GiB") == amount * 2**30
    assert units.size_bytes(f"{amount} B") == amount


@given(st.one_of(st.text(max_size=12), st.floats(), st.integers(), st.none(), st.booleans()))
def test_anything_is_read_or_refused_in_one_line(value: object) -> None:
    reads = units.count, units.duration_s, units.size_bytes, units.rate, units.share, units.number, units.bandwidth
    for read in reads:
        try:
            result = read(value)
        except InputError as error:
            assert "\n" not in str(error)
        else:
            assert math.isfinite(result)
