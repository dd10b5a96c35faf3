"""Intervals cover what queueing theory says, and runs without a steady state, or too short for one, are told apart.

Waits come from the recursions of the queues (Lindley (1952) for one server, Kiefer and Wolfowitz (1955) for several),
vectorised over replications; `test_the_simulator_is_the_recursion` shows that a cluster of ours gives the very same
waits, so that what is found of the recursion holds for the simulator.
"""

from __future__ import annotations

import math
from heapq import heappop, heappush
from random import Random
from typing import Any

import numpy as np
import pytest
from cluster_cases import config, request, step_time
from scipy.optimize import brentq

from simulator.cluster import Cluster
from simulator.comparison import Comparison
from simulator.errors import InputError
from simulator.experiment import compare
from simulator.metrics import Metrics
from simulator.routing import Hold, Router, Send
from simulator.scenario import load
from simulator.statistics import t_interval
from simulator.steady import (
    SteadyState,
    Waits,
    batches,
    grows,
    half_of_each,
    is_too_short,
    judge,
    lengthen,
    mser5,
    quarters,
)
from simulator.streams import stream
from simulator.wording import notes

TOKEN_S = 0.001  # service time a prompt token
NUM_REPLICATIONS = 20
NUM_EXPERIMENTS = 300


def waits(num_servers: int, load: float, shape: tuple[int, int], rng: np.random.Generator, fixed: bool = False):
    """Waits in mean service times: one row a replication, one column a request, from an empty start."""
    free_in = np.zeros((shape[0], num_servers))  # how long until each server is free, sorted
    found = np.empty(shape)
    for number in range(shape[1]):
        found[:, number] = free_in[:, 0]
        free_in[:, 0] += 1.0 if fixed else rng.exponential(1.0, shape[0])
        free_in = np.maximum(0.0, free_in - rng.exponential(1 / (load * num_servers), shape[0])[:, None])
        if num_servers > 1:
            free_in.sort(axis=1)
    return found


def short(series: np.ndarray) -> bool:
    """Whether runs with these waits, one row a replication, are too short."""
    return is_too_short([batches(row) for row in series])


def growing(series: np.ndarray, span_s: float) -> bool:
    """Whether these waits, one row a replication, that come within so long, grow."""
    return grows([quarters(row, span_s) for row in series])


def must_wait(num_servers: int, load: float) -> float:
    """Erlang's C: the probability that an arrival finds all servers busy."""
    work = load * num_servers
    last = work**num_servers / math.factorial(num_servers) / (1 - load)
    return last / (sum(work**k / math.factorial(k) for k in range(num_servers)) + last)


def mean_and_p90(num_servers: int, load: float, fixed: bool) -> tuple[float, float]:
    """Of the stationary wait, in mean service times: M/M/c (Erlang 1917), M/D/1 (Erlang 1909)."""
    if not fixed:
        share, pace = must_wait(num_servers, load), num_servers * (1 - load)
        return share / pace, max(0.0, math.log(share / 0.1) / pace)

    def within(time: float) -> float:
        late = [load * (k - time) for k in range(int(time) + 1)]
        return (1 - load) * sum(x**k / math.factorial(k) * math.exp(-x) for k, x in enumerate(late))

    return load / 2 / (1 - load), brentq(lambda time: within(time) - 0.9, 0, 20)


@pytest.mark.slow
@pytest.mark.parametrize("load", [0.5, 0.8])
@pytest.mark.parametrize(("num_servers", "fixed"), [(1, False), (1, True), (4, False)], ids=["M/M/1", "M/D/1", "M/M/4"])
def test_intervals_of_mean_and_p90_wait_cover(num_servers, fixed, load):
    """300 experiments of 20 replications of 10,000 requests: nominal 95 % intervals cover 92 to 98 %.

    (With ten replications it is 93 to 94 % in the long run: the means of busy periods are skewed.)
    """
    rng = stream(1, "coverage", num_servers, fixed, load)
    truth = mean_and_p90(num_servers, load, fixed)
    covered, num_short = np.zeros(2), 0
    together = 30  # experiments drawn at once: few numpy calls
    for number in range(NUM_EXPERIMENTS):
        if number % together == 0:
            drawn = waits(num_servers, load, (together * NUM_REPLICATIONS, 10_000), rng, fixed)
        found = drawn[number % together * NUM_REPLICATIONS :][:NUM_REPLICATIONS]
        found = found[:, mser5(found.mean(axis=0)) :]
        num_short += short(found)
        for which, values in enumerate((found.mean(axis=1), np.percentile(found, 90, axis=1))):
            estimate = t_interval(values)
            covered[which] += abs(estimate.mean - truth[which]) <= estimate.half_width
    shares = covered / NUM_EXPERIMENTS
    print(f" mean {shares[0]:.1%}, p90 {shares[1]:.1%}", end="")
    assert 0.92 <= shares.min() <= shares.max() <= 0.98
    assert num_short <= 0.02 * NUM_EXPERIMENTS


class OneQueue(Router):
    """Holds requests back until an instance is idle, first come, first served: an M/M/c queue of instances."""

    summary = "for tests"
    source = "none"

    def choose(self, request: Any, view: Any, now_s: float) -> Send | Hold:
        return Send(view.num_in_flight.index(0)) if 0 in view.num_in_flight else Hold()


@pytest.mark.parametrize("num_servers", [1, 4])
def test_the_simulator_is_the_recursion(num_servers):
    """The same arrivals and lengths: instances that serve one request at a time behind one queue wait as it says."""
    rng = stream(2, "recursion")
    tokens = rng.geometric(1 / 400, 2_000).tolist()
    times_s = np.cumsum(rng.exponential(0.4 / (0.8 * num_servers), 2_000)).tolist()
    free_s, expected_s = [0.0] * num_servers, []
    for time_s, length in zip(times_s, tokens, strict=True):
        start_s = max(time_s, heappop(free_s))
        expected_s.append(start_s - time_s)
        heappush(free_s, start_s + length * TOKEN_S)
    served = [request(number, *one, 1) for number, one in enumerate(zip(times_s, tokens, strict=True))]
    engine = config(
        block_size=256, num_gpu_blocks=82, max_model_len=20_001, max_num_seqs=1, max_num_batched_tokens=20_001,
        enable_prefix_caching=False,
    )  # fmt: skip
    times = step_time(prefill_token_s=TOKEN_S, decode_token_s=TOKEN_S)
    Cluster(engine, times, OneQueue(None, num_servers, Random(0)), num_servers, Metrics(num_servers)).run(iter(served))
    assert [one.first_scheduled_s - one.arrival_s for one in served] == pytest.approx(expected_s, abs=1e-9)


def test_a_run_too_short_for_its_load_is_found():
    """M/M/1 at load 0.9 with 2,000 requests: nearly always; at 0.8 with 10,000: nearly never."""
    rng = stream(3, "short")
    found = [short(waits(1, 0.9, (10, 2_000), rng)) for _ in range(60)]
    long = [short(waits(1, 0.8, (10, 10_000), rng)) for _ in range(20)]
    assert np.mean(found) > 0.93
    assert not any(long)


def test_so_many_times_as_many_requests_as_is_said_mostly_do():
    """M/M/1 at load 0.9: runs of 2,000 and of 1,000 requests are too short, and those that are asked for seldom."""
    rng = stream(10, "longer")
    for number, most in ((2_000, 0.2), (1_000, 0.5)):
        times = [lengthen([batches(row) for row in waits(1, 0.9, (10, number), rng)]) for _ in range(20)]
        longer = number * int(np.median(times))
        assert longer <= 20_000, "nor more than it takes"
        assert np.mean([short(waits(1, 0.9, (10, longer), rng)) for _ in range(20)]) <= most


def test_replications_with_profiles_of_their_own_are_not_too_short_for_being_unlike():
    """The same waits, 0.6 to 1.6 times as long in each replication: what no longer run would change."""
    rng = stream(8, "levels")
    levels = np.geomspace(0.6, 1.6, 10)[:, None]
    assert not any(short(levels * waits(1, 0.8, (10, 10_000), rng)) for _ in range(10))
    assert np.mean([short(levels * waits(1, 0.9, (10, 2_000), rng)) for _ in range(30)]) > 0.8
    slow = 1 + 0.02 * np.sin(np.linspace(0, 20, 2_000)) + rng.normal(0, 0.01, (10, 2_000))
    assert not short(levels * slow), "however slowly, 2 % up and down is not what the interval is of"


def test_an_overload_is_found_and_a_stable_queue_is_not_called_one():
    rng = stream(4, "overload")
    for rho, least, most in ((1.2, 1.0, 1.0), (0.9, 0.0, 0.02)):
        found = np.mean([growing(waits(1, rho, (10, 2_000), rng), 2_000 / rho) for _ in range(50)])
        assert least <= found <= most, rho
    assert not growing(waits(1, 1.2, (2, 2_000), rng), 2_000 / 1.2), "two replications cannot tell"


def test_waits_that_rise_with_a_long_start_are_no_overload():
    """From 10 to 50 ms within an hour; an overload by 2 % would have everybody wait for a minute by then."""
    rng = stream(9, "start")
    rising_s = np.linspace(0.01, 0.05, 4_000) + rng.normal(0, 0.002, (8, 4_000))
    assert not growing(rising_s, 3_600)
    assert growing(rising_s, 10)
    overload_s = np.linspace(0, 0.02 * 3_600, 4_000) + rng.normal(0, 0.002, (8, 4_000))
    assert growing(overload_s, 3_600)


def watched(rows) -> list[Waits]:
    """One tenant's, a second apart."""
    return [Waits(row, float(len(row)), np.zeros(len(row), int)) for row in rows]


def test_of_a_run_without_requests_nothing_is_told():
    assert short(np.empty((4, 0)))


def test_mser5_cuts_a_start_that_is_not_like_the_rest_and_nothing_else():
    """A level that decays over the first 300 of 5,000 observations; the same noise without it; too few of them."""
    rng = stream(5, "mser")
    noise = rng.normal(10, 1, 5_000)
    start = np.where(np.arange(5_000) < 300, 8.0, 0.0)
    assert 295 <= mser5(noise + start) <= 400
    assert mser5(noise) <= 1_000
    assert mser5(np.full(5_000, 3.0)) == 0
    assert mser5((noise + start)[:99]) == 0


def test_never_more_than_half_is_cut():
    assert mser5(np.arange(1_000.0)) <= 500


def test_of_runs_that_differ_in_length_no_more_than_half_of_the_shortest_is_cut():
    """At twice the rate a run has twice the requests: a start of 900 in 2,000 is nearly all of the run of 1,000."""
    rng = stream(7, "judge")
    short = [rng.normal(10, 1, 1_000) for _ in range(5)]
    long = [rng.normal(10, 1, 2_000) + np.where(np.arange(2_000) < 900, 8.0, 0.0) for _ in range(5)]
    assert mser5(np.mean(long, axis=0)) >= 900
    assert judge({"before": watched(short), "after": watched(long)}, is_stationary=True).num_skipped == 500
    assert judge({"after": watched(long)}, is_stationary=True).num_skipped >= 900


def test_one_cut_serves_all_settings_and_the_scenario_may_say_it():
    """The longest of their own: here the second setting starts cold for 200 requests, the first does not."""
    rng = stream(6, "judge")
    warm = [rng.normal(10, 1, 3_000) for _ in range(5)]
    cold = [row + np.where(np.arange(3_000) < 200, 9.0, 0.0) for row in warm]
    both = {"warm": watched(warm), "cold": watched(cold)}
    found = judge(both, is_stationary=True)
    assert found.method == "MSER-5"
    assert 200 <= found.num_skipped == max(mser5(np.mean(rows, axis=0)) for rows in (warm, cold))
    assert judge(both, 17, is_stationary=True) == SteadyState(17, "given")
    assert judge(both, is_stationary=False) == SteadyState()
    assert judge({name: runs[:1] for name, runs in both.items()}, is_stationary=True) == SteadyState(), "never per run"


SCENARIO = """
name: steady
engine: {dialect: vllm-0.23, async_scheduling: false, max_model_len: 4096, max_num_seqs: 8}
profile: qwen3-0.6b-ascend910-a3
cluster: {instances: 1}
workload:
  tenants:
    - name: chat
      synthetic:
        num_requests: 400
        arrivals: {process: poisson, rate_per_s: RATE}
        suffix_tokens: 500
        output_tokens: 20
routing: [random]
replications: 4
"""


def compared(tmp_path, rate: str, **changes: Any) -> Comparison:
    path = tmp_path / "steady.yaml"
    path.write_text(SCENARIO.replace("RATE", rate))
    return compare(load(path).with_changes({(key,): value for key, value in changes.items()}), jobs=1)


def test_an_unstable_setting_has_no_latencies_and_is_named(tmp_path):
    """Eight seats of about 0.7 s serve some 11 requests a second: at 100 a second waits grow to the end of the run."""
    comparison = compared(tmp_path, "100")
    assert comparison.steady_state.unstable == {"random"}
    assert comparison.estimate("random", "ttft_p90_s") is None
    assert comparison.estimate("random", "output_tokens_per_s").mean > 0
    assert any(line.startswith("Unstable at this rate: random.") for line in notes(comparison))


def test_a_tenant_that_starves_makes_the_cluster_unstable(tmp_path):
    """One seat. Who goes first takes half of the time, and who goes last asks for 0.4 or 0.8 of it: in the second half
    of its requests, which are served when the others have stopped coming, it waits no longer than in the first.
    """
    path = tmp_path / "steady.yaml"
    text = SCENARIO.replace("max_num_seqs: 8", "max_num_seqs: 1, scheduling_policy: priority")
    path.write_text(text.replace("qwen3-0.6b-ascend910-a3", "linear-8ms-50us").replace("RATE", "5"))
    described = load(path).model_dump(mode="json", exclude_unset=True)["workload"]["tenants"][0]
    for rate, is_unstable in ((1, False), (2, True)):
        first = described | {"name": "first", "synthetic": described["synthetic"] | {
            "num_requests": 1_000, "suffix_tokens": 1_840, "output_tokens": 1}}  # fmt: skip
        last = described | {"name": "last", "priority": 1, "synthetic": described["synthetic"] | {
            "num_requests": 200 * rate, "suffix_tokens": 3_840, "output_tokens": 26,
            "arrivals": {"process": "poisson", "rate_per_s": rate}}}  # fmt: skip
        found = compare(load(path).with_changes({("workload", "tenants"): [first, last]}), jobs=1)
        assert bool(found.steady_state.unstable) is is_unstable, rate


def test_runs_of_few_requests_say_that_they_tell_of_no_steady_state(tmp_path):
    said = "A run has 99 requests, of 100 at least an overload could be told from a steady load"
    for limit, is_said in ((99, True), (100, False)):
        path = tmp_path / "steady.yaml"
        path.write_text(SCENARIO.replace("RATE", "100"))
        found = notes(compare(load(path).changed(limit=limit), jobs=1))
        assert any(line.startswith(said) for line in found) is is_said


@pytest.mark.parametrize(("num_requests", "is_said"), [(100, True), (400, False)])
def test_a_tenant_that_is_done_early_is_named(tmp_path, num_requests, is_said):
    """Beside 400 requests at 2 a second another tenant sends as often, for as long or a quarter of it."""
    path = tmp_path / "steady.yaml"
    path.write_text(SCENARIO.replace("RATE", "2"))
    first = load(path).model_dump(mode="json", exclude_unset=True)["workload"]["tenants"][0]
    second = first | {"name": "second", "synthetic": first["synthetic"] | {"num_requests": num_requests}}
    both = load(path).with_changes({("workload", "tenants"): [first, second], ("replications",): 2})
    said = [line for line in notes(compare(both, jobs=1)) if line.startswith("Tenants do not send for equally long")]
    assert bool(said) is is_said
    assert all("second has sent its last after" in line for line in said)


def conversations(tmp_path, think_time: str, **changes: Any) -> Comparison:
    """40 begin within 20 s and take three turns each."""
    path = tmp_path / "steady.yaml"
    path.write_text(SCENARIO.replace("RATE", "2"))
    talks = {
        "num_conversations": 40,
        "arrivals": {"process": "fixed", "rate_per_s": 2},
        "layers": [{"name": "system", "tokens": 500}],
        "turns": 3,
        "question_tokens": 50,
        "output_tokens": 20,
        "think_time": think_time,
    }
    changes = {"replications": 2, "warmup": 0, **changes}
    tenants = [{"name": "chat", "conversations": talks}]
    found = load(path).with_changes({("workload", "tenants"): tenants} | {(key,): changes[key] for key in changes})
    return compare(found, jobs=1)


@pytest.mark.parametrize(("think_time", "is_long"), [("100 s", True), ("1 s", False)])
def test_turns_that_come_after_the_last_conversation_has_begun_do_not_count(tmp_path, think_time, is_long):
    """With 100 s between turns two thirds come then, under a fading load: half of the run is kept, and it is said."""
    comparison = conversations(tmp_path, think_time)
    (line,) = [line for line in notes(comparison) if line.startswith("A cool-down ends every run, ")]
    assert ("the load is on average up to 67% lower than in the long run" in line) is is_long
    for whole, counted in zip(comparison.results, comparison.counted, strict=True):
        rows, begins = whole.requests, whole.requests.drop_duplicates("session")
        late = rows["arrival_s"] > max(begins["arrival_s"].max(), rows["arrival_s"].median())
        assert counted.num_cooldown == late.sum() > 0
        assert counted.requests["ttft_s"].tolist() == rows["ttft_s"][~late].tolist()
    assert conversations(tmp_path, think_time, replications=1).counted[0].num_cooldown == 0, "a run is the thing itself"


def test_the_busy_share_is_that_of_the_time_before_the_cool_down(tmp_path):
    """Over the bins until then; the mean over instances is the cluster's."""
    comparison = conversations(tmp_path, "100 s", cluster={"instances": 2})
    for whole, counted in zip(comparison.results, comparison.counted, strict=True):
        line = whole.timeline[whole.timeline["start_s"] <= counted.requests["arrival_s"].max()]
        expected = line["busy_s"].sum() / line["width_s"].sum()
        assert counted.summary()["busy_share"] == pytest.approx(expected)
        assert np.mean([one["busy_share"] for one in counted.by_instance()]) == pytest.approx(expected)
        assert 0 < counted.summary()["kv_usage_mean"] < 1
        assert whole.summary()["busy_share"] != pytest.approx(expected)


def test_what_is_counted_of_conversations_is_the_load_of_the_long_run(tmp_path):
    """2 conversations of 3 turns begin a second: 6 requests a second, from when the first ones end."""
    comparison = conversations(tmp_path, "1 s", warmup=15)
    for counted in comparison.counted:
        assert len(counted.requests) / counted.arriving_s == pytest.approx(6, rel=0.05)
    for whole in comparison.results:
        assert len(whole.requests) / whole.arriving_s < 5.7


def test_the_ceiling_of_all_requests_says_that_it_counts_the_warm_up(tmp_path):
    """All send one text: what is counted after the first request hits more than a cache that has to be filled."""
    path = tmp_path / "steady.yaml"
    path.write_text(SCENARIO.replace("RATE", "2"))
    first = load(path).model_dump(mode="json", exclude_unset=True)["workload"]["tenants"][0]
    source = first["synthetic"] | {"num_requests": 40, "num_prefixes": 1, "prefix_tokens": 500, "suffix_tokens": 10}
    tenants = [first | {"cache_salt": "own", "synthetic": source}]
    for warmup, is_said in ((5, True), (0, False)):
        comparison = compare(load(path).with_changes({("workload", "tenants"): tenants, ("warmup",): warmup}), jobs=1)
        said = [line for line in notes(comparison) if line.startswith("In one cache that never evicts")]
        assert ["those of the warm-up too" in line for line in said] == [is_said]


def test_a_warm_up_that_nobody_stated_leaves_every_tenant_half_of_its_requests():
    """Of a series that MSER-5 would cut after 100 one tenant sends every other one of the first 60."""
    series = np.concatenate([np.full(100, 9.0), np.ones(400)]) + stream(0, "cut").normal(0, 0.1, 500)
    sender = np.where((np.arange(500) < 60) & (np.arange(500) % 2 == 0), "short", "long")
    most = half_of_each(sender)
    assert most == 30
    assert (sender[:most] == "short").sum() == (sender[most:] == "short").sum()
    alone = {"": watched([series, series])}
    both = {"": [run._replace(tenant=(sender == "short").astype(int)) for run in alone[""]]}
    assert judge(alone, is_stationary=True).num_skipped >= 100
    assert judge(both, is_stationary=True).num_skipped == most
    assert judge(both, 80, is_stationary=True).num_skipped == 80


@pytest.mark.parametrize(("warmup", "is_said"), [(200, True), (20, False)])
def test_a_tenant_that_the_warm_up_is_all_of_is_named(tmp_path, warmup, is_said):
    """Of two tenants at one rate the second sends 30 requests, which are over before the first 200 of both."""
    path = tmp_path / "steady.yaml"
    path.write_text(SCENARIO.replace("RATE", "2"))
    first = load(path).model_dump(mode="json", exclude_unset=True)["workload"]["tenants"][0]
    second = first | {"name": "second", "synthetic": first["synthetic"] | {"num_requests": 30}}
    changes = {("workload", "tenants"): [first, second], ("replications",): 2, ("warmup",): warmup}
    said = [line for line in notes(compare(load(path).with_changes(changes), jobs=1)) if "all that second sent" in line]
    assert bool(said) is is_said


def test_a_stated_warm_up_counts_nowhere_and_is_said(tmp_path):
    comparison = compared(tmp_path, "2", warmup=150)
    whole = compared(tmp_path, "2", warmup=0)
    assert [len(result.requests) for result in comparison.counted] == [250] * 4
    assert comparison.summaries["random"][0]["num_requests"] == 250
    last = comparison.results[0].requests.sort_values("arrival_s")[150:]
    assert comparison.summaries["random"][0]["ttft_mean_s"] == pytest.approx(last["ttft_s"].mean())
    assert whole.summaries["random"][0]["num_requests"] == 400
    assert any("warm-up of 150 requests" in line for line in notes(comparison))


def test_a_warm_up_as_long_as_the_run_is_refused(tmp_path):
    with pytest.raises(InputError, match="^warmup: got 400, a run has 400 requests, expected fewer than that$"):
        _ = compared(tmp_path, "2", warmup=400).counted
    assert len(compared(tmp_path, "2", warmup=399).counted[0].requests) == 1


@pytest.mark.parametrize("wrong", ["soon", -1, 1.5])
def test_a_bad_warm_up_is_one_clear_line(tmp_path, wrong):
    with pytest.raises(InputError, match="warmup.*expected auto or a whole number of requests"):
        compared(tmp_path, "2", warmup=wrong)
