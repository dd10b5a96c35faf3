"""Conversations: turns that follow answers, layers that are shared, closed loops and sub-agents, without an engine."""

from __future__ import annotations

import heapq
import itertools
import tracemalloc
from collections import Counter

import numpy as np
import pytest
from pydantic import ValidationError

from simulator.prefix import Prefixes
from simulator.request import FINISHED, REFUSED
from simulator.workload.conversation_spec import ConversationSpec
from simulator.workload.conversations import Conversations
from simulator.workload.spec import SyntheticSpec, TenantSpec

ARRIVALS = {"process": "poisson", "rate_per_s": 1.0}
PLAIN = {"arrivals": ARRIVALS, "num_conversations": 50, "question_tokens": 30, "output_tokens": 20}
CHAT = PLAIN | {
    "turns": 4,
    "think_time": "10 s",
    "layers": [{"name": "system", "tokens": 100}, {"name": "document", "tokens": 500, "texts": 5}],
}


def conversations(spec, seed=1, replication=0, name="t", index=0):
    # What else a tenant says does not matter here.
    one = {"arrivals": ARRIVALS, "num_requests": 1, "suffix_tokens": 1, "output_tokens": 1}
    other = SyntheticSpec.model_validate(one)
    tenant = TenantSpec(name=name, synthetic=other)
    return Conversations(tenant, ConversationSpec.model_validate(spec), index, seed, replication)


def played(source, latency_s=lambda request: 2.0):
    """Serve everything, each request in ``latency_s`` seconds; requests in order of arrival with their ends."""
    pending, served, order = [], [], itertools.count()
    for request in source:
        heapq.heappush(pending, (request.arrival_s, next(order), "arrives", request))
    while pending:
        time_s, _, what, request = heapq.heappop(pending)
        if what == "arrives":
            served.append(request)
            heapq.heappush(pending, (time_s + latency_s(request), next(order), "ends", request))
            continue
        request.state, request.finish_s = FINISHED, time_s
        request.num_output_tokens = request.oracle_num_output_tokens
        for follower in source.ended(request, time_s):
            heapq.heappush(pending, (follower.arrival_s, next(order), "arrives", follower))
    return served


def by_conversation(served):
    found = {}
    for request in served:
        found.setdefault(request.session, []).append(request)
    return found


class TestTurns:
    def test_a_turn_repeats_everything_before_it(self):
        """Its prompt is the prompt before, the answer before, and a question: 630, then 50 tokens more each turn."""
        for turns in by_conversation(played(conversations(CHAT))).values():
            assert [request.num_prompt_tokens for request in turns] == [630, 680, 730, 780]
            for before, after in itertools.pairwise(turns):
                quoted = (*before.prompt, (before.output_segment, 0, 20))
                assert after.prompt[: len(quoted)] == quoted

    def test_the_next_turn_comes_a_pause_after_the_answer_ended(self):
        for turns in by_conversation(played(conversations(CHAT), lambda request: 3.5)).values():
            for before, after in itertools.pairwise(turns):
                assert after.arrival_s == before.finish_s + 10.0

    def test_an_answer_that_came_out_shorter_is_quoted_as_it_is(self):
        source = conversations(CHAT)
        first = next(iter(source))
        first.state, first.num_output_tokens = FINISHED, 7
        (second,) = source.ended(first, 5.0)
        assert (first.output_segment, 0, 7) in second.prompt
        assert second.num_prompt_tokens == 630 + 7 + 30

    def test_keys_of_a_turn_begin_with_those_of_the_turn_before(self):
        prefixes = Prefixes(16)
        for turns in by_conversation(played(conversations(CHAT))).values():
            keys = [prefixes.keys(request.prompt)[0] for request in turns]
            for before, after in itertools.pairwise(keys):
                assert after[: len(before)] == before

    def test_what_nobody_repeats_has_no_name(self):
        """Else every question would stay in the table of texts for ever."""
        for turns in by_conversation(played(conversations(CHAT))).values():
            assert turns[-1].output_segment is None
            assert turns[-1].prompt[-1][0] is None
        assert all(request.prompt[-1][0] is None for request in conversations(PLAIN))

    def test_a_refused_turn_ends_its_conversation(self):
        source = conversations(CHAT)
        first = next(iter(source))
        first.state = REFUSED
        assert source.ended(first, 1.0) == []


class TestLayers:
    def test_conversations_share_a_layer_as_often_as_its_texts_say(self):
        layer = {"name": "d", "tokens": 10, "texts": 4, "zipf_exponent": 1.0}
        spec = PLAIN | {"num_conversations": 20_000, "layers": [layer]}
        counts = Counter(request.prompt[0][0] for request in conversations(spec))
        weights = np.array([1, 1 / 2, 1 / 3, 1 / 4])
        expected = 20_000 * weights / weights.sum()
        found = np.array([counts[segment] for segment in sorted(counts)])
        assert np.abs(found - expected).max() < 4 * np.sqrt(expected.max())

    def test_a_timestamp_in_front_leaves_nothing_to_find(self):
        """The classic mistake: a text behind a head of its own shares no block; with the head behind it, all."""
        stamp = {"name": "time", "tokens": 20, "unique": True, "renewed": "every_turn"}
        system = {"name": "system", "tokens": 640}
        for layers, shared in (([stamp, system], 0), ([system, stamp], 40)):
            prefixes = Prefixes(16)
            served = played(conversations(CHAT | {"layers": layers}))
            keys = [set(prefixes.keys(request.prompt)[0]) for request in served]
            common = set.intersection(*keys)
            assert len(common) == shared

    def test_churn_replaces_texts_one_after_another(self):
        """Five texts in 100 s: within any 20 s one is replaced, and after 100 s all are."""
        layer = {"name": "d", "tokens": 10, "texts": 5, "churn": "100 s"}
        spec = PLAIN | {"num_conversations": 5000, "layers": [layer]}
        served = list(conversations(spec))
        seen = [(request.arrival_s, request.prompt[0][0]) for request in served]
        for start in range(0, 1000, 100):
            now = {segment for time_s, segment in seen if start <= time_s < start + 20}
            later = {segment for time_s, segment in seen if start + 120 <= time_s < start + 140}
            assert not now & later
            assert len(now) <= 6

    def test_no_two_layers_or_tenants_share_a_text(self):
        spec = CHAT | {"layers": [{"name": "a", "tokens": 10, "texts": 3}, {"name": "b", "tokens": 10, "texts": 3}]}
        seen = [
            {segment for request in played(conversations(spec, index=index)) for segment, _, _ in request.prompt}
            for index in range(2)
        ]
        firsts = {request.prompt[0][0] for request in conversations(spec)}
        seconds = {request.prompt[1][0] for request in conversations(spec)}
        assert not (seen[0] - {None}) & (seen[1] - {None})
        assert not firsts & seconds


USERS = {"users": {"number": 8, "pause": "1 s"}, "num_conversations": 100, "question_tokens": 30, "output_tokens": 20}


class TestClosedLoop:

    def test_there_are_never_more_requests_than_users(self):
        served = played(conversations(USERS), lambda request: 1 + request.num_prompt_tokens % 3)
        edges = sorted([(r.arrival_s, 1) for r in served] + [(r.finish_s, -1) for r in served])
        assert len(served) == 100
        assert max(itertools.accumulate(change for _, change in edges)) == 8

    def test_a_slower_engine_slows_the_users_down(self):
        """Each user needs answer + pause a request: 8 users, 100 requests, 13 rounds."""
        for latency_s in (2.0, 5.0):
            served = played(conversations(USERS), lambda request, s=latency_s: s)
            assert max(request.finish_s for request in served) == 12 * (latency_s + 1) + latency_s

    def test_a_duration_ends_it(self):
        spec = {key: value for key, value in USERS.items() if key != "num_conversations"} | {"duration": "1 min"}
        served = played(conversations(spec))
        assert max(request.arrival_s for request in served) < 60
        assert len(served) == 8 * 20

    def test_it_says_that_it_is_no_open_loop(self):
        assert not ConversationSpec.model_validate(USERS).open_loop
        assert not ConversationSpec.model_validate(CHAT).open_loop
        assert ConversationSpec.model_validate(PLAIN).open_loop


class TestAgents:
    SPEC = CHAT | {
        "turns": 2,
        "agents": {"number": 3, "task_tokens": 40, "output_tokens": 25, "report_tokens": 11},
        "num_conversations": 5,
    }

    def test_the_next_turn_waits_for_all_and_gets_their_reports(self):
        everything = played(conversations(self.SPEC), lambda request: request.num_prompt_tokens / 100)
        for served in by_conversation(everything).values():
            first, *agents, second = served[:5]
            assert [agent.arrival_s for agent in agents] == [first.finish_s] * 3
            assert all(agent.num_prompt_tokens == 630 + 20 + 40 for agent in agents)
            shared = (*first.prompt, (first.output_segment, 0, 20))
            assert all(agent.prompt[:-1] == shared for agent in agents)
            assert second.arrival_s == max(agent.finish_s for agent in agents) + 10
            assert second.num_prompt_tokens == 650 + 30 + 3 * 11

    def test_only_a_share_of_turns_calls_them(self):
        agents = self.SPEC["agents"] | {"share_of_turns": 0.25}
        spec = self.SPEC | {"num_conversations": 500, "turns": 1, "agents": agents}
        del spec["think_time"]
        served = played(conversations(spec))
        assert (len(served) - 500) / 3 == pytest.approx(125, abs=4 * np.sqrt(500 * 0.25 * 0.75))


class TestDraws:
    SPEC = CHAT | {
        "turns": {"distribution": "geometric", "mean": 3},
        "question_tokens": {"distribution": "lognormal", "mean": 80, "cv": 1.0},
        "output_tokens": {"distribution": "exponential", "mean": 50},
        "think_time": {"distribution": "exponential", "mean": "20 s"},
        "agents": {"number": 2, "share_of_turns": 0.3, "task_tokens": {"distribution": "geometric", "mean": 9},
                   "output_tokens": 25, "report_tokens": {"distribution": "geometric", "mean": 9}},
    }  # fmt: skip

    @staticmethod
    def texts(served):
        return sorted((r.session, r.num_prompt_tokens, r.oracle_num_output_tokens) for r in served)

    def test_how_long_answers_take_changes_no_text(self):
        """Another router or engine moves turns in time; lengths and texts are those of the conversation."""
        slow = played(conversations(self.SPEC), lambda request: 50.0 + request.num_prompt_tokens)
        assert self.texts(played(conversations(self.SPEC))) == self.texts(slow)

    def test_the_same_seed_draws_the_same_and_another_replication_does_not(self):
        once, again = played(conversations(self.SPEC)), played(conversations(self.SPEC))
        assert [(r.arrival_s, r.prompt) for r in once] == [(r.arrival_s, r.prompt) for r in again]
        assert self.texts(once) != self.texts(played(conversations(self.SPEC, replication=1)))

    def test_means_are_those_asked_for(self):
        spec = self.SPEC | {"num_conversations": 4000}
        turns = by_conversation(r for r in played(conversations(spec)) if r.prompt)
        firsts = [requests[0] for requests in turns.values()]
        assert np.mean([r.num_prompt_tokens - 600 for r in firsts]) == pytest.approx(80, rel=0.08)
        assert np.mean([r.oracle_num_output_tokens for r in firsts]) == pytest.approx(50, rel=0.06)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"arrivals": None}, "exactly one of arrivals and users"),
        ({"users": {"number": 2}}, "exactly one of arrivals and users"),
        ({"duration": "1 h"}, "exactly one of num_conversations and duration"),
        ({"turns": 1}, "think_time would change nothing"),
        ({"turns": 0}, "at least one turn"),
        ({"output_tokens": 0}, "at least one token"),
        ({"question_tokens": None}, "nothing to ask"),
        ({"layers": [{"name": "a", "tokens": 1}, {"name": "a", "tokens": 2}]}, "two layers are called 'a'"),
        ({"layers": [{"name": "a", "tokens": 0}]}, "at least one token"),
        ({"layers": [{"name": "a", "tokens": 5, "zipf_exponent": 1}]}, "zipf_exponent would change nothing"),
        ({"layers": [{"name": "a", "tokens": 5, "unique": True, "texts": 3}]}, "would change nothing"),
        ({"layers": [{"name": "a", "tokens": 5, "unique": True, "shared_as": "x"}]}, "shared with nobody"),
        ({"layers": [{"name": "a", "tokens": 5, "renewed": "every_turn"}]}, "renewed would change nothing"),
        ({"think_time": {"distribution": "fixed", "mean": 3, "cv": 1}}, "cv would change nothing"),
        ({"think_time": {"distribution": "lognormal", "mean": 3}}, "need cv"),
        ({"think_time": "-1 s"}, "-1 s"),
        ({"question_tokens": 10**30}, "at most 268,435,456 tokens"),
        ({"agents": TestAgents.SPEC["agents"] | {"number": 0}}, "must be above 0"),
        ({"agents": TestAgents.SPEC["agents"] | {"share_of_turns": 0}}, "must be above 0"),
    ],
)
def test_what_changes_nothing_or_cannot_be_is_refused(change, words):
    spec = {key: value for key, value in (CHAT | change).items() if value is not None}
    with pytest.raises(ValidationError, match=words):
        ConversationSpec.model_validate(spec)


def test_a_layer_is_shared_by_all_tenants_that_say_so():
    """The service's prompt is one text for all; the choice among its versions is each tenant's own."""
    layer = {"name": "system", "tokens": {"distribution": "geometric", "mean": 50}, "texts": 4, "shared_as": "service"}
    spec = PLAIN | {"layers": [layer, {"name": "own", "tokens": 10}]}
    first = list(conversations(spec, name="a", index=0))
    other = list(conversations(spec, name="b", index=1))
    assert {r.prompt[0] for r in first} == {r.prompt[0] for r in other}
    assert [r.prompt[0] for r in first] != [r.prompt[0] for r in other]
    assert not {r.prompt[1] for r in first} & {r.prompt[1] for r in other}


def test_generated_requests_leave_nothing_behind():
    """A stream of 30,000 requests that nothing follows needs no memory that grows with it."""
    peaks = []
    for number in (1_000, 30_000):
        layer = {"name": "a", "tokens": 9, "texts": 50}
        source = conversations(PLAIN | {"num_conversations": number, "layers": [layer]})
        tracemalloc.start()
        for _ in source:
            pass
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] + 200_000
