"""Whose content the caches hold, who evicts whom, and what salts cost: cases worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from cluster_cases import MODES, serve
from test_advancing import asks, small

import simulator
from simulator import experiment, report, wording
from simulator.isolation import price_of_isolation
from simulator.residents import Residents
from simulator.result import CacheSharing
from simulator.workload import WorkloadSpec

TWO = ("red", "blue")


def served(*requests: dict[str, Any], eviction: Any = "vllm", tenants: tuple[str, ...] = TWO, **engine: Any) -> Any:
    case = replace(small(*requests, **engine), eviction=eviction, tenants=tenants)
    return serve(case, **MODES["advancing"])


def whole_blocks(number: int, arrival_s: float, segment: int, tenant: int, num_blocks: int = 4) -> dict[str, Any]:
    """A prompt of whole blocks of 2, and one answer token."""
    return asks(number, arrival_s, 2 * num_blocks, 1, prompt=((segment, 0, 2 * num_blocks),), tenant=tenant)


def sharing(seen: Any) -> CacheSharing:
    found = CacheSharing.of(seen.metrics)
    assert found is not None
    return found


@pytest.mark.parametrize("eviction", ["vllm", "lru"])
def test_blocks_are_whose_content_they_hold(eviction: str) -> None:
    """Eight usable blocks of 2. Red fills four, blue four; red's next prompt takes the four that are idle for longest,
    its own; the one after it takes blue's.
    """
    seen = served(
        whole_blocks(0, 0.0, 1, 0), whole_blocks(1, 10.0, 2, 1), whole_blocks(2, 20.0, 3, 0),
        whole_blocks(3, 30.0, 4, 0),
        eviction=eviction, max_model_len=16, num_gpu_blocks=9,
    )  # fmt: skip
    found = sharing(seen)
    assert found.evicted == [[4, 0], [4, 0]]
    assert found.final_blocks == [8, 0]
    assert found.of_tenant(1)["blocks_lost_to_others"] == 4
    assert found.of_tenant(0)["blocks_taken_from_others"] == 4
    assert found.of_tenant(0)["blocks_lost_to_itself"] == 4


def test_what_a_tenant_finds_stays_its_who_computed_it() -> None:
    """Blue asks what red asked: it finds three blocks (one token is computed anew), and computes the fourth again."""
    seen = served(whole_blocks(0, 0.0, 1, 0), whole_blocks(1, 10.0, 1, 1), max_model_len=16, num_gpu_blocks=9)
    assert seen.requests[1].num_cached_tokens == 6
    assert sharing(seen).final_blocks == [4, 1]


def test_a_reserve_keeps_what_a_neighbour_would_take() -> None:
    """As the first case, but half of the pool is reserved for blue: red's third prompt has to take its own."""
    prompts = [whole_blocks(0, 0.0, 1, 0), whole_blocks(1, 10.0, 2, 1), whole_blocks(2, 20.0, 3, 0)]
    quota = {"policy": "quota", "reserve": {"blue": 0.5}}
    seen = served(
        *prompts, whole_blocks(3, 30.0, 4, 0), whole_blocks(4, 40.0, 2, 1),
        eviction=quota, max_model_len=16, num_gpu_blocks=9,
    )  # fmt: skip
    found = sharing(seen)
    assert found.evicted[1][0] == 0
    assert seen.requests[4].num_cached_tokens == 6


def test_one_tenant_or_no_cache_keeps_no_account() -> None:
    one = served(whole_blocks(0, 0.0, 1, 0), tenants=("",), max_model_len=16, num_gpu_blocks=9)
    off = served(whole_blocks(0, 0.0, 1, 0), enable_prefix_caching=False, max_model_len=16, num_gpu_blocks=9)
    for seen in (one, off):
        assert CacheSharing.of(seen.metrics) is None
        assert seen.cluster.instances[0].scheduler.pool.ledger is None


def test_residents_are_means_over_time_of_all_instances() -> None:
    """Two instances: 4 blocks from 1 s to 3 s, and 2 from 2 s to the end at 4 s."""
    residents = Residents(2, 1)
    residents.report(0, 1.0, [4])
    residents.report(1, 2.0, [2])
    residents.report(0, 3.0, [0])
    table = residents.table(4.0)
    assert list(table[0]) == [0.0, 4.0, 6.0, 2.0]
    assert residents.final() == [2]


def test_residents_outgrow_their_bins() -> None:
    """Over an hour bins are 16 s wide (240 of them): what was reported is in them still, by time."""
    residents = Residents(1, 2)
    residents.report(0, 0.0, [3, 1])
    residents.report(0, 1800.0, [0, 5])
    table = residents.table(3600.0)
    assert table["width_s"].iloc[0] == 16
    block_s = [(table[tenant] * table["width_s"]).sum() for tenant in (0, 1)]
    assert block_s == pytest.approx([3 * 1800, 1 * 1800 + 5 * 1800])


SALTED = """
tenants:
  - name: red
    cache_salt: red
    conversations: &service
      num_conversations: 5
      arrivals: {process: fixed, rate_per_s: 1}
      layers: [{name: system, tokens: 32, shared_as: service}]
      question_tokens: 8
      output_tokens: 1
  - name: blue
    cache_salt: blue
    conversations: *service
"""


def spec(text: str) -> WorkloadSpec:
    return WorkloadSpec.model_validate(yaml.safe_load(text))


def test_the_price_of_isolation_is_a_copy_for_each_salt() -> None:
    """Ten prompts of 40 tokens, 32 of them shared: two whole blocks of 16. Together nine find them, apart four and four
    do.
    """
    price = price_of_isolation(spec(SALTED), 0, Path(), 16)
    assert price is not None
    assert price.num_requests == 10
    assert price.shared == pytest.approx(9 * 32 / 400)
    assert price.salted == pytest.approx(8 * 32 / 400)
    assert price.price == pytest.approx(32 / 400)


def test_turns_of_a_salted_conversation_find_their_history() -> None:
    """Second turns find the first one's 40 prompt tokens and 8 answer tokens but the last: two whole blocks of 16, with
    a salt as without.
    """
    text = SALTED.replace("output_tokens: 1", "output_tokens: 8\n      turns: 2\n      think_time: 2 s")
    price = price_of_isolation(spec(text), 0, Path(), 16)
    assert price is not None
    assert price.num_requests == 20
    num_tokens = 10 * 40 + 10 * 56
    assert price.shared == pytest.approx((9 * 32 + 10 * 32) / num_tokens)
    assert price.salted == pytest.approx((8 * 32 + 10 * 32) / num_tokens)


def test_a_salt_for_each_session_leaves_nothing_but_its_own_history() -> None:
    """The turns of the test before, of one tenant: first turns find nothing, second ones two blocks."""
    text = SALTED.partition("  - name: blue")[0].replace("cache_salt: red", "cache_salt: {per: session}")
    text = text.replace("output_tokens: 1", "output_tokens: 8\n      turns: 2\n      think_time: 2 s")
    price = price_of_isolation(spec(text), 0, Path(), 16)
    assert price is not None
    num_tokens = 5 * 40 + 5 * 56
    assert price.salted == pytest.approx(5 * 32 / num_tokens)
    assert price.shared == pytest.approx((4 * 32 + 5 * 32) / num_tokens)


def test_turns_that_the_engine_refuses_have_no_price() -> None:
    """Second turns of 56 and 8 tokens exceed 63: the ten first ones are left."""
    text = SALTED.replace("output_tokens: 1", "output_tokens: 8\n      turns: 2\n      think_time: 2 s")
    price = price_of_isolation(spec(text), 0, Path(), 16, max_model_len=63)
    assert price is not None
    assert price.num_requests == 10
    assert price.shared == pytest.approx(9 * 32 / 400)


def test_nobody_pays_without_a_salt_and_endless_users_have_no_price() -> None:
    assert price_of_isolation(spec(SALTED.replace("cache_salt", "lora")), 0, Path(), 16) is None
    users = SALTED.replace("arrivals: {process: fixed, rate_per_s: 1}", "users: {number: 2}")
    assert price_of_isolation(spec(users), 0, Path(), 16) is None


def test_a_result_says_that_vllm_has_no_such_order() -> None:
    scenario = simulator.load(Path(__file__).parent.parent / "scenarios" / "noisy_neighbour.yaml")
    text = yaml.safe_dump(scenario.model_dump(mode="json", exclude_unset=True) | {"eviction": {"policy": "lfu"}})
    chosen = simulator.parse(text).changed(limit=5, replications=1, routing=scenario.routing[:1])
    notes = wording.notes(experiment.compare(chosen, jobs=1))
    assert "Blocks lose their content in the order of lfu (counts=lost), which vLLM does not offer." in notes


@pytest.fixture(scope="module")
def comparison() -> Any:
    scenario = simulator.load(Path(__file__).parent.parent / "scenarios" / "salted_tenants.yaml")
    return experiment.compare(scenario.changed(limit=30, replications=1), jobs=1)


def test_the_report_says_who_holds_the_cache_and_what_salts_cost(comparison: Any) -> None:
    page = report.page(comparison)
    assert "blocks in cache, mean" in page
    assert "the share of the cache that holds what they computed" in page
    assert "points are what the salts cost" in page
    told = comparison.to_json()
    assert told["isolation"]["shared"] > told["isolation"]["salted"] > 0
    row = told["runs"][0]["tenants"][0]
    assert 0 < row["resident_blocks_mean"] <= row["resident_blocks_final"]
    assert set(told["runs"][0]["evicted_blocks"]) == {"red", "blue"}
