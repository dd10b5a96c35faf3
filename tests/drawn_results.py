"""A comparison made of drawn numbers, for tests of what is done with results (no simulation behind it)."""

from __future__ import annotations

import numpy as np

from simulator.comparison import Comparison, Provenance
from simulator.metrics import Metrics
from simulator.plan import Plan
from simulator.request import Request
from simulator.result import RunResult
from simulator.streams import stream

SLOWNESS = {"round_robin": 1.6, "least_requests": 1.3, "longest_prefix": 1.15, "dynamo(event_delay_s=0.01)": 1.0}
NUM_INSTANCES = 8


def ended(request_id: int, arrival_s: float, first_s: float, finish_s: float, **fields: object) -> Request:
    """A finished request; the queue took half of the time to the first token."""
    request = Request(
        request_id=request_id, arrival_s=arrival_s, prompt=((None, 0, 500),), num_prompt_tokens=500, max_tokens=400,
        oracle_num_output_tokens=200,
    )  # fmt: skip
    request.state = "finished"
    request.queued_s, request.first_token_s, request.finish_s = arrival_s, first_s, finish_s
    request.first_scheduled_s = (arrival_s + first_s) / 2
    request.num_output_tokens = 200
    for name, value in fields.items():
        setattr(request, name, value)
    return request


def draw_run(policy: str, replication: int, slowness: float, num_requests: int = 1000) -> RunResult:
    """A run whose latencies are ``slowness`` times those of its replication, give or take 2 %."""
    shared = stream(0, "shared", replication)
    own = stream(0, "own", policy, replication)
    metrics = Metrics(NUM_INSTANCES, ("chat", "batch"), num_blocks=1000)
    arrivals = np.cumsum(shared.exponential(0.4, num_requests))
    first = shared.lognormal(-0.7, 0.9, num_requests) * shared.uniform(0.9, 1.1) * slowness * own.uniform(0.98, 1.02)
    pace = shared.lognormal(-3.4, 0.2, num_requests)
    for index in range(num_requests):
        arrival_s, instance = float(arrivals[index]), int(NUM_INSTANCES * own.uniform() ** (1 + 0.4 / slowness))
        first_s = arrival_s + float(first[index])
        request = ended(
            index, arrival_s, first_s, first_s + 199 * float(pace[index]),
            tenant=index % 2, instance=instance, num_cached_tokens=int(300 / slowness),
        )  # fmt: skip
        if index % 100 == 99 and policy == "round_robin":
            request.state, request.refusal, request.num_output_tokens = "refused", "longer than max_model_len", 0
            request.queued_s = request.first_scheduled_s = request.first_token_s = request.finish_s = None
        metrics.request(request)
        metrics.prefix(instance, arrival_s, 500, int(own.uniform(250, 350) / slowness))
        plan = Plan(num_decodes=8, decode_context=4000)
        support = 0 if index % 40 else 2
        waiting = int(3 * slowness * (1 + np.sin(arrival_s / 40)))
        metrics.advance(instance, arrival_s, arrival_s + 1.2, 30, plan, support, waiting, 8, 300)
    return RunResult.of(metrics, policy=policy, replication=replication)


def draw_comparison(
    num_replications: int = 5, slowness: dict[str, float] | None = None, num_requests: int = 1000
) -> Comparison:
    """All policies of ``slowness`` over replications that share their draws."""
    runs = [
        draw_run(policy, replication, factor, num_requests)
        for policy, factor in (slowness or SLOWNESS).items()
        for replication in range(num_replications)
    ]
    provenance = Provenance(
        name="synthetic",
        question="Which router serves drawn numbers best?",
        seed=0,
        scenario={"name": "synthetic", "seed": 0},
        digest="0" * 64,
        versions={"kvcast": "0.1.0", "python": "3.11"},
        profile={"name": "made-up", "identity": "no device, no engine", "held_out_error": 0.043},
        workload="every request drawn anew (seeded)",
        ignored_arguments={"disable_log_stats": True},
        is_stationary=True,
    )
    return Comparison(provenance, runs)
