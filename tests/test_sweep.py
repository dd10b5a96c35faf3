"""Sweeps: what is run, what outlives a kill, and what may be said of it."""

from __future__ import annotations

import errno
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator import cli, experiment
from simulator.errors import InputError
from simulator.executors import Processes
from simulator.scenario import Scenario, parse
from simulator.statistics import compare_all, holm, paired_difference
from simulator.steady import judge
from simulator.sweep import Design, Findings, grid, hypercube, read_axis, row_store, run, warmup
from simulator.sweep.differences import adjusted, against, all_pairs
from simulator.sweep.effects import find_effects, tells_apart
from simulator.sweep.figures import figures
from simulator.sweep.metrics import read_metric
from simulator.sweep.report import notes, short_names, verdict
from tests.test_variants import TEXT

ROOT = Path(__file__).parent.parent


def scenario(**more: Any) -> Scenario:
    return parse(TEXT).changed(limit=5, **more)


def design(*vary: str, **more: Any) -> Design:
    return grid(scenario(**more), [read_axis(text) for text in vary])


def swept(folder: Path, *vary: str, **more: Any) -> Findings:
    described = scenario(**more)
    return run(described, grid(described, [read_axis(text) for text in vary]), folder, Processes(1))


def rows_of(folder: Path) -> pd.DataFrame:
    """All rows that are written, in an order of their own."""
    return pd.read_parquet(folder / "rows").sort_values(["setting", "replication"], ignore_index=True)


def in_bytes(folder: Path) -> bytes:
    return rows_of(folder).to_parquet(index=False)


# What is varied


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("a=4,8,16", (4, 8, 16)),
        ("routing.cache_threshold=0.3:0.9:0.1", (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)),
        ("a=0.3:0.9:0.25", (0.3, 0.55, 0.8)),
        ("a=1:4:1", (1, 2, 3, 4)),
        ("a=-1:1:1", (-1, 0, 1)),
        ("a=10 ms:50 ms:20 ms", ("10 ms", "30 ms", "50 ms")),
        ("a=0:50ms:25ms", ("0ms", "25ms", "50ms")),
        ("a=2K:8K:2K", ("2K", "4K", "6K", "8K")),
        ("a=60/min:120/min:30/min", ("60/min", "90/min", "120/min")),
        ("a=10 %:20 %:10 %", ("10 %", "20 %")),
        ("a=yes,no", ("yes", "no")),
        ("a=true,false", (True, False)),
        ("a=round_robin,{policy: dynamo, temperature: 0.1}", ("round_robin", {"policy": "dynamo", "temperature": 0.1})),
        ("a=[1, 2],[3]", ([1, 2], [3])),
    ],
)
def test_values_are_read_as_a_scenario_would(text: str, values: tuple[Any, ...]) -> None:
    found = read_axis(text).values
    assert found == values
    assert [type(value) for value in found] == [type(value) for value in values]


@given(st.integers(-50, 50), st.integers(1, 40), st.integers(1, 9), st.integers(0, 3))
def test_a_range_has_its_ends_and_equal_steps_without_rounding(low: int, count: int, step: int, digits: int) -> None:
    start, end, width = (value / 10**digits for value in (low, low + count * step, step))
    found = read_axis(f"a={start:.{digits}f}:{end:.{digits}f}:{width:.{digits}f}").values
    assert found == tuple(float(f"{(low + place * step) / 10**digits:.{digits}f}") for place in range(count + 1))


AXIS_MISTAKES = [
    ("a", "got no KEY=VALUES, expected a key of the scenario and values like 4,8,16, a range like 0.3:0.9:0.1 or, with "
     "--samples, one like 0.3:0.9"),
    ("a=4", "got 1 value, expected two or more, or a range like 0.3:0.9:0.1 or, with --samples, one like 0.3:0.9"),
    ("a..b=1,2", "got 'a..b', expected a key like engine.max_num_seqs or workload.tenants[0].limit"),
    ("a=9:1:1", "got 9 before 1, expected a range that rises"),
    ("a=1:9:0", "got a step of 0, expected more than 0"),
    ("a=1:9:20", "1 value, expected 2 to 10,000"),
    ("a=1:1e9:1", "1,000,000,000 values, expected 2 to 10,000"),
    ("a=512:4K:512", "units differ, expected the same one for each number of the range"),
    ("a=[1,2", "line 1, column 15: expected ',' or ']', but got '<stream end>'"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "line"), AXIS_MISTAKES)
def test_mistakes_in_what_is_varied(text: str, line: str) -> None:
    with pytest.raises(InputError) as error:
        read_axis(text)
    assert str(error.value) == f"--vary {text}: {line}"


DESIGN_MISTAKES = [
    (["cluster.instancs=1,2"], "--vary cluster.instancs=1: cluster.instancs: unknown key (did you mean 'instances'?)"),
    (["cluster.instances=1,zero"], "--vary cluster.instances=zero: cluster.instances: got 'zero', expected "),
    (["routing.temperature=0.1,0.2"], "--vary routing.temperature=0.1: routing[0]: round_robin: temperature: unknown "),
    (["cluster.instances=1,2", "cluster.instances=3,4"], "--vary cluster.instances: given twice"),
    (["seed=1,2"], "--vary seed: seed is the same for all settings"),
    (["cluster.instances=1:3"], "--vary cluster.instances: a range without a step needs --samples, expected "),
    (["cluster.instances=2,2"], "--vary: cluster.instances=2 is the same setting as cluster.instances=2"),
    (["engine.port=80,81"], "--vary: engine.port=81 is the same setting as engine.port=80"),
    (["routing=[round_robin],[random, round_robin]"], "--vary routing: one policy for each setting, "),
    (["engine.max_num_batched_tokens=32,4096"],
     "--vary engine.max_num_batched_tokens=32: engine.max_num_batched_tokens: got 32, expected at least max_num_seqs"),
]  # fmt: skip


@pytest.mark.parametrize(("vary", "line"), DESIGN_MISTAKES, ids=[vary[0] for vary, _ in DESIGN_MISTAKES])
def test_mistakes_are_found_before_anything_runs(vary: list[str], line: str) -> None:
    with pytest.raises(InputError) as error:
        design(*vary)
    assert str(error.value).startswith(line)


def test_a_grid_is_every_combination() -> None:
    found = design("cluster.instances=1,2", "engine.max_num_seqs=8:16:4", "routing=random,least_requests")
    assert [point.values for point in found.points] == [
        (instances, sequences, policy)
        for instances in (1, 2) for sequences in (8, 12, 16) for policy in ("random", "least_requests")
    ]  # fmt: skip
    assert [point.scenario.cluster.instances for point in found.points] == [1] * 6 + [2] * 6
    assert [point.scenario.routing[0].policy for point in found.points[:2]] == ["random", "least_requests"]


@given(st.integers(2, 40), st.integers(0, 5))
def test_a_hypercube_has_one_sample_in_every_part_of_every_range(num_samples: int, seed: int) -> None:
    """The definition of McKay, Beckman & Conover; and a whole number is as likely as any other."""
    axes = [read_axis("engine.gpu_memory_utilization=0.5:0.9"), read_axis(f"cluster.instances=1:{num_samples}")]
    found = hypercube(scenario(seed=seed), axes, num_samples)
    assert len(found.points) == num_samples
    shares = sorted((point.values[0] - 0.5) / 0.4 for point in found.points)
    for place, share in enumerate(shares):
        assert place / num_samples - 1e-5 <= share <= (place + 1) / num_samples + 1e-5
    assert sorted(point.values[1] for point in found.points) == list(range(1, num_samples + 1))


def test_a_hypercube_follows_the_seed_and_runs_nothing_twice() -> None:
    axes = [read_axis("cluster.instances=1:2"), read_axis("routing=random,round_robin")]
    found = hypercube(scenario(), axes, 50)
    assert (len(found.points), found.num_drawn) == (4, 50)
    wide = [read_axis("workload.tenants.chat.synthetic.arrivals.rate_per_s=1.0:9.0")]
    drawn = [[point.values for point in hypercube(scenario(seed=seed), wide, 6).points] for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]


def test_drawn_values_keep_their_unit() -> None:
    axis = read_axis("engine.max_model_len=2K:8K")
    found = {point.values[0] for point in hypercube(scenario(), [axis], 7).points}
    assert found == {f"{count}K" for count in range(2, 9)}
    assert read_axis("a=10 ms:20 ms").at(0.5) == "15 ms"
    assert read_axis("a=0.1 ms:0.2 ms").at(0.5) == "0.15 ms"


# What is computed, and what is kept


VARY = ("cluster.instances=1,2", "engine.max_num_seqs=8,16")


def test_one_row_a_replication_with_where_it_comes_from(tmp_path: Path) -> None:
    swept(tmp_path, *VARY)
    table = pd.read_parquet(tmp_path / "rows")
    assert len(table) == 8
    assert table.groupby(["cluster.instances", "engine.max_num_seqs"])["replication"].apply(list).to_dict() == {
        (instances, sequences): [0, 1] for instances in (1, 2) for sequences in (8, 16)
    }
    assert set(table["seed"]) == {0}
    assert set(table["scenario"]) == {scenario(replications=1).digest}
    assert json.loads(table["versions"][0]) == experiment.versions()
    alone = grid(scenario(), [read_axis(text) for text in VARY]).points[2].scenario
    expected = experiment.run(alone, router=alone.routing[0], replication=1, draws_profile=True).summary()
    row = table[(table["setting"] == alone.digest) & (table["replication"] == 1)].iloc[0]
    for name, value in expected.items():
        assert row[name] == value or (value is None and math.isnan(row[name])), name


def test_all_settings_of_a_replication_meet_the_same_requests(tmp_path: Path) -> None:
    found = swept(tmp_path, *VARY)
    offered = pd.DataFrame(found.rows).groupby("replication")["cached_share"].nunique()
    assert set(offered) == {1}  # nothing is shared in this workload
    tokens = pd.DataFrame(found.rows).assign(tokens=lambda table: table["total_tokens_per_s"] * table["span_s"])
    assert set(tokens.groupby("replication")["tokens"].apply(lambda values: values.round(6).nunique())) == {1}
    assert tokens.groupby("replication")["ttft_p90_s"].mean().nunique() == 2


class Counted:
    """Runs in this process, and counts."""

    def __init__(self) -> None:
        self.num_tasks = self.num_of_the_warmup = 0

    def each(self, function: Any, tasks: Sequence[Any]) -> Any:
        for place, task in enumerate(tasks):
            if function is warmup.series:
                self.num_of_the_warmup += 1
            else:
                self.num_tasks += 1
            yield place, function(task)


def test_only_what_is_missing_is_computed(tmp_path: Path) -> None:
    """More replications and more values, later, use the rows that are there; fewer need no run."""
    counted = Counted()

    def again(vary: Sequence[str], replications: int) -> int:
        counted.num_tasks = 0
        described = scenario(replications=replications)
        found = run(described, grid(described, [read_axis(text) for text in vary]), tmp_path, counted)
        assert len(found.rows) == found.num_found + counted.num_tasks
        return counted.num_tasks

    assert again(VARY, 2) == 8
    first = rows_of(tmp_path)
    assert again(VARY, 2) == 0
    assert again(VARY, 3) == 4
    assert again(("cluster.instances=1,2,3", VARY[1]), 3) == 6
    assert again(("cluster.instances=1,3", VARY[1]), 1) == 0
    later = rows_of(tmp_path).set_index(["setting", "replication"])
    assert len(later) == 18
    kept = later.loc[list(map(tuple, first[["setting", "replication"]].to_numpy()))].reset_index()
    assert kept[first.columns].equals(first)


def test_where_and_in_which_order_it_was_computed_changes_no_byte(tmp_path: Path) -> None:
    """In this process, on two, and continued after a stop, the last first."""
    described, found = scenario(), design(*VARY)
    with pytest.raises(Stopped):
        run(described, found, tmp_path / "backwards", Backwards(5))
    assert len(rows_of(tmp_path / "backwards")) == 5
    for name, executor in (("alone", Processes(1)), ("two", Processes(2)), ("backwards", Backwards(3))):
        run(described, found, tmp_path / name, executor)
    files = [in_bytes(tmp_path / name) for name in ("alone", "two", "backwards")]
    assert files[0] == files[1] == files[2]


class Stopped(Exception):
    """As an interrupt."""


class Backwards:
    """The last task first, and stops after so many."""

    def __init__(self, most: int) -> None:
        self.most = most

    def each(self, function: Any, tasks: Sequence[Any]) -> Any:
        for place in reversed(range(len(tasks))):
            if len(tasks) - place > self.most:
                raise Stopped
            yield place, function(tasks[place])


KILLED = """
import sys, time
from simulator import cli
from simulator.sweep import row_store, runs

row_store._MOST_LOST_S = row_store._MOST_LOST_SHARE = 0.0
simulate = runs.simulate
def slowly(task):
    time.sleep(0.05)
    return simulate(task)
runs.simulate = slowly
cli.main(sys.argv[1:])
"""


def test_kill_9_in_the_middle_loses_no_row_and_the_file_is_whole_at_every_moment(tmp_path: Path) -> None:
    path = tmp_path / "small.yaml"
    path.write_text(TEXT)
    arguments = ["sweep", str(path), "--limit", "5", "--replications", "5", "--jobs", "1", "--vary", VARY[0],
                 "--vary", "engine.max_num_seqs=8,16,24,32,40"]  # fmt: skip
    out, rows = tmp_path / "out", tmp_path / "out" / "rows"
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, *arguments, "-o", str(tmp_path / "out")],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    deadline_s = time.monotonic() + 60
    num_seen = 0
    while num_seen < 8:
        assert time.monotonic() < deadline_s
        if rows.exists() and any(rows.glob("*.parquet")):
            table = pd.read_parquet(rows)  # raises where a file is not whole
            assert len(table) >= num_seen
            num_seen = len(table)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    left = pd.read_parquet(rows)
    assert num_seen <= len(left) < 50

    counted = Counted()
    described = parse(TEXT, str(path), tmp_path).changed(replications=5, limit=5)
    axes = [read_axis(VARY[0]), read_axis("engine.max_num_seqs=8,16,24,32,40")]
    (rows / ".rows-000099.parquet.partial").touch()  # as of a kill while writing
    run(described, grid(described, axes), out, counted)
    assert counted.num_tasks == 50 - len(left)
    table = pd.read_parquet(rows)
    assert len(table) == 50
    assert not table.duplicated(["setting", "replication"]).any()
    run(described, grid(described, axes), tmp_path / "at once", Processes(1))
    assert in_bytes(out) == in_bytes(tmp_path / "at once")
    assert not list(rows.glob(".*partial"))


def test_a_full_disk_is_one_line_and_keeps_what_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    swept(tmp_path, "cluster.instances=1,2", replications=2)
    before = {path.name: path.read_bytes() for path in (tmp_path / "rows").iterdir()}

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(row_store.pq, "write_table", full)
    with pytest.raises(InputError) as error:
        swept(tmp_path, "cluster.instances=1,2,3", replications=2)
    assert str(error.value) == (
        f"{tmp_path / 'rows' / 'rows-000001.parquet'}: cannot write it (No space left on device); kept so far: 4 rows, "
        "from which the same command goes on"
    )
    assert {path.name: path.read_bytes() for path in (tmp_path / "rows").iterdir()} == before
    monkeypatch.undo()
    assert swept(tmp_path, "cluster.instances=1,2,3", replications=2).num_found == 4


def test_rows_of_something_else_are_never_mixed_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    swept(tmp_path, "cluster.instances=1,2")
    before = in_bytes(tmp_path)
    where = f"^{tmp_path / 'rows' / 'rows-000000.parquet'}: "
    with pytest.raises(InputError, match=where + "holds results of another scenario: "):
        swept(tmp_path, "cluster.instances=1,2", seed=1)
    with pytest.raises(InputError, match=where + "holds results of another set of varied keys: cluster.inst"):
        swept(tmp_path, *VARY)
    versions = experiment.versions()
    monkeypatch.setattr(experiment, "versions", lambda: {**versions, "numpy": "1.0"})
    words = f"holds results of another version: numpy {versions['numpy']}, not 1.0;"
    with pytest.raises(InputError, match=where + words):
        swept(tmp_path, "cluster.instances=1,2")
    monkeypatch.undo()
    with pytest.raises(InputError, match=where + "holds results of another kind of values: number, not text;"):
        swept(tmp_path, "cluster.instances=1,'2'")
    assert in_bytes(tmp_path) == before


def test_a_changed_trace_is_another_input(tmp_path: Path) -> None:
    text = TEXT[: TEXT.index("    - name: chat")] + (
        "    - {name: chat, trace: {format: mooncake, path: trace.jsonl}}\nrouting: [round_robin]\n"
    )
    line = {"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]}
    described = []
    for length in (5, 6):
        (tmp_path / "trace.jsonl").write_text(json.dumps(line | {"output_length": length}) + "\n")
        described.append(parse(text, "x.yaml", tmp_path))
        found = grid(described[-1], [read_axis("cluster.instances=1,2")])
        if length == 5:
            run(described[-1], found, tmp_path / "out", Processes(1))
    with pytest.raises(InputError, match="holds results of another input: trace trace.jsonl "):
        run(described[-1], found, tmp_path / "out", Processes(1))


@pytest.mark.parametrize("content", [b"", b"not parquet at all", b"PAR1" + bytes(50) + b"PAR1"])
def test_a_file_of_something_else_is_left_alone(tmp_path: Path, content: bytes) -> None:
    rows = tmp_path / "rows"
    rows.mkdir()
    (rows / "mine.parquet").write_bytes(content)
    with pytest.raises(InputError, match="mine.parquet: not a Parquet file that can be read"):
        swept(tmp_path, "cluster.instances=1,2")
    pd.DataFrame({"a": [1]}).to_parquet(rows / "mine.parquet")
    with pytest.raises(InputError, match="mine.parquet: not the rows of a sweep, expected another folder"):
        swept(tmp_path, "cluster.instances=1,2")
    assert [path.name for path in rows.iterdir()] == ["mine.parquet"]


def test_two_sweeps_do_not_write_into_one_folder(tmp_path: Path) -> None:
    with row_store.locked(tmp_path), pytest.raises(InputError, match="another sweep is writing there"):
        swept(tmp_path, "cluster.instances=1,2")
    swept(tmp_path, "cluster.instances=1,2")


def test_a_worker_of_another_version_is_refused(tmp_path: Path) -> None:
    class Older:
        def each(self, function: Any, tasks: Sequence[Any]) -> Any:
            for place, task in enumerate(tasks):
                versions, summary = function(task)
                yield place, (versions | {"simpy": "3.0"}, summary)

    described = scenario()
    with pytest.raises(InputError, match=r"^--executor: a worker has simpy 3.0, expected .* as here$"):
        run(described, design("cluster.instances=1,2"), tmp_path, Older())


# What may be said


@given(st.lists(st.lists(st.integers(0, 6), min_size=4, max_size=4), min_size=2, max_size=6))
def test_pairs_all_at_once_are_the_pairs_one_by_one(rows: list[list[int]]) -> None:
    values = np.array(rows, dtype=float)
    samples = {str(place): {"m": row} for place, row in enumerate(values.tolist())}
    single = [one.p_value for one in compare_all(samples, ["m"]) if one.p_value is not None]
    assert np.sort(all_pairs(values)) == pytest.approx(np.sort(single))


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=12), st.data())
def test_correction_over_a_family_is_holms(thousandths: list[int], data: st.DataObject) -> None:
    family = [count / 1000 for count in thousandths]
    own = data.draw(st.lists(st.sampled_from(family), unique=True))
    expected: dict[float, float] = {}
    for p, value in zip(family, holm(family), strict=True):  # of equal ones the last in Holm's order is the largest
        expected[p] = max(value, expected.get(p, 0.0))
    assert adjusted(own, np.array(family)) == pytest.approx([expected[p] for p in own])


def test_a_best_that_was_chosen_is_paid_for_by_every_pair() -> None:
    """Five settings that differ by chance only: against the best of these, the usual family of four says too much."""
    rng = np.random.default_rng(4)
    wrong = dict.fromkeys((True, False), 0)
    for _ in range(300):
        values = rng.normal(size=(5, 6))
        best = int(values.mean(axis=1).argmin())
        for chosen in wrong:
            found = against(values, best, list("abcde"), "m", chosen_from_these=chosen)
            wrong[chosen] += any(one.significant for one in found.values())
    assert wrong[True] <= 300 * 0.05 + 2 * math.sqrt(300 * 0.05 * 0.95)
    assert wrong[True] < wrong[False]


def axes_of(*names: str) -> list[Any]:
    return [read_axis(f"{name}=1,2") for name in names]


def test_effects_of_a_full_grid_are_its_marginal_means() -> None:
    rows = [(a, b) for a in (1, 2, 3) for b in (10, 20)]
    rng = np.random.default_rng(0)
    values = np.array([[5.0 * a - 0.2 * b] * 4 for a, b in rows])
    values += rng.normal(size=4)  # a replication moves all settings alike
    found = find_effects(axes_of("a", "b"), rows, values, lower_is_better=True)
    assert found.explained == pytest.approx(1)
    first, second = found.effects
    assert (first.name, first.best, first.worst) == ("a", "1", "3")
    assert first.difference.estimate.mean == pytest.approx(10)
    assert (second.name, second.best, second.worst) == ("b", "20", "10")
    assert second.difference.estimate.mean == pytest.approx(2)
    assert first.rank_correlation is not None
    assert first.rank_correlation.mean > 0.9
    upwards = find_effects(axes_of("a", "b"), rows, values, lower_is_better=False).effects[0]
    assert (upwards.best, upwards.worst) == ("3", "1")


def test_other_keys_are_taken_out_of_an_unbalanced_design() -> None:
    rows = [(1, 1), (1, 1), (1, 2), (2, 2), (2, 2), (2, 1)]
    values = np.array([[10.0 * b + a] * 2 for a, b in rows]) + np.array([0.0, 0.3])
    found = {one.name: one for one in find_effects(axes_of("a", "b"), rows, values, lower_is_better=True).effects}
    assert found["a"].difference.estimate.mean == pytest.approx(1)
    assert found["b"].difference.estimate.mean == pytest.approx(10)


def test_interactions_are_told_apart_from_what_adds_up() -> None:
    rows = [(a, b) for a in (0, 1) for b in (0, 1)]
    values = np.array([[float(a != b)] * 3 for a, b in rows])
    assert find_effects(axes_of("a", "b"), rows, values, lower_is_better=True).explained == pytest.approx(0)


def test_a_key_that_does_nothing_is_rarely_said_to_matter() -> None:
    """A family-wise error of 5 %: two keys without any effect, 200 times."""
    rng = np.random.default_rng(1)
    rows = [(a, b) for a in (1, 2, 3) for b in (1, 2)]
    wrong = sum(
        any(one.difference.significant for one in find_effects(
            axes_of("a", "b"), rows, rng.normal(size=(6, 5)), lower_is_better=True).effects)
        for _ in range(200)
    )  # fmt: skip
    assert wrong <= 200 * 0.05 + 2 * math.sqrt(200 * 0.05 * 0.95)


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ([(1, 10), (2, 20)], False),  # both keys move
        ([(1, 10), (1, 20), (1, 30), (1, 40)], False),  # one does not
        ([(1, 10), (1, 20), (2, 10), (2, 20)], True),
        ([(1, 60), (2, 10), (3, 40), (4, 50), (5, 30), (6, 20)], True),  # in three groups of each, not in six
        ([(1, 10), (2, 20), (3, 30), (4, 40), (5, 50), (6, 60)], False),
    ],
)
def test_keys_that_move_together_are_not_told_apart(rows: list[tuple[int, int]], told: bool) -> None:
    assert tells_apart(rows) is told


def test_two_drawn_settings_say_nothing_of_single_keys(tmp_path: Path) -> None:
    described = scenario()
    axes = [read_axis("cluster.instances=1:3"), read_axis("engine.max_num_batched_tokens=128:2048")]
    found = run(described, hypercube(described, axes, 2), tmp_path, Processes(1))
    assert found.effects is None
    assert "matters most" not in verdict(found)
    assert "No effects of single keys: 2 settings do not tell them apart; draw more (--samples)." in notes(found)


def test_equal_numbers_are_in_one_group() -> None:
    """Ten numbers, each twice, in three groups: 0 to 3, 4 to 6 and 7 to 9."""
    rows = [(place // 2,) for place in range(20)]
    values = np.array([[abs(number - 5.0)] * 2 for (number,) in rows])
    assert find_effects(axes_of("a"), rows, values, lower_is_better=True).effects[0].best == "4 to 6"


def test_drawn_numbers_are_grouped_by_size() -> None:
    rows = [(share, share) for share in np.linspace(0, 1, 30).tolist()]
    values = np.array([[share**2] * 2 for share, _ in rows])
    found = find_effects(axes_of("a"), [(row[0],) for row in rows], values, lower_is_better=True).effects[0]
    low, _, high = found.best.partition(" to ")
    assert (float(low), float(high)) == pytest.approx((0, 9 / 29))


def test_short_names_tell_keys_apart() -> None:
    assert short_names(["cluster.instances", "engine.max_num_seqs"]) == ["instances", "max_num_seqs"]
    assert short_names(["a.x.rate", "a.y.rate", "rate"]) == ["x.rate", "y.rate", "rate"]


@pytest.mark.parametrize(
    ("vary", "names"),
    [
        (["cluster.instances=1,2,3"], {"settings"}),
        (["routing=random,round_robin"], {"settings"}),
        (list(VARY), {"settings", "effects"}),
        ([*VARY, "routing=random,round_robin"], {"settings", "effects"}),
    ],
)
def test_there_is_a_figure_for_any_number_of_keys(vary: list[str], names: set[str], tmp_path: Path) -> None:
    found = swept(tmp_path, *vary)
    drawn = figures(found)
    assert set(drawn) == names
    texts = [text.get_text() for axes in drawn["settings"].axes for text in axes.texts]
    assert len(texts) == (5 * 4 if len(vary) == 2 else 0)  # a heat map of each metric
    found_words = verdict(found)
    assert found_words.endswith(".")
    assert "has the lowest mean p90 TTFT (" in found_words


def test_drawn_settings_are_drawn_as_points(tmp_path: Path) -> None:
    described = scenario()
    axes = [read_axis("engine.max_num_batched_tokens=128:2048"), read_axis("routing=random,round_robin")]
    found = run(described, hypercube(described, axes, 8), tmp_path, Processes(1))
    drawn = figures(found)["settings"]
    assert [len(axes.collections[0].get_offsets()) for axes in drawn.axes[:5]] == [8] * 5  # type: ignore[arg-type]
    assert json.loads(json.dumps(found.to_json(), allow_nan=False))["design"] == "latin hypercube"


def test_no_tick_stands_for_half_an_instance(tmp_path: Path) -> None:
    described = scenario()
    axes = [read_axis("cluster.instances=1:3"), read_axis("engine.max_num_batched_tokens=128:2048")]
    drawn = figures(run(described, hypercube(described, axes, 4), tmp_path, Processes(1)))["settings"]
    assert all(tick.is_integer() for tick in drawn.axes[0].get_xticks().tolist())


def test_a_setting_under_overload_has_no_waits(tmp_path: Path) -> None:
    """One slot serves one request of 20 tokens at 33 ms a token, 1.5 a second at the most; 7 come."""
    text = TEXT.replace("num_requests: 30", "num_requests: 100")
    described = parse(text).changed(replications=4)
    axes = [read_axis("engine.max_num_seqs=1,64"), read_axis("cluster.instances=1,8")]
    found = run(described, grid(described, axes), tmp_path, Processes(1))
    assert found.unstable == {0}
    assert np.isnan(found.values("ttft_p90_s")[0]).all()
    assert not np.isnan(found.values("output_tokens_per_s")).any()
    assert found.best in (1, 2, 3)
    assert found.effects is None
    assert notes(found)[0].endswith("are left out: engine.max_num_seqs=1, cluster.instances=1.")
    drawn = figures(found)["settings"]
    assert "–: unstable" in drawn.get_suptitle()
    dashes = [(panel, text.get_position()) for panel, axes in enumerate(drawn.axes) for text in axes.texts
              if text.get_text() == "–"]  # fmt: skip
    assert dashes == [(0, (0.5, 0.5)), (2, (0.5, 0.5))]  # of p90 TTFT and of p90 end-to-end latency


def test_where_every_request_is_refused_nothing_breaks(tmp_path: Path) -> None:
    described = scenario().with_changes({("engine", "max_model_len"): 400})
    found = run(described, grid(described, [read_axis("cluster.instances=1,2")]), tmp_path, Processes(1))
    assert verdict(found) == "No setting has a p90 TTFT in every replication."
    sent = 2 * 2 * (5 + 5)  # settings, replications, requests of both tenants
    assert f"{sent} of {sent} requests over all settings were refused: latencies are of the others." in notes(found)
    assert set(figures(found)) == {"settings"}
    assert experiment.compare(described, jobs=1).verdict().startswith("Only round_robin was run")
    assert experiment.compare(parse(TEXT.replace("[round_robin]", "[round_robin, random]").replace("4096", "400")),
                              jobs=1).verdict() == "No run served a request: there is nothing to compare."  # fmt: skip


def test_a_warm_up_that_the_scenario_states_is_cut(tmp_path: Path) -> None:
    described = parse(TEXT + "warmup: 10\n")
    found = run(described, grid(described, [read_axis("cluster.instances=1,2")]), tmp_path, Processes(1))
    assert {row["num_requests"] for row in found.rows} == {25}
    assert notes(found)[-1] == "A warm-up of 10 requests, as the scenario says, begins every run and counts nowhere."


def loaded(text: str = "", **more: Any) -> Scenario:
    """420 requests at a load that takes a while to build up."""
    busy = TEXT.replace("num_requests: 30, arrivals: {process: poisson, rate_per_s: 6}",
                        "num_requests: 400, arrivals: {process: poisson, rate_per_s: 40}")  # fmt: skip
    busy = busy.replace("num_requests: 5, arrivals: {process: fixed, rate_per_s: 1}",
                        "num_requests: 20, arrivals: {process: fixed, rate_per_s: 2}")  # fmt: skip
    return parse(busy.replace("max_num_seqs: 64", "max_num_seqs: 16") + text).changed(**more)


def swept_under_load(folder: Path, described: Scenario, *vary: str, executor: Any = None) -> Findings:
    return run(described, grid(described, [read_axis(text) for text in vary]), folder, executor or Processes(1))


def test_the_warm_up_is_that_of_the_scenario_as_it_is_and_counts_in_no_run(tmp_path: Path) -> None:
    described = loaded()
    runs = [experiment.run(described, router="round_robin", replication=number, draws_profile=True)
            for number in range(5)]  # fmt: skip
    cut = judge({"": [one.waits() for one in runs]}, is_stationary=True).num_skipped
    assert cut > 0
    found = swept_under_load(tmp_path, described, "cluster.instances=2,3")
    assert found.num_skipped == [cut] * 4
    for row, one in zip(found.rows[:2], runs, strict=False):
        expected = one.after(cut).summary()
        assert {name: row[name] for name in ("num_requests", "ttft_p90_s", "hit_rate")} == {
            name: expected[name] for name in ("num_requests", "ttft_p90_s", "hit_rate")
        }
    said = f"A warm-up of {cut} requests, found by MSER-5 in the scenario as it is, begins every run"
    assert notes(found)[-1].startswith(said)
    assert found.to_json()["num_skipped"] == cut


def test_a_sweep_that_grows_has_the_rows_of_one_that_was_large_from_the_beginning(tmp_path: Path) -> None:
    """Values and replications that come later find the same warm-up, for which nothing is run again."""
    grown, counted = tmp_path / "grown", Counted()
    swept_under_load(grown, loaded(replications=1), "cluster.instances=3,4", executor=counted)
    assert counted.num_of_the_warmup == 5
    swept_under_load(grown, loaded(replications=3), "cluster.instances=2,3,4", executor=counted)
    assert (counted.num_of_the_warmup, counted.num_tasks) == (5, 2 + 7)
    swept_under_load(tmp_path / "large", loaded(replications=3), "cluster.instances=2,3,4", executor=Processes(2))
    assert in_bytes(grown) == in_bytes(tmp_path / "large")


def test_a_tenant_keeps_half_of_its_requests_and_a_workload_without_steady_state_all(tmp_path: Path) -> None:
    key = "workload.tenants.chat.synthetic"
    found = swept_under_load(tmp_path / "short", loaded(replications=1), f"{key}.num_requests=20,400")
    most = found.num_skipped[1]
    assert found.num_skipped[1] == most > 20
    assert 10 <= found.num_skipped[0] <= 20  # half of what chat sends, and what comes from others by then
    assert "found by MSER-5 in the scenario as it is, but at most half of any tenant's" in notes(found)[-1]
    values = "{process: poisson, rate_per_s: 40},{process: batch, every: 5 s, size: 50}"
    found = swept_under_load(tmp_path / "batch", loaded(replications=1), f"{key}.arrivals={values}")
    assert found.num_skipped == [most, 0]
    arrivals = {"process": "batch", "every": "5 s", "size": 50}
    batch = loaded(replications=1).with_changes({("workload", "tenants", "chat", "synthetic", "arrivals"): arrivals})
    found = swept_under_load(tmp_path / "whole", batch, "cluster.instances=2,3")
    assert found.num_skipped == [0, 0]
    assert notes(found)[-1] == "Every request counts: nothing has a steady state in the scenario as it is."


def test_a_stated_warm_up_takes_the_place_of_the_one_that_is_found(tmp_path: Path) -> None:
    counted = Counted()
    found = swept_under_load(tmp_path, loaded("warmup: 0\n"), "cluster.instances=2,3", executor=counted)
    assert (found.num_skipped, counted.num_of_the_warmup) == ([0] * 4, 0)
    assert {row["num_requests"] for row in found.rows} == {420}
    assert not any("warm-up" in text for text in notes(found))


def test_rows_with_another_warm_up_are_never_mixed_in(tmp_path: Path) -> None:
    (tmp_path / "rows").mkdir()
    for said in ({}, {"warm-up": 10}):
        with row_store.RowStore(tmp_path / "rows", {"scenario": "same"}) as store:
            store.identity |= said
            store.add(("setting", len(said)), {"setting": "setting", "replication": len(said)})
    refused = pytest.raises(InputError, match="holds results of another warm-up: None, not 10; expected another folder")
    with row_store.RowStore(tmp_path / "rows", {"scenario": "same"}) as store, refused:
        store.agreed("warm-up", lambda: 20)


def test_the_profiles_errors_are_drawn_alike_for_all_settings(tmp_path: Path) -> None:
    described = scenario(replications=3)
    found = grid(described, [read_axis("engine.max_num_seqs=32,64")])
    drawn = run(described, found, tmp_path / "drawn", Processes(1))
    fitted = run(described, found, tmp_path / "fitted", Processes(1), draws_profile=False)
    assert notes(drawn)[0] == "Each replication also draws the profile's errors, the same for all settings."
    ratios = drawn.values("tpot_p50_s") / fitted.values("tpot_p50_s")
    assert ratios[0] == pytest.approx(ratios[1])  # neither setting is ever full
    assert len(set(ratios[0])) == 3
    with pytest.raises(InputError, match="holds results of another use of the profile: errors drawn, not as fitted"):
        run(described, found, tmp_path / "drawn", Processes(1), draws_profile=False)


def test_one_replication_shows_nothing_beyond_itself(tmp_path: Path) -> None:
    found = swept(tmp_path, *VARY, replications=1)
    assert all(one.adjusted_p is None for one in found.differences.values())
    assert "3 of 3 other settings are not shown to be worse" in verdict(found)
    assert "No key is shown to matter" in verdict(found)


# The command


def command(folder: Path, *arguments: str) -> int:
    (folder / "small.yaml").write_text(TEXT)
    with pytest.raises(SystemExit) as ended:
        cli.main(["sweep", str(folder / "small.yaml"), "--limit", "4", "--jobs", "1", *arguments])
    return int(ended.value.code or 0)


def test_the_command_prints_and_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    arguments = ["--vary", VARY[0], "--vary", VARY[1], "-o", str(out)]
    assert command(tmp_path, *arguments) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    assert "has the lowest mean p90 TTFT" in " ".join(printed.out.split())
    assert {path.name for path in out.iterdir()} == {
        ".kvcast-lock", "effects.svg", "rows", "settings.csv", "settings.svg", "summary.json",
    }  # fmt: skip
    arguments = ["--vary", VARY[0], "--vary", "engine.max_num_seqs=8,64", "-o", str(out)]
    assert command(tmp_path, *arguments, "--json", "--metric", "e2e_p90", "--against", "base") == 0
    found = json.loads(capsys.readouterr().out)
    assert found == json.loads((out / "summary.json").read_text())
    assert found["settings"][found["reference"]]["values"] == {"cluster.instances": 2, "engine.max_num_seqs": 64}
    assert found["settings"][found["reference"]]["difference"] is None
    csv = pd.read_csv(out / "settings.csv")
    assert len(csv) == len(found["settings"]) == 4
    assert csv["e2e_p90_s"].tolist() == pytest.approx(
        [setting["estimates"]["e2e_p90_s"]["mean"] for setting in found["settings"]]
    )


@pytest.mark.parametrize("arguments", [
    ["--vary", "cluster.instances=3:9", "--vary", "engine.max_num_seqs=4:32", "--samples", "5"],
    ["--vary", "cluster.instances=3,4", "--vary", "engine.max_num_seqs=8,16", "--metric", "hit_rate"],
    ["--vary", "cluster.instances=3,4"],
    ["--vary", "routing=random,dynamo"],
    ["--vary", "workload.tenants.chat.synthetic.arrivals.rate_per_s=60/min,90/min"],
])  # fmt: skip
def test_the_scenario_as_it_is_runs_beside_settings_that_it_is_none_of(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All are compared with its very runs, and nothing else changes: not what each key does."""
    out = tmp_path / "out"
    arguments = [*arguments, "--json", "-o", str(out), "--replications", "3"]
    assert command(tmp_path, *arguments) == 0
    without = json.loads(capsys.readouterr().out)
    assert command(tmp_path, *arguments, "--against", "base") == 0
    found = json.loads(capsys.readouterr().out)
    *varied, base = found["settings"]
    assert found["reference"] == len(varied) == len(without["settings"])
    assert base["difference"] is None
    assert all(setting["difference"] is not None for setting in varied)
    assert [one["estimates"] for one in varied] == [one["estimates"] for one in without["settings"]]
    assert found["effects"] == without["effects"]
    described = parse((tmp_path / "small.yaml").read_text()).changed(limit=4, replications=1)
    assert base["digest"] == described.digest
    own = experiment.run(described, router=described.routing[0], replication=2, draws_profile=True).summary()
    (row,) = rows_of(out).query("setting == @described.digest and replication == 2").to_dict("records")
    assert row["output_tokens_per_s"] == own["output_tokens_per_s"]


def test_a_scenario_beside_drawn_settings_has_its_own_values(tmp_path: Path) -> None:
    vary = ("cluster.instances=3:9", "engine.max_num_batched_tokens=1024:2000", "routing.event_delay=1 ms:9 ms")
    described = scenario().with_changes({("routing",): {"policy": "dynamo", "event_delay": "2 s"}})
    found, place = hypercube(described, [read_axis(text) for text in vary], 4).with_base(described)
    assert place == found.num_varied == len(found.points) - 1 == 4
    assert found.points[place].values == (2, described.engine_config.max_num_batched_tokens, 2.0)
    listed, place = grid(described, [read_axis("cluster.instances=1,2,3")]).with_base(described)
    assert (place, len(listed.points)) == (1, 3)
    several = parse(TEXT.replace("[round_robin]", "[round_robin, random]"))
    with pytest.raises(InputError, match="--against base: the scenario has 2 policies, expected one"):
        grid(several, [read_axis("routing=random,dynamo")]).with_base(several)


COMMAND_MISTAKES = [
    ([], "--vary: missing, expected KEY=VALUES, like cluster.instances=4,8,16"),
    (["--vary", "cluster.instances=1,2", "--metric", "ttft_p9"],
     "--metric: unknown 'ttft_p9', expected ttft, tpot, inter_token, e2e, queue with _mean, _p50, _p90, _p95, _p99, or "
     "cached_share, output_tokens_per_s, hit_rate"),
    (["--vary", "cluster.instances=1,2", "--metric", "cat.ttft_p90"],
     "--metric cat.ttft_p90: the scenario has no tenant 'cat' (did you mean 'chat'?)"),
    (["--vary", "cluster.instances=1,2", "--metric", "chat.hit_rate"],
     "--metric: unknown 'chat.hit_rate', expected ttft, tpot, e2e, queue with _mean, _p50, _p90, _p95, _p99, or "
     "cached_share, output_tokens_per_s, within_targets, goodput"),
    (["--vary", "cluster.instances=1,2", "--metric", "code.goodput"],
     "--metric code.goodput: the tenant has no targets"),
    (["--vary", "cluster.instances=1,2", "--against", "all"], "--against: got 'all', expected best or base"),
    (["--vary", "cluster.instances=1,2", "--samples", "1"], "--samples: got 1, expected 2 to 100,000"),
    (["--vary", "cluster.instances=1,2", "--router", "random"], "--router: the scenario has no policy 'random' (known: "
     "round_robin)"),
    (["--vary", "routing=random,round_robin", "--router", "random"],
     "--router: changes nothing, since routing is varied"),
    (["--vary", "cluster.instances=1,2", "--executor", "slurm"],
     "--executor: unknown 'slurm' (known: dask, processes, ray)"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "line"), COMMAND_MISTAKES)
def test_mistakes_on_the_command_line(
    arguments: list[str], line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(tmp_path, *arguments, "-o", str(tmp_path / "out")) == 2
    assert capsys.readouterr().err == f"error: {line}\n"
    assert [path.name for path in tmp_path.iterdir()] == ["small.yaml"]


def test_differences_are_paired_by_replication(tmp_path: Path) -> None:
    found = swept(tmp_path, "cluster.instances=1,2", replications=4)
    values = np.log(found.values("ttft_p90_s"))
    best = int(values.mean(axis=1).argmin())
    assert found.best == best
    expected = paired_difference("ttft_p90_s", "", "", values[1 - best], values[best])
    assert found.differences[1 - best].estimate == expected.estimate


@pytest.mark.parametrize(
    ("metric", "key"),
    [("ttft_p99", "ttft_p99_s"), ("chat.ttft_p90", "ttft_p90_s"), ("code.e2e_mean_s", "e2e_mean_s"),
     ("code.cached_share", "cached_share"), ("chat.output_tokens_per_s", "output_tokens_per_s")],
)  # fmt: skip
def test_settings_are_judged_by_any_latency_and_by_those_of_one_tenant(tmp_path: Path, metric: str, key: str) -> None:
    described = scenario(replications=2)
    found = swept(tmp_path, "cluster.instances=1,2", replications=2)
    found.metric = read_metric(metric, described)
    tenant, dot, _ = metric.rpartition(".")
    for number in (0, 1):
        run_ = experiment.run(described.with_changes({("cluster", "instances"): 1}), router=described.routing[0],
                              replication=number, draws_profile=True)  # fmt: skip
        rows = run_.by_tenant() if dot else [run_.summary() | {"tenant": ""}]
        (expected,) = [row[key] for row in rows if row["tenant"] == tenant]
        assert found.values(found.metric)[0, number] == pytest.approx(expected)
    assert found.metric in found.to_json()["settings"][0]["estimates"]
    assert (f" of {tenant} (" in verdict(found)) is bool(dot)


def test_runs_too_short_for_their_load_are_those_of_a_comparison_and_get_no_interval(tmp_path: Path) -> None:
    """The seats of one instance do not serve what comes, those of two with hardly a pause, those of three at ease."""
    described = loaded("warmup: 0\n", replications=4)
    found = swept_under_load(tmp_path, described, "cluster.instances=1,2,3")
    for place, number in enumerate((1, 2, 3)):
        compared = experiment.compare(described.with_changes({("cluster", "instances"): number}), jobs=1)
        assert bool(compared.steady_state.too_short) is (place in found.too_short), number
        assert bool(compared.steady_state.unstable) is (place in found.unstable), number
        estimate = found.estimate(place, "ttft_p90_s")
        assert (estimate is None) is (place in found.unstable)
        assert (estimate is None or estimate.half_width is None) is (place in found.unstable | found.too_short)
    assert (found.unstable, found.too_short) == ({0}, {1})
    assert (found.best, found.differences[1].adjusted_p, found.differences[1].estimate.half_width) == (2, None, None)
    said = "Runs are too short for the load, so that means stand without an interval: cluster.instances=2. Send more"
    assert any(line.startswith(said) for line in notes(found))
