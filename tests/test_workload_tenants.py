"""Tenants are merged by arrival, kept apart by text, and blind to each other's draws (law 4)."""

import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest
import yaml

from simulator.request import Request
from simulator.workload import WorkloadSpec, open_workload
from simulator.workload.segments import SEGMENTS_PER_TENANT

SCENARIOS = Path(__file__).parents[1] / "scenarios"
TRACE = {"format": "mooncake", "path": "traces/mooncake_synthetic.jsonl.gz", "smooth_s": "1 s", "limit": 500}
CHAT = {
    "num_requests": 500,
    "arrivals": {"process": "gamma", "rate_per_s": 5, "cv": 2},
    "num_prefixes": 4,
    "prefix_tokens": {"distribution": "uniform", "low": 100, "high": 900},
    "suffix_tokens": {"distribution": "exponential", "mean": 50},
    "output_tokens": {"distribution": "lognormal", "mean": 20, "cv": 1},
}


def opened(*tenants, seed=0, replication=0):
    spec = WorkloadSpec.model_validate({"tenants": tenants})
    return open_workload(spec, seed, replication, SCENARIOS)


def described(request: Request, *, own: bool = False):
    """All that a request says about itself; ``own``: whatever its tenant's and its own place among the others."""
    base = request.tenant * SEGMENTS_PER_TENANT if own else 0
    prompt = tuple((None if segment is None else segment - base, start, n) for segment, start, n in request.prompt)
    fields = (
        request.arrival_s,
        prompt,
        request.num_prompt_tokens,
        request.max_tokens,
        request.oracle_num_output_tokens,
    )
    return fields if own else (*fields, request.request_id, request.tenant, request.session)


@pytest.mark.parametrize("source", [{"trace": TRACE}, {"synthetic": CHAT}], ids=["trace", "synthetic"])
@pytest.mark.parametrize("place", [0, 1])
def test_a_new_tenant_changes_no_other_tenants_requests(source, place):
    tenant = {"name": "a", **source}
    others = [{"name": "b", "synthetic": {**CHAT, "duration": "2 min", "num_requests": None}}]
    others.insert(1 - place, tenant)
    alone = [described(request, own=True) for request in opened(tenant)]
    among = [described(r, own=True) for r in opened(*others) if r.tenant == 1 - place]
    assert alone == among


def test_same_seed_same_requests_in_another_process():
    script = (
        "import sys, hashlib; sys.path[:0] = ['.', 'tests']\n"
        "from test_workload_tenants import *\n"
        "w = opened({'name': 'a', 'trace': TRACE}, {'name': 'b', 'synthetic': CHAT}, seed=5, replication=2)\n"
        "print(hashlib.sha256(repr([described(r) for r in w]).encode()).hexdigest())\n"
    )
    root = SCENARIOS.parent
    first, second = (
        subprocess.run(
            [sys.executable, "-c", script],
            cwd=root,
            env={"PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    )
    assert first == second
    assert len(first.strip()) == 64


def test_each_iteration_gives_the_same_in_fresh_objects():
    workload = opened({"name": "a", "trace": TRACE})
    first, second = list(workload), list(workload)
    assert [described(r) for r in first] == [described(r) for r in second]
    assert not {id(r) for r in first} & {id(r) for r in second}


def test_tenants_are_merged_in_order_of_arrival_and_numbered_so():
    requests = list(opened({"name": "a", "trace": TRACE}, {"name": "b", "synthetic": CHAT}))
    assert [r.request_id for r in requests] == list(range(1000))
    assert [r.arrival_s for r in requests] == sorted(r.arrival_s for r in requests)
    assert {r.tenant for r in requests} == {0, 1}


def test_equal_arrivals_go_by_tenant():
    fixed = {**CHAT, "arrivals": {"process": "fixed", "rate_per_s": 2}, "num_requests": 50}
    requests = opened({"name": "b", "synthetic": fixed}, {"name": "a", "synthetic": fixed})
    assert [r.tenant for r in requests] == [0, 1] * 50


def test_tenants_share_no_text_even_where_they_replay_one_trace():
    requests = list(opened(*({"name": name, "trace": TRACE} for name in "ab"), {"name": "c", "synthetic": CHAT}))
    texts = [{run[0] for r in requests if r.tenant == tenant for run in r.prompt} - {None} for tenant in range(3)]
    assert all(texts)
    assert len(texts[0] | texts[1] | texts[2]) == sum(map(len, texts))


def test_sessions_of_tenants_are_apart():
    trace = {**TRACE, "session_from": "second_block"}
    requests = list(opened(*({"name": name, "trace": trace} for name in "ab")))
    first, second = ({r.session for r in requests if r.tenant == tenant} - {None} for tenant in (0, 1))
    assert first
    assert not first & second


def test_a_tenants_treatment_reaches_its_requests():
    treated = {"name": "a", "priority": -3, "cache_salt": "pepper"}
    for source in ({"trace": TRACE}, {"synthetic": CHAT}):
        assert {(r.priority, r.cache_salt) for r in opened({**treated, **source})} == {(-3, "pepper")}


def test_reading_few_requests_of_endless_tenants_ends():
    endless = {**CHAT, "num_requests": 10**12}
    workload = opened({"name": "a", "synthetic": endless}, {"name": "b", "synthetic": endless})
    assert len(list(islice(workload, 10))) == 10


def test_a_workload_says_what_replications_resample():
    window = {**TRACE, "window": "5 min", "smooth_s": "3s", "rate_scale": 4}
    assert opened({"name": "a", "trace": window}).resampling == (
        "random contiguous 5 min windows of this trace, each from cold caches, arrivals spread over 3 s (seeded), "
        "at 4 times its rate, no more than 500 requests"
    )
    recorded = {"format": TRACE["format"], "path": TRACE["path"]}
    workload = opened({"name": "a", "trace": recorded}, {"name": "b", "synthetic": CHAT})
    assert workload.resampling == (
        "a: the whole trace as recorded, the same in every replication (this trace only); "
        "b: every request drawn anew (seeded)"
    )
    assert workload.tenants == ["a", "b"]
    assert workload.open_loop


@pytest.mark.parametrize("name", ["mooncake_conversation", "shared_prefix"])
def test_shipped_scenarios_have_a_workload_that_fits_their_engine(name):
    scenario = yaml.safe_load((SCENARIOS / f"{name}.yaml").read_text())
    spec = WorkloadSpec.model_validate(scenario["workload"])
    requests = list(islice(open_workload(spec, scenario["seed"], 0, SCENARIOS), 1000))
    assert len(requests) == 1000
    assert all(r.num_prompt_tokens >= 1 for r in requests)
