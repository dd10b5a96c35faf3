"""Polled metrics: what a router reads is what a sampler that looks at every poll has seen, and nothing later."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from cluster_cases import FOR_TESTS, MODES, Case, serve
from drawn_clusters import cases
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simulator.request import Request
from simulator.routing import Router, Send
from simulator.routing.polled import Metrics, PolledMetrics


class Engine:
    """An engine whose metrics are numbers, and which refuses to tell what it no longer knows."""

    def __init__(self) -> None:
        self.history: list[tuple[float, Metrics]] = [(-1.0, (0, 0, 0.0))]
        self.num_asked = 0

    def metrics_at(self, time_s: float) -> Metrics:
        self.num_asked += 1
        changed_s, metrics = self.history[-1]
        assert changed_s < time_s or changed_s == -1.0, "asked for what was before its last change"
        return metrics

    def at(self, time_s: float) -> Metrics:
        """What was to be seen at ``time_s``, before what changed at that very moment."""
        return [metrics for changed_s, metrics in self.history if changed_s < time_s][-1]


# Eighths of a second: polls, changes and reads meet often, and all times are exact.
eighths = st.integers(0, 60).map(lambda number: number / 8)
changes = st.tuples(st.just("change"), eighths, st.integers(0, 2), st.integers(0, 5))
reads = st.tuples(st.just("read"), eighths, st.just(0), st.just(0))


@given(
    st.lists(changes | changes | reads, max_size=40), st.sampled_from([0.125, 0.25, 1.0, 2.5]),
    st.sampled_from([0.0, 0.125, 0.75, 4.0]),
)  # fmt: skip
def test_polled_metrics_equal_a_sampler_that_looks_at_every_poll(acts, period_s, delay_s):
    engines = [Engine() for _ in range(3)]
    polled = PolledMetrics(engines, period_s, delay_s)
    for act, now_s, number, value in sorted(acts, key=lambda act: act[1]):
        if act == "change":
            polled.before_change(number, now_s)
            engines[number].history.append((now_s, (value, 2 * value, value / 5)))
        else:
            polled.refresh(now_s)
            polls = [poll for poll in range(500) if poll * period_s + delay_s <= now_s]
            seen = [engine.at(polls[-1] * period_s) if polls else (0, 0, 0.0) for engine in engines]
            assert list(zip(polled.num_waiting, polled.num_running, polled.usage, strict=True)) == seen
            assert polled.num_polls == (polls[-1] if polls else -1)


def test_polls_that_nobody_reads_cost_nothing():
    engine = Engine()
    polled = PolledMetrics([engine], 0.001)
    polled.refresh(0.0)
    polled.refresh(1000.0)
    assert engine.num_asked == 2


class Reader(Router):
    """Takes turns, and writes down what it reads."""

    summary = source = "for tests"
    poll_s, poll_delay_s = 0.25, 0.0
    read: ClassVar[list[tuple[float, list[Metrics]]]] = []

    def choose(self, request: Request, view: Any, now_s: float) -> Send:
        polled = view.polled
        self.read.append((now_s, list(zip(polled.num_waiting, polled.num_running, polled.usage, strict=True))))
        return Send(request.request_id % self.num_instances)


def readings(case: Case, monkeypatch: pytest.MonkeyPatch, mode: str) -> tuple[list[Any], dict[int, list[Any]]]:
    """What the router read, and by instance what its metrics were from when on."""
    monkeypatch.setattr(Reader, "read", read := [])
    truth: dict[int, list[tuple[float, Metrics]]] = {number: [] for number in range(case.num_instances)}
    clusters: list[Any] = []

    def note(number: int, scheduler: Any, what: str, value: Any) -> None:
        if what != "before":
            pool, now_s = scheduler.pool, clusters[0].clock.now
            usage = (pool.num_blocks - 1 - pool.num_free) / (pool.num_blocks - 1)
            truth[number].append((now_s, (len(scheduler.waiting) + len(scheduler.skipped), usage)))

    serve(case, note, clusters.append, **MODES[mode])
    return read, truth


@settings(max_examples=120, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(cases(), st.sampled_from([0.25, 0.5, 0.3, 0.1]), st.sampled_from([0.0, 0.25, 0.07]))
def test_a_router_reads_what_the_engines_were_at_the_latest_poll(case, poll_s, delay_s):
    case = Case(**{**case.__dict__, "routing": "reader", "watch": False})
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(FOR_TESTS, "reader", Reader)
        patch.setattr(Reader, "poll_s", poll_s)
        patch.setattr(Reader, "poll_delay_s", delay_s)
        read, truth = readings(case, patch, "plain")
        for mode in ("stepping", "advancing"):
            assert readings(case, patch, mode)[0] == read
        for now_s, found in read:
            poll = int((now_s - delay_s) / poll_s) if now_s >= delay_s else None
            for number, (waiting, _, usage) in enumerate(found):
                before = [(0, 0.0)]
                if poll is not None:
                    before += [metrics for time_s, metrics in truth[number] if time_s < poll * poll_s]
                assert (waiting, usage) == pytest.approx(before[-1])
