"""What if: changes as people write them, what is refused, and what before and after have in common."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from simulator import cli, experiment
from simulator.comparison import Comparison
from simulator.errors import InputError
from simulator.scenario import Scenario, parse
from simulator.whatif import BEFORE, Case, ask, compared
from simulator.whatif.answer import rows, tenant_rows
from simulator.whatif.coupling import lines
from simulator.whatif.report import other_notes
from simulator.whatif.words import sentence
from simulator.wording import variant_lines
from simulator.workload import open_workload
from tests.test_variants import TEXT

SHIPPED = Path(__file__).parent.parent / "scenarios"
TRACE = str(SHIPPED / "traces" / "mooncake_conversation.jsonl.gz")

# One request at a time, a linear profile and answers of one token: each instance is a single server.
ONE_SERVER = """\
name: one_server
engine: {dialect: vllm-0.23, max_model_len: 8192, max_num_seqs: 1, async_scheduling: false}
profile: linear-8ms-50us
cluster: {instances: 1}
workload:
  tenants:
    - name: all
      targets: {ttft: 100 ms}
      synthetic:
        num_requests: 300
        arrivals: {process: poisson, rate_per_s: 4}
        suffix_tokens: {distribution: exponential, mean: 1600, high: 8000}
        output_tokens: 1
routing: [round_robin]
replications: 5
warmup: 50
"""

# Prefixes that fit into the pool, and into half of it do not.
ONE_POOL = """\
name: one_pool
engine: {dialect: vllm-0.32, max_model_len: 2048, max_num_seqs: 4, async_scheduling: false,
         num_gpu_blocks_override: 700}
profile: linear-8ms-50us
cluster: {instances: 1}
workload:
  tenants:
    - name: all
      synthetic:
        num_requests: 300
        arrivals: {process: poisson, rate_per_s: 2}
        num_prefixes: 12
        prefix_tokens: 700
        suffix_tokens: 100
        output_tokens: 4
routing: [round_robin]
replications: 5
warmup: 0
"""


def small(**more: Any) -> Scenario:
    return parse(yaml.safe_dump(yaml.safe_load(TEXT) | more, sort_keys=False), "x.yaml")


def after(*texts: str, scenario: Scenario | None = None) -> Scenario:
    (case,) = ask(scenario or small(), texts)
    return case.scenario


def answered(scenario: Scenario, *texts: str, **options: Any) -> tuple[Comparison, tuple[Case, ...]]:
    cases = ask(scenario, texts, **options)
    return experiment.compare(compared(scenario, cases), jobs=1, draws_profile=False), cases


def mean(comparison: Comparison, side: str, metric: str) -> float:
    found = comparison.estimate(side, metric)
    assert found is not None
    return found.mean


# What a change means


@pytest.mark.parametrize(
    ("text", "where", "value"),
    [
        ("rate=2x", "workload.tenants.0.synthetic.arrivals.rate_per_s", 12.0),
        ("rate=50%", "workload.tenants.1.synthetic.arrivals.rate_per_s", 0.5),
        ("rate.code=3x", "workload.tenants.1.synthetic.arrivals.rate_per_s", 3.0),
        ("rate.code=3x", "workload.tenants.1.synthetic.num_requests", 15),
        ("rate.code=3x", "workload.tenants.0.synthetic.arrivals.rate_per_s", 6.0),
        ("instances=-1", "cluster.instances", 1),
        ("instances=+2", "cluster.instances", 4),
        ("instances=6", "cluster.instances", 6),
        ("instances=2x", "cluster.instances", 4),
        ("kv_memory=50%", "engine_config.num_gpu_blocks", 1948),
        ("kv_memory=2x", "engine_config.num_gpu_blocks", 7790),
        ("engine.max_num_seqs=32", "engine.max_num_seqs", 32),
        ("engine.max_num_seqs=+16", "engine.max_num_seqs", 80),
        ("engine.max_num_batched_tokens=0.5x", "engine.max_num_batched_tokens", 1024),
        ("routing=dynamo", "routing.0.policy", "dynamo"),
        ("routing={policy: dynamo, temperature: 0.5}", "routing.0.params.temperature", 0.5),
        ("workload.tenants.chat.synthetic.suffix_tokens.mean=2x", "workload.tenants.0.synthetic.suffix_tokens.mean",
         1000),
        ("without=chat", "workload.tenants.0.name", "code"),
        ("with=chat", "workload.tenants.2.name", "chat-2"),
        ("with=code*3", "workload.tenants.4.name", "code-4"),
    ],
)  # fmt: skip
def test_a_change_sets_keys(text: str, where: str, value: object) -> None:
    found: Any = after(text)
    for part in where.split("."):
        found = found[int(part)] if part.isdigit() else getattr(found, part)
    assert found == value


def test_what_is_simulated_is_what_was_asked_for() -> None:
    """Through variants, which say the change as keys of the scenario."""
    scenario = small()
    for text in (
        "rate=2x", "kv_memory=50%", "routing={policy: dynamo, temperature: 0.5}", "with=chat*2", "without=code",
        "eviction={policy: quota, limit: {chat: 5%}}", "engine.max_num_seqs=null",
    ):  # fmt: skip
        (case,) = ask(scenario, [text])
        assert compared(scenario, [case]).variant("after").digest == case.scenario.digest, text


def test_changes_are_made_one_after_the_other() -> None:
    found = after(
        "routing=dynamo", "routing.temperature=0.5", "instances=+2", "instances=2x", "with=code", "rate.code-2=2x"
    )
    assert found.routing[0].params.temperature == 0.5  # type: ignore[attr-defined]
    assert found.cluster.instances == 8
    assert [tenant.synthetic.arrivals.rate_per_s for tenant in found.workload.tenants if tenant.synthetic] == [6, 1, 2]


def test_a_default_of_the_engine_is_a_number_to_begin_with() -> None:
    described = yaml.safe_load(TEXT)
    del described["engine"]["max_num_seqs"]
    found = after("engine.max_num_seqs=0.5x", scenario=parse(yaml.safe_dump(described)))
    assert found.engine.max_num_seqs == 128  # vLLM's 256 on Ascend


def test_a_target_keeps_its_unit() -> None:
    scenario = small().with_changes({("workload", "tenants", "chat", "targets"): {"e2e": "8 s", "tpot": "0.05"}})
    (case,) = ask(scenario, ["workload.tenants.chat.targets.e2e=2x", "workload.tenants.chat.targets.tpot=+0.03"])
    targets = case.scenario.workload.tenants[0].targets
    assert targets is not None
    assert targets.limits_s == pytest.approx({"e2e": 16.0, "tpot": 0.08})
    assert case.words.startswith("with workload.tenants.chat.targets.e2e=16.0 s (before 8.0 s) and ")
    with pytest.raises(InputError, match="targets.e2e: 80 means 80 s; write 80 ms, or 80 s if that is meant"):
        ask(scenario, ["workload.tenants.chat.targets.e2e=80"])


def test_a_tenant_out_of_a_file_has_paths_of_that_file(tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "t.jsonl.gz").write_bytes(Path(TRACE).read_bytes())
    file = tmp_path / "more" / "new.yaml"
    scenario = small()
    scenario._base_dir = tmp_path
    entry = "{name: replayed, trace: {format: mooncake, path: t.jsonl.gz}}"
    for text in (entry, f"workload: {{tenants: [{entry}]}}"):
        file.write_text(text)
        found = after(f"with={file}", scenario=scenario).workload.tenants[2]
        assert found.name == "replayed"
        assert found.trace is not None
        assert found.trace.path == "more/t.jsonl.gz"
    file.write_text("name: replayed\nsynthetic: {num_request: 4}\n")
    with pytest.raises(InputError, match=r"new.yaml: synthetic.num_request: unknown key \(did you mean 'num_requests'"):
        after(f"with={file}", scenario=scenario)


def test_words_of_changes() -> None:
    (case,) = ask(small(), ["rate=2x", "instances=-1", "kv_memory=50%", "with=chat*2", "without=code",
                            "engine.max_num_seqs=+6"])  # fmt: skip
    assert case.words == (
        "at twice the rate, with one instance fewer (1, not 2), with half the KV memory (1,948 blocks an instance, not "
        "3,895), with 2 more tenants (chat-2, chat-3) like chat, without tenant code and with engine.max_num_seqs=70 "
        "(before 64)"
    )


# What is refused


MISTAKES = [
    ([], "CHANGE: missing, expected rate=2x, instances=-1, kv_memory=50%, with=TENANT, without=TENANT or KEY=VALUE"),
    (["twice"], "CHANGE: got 'twice', expected rate=2x, instances=-1, kv_memory=50%, with=TENANT, without=TENANT or "
     "KEY=VALUE"),
    (["rate="], "CHANGE: got 'rate=', expected rate=2x, instances=-1, kv_memory=50%, with=TENANT, without=TENANT or "
     "KEY=VALUE"),
    (["rate=6"], "rate=6: got '6', expected a factor like 2x or 120%"),
    (["rate=0x"], "rate=0x: got 0.0, expected more than 0"),
    (["rate=1x"], "rate=1x: changes nothing, expected another factor than 1"),
    (["rate.chatt=2x"], "rate.chatt=2x: the scenario has no tenant 'chatt' (did you mean 'chat'?)"),
    (["rates=2x"], "rates=2x: unknown key 'rates' (did you mean 'rate'?)"),
    (["instances=+0"], "instances=+0: changes nothing, expected another number than 0"),
    (["instances=2"], "instances=2: changes nothing here"),
    (["instances=-2"], "instances=-2: cluster.instances: got 0, expected at least 1"),
    (["kv_memory=100%"], "kv_memory=100%: changes nothing, expected another factor than 1"),
    (["kv_memory=0.5%"], "kv_memory=0.5%: engine.max_model_len: got 4096, expected at most 2304: "),
    (["without=cod"], "without=cod: the scenario has no tenant 'cod' (did you mean 'code'?)"),
    (["with=cod*2"], "with=cod*2: the scenario has no tenant 'cod' (did you mean 'code'?)"),
    (["with=chat*0"], "with=chat*0: got 0 copies, expected 1 to 1,000"),
    (["with=none.yaml"], "with=none.yaml: none.yaml: no such file, expected a tenant in YAML"),
    (["without=code", "without=chat"], "without=chat: chat is the only tenant, expected one that leaves others"),
    (["engine.max_num_seq=2x"], "engine.max_num_seq=2x: engine.max_num_seq: unknown key (did you mean "
     "'max_num_seqs'?)"),
    (["engine.max_num_seqs=64"], "engine.max_num_seqs=64: changes nothing here"),
    (["engine.port=80"], "engine.port=80: changes nothing here"),
    (["engine.long_prefill_token_threshold=2x"], "engine.long_prefill_token_threshold=2x: changes nothing here"),
    (["workload.tenants.chat.timeout=2x"], "workload.tenants.chat.timeout=2x: workload.tenants.chat.timeout has no "
     "number to begin with, expected a whole value"),
    (["seed=4"], "seed=4: seed is the same before and after"),
    (["routing=[random, dynamo]"], "routing=[random, dynamo]: got 2 policies, expected one"),
    (["routing=rount_robin"], "routing=rount_robin: routing[0]: unknown policy 'rount_robin' (did you mean "),
    (["profile=qwen3-0.6b-ascend910"], "profile=qwen3-0.6b-ascend910: profile: no shipped profile "),
    (["workload.tenants.chat.priority=-1"], "workload.tenants.chat.priority=-1: workload.tenants[0].priority: got -1, "
     "which changes nothing without engine.scheduling_policy: priority"),
    (["instances=+1", "instances=-1"], "the changes together change nothing"),
    (["instances=3", "cluster.instances=4"], "cluster.instances=4: sets what instances=3 sets, expected one of the "
     "two"),
    (["rate=2x", "rate=50%"], "rate=50%: sets what rate=2x sets, expected one of the two"),
]  # fmt: skip


@pytest.mark.parametrize(("texts", "line"), MISTAKES, ids=[" ".join(texts) or "none" for texts, _ in MISTAKES])
def test_mistakes(texts: list[str], line: str) -> None:
    with pytest.raises(InputError) as error:
        ask(small(), texts)
    assert str(error.value).startswith(line)


def test_each_change_is_there_once() -> None:
    with pytest.raises(InputError, match=r"^rate=200%: the same as rate=2x, expected each change once$"):
        ask(small(), ["rate=2x", "rate=200%"], each=True)
    with pytest.raises(InputError, match=r"^rate=2x: the same as rate=2x, expected each change once$"):
        ask(small(), ["rate=2x", "rate=2x"], each=True)


# What before and after have in common


def test_before_is_the_scenario_to_the_bit() -> None:
    scenario = small()
    alone = experiment.compare(scenario, jobs=1)
    cases = ask(scenario, ["instances=-1"])
    both = experiment.compare(compared(scenario, cases), jobs=1)
    before = [run for run in both.results if run.policy == BEFORE]
    for one, other in zip(before, alone.results, strict=True):
        assert one.requests.equals(other.requests)
        assert one.summary() == other.summary()


def test_at_another_rate_the_same_requests_come_closer_together() -> None:
    scenario = small()
    comparison, cases = answered(scenario, "rate=2x")
    for number in range(scenario.replications):
        old, new = (
            next(run for run in comparison.results if (run.policy, run.replication) == (side, number)).requests
            for side in (BEFORE, "after")
        )
        old, new = (
            table[table["tenant"] == "chat"].sort_values("arrival_s", ignore_index=True) for table in (old, new)
        )
        assert len(new) == 2 * len(old)
        new = new[: len(old)]
        assert new["arrival_s"].to_numpy() == pytest.approx(old["arrival_s"].to_numpy() / 2)
        assert new["num_prompt_tokens"].equals(old["num_prompt_tokens"])
    assert lines(scenario, cases[0]) == [
        "Requests of chat, code: request n is the same draw before and after, and its gap to the one before is the "
        "same draw times 0.5."
    ]


SAME = "request n is the same draw before and after, "
SCALED = SAME + "and its gap to the one before is the same draw times 0.5"
SOURCES = {
    "gamma": ({"process": "gamma", "rate_per_s": 6, "cv": 2}, SCALED),
    "batch": ({"process": "batch", "size": 4, "every": 2}, SCALED),
    "profile": ({"process": "profile", "rates_per_s": [1, 9], "period": 20},
                SAME + "and comes when a profile twice as high has it"),
    "on_off": ({"process": "on_off", "rate_per_s": 6, "on_for": 3, "off_for": 3},
               "what request n holds is the same draw before and after; times on and off are as long, but other draws, "
               "and within them requests come at twice the rate"),
}  # fmt: skip


@pytest.mark.parametrize("process", SOURCES)
def test_what_is_said_of_drawn_arrivals_holds(process: str) -> None:
    arrivals, text = SOURCES[process]
    described = yaml.safe_load(TEXT)
    described["workload"]["tenants"][0]["synthetic"] |= {
        "arrivals": arrivals, "suffix_tokens": {"distribution": "geometric", "mean": 500}
    }  # fmt: skip
    scenario = parse(yaml.safe_dump(described))
    (case,) = ask(scenario, ["rate.chat=2x"])
    assert f"Requests of chat: {text}." in lines(scenario, case)
    old, new = (
        [request for request in open_workload(one.workload, one.seed, 0) if request.tenant == 0]
        for one in (scenario, case.scenario)
    )
    assert len(new) == 2 * len(old)
    new = new[: len(old)]
    assert [request.num_prompt_tokens for request in new] == [request.num_prompt_tokens for request in old]
    if text is SCALED:
        assert [request.arrival_s for request in new] == pytest.approx([request.arrival_s / 2 for request in old])
    if process == "profile":
        assert all(one.arrival_s < other.arrival_s for one, other in zip(new, old, strict=True))


def test_a_trace_comes_faster_and_users_become_more() -> None:
    described = yaml.safe_load(TEXT)
    described["workload"]["tenants"] = [
        {"name": "replayed", "trace": {"format": "mooncake", "path": TRACE, "limit": 20}},
        {"name": "talking", "conversations": {"num_conversations": 9, "users": {"number": 3, "pause": 1},
                                              "question_tokens": 9, "output_tokens": 9}},
    ]  # fmt: skip
    scenario = parse(yaml.safe_dump(described))
    (case,) = ask(scenario, ["rate=2x", "with=replayed"])
    assert lines(scenario, case) == [
        "Requests of replayed: the same recorded requests, with gaps 0.5 times as long.",
        "Requests of talking: twice as many users, who take turns in the same drawn conversations.",
        "Requests of replayed-2: only after; its trace as it was recorded.",
    ]


def test_what_is_the_same_in_every_replication_is_said_and_not_called_no_change() -> None:
    """A trace in turn to two instances or to one: times vary with the drawn profile, hits do not, and differ."""
    described = yaml.safe_load(TEXT)
    trace = {"format": "mooncake", "path": TRACE, "limit": 60}
    described["workload"]["tenants"] = [{"name": "replayed", "trace": trace}]
    scenario = parse(yaml.safe_dump(described | {"routing": ["round_robin"]})).changed(replications=4)
    (case,) = ask(scenario, ["instances=-1"])
    comparison = experiment.compare(compared(scenario, (case,)), jobs=1)
    before, after = (100 * mean(comparison, side, "hit_rate") for side in (BEFORE, case.label))
    assert after > before
    said = sentence(comparison, case)
    assert f"hit rate goes from {before:.3g} to {after:.3g} %, by as much in every replication" in said
    assert not any("hit rate" in part for part in said.split("; ") if part.startswith("no change is shown"))


def test_another_tenant_leaves_the_others_as_they_were_and_has_draws_of_its_own() -> None:
    comparison, cases = answered(small(), "with=chat")
    old, new = (comparison.results[place].requests for place in (0, 2))

    def sent(table: Any, tenant: str) -> list[float]:
        return sorted(table.loc[table["tenant"] == tenant, "arrival_s"])

    assert sent(new, "chat") == sent(old, "chat")
    assert sent(new, "code") == sent(old, "code")
    assert len(sent(new, "chat-2")) == len(sent(new, "chat"))
    assert set(sent(new, "chat-2")).isdisjoint(sent(new, "chat"))
    assert lines(small(), cases[0]) == [
        "Requests of chat, code: the same draws before and after.",
        "Requests of chat-2: only after; drawn from random streams of its own.",
    ]


# Which way things go


Answer = tuple[Comparison, tuple[Case, ...]]


@pytest.fixture(scope="module")
def twice() -> Answer:
    return answered(parse(ONE_SERVER), "rate=2x")


def test_twice_the_rate_makes_a_queue_longer(twice: Answer) -> None:
    """Lindley's recursion: with the same services and shorter gaps no request waits less, in any replication."""
    comparison, (case,) = twice
    waits = [comparison.samples(side, "queue_mean_s") for side in (BEFORE, "after")]
    assert all(two > one for one, two in zip(*waits, strict=True))  # type: ignore[operator]
    found = {row.shown.key: row for row in rows(comparison, "after")}
    bounds = found["output_tokens_per_s"].bounds()
    assert bounds is not None
    assert bounds[0] == pytest.approx(2, rel=0.1)
    within = next(row for row in tenant_rows(comparison, "after"))
    assert within.before is not None
    assert within.after is not None
    assert within.after.mean < within.before.mean
    said = sentence(comparison, case)
    assert said.startswith("At twice the rate p90 TTFT rises ")
    assert f"all has {100 * within.after.mean:.3g} % of its requests within its targets" in said


def test_too_high_a_rate_is_called_unstable() -> None:
    comparison, (case,) = answered(parse(ONE_SERVER), "rate=5x")
    assert sentence(comparison, case).startswith(
        "At 5 times the rate the cluster is unstable, which it was not before: waits grow as long as requests come and "
        "are left out; "
    )
    found = {row.shown.key: row for row in rows(comparison, "after")}
    assert found["ttft_p90_s"].before is not None
    assert found["ttft_p90_s"].after is None
    assert found["ttft_p90_s"].change is None


def test_one_replication_speaks_of_its_requests_only() -> None:
    comparison, (case,) = answered(small(replications=1).changed(limit=5), "instances=-1")
    why = "for these requests only (one replication, or replications that do not vary)"
    assert f": {why}; " in sentence(comparison, case)
    assert not any(row.has_interval or row.is_shown for row in rows(comparison, "after"))
    comparison, (case,) = answered(small(replications=1).changed(limit=5), "engine.max_num_seqs=63")
    assert f"nothing that is compared changes: {why}; " in sentence(comparison, case)


def test_runs_too_short_for_the_load_get_no_interval() -> None:
    comparison, (case,) = answered(parse(ONE_SERVER), "rate=2.7x")  # a load of 0.95
    assert comparison.steady_state.too_short == {"after"}
    assert ": runs are too short for the load to say how sure that is; " in sentence(comparison, case)
    assert not any(row.has_interval or row.is_shown for row in rows(comparison, "after"))
    assert rows(comparison, "after")[0].before.half_width is not None  # type: ignore[union-attr]


def test_one_instance_more_never_makes_the_mean_wait_longer(twice: Answer) -> None:
    comparison, _ = twice
    more, _ = answered(after("rate=2x", scenario=parse(ONE_SERVER)), "instances=+1")
    assert mean(more, BEFORE, "queue_mean_s") == mean(comparison, "after", "queue_mean_s")
    assert mean(more, "after", "queue_mean_s") < mean(more, BEFORE, "queue_mean_s")


def test_less_memory_never_raises_the_hits_of_a_single_lru_pool() -> None:
    """LRU's stack property."""
    scenario = parse(ONE_POOL)
    comparison, cases = answered(scenario, "kv_memory=80%", "kv_memory=50%", each=True)
    hits = [comparison.samples(side, "hit_rate") for side in (BEFORE, *(case.label for case in cases))]
    for full, less, half in zip(*hits, strict=True):
        assert full is not None
        assert less is not None
        assert half is not None
        assert full >= less >= half
        assert full > half + 0.1
    assert "hit rate falls by " in sentence(comparison, cases[1])


def test_a_change_has_the_interval_of_its_pairs_and_goes_by_the_correction_of_all() -> None:
    comparison, _ = answered(parse(ONE_SERVER), "engine.max_num_seqs=2", "rate=1.2x", each=True)
    for label in ("engine.max_num_seqs=2", "rate=1.2x"):
        pairs = {pair.metric: pair for pair in comparison.pairs() if (pair.first, pair.second) == (BEFORE, label)}
        for row in rows(comparison, label):
            assert not row.is_tested or (row.change is None) == (row.shown.key not in pairs)
            if row.is_tested and row.has_interval:
                pair = pairs[row.shown.key]
                assert row.change is not None
                assert row.change.adjusted_p == pair.adjusted_p
                assert row.change.estimate.mean == pytest.approx(-pair.estimate.mean)
                assert row.change.estimate.half_width == pytest.approx(pair.estimate.half_width)


# The command


def run(path: Path, *arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        cli.main(["whatif", str(path), "--jobs", "1", *arguments])
    return int(ended.value.code or 0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "x.yaml"
    file.write_text(TEXT.replace("[round_robin]", "[round_robin, random]"))
    return file


def test_a_ratio_is_what_the_notes_say_that_it_is(twice: Answer) -> None:
    """The geometric mean of the ratios by replication, which here is not the ratio of the means."""
    comparison, _ = twice
    found = next(row for row in rows(comparison, "after") if row.shown.key == "ttft_p90_s")
    before, after = (np.array(comparison.samples(side, "ttft_p90_s"), dtype=float) for side in (BEFORE, "after"))
    assert found.change is not None
    assert np.exp(found.change.estimate.mean) == pytest.approx(np.exp(np.log(after / before).mean()))
    assert np.exp(found.change.estimate.mean) != pytest.approx(after.mean() / before.mean(), rel=1e-3)
    assert any("geometric mean of the replications' ratios" in line for line in other_notes(comparison))


def test_the_command_prints_before_and_after(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = path.parent / "out"
    assert run(path, "--router", "random", "rate=2x", "instances=-1", "-o", str(folder)) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    assert "At twice the rate and with one instance fewer (1, not 2)" in printed.out.replace("\n", " ")
    assert "chat: p90 TTFT" in printed.out
    (found,) = json.loads((folder / "whatif.json").read_text())
    assert [change["change"] for change in found["changes"]] == ["rate=2x", "instances=-1"]
    assert {"report.html", "requests.parquet", "summary.json", "whatif.json"} <= {one.name for one in folder.iterdir()}
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["policies"] == ["before", "after"]


def test_the_command_prints_json(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--router", "random", "--each", "--json", "--limit", "5", "-o", str(path.parent / "out"))
    assert run(path, "with=code", "rate=3x", *options) == 0
    found = json.loads(capsys.readouterr().out)
    assert [case["label"] for case in found["whatif"]] == ["with=code", "rate=3x"]
    rows_found = {row["metric"]: row for row in found["whatif"][1]["rows"]}
    means = {
        (row["policy"], row["metric"]): row["mean"] for row in found["estimates"] if row["metric"] in rows_found
    }  # fmt: skip
    for metric, row in rows_found.items():
        if row["before"] is not None:
            assert row["before"]["mean"] == means["before", metric]
    assert {row["tenant"] for row in found["whatif"][0]["tenants"]} == {"chat", "code", "code-2"}


def test_a_plan_says_nothing_here(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its targets may be of a tenant that is taken away."""
    plan = "{targets: {code: {ttft_p90: 1 s}}, free: {cluster.instances: 1..4}, cost: {npu_hour: 1}}"
    path.write_text(f"{TEXT}plan: {plan}\n")
    assert run(path, "without=code", "--executor", "none", "-o", str(path.parent / "out")) == 2
    assert capsys.readouterr().err.startswith("error: --executor: ")  # what is looked at after the changes


def test_mistakes_end_with_one_line(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(path, "rate=2x") == 2
    assert capsys.readouterr().err == "error: --router: missing, expected one of round_robin, random\n"
    assert run(path, "--router", "random", "rat=2x") == 2
    assert capsys.readouterr().err == "error: rat=2x: unknown key 'rat' (did you mean 'rate'?)\n"


def test_a_report_does_not_print_whole_tenants() -> None:
    comparison, _ = answered(small().changed(limit=2), "with=chat*9")
    (line,) = (text for text in variant_lines(comparison) if text.startswith("after: "))
    assert line.startswith("after: workload.tenants=[{name: chat, ")
    assert len(line) < 200
