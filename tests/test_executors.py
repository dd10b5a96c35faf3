"""Executors run the same tasks with the same outcomes, whatever dies meanwhile: processes, real Dask and real Ray."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from simulator import cli, experiment, sweep
from simulator.errors import InputError
from simulator.executors import EXECUTORS, Executor, Processes, make_executor
from simulator.scenario import parse
from tests.test_sweep import in_bytes
from tests.test_variants import TEXT

SIMULATE = sweep.runs.simulate


def square(task: int) -> int:
    return task * task


def die_first(folder: Path, after_s: float = 0) -> None:
    """Kill this process, unless one has died there already."""
    try:
        (folder / "died").touch(exist_ok=False)
    except FileExistsError:
        return
    time.sleep(after_s)
    os.kill(os.getpid(), signal.SIGKILL)


def die_once(task: tuple[str, int]) -> tuple[int, int]:
    """Kills its process the first time that the third task is run; leaves a mark whenever a task is done."""
    folder, number = Path(task[0]), task[1]
    if number == 3:
        die_first(folder, after_s=0.5)  # others are under way, or done
    time.sleep(0.05)
    (folder / f"{number}-{time.monotonic_ns()}").touch()
    return number, os.getpid()


def complain(task: int) -> int:
    if task == 2:
        raise InputError("trace.jsonl:2: not JSON")
    return task


def unused_address() -> str:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{taken.getsockname()[1]}"


# Started once: a cluster takes a second or two.


@pytest.fixture(scope="module")
def dask() -> Iterator[Executor]:
    distributed = pytest.importorskip("distributed")
    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None, "silence_logs": 50}
    with distributed.LocalCluster(**options) as cluster:
        yield make_executor("dask", address=cluster.scheduler_address)


@pytest.fixture(scope="module")
def ray() -> Iterator[Executor]:
    package = pytest.importorskip("ray")
    # Tasks are found by name, as on a cluster where this package is installed.
    here = Path(__file__).parent
    package.init(
        address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=100 * 2**20,
        runtime_env={"env_vars": {"PYTHONPATH": f"{here.parent}:{here}"}},
    )  # fmt: skip
    yield make_executor("ray")
    package.shutdown()


@pytest.fixture(params=["processes", "dask", "ray"])
def executor(request: pytest.FixtureRequest) -> Executor:
    if request.param == "processes":
        return Processes(2)
    found: Executor = request.getfixturevalue(request.param)
    return found


def test_every_task_has_its_outcome_once(executor: Executor) -> None:
    found = list(executor.each(square, range(20)))
    assert sorted(found) == [(task, task * task) for task in range(20)]


def test_a_task_whose_process_is_killed_is_run_again_and_none_is_counted_twice(
    executor: Executor, tmp_path: Path
) -> None:
    found = list(executor.each(die_once, [(str(tmp_path), number) for number in range(8)]))
    assert sorted(place for place, _ in found) == list(range(8))
    assert all(place == number for place, (number, _) in found)
    assert (tmp_path / "died").exists()
    assert os.getpid() not in {process for _, (_, process) in found}


def test_what_a_task_says_is_kept(executor: Executor) -> None:
    with pytest.raises(InputError, match=r"^trace.jsonl:2: not JSON$"):
        list(executor.each(complain, range(6)))


def test_who_stops_reading_stops_the_rest(executor: Executor, tmp_path: Path) -> None:
    with closing(executor.each(slow, [(str(tmp_path), number) for number in range(200)])) as found:
        next(found)
    before, num_done = -1, 0
    while num_done != before:  # what was running may still end
        time.sleep(1.5)
        before, num_done = num_done, len(list(tmp_path.iterdir()))
    assert num_done < 100


def slow(task: tuple[str, int]) -> int:
    time.sleep(0.2)
    Path(task[0], str(task[1])).touch()
    return task[1]


def test_a_comparison_is_the_same_to_the_byte_wherever_it_was_run(executor: Executor) -> None:
    scenario = parse(TEXT + "variants: {two: {}, three: {cluster.instances: 3}}\n")
    here, there = experiment.compare(scenario, jobs=1), experiment.compare(scenario, executor=executor)
    assert here.to_json() == there.to_json()
    for one, other in zip(here.results, there.results, strict=True):
        assert one.requests.equals(other.requests)
        assert one.timeline.equals(other.timeline)


def simulate_but_die_once(folder: str, task: Any) -> Any:
    """A run of a sweep; the first one of replication 1 kills its process instead."""
    if task[1] == 1:
        die_first(Path(folder))
    return SIMULATE(task)


def test_a_sweep_in_which_a_worker_is_killed_writes_the_same_rows(
    executor: Executor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario = parse(TEXT).changed(replications=3)
    design = sweep.grid(scenario, [sweep.read_axis("cluster.instances=1,2,3")])
    sweep.run(scenario, design, tmp_path / "alone", Processes(1))
    monkeypatch.setattr(sweep.runs, "simulate", partial(simulate_but_die_once, str(tmp_path)))
    sweep.run(scenario, design, tmp_path / "there", executor)
    assert (tmp_path / "died").exists()
    assert in_bytes(tmp_path / "alone") == in_bytes(tmp_path / "there")


# Bad input


def test_processes_that_always_die_are_given_up(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"^processes died 3 times in a row before any of 4 tasks was done"):
        list(Processes(2).each(die, range(4)))


def die(task: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


MISTAKES: list[tuple[str, dict[str, Any], str]] = [
    ("proceses", {}, "--executor: unknown 'proceses' (did you mean 'processes'?)"),
    ("processes", {"address": "tcp://x:1"},
     "--address: changes nothing for --executor processes, expected dask or ray"),
    ("dask", {"jobs": 2}, "--jobs: changes nothing for --executor dask, whose cluster decides"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "options", "line"), MISTAKES)
def test_mistakes(name: str, options: dict[str, Any], line: str) -> None:
    with pytest.raises(InputError) as error:
        make_executor(name, **options)
    assert str(error.value) == line


def test_a_package_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(EXECUTORS, "dask", ("no_such_package", "Dask"))
    with pytest.raises(InputError, match=r"^--executor dask: the package no_such_package is not installed \(pip "):
        make_executor("dask", address="tcp://127.0.0.1:1")


@pytest.mark.parametrize(
    ("name", "package", "address", "line"),
    [
        ("dask", "distributed", "tcp://{unused}", "--address: no Dask scheduler answers at tcp://{unused}"),
        ("dask", "distributed", "nonsense",
         "--address: got 'nonsense', expected that of the Dask scheduler, like tcp://host:8786"),
        ("dask", "distributed", None, "--address: missing, expected that of the Dask scheduler, like tcp://host:8786"),
        ("ray", "ray", "{unused}", "--address: no Ray cluster answers at {unused}"),
        ("ray", "ray", "nonsense",
         "--address: got 'nonsense', expected that of the Ray head, like host:6379 or ray://host:10001"),
    ],
)  # fmt: skip
def test_an_address_where_nobody_answers_is_one_line_soon(
    name: str, package: str, address: str | None, line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip(package)
    unused = unused_address()
    path = tmp_path / "small.yaml"
    path.write_text(TEXT)
    arguments = ["compare", str(path), "--executor", name, "-o", str(tmp_path / "out")]
    if address is not None:
        arguments += ["--address", address.format(unused=unused)]
    began_s = time.monotonic()
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    assert time.monotonic() - began_s < 10
    assert (ended.value.code, capsys.readouterr().err) == (2, f"error: {line.format(unused=unused)}\n")
    assert [file.name for file in tmp_path.iterdir()] == ["small.yaml"]


def test_neither_dask_nor_ray_is_loaded_unless_asked_for() -> None:
    import subprocess
    import sys

    code = "import sys, simulator.experiment, simulator.sweep; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not set(done.stdout.split()) & {"distributed", "dask", "ray"}
