"""Clients that react: turns, closed loops, time-outs and retries, on the simulated cluster."""

from __future__ import annotations

import random
from typing import Any

import pytest
from engine import engine_config

from simulator.cluster import Cluster
from simulator.errors import InputError
from simulator.metrics import Metrics
from simulator.result import RunResult
from simulator.routing import make_router, parse_routing
from simulator.step_time import FORMULAS
from simulator.workload import WorkloadSpec, open_workload

ENGINE = engine_config(
    block_size=16, num_gpu_blocks=3000, max_model_len=8192, max_num_batched_tokens=2048, max_num_seqs=64,
)  # fmt: skip
TIMES = {
    "step_s": 0.01, "prefill_token_s": 1e-4, "prefill_pair_s": 0.0, "decode_token_s": 0.0, "decode_context_s": 0.0,
}  # fmt: skip
CHAT: dict[str, Any] = {
    "num_conversations": 30,
    "arrivals": {"process": "poisson", "rate_per_s": 2.0},
    "layers": [{"name": "system", "tokens": 256}],
    "turns": {"distribution": "geometric", "mean": 3, "high": 8},
    "question_tokens": {"distribution": "lognormal", "mean": 60, "cv": 1},
    "output_tokens": {"distribution": "geometric", "mean": 40},
    "think_time": {"distribution": "exponential", "mean": "2 s"},
    "agents": {"number": 2, "share_of_turns": 0.2, "task_tokens": 30, "output_tokens": 20, "report_tokens": 10},
}


def served(
    tenant: dict[str, Any], *, router: str = "round_robin", instances: int = 2, **modes: bool
) -> tuple[Any, Any]:
    """The rows of a run and its metrics."""
    spec = WorkloadSpec.model_validate({"tenants": [{"name": "t", **tenant}]})
    workload = open_workload(spec, 3, 0)
    metrics = Metrics(instances, workload.tenants)
    policy = make_router(parse_routing(router), instances, random.Random(0))
    cluster = Cluster(ENGINE, FORMULAS["linear"](TIMES), policy, instances, metrics, **modes)
    cluster.run(workload)
    assert cluster.num_arrived == metrics.num_requests
    return metrics.table().sort_values("request_id").reset_index(drop=True), metrics


@pytest.mark.parametrize("tenant", [
    {"conversations": CHAT},
    {"conversations": CHAT, "timeout": "600 ms", "retries": 2, "retry_after": "1 s"},
    {"conversations": CHAT, "abandons": {"share": 0.5, "after": {"distribution": "exponential", "mean": "300 ms"}}},
    {"synthetic": {"num_requests": 200, "arrivals": {"process": "gamma", "rate_per_s": 20, "cv": 3},
                   "suffix_tokens": 300, "output_tokens": {"distribution": "geometric", "mean": 60}}, "timeout": "1 s"},
])  # fmt: skip
@pytest.mark.parametrize("router", ["round_robin", "dynamo"])
def test_law_7_holds_when_clients_react(tenant: dict[str, Any], router: str) -> None:
    """Taking many steps at once gives the same rows as taking each, to the bit, though arrivals depend on ends."""
    advancing, _ = served(tenant, router=router)
    stepping, _ = served(tenant, router=router, advancing=False)
    plain, _ = served(tenant, router=router, advancing=False, grouping=False)
    assert advancing.equals(stepping)
    assert advancing.equals(plain)
    assert len(advancing) >= 30


def test_another_router_changes_no_text() -> None:
    first, other = (served({"conversations": CHAT}, router=name)[0] for name in ("round_robin", "least_requests"))
    what = ["session", "num_prompt_tokens", "num_output_tokens"]
    assert sorted(map(tuple, first[what].to_numpy())) == sorted(map(tuple, other[what].to_numpy()))


def test_a_follow_up_finds_the_whole_conversation_in_the_cache() -> None:
    """On one instance with room for all: cached are all full blocks of prompt and answer of the turn before, whose last
    token was never computed.
    """
    spec = CHAT | {"turns": 4, "num_conversations": 3}
    del spec["agents"]
    rows, _ = served({"conversations": spec}, instances=1)
    for _, turns in rows.groupby("session"):
        known = turns["num_prompt_tokens"] + turns["num_output_tokens"] - 1
        expected = (known // ENGINE.block_size * ENGINE.block_size).shift(1)
        assert (turns["num_cached_tokens"][1:] == expected[1:]).all()


BUSY: dict[str, Any] = {
    "synthetic": {"num_requests": 40, "arrivals": {"process": "batch", "size": 40, "every": "1 h"},
                  "suffix_tokens": 2000, "output_tokens": 5},
}  # fmt: skip


class TestHangingUp:
    def test_a_request_ends_with_the_step_in_which_its_client_hangs_up(self) -> None:
        rows, _ = served(BUSY | {"timeout": "3 s"}, instances=1)
        gone = rows[rows["state"] == "aborted"]
        assert 0 < len(gone) < 40
        late_s = gone["finish_s"] - gone["arrival_s"] - 3
        longest_step_s = 0.01 + ENGINE.max_num_batched_tokens * 1e-4
        assert (late_s >= 0).all()
        assert (late_s <= longest_step_s + 1e-9).all()
        assert (rows.loc[rows["state"] == "finished", "e2e_s"] <= 3 + longest_step_s).all()

    def test_who_hangs_up_in_the_step_of_the_first_token_never_sees_it(self) -> None:
        """2,000 tokens take a step of 210 ms."""
        tenant = {"synthetic": BUSY["synthetic"] | {"num_requests": 1}}
        for timeout, answered in (("209 ms", False), ("211 ms", True)):
            rows, metrics = served(tenant | {"timeout": timeout}, instances=1)
            assert list(rows["state"]) == ["aborted"]
            assert list(rows["ttft_s"].notna()) == [answered]
            assert rows["finish_s"][0] == pytest.approx(0.22 if answered else 0.21)
            result = RunResult.of(metrics, policy="p", replication=0)
            assert (result.summary()["ttft_mean_s"] is not None) == answered

    @pytest.mark.parametrize("modes", [{}, {"advancing": False}, {"advancing": False, "grouping": False}])
    @pytest.mark.parametrize("router", ["least_requests", "dynamo"])
    def test_no_first_token_comes_after_the_time_out(self, router: str, modes: dict[str, bool]) -> None:
        rows, metrics = served(BUSY | {"timeout": "3 s", "retries": 1}, router=router, **modes)
        assert rows["ttft_s"].max() < 3
        unseen = rows[rows["ttft_s"].isna() & (rows["num_output_tokens"] > 0)]
        assert len(unseen) > 0
        assert (unseen["state"] == "aborted").all()
        assert metrics.gaps.weight == (rows["num_output_tokens"] - 1).clip(lower=0).sum()

    def test_who_hangs_up_leaves_room_for_others(self) -> None:
        """The last of forty would wait for all the others' prompts."""
        patient, _ = served(BUSY, instances=1)
        rows, _ = served(BUSY | {"timeout": "3 s"}, instances=1)
        assert rows["finish_s"].max() < patient["finish_s"].max()
        assert (patient["state"] == "finished").all()

    def test_a_retry_asks_the_same_again_and_finds_what_was_computed(self) -> None:
        rows, _ = served(BUSY | {"timeout": "3 s", "retries": 1, "retry_after": "500 ms"}, instances=1)
        again = rows[rows["arrival_s"] > 0]
        gone = rows[(rows["state"] == "aborted") & (rows["arrival_s"] == 0)]
        assert len(again) == len(gone) > 0
        assert (again["arrival_s"].to_numpy() >= 3.5).all()
        assert set(again["num_prompt_tokens"]) == {2000}

    def test_all_give_up_in_the_end_if_nothing_is_fast_enough(self) -> None:
        rows, _ = served(BUSY | {"timeout": "20 ms", "retries": 2}, instances=1)
        assert (rows["state"] == "aborted").all()
        assert len(rows) == 3 * 40

    def test_a_share_of_readers_abandons(self) -> None:
        tenant = {"synthetic": {"num_requests": 2000, "arrivals": {"process": "poisson", "rate_per_s": 1},
                                "suffix_tokens": 10, "output_tokens": 100},
                  "abandons": {"share": 0.25, "after": "100 ms"}}  # fmt: skip
        rows, _ = served(tenant)
        assert (rows["state"] == "aborted").mean() == pytest.approx(0.25, abs=4 * (0.25 * 0.75 / 2000) ** 0.5)


def test_the_loop_is_closed_only_where_something_follows() -> None:
    def is_open(**tenant: Any) -> bool:
        return open_workload(WorkloadSpec.model_validate({"tenants": [{"name": "t", **tenant}]}), 0, 0).open_loop

    arrivals = {"process": "poisson", "rate_per_s": 1}
    one = {"num_requests": 1, "arrivals": arrivals, "suffix_tokens": 1, "output_tokens": 1}
    assert is_open(synthetic=one)
    assert is_open(synthetic=one, timeout="1 s")
    assert not is_open(synthetic=one, timeout="1 s", retries=1)
    assert not is_open(conversations=CHAT)


class TestFindings:
    """What a reviewer broke once."""

    def test_shares_of_time_never_exceed_one(self) -> None:
        """All long requests give up after the only short one has finished: the run lasts until they do."""
        rows, metrics = served(BUSY | {"timeout": "3 s"}, instances=1)
        result = RunResult.of(metrics, policy="p", replication=0)
        assert result.span_s == rows["finish_s"].max() - rows["arrival_s"].min()
        assert 0 < result.summary()["busy_share"] <= 1  # type: ignore[operator]

    def test_rates_are_zero_where_all_give_up(self) -> None:
        _, metrics = served(BUSY | {"timeout": "20 ms"}, instances=1)
        result = RunResult.of(metrics, policy="p", replication=0, targets_s=[{"ttft": 1.0}])
        assert result.summary()["requests_per_s"] == 0
        assert result.by_tenant()[0]["goodput"] == 0

    def test_a_client_asks_again_when_it_hangs_up_not_when_the_engine_notices(self) -> None:
        """A prompt of 8,000 tokens takes four steps of 0.2 s; the client gives up after 0.1 s, asks 50 ms later."""
        one = {"num_requests": 1, "arrivals": {"process": "batch", "size": 1, "every": "1 h"}, "suffix_tokens": 8000,
               "output_tokens": 5}  # fmt: skip
        rows, _ = served({"synthetic": one, "timeout": "100 ms", "retries": 1, "retry_after": "50 ms"}, instances=1)
        assert list(rows["arrival_s"]) == [0.0, pytest.approx(0.15)]
        assert list(rows["num_retries"]) == [0, 1]
        assert (rows["finish_s"] > rows["arrival_s"] + 0.1).all()

    def test_sub_agents_are_given_up_one_by_one(self) -> None:
        """Half of them in the mean; of three, all or none only as often as three coins agree."""
        spec = CHAT | {
            "turns": 1, "num_conversations": 200, "agents": CHAT["agents"] | {"number": 3, "share_of_turns": 1.0},
        }  # fmt: skip
        del spec["think_time"]
        rows, _ = served({"conversations": spec, "abandons": {"share": 0.5, "after": "1 ms"}}, instances=2)
        agents = rows[rows.groupby("session").cumcount() > 0]
        by_session = (agents["state"] == "aborted").groupby(agents["session"]).sum()
        full = by_session[agents.groupby("session").size() == 3]
        mixed = ((full > 0) & (full < 3)).mean()
        assert mixed == pytest.approx(0.75, abs=4 * (0.75 * 0.25 / len(full)) ** 0.5)

    def test_another_tenant_changes_no_abandoning(self) -> None:
        spec = CHAT | {"num_conversations": 60}
        mine = {"name": "b", "conversations": spec, "abandons": {"share": 0.5, "after": "1 ms"}}
        one = {"num_requests": 1, "arrivals": {"process": "poisson", "rate_per_s": 1}, "suffix_tokens": 1,
               "output_tokens": 1}  # fmt: skip
        limits = []
        for tenants in ([mine], [{"name": "a", "synthetic": one}, mine]):
            workload = open_workload(WorkloadSpec.model_validate({"tenants": tenants}), 0, 0)
            limits.append([request.timeout_s for request in workload if request.tenant == len(tenants) - 1])
        assert limits[0] == limits[1]
        assert None in limits[0]

    def test_a_reader_who_gives_up_at_the_time_out_does_not_ask_again(self) -> None:
        rows, _ = served(BUSY | {"timeout": "100 ms", "retries": 1, "abandons": {"share": 1, "after": "100 ms"}})
        assert len(rows) == 40

    def test_a_user_whose_requests_end_at_once_is_no_endless_loop(self) -> None:
        users = {"users": {"number": 2}, "duration": "10 s", "question_tokens": 40_000, "output_tokens": 10}
        with pytest.raises(InputError, match=r"expected users\.pause above 0"):
            served({"conversations": users})
