"""Generators fitted to traces: what they draw, what they are like, and what cannot be fitted."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from collections import Counter
from functools import cache
from itertools import islice, pairwise
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest
import yaml
from pydantic import ValidationError

from simulator import cli, scenario
from simulator.request import Request
from simulator.workload import TenantSpec, WorkloadSpec, open_workload
from simulator.workload.readers import open_trace
from simulator.workload.records import Record
from simulator.workload.segments import first_segment
from simulator.workload.tables import table_of, value_at
from simulator.workload.tree import grow
from simulator.workload.tree_spec import TreeSpec
from simulator.workload_fit import another, comparison, lasting, returning
from simulator.workload_fit.fit import Fit, fit
from simulator.workload_fit.likeness import measure, of_records
from simulator.workload_fit.observed import observe, read
from simulator.workload_fit.written import entry, text

TRACES = Path(__file__).parents[1] / "scenarios" / "traces"
BLOCK = 512
SMALL = {
    "arrivals": {"process": "poisson", "rate_per_s": 2},
    "num_requests": 3000,
    "block_tokens": 16,
    "common_tokens": 64,
    "length_classes": [400],
    "turn_groups": [1],
    "thread_tokens": [100, 200, 400, 900],
    "another": [[0.5, 0.7], [0.3, 0.6]],
    "pause": [5, 10, 20, 60],
    "repeats": 0.05,
    "falls_back": [0.1, 0.2],
    "extended": {"kept": [0.95, 1, 1, 1], "new_tokens": [[20, 80], [40, 200]]},
    "fallen": {"kept": [0.1, 0.6], "new_tokens": [[300, 500]]},
    "new_output_tokens": [[10, 30], [20, 60]],
    "output_tokens": [[5, 25]],
}


def requests(source: dict, seed: int = 0, number: int | None = None) -> list[Request]:
    return list(islice(grow(TenantSpec(name="a", tree=TreeSpec.model_validate(source)), 0, seed, 0), number))


def as_records(drawn: list[Request]) -> list[Record]:
    return [
        Record(one.arrival_s, one.num_prompt_tokens, one.oracle_num_output_tokens, one.prompt) for one in drawn
    ]


def description(one: Request) -> tuple:
    return one.arrival_s, one.prompt, one.oracle_num_output_tokens, one.session


@cache
def trace(name: str) -> list[Record]:
    path = TRACES / f"mooncake_{name}.jsonl.gz"
    return read(open_trace(path), path)


@cache
def half_fit(name: str) -> Fit:
    """To the first half, for as many requests as the whole trace has."""
    rows = trace(name)
    return fit(rows[: len(rows) // 2], BLOCK, num_requests=len(rows))


# --- the generator ----------------------------------------------------------------------------------------------------


def test_a_table_keeps_the_mean_and_the_quantiles_of_its_sample():
    sample = np.random.default_rng(1).lognormal(6, 1.2, 7001)
    table = tuple(table_of(sample, 40))
    drawn = [value_at(table, (k + 0.5) / 40_000) for k in range(40_000)]
    assert fmean(drawn) == pytest.approx(sample.mean(), rel=1e-4)
    for share in (0.1, 0.5, 0.9):
        assert np.quantile(drawn, share) == pytest.approx(np.quantile(sample, share), rel=0.03)
    assert table_of(np.array([3.0, 1.0]), 40) == [1.0, 3.0]


def test_prompts_are_what_they_say_and_arrivals_never_go_back():
    drawn = requests(SMALL)
    assert len(drawn) == SMALL["num_requests"]
    assert all(one.arrival_s <= two.arrival_s for one, two in pairwise(drawn))
    for one in drawn:
        assert one.num_prompt_tokens == sum(length for _, _, length in one.prompt)
        assert all(length > 0 for _, _, length in one.prompt)
        assert one.prompt[0] == (0, 0, 64), "the common text comes first"


def test_each_later_turn_keeps_whole_blocks_of_the_prompt_before_it():
    """And nothing that is not in it: the front of the thread's previous prompt, cut at a block's end."""
    previous: dict[int, Request] = {}
    num_later = num_same = 0
    for one in requests(SMALL):
        before = previous.get(one.session)
        previous[one.session] = one
        if before is None:
            continue
        num_later += 1
        if before.num_prompt_tokens == one.num_prompt_tokens and before.prompt[:-1] == one.prompt[:-1]:
            num_same += before.prompt[-1][:1] == one.prompt[-1][:1]
            continue
        shared = 0
        for mine, its in zip(one.prompt, before.prompt, strict=False):
            if mine[:2] != its[:2] or mine[0] is None:
                break
            shared += min(mine[2], its[2])
            if mine[2] != its[2]:
                break
        assert shared >= 64
        assert shared % 16 == 0
    assert num_later > 1000
    assert num_same / num_later == pytest.approx(SMALL["repeats"], abs=0.02)


def test_only_texts_that_come_again_have_names():
    drawn = requests(SMALL)
    ends = {one.session: place for place, one in enumerate(drawn)}
    over = [one for place, one in enumerate(drawn[:2500]) if ends[one.session] == place]
    readers = Counter(segment for one in drawn for segment, _, _ in one.prompt)
    private = sum(one.prompt[-1][0] is None for one in over)
    assert private / len(over) > 0.9  # the others end with a text that was there before
    assert all(readers[one.prompt[-1][0]] > 1 for one in over if one.prompt[-1][0] is not None)


def test_the_same_seed_draws_the_same_and_another_seed_or_replication_does_not():
    first = [description(one) for one in requests(SMALL, number=300)]
    assert [description(one) for one in requests(SMALL, number=300)] == first
    assert [description(one) for one in requests(SMALL, seed=1, number=300)] != first
    longer = requests({**SMALL, "num_requests": 9000}, number=300)
    assert [description(one) for one in longer] == first, "a longer run extends a shorter one"


def test_another_tenant_changes_nothing_and_shares_nothing():
    alone = {"name": "a", "tree": SMALL}
    other = {"name": "b", "tree": {**SMALL, "num_requests": 500}}
    first = list(open_workload(WorkloadSpec.model_validate({"tenants": [alone]}), 3, 1))
    both = list(open_workload(WorkloadSpec.model_validate({"tenants": [alone, other]}), 3, 1))
    assert [description(one) for one in both if one.tenant == 0] == [description(one) for one in first]
    theirs = {segment for one in both if one.tenant == 1 for segment, _, _ in one.prompt if segment is not None}
    assert min(theirs) >= first_segment(1)


def test_threads_of_a_pool_all_begin_before_any_begins_anew():
    source = {key: value for key, value in SMALL.items() if key != "pause"} | {"pool": 200, "another": [[0.5] * 2] * 2}
    drawn = requests(source)
    begun = [place for place, one in enumerate(drawn) if one.session not in {two.session for two in drawn[:place]}]
    turns = Counter(one.session for one in drawn)
    first_pool = {drawn[place].session for place in begun[:200]}
    # The 201st thread begins when the first 200 have ended: none of them comes later.
    assert all(one.session not in first_pool for one in drawn[begun[200] :])
    assert fmean(turns[session] for session in first_pool) == pytest.approx(2, abs=4 * (2 / 200) ** 0.5)


def test_threads_that_have_begun_are_chosen_before_new_ones_as_the_weight_says():
    """Each goes on forever: after n requests, the number of threads begun grows by w (N - b) / (w (N - b) + b)."""
    size, weight = 400, 0.25
    source = {key: value for key, value in SMALL.items() if key != "pause"} | {
        "pool": size, "unbegun_weight": weight, "another": [[1.0] * 2] * 2, "num_requests": 1500,
    }  # fmt: skip
    expected = 0.0
    for _ in range(1500):
        new = weight * (size - expected)
        expected += new / (new + expected) if expected else 1.0
    begun = [len({one.session for one in requests(source, seed)}) for seed in range(8)]
    assert fmean(begun) == pytest.approx(expected, abs=3 * 10 / 8**0.5)  # a binomial's deviation is at most 10
    assert expected < 320


def test_answers_tell_whether_a_thread_goes_on():
    """Rows of ``another`` are by class of prompts, and within it by class of answers."""
    source = {**SMALL, "answer_classes": [20], "turn_groups": [], "num_requests": 4000,
              "another": [[0.9], [0.1], [0.6], [0.2]], "repeats": 0.0, "falls_back": None, "fallen": None,
              "new_output_tokens": [[10, 30]], "output_tokens": [[10, 30]], "pause": [1, 1]}  # fmt: skip
    drawn = requests(source)
    last = {one.session: place for place, one in enumerate(drawn)}
    for prompt_class, answer_class in ((0, 0), (0, 1), (1, 0), (1, 1)):
        goes_on = [last[one.session] != place for place, one in enumerate(drawn[:3900])
                   if (one.num_prompt_tokens >= 400) == prompt_class
                   and (one.oracle_num_output_tokens >= 20) == answer_class]  # fmt: skip
        (chance,) = source["another"][2 * prompt_class + answer_class]
        assert fmean(goes_on) == pytest.approx(chance, abs=4 * (chance * (1 - chance) / len(goes_on)) ** 0.5)


def test_heads_are_as_popular_as_their_weights():
    heads = [{"tokens": 320, "weight": 3}, {"tokens": 160, "weight": 1}]
    source = {
        "arrivals": {"process": "poisson", "rate_per_s": 1}, "num_requests": 4000, "heads": heads, "headless": 4,
        "thread_tokens": [10, 90], "new_output_tokens": [[7]],
    }  # fmt: skip
    drawn = requests(source)
    counts = Counter(one.prompt[0][2] if len(one.prompt) > 1 else 0 for one in drawn)
    assert counts[320] / 4000 == pytest.approx(3 / 8, abs=0.03)
    assert counts[160] / 4000 == pytest.approx(1 / 8, abs=0.02)
    assert counts[0] / 4000 == pytest.approx(1 / 2, abs=0.03)


def test_a_long_stream_holds_only_what_can_still_be_read():
    """40,000 requests take no more memory than 10,000: a million takes as much."""
    stream = grow(TenantSpec(name="a", tree=TreeSpec.model_validate({**SMALL, "num_requests": 10**6})), 0, 0, 0)
    tracemalloc.start()
    try:
        peaks = []
        for number in (10_000, 30_000):
            tracemalloc.reset_peak()
            for _ in islice(stream, number):
                pass
            peaks.append(tracemalloc.get_traced_memory()[1])
    finally:
        tracemalloc.stop()
    assert peaks[1] < 1.5 * peaks[0]
    assert peaks[1] < 20e6


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"duration": 5}, "exactly one of num_requests and duration"),
        ({"pool": 5}, "exactly one of pause and pool"),
        ({"pause": None}, "exactly one of pause and pool"),
        ({"another": None}, "extended and output_tokens and pause and repeats"),
        ({"extended": None}, "extended: missing"),
        ({"fallen": None}, "falls_back and fallen go together"),
        ({"headless": 2}, "headless would change nothing"),
        ({"length_classes": [400, 300]}, "each is above the one before"),
        ({"another": [[0.5, 0.7]]}, "another: 1 given for 2 classes"),
        ({"answer_classes": [20]}, "another: 2 given for 2 classes of length times 2 of answers"),
        ({"answer_classes": [20, 20]}, "each is above the one before"),
        ({"unbegun_weight": 0.5}, "unbegun_weight would change nothing without a pool"),
        ({"another": [[0.5], [0.5]]}, "a row of 1 for 2 groups"),
        ({"another": [[0.5, 1.5], [0.5, 0.5]]}, "1.5"),
        ({"pause": [9, 8]}, "never fall"),
        ({"thread_tokens": [0], "common_tokens": None}, "at least one token"),
        ({"extended": {"kept": [1.5], "new_tokens": [[5]]}}, "not above 1"),
        ({"output_tokens": [[1], [2], [3]]}, "3 given for 2 classes"),
        ({"colour": 1}, "colour"),
    ],
)
def test_a_key_that_does_nothing_or_cannot_be_is_refused(change, complaint):
    TreeSpec.model_validate(SMALL)
    with pytest.raises(ValidationError, match=complaint):
        TreeSpec.model_validate({**SMALL, **change})


# --- the fit ----------------------------------------------------------------------------------------------------------


def test_the_second_half_of_the_conversation_trace_is_hit_as_the_generator_says():
    """Fitted to the first half: the hit curve of the second within 3 points, at each seed."""
    rows = trace("conversation")
    sides = comparison.compare(rows, half_fit("conversation"), len(rows) // 2, BLOCK, seeds=(0, 1))
    hits = [side for side in sides if side.figure.startswith("LRU")]
    assert len(hits) == 5
    for side in hits:
        assert all(abs(value - side.trace) < 3 for value in side.generator), side


@pytest.mark.parametrize("name", ["conversation", "synthetic"])
def test_a_fit_is_small_and_like_what_it_was_fitted_to(name):
    found, rows = half_fit(name), trace(name)
    assert len(text([entry(name, found.source)], ["a comment"]).encode()) < 20_000
    for side in comparison.compare(rows[: len(rows) // 2], found, 0, BLOCK):
        if side.is_hit or "mean" in side.figure or side.figure == "requests/s":
            assert side.is_close, side


def test_the_second_half_of_the_synthetic_trace_is_hit_as_the_generator_says():
    """Its halves differ by 36 points of ideal hits: it is a pool that is worked off. Means over seeds: they differ."""
    rows, found = trace("synthetic"), half_fit("synthetic")
    half = len(rows) // 2
    assert found.spec.pool is not None
    assert half_fit("conversation").spec.pool is None
    sides = [side for side in comparison.compare(rows, found, half, BLOCK, range(6)) if side.is_hit]
    assert sides[0].trace - measure(of_records(rows[:half]), BLOCK).figures[sides[0].figure] > 35
    for side in sides:
        assert side.is_close, side


def test_a_pool_fitted_to_the_whole_synthetic_trace_is_like_both_of_its_halves():
    """So it is the first half that says too little, not the generator: its curve in the second half, on average."""
    rows = trace("synthetic")
    found = fit(rows, BLOCK)
    assert found.spec.pool is not None
    for side in comparison.compare(rows, found, len(rows) // 2, BLOCK, seeds=range(6)):
        if side.is_hit:
            assert side.is_close, side


def test_the_parameters_that_a_trace_was_drawn_from_are_found_again():
    source = {**SMALL, "num_requests": 12_000, "repeats": 0.0, "falls_back": None, "fallen": None}
    source["extended"] = {"kept": [1.0], "new_tokens": [[40, 80], [40, 200]]}
    found = fit(as_records(requests(source)), 16).source
    assert found["arrivals"]["rate_per_s"] == pytest.approx(2, rel=0.05)
    assert found["common_tokens"] == 64
    assert "pool" not in found
    assert fmean(found["pause"]) == pytest.approx(fmean(source["pause"]), rel=0.05)
    assert fmean(found["thread_tokens"]) == pytest.approx(400, rel=0.05)
    edges = found["length_classes"]
    num_answers = len(found["answer_classes"]) + 1
    first_turns = [fmean(row[0] for row in found["another"][start : start + num_answers])
                   for start in range(0, len(found["another"]), num_answers)]  # fmt: skip
    below = [chance for chance, past in zip(first_turns, [*edges, 10**9], strict=True) if 100 < past <= 400]
    above = [chance for chance, first in zip(first_turns, [0, *edges], strict=True) if first >= 400]
    assert below
    assert above
    assert below == pytest.approx([0.5] * len(below), abs=0.06)
    assert above == pytest.approx([0.3] * len(above), abs=0.06)
    assert fmean(found["extended"]["kept"]) > 0.99
    assert fmean(fmean(lengths) for lengths in found["output_tokens"]) == pytest.approx(15, rel=0.05)


@pytest.mark.parametrize("share", [0.4, 0.7])
def test_the_size_of_a_pool_is_found_before_it_is_worked_off(share):
    source = {key: value for key, value in SMALL.items() if key != "pause"} | {
        "pool": 3000, "another": [[0.6, 0.6], [0.6, 0.6]], "repeats": 0.0, "falls_back": None, "fallen": None,
        "num_requests": int(share * 7500),
    }  # fmt: skip
    found = fit(as_records(requests(source)), 16).source
    assert found["pool"] == pytest.approx(3000, rel=0.15)
    assert np.mean(found["another"]) == pytest.approx(0.6, abs=0.06)


def test_a_pool_is_fitted_so_that_it_lasts_but_not_at_any_price():
    """Of 2,000 requests of a pool the first 1,000: it lasts for the rest, not for a hundred times as many."""
    source = {key: value for key, value in SMALL.items() if key != "pause"} | {
        "pool": 800, "another": [[0.6, 0.6], [0.6, 0.6]], "repeats": 0.0, "falls_back": None, "fallen": None,
        "num_requests": 1000,
    }  # fmt: skip
    records = as_records(requests(source))
    alike = fit(records, 16)
    assert alike.spec.unbegun_weight == 1
    most = 1.2 * lasting.num_requests_of_pool(alike.spec)
    longer = fit(records, 16, num_requests=round(most))
    assert longer.spec.unbegun_weight < 1
    assert longer.spec.num_requests == round(most)
    assert lasting.num_requests_of_pool(longer.spec) >= most
    endless = fit(records, 16, num_requests=100_000)
    assert endless.spec == alike.spec.model_copy(update={"num_requests": 100_000})


def test_pauses_that_a_trace_cuts_off_are_counted():
    """Threads whose next turn comes after the end go on as often as others: half of them, of 100 s, in 150 s."""
    source = {**SMALL, "num_requests": 3000, "arrivals": {"process": "poisson", "rate_per_s": 20}, "pause": [20, 100],
              "another": [[0.5, 0.5]] * 2, "repeats": 0.0, "falls_back": None, "fallen": None}  # fmt: skip
    seen = observe(as_records(requests(source)), 16)
    where = another.cells(seen.num_tokens, seen.num_outputs, seen.turn, 80)
    found = returning.paused(seen, where, seen.times_s)
    naive = np.mean(seen.goes_on[seen.turn == 0] >= 0)
    chance = where.of(found.another)[seen.turn == 0].mean()
    assert naive < 0.4
    assert chance == pytest.approx(0.5, abs=0.05)


def test_popular_heads_are_no_threads():
    """Two system prompts, each behind the common text, and questions of which nothing comes again."""
    heads = [{"tokens": 320, "weight": 3}, {"tokens": 160, "weight": 1}]
    source = {
        "arrivals": {"process": "gamma", "rate_per_s": 3, "cv": 2.0}, "num_requests": 4000, "common_tokens": 32,
        "heads": heads, "thread_tokens": [20, 90], "new_output_tokens": [[7]],
    }  # fmt: skip
    found = fit(as_records(requests(source)), 16).source
    assert found["common_tokens"] == 32
    assert [head["tokens"] for head in found["heads"]] == [320, 160]
    assert found["heads"][0]["weight"] / 4000 == pytest.approx(0.75, abs=0.03)
    assert "another" not in found
    assert found["arrivals"]["cv"] == pytest.approx(2, rel=0.2)


def test_a_rate_that_drifts_becomes_a_profile():
    rates = [1, 8, 2, 12]
    source = {**SMALL, "arrivals": {"process": "profile", "rates_per_s": rates, "period": 1000}, "num_requests": 5700}
    found = fit(as_records(requests(source)), 16).source["arrivals"]
    assert found["process"] == "profile"
    parts = np.array(found["rates_per_s"])
    assert parts.max() / parts.min() > 5


# --- the command ------------------------------------------------------------------------------------------------------


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as ended:
        cli.main(["workload", "fit", *map(str, arguments)])
    return int(ended.value.code or 0)


def write_mooncake(path: Path, number: int) -> Path:
    rows = [
        {"timestamp": 500 * place, "input_length": 1024, "output_length": 9, "hash_ids": [0, 1 + place % 7]}
        for place in range(number)
    ]
    path.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))
    return path


def test_the_command_writes_a_block_that_a_scenario_takes(tmp_path, capsys):
    path = TRACES / "mooncake_synthetic.jsonl.gz"
    assert run(path, "--first-half", "--compare", "-o", tmp_path / "tenants.yaml") == 0
    printed = capsys.readouterr().out
    assert "LRU 30% hit %" in printed
    assert "The second half" in printed
    assert "Not alike" in printed, "the table says so where the generator differs: in the second half's rate"
    written = (tmp_path / "tenants.yaml").read_text()
    assert written.startswith("# Fitted by kvcast workload fit to mooncake_synthetic.jsonl.gz")
    assert "1,996 requests" in written
    whole = yaml.safe_load((TRACES.parent / "shared_prefix.yaml").read_text())
    loaded = scenario.parse(yaml.safe_dump({**whole, **yaml.safe_load(written)}))
    assert loaded.workload.tenants[0].tree == half_fit("synthetic").spec


def test_without_a_file_it_prints_yaml_and_nothing_else(tmp_path, capsys):
    path = write_mooncake(tmp_path / "small.jsonl.gz", 400)
    assert run(path, "--compare", "--name", "chat", "--requests", 500) == 0
    (tenant,) = yaml.safe_load(capsys.readouterr().out)["workload"]["tenants"]
    assert tenant["name"] == "chat"
    assert tenant["tree"]["num_requests"] == 500


@pytest.mark.parametrize(
    ("make", "arguments", "complaint"),
    [
        (lambda path: write_mooncake(path, 150), [], "150 requests, expected at least 200"),
        (lambda path: write_mooncake(path, 300), ["--first-half"], "150 requests, expected at least 200"),
        (lambda path: write_mooncake(path, 300), ["-o", "no/such/folder/out.yaml"], "cannot write it"),
        (lambda path: write_mooncake(path, 300), ["--format", "mooncak"], "did you mean"),
        (lambda path: write_mooncake(path, 300), ["--name", ""], "--name: is empty"),
        (lambda path: path, [], "cannot read"),
    ],
)
def test_what_cannot_be_fitted_is_said_in_one_line(make, arguments, complaint, tmp_path, capsys):
    assert run(make(tmp_path / "trace.jsonl.gz"), *arguments) == 2
    error = capsys.readouterr().err
    assert complaint in error
    assert error.count("\n") == 1


def test_a_trace_without_texts_or_times_is_refused(tmp_path, capsys):
    lengths = tmp_path / "azure.csv"
    rows = "".join(f"2023-11-16 18:{k // 60:02d}:{k % 60:02d}.0000000,{100 + k},{k + 1}\n" for k in range(300))
    lengths.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + rows)
    assert run(lengths) == 2
    assert "300 of 300 requests without a word on the text they share" in capsys.readouterr().err
    at_once = tmp_path / "at_once.jsonl"
    line = json.dumps({"timestamp": 0, "input_length": 600, "output_length": 9, "hash_ids": [0, 1]}) + "\n"
    at_once.write_text(line * 300)
    assert run(at_once) == 2
    assert "all requests come at once" in capsys.readouterr().err


def test_the_trace_itself_is_never_written_over(tmp_path, capsys):
    path = write_mooncake(tmp_path / "trace.jsonl.gz", 300)
    before = path.read_bytes()
    assert run(path, "-o", path) == 2
    assert "is the input" in capsys.readouterr().err
    assert path.read_bytes() == before
