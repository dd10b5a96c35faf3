"""Routing policies: their rules, the laws that hold for every one of them, and how a scenario names them."""

from __future__ import annotations

import ast
import itertools
import math
import pickle
import random
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from routing_cases import BLOCK_SIZE, VARIANTS, conversations, drive, prompt_of, request, router_and_view, send

from simulator import routing
from simulator.errors import InputError
from simulator.request import Request
from simulator.routing import PRESETS, ROUTERS, RoutingSpec, parse_routing
from simulator.routing.hashing import jump_hash

# ---- policies by load


def test_round_robin_is_fair_to_one_request():
    router, view = router_and_view("round_robin", 7)
    chosen = [send(router, view, request(i, [])) for i in range(100)]
    assert chosen == [i % 7 for i in range(100)]


def test_least_requests_takes_the_least_loaded_and_the_lowest_index():
    router, view = router_and_view("least_requests", 3)
    assert [send(router, view, request(i, [])) for i in range(4)] == [0, 1, 2, 0]
    view.finished(request(2, []), 0.0)
    assert send(router, view, request(9, [])) == 2


def test_random_is_uniform():
    router, view = router_and_view("random", 10)
    counts = Counter(router.choose(request(0, []), view, 0.0).instance for _ in range(20_000))
    chi_square = sum((counts[i] - 2000) ** 2 / 2000 for i in range(10))
    assert chi_square < 27.9  # 99.9 % point with 9 degrees of freedom


def test_power_of_two_takes_the_lesser_of_two_distinct_instances():
    router, view = router_and_view("power_of_two", 2)
    view.dispatched(request(1, []), 0, 0.0)
    assert {router.choose(request(9, []), view, 0.0).instance for _ in range(50)} == {1}
    alone, view = router_and_view("power_of_two", 1)
    assert send(alone, view, request(1, [])) == 0


def test_power_of_two_breaks_ties_by_the_first_drawn():
    class Recording(random.Random):
        drawn: list[int]

        def randrange(self, *args):
            self.drawn.append(super().randrange(*args))
            return self.drawn[-1]

    router, view = router_and_view("power_of_two", 5)
    router.rng = Recording(3)
    for _ in range(50):
        router.rng.drawn = []
        assert router.choose(request(0, []), view, 0.0).instance == router.rng.drawn[0]


def test_power_of_two_agrees_with_balls_into_bins():
    # n balls into n bins: the fullest has about ln n / ln ln n by one choice and ln ln n / ln 2 + O(1) by two
    # (Azar, Broder, Karlin, Upfal 1999; Mitzenmacher 1996).
    num = 2000
    fullest = {}
    for policy in ("random", "power_of_two"):
        loads = []
        for seed in range(5):
            router, view = router_and_view(policy, num, seed)
            for i in range(num):
                send(router, view, request(i, []))
            loads.append(max(view.num_in_flight))
        fullest[policy] = loads
    assert max(fullest["power_of_two"]) <= math.log(math.log(num)) / math.log(2) + 1.5
    assert min(fullest["random"]) >= math.log(num) / math.log(math.log(num))
    assert max(fullest["power_of_two"]) < min(fullest["random"])


# ---- sessions


def test_a_session_stays_and_sessions_spread():
    router, view = router_and_view("session_hash", 8)
    sessions = [i % 400 for i in range(1200)]
    chosen = [send(router, view, request(i, [], session=session)) for i, session in enumerate(sessions)]
    homes = dict(zip(sessions, chosen, strict=True))
    assert all(homes[session] == instance for session, instance in zip(sessions, chosen, strict=True))
    counts = Counter(homes.values())
    assert sum((counts[i] - 50) ** 2 / 50 for i in range(8)) < 24.3  # 99.9 % point with 7 degrees of freedom
    again, view = router_and_view("session_hash", 8, seed=99)
    assert send(again, view, request(0, [], session=17)) == homes[17]


@given(st.integers(0, 2**64 - 1), st.integers(1, 50))
def test_one_more_instance_only_takes(key, num_buckets):
    before, after = jump_hash(key, num_buckets), jump_hash(key, num_buckets + 1)
    assert 0 <= before < num_buckets
    assert after in (before, num_buckets)


def test_one_more_instance_takes_its_share():
    rng = random.Random(0)
    keys = [rng.getrandbits(64) for _ in range(20_000)]
    moved = sum(jump_hash(key, 9) != jump_hash(key, 10) for key in keys)
    assert abs(moved - 2000) < 4 * math.sqrt(20_000 * 0.1 * 0.9)


def test_a_request_without_a_session_goes_to_the_fewest_dispatches_of_the_last_minute():
    """As production-stack's session router: of all requests, those with sessions too, and a new instance first."""
    router, view = router_and_view("session_hash", 3)
    numbers = itertools.count()

    def sent(session: int | None, now_s: float) -> int:
        return send(router, view, request(next(numbers), [], session=session), now_s)

    home = sent(7, 0.0)
    first, second = (instance for instance in range(3) if instance != home)
    assert [sent(None, 1.0), sent(None, 2.0)] == [first, second]
    assert [sent(7, 3.0), sent(7, 4.0)] == [home, home]
    assert [sent(None, 5.0) for _ in range(4)] == [first, second, first, second]  # until all three have had three
    assert [sent(None, 6.0) for _ in range(3)] == [0, 1, 2]
    # A minute later only those of 5 s and 6 s count: three each, but one of the home.
    assert sent(None, 64.5) == home


# ---- longest prefix


def test_longest_prefix_follows_the_cache_whatever_the_load():
    router, view = router_and_view({"policy": "longest_prefix", "index": "events"}, 4)
    view.kv_events(2, [1, 2, 3])
    view.kv_events(1, [1, 2])
    for i in range(5):
        assert send(router, view, request(i, [1, 2, 3, 4])) == 2
    assert send(router, view, request(5, [1, 2, 9])) == 1  # a tie of two blocks each: the lowest index
    assert send(router, view, request(6, [7])) == 0  # nobody has it: fewest in flight
    view.kv_events(2, [None])
    assert send(router, view, request(7, [1, 2, 3, 4])) == 1


def test_longest_prefix_learns_from_its_own_dispatches():
    router, view = router_and_view("longest_prefix", 3)
    chosen = [send(router, view, request(i, [10 * (i % 3), 10 * (i % 3) + 1, 100 + i])) for i in range(9)]
    assert chosen == [0, 1, 2] * 3


# ---- laws, for every policy


class Sealed(Request):
    """A request whose answer and whose engine-side state no policy may read."""

    SECRETS = (
        "oracle_num_output_tokens", "output_segment", "max_tokens", "state", "instance", "queued_s",
        "first_scheduled_s", "first_token_s", "last_token_s", "finish_s", "num_cached_tokens",
        "num_preemptions", "num_output_tokens",
    )  # fmt: skip

    def __getattribute__(self, name: str):
        if name in Sealed.SECRETS:
            raise AssertionError(f"a policy read request.{name}")
        return super().__getattribute__(name)


def sealed(number: int, keys: list[int], session: int | None = 0) -> Request:
    made = Sealed(
        request_id=number,
        arrival_s=0.0,
        prompt=prompt_of(keys, len(keys) * BLOCK_SIZE),
        num_prompt_tokens=len(keys) * BLOCK_SIZE,
        max_tokens=10,
        oracle_num_output_tokens=10**6,
        session=session,
    )
    made.block_keys = keys
    return made


@pytest.mark.parametrize("entry", VARIANTS, ids=str)
def test_no_policy_sees_the_true_answer_length(entry):
    chosen = drive(*router_and_view(entry, 4), conversations(sealed))
    assert chosen == drive(*router_and_view(entry, 4), conversations())


ENGINE = ("block_pool", "cluster", "frontend", "instance", "kv_cache", "scheduler")


@pytest.mark.parametrize("path", sorted(Path(routing.__file__).parent.glob("*.py")), ids=lambda path: path.stem)
def test_no_routing_module_names_the_engine_or_a_secret(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
            assert not {f"simulator.{name}" for name in ENGINE} & set(names)
            assert "simpy" not in names
        if isinstance(node, ast.Attribute):
            # A ledger's entry has an instance too.
            assert node.attr == "instance" or node.attr not in Sealed.SECRETS, f"line {node.lineno} reads {node.attr}"
        if isinstance(node, ast.Constant):
            assert node.value not in Sealed.SECRETS


@pytest.mark.parametrize("entry", VARIANTS, ids=str)
def test_same_seed_same_choices_and_choosing_changes_no_view(entry):
    router, view = router_and_view(entry, 4)
    drive(router, view, conversations())
    before = pickle.dumps([view.num_in_flight, view.prefill_tokens, view.active_blocks, len(view.index)])
    for number in range(20):
        router.choose(request(10_000 + number, [0, 1, 2]), view, 300.0)
    assert pickle.dumps([view.num_in_flight, view.prefill_tokens, view.active_blocks, len(view.index)]) == before
    assert drive(*router_and_view(entry, 4), conversations()) == drive(*router_and_view(entry, 4), conversations())


@pytest.mark.parametrize("entry", VARIANTS, ids=str)
def test_one_instance_takes_all(entry):
    assert set(drive(*router_and_view(entry, 1), conversations())) == {0}


@pytest.mark.parametrize("entry", ["random", "round_robin", "least_requests", "power_of_two", "session_hash"])
def test_a_policy_without_an_index_reads_no_block_keys(entry):
    bare = conversations()
    for one in bare:
        one.block_keys = []
    router, view = router_and_view(entry, 4)
    assert not router.needs_block_keys
    assert drive(router, view, bare) == drive(*router_and_view(entry, 4), conversations())


# ---- entries of a scenario


def test_entries_are_read_into_values():
    spec = parse_routing({"policy": "dynamo", "event_delay": "10 ms", "temperature": 0})
    assert (spec.params.event_delay, spec.params.temperature, spec.params.router_ttl_secs) == (0.01, 0.0, 120.0)
    assert spec.label == "dynamo(event_delay=0.01)"
    assert pickle.loads(pickle.dumps(spec)) == spec
    assert len({spec, parse_routing({"policy": "dynamo", "event_delay": 0.01}), parse_routing("dynamo")}) == 2
    with pytest.raises(Exception, match="frozen"):
        spec.params.temperature = 1.0


def test_labels_tell_entries_apart():
    specs: list[RoutingSpec] = [parse_routing(entry) for entry in VARIANTS]
    assert len({spec.label for spec in specs}) == len(specs)
    assert all(parse_routing(name).label == name for name in ROUTERS)


def test_a_preset_is_a_policy_with_parameters():
    preset, policy = parse_routing("dynamo-2025"), parse_routing({"policy": "dynamo", "temperature": 0.5})
    assert (preset.policy, preset.params) == (policy.policy, policy.params)
    assert preset.label == "dynamo-2025"
    changed = parse_routing({"policy": "dynamo-2025", "temperature": 0.7, "event_delay": "10 ms"})
    assert changed.label == "dynamo-2025(temperature=0.7, event_delay=0.01)"
    assert parse_routing({"policy": "dynamo-2025", "temperature": 0.5}).label == "dynamo-2025"


SHIPPED = (
    "dynamo-2026 dynamo-2025 sglang-cli sglang-rust sglang-2024 gie-111 gie-322 llmd-affinity aibrix-prefix "
    "prodstack-prefix prodstack-kv kubeai-chwbl conductor lmetric ascend-proxy vllm-dp rr random p2c least-request "
    "session-hash oracle"
)


@pytest.mark.parametrize("name", SHIPPED.split())
def test_what_people_run_has_a_name(name):
    assert parse_routing(name).label == name


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_can_be_read_and_says_what_it_is(name):
    preset = PRESETS[name]
    assert name not in ROUTERS
    assert preset.summary
    assert preset.source
    spec = parse_routing(name)
    assert (spec.label, spec.name) == (name, name)
    defaults = ROUTERS[preset.policy].Params.model_fields
    for parameter in preset.values:
        value = getattr(spec.params, parameter)
        assert value != defaults[parameter].default, f"{parameter} is the policy's default: say nothing"


def test_routers_declare_what_the_cluster_feeds_them():
    router, _ = router_and_view({"policy": "dynamo", "event_delay": "10 ms"}, 2)
    assert (router.index, router.event_delay_s, router.ttl_s) == ("events", 0.01, None)
    router, _ = router_and_view({"policy": "dynamo", "use_kv_events": False, "router_ttl_secs": "2 min"}, 2)
    assert (router.index, router.ttl_s) == ("dispatch", 120.0)
    assert router_and_view("longest_prefix", 2)[0].index == "dispatch"
    assert router_and_view("round_robin", 2)[0].index == "none"


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("dynmo", "routing: unknown policy 'dynmo' (did you mean 'dynamo'?)"),
        ({"policy": "dynamo", "temprature": 1}, "routing dynamo: temprature: unknown parameter (did you mean 'temp"),
        ({"policy": "random", "seed": 1}, "routing random: seed: unknown parameter (it has none)"),
        ({"policy": "dynamo", "temperature": "hot"}, "routing dynamo: temperature: got 'hot', expected a number"),
        ({"policy": "dynamo", "temperature": -1}, "routing dynamo: temperature: got -1, expected greater"),
        ({"policy": "dynamo", "event_delay": "10 sheep"}, "routing dynamo: event_delay: got '10 sheep', expected a"),
        ({"policy": "conductor", "ttft_slo": 500}, "routing conductor: ttft_slo: 500 means 500 s; write 500 ms, or"),
        ({"policy": "preble", "tpot": 80}, "routing preble: tpot: 80 means 80 s; write 80 ms, or 80 s if that"),
        ({"policy": "dynamo", "use_kv_events": "maybe"}, "routing dynamo: use_kv_events: got 'maybe', expected"),
        ({"policy": "dynamo", "router_ttl_secs": 60}, "routing dynamo: router_ttl_secs has a meaning"),
        ({"policy": "dynamo", "use_kv_events": False, "event_delay": 0.1}, "routing dynamo: event_delay has a meaning"),
        ({"policy": "dynamo", "use_kv_events": False, "router_predicted_ttl_secs": 5}, "routing dynamo: router_pred"),
        ({"policy": "dynamo", "router_queue_policy": "lcfs"}, "routing dynamo: router_queue_policy has a meaning wi"),
        ({"policy": "dynamo", "router_queue_threshold": 0}, "routing dynamo: router_queue_threshold: got 0, expecte"),
        ({"policy": "dynamo", "zero_floor": True}, "routing dynamo: zero_floor has a meaning with overlap_score_cre"),
        ({"policy": "conductor", "transfer_bandwidth": "5 m/s"}, "routing conductor: transfer_bandwidth: got '5 m/s"),
        ({"policy": "trtllm_adp", "fair_share_multiplier": 0.5}, "routing trtllm_adp: fair_share_multiplier: got 0."),
        ({"policy": "vllm-dp", "dialect": "vllm-0.9"}, "routing vllm-dp: dialect: got 'vllm-0.9', expected"),
        ({"policy": "longest_prefix", "event_delay": 0.1}, "routing longest_prefix: event_delay has a meaning"),
        ({"policy": "longest_prefix", "index": "oracle"}, "routing longest_prefix: index: got 'oracle', expected"),
        ({"policy": "aibrix-prefix", "event_delay": 1}, "routing aibrix-prefix: event_delay has a meaning with use_kv"),
        (
            {"policy": "aibrix-prefix", "use_kv_events": True, "block_number": 5},
            "routing aibrix-prefix: block_number has a meaning with use_kv_events: false only",
        ),
        ({"policy": "sglang-cli", "cache_threshold": 30}, "routing sglang-cli: cache_threshold: got 30, expected a sh"),
        ({"policy": "gie-322", "speculative_ttl": 2}, "routing gie-322: speculative_ttl has a meaning with precise: t"),
        ({"policy": "gie-322-precise", "auto_tune": True}, "routing gie-322-precise: auto_tune has a meaning with pre"),
        (
            {"policy": "gie-322", "auto_tune": True, "block_size_tokens": 16},
            "routing gie-322: block_size_tokens has no meaning with auto_tune: true",
        ),
        ({"policy": "gie-322", "queue": 0}, "routing gie-322: queue: got 0, expected more than 0"),
        (
            {"policy": "weighted_scores", "active_request": 1, "poll": "1 s"},
            "routing weighted_scores: poll has no meaning without a scorer that polls: queue, kv_cache_utilization, ",
        ),
        (
            {"policy": "weighted_scores", "queue": 1, "precise": True},
            "routing weighted_scores: precise has no meaning without a scorer of prefixes: prefix, token_load, no_hit_",
        ),
        (
            {"policy": "llmd-affinity", "max_ttft_penalty": 0, "peak_prefill_throughput": 100},
            "routing llmd-affinity: peak_prefill_throughput has no meaning with max_ttft_penalty: 0",
        ),
        ({"policy": "consistent_hash", "prefix_tokens": 9}, "routing consistent_hash: prefix_tokens has a meaning wit"),
        ({"policy": "kubeai-chwbl", "mean_load_factor": 90}, "routing kubeai-chwbl: mean_load_factor: got 90, expecte"),
        ({"policy": "prodstack-prefix", "qps_window": 30}, "routing prodstack-prefix: qps_window has a meaning with a"),
        ({"policy": "prodstack-kv", "fallback": "session", "qps_window": 30}, "routing prodstack-kv: qps_window has a"),
        ({"temperature": 1}, "routing: got {'temperature': 1}, expected the name of a policy"),
        (7, "routing: got 7, expected the name of a policy"),
    ],
)  # fmt: skip
def test_a_bad_entry_is_one_clear_line(entry, message):
    with pytest.raises(InputError) as error:
        parse_routing(entry)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ROUTERS)
def test_every_policy_names_its_source(name):
    policy = ROUTERS[name]
    assert policy.summary
    assert policy.source
    assert "\n" not in policy.summary
    assert any(word in (policy.__doc__ or "") for word in policy.source.replace("(", " ").replace(")", " ").split())
