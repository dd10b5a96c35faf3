"""`kvcast plan`: what it prints and writes, what it refuses in one line before any run, and what it keeps of a stop."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from simulator import cli
from simulator.errors import InputError
from simulator.executors import Processes
from simulator.planning import report, words
from simulator.planning.answer import Findings, Stopped
from simulator.planning.evidence import Evidence, Stage
from simulator.planning.judging import Verdict
from simulator.planning.nines import one_more
from simulator.planning.planner import find_answer, plan, read_rules
from simulator.planning.space import read_space
from simulator.scenario import load, parse
from simulator.scenario.plan_spec import target
from simulator.scenario.variants import Setting
from tests.test_plan import CHAT

SHIPPED = Path(__file__).parent.parent / "scenarios"
PLAN: dict[str, Any] = {
    "targets": {"chat": {"ttft_p90": "400 ms"}},
    "free": {"cluster.instances": "1..4"},
}


def text(plan: dict[str, Any] | None = None, /, **changes: Any) -> str:
    """The scenario with another plan and other keys, without those that are None."""
    said = yaml.safe_load(CHAT) | {"replications": 4, "plan": PLAN | (plan or {})} | changes
    return yaml.safe_dump({key: value for key, value in said.items() if value is not None})


def run(*arguments: str | Path) -> int:
    with pytest.raises(SystemExit) as ended:
        cli.main([str(argument) for argument in arguments])
    return int(ended.value.code or 0)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "chat.yaml"
    path.write_text(text())
    return path


# --- What comes out ---------------------------------------------------------------------------------------------------


def test_the_answer_is_said_in_words_and_written(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = file.parent / "plan"
    assert run("plan", file, "--jobs", "1", "-o", folder) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    assert {path.name for path in folder.iterdir()} == {"plan.json", "runs.parquet", "cost.svg", "load.svg"}
    found = json.loads((folder / "plan.json").read_text())
    assert found["verdict"] in " ".join(printed.out.split())
    number = found["answer"]["instances"]
    assert found["verdict"].startswith(f"{number} instances: ")
    for part in ("% margin", f"costs {number} an hour", "TTFT p90 of chat breaks first, at ", " times the load"):
        assert part in found["verdict"]
    assert found["headroom"] < found["breaks_at"] <= 1.06 * found["headroom"]
    rows = pd.read_parquet(folder / "runs.parquet")
    assert len(rows) == sum(found["num_runs"].values())
    assert not rows.duplicated(["setting", "load", "drawn_profile", "replication"]).any()
    own = rows[(rows["instances"] == number) & (rows["load"] == 1) & ~rows["drawn_profile"]]
    answer = next(one for one in found["settings"] if one["label"] == found["answer"]["label"])
    assert own["chat.ttft_p90"].head(answer["num_replications"]).mean() == pytest.approx(answer["targets"][0]["mean"])


def test_the_cost_of_tokens_is_the_price_over_what_is_served(file: Path) -> None:
    """By hand: 120 tokens a request and so many requests an hour."""
    findings = plan(load(file).changed(limit=60), Processes(1))
    assert findings.answer is not None
    outcomes = findings.evidence.of(findings.answer.candidate)
    tokens_per_h = sum(one.facts["output_tokens_per_s"] for one in outcomes) / len(outcomes) * 3600
    assert findings.cost_of_tokens() == pytest.approx(findings.answer.candidate.cost / tokens_per_h * 1e6)
    assert findings.cost_of_tokens("total") < findings.cost_of_tokens()


def test_json_is_all_that_is_printed_where_it_is_asked_for(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("plan", file, "--jobs", "1", "--limit", "40", "--json", "-o", file.parent / "plan") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["answer"]["label"] in found["verdict"]
    assert found["confidence"] == 0.95


def test_a_margin_within_the_error_of_the_profile_is_said(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    findings = plan(load(file).changed(limit=40), Processes(1), draws_profile=False)
    assert findings.margin is not None
    for error, said in ((findings.margin.margin + 0.01, True), (findings.margin.margin - 0.01, False), (None, False)):
        monkeypatch.setattr(Findings, "profile", {"held_out_error": error})
        assert any("measure before you buy" in line for line in words.notes(findings)) == said


def test_more_instances_that_do_worse_are_pointed_out(file: Path) -> None:
    """Where runs say so."""
    findings = plan(load(file).changed(limit=40), Processes(1), draws_profile=False)
    answer = findings.answer
    assert answer is not None
    assert not findings.surprises
    many = next(one for one in findings.space.candidates if one.instances > answer.candidate.instances)
    findings.judgements[many.place] = replace(answer, candidate=many, verdict=Verdict.MISSES)
    said = f"met by {answer.candidate.label} and not by {many.label}: more instances are not always better here"
    assert any(said in line for line in words.notes(findings))


def test_no_setting_meets_an_impossible_target_and_the_closest_is_named(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(text({"targets": {"chat": {"ttft_p50": "1 ms"}}}))
    assert run("plan", file, "--jobs", "1", "-o", file.parent / "plan") == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "No setting meets every target. The closest is " in out
    assert "TTFT p50 of chat at " in out
    assert "1 ms allowed" in out


def test_a_load_that_no_setting_serves_is_called_that(file: Path) -> None:
    busy = yaml.safe_load(CHAT)["workload"]
    busy["tenants"][0]["synthetic"]["arrivals"]["rate_per_s"] = 1000
    findings = plan(parse(text({"free": {"cluster.instances": "1..2"}}, workload=busy)), Processes(1))
    assert findings.answer is None
    assert not findings.undecided
    assert words.verdict(findings) == (
        "No setting meets every target. The closest is 2 instances, whose queues grow as long as requests come."
    )


def test_a_border_case_is_left_open_and_not_guessed(file: Path) -> None:
    """A limit at the very mean of three instances: they may meet it, and four surely do."""
    measured = plan(load(file), Processes(1), draws_profile=False)
    means = {one.candidate.instances: one.values[0].mean for one in measured.judgements.values()}
    number = min(one for one in means if not measured.judgements[one - 1].unstable and one - 1 in means)
    border = parse(text({"targets": {"chat": {"ttft_p90": f"{means[number] * 1.0001} s"}}}))
    findings = plan(border, Processes(1), draws_profile=False)
    assert number in [one.instances for one in findings.undecided]
    said = words.certainty(findings) if findings.answer else words.verdict(findings)
    assert "may" in said


# --- What is refused, before any run ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ({"targets": {}}, "plan.targets: expected a mapping of tenants to targets"),
        ({"targets": {"chat": {}}}, "plan.targets: chat: expected targets like"),
        ({"targets": {"chta": {"ttft_p90": 1}}}, "there is no tenant 'chta' (did you mean 'chat'?)"),
        ({"targets": {"chat": {"ttft_p9O": 1}}}, "chat.ttft_p9O: unknown target, expected a latency's percentile or "),
        ({"targets": {"chat": {"ttft_p90": "fast"}}}, "chat.ttft_p90: got 'fast', expected a duration"),
        ({"targets": {"chat": {"ttft_p90": 0}}}, "chat.ttft_p90: got 0, expected more than 0"),
        ({"targets": {"chat": {"goodput_share": "100 %"}}}, "chat.goodput_share: got '100 %', expected a share"),
        ({"targets": {"chat": {"ttft_p50": "2 s", "ttft_p99": "1 s"}}},
         "chat: ttft_p50 of 2 s contradicts ttft_p99 of 1 s, expected the higher percentile to have the larger limit"),
        ({"targets": {"chat": {"ttft_p90": "3 s", "e2e_p90": "2 s"}}},
         "chat: ttft_p90 of 3 s contradicts e2e_p90 of 2 s, expected less time for ttft than for e2e"),
        ({"free": {}}, "plan.free: expected a mapping of keys to values"),
        ({"free": {"cluster.instances": []}}, "cluster.instances: got 0 values, expected two or more to choose from"),
        ({"free": {"cluster.instances": [2]}}, "cluster.instances: got 1 value, expected two or more"),
        ({"free": {"cluster.instances": "4..2"}}, "cluster.instances: got '4..2', expected a range that rises"),
        ({"free": {"cluster.instances": "many"}}, "cluster.instances: got 'many', expected a list of values"),
        ({"free": {"cluster.instances": [1, 2, 2]}}, "cluster.instances: 2 is listed twice"),
        ({"free": {"cluster.instances": [1, 2.5]}}, "expected whole numbers"),
        ({"free": {"seed": [1, 2]}}, "seed: is not free, expected a key of cluster, engine"),
        ({"free": {"workload.tenants.chat.limit": [1, 2]}}, "workload.tenants.chat.limit: is not free"),
        ({"free": {"engine.max_num_seq": [1, 2]}}, "engine.max_num_seq: unknown key (did you mean 'max_num_seqs'?)"),
        ({"free": {"routing": ["random", "nobody"]}}, "plan.free: routing=nobody: routing[0]: unknown policy 'nobody'"),
        ({"free": {"routing": ["random", {"policy": "random"}]}}, "is the same setting as"),
        ({"free": {"profile": ["qwen3-0.6b-ascend910-a3", "nothing"]}},
         "plan.free: profile=nothing: profile: no shipped profile 'nothing'"),
        ({"cost": {}}, "give exactly one of instance_hour and npu_hour"),
        ({"cost": {"npu_hour": 1, "instance_hour": 1}}, "give exactly one of instance_hour and npu_hour"),
        ({"cost": {"npu_hour": {"other": 1}}}, "plan.cost: no price for the profile 'qwen3-0.6b-ascend910-a3'"),
        ({"cost": {"npu_hour": {"qwen3-0.6b-ascend910-a3": 1, "other": 1}}}, "the price of 'other' changes nothing"),
        ({"confidence": "20 %"}, "plan.confidence: got 0.2, expected greater than or equal to 0.5"),
        ({"budget": 0}, "plan.budget: got 0, expected at least 1"),
        ({"goal": "cheap"}, "plan.goal: unknown key"),
    ],
)  # fmt: skip
def test_bad_input_is_one_clear_line_before_any_run(
    plan: dict[str, Any], message: str, file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("simulator.planning.evidence.Evidence.need", None)
    file.write_text(text(plan))
    assert run("plan", file, "-o", file.parent / "plan") == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert not (file.parent / "plan").exists()


@pytest.mark.parametrize(
    ("changes", "arguments", "message"),
    [
        ({"plan": None}, (), "plan: missing, expected a mapping with targets and free"),
        ({"replications": 2}, (), "replications: got 2, expected at least 3 for a plan"),
        ({"routing": ["random", "dynamo"]}, (), "--router: missing, expected one of random, dynamo"),
        ({"plan": PLAN | {"free": {"routing": ["random", "dynamo"]}}}, ("--router", "random"),
         "--router: changes nothing, since routing is free"),
        ({"variants": {"a": {"plan": PLAN}}}, (), "variants.a: plan."),
    ],
)  # fmt: skip
def test_what_does_not_go_with_a_plan_is_refused(
    changes: dict[str, Any], arguments: tuple[str, ...], message: str, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(text(**changes))
    assert run("plan", file, *arguments) == 2
    assert message in capsys.readouterr().err


def test_a_goodput_share_needs_targets_to_be_within() -> None:
    workload = yaml.safe_load(CHAT)["workload"]
    del workload["tenants"][0]["targets"]
    with pytest.raises(InputError, match=r"plan.targets.chat.goodput_share: the tenant has no targets"):
        parse(text({"targets": {"chat": {"goodput_share": 0.9}}}, workload=workload))


def test_a_tenant_may_go_where_nobody_plans() -> None:
    """In a variant, say: the plan's targets for it are no mistake there, but are one for a plan of that variant."""
    workload = yaml.safe_load(CHAT)["workload"]
    workload["tenants"].append({**workload["tenants"][0], "name": "other"})
    alone = {"workload.tenants": [workload["tenants"][1]]}
    variant = parse(text(workload=workload, variants={"all": {}, "alone": alone})).variant("alone")
    with pytest.raises(InputError, match="plan.targets: there is no tenant 'chat'"):
        plan(variant, Processes(1))


def test_a_target_about_nothing_is_said() -> None:
    """Answers of one token have no pace."""
    workload = yaml.safe_load(CHAT)["workload"]
    workload["tenants"][0]["synthetic"]["output_tokens"] = 1
    described = parse(text({"targets": {"chat": {"tpot_mean": 1}}}, workload=workload))
    with pytest.raises(InputError, match="plan.targets.chat.tpot_mean: the tenant has no requests with a TPOT"):
        plan(described, Processes(1))


def test_a_plan_changes_no_other_command() -> None:
    """It is not in the settings that are compared, and a scenario without one has the digest that it had."""
    with_plan, without = parse(text()), parse(text(plan=None))
    one, other = with_plan.settings[0], without.settings[0]
    assert isinstance(one, Setting)
    assert one.label == other.label
    assert with_plan.digest != without.digest
    assert with_plan.with_changes({("plan",): None}).digest == without.digest


# --- Prices, nines, and stops -----------------------------------------------------------------------------------------


def test_prices_are_by_instance_or_by_npu_and_by_profile() -> None:
    """A profile of two tensor-parallel ranks has two NPUs an instance."""
    two, one = "qwen3-30b-a3b-ascend-910b3-tp2", "qwen3-0.6b-ascend910-a3"
    free = {"cluster.instances": [2, 3], "profile": [one, two]}
    engine = {"dialect": "vllm-0.23", "async_scheduling": False, "max_model_len": 4096, "max_num_seqs": 8}
    for cost, expected in (
        ({"npu_hour": 2}, [4, 6, 8, 12]),
        ({"instance_hour": {one: 1, two: 5}}, [2, 3, 10, 15]),
        ({"npu_hour": {one: 1, two: 5}}, [2, 3, 20, 30]),
    ):
        described = parse(text({"free": free, "cost": cost}, engine=engine))
        assert [one.cost for one in read_space(described, described.plan).candidates] == expected


def test_one_more_nine_is_a_tenth_of_what_may_fail() -> None:
    targets = [target("a", name, 0.99) for name in ("goodput_share", "ttft_p90", "e2e_p99", "tpot_p50", "ttft_mean")]
    assert [(one.name, one.limit, one.percent) for one in one_more(targets)] == [
        ("goodput_share", 0.999, None), ("ttft_p99", 0.99, 99), ("e2e_p99.9", 0.99, 99.9), ("tpot_p95", 0.99, 95),
        ("ttft_mean", 0.99, None),
    ]  # fmt: skip


def test_one_more_nine_costs_what_the_cheapest_that_has_it_costs_more() -> None:
    described = parse(text({"targets": {"chat": {"ttft_p50": "300 ms"}}, "free": {"cluster.instances": "1..8"}}))
    findings = plan(described, Processes(1), draws_profile=False)
    nines = findings.nines
    assert nines is not None
    assert nines.judgement is not None
    assert nines.judgement.candidate.instances >= findings.answer.candidate.instances
    assert [value.target.name for value in nines.judgement.values] == ["ttft_p95"]
    assert nines.judgement.values[0].high <= 0.3


class Interrupted:
    """Runs tasks until someone presses Ctrl-C."""

    def __init__(self, after: int) -> None:
        self.left = after

    def each(self, function: Any, tasks: Any) -> Any:
        for place, task in enumerate(tasks):
            if not self.left:
                raise KeyboardInterrupt
            self.left -= 1
            yield place, function(task)


@pytest.mark.parametrize("after", [0, 1, 7, 30])
def test_an_interrupt_keeps_what_was_computed(after: int, tmp_path: Path) -> None:
    described = parse(text())
    findings = plan(described, Interrupted(after))
    assert findings.stopped == Stopped.INTERRUPTED
    assert sum(findings.evidence.num_runs.values()) == after
    assert any("Ended early (interrupted) during" in line for line in words.notes(findings))
    report.write(findings, tmp_path)
    found = json.loads((tmp_path / "plan.json").read_text())
    assert found["stopped"] == "interrupted"
    if after < 30:
        assert found["answer"] is None or not findings.is_searched
    else:
        assert found["answer"] is not None, "the search takes 20 runs at most"


def test_an_interrupted_command_prints_what_is_known_and_ends_as_interrupted(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("simulator.executors.make_executor", lambda *_, **__: Interrupted(7))
    assert run("plan", file, "-o", file.parent / "plan") == 130
    printed = capsys.readouterr()
    assert "so far" in printed.out or "the search is not over" in printed.out
    assert printed.err.strip() == "interrupted"
    assert len(pd.read_parquet(file.parent / "plan" / "runs.parquet")) == 7


@pytest.mark.parametrize("budget", [3, 6, 25])
def test_a_budget_is_kept_and_said(budget: int) -> None:
    findings = plan(parse(text({"budget": budget})), Processes(1))
    assert sum(findings.evidence.num_runs.values()) <= budget
    assert findings.stopped == Stopped.BUDGET
    assert any("the budget is used up" in line for line in words.notes(findings))
    assert (findings.stage == Stage.SEARCH) == (not findings.is_searched)


def test_requests_that_come_all_at_once_have_no_rate_and_no_price_a_token(tmp_path: Path) -> None:
    workload = yaml.safe_load(CHAT)["workload"]
    workload["tenants"][0]["synthetic"] |= {
        "arrivals": {"process": "batch", "size": 500, "every": "1 h"}, "num_requests": 20,
    }  # fmt: skip
    findings = plan(parse(text({"targets": {"chat": {"e2e_p90": "5 s"}}}, workload=workload)), Processes(1))
    assert findings.answer is not None
    said = list(words.notes(findings))
    assert not any("million" in line or "nan" in line for line in said)
    assert {path.name for path in report.write(findings, tmp_path)} == {"plan.json", "runs.parquet", "cost.svg"}
    assert json.loads((tmp_path / "plan.json").read_text())["cost_per_million_tokens"] is None


def test_numbers_that_json_does_not_have_are_null(tmp_path: Path) -> None:
    """Everybody hangs up: no latency is finite."""
    workload = yaml.safe_load(CHAT)["workload"]
    workload["tenants"][0]["timeout"] = "1 ms"
    findings = plan(parse(text({"targets": {"chat": {"e2e_p50": "1 s"}}}, workload=workload)), Processes(1))
    assert findings.answer is None
    assert all(math.isinf(value.mean) for one in findings.judgements.values() for value in one.values)
    assert "at never" in words.verdict(findings)
    report.write(findings, tmp_path)
    assert json.loads((tmp_path / "plan.json").read_text())["settings"][0]["targets"][0]["mean"] is None


def test_the_ready_scenario_shows_what_the_readme_says() -> None:
    """Four instances are the cheapest of 16 settings, and fewer are shown to miss a target."""
    described = load(SHIPPED / "plan_chat.yaml")
    rules, space = read_rules(described), read_space(described, described.plan)
    findings = Findings(None, space, rules, Evidence(Processes(1)))  # type: ignore[arg-type]
    find_answer(findings)
    judged = findings.judgements
    met = [one.candidate for one in judged.values() if one.verdict == Verdict.MEETS]
    assert len(space.candidates) == 16
    assert min(one.cost for one in met) == 4 * 2.5
    assert all(one.verdict == Verdict.MISSES for one in judged.values() if one.candidate.instances < 4)


def test_the_plan_of_the_readme_is_one() -> None:
    from simulator.scenario.plan_spec import PlanSpec
    from tests.test_documentation import blocks

    (said,) = [block for block in blocks("text") if block.startswith("plan:")]
    spec = PlanSpec.model_validate(yaml.safe_load(said)["plan"])
    assert [one.name for one in spec.promises] == ["ttft_p90", "e2e_p99", "goodput_share"]
