"""Running a scenario: one policy once, or every policy or variant in every replication on any number of processes."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from simulator.comparison import Comparison, Provenance, VariantProvenance
from simulator.engine_args import unmeasured
from simulator.errors import InputError, nearest
from simulator.evidence import indicative
from simulator.executors import Executor, Processes
from simulator.isolation import price_of_isolation
from simulator.metrics import Metrics
from simulator.precision import Precision
from simulator.result import RunResult
from simulator.routing import Router, RoutingSpec, make_routers
from simulator.scenario.changes import flatten, write_path
from simulator.streams import python_stream, stream
from simulator.uncertainty import drawn, not_drawn, uncertainty_of
from simulator.workload import open_workload

if TYPE_CHECKING:
    from simulator.eviction import EvictionSpec
    from simulator.instance import Watcher
    from simulator.profile import Profile
    from simulator.request import Request
    from simulator.scenario import Scenario, Setting

Task = TypeVar("Task")
Outcome = TypeVar("Outcome")
Progress = Callable[[], None]

_MOST_PROBED = 10  # replications in which it is looked what the profile does: enough for a share of a variance


def run(
    scenario: Scenario,
    *,
    router: RoutingSpec | str,
    replication: int,
    limit: int | None = None,
    watcher: Watcher | None = None,
    draws_profile: bool = False,
    mirrored: bool = False,
) -> RunResult:
    """Simulate one policy in one replication (from 0); ``limit`` is the most requests a tenant sends. A ``watcher`` is
    told what is decided, and changes nothing. ``draws_profile``: with the profile's coefficients as they may as well
    be, drawn once for each replication (``mirrored``: erring to the other side).

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
    profile = scenario.device_profile
    if draws_profile:
        profile = drawn(profile, stream(scenario.seed, "profile", replication), mirrored=mirrored)
    routers = make_routers(spec, num_instances, python_stream(scenario.seed, "router", replication))
    # vLLM's null block never holds anything: what a pool can hold is one block less than it counts.
    metrics = Metrics(num_instances, workload.tenants, num_blocks=config.num_gpu_blocks - 1)
    num_arrived = _simulate(
        config, profile, routers, workload, num_instances, metrics,
        seed=scenario.seed, replication=replication, eviction=scenario.eviction, watcher=watcher,
    )  # fmt: skip
    if metrics.num_requests != num_arrived:
        raise RuntimeError(f"{num_arrived} requests arrived and {metrics.num_requests} ended")
    targets_s = workload.targets_s
    return RunResult.of(metrics, policy=spec.label, replication=replication, targets_s=targets_s)


def compare(
    scenario: Scenario,
    *,
    jobs: int | None = None,
    executor: Executor | None = None,
    progress: Progress | None = None,
    precision: Precision | None = None,
    draws_profile: bool = True,
) -> Comparison:
    """Every policy, or variant, of the scenario in every replication, on ``jobs`` processes (default: one a core; 1: in
    this one), or wherever ``executor`` runs them. With ``precision`` the scenario's replications are a beginning, which
    is gone on from until the headline intervals are narrow enough.

    Several replications also draw the profile, unless told not to: the same draw for all policies, so that it cancels
    where they are compared. The first policy is then run with the profile as it was fitted and with the errors
    mirrored, too, in the first ten replications: that tells how much of an interval's width is the profile's.

    The result does not depend on where it was computed. ``progress()`` is called after each run. An interrupt stops all
    processes and is raised again.
    """
    runs: dict[tuple[str, int, bool, bool], RunResult] = {}
    number: int | None = scenario.replications
    while number is not None:
        scenario = scenario.changed(replications=number)
        groups = _tasks(scenario, draws_profile=draws_profile and number > 1)
        missing = [task for tasks in groups for task in tasks if _key(task) not in runs]
        found = run_all(run_setting, missing, jobs=jobs, executor=executor, progress=progress)
        runs |= {_key(task): result for task, result in zip(missing, found, strict=True)}
        compared, as_fitted, mirrored = ([runs[_key(task)] for task in tasks] for tasks in groups)
        comparison = Comparison(
            describe(scenario, draws_profile=bool(as_fitted)), compared, precision, as_fitted, mirrored
        )
        number = precision.next_number(comparison) if precision is not None else None
    return comparison


def _tasks(scenario: Scenario, *, draws_profile: bool) -> tuple[list[SettingTask], ...]:
    """Every setting in every replication; where a profile is drawn, the first setting with it as fitted in the first
    replications; and that with the draw mirrored.
    """
    settings, numbers = scenario.settings, range(scenario.replications)
    draws_profile &= any(uncertainty_of(setting.scenario.device_profile) is not None for setting in settings)
    probed = numbers[:_MOST_PROBED] if draws_profile else ()
    return (
        [SettingTask(setting, number, draws_profile) for setting in settings for number in numbers],
        [SettingTask(settings[0], number) for number in probed],
        [SettingTask(settings[0], number, draws_profile=True, mirrored=True) for number in probed],
    )


def _key(task: SettingTask) -> tuple[str, int, bool, bool]:
    return task.setting.label, task.replication, task.draws_profile, task.mirrored


def describe(scenario: Scenario, *, draws_profile: bool = False) -> Provenance:
    """Where a result of this scenario comes from: scenario, digest, versions, profile with its errors, resampling."""
    config = scenario.engine_config
    return Provenance(
        name=scenario.name,
        question=scenario.question,
        seed=scenario.seed,
        base_dir=str(scenario.base_dir),
        scenario=scenario.model_dump(mode="json"),
        digest=scenario.digest,
        versions=versions(),
        profile=_describe_profile(scenario),
        workload=_resampling(scenario),
        ignored_arguments=scenario.engine.harmless,
        is_stationary=all(setting.scenario.workload.is_stationary for setting in scenario.settings),
        warmup=scenario.warmup,
        draws_profile=draws_profile,
        isolation=price_of_isolation(
            scenario.workload, scenario.seed, scenario.base_dir, config.block_size, config.max_model_len
        ),
        variants=tuple(_describe_variant(scenario, name) for name in scenario.variants),
    )


def _describe_variant(scenario: Scenario, name: str) -> VariantProvenance:
    variant = scenario.variant(name)
    return VariantProvenance(
        name=name,
        labels=tuple(setting.label for setting in scenario.settings if setting.variant == name),
        changes={write_path(path): value for path, value in flatten(scenario.variants[name]).items()},
        digest=variant.digest,
        profile=_describe_profile(variant),
        workload=_resampling(variant),
        same_requests=variant.workload == scenario.workload,
        ignored_arguments=variant.engine.harmless,
    )


def _describe_profile(scenario: Scenario) -> dict[str, Any]:
    profile = scenario.device_profile
    noise = profile.step_noise_s
    return {
        "name": profile.name,
        "identity": _identity(profile),
        "description": profile.provenance.description,
        "held_out_error": profile.held_out_error,
        "in_sample_error": profile.in_sample_error,
        "indicative": indicative(profile),
        "step_noise_s": noise.value if noise is not None else None,
        "not_drawn": not_drawn(profile),
        "unmeasured": unmeasured(scenario.engine_config, profile),
        "measured_on": profile.identity.model_dump(mode="json"),
    }


def _resampling(scenario: Scenario) -> str:
    return open_workload(scenario.workload, scenario.seed, 0, scenario.base_dir).resampling


def run_all(
    function: Callable[[Task], Outcome],
    tasks: Sequence[Task],
    *,
    jobs: int | None = None,
    executor: Executor | None = None,
    progress: Progress | None = None,
) -> list[Outcome]:
    """``function`` of every task, in their order, on ``jobs`` processes (None: one a core; 1: in this one) or wherever
    ``executor`` runs them.
    """
    outcomes: dict[int, Outcome] = {}
    with closing((executor or Processes(jobs)).each(function, tasks)) as found:
        for index, outcome in found:
            outcomes[index] = outcome
            if progress is not None:
                progress()
    return [outcomes[index] for index in range(len(tasks))]


class SettingTask(NamedTuple):
    """One labelled setting in one replication, with the profile drawn (or the draw mirrored) or as it was fitted."""

    setting: Setting
    replication: int
    draws_profile: bool = False
    mirrored: bool = False


def run_setting(task: SettingTask) -> RunResult:
    """What the task asks for, under the setting's label."""
    setting, replication, draws_profile, mirrored = task
    result = run(
        setting.scenario, router=setting.router, replication=replication, draws_profile=draws_profile, mirrored=mirrored
    )
    return replace(result, policy=setting.label)


def _simulate(
    config: Any, profile: Profile, routers: Sequence[Router], requests: Iterable[Request], num_instances: int,
    metrics: Metrics,
    *, seed: int, replication: int, eviction: EvictionSpec, watcher: Watcher | None,
) -> int:  # fmt: skip
    from simulator.cluster import simulate

    return simulate(
        config, profile, routers, requests, num_instances, metrics, seed=seed, replication=replication,
        eviction=eviction, watcher=watcher,
    )  # fmt: skip


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


def versions() -> dict[str, str]:
    """The versions that a result may depend on."""
    names = ("simpy", "numpy", "scipy", "pandas", "pydantic")
    found = {"python": platform.python_version()} | {name: importlib.metadata.version(name) for name in names}
    try:
        return {"kvcast": importlib.metadata.version("kvcast")} | found
    except importlib.metadata.PackageNotFoundError:
        return {"kvcast": "not installed"} | found
