"""What a request costs, counted instead of timed: SimPy events, advances, schedules, block operations.

Bounds follow from what may wake an instance, so that a loop over steps or tokens shows at once, whatever the machine.
"""

from __future__ import annotations

import functools

import pytest

from tests.cost_cases import BLOCK_SIZE, CASES, OUTPUT_TOKENS, PROMPT_TOKENS, TOKEN_BUDGET, Cost, count, prepare

NUM_REQUESTS = 1500
# A stretch of decode steps ends when a request arrives (1), an instance then takes its prompt in steps of the token
# budget (1 where the prompt fits the budget, and now and then another one where two prompts share a step), and the
# stretch ends again when a request finishes (1).
NUM_PREFILL_STEPS = -(-PROMPT_TOKENS // TOKEN_BUDGET)
MAX_ADVANCES = 1 + NUM_PREFILL_STEPS + 1 + 0.1
# Each advance sleeps once, an arrival in the middle of one sets the alarm anew, and the arrival itself is an event.
MAX_EVENTS = MAX_ADVANCES + 1 + 1
NUM_BLOCKS = -(-(PROMPT_TOKENS + OUTPUT_TOKENS - 1) // BLOCK_SIZE)
# A block is taken, gets its key, is given back; and what it held before is forgotten. Of a hit: taken and given back.
MAX_BLOCK_OPERATIONS = 4 * NUM_BLOCKS


@functools.cache
def cost(name: str, output_tokens: int = OUTPUT_TOKENS, advancing: bool = True) -> Cost:
    return count(prepare(name, NUM_REQUESTS, output_tokens=output_tokens, advancing=advancing))


SYNTHETIC = [name for name in CASES if name != "d"]


@pytest.mark.parametrize("name", SYNTHETIC)
def test_an_instance_wakes_for_an_arrival_a_prefill_and_a_finish(name: str) -> None:
    assert cost(name).advances <= MAX_ADVANCES
    assert cost(name).schedules <= MAX_ADVANCES


@pytest.mark.parametrize("name", SYNTHETIC)
def test_a_request_is_a_handful_of_events(name: str) -> None:
    assert 2 < cost(name).events <= MAX_EVENTS


@pytest.mark.parametrize("name", SYNTHETIC)
def test_a_block_is_touched_a_fixed_number_of_times(name: str) -> None:
    assert NUM_BLOCKS < cost(name).block_operations <= MAX_BLOCK_OPERATIONS


@pytest.mark.parametrize("output_tokens", [50, 800])
def test_longer_answers_cost_blocks_and_nothing_else(output_tokens: int) -> None:
    assert cost("a", output_tokens).advances <= MAX_ADVANCES
    assert cost("a", output_tokens).events <= MAX_EVENTS
    num_blocks = -(-(PROMPT_TOKENS + output_tokens - 1) // BLOCK_SIZE)
    assert cost("a", output_tokens).block_operations <= 4 * num_blocks


def test_stepping_would_break_these_bounds() -> None:
    """At 6/s for about 2 s each, some 13 requests share a step: each then pays for 200 / 13 steps."""
    assert cost("a", advancing=False).advances > 4 * MAX_ADVANCES


def test_a_longer_run_costs_no_more_per_request() -> None:
    longer = count(prepare("a", 4 * NUM_REQUESTS))
    assert longer.events <= 1.05 * cost("a").events
    assert longer.block_operations <= MAX_BLOCK_OPERATIONS


def test_a_trace_costs_its_prefill_steps() -> None:
    """Every step with a prefill chunk is an advance of its own; between them the bounds above hold."""
    prepared = prepare("d", 300)
    found = count(prepared)
    rows = prepared.metrics.table()
    new_tokens = rows["num_prompt_tokens"] - rows["num_cached_tokens"]
    num_chunks = (new_tokens // 2048 + 1).mean()
    # Another step for each chunk that the budget cut in two, since its step was shared.
    assert found.advances <= 2 + 2 * num_chunks
    num_blocks = ((rows["num_prompt_tokens"] + rows["num_output_tokens"]) // 128 + 1).mean()
    assert found.block_operations <= 4 * num_blocks
