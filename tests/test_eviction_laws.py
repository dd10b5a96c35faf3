"""What holds for every eviction policy, over drawn clusters: law 7 for each, and that none changes more than it may.

Laws 1 to 9 are tested with drawn policies too: see `drawn_clusters.cases`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from cluster_cases import MODES, Case, check, record, serve
from drawn_clusters import EVICTIONS, cases
from hypothesis import HealthCheck, given, settings
from test_advancing import asks, small

from simulator.eviction import POLICIES

some = settings(
    max_examples=20, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)


def name(entry: Any) -> str:
    return entry if isinstance(entry, str) else entry["policy"]


def test_every_policy_that_an_engine_can_have_is_drawn() -> None:
    assert {name(entry) for entry in EVICTIONS} == {key for key, policy in POLICIES.items() if not policy.needs_future}


@pytest.mark.parametrize("entry", EVICTIONS, ids=str)
def test_law_7_advancing_equals_stepping_under(entry: Any) -> None:
    met: Counter[str] = Counter()

    @some
    @given(cases(pressed=True))
    def hold(case: Case) -> None:
        seen = check(replace(case.changed(enable_prefix_caching=True), eviction=entry))
        met["stretches"] += sum(one.num_steps > 1 for one in seen["advancing"].advances)
        met["evictions"] += sum(one.scheduler.pool.num_evictions for one in seen["advancing"].cluster.instances)
        met["hits"] += sum(seen["advancing"].metrics.prefix_hits)

    hold()
    assert len(met) == 3
    assert min(met.values()) > 20, met


@some
@given(cases() | cases(pressed=True))
def test_lru_is_vllms_own_order_of_0_32(case: Case) -> None:
    """There, blocks without content go first, and content is lost in the order in which it became idle."""
    case = case.changed(
        dialect="vllm-0.32", enable_prefix_caching=True, long_prefill_token_threshold=0,
        long_prefill_token_threshold_adaptive=False,
    )  # fmt: skip
    own, lru = (serve(replace(case, eviction=entry), **MODES["advancing"]) for entry in ("vllm", "lru"))
    assert own.rows() == lru.rows()
    assert own.advances == lru.advances
    assert [event[:2] for event in own.events] == [event[:2] for event in lru.events]
    kept = [one.cluster.instances[0].scheduler.pool for one in (own, lru)]
    assert kept[0].cached.keys() == kept[1].cached.keys()
    assert kept[0].num_evictions == kept[1].num_evictions
    assert kept[0].ledger.evicted == kept[1].ledger.evicted


@some
@given(cases())
def test_who_watches_the_tenants_changes_nothing(case: Case) -> None:
    alone = replace(case, tenants=("",))
    if name(case.eviction) == "quota":
        alone = replace(alone, eviction="lru")
        case = replace(case, eviction="lru")
    several, one = (record(serve(each, **MODES["advancing"])) for each in (case, alone))
    for what in several.keys() - {"pools"}:
        assert several[what] == one[what]


@pytest.mark.parametrize("entry", ["lru", "lfu", "slru", "length_aware"])
def test_law_7_a_hit_of_blocks_that_two_requests_computed_may_break_in_its_middle(entry: str) -> None:
    """Two requests prefill the same 40 tokens five at a time, side by side: of each block there are two copies, and by
    their counts now one goes first, now the other.
    """
    few = [asks(number, 15.0, 1, 127 if number == 7 else 1) for number in range(14)]
    for number in (11, 13):
        few[number] = asks(number, 15.0, 41, 109, prompt=((0, 0, 40), (None, 0, 1)))
    case = small(
        *few, max_model_len=150, num_gpu_blocks=76, max_num_batched_tokens=150, max_num_seqs=4,
        enable_chunked_prefill=False, long_prefill_token_threshold=5, scheduler_reserve_full_isl=False,
    )  # fmt: skip
    seen = check(replace(case, overhead=(0.01, 1e-4), eviction=entry))
    assert seen["plain"].num_preemptions


def test_law_7_a_hit_that_breaks_in_its_middle_may_let_its_request_in() -> None:
    """FIFO gives up a prompt's first block while those behind it stay. The last request finds 16 blocks of 2 and asks
    for 3 more at a time: 19 are not free while request 2 grows, but 3 are, once the first of the 16 is gone.
    """
    first = [asks(0, 0.0, 1, 1), asks(1, 0.0, 1, 1), asks(2, 0.0, 1, 149)]
    prompts = [((0, 0, 3), (None, 0, 1)), ((0, 0, 33), (None, 0, 1))]
    others = [asks(3, 0.0, 4, 1, prompt=prompts[0]), asks(4, 0.0, 34, 54, prompt=prompts[1])]
    case = small(
        *first, *others, dialect="vllm-0.32", max_model_len=150, num_gpu_blocks=76, max_num_batched_tokens=5,
        max_num_seqs=4, scheduler_reserve_full_isl=False,
    )  # fmt: skip
    seen = check(replace(case, overhead=(0.01, 1e-4), eviction="fifo"))
    assert seen["plain"].num_preemptions
    assert len(seen["advancing"].advances) < len(seen["plain"].advances)
