"""Spreading, windows and rate scaling: what they change, and what they must leave alone."""

import random
from itertools import count, islice
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from simulator.errors import InputError
from simulator.workload import WorkloadSpec, open_workload
from simulator.workload.trace import compress, smooth, window, window_start_s

CONVERSATION = Path(__file__).parents[1] / "scenarios" / "traces" / "mooncake_conversation.jsonl.gz"


def replayed(replication=0, seed=0, path=CONVERSATION, **trace):
    tenant = {"name": "a", "trace": {"format": "mooncake", "path": str(path), **trace}}
    workload = open_workload(WorkloadSpec.model_validate({"tenants": [tenant]}), seed, replication)
    return [(request.arrival_s, request.prompt, request.max_tokens) for request in workload]


@given(st.lists(st.floats(0, 100), max_size=50), st.floats(0.001, 200))
def test_spreading_moves_each_row_by_less_than_the_width_and_keeps_time_in_order(times, width_s):
    rows = [(time_s, index) for index, time_s in enumerate(sorted(times))]
    moved = list(smooth(rows, width_s, random.Random(1)))
    assert sorted(index for _, index in moved) == list(range(len(rows)))
    assert [time_s for time_s, _ in moved] == sorted(time_s for time_s, _ in moved)
    assert all(0 <= time_s - rows[index][0] <= width_s for time_s, index in moved)


def test_spreading_holds_back_no_more_than_the_width():
    read = []
    endless = ((float(k), read.append(k)) for k in count())
    list(islice(smooth(endless, 3.0, random.Random(1)), 100))
    assert len(read) <= 100 + 3 + 1


def test_lumps_become_evenly_spread():
    moved = smooth(((0.0, None) for _ in range(20_000)), 3.0, random.Random(1))
    assert stats.kstest([time_s for time_s, _ in moved], stats.uniform(0, 3).cdf).pvalue > 1e-3


def test_a_window_is_half_open_and_timed_from_its_start():
    rows = [(1.0, "a"), (2.0, "b"), (3.5, "c"), (4.0, "d")]
    assert list(window(rows, 2.0, 2.0)) == [(0.0, "b"), (1.5, "c")]


def test_a_window_reads_nothing_behind_its_end():
    rows = ((float(k), k) for k in count())
    assert [k for _, k in window(rows, 3.0, 4.0)] == [3, 4, 5, 6]


def test_a_rate_scale_divides_times():
    assert list(compress([(2.0, "a"), (6.0, "b")], 4.0)) == [(0.5, "a"), (1.5, "b")]


@pytest.mark.parametrize("replication", [0, 1, 7])
def test_a_window_starts_anywhere_alike(replication):
    starts = [window_start_s(100.0, 20.0, replication, random.Random(seed)) for seed in range(5_000)]
    assert stats.kstest(starts, stats.uniform(0, 80).cdf).pvalue > 1e-3


def test_windows_of_replications_keep_apart():
    # On a circle, n multiples of the golden ratio keep 1 / (sqrt(5) n) apart for large n (Hurwitz), 0.38 / n for small.
    for num in range(2, 60):
        starts = sorted(window_start_s(1.0, 0.0, r, random.Random(3)) for r in range(num))
        gaps = [b - a for a, b in zip(starts, [*starts[1:], starts[0] + 1], strict=True)]
        assert min(gaps) * num > 0.38


def test_a_windowed_replay_is_a_contiguous_piece_of_the_whole():
    whole = replayed(smooth_s="3s")
    piece = replayed(smooth_s="3s", window="20 min")
    at = whole.index(next(row for row in whole if row[1:] == piece[0][1:]))
    start_s = whole[at][0] - piece[0][0]
    expected = [(arrival_s - start_s, *rest) for arrival_s, *rest in whole if 0 <= arrival_s - start_s < 1200]
    assert [row[1:] for row in piece] == [row[1:] for row in expected]
    assert [row[0] for row in piece] == pytest.approx([row[0] for row in expected], abs=1e-6)
    assert 0 <= piece[0][0] < piece[-1][0] < 1200


def test_replications_take_other_windows_and_the_same_one_again():
    first, again, second, other_seed = (
        replayed(replication, seed, smooth_s="3s", window="20 min")
        for replication, seed in [(0, 0), (0, 0), (1, 0), (0, 1)]
    )
    assert first == again
    assert first != second
    assert first != other_seed
    shared = {row[1] for row in first} & {row[1] for row in second}
    assert len(shared) < len(first)


def test_replications_of_a_whole_trace_differ_in_the_spread_only():
    first, second = replayed(0, smooth_s="3s"), replayed(1, smooth_s="3s")
    assert first != second
    assert sorted(row[1:] for row in first) == sorted(row[1:] for row in second)
    assert replayed(0) == replayed(1)


def test_spreading_separates_the_lumps_of_the_conversation_trace():
    arrivals = [row[0] for row in replayed(smooth_s="3s")]
    assert len(set(arrivals)) == 12_031
    assert arrivals == sorted(arrivals)


@pytest.mark.parametrize("trace", [{}, {"smooth_s": "3s", "window": "20 min"}])
def test_a_rate_scale_keeps_order_and_number(trace):
    plain, fast = replayed(**trace), replayed(**trace, rate_scale=4)
    assert [row[1:] for row in plain] == [row[1:] for row in fast]
    assert [row[0] for row in plain] == [4 * row[0] for row in fast]


def test_a_limit_takes_the_first():
    assert replayed(limit=5, smooth_s="3s") == replayed(smooth_s="3s")[:5]


def test_a_window_that_cannot_be_filled_is_refused(tmp_path):
    path = tmp_path / "t.jsonl"
    line = '{{"timestamp": {}, "input_length": 1, "output_length": 1, "hash_ids": [0]}}\n'
    path.write_text(line.format(0) + line.format(100_000))
    with pytest.raises(InputError, match=r"a window of 200 s is longer than the trace \(100 s\)"):
        replayed(path=path, window=200)
    with pytest.raises(InputError, match=r"the window that starts at .* s holds no request"):
        replayed(path=path, window="1 ms")
