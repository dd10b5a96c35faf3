"""The random cases for the comparison with vLLM: every case can be played, and the corpus reaches every rule."""

from __future__ import annotations

import ast
import itertools
import json
import sys
from pathlib import Path

import pytest

import simulator.parity
from simulator.parity.cases import DIALECTS, FAMILIES, FORMAT, Case, generate_case, generate_cases

NUM_CASES = 60
SINCE_032 = {"watermark": 0.0, "max_num_active_seqs": None, "long_prefill_token_threshold_adaptive": False}


@pytest.fixture(scope="module")
def corpus() -> list[Case]:
    """Cases of every family and dialect."""
    return [
        case
        for family, dialect in itertools.product(FAMILIES, DIALECTS)
        for case in generate_cases(family, NUM_CASES, dialect=dialect)
    ]


def num_prompt_tokens(request: dict) -> int:
    return sum(length for _, _, length in request["prompt"])


def lookahead(engine: dict) -> int:
    return engine["speculative"]["num_speculative_tokens"] if engine["speculative"] else 0


def test_a_case_follows_from_its_name_alone():
    first = generate_case("edge", 7)
    generate_case("basic", 1)
    assert generate_case("edge", 7) == first
    assert generate_case("edge", 8)["requests"] != first["requests"]
    assert generate_case("async", 7)["requests"] != first["requests"]


def test_consecutive_seeds():
    cases = list(generate_cases("basic", 3, first_seed=5))
    assert cases == [generate_case("basic", seed) for seed in (5, 6, 7)]


@pytest.mark.parametrize("names", [("bassic", 0), ("basic", 0, "0.24"), ("basic", 0, "0.32", "huge")])
def test_unknown_words_are_refused(names: tuple):
    with pytest.raises(ValueError, match="is none of"):
        generate_case(*names)


def test_cases_are_json(corpus: list[Case]):
    for case in corpus:
        assert json.loads(json.dumps(case)) == case
        assert case["format"] == FORMAT


def test_every_request_can_run_alone(corpus: list[Case]):
    """vLLM refuses to start otherwise, and a request which never fits blocks the queue forever."""
    for case in corpus:
        engine = case["engine"]
        assert (engine["num_gpu_blocks"] - 1) * engine["block_size"] >= engine["max_model_len"]
        for request in case["requests"]:
            assert 1 <= num_prompt_tokens(request) < engine["max_model_len"]
            assert 1 <= request["num_output_tokens"] <= request["max_tokens"]


def test_every_budget_is_one_that_vllm_accepts_and_that_makes_progress(corpus: list[Case]):
    for case in corpus:
        engine = case["engine"]
        budget, num_seqs = engine["max_num_batched_tokens"], engine["max_num_seqs"]
        assert budget >= num_seqs
        assert engine["max_num_active_seqs"] is None or 1 <= engine["max_num_active_seqs"] <= num_seqs
        assert engine["long_prefill_token_threshold"] <= engine["max_model_len"]
        if engine["speculative"]:
            assert budget > lookahead(engine) + num_seqs, "a padded admission needs 1 + K tokens at once"
        if not engine["enable_chunked_prefill"]:
            slots = num_seqs if engine["speculative"] and engine["speculative"]["method"] == "draft_model" else 0
            assert budget - slots >= engine["max_model_len"], "a whole prompt must fit one step"


def test_known_defects_of_vllm_are_kept_out(corpus: list[Case]):
    for case in corpus:
        engine = case["engine"]
        adapters = {request["lora"] for request in case["requests"]} - {None}
        assert engine["max_loras"] or not adapters
        if engine["async_scheduling"]:
            assert len(adapters) <= engine["max_loras"]
            assert not engine["speculative"] or engine["speculative"]["method"] != "ngram"
        if engine["speculative"] and engine["long_prefill_token_threshold"]:
            assert engine["long_prefill_token_threshold"] > lookahead(engine)
        if case["dialect"] == "0.23" and engine["async_scheduling"] and engine["speculative"]:
            assert not any(action.get("reset_running") for action in case["actions"])


def test_requests_and_actions_are_in_order_and_name_each_other(corpus: list[Case]):
    for case in corpus:
        steps = {request["id"]: request["step"] for request in case["requests"]}
        assert len(steps) == len(case["requests"])
        assert list(steps.values()) == sorted(steps.values())
        assert [a["step"] for a in case["actions"]] == sorted(a["step"] for a in case["actions"])
        for action in case["actions"]:
            assert action["step"] >= 0
            if action["action"] == "abort":
                assert action["when"] in ("before", "during")
                assert all(steps[request_id] <= action["step"] for request_id in action["ids"])
            else:
                assert isinstance(action["reset_running"], bool)


def test_dialects_differ_only_in_what_the_older_one_lacks():
    for family, seed in itertools.product(FAMILIES, range(NUM_CASES)):
        new, old = generate_case(family, seed, "0.32"), generate_case(family, seed, "0.23")
        assert old["engine"] == new["engine"] | SINCE_032
        assert old["requests"] == new["requests"]
        assert len(old["actions"]) == len(new["actions"])


def test_acceptance_fits_the_drafts(corpus: list[Case]):
    for case in corpus:
        for request in case["requests"]:
            assert all(0 <= number <= lookahead(case["engine"]) for number in request["acceptance"] or [])


def test_families_are_what_they_say():
    cases = {family: list(generate_cases(family, NUM_CASES)) for family in FAMILIES}
    assert all(case["engine"]["policy"] == "priority" for case in cases["priority"])
    assert all(case["engine"]["async_scheduling"] for case in cases["async"])
    assert all(case["engine"]["speculative"] for case in cases["speculation"])
    for family in ("basic", "pressure", "priority"):
        assert not any(case["engine"]["async_scheduling"] or case["engine"]["speculative"] for case in cases[family])
    both = [c["engine"]["async_scheduling"] and c["engine"]["policy"] == "priority" for c in cases["edge"]]
    assert sum(both) > NUM_CASES // 8


def test_the_corpus_takes_every_option_both_ways(corpus: list[Case]):
    new = [case["engine"] for case in corpus if case["dialect"] == "0.32"]
    for option in new[0]:
        values = {json.dumps(engine[option]) for engine in new}
        assert len(values) > 1, option
    methods = {engine["speculative"]["method"] for engine in new if engine["speculative"]}
    assert methods == {"eagle", "mtp", "draft_model", "ngram"}
    actions = [json.dumps(action, sort_keys=True) for case in corpus for action in case["actions"]]
    for word in ('"before"', '"during"', '"reset_running": true', '"reset_running": false'):
        assert any(word in action for action in actions), word


def test_prompts_share_prefixes_quote_answers_and_are_resent(corpus: list[Case]):
    """Counted over the corpus: without these a prefix cache has nothing to decide."""
    quotes = resends = shared = 0
    for case in corpus:
        answers = {request["output_segment"] for request in case["requests"]} - {None}
        prompts = [tuple(map(tuple, request["prompt"])) for request in case["requests"]]
        named = [prompt for prompt in prompts if prompt[0][0] is not None]
        quotes += sum(any(segment in answers for segment, _, _ in prompt) for prompt in prompts)
        resends += len(named) - len(set(named))
        first = [prompt[0][0] for prompt in named]
        shared += len(first) - len(set(first))
    num_requests = sum(len(case["requests"]) for case in corpus)
    assert quotes > num_requests / 10
    assert resends > num_requests / 20
    assert shared > num_requests / 4


def test_requests_stop_early_at_the_limit_and_past_it(corpus: list[Case]):
    requests = [(request, case["engine"]) for case in corpus for request in case["requests"]]
    early = [r for r, _ in requests if r["num_output_tokens"] < r["max_tokens"]]
    past = [r for r, engine in requests if num_prompt_tokens(r) + r["max_tokens"] > engine["max_model_len"]]
    assert early
    assert past
    assert len(early) + len(past) < len(requests)


@pytest.mark.parametrize("family", FAMILIES)
def test_large_cases_are_for_speed(family: str):
    case = generate_case(family, 0, size="large")
    assert len(case["requests"]) == 500
    assert (case["engine"]["num_gpu_blocks"] - 1) * case["engine"]["block_size"] >= case["engine"]["max_model_len"]


def test_the_harness_needs_nothing_but_vllm():
    """It runs in the engine's interpreter, which has none of our dependencies."""
    home = Path(simulator.parity.__file__).parent
    for file in ("engine_harness.py", "vllm_engine.py"):
        tree = ast.parse((home / file).read_text(encoding="utf-8"))
        names = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}
        names |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
        foreign = {name for name in names if name.split(".")[0] not in sys.stdlib_module_names}
        assert foreign <= {"simulator.parity.vllm_engine"}
