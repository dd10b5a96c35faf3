"""Hit curves: hand-worked, by replays of one cache on drawn prompts, published figures of Mooncake's files."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_trace_goldens import BLOCK_SIZE, TRACES, hits_as_vllm
from test_trace_info import PROMPT_LISTS, length_of

from simulator import experiment, scenario
from simulator.errors import InputError
from simulator.eviction import make_policy, parse_eviction
from simulator.eviction.replay import hits
from simulator.hit_curve.asked import Counting
from simulator.hit_curve.lru import Lru, lru
from simulator.hit_curve.policies import BOUND, parse_policies, with_bound
from simulator.hit_curve.source import Source, counting_of, of_scenario, of_trace
from simulator.hit_curve.study import study
from simulator.prefix import Prefixes
from simulator.request import Prompt
from simulator.workload.readers import open_trace

ROOT = Path(__file__).parents[1]
BOUNDLESS = 10**9
FIFO = parse_eviction("fifo")


def source_of(prompts: list[Prompt], block_size: int, **more) -> Source:
    """Requests in memory, answers not quoted."""
    counting = Counting(block_size)
    requests = [counting.asked(prompt, length_of(prompt), 1, None, **more) for prompt in prompts]
    return Source("memory", counting, lambda source: iter(requests), [""])


def curve_of(prompts: list[Prompt], block_size: int) -> Lru:
    source = source_of(prompts, block_size)
    return lru(source.asked(), source.counting, source.name)


@cache
def mooncake_source(name: str, as_file: bool) -> Source:
    path = TRACES / f"mooncake_{name}.jsonl.gz"
    trace = open_trace(path)
    return of_trace(trace, path, counting_of(trace, path, None, as_file=as_file))


@cache
def mooncake(name: str, as_file: bool) -> Lru:
    source = mooncake_source(name, as_file)
    return lru(source.asked(), source.counting, source.name)


# --- by hand ------------------------------------------------------------------------------------------------------


def test_three_requests_by_hand():
    """Blocks of 4: a b c, then d, then a b c again. Between the two uses of a lies d: a needs 2 blocks, b 3, c 4.

    Of 12 tokens at least one is computed, so that c may not be hit by the third; 13 tokens let it.
    """
    first, other = ((1, 0, 12),), ((2, 0, 4),)
    again = curve_of([first, other, first], 4)
    assert [again.curve.hits(size) for size in range(6)] == [0, 0, 1, 2, 2, 2]
    longer = curve_of([first, other, ((1, 0, 13),)], 4)
    assert [longer.curve.hits(size) for size in range(6)] == [0, 0, 1, 2, 3, 3]
    assert (longer.num_requests, longer.num_tokens, longer.num_blocks) == (3, 29, 3 + 1 + 4)
    assert longer.share(longer.ceiling) == 12 / 29
    assert longer.of_blocks(longer.ceiling) == 3 / 8
    assert (longer.num_distinct, longer.num_longest, longer.num_for(0.9)) == (4, 3, 4)


def test_an_answer_that_the_next_turn_quotes_is_found_but_for_its_last_token():
    """Blocks of 4. A prompt of 4, an answer of 5 (its last token never has KV): 8 tokens cached, both blocks found."""
    counting = Counting(4)
    turns = [counting.asked(((1, 0, 4),), 4, 5, 2), counting.asked(((1, 0, 4), (2, 0, 5), (3, 0, 3)), 12, 1, None)]
    assert lru(turns, counting, "turns").ceiling == 2
    shorter = [counting.asked(((1, 0, 4),), 4, 4, 2), counting.asked(((1, 0, 4), (2, 0, 4), (3, 0, 3)), 11, 1, None)]
    assert lru(shorter, counting, "turns").ceiling == 1


def test_who_does_not_read_the_cache_fills_it():
    counting, prompt = Counting(4), ((1, 0, 9),)
    reads = counting.asked(prompt, 9, 1, None)
    blind = counting.asked(prompt, 9, 1, None, reads=False)
    assert lru([reads, blind], counting, "two").ceiling == 0
    assert lru([blind, reads], counting, "two").ceiling == 2


def test_as_the_file_counts_a_partial_block_is_one_and_may_be_found():
    counting = Counting(4, as_file=True)
    named = counting.asked(((1, 0, 4), (2, 0, 2)), 6, 1, None)
    found = lru([named, named], counting, "two")
    assert (found.num_blocks, found.ceiling, found.share(found.ceiling)) == (4, 2, 0.5)
    unnamed = counting.asked(((1, 0, 4), (None, 0, 2)), 6, 1, None)
    found = lru([unnamed, unnamed], counting, "two")
    assert (found.num_blocks, found.ceiling) == (2, 1)


# --- laws ---------------------------------------------------------------------------------------------------------


def replay(policy: str, prompts: list[Prompt], block_size: int, capacity: int) -> int:
    """Counted hits of the policy, block by block."""
    prefixes = Prefixes(block_size)
    names = [prefixes.keys(prompt)[0] for prompt in prompts]
    found = hits(make_policy(parse_eviction(policy), capacity), names, capacity)
    return sum(min(hit, (length_of(prompt) - 1) // block_size) for hit, prompt in zip(found, prompts, strict=True))


@given(PROMPT_LISTS, st.integers(1, 4))
def test_one_reading_gives_what_an_lru_cache_of_every_size_hits(prompts, block_size):
    """Of a cache smaller than a request, too: it keeps the request's first blocks."""
    found = curve_of(prompts, block_size)
    for capacity in range(1, found.num_distinct + 2):
        assert found.curve.hits(capacity) == replay("lru", prompts, block_size, capacity)


@given(PROMPT_LISTS, st.integers(1, 4))
def test_a_larger_cache_hits_no_less_and_none_more_than_the_ceiling(prompts, block_size):
    found = curve_of(prompts, block_size)
    every = [found.curve.hits(capacity) for capacity in range(found.num_distinct + 1)]
    assert every == sorted(every)
    assert every[0] == 0
    assert every[-1] == found.ceiling == replay("lru", prompts, block_size, BOUNDLESS)


@settings(max_examples=60, deadline=None)
@given(PROMPT_LISTS, st.integers(1, 4))
def test_no_policy_hits_more_than_the_ceiling_and_the_bound_no_less_than_lru(prompts, block_size):
    source = source_of(prompts, block_size)
    specs = with_bound(parse_policies(["fifo", "lfu", "slru", "s3fifo", "length_aware"]))
    longest = max(1, *(length_of(prompt) // block_size for prompt in prompts))
    found = study(source, capacities=range(longest, longest + 30, 3), policies=specs)
    for point in found.points:
        assert all(0 <= num_hits <= found.lru.ceiling for num_hits in point.policies.values())
        assert point.num_hits <= point.policies[BOUND.label]


def test_salts_keep_equal_texts_apart():
    """The ready scenario's two tenants share a system prompt of 3,000 tokens, which salts make two texts."""
    text = (ROOT / "scenarios" / "salted_tenants.yaml").read_text(encoding="utf-8")
    bare = "".join(line for line in text.splitlines(keepends=True) if "cache_salt:" not in line)
    ceilings = []
    for described in (text, bare):
        source = of_scenario(scenario.parse(described), Counting(128))
        ceilings.append(lru(source.asked(), source.counting, source.name).ceiling)
    assert ceilings[1] - ceilings[0] == 3_000 // 128  # the one more computation


def test_conversations_go_on_as_if_answers_took_no_time():
    source = of_scenario(scenario.load(ROOT / "scenarios/support_ten_tenants.yaml"), Counting(128))
    times_s = [asked.arrival_s for asked in source.asked()]
    assert times_s == sorted(times_s)
    assert len(times_s) > len({asked.session for asked in source.asked()}) > 1
    assert "what follows an answer comes as if answers took no time" in source.notes
    assert len(source.tenants) == 10


def test_closed_loops_of_users_are_refused():
    with pytest.raises(InputError, match=r"tenants\[0\].conversations.users: a closed loop"):
        of_scenario(scenario.load(ROOT / "scenarios/batch_beside_chat.yaml"), Counting(128))


GROWING = """
name: growing
engine: {dialect: vllm-0.32, max_model_len: %s, async_scheduling: false}
profile: qwen3-0.6b-ascend910-a3
cluster: {instances: 1}
workload:
  tenants:
    - name: chat
      conversations:
        arrivals: {process: poisson, rate_per_s: 1}
        num_conversations: 20
        layers: [{name: service, tokens: 3000}]
        turns: 6
        question_tokens: 500
        output_tokens: 1000
        think_time: 5 s
routing: [round_robin]
"""


def test_requests_that_the_engine_refuses_are_left_out_as_there():
    """Turns have 3,500, 5,000, 6,500 and 8,000 prompt tokens and answers of 1,000: with 8,192 the fourth is refused,
    and no fifth one follows it.
    """
    growing = scenario.parse(GROWING % "8K")
    source = of_scenario(growing, Counting(128))
    asked = list(source.asked())
    assert sorted(one.num_prompt_tokens for one in asked) == [3_500] * 20 + [5_000] * 20 + [6_500] * 20
    expected = "left out: 20 of 80 requests, which the engine would refuse: prompt and max_tokens exceed max_model_len"
    assert any(note.startswith(expected) for note in source.notes)
    served = experiment.run(growing, router="round_robin", replication=0)
    assert (len(served.requests), sum(served.refusals().values())) == (80, 20)


def test_where_every_request_would_be_refused_that_is_said():
    with pytest.raises(InputError, match=r"growing: the engine would refuse every request: .* max_model_len \(4,096\)"):
        study(of_scenario(scenario.parse(GROWING % "4K"), Counting(128)))


def test_no_request_is_refused():
    source = Source("nothing", Counting(16), lambda source: iter(()))
    with pytest.raises(InputError, match="nothing: no request"):
        study(source)


# --- published figures ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "as_file", "expected"),
    [
        ("conversation", True, (12_847, 61_046, 102_290, 105_710)),
        ("synthetic", True, (10_252, 51_669, 77_953, 77_953)),
        ("conversation", False, (12_990, 62_005, 102_724, 105_592)),
        ("synthetic", False, (10_370, 52_952, 77_740, 77_740)),
    ],
)
def test_mooncakes_files_give_the_integers_of_an_independent_program(name, as_file, expected):
    """As the file counts (policies.md 4.1, convention A) and as vLLM (V), at 1,000, 10,000, 50,000 and boundless."""
    found = mooncake(name, as_file)
    assert tuple(found.curve.hits(size) for size in (1_000, 10_000, 50_000, BOUNDLESS)) == expected
    assert found.num_blocks == {"conversation": 288_500, "synthetic": 121_877}[name]


def test_dynamo_quotes_the_ceiling_of_the_conversation_trace():
    """36.64 % ideal reuse, in NVIDIA Dynamo's documentation of its router benchmark."""
    found = mooncake("conversation", as_file=True)
    assert round(100 * found.share(found.ceiling), 2) == 36.64


@pytest.mark.parametrize("name", ["conversation", "synthetic"])
def test_an_engines_pool_differs_by_the_block_that_it_lends_a_partial_tail(name):
    """vLLM's pool lends a prompt's last, partial block while the request is served; it comes back without content."""
    curve = mooncake(name, as_file=False).curve
    assert 0 <= curve.hits(1_000) - hits_as_vllm(name, 1_000, keyless_first=True) <= 4


FIG_9_TOKENS = (1e4, 1e5, 1e6, 2e6, 4e6, 5e6, 8e6, 1e7, 5e7, 1e8)
FIG_9 = {
    "conversation": (0.045, 0.073, 0.087, 0.120, 0.215, 0.247, 0.300, 0.326, 0.398, 0.401),
    "synthetic": (0.000, 0.012, 0.146, 0.235, 0.381, 0.435, 0.545, 0.589, 0.658, 0.658),
}


@pytest.mark.parametrize("name", FIG_9)
def test_hit_rates_are_within_four_points_of_mooncakes_figure(name):
    """Mooncake (FAST '25), figure 9, by capacity in tokens; the paper's blocks are finer than the file's 512 tokens."""
    found = mooncake(name, as_file=False)
    for num_tokens, published in zip(FIG_9_TOKENS, FIG_9[name], strict=True):
        hit_rate = found.share(found.curve.hits(int(num_tokens) // BLOCK_SIZE))
        assert hit_rate == pytest.approx(published, abs=0.04), num_tokens


def test_policies_are_replayed_on_the_whole_conversation_trace():
    """policies.md 4.1, other policies, 1,000 blocks as the file counts."""
    specs = with_bound(parse_policies(["lfu", "fifo"]))
    found = study(mooncake_source("conversation", as_file=True), capacities=[1_000], policies=specs)
    assert not found.is_sampled
    rates = {policy: round(found.lru.share(num_hits), 4) for policy, num_hits in found.points[0].policies.items()}
    assert rates == {"lfu": 0.0481, "fifo": 0.0445, "belady": 0.1907}


def test_a_policy_hits_the_ceiling_where_all_fits():
    found = study(source_of([((1, 0, 8),), ((2, 0, 8),), ((1, 0, 9),)], 4), capacities=[2, 4, 6], policies=[FIFO])
    assert found.lru.num_distinct == 4
    assert [point.policies["fifo"] for point in found.points] == [0, 2, 2]
