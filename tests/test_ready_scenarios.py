"""Ready scenarios answer their questions: what theory says of each, on a slice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import simulator
from simulator import experiment
from simulator.result import RunResult

SCENARIOS = Path(__file__).parent.parent / "scenarios"


def run(
    name: str, *, limit: int | None = None, router: str | None = None, seed: int = 0, variant: str | None = None
) -> RunResult:
    scenario = simulator.load(SCENARIOS / f"{name}.yaml").changed(seed=seed)
    scenario = scenario if variant is None else scenario.variant(variant)
    return experiment.run(scenario, router=router or scenario.routing[0], replication=0, limit=limit)


def changed(name: str, change: Any, *, limit: int | None = None) -> RunResult:
    """The scenario with a change to its text."""
    text = (SCENARIOS / f"{name}.yaml").read_text(encoding="utf-8")
    after = change(text)
    assert after != text
    scenario = simulator.scenario.parse(after)
    return experiment.run(scenario, router=scenario.routing[0], replication=0, limit=limit)


def test_ten_questions_on_one_manual_compute_2304_positions() -> None:
    """The articles' example: 1,024 shared and 128 own tokens ten times, 2,304 computed instead of 11,520, exactly."""
    result = run("rag_manual")
    assert sum(result.prefix_queries) == 11_520
    assert sum(result.prefix_queries) - sum(result.prefix_hits) == 2_304


def test_a_timestamp_in_front_leaves_no_hit_and_its_repair_nearly_all() -> None:
    """Behind the system prompt: 3,000 tokens are 23 blocks of 128, and all but the first request find them."""
    assert sum(run("timestamp_in_front", limit=100).prefix_hits) == 0
    repaired = run("timestamp_behind", limit=100)
    assert sum(repaired.prefix_hits) == 99 * 23 * 128


def test_salts_cost_a_second_copy_of_what_tenants_share() -> None:
    """With salts each customer computes the service's 23 blocks on each of two instances; without, the first does so.
    Lost are 2 x 23 x 128 positions (the last copies may be computed by two at once).
    """
    shared = run("salted_tenants", variant="shared", limit=100)
    lost = sum(shared.prefix_hits) - sum(run("salted_tenants", limit=100).prefix_hits)
    assert lost == 2 * 23 * 128


def test_a_share_of_the_cache_protects_a_tenant_from_its_neighbour() -> None:
    """What nobody asks for again goes first under a limit, a reserve, or when its kind has been learned."""
    found = {
        name: run("reserved_cache", variant=name, limit=500) for name in ("vllm", "reserve", "limit", "learned")
    }
    cached = {name: result.by_tenant()[0]["cached_share"] for name, result in found.items()}
    stolen = {name: result.evicted_blocks()["regular"]["noisy"] for name, result in found.items()}
    for name in ("reserve", "limit", "learned"):
        assert cached[name] > cached["vllm"] + 0.02
        assert stolen[name] < stolen["vllm"]


def test_a_noisy_neighbour_costs_the_others_their_first_token() -> None:
    noisy = run("noisy_neighbour", limit=400).by_tenant()[0]
    rest = "routing:\n  - round_robin\n"
    without = changed("noisy_neighbour", lambda text: text.partition("    - name: noisy")[0] + rest, limit=400)
    alone = without.by_tenant()[0]
    assert noisy["num_requests"] == alone["num_requests"]
    assert noisy["ttft_p99_s"] > alone["ttft_p99_s"]


def test_priority_keeps_peoples_first_token_from_waiting_for_summaries() -> None:
    people = run("batch_beside_chat").by_tenant()[0]
    levels = ("      priority: 0\n", "      priority: 1\n")
    equal = changed(
        "batch_beside_chat",
        lambda text: text.replace("policy: priority", "policy: fcfs").replace(levels[0], "").replace(levels[1], ""),
    ).by_tenant()[0]
    assert people["ttft_p90_s"] < 0.5 * equal["ttft_p90_s"]


def test_conversations_stay_where_their_prefixes_are() -> None:
    """A session's own instance holds its whole history; in turn they find it one time in four."""
    at_home = run("support_ten_tenants", limit=15, router="session_hash").summary()
    in_turn = run("support_ten_tenants", limit=15, router="round_robin").summary()
    assert at_home["hit_rate"] > in_turn["hit_rate"] + 0.1  # type: ignore[operator]


def test_the_day_has_its_hours() -> None:
    """Requests follow the profile: the first hours from midnight on have a tenth of noon's."""
    rows = run("day_and_night", limit=3000).requests
    per_hour = (rows["arrival_s"] // 3600).value_counts().sort_index()
    assert per_hour[0] == pytest.approx(0.2 * 3600, abs=4 * (0.2 * 3600) ** 0.5)
    assert per_hour[2] == pytest.approx(0.12 * 3600, abs=4 * (0.12 * 3600) ** 0.5)


def test_following_prefixes_and_load_finds_most_and_old_metrics_cost_time() -> None:
    """150 prompts on eight instances: in turn most requests are the first of their prompt there. With looks at the
    queues a hundred times as far apart all requests between two of them follow the same one.
    """
    in_turn, fresh, affine = (
        run("which_router", limit=600, router=name).summary() for name in ("rr", "gie-322", "llmd-affinity")
    )
    assert fresh["hit_rate"] > 2 * in_turn["hit_rate"]  # type: ignore[operator]
    assert affine["hit_rate"] == pytest.approx(fresh["hit_rate"], abs=0.01)
    old = run("which_router", limit=600, router="gie-322(poll=5.0)").summary()
    assert old["ttft_p90_s"] > 1.2 * fresh["ttft_p90_s"]  # type: ignore[operator]
