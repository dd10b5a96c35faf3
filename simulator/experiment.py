"""Running a scenario: one policy once, or every policy in every replication on as many processes as there are."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import joblib
from joblib.externals.loky import get_reusable_executor

from simulator.comparison import Comparison, Provenance
from simulator.engine_args import unmeasured
from simulator.errors import InputError, nearest
from simulator.evidence import indicative
from simulator.metrics import Metrics
from simulator.result import RunResult
from simulator.routing import Router, RoutingSpec, make_routers
from simulator.streams import python_stream
from simulator.workload import open_workload

if TYPE_CHECKING:
    from simulator.profile import Profile
    from simulator.request import Request
    from simulator.scenario import Scenario

Task = TypeVar("Task")
Outcome = TypeVar("Outcome")
Progress = Callable[[], None]


def run(scenario: Scenario, *, router: RoutingSpec | str, replication: int, limit: int | None = None) -> RunResult:
    """Simulate one policy in one replication (from 0); ``limit`` is the most requests a tenant sends.

    ``router`` is an entry of the scenario's ``routing`` or its label. Replications draw workload and router from
    streams named after their number; all policies see the same workload (common random numbers), and the same draws of
    the router's stream and of each instance's step noise. Raises InputError for an unknown policy or a workload that
    cannot be read.
    """
    if limit is not None:
        scenario = scenario.changed(limit=limit)
    spec = router if isinstance(router, RoutingSpec) else _named(scenario, router)
    config, num_instances = scenario.engine_config, scenario.cluster.instances
    workload = open_workload(
        scenario.workload, scenario.seed, replication, scenario.base_dir, acceptance=scenario.acceptance
    )
    routers = make_routers(spec, num_instances, python_stream(scenario.seed, "router", replication))
    # vLLM's null block never holds anything: what a pool can hold is one block less than it counts.
    metrics = Metrics(num_instances, workload.tenants, num_blocks=config.num_gpu_blocks - 1)
    num_arrived = _simulate(
        config, scenario.device_profile, routers, workload, num_instances, metrics,
        seed=scenario.seed, replication=replication,
    )  # fmt: skip
    if metrics.num_requests != num_arrived:
        raise RuntimeError(f"{num_arrived} requests arrived and {metrics.num_requests} ended")
    targets_s = workload.targets_s
    return RunResult.of(metrics, policy=spec.label, replication=replication, targets_s=targets_s)


def compare(scenario: Scenario, *, jobs: int | None = None, progress: Progress | None = None) -> Comparison:
    """Every policy of the scenario in every replication, on ``jobs`` processes (default: one a core; 1: in this one).

    The result does not depend on ``jobs``. ``progress()`` is called after each run. An interrupt stops all
    processes and is raised again.
    """
    tasks = [(scenario, spec, number) for spec in scenario.routing for number in range(scenario.replications)]
    return Comparison(describe(scenario), run_all(_run_task, tasks, jobs=jobs, progress=progress))


def describe(scenario: Scenario) -> Provenance:
    """Where a result of this scenario comes from: scenario, digest, versions, profile with its errors, resampling."""
    profile = scenario.device_profile
    noise = profile.step_noise_s
    return Provenance(
        name=scenario.name,
        question=scenario.question,
        seed=scenario.seed,
        scenario=scenario.model_dump(mode="json"),
        digest=scenario.digest,
        versions=_versions(),
        profile={
            "name": profile.name,
            "identity": _identity(profile),
            "description": profile.provenance.description,
            "held_out_error": profile.held_out_error,
            "in_sample_error": profile.in_sample_error,
            "indicative": indicative(profile),
            "step_noise_s": noise.value if noise is not None else None,
            "unmeasured": unmeasured(scenario.engine_config, profile),
            "measured_on": profile.identity.model_dump(mode="json"),
        },
        workload=open_workload(scenario.workload, scenario.seed, 0, scenario.base_dir).resampling,
        ignored_arguments=scenario.engine.harmless,
    )


def run_all(
    function: Callable[[Task], Outcome],
    tasks: Sequence[Task],
    *,
    jobs: int | None = None,
    progress: Progress | None = None,
) -> list[Outcome]:
    """``function`` of every task, in their order, on ``jobs`` processes (None: one a core; 1: in this one)."""
    outcomes: list[Outcome] = []
    num_jobs = min(jobs or joblib.cpu_count(), len(tasks))
    try:
        for outcome in _each(function, tasks, num_jobs):
            outcomes.append(outcome)
            if progress is not None:
                progress()
    except BaseException:
        if num_jobs > 1:
            get_reusable_executor().shutdown(wait=False, kill_workers=True)
        raise
    return outcomes


def _each(function: Callable[[Task], Outcome], tasks: Sequence[Task], num_jobs: int) -> Iterator[Outcome]:
    if num_jobs <= 1:
        return map(function, tasks)
    parallel = joblib.Parallel(n_jobs=num_jobs, return_as="generator", batch_size=1, backend="loky")
    return parallel(joblib.delayed(function)(task) for task in tasks)


def _run_task(task: tuple[Scenario, RoutingSpec, int]) -> RunResult:
    scenario, router, replication = task
    return run(scenario, router=router, replication=replication)


def _simulate(
    config: Any, profile: Profile, routers: Sequence[Router], requests: Iterable[Request], num_instances: int,
    metrics: Metrics,
    *, seed: int, replication: int,
) -> int:  # fmt: skip
    from simulator.cluster import simulate

    return simulate(config, profile, routers, requests, num_instances, metrics, seed=seed, replication=replication)


def _named(scenario: Scenario, label: str) -> RoutingSpec:
    by_label = {spec.label: spec for spec in scenario.routing}
    if label not in by_label:
        raise InputError(f"routing: the scenario has no policy {label!r}{nearest(label, by_label)}")
    return by_label[label]


def _identity(profile: Profile) -> str:
    """What was measured, in a few words: model and number format on device, engine."""
    who = profile.identity
    engine = f"vLLM {who.vllm}" + (f", vllm-ascend {who.vllm_ascend}" if who.vllm_ascend else "")
    return f"{who.model} {who.dtype} on {who.device}, {engine}, {who.graph_mode}"


def _versions() -> dict[str, str]:
    names = ("simpy", "numpy", "scipy", "pandas", "pydantic")
    found = {"python": platform.python_version()} | {name: importlib.metadata.version(name) for name in names}
    try:
        return {"kvcast": importlib.metadata.version("kvcast")} | found
    except importlib.metadata.PackageNotFoundError:
        return {"kvcast": "not installed"} | found
