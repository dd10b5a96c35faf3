"""Statistics of traces: by hand on small ones, by block keys on drawn ones, published figures of Mooncake's files."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_trace_goldens import BLOCK_SIZE, TRACES, UNIQUE_BLOCKS

from simulator.errors import InputError
from simulator.prefix import Prefixes
from simulator.request import Prompt
from simulator.trace_tools.arrivals import arrivals
from simulator.trace_tools.info import Info, summarise
from simulator.trace_tools.sessions import SessionCount
from simulator.trace_tools.sharing import Sharing
from simulator.trace_tools.spread import spread, weighted_percentiles
from simulator.trace_tools.traps import traps
from simulator.trace_tools.tree import Prefix, PrefixTree
from simulator.workload import mooncake
from simulator.workload.records import Record

HERE = Path("here.jsonl")


@dataclass
class Recorded:
    """A trace in memory; line n holds request n."""

    rows: list[Record]
    block_tokens: int | None = 1
    sessions_start_together: bool = False
    format: str = "memory"
    num_skipped: int = 0
    named: list[tuple[int, str]] = field(default_factory=list)

    def records(self):
        return enumerate(self.rows, start=1)

    def skipped(self):
        return self.named


def info_of(rows: list[Record], *block_sizes: int, **kind) -> Info:
    return summarise(Recorded(rows, **kind), HERE, block_sizes)[0]


def prompt_of(*prompt: tuple[int | None, int, int], at: float = 0.0, out: int = 1, **more) -> Record:
    return Record(at, sum(length for _, _, length in prompt), out, prompt, **more)


# Few names and short texts, so that prompts share much and part everywhere.
RUNS = st.tuples(st.sampled_from([0, 0, 1, 2, None]), st.integers(0, 3), st.integers(0, 9))
PROMPTS = st.lists(RUNS, min_size=1, max_size=5).map(tuple).filter(lambda prompt: sum(run[2] for run in prompt) > 0)
PROMPT_LISTS = st.lists(PROMPTS, min_size=1, max_size=12)


def length_of(prompt: Prompt) -> int:
    return sum(length for _, _, length in prompt)


@given(PROMPT_LISTS, st.integers(1, 7))
def test_ideal_hits_are_those_found_by_block_keys(prompts, block_size):
    prefixes = Prefixes(block_size)
    known: Counter[int] = Counter()
    num_blocks = num_hits = 0
    for prompt in prompts:
        keys, _ = prefixes.keys(prompt)
        hits = 0
        while hits < min(len(keys), (length_of(prompt) - 1) // block_size) and keys[hits] in known:
            hits += 1
        num_hits += hits
        num_blocks += -(-length_of(prompt) // block_size)
        known.update(keys)
    (ideal,) = info_of([prompt_of(*prompt) for prompt in prompts], block_size).prompts.ideal
    assert (ideal.num_blocks, ideal.num_hits, ideal.num_distinct) == (num_blocks, num_hits, len(known))
    one_off = sum(num == 1 for num in known.values()) / len(known) if known else None
    assert ideal.one_off_share == one_off
    assert ideal.share_of_tokens == num_hits * block_size / sum(map(length_of, prompts))


@settings(max_examples=20)
@given(PROMPT_LISTS)
def test_blocks_of_one_token_hit_all_that_was_seen(prompts):
    sharing, tree = Sharing(1), PrefixTree()
    seen = 0
    for prompt in prompts:
        visit = tree.visit(prompt)
        sharing.add(visit, length_of(prompt), length_of(prompt), names_tail=True)
        seen += min(visit.seen, length_of(prompt) - 1)
    assert sharing.ideal().num_hits == seen


class _Mooncake(Recorded):
    """The shipped file, through its fast reader."""

    def __init__(self, trace: str) -> None:
        rows = [
            Record(at, row.input_length, row.output_length, mooncake.prompt(row, 0))
            for at, row in mooncake.read(TRACES / f"mooncake_{trace}.jsonl.gz")
        ]
        super().__init__(rows, block_tokens=BLOCK_SIZE)


@cache
def mooncake_info(trace: str) -> Info:
    return summarise(_Mooncake(trace), HERE)[0]


@pytest.mark.parametrize(
    ("trace", "num_requests", "span_s", "tokens_in", "tokens_out", "hits"),
    [
        ("conversation", 12_031, 3_537, (12_035, 6_909, 39_552, 126_195), (343, 350, 698), (0.366, 0.373)),
        ("synthetic", 3_993, 1_022, (15_325, 11_587, 49_009, 191_378), (149, 69, 519), (0.640, 0.650)),
    ],
)
def test_mooncakes_files_have_their_known_statistics(trace, num_requests, span_s, tokens_in, tokens_out, hits):
    """Requests, span, mean, median, p95 and longest, and the two ideal hits: in the file's blocks and in tokens."""
    found = mooncake_info(trace)
    assert (found.num_requests, round(found.arrivals.span_s)) == (num_requests, span_s)
    one = found.input_tokens
    assert (round(one.mean), one.p50, one.p95, one.most) == tokens_in
    one = found.output_tokens
    assert (round(one.mean), one.p50, one.p95) == tokens_out
    ideal = {one.block_size: one for one in found.prompts.ideal}
    assert (round(found.prompts.as_file.share_of_blocks, 3), round(ideal[512].share_of_tokens, 3)) == hits
    assert found.prompts.as_file.num_distinct == UNIQUE_BLOCKS[trace]
    assert found.prompts.as_file.num_hits == {"conversation": 105_710, "synthetic": 77_953}[trace]
    assert ideal[512].num_hits == {"conversation": 105_592, "synthetic": 77_740}[trace]
    # Smaller blocks waste less of the tails, and never hit fewer tokens.
    assert ideal[16].share_of_tokens >= ideal[128].share_of_tokens >= ideal[512].share_of_tokens


def test_the_conversation_files_traps_are_found():
    found = mooncake_info("conversation")
    assert found.arrivals.num_distinct_times == 1_180
    assert found.arrivals.tick_s == 3
    text = "\n".join(traps(found))
    assert "lumped: 1,180 distinct values for 12,031 requests (about 3 s apart)" in text
    assert "Every request starts with the same 512 tokens" in text
    assert found.prompts.popular[0] == Prefix(512, 12_031, 512 * 12_030)
    assert "longer than 32K" in text
    assert "longer than 128K" not in text  # the longest prompt has 126,195
    assert "go back" not in text


def test_a_small_trace_by_hand():
    """Blocks of 4: A = 10 tokens of text 0; B = the same and 6 of text 1; C = 8 of text 0 and 4 of its own."""
    rows = [
        prompt_of((0, 0, 10), at=0.0, out=3),
        prompt_of((0, 0, 10), (1, 0, 6), at=1.0, out=5),
        prompt_of((0, 0, 8), (None, 0, 4), at=4.0, out=7),
    ]
    found = info_of(rows, 4, 2)
    four, two = found.prompts.ideal
    # B finds A's 2 whole blocks, C the same 2; blocks: 3 + 4 + 3; distinct: 2, then B's other 2, then C's 1.
    assert (four.num_blocks, four.num_hits, four.num_distinct) == (10, 4, 5)
    assert four.share_of_tokens == 16 / 38
    assert four.one_off_share == 3 / 5
    # Blocks of 2: B finds 5, C 4; A has 5, B 8, C 6.
    assert (two.num_blocks, two.num_hits, two.num_distinct) == (19, 9, 10)
    # B's two blocks were the only ones before: distances 1 and 2. C finds them again behind nothing else: 1 and 2.
    assert found.prompts.reuse.num_reused == 4
    assert found.prompts.reuse.distances["p50"] == 1
    assert found.prompts.reuse.distances["p99"] == 2
    assert found.prompts.reuse.intervals_s == {"p50": 1.0, "p90": 3.0, "p95": 3.0, "p99": 3.0}
    assert found.prompts.popular == (Prefix(8, 3, 16), Prefix(10, 2, 2))
    assert (found.input_tokens.mean, found.input_tokens.total, found.output_tokens.p50) == (38 / 3, 38, 5)
    assert found.arrivals.span_s == 4.0
    assert found.arrivals.mean_per_s == 0.75
    assert found.arrivals.gap_cv == 0.5  # gaps 1 and 3


def test_an_exact_repeat_computes_its_last_token_again():
    found = info_of([prompt_of((0, 0, 8)), prompt_of((0, 0, 8))], 4)
    assert found.prompts.ideal[0].num_hits == 1
    assert found.prompts.ideal[0].num_distinct == 2


def test_an_answer_that_the_next_prompt_quotes_is_found_but_for_its_last_token():
    """vLLM computes no KV of an answer's last token: of 8 + 8 tokens 15 are there."""
    first = prompt_of((0, 0, 8), out=8, output_segment=1)
    second = prompt_of((0, 0, 8), (1, 0, 8), (2, 0, 4))
    (ideal,) = info_of([first, second], 1).prompts.ideal
    assert ideal.num_hits == 15
    assert ideal.num_distinct == 15 + 5


def test_as_the_file_counts_a_block_is_known_by_its_first_token():
    """Blocks of 10: a partial last block has a name, which stands for all of it once there are more tokens."""
    found = info_of([prompt_of((0, 0, 13)), prompt_of((0, 0, 25), (None, 0, 3))], block_tokens=10)
    assert (found.prompts.as_file.num_blocks, found.prompts.as_file.num_hits) == (2 + 2, 2)
    ideal = {one.block_size: one for one in found.prompts.ideal}
    assert (ideal[10].num_blocks, ideal[10].num_hits) == (2 + 3, 1)


def test_what_prompts_share_is_unknown_without_texts():
    found = info_of([Record(0.0, 5, 1), Record(1.0, 7, 2)], block_tokens=None)
    assert found.prompts is None
    assert any("nothing of what prompts share" in text for text in traps(found))


def test_texts_of_some_prompts_only():
    found = info_of([Record(0.0, 5, 1), prompt_of((0, 0, 8)), prompt_of((0, 0, 8))], 4)
    assert found.prompts.num_requests == 2
    assert found.prompts.ideal[0].share_of_tokens == 4 / 16
    assert any("1 request without a word" in text for text in traps(found))


def test_evenly_spaced_requests_have_no_spread():
    found = arrivals(np.arange(0.0, 60.0, 0.5))
    assert found.gap_cv == pytest.approx(0)
    assert [(one.length_s, one.least_per_s, one.most_per_s, one.dispersion) for one in found.windows] == [
        (1, 2.0, 2.0, 0.0), (10, 2.0, 2.0, 0.0)
    ]  # fmt: skip
    assert not found.lumped


def test_a_poisson_process_has_variance_over_mean_one_and_lumps_have_more():
    gaps = np.random.default_rng(3).exponential(0.1, 100_000)
    smooth = arrivals(np.cumsum(gaps))
    assert smooth.gap_cv == pytest.approx(1, abs=0.02)
    assert all(one.dispersion == pytest.approx(1, abs=0.5) for one in smooth.windows if one.num_windows > 100)
    lumped = arrivals(np.floor(np.cumsum(gaps)))
    assert lumped.lumped
    assert lumped.tick_s == 1
    assert lumped.gap_cv > 2


def test_requests_all_at_once_have_no_rate():
    found = arrivals(np.array([5.0, 5.0]))
    assert (found.span_s, found.mean_per_s, found.gap_cv, found.tick_s, found.windows) == (0, None, None, None, ())


@given(st.lists(st.integers(0, 50), min_size=1, max_size=60))
def test_a_percentile_is_the_first_value_that_more_than_its_share_do_not_exceed(values):
    found = spread(values)
    for share, value in ((50, found.p50), (90, found.p90), (95, found.p95), (99, found.p99)):
        assert sum(one <= value for one in values) > share / 100 * len(values) - 1e-9
        assert sum(one < value for one in values) <= share / 100 * len(values)
        assert value in values
    assert (found.total, found.least, found.most) == (sum(values), min(values), max(values))


def test_weighted_percentiles():
    found = weighted_percentiles(np.array([3.0, 1.0, 2.0]), np.array([1, 89, 10]))
    assert found == {"p50": 1.0, "p90": 2.0, "p95": 2.0, "p99": 2.0}
    assert weighted_percentiles(np.array([]), np.array([])) is None


def test_recordings_of_one_session_are_found():
    count = SessionCount()
    for session, lengths in {"a": (1, 2, 3, 4), "b": (1, 2, 3, 5), "c": (1, 2), "d": (1, 2), "e": (9, 2, 3)}.items():
        for length in lengths:
            count.add(Record(0.0, length, 1, session=session, after_s=2.0))
    count.add(Record(0.0, 1, 1))
    found = count.sessions()
    assert (found.num, found.num_without, found.num_judged, found.num_duplicates) == (5, 1, 3, 1)
    assert (found.turns.total, found.turns.most, found.think_s.mean) == (15, 4, 2.0)


def test_tenants_and_unordered_times():
    rows = [
        Record(0.0, 5, 1, tenant="b"), Record(3.0, 7, 2, tenant="a"), Record(1.0, 7, 2, tenant="a"), Record(2.0, 1, 1),
    ]  # fmt: skip
    found = info_of(rows, block_tokens=None)
    assert [(one.name, one.num_requests, one.num_input_tokens, one.num_output_tokens) for one in found.tenants] == [
        ("a", 2, 14, 4), ("b", 1, 5, 1)
    ]  # fmt: skip
    assert (found.num_unordered, found.first_unordered_line) == (1, 3)
    assert any("go back, first in line 3: 1 request earlier" in text for text in traps(found))


def test_times_of_a_session_of_its_own_make_no_rate_and_no_intervals_between_sessions():
    rows = [
        prompt_of((0, 0, 12), at=0.0, session="a"), prompt_of((0, 0, 12), at=6.0, session="a"),
        *(prompt_of((0, 0, 12), at=0.0, session=session) for session in "bcd"),
    ]  # fmt: skip
    found = info_of(rows, 4, sessions_start_together=True)
    assert found.arrivals is None
    assert found.num_unordered == 0
    # Each finds the first two blocks of three, but only a's second request finds those of its own session.
    assert found.prompts.reuse.num_reused == 4 * 2
    assert found.prompts.reuse.intervals_s == dict.fromkeys(("p50", "p90", "p95", "p99"), 6.0)
    assert any("from the start of each session" in text for text in traps(found))


def test_a_trace_without_requests_is_refused():
    with pytest.raises(InputError, match=r"^here\.jsonl: no request that can be read \(2 lines skipped\)$"):
        info_of([], num_skipped=2, named=[(1, "x"), (2, "y")])
