"""The workloads on which cost is counted (test_cost.py) and timed (benchmarks): three drawn ones and a trace."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simulator.cluster import Cluster
from simulator.engine_args import EngineConfig
from simulator.eviction import EvictionSpec, parse_eviction
from simulator.metrics import Metrics
from simulator.profile import Profile, load_profile
from simulator.routing import make_router, parse_routing
from simulator.workload import Workload, WorkloadSpec, open_workload

TRACE = Path(__file__).parent.parent / "scenarios" / "traces" / "mooncake_conversation.jsonl.gz"
PROMPT_TOKENS, OUTPUT_TOKENS, BLOCK_SIZE, TOKEN_BUDGET = 1000, 200, 64, 8192


@dataclass(frozen=True)
class Case:
    """``rate_per_s`` requests in all over ``instances``; half of each prompt is one of ``num_prefixes``, if any."""

    title: str
    instances: int
    policy: str
    rate_per_s: float = 0.0  # 0: the trace's own
    num_prefixes: int = 0


CASES = {
    "a": Case("1 instance, 6/s, 1,000 in, 200 out, nothing shared", 1, "round_robin", 6),
    "b": Case("8 instances, 48/s, 20 groups share half the prompt, dynamo", 8, "dynamo", 48, 20),
    "c": Case("32 instances, 250/s, 200 groups share half the prompt, dynamo", 32, "dynamo", 250, 200),
    "d": Case("Mooncake conversation trace, 8 instances, article profile, dynamo", 8, "dynamo"),
}


@dataclass
class Prepared:
    """A cluster that has not started, and what it is to serve."""

    cluster: Cluster
    workload: Workload
    metrics: Metrics

    def run(self) -> None:
        self.cluster.run(self.workload)


def prepare(
    name: str, num_requests: int, *, output_tokens: int = OUTPUT_TOKENS, advancing: bool = True, eviction: Any = "vllm"
) -> Prepared:
    """Case ``name`` with so many requests (at most the trace's, for ``d``)."""
    case = CASES[name]
    if name == "d":
        profile = load_profile("qwen3-0.6b-ascend910-a3")
        source: dict[str, Any] = {"trace": {"format": "mooncake", "path": str(TRACE), "limit": num_requests}}
        config = _config(
            dialect="vllm-0.23", block_size=128, num_gpu_blocks=profile.num_gpu_blocks(128), max_model_len=131_072,
            max_num_batched_tokens=2048,
        )
    else:
        profile, config = load_profile("linear-8ms-50us"), _config()
        source = {"synthetic": _synthetic(case, num_requests, output_tokens)}
    spec = WorkloadSpec.model_validate({"tenants": [{"name": "tenant", **source}]})
    workload = open_workload(spec, seed=0, replication=0)
    return _assemble(case, config, profile, workload, advancing, parse_eviction(eviction))


def _assemble(
    case: Case, config: EngineConfig, profile: Profile, workload: Workload, advancing: bool, eviction: EvictionSpec
) -> Prepared:
    metrics = Metrics(case.instances, workload.tenants, num_blocks=config.num_gpu_blocks - 1)
    router = make_router(parse_routing(case.policy), case.instances, random.Random(0))
    cluster = Cluster(
        config, profile.step_time(), router, case.instances, metrics, advancing=advancing, eviction=eviction
    )
    return Prepared(cluster, workload, metrics)


def _synthetic(case: Case, num_requests: int, output_tokens: int) -> dict[str, Any]:
    arrivals = {"process": "poisson", "rate_per_s": case.rate_per_s}
    shared = PROMPT_TOKENS // 2 if case.num_prefixes else 0
    found = {
        "arrivals": arrivals, "num_requests": num_requests, "suffix_tokens": PROMPT_TOKENS - shared,
        "output_tokens": output_tokens,
    }
    return found | ({"num_prefixes": case.num_prefixes, "prefix_tokens": shared} if shared else {})


def _config(**changes: Any) -> EngineConfig:
    arguments: dict[str, Any] = {
        "dialect": "vllm-0.32", "block_size": BLOCK_SIZE, "num_gpu_blocks": 8192, "max_model_len": 4096,
        "max_num_batched_tokens": TOKEN_BUDGET, "max_num_seqs": 256, "max_num_active_seqs": 256,
        "enable_prefix_caching": True, "enable_chunked_prefill": True, "long_prefill_token_threshold": 0,
        "scheduler_reserve_full_isl": True, "watermark": 0.0, "policy": "fcfs", "async_scheduling": False,
    }
    return EngineConfig(**(arguments | changes))


class CountedList(list[Any]):
    """A list that counts how often an element was written."""

    def __init__(self, values: list[Any]) -> None:
        super().__init__(values)
        self.num_writes = 0

    def __setitem__(self, index: Any, value: Any) -> None:
        self.num_writes += 1
        super().__setitem__(index, value)


@dataclass(frozen=True)
class Cost:
    """What a run did, per request. A block operation is a write of a block's reference count or key."""

    events: float
    advances: float
    schedules: float
    block_operations: float


def count(prepared: Prepared) -> Cost:
    """Run to the end and count."""
    calls = 0
    lists: list[CountedList] = []
    for instance in prepared.cluster.instances:
        scheduler, pool = instance.scheduler, instance.scheduler.pool
        pool.ref_cnt, pool.key = CountedList(pool.ref_cnt), CountedList(pool.key)
        lists += [pool.ref_cnt, pool.key]
        plain = scheduler.schedule

        def schedule(plain: Any = plain) -> Any:
            nonlocal calls
            calls += 1
            return plain()

        scheduler.schedule = schedule  # type: ignore[method-assign]
    prepared.run()
    num_requests = prepared.metrics.num_requests
    return Cost(
        events=next(prepared.cluster.clock._eid) / num_requests,
        advances=sum(instance.num_advances for instance in prepared.cluster.instances) / num_requests,
        schedules=calls / num_requests,
        block_operations=sum(counted.num_writes for counted in lists) / num_requests,
    )
