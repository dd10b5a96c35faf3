"""llm-d's weighted scores: the worked cases, every scorer by its formula, and who is shed."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from routing_cases import BLOCK_SIZE, request, send

from simulator.errors import InputError
from simulator.experiment import run
from simulator.routing import Refuse, Router, Send, View, make_router, parse_routing
from simulator.routing.fleet import Fleet
from simulator.routing.polled import PolledMetrics
from simulator.scenario import Scenario, parse

KEYS = list(range(8))
POLLED = ("queue", "running_requests", "kv_cache_utilization", "load_aware")


class Exporter:
    """An engine with these metrics."""

    def __init__(self, waiting: int = 0, running: int = 0, usage: float = 0.0) -> None:
        self.metrics = waiting, running, usage

    def metrics_at(self, time_s: float) -> tuple[int, int, float]:
        return self.metrics


def polling(entry, engines: list[Exporter]) -> tuple[Router, View]:
    """A router that has just polled these engines."""
    router = make_router(parse_routing(entry), len(engines), random.Random(0))
    view = router.make_view(Fleet(len(engines), BLOCK_SIZE))
    if router.poll_s is not None:
        view.polled = PolledMetrics(engines, router.poll_s)
        view.polled.refresh(0.0)
    return router, view


def sums(entry, engines: list[Exporter], depths: dict[int, int]) -> tuple[list[float], Send | Refuse]:
    """The scores of a prompt of 8 blocks, and the choice; ``depths``: leading blocks that instances have of it."""
    router, view = polling(entry, engines)
    for instance, depth in depths.items():
        one = request(100 + instance, KEYS[:depth])
        view.dispatched(one, instance, 0.0)
        view.finished(one, 0.0)
        if router.index == "events":
            view.kv_events(instance, KEYS[:depth])
    asked = request(1, KEYS)
    return router.scores(asked, view, 0.0)[0], router.choose(asked, view, 0.0)


@pytest.mark.parametrize(
    ("entry", "queues", "expected", "chosen"),
    [
        ("gie-322", (4, 0), [3.05, 3.6], 1),
        ("gie-111", (4, 0), [1.15, 1.8], 1),
        ("gie-322", (4, 4), [5.05, 3.6], 0),
        ("gie-322-precise", (4, 0), [3.05, 3.6], 1),
        ("gie-111-precise", (4, 0), [1.15, 1.8], 1),
        ("gie-322-precise", (4, 4), [5.05, 3.6], 0),
    ],
)
def test_llmd_worked_cases(entry, queues, expected, chosen):
    """A: match .75, queue 4, KV usage .6; B: no match, queue 0, usage .2; then A's queue equals B's."""
    engines = [Exporter(queues[0], 0, 0.6), Exporter(queues[1], 0, 0.2)]
    found, choice = sums(entry, engines, {0: 6})
    assert found == pytest.approx(expected)
    assert choice == Send(chosen)


def test_without_a_stated_scorer_the_weights_are_the_charts():
    assert parse_routing("weighted_scores").params.weights == parse_routing("gie-322").params.weights
    assert parse_routing({"policy": "weighted_scores", "queue": 1}).params.weights == {"queue": 1}
    assert parse_routing({"policy": "gie-111", "token_load": 2}).params.weights == {
        "queue": 1, "kv_cache_utilization": 1, "prefix": 1, "token_load": 2,
    }  # fmt: skip


ENGINES = [Exporter(0, 9, 0.1), Exporter(200, 3, 0.9), Exporter(64, 5, 0.5)]


@pytest.mark.parametrize(
    ("scorer", "expected"),
    [
        ("queue", [1, 0, 136 / 200]),
        ("running_requests", [0, 1, 4 / 6]),
        ("kv_cache_utilization", [0.9, 0.1, 0.5]),
        ("load_aware", [0.5, 0, 0.25]),
        ("prefix", [0.5, 0, 0]),
        ("active_request", [1, 1, 1]),
        ("no_hit_lru", [0.5, 0.5, 0.5]),
        ("token_load", [1 - 4 * BLOCK_SIZE / 2**22, 1 - 8 * BLOCK_SIZE / 2**22, 1 - 8 * BLOCK_SIZE / 2**22]),
        ("session_affinity", [0, 0, 0]),
    ],
)
def test_every_scorer_by_its_formula(scorer, expected):
    found, _ = sums({"policy": "weighted_scores", scorer: 1}, ENGINES, {0: 4})
    assert found == pytest.approx(expected)


@given(st.data())
def test_sums_equal_the_formula_for_one_instance_at_a_time(data):
    """All scorers with drawn weights, against the formulas written out for one instance."""
    num = data.draw(st.integers(1, 5))
    names = (*POLLED, "prefix", "active_request", "token_load")
    weights = {name: data.draw(st.sampled_from([1.0, 2.0, 0.5])) for name in names if data.draw(st.booleans())}
    engines = [
        Exporter(data.draw(st.integers(0, 150)), data.draw(st.integers(0, 9)), data.draw(st.floats(0, 1)))
        for _ in range(num)
    ]
    weights = weights or {"queue": 1.0}
    router, view = polling({"policy": "weighted_scores", **weights}, engines)
    depths = [data.draw(st.integers(0, 8)) for _ in range(num)]
    for instance, depth in enumerate(depths):
        if depth:
            one = request(instance, KEYS[:depth])
            view.dispatched(one, instance, 0.0)
            if data.draw(st.booleans()):
                view.first_token(one, 0.0)
            if data.draw(st.booleans()):
                view.finished(one, 0.0)
    waiting, running, usage = zip(*(engine.metrics for engine in engines), strict=True)

    def spread(counts: tuple[int, ...], i: int) -> float:
        return (max(counts) - counts[i]) / (max(counts) - min(counts)) if max(counts) > min(counts) else 1.0

    for i, found in enumerate(router.scores(request(99, KEYS), view, 0.0)[0]):
        tokens = view.prefill_tokens[i] + (8 - depths[i]) * BLOCK_SIZE
        most = max(view.num_in_flight)
        scores = {
            "queue": spread(waiting, i),
            "running_requests": spread(running, i),
            "kv_cache_utilization": 1 - usage[i],
            "load_aware": 0.5 * (1 - min(1, waiting[i] / 128)),
            "prefix": depths[i] / 8,
            "active_request": (most - view.num_in_flight[i]) / most if most else 1,
            "token_load": 1 - min(1, tokens / 4_194_304),
        }
        assert found == pytest.approx(sum(weight * scores[name] for name, weight in weights.items()))


def test_at_most_256_blocks_of_16_tokens_are_looked_at():
    """Two prompts that share 4,096 tokens of 6,400 match fully, as far as the approximate scorer looks."""
    router, view = polling({"policy": "weighted_scores", "prefix": 1}, [Exporter()] * 2)
    view.dispatched(request(1, list(range(100))), 0, 0.0)
    half = [*range(64), *range(500, 536)]
    assert router.scores(request(2, half), view, 0.0)[0] == pytest.approx([1, 0])
    precise, view = polling({"policy": "weighted_scores", "prefix": 1, "precise": True}, [Exporter()] * 2)
    view.kv_events(0, list(range(100)))
    assert precise.scores(request(2, half), view, 0.0)[0] == pytest.approx([0.64, 0])


def test_an_approximate_router_knows_what_it_sent_and_a_precise_one_what_was_computed():
    approximate, view = polling({"policy": "weighted_scores", "prefix": 1}, [Exporter()] * 2)
    first = send(approximate, view, request(1, KEYS))
    assert {send(approximate, view, request(number, KEYS)) for number in range(2, 30)} == {first}
    precise, view = polling({"policy": "weighted_scores", "prefix": 1, "precise": True}, [Exporter()] * 2)
    assert {send(precise, view, request(number, KEYS)) for number in range(30)} == {0, 1}
    entry = {"policy": "weighted_scores", "prefix": 1, "precise": True, "speculative_ttl": 2}
    speculative, view = polling(entry, [Exporter()] * 2)
    first = send(speculative, view, request(1, KEYS))
    assert {speculative.choose(request(2, KEYS), view, 1.9).instance for _ in range(30)} == {first}
    assert {speculative.choose(request(2, KEYS), view, 2.0).instance for _ in range(30)} == {0, 1}


def test_auto_tuning_takes_the_engines_blocks():
    router = make_router(parse_routing({"policy": "weighted_scores", "auto_tune": True}), 1, random.Random(0))
    index = router.make_own_index(Fleet(1, block_size=128, num_gpu_blocks=500))
    assert (index.block_size, index.capacity) == (128, 500)


def test_cold_requests_go_to_who_had_one_longest_ago():
    router, view = polling({"policy": "weighted_scores", "prefix": 1, "no_hit_lru": 1}, [Exporter()] * 3)
    cold = [send(router, view, request(number, [10 * number])) for number in range(6)]
    assert cold == [0, 1, 2, 0, 1, 2]
    assert send(router, view, request(6, [0])) == 0  # a hit: no turn is taken
    assert send(router, view, request(7, [70])) == 0


def test_a_session_stays_where_it_was_sent_last():
    router, view = polling({"policy": "weighted_scores", "session_affinity": 1}, [Exporter()] * 4)
    homes = {number: send(router, view, request(number, [number], session=number)) for number in range(20)}
    assert len(set(homes.values())) > 1
    again = {number: send(router, view, request(100 + number, [number], session=number)) for number in range(20)}
    assert again == homes


def test_ties_are_drawn_and_nothing_else():
    router, view = polling("gie-322", [Exporter(), Exporter(1), Exporter(), Exporter()])
    counts = Counter(router.choose(request(1, KEYS), view, 0.0).instance for _ in range(3000))
    assert set(counts) == {0, 2, 3}
    assert sum((count - 1000) ** 2 / 1000 for count in counts.values()) < 13.8  # 99.9 %, 2 degrees of freedom
    router, view = polling("gie-322", [Exporter(1), Exporter(0)])
    before = router.rng.getstate()
    assert router.choose(request(1, KEYS), view, 0.0) == Send(1)
    assert router.rng.getstate() == before


def test_the_weighted_random_picker_draws_in_proportion():
    entry = {"policy": "weighted_scores", "kv_cache_utilization": 1, "picker": "weighted_random"}
    router, view = polling(entry, [Exporter(usage=0.9), Exporter(usage=0.6), Exporter(usage=0.5)])
    counts = Counter(router.choose(request(1, KEYS), view, 0.0).instance for _ in range(10_000))
    expected = [1000, 4000, 5000]
    assert sum((counts[i] - expected[i]) ** 2 / expected[i] for i in range(3)) < 13.8
    router, view = polling(entry, [Exporter(usage=1.0)] * 2)
    assert {router.choose(request(1, KEYS), view, 0.0).instance for _ in range(50)} == {0, 1}


@pytest.mark.parametrize(("usage", "share"), [(0.16, 0.096), (0.256, 1.0)])
def test_sheddable_requests_are_refused_as_saturation_grows(usage, share):
    """Saturation .2 -> 300 * .2**5 = .096; .32 -> 1.007 -> 1. KV usage counts against 0.8."""
    router, view = polling({"policy": "gie-322", "shed_from_priority": 1}, [Exporter(usage=usage)] * 3)
    urgent, sheddable = request(1, KEYS), request(2, KEYS)
    sheddable.priority = 1
    num = 4000
    refused = sum(type(router.choose(sheddable, view, 0.0)) is Refuse for _ in range(num))
    assert abs(refused / num - share) <= 4 * (share * (1 - share) / num) ** 0.5
    assert all(type(router.choose(urgent, view, 0.0)) is Send for _ in range(100))


def test_saturation_is_the_mean_of_each_engines_worse_side():
    router, view = polling({"policy": "gie-322", "shed_from_priority": 1}, [Exporter(waiting=1), Exporter(usage=0.16)])
    sheddable = request(1, KEYS)
    sheddable.priority = 3
    refused = sum(type(router.choose(sheddable, view, 0.0)) is Refuse for _ in range(4000))
    assert abs(refused / 4000 - 0.096) <= 4 * (0.096 * 0.904 / 4000) ** 0.5


def scenario(router: str, priority: int) -> Scenario:
    return parse(scenario_text(router, priority))


def scenario_text(router: str, priority: int) -> str:
    return f"""
name: small
engine: {{dialect: vllm-0.32, async_scheduling: false, max_model_len: 4096, num_gpu_blocks_override: 1001}}
profile: linear-8ms-50us
cluster: {{instances: 2}}
workload:
  tenants:
    - name: chat
      priority: {priority}
      synthetic:
        {{num_requests: 40, arrivals: {{process: poisson, rate_per_s: 5}}, suffix_tokens: 100, output_tokens: 20}}
routing: [{router}]
"""


def test_what_is_shed_needs_a_tenant_that_may_be():
    """A priority needs no engine that goes by it where the router does."""
    shedding = "{policy: gie-322, shed_from_priority: 1}"
    scenario(shedding, 1).check()
    with pytest.raises(InputError, match="weighted_scores may refuse requests from priority 1 on, expected a tenant"):
        scenario(shedding, 0).check()
    with pytest.raises(InputError, match="priority: got 1, which changes nothing without"):
        scenario("gie-322", 1).check()


CHAT = """
  tenants:
    - name: with_sessions
      conversations: {num_conversations: 10, arrivals: {process: poisson, rate_per_s: 1}, question_tokens: 60,
                      output_tokens: 20, turns: 3, think_time: 2 s}
"""


@pytest.mark.parametrize("router", [
    "{policy: gie-322, session_affinity: 1}", "consistent_hash", "session_hash", "{policy: kvaware, fallback: session}",
])  # fmt: skip
def test_what_goes_by_sessions_needs_some(router):
    """Of one tenant: the requests of others are served, as upstream."""
    with pytest.raises(InputError, match="needs sessions and no tenant has any, expected conversations, or a trace"):
        scenario(router, 0).check()
    both = parse(scenario_text(router, 0).replace("\n  tenants:\n", CHAT))
    (spec,) = both.routing
    result = run(both, router=spec, replication=0)
    assert result.summary()["num_finished"] == len(result.requests) == 70


@pytest.mark.parametrize("more", [{}, {"prefix": 1, "precise": True}])
def test_routers_that_know_the_same_are_one(more):
    """Polled metrics and block events are the same for every replica: as many as one likes change nothing."""
    with pytest.raises(InputError, match="replicas has no meaning where no scorer goes by the router's own dispatches"):
        parse_routing({"policy": "weighted_scores", "queue": 1, "replicas": 2, **more})
    assert parse_routing({"policy": "gie-322", "replicas": 2}).params.num_replicas == 2
