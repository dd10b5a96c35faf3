"""Variants of a scenario: what they change, what is refused, and that they meet the same arrivals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from simulator import cli, experiment, report, wording
from simulator.errors import InputError
from simulator.scenario import Scenario, changes, load, parse

SHIPPED = Path(__file__).parent.parent / "scenarios"
TEXT = """\
name: small
engine:
  model: Qwen/Qwen3-0.6B
  dialect: vllm-0.23
  async_scheduling: false
  max_model_len: 4096
  max_num_seqs: 64
  max_num_batched_tokens: 2048
profile: qwen3-0.6b-ascend910-a3
cluster: {instances: 2}
workload:
  tenants:
    - name: chat
      synthetic: {num_requests: 30, arrivals: {process: poisson, rate_per_s: 6}, suffix_tokens: 500, output_tokens: 20}
    - name: code
      synthetic: {num_requests: 5, arrivals: {process: fixed, rate_per_s: 1}, suffix_tokens: 900, output_tokens: 5}
routing: [round_robin]
replications: 2
"""


def scenario(variants: dict[str, dict[str, Any]], text: str = TEXT, **more: Any) -> Scenario:
    return parse(yaml.safe_dump(yaml.safe_load(text) | {"variants": variants} | more, sort_keys=False), "x.yaml")


# What a variant changes


@pytest.mark.parametrize(
    ("keys", "where", "value"),
    [
        ({"engine.max_num_seqs": 8}, "engine.max_num_seqs", 8),
        ({"engine": {"max_num_seqs": "1k"}}, "engine.max_num_seqs", 1000),
        ({"cluster": {"instances": 4}}, "cluster.instances", 4),
        ({"workload.tenants.code.synthetic.num_requests": 7}, "workload.tenants.1.synthetic.num_requests", 7),
        ({"workload.tenants[0].synthetic.num_requests": 7}, "workload.tenants.0.synthetic.num_requests", 7),
        ({"workload": {"tenants": {"chat": {"timeout": "2 min"}}}}, "workload.tenants.0.timeout", 120.0),
        ({"workload.tenants.chat.synthetic.suffix_tokens": {"distribution": "geometric", "mean": 9}},
         "workload.tenants.0.synthetic.suffix_tokens.mean", 9),
        ({"workload.tenants.chat.synthetic.suffix_tokens.mean": 400},
         "workload.tenants.0.synthetic.suffix_tokens.mean", 400),
        ({"engine.max_num_seqs": None}, "engine.max_num_seqs", None),
        ({"routing": "random"}, "routing.0.policy", "random"),
        ({"routing": {"policy": "dynamo", "event_delay": "10 ms"}}, "routing.0.params.event_delay", 0.01),
        ({"routing": ["random", "least_requests"]}, "routing.1.policy", "least_requests"),
        ({"routing": ["random", "dynamo-2025"]}, "routing.1.name", "dynamo-2025"),
    ],
)  # fmt: skip
def test_a_variant_is_the_scenario_with_other_keys(keys: dict[str, Any], where: str, value: object) -> None:
    found: Any = scenario({"as it is": {}, "other": keys}).variant("other")
    for part in where.split("."):
        found = found[int(part)] if part.isdigit() else getattr(found, part)
    assert found == value


def test_a_parameter_of_a_preset_is_changed_and_the_preset_stays() -> None:
    text = TEXT.replace("[round_robin]", "[dynamo-2025]")
    routing = scenario({"other": {"routing.event_delay": "10 ms"}}, text).variant("other").routing[0]
    assert routing.label == "dynamo-2025(event_delay=0.01)"
    routing = scenario({"other": {"routing.dynamo-2025.policy": "dynamo"}}, text).variant("other").routing[0]
    assert routing.label == "dynamo"


def test_parameters_of_the_only_policy_need_no_name() -> None:
    text = TEXT.replace("[round_robin]", "[{policy: dynamo, temperature: 0.5}]")
    for key in ("routing.event_delay", "router.event_delay", "routing.dynamo.event_delay", "routing[0].event_delay"):
        params: Any = scenario({"other": {key: "10 ms"}}, text).variant("other").routing[0].params
        assert (params.temperature, params.event_delay) == (0.5, 0.01)


@pytest.mark.parametrize("path", sorted(SHIPPED.glob("*.yaml")), ids=lambda path: path.stem)
def test_a_variant_without_changes_says_what_the_scenario_says(path: Path) -> None:
    shipped = load(path)
    fields = [name for name in Scenario.model_fields if name != "variants"]
    plain = Scenario.model_validate({name: getattr(shipped, name) for name in fields})
    assert shipped.with_changes({}).digest == plain.digest


def test_the_digest_covers_what_variants_mean_and_not_how_they_are_written() -> None:
    plain = parse(TEXT)
    dotted = scenario({"a": {}, "b": {"engine.max_num_seqs": 1024}})
    nested = scenario({"a": {}, "b": {"engine": {"max_num_seqs": "1K"}}})
    other = scenario({"a": {}, "b": {"engine.max_num_seqs": 1000}})
    assert dotted.digest == nested.digest
    assert len({plain.digest, dotted.digest, other.digest}) == 3
    assert dotted.variant("a").digest == plain.digest


def test_a_limit_also_holds_for_a_variant_with_tenants_of_its_own() -> None:
    tenants = [{"name": "new", "synthetic": {"num_requests": 9, "arrivals": {"process": "fixed", "rate_per_s": 1},
                                             "suffix_tokens": 9, "output_tokens": 1}}]  # fmt: skip
    found = scenario({"a": {}, "b": {"workload": {"tenants": tenants}}}).changed(limit=4).changed(seed=1)
    assert [tenant.limit for tenant in found.variant("b").workload.tenants] == [4]


def test_paths_are_read_as_they_are_written() -> None:
    for text in ("engine.max_num_seqs", "workload.tenants[0].synthetic.arrivals.rate_per_s", "seed"):
        assert changes.write_path(changes.read_path(text)) == text


# What is refused


MISTAKES = [
    ({"engine.max_num_sqs": 3}, "variants.b: engine.max_num_sqs: unknown key (did you mean 'max_num_seqs'?)"),
    ({"engin.max_num_seqs": 3}, "variants.b: engin: unknown key (did you mean 'engine'?)"),
    ({"cluster": {"instance": 3}}, "variants.b: cluster.instance: unknown key (did you mean 'instances'?)"),
    ({"workload.tenants.chatt.limit": 3}, "variants.b: workload.tenants: no entry 'chatt' (did you mean 'chat'?)"),
    ({"workload.tenants[5].limit": 3}, "variants.b: workload.tenants: no entry '5' (known: chat, code)"),
    ({"cluster.instances": 0}, "variants.b: cluster.instances: got 0, expected at least 1"),
    ({"cluster.instances.x": 3}, "variants.b: cluster.instances.x: cluster.instances is 2, expected a mapping"),
    ({"cluster.instances": 3, "cluster": {"instances": 4}},
     "variants.b: cluster.instances: changed twice, as cluster.instances too"),
    ({"engine..x": 2},
     "variants.b: got 'engine..x', expected a key like engine.max_num_seqs or workload.tenants[0].limit"),
    ({"seed": 4}, "variants.b: seed is the same for all variants"),
    ({"replications": 4}, "variants.b: replications is the same for all variants"),
    ({"routing": "rount_robin"}, "variants.b: routing[0]: unknown policy 'rount_robin' (did you mean 'round_robin'?)"),
    ({"engine.port": 80}, "variants.b: engine.port=80 changes nothing here, expected a setting that does, or {} for "
     "the scenario as it is"),
    ({"engine.max_num_seqs": "64"}, "variants.b: engine.max_num_seqs=64 changes nothing here, expected a setting that "
     "does, or {} for the scenario as it is"),
    ({}, "variants.b: with round_robin it is the same as variants.a"),
    ({"routing": ["random", "round_robin"]}, "variants.b: with round_robin it is the same as variants.a"),
    ({"engine.block_size": 16}, "variants.b: engine.block_size: got 16, expected 128 (vllm-ascend overwrites any other "
     "with prefix caching or chunked prefill)"),
    ({"profile": "qwen3-0.6b-ascend910"}, "variants.b: profile: no shipped profile 'qwen3-0.6b-ascend910' (did you "
     "mean 'qwen3-0.6b-ascend910-a3'?); a file is named by its path"),
]  # fmt: skip


@pytest.mark.parametrize(("keys", "line"), MISTAKES, ids=[line[12:60] for _, line in MISTAKES])
def test_mistakes(keys: dict[str, Any], line: str) -> None:
    with pytest.raises(InputError) as error:
        scenario({"a": {}, "b": keys})
    assert str(error.value).partition(" (and ")[0] == f"x.yaml: {line}"


def test_a_parameter_of_one_of_several_policies_names_it() -> None:
    with pytest.raises(InputError, match=r"routing.event_delay: the scenario has 2 policies, expected one \(or "):
        scenario({"b": {"routing.event_delay": 1}}, routing=["random", "dynamo"])


@pytest.mark.parametrize("name", ["", "a: b", " a", "(a)", "x" * 50])
def test_names_that_cannot_label_a_table(name: str) -> None:
    with pytest.raises(InputError, match="expected a short name without ':'"):
        scenario({name: {}})


# What is compared


def test_every_variant_meets_the_arrivals_of_every_other() -> None:
    """Common random numbers: what a variant does not change is drawn alike."""
    longer = {"workload.tenants.code.synthetic.output_tokens": 9}
    variants = {"two": {}, "three": {"cluster.instances": 3}, "longer": longer}
    comparison = experiment.compare(scenario(variants), jobs=1)
    assert [(run.policy, run.replication) for run in comparison.results] == [
        (name, number) for name in variants for number in range(2)
    ]
    sent = [run.requests.sort_values("request_id")[["arrival_s", "num_prompt_tokens"]] for run in comparison.results]
    for number in range(2):
        two, three, other = (sent[2 * place + number].reset_index(drop=True) for place in range(3))
        assert two.equals(three)
        assert two.equals(other)
    assert not sent[0].reset_index(drop=True).equals(sent[1].reset_index(drop=True))
    assert [run.num_instances for run in comparison.results] == [2, 2, 3, 3, 2, 2]
    lines = wording.variant_lines(comparison)
    assert lines[:2] == ["two: the scenario as it is.", "three: cluster.instances=3."]
    assert lines[3].startswith("Other requests than the scenario's are sent in longer: ")


def test_a_variant_is_what_the_changed_scenario_alone_is() -> None:
    together = experiment.compare(scenario({"two": {}, "three": {"cluster.instances": 3}}), jobs=1)
    alone = experiment.compare(parse(TEXT.replace("instances: 2", "instances: 3")), jobs=1)
    for one, other in zip(together.results[2:], alone.results, strict=True):
        assert one.requests.equals(other.requests)
        assert one.summary() == other.summary()


def test_several_policies_of_a_variant_are_told_apart() -> None:
    found = scenario({"one": {}, "two": {"routing": ["random", "least_requests"]}})
    assert [setting.label for setting in found.settings] == ["one", "two: random", "two: least_requests"]
    comparison = experiment.compare(found.changed(limit=3), jobs=1)
    assert comparison.policies == list(comparison.names.values()) == [setting.label for setting in found.settings]


def test_the_report_speaks_of_variants() -> None:
    profiles = {"one": {}, "slower": {"profile": "linear-8ms-50us", "engine.model": None}}
    comparison = experiment.compare(scenario(profiles).changed(limit=5), jobs=1)
    page = report.page(comparison)
    assert "Variants compared" in page
    assert "slower: profile=linear-8ms-50us, engine.model=null." in page
    assert "policies" not in comparison.verdict()
    basis = report.basis(comparison)
    assert "profile qwen3-0.6b-ascend910-a3" in basis.partition("slower: ")[0]
    assert "profile linear-8ms-50us" in basis.partition("slower: ")[2]
    found = json.loads(json.dumps(comparison.to_json(), allow_nan=False))
    assert [variant["name"] for variant in found["variants"]] == ["one", "slower"]


def test_run_takes_one_variant(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(TEXT + "variants: {two: {}, three: {cluster.instances: 3}}\n")

    def run(*arguments: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as ended:
            cli.main(["run", str(path), "--jobs", "1", "--limit", "3", "-o", str(tmp_path / "out"), *arguments])
        return int(ended.value.code or 0), capsys.readouterr().err

    assert run() == (2, "error: --variant: missing, expected one of two, three\n")
    wrong = "error: variants: the scenario has no variant 'tree' (did you mean 'three'?)\n"
    assert run("--variant", "tree") == (2, wrong)
    assert run("--variant", "three") == (0, "")
    found = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert found["policies"] == ["round_robin"]
    assert found["scenario"]["cluster"]["instances"] == 3


def test_the_ready_scenario_says_what_a_router_is_worth() -> None:
    """A prefix of 47 blocks for each of 120 manuals fills an instance's pool; half of them fit, and are found again."""
    comparison = experiment.compare(load(SHIPPED / "router_or_instance.yaml").changed(replications=2), jobs=1)
    hits = {name: comparison.estimate(name, "hit_rate") for name in comparison.policies}
    assert all(hits.values())
    assert hits["two by prefix"].mean > hits["two in turn"].mean + 0.2  # type: ignore[union-attr]
    first = {name: comparison.estimate(name, "ttft_p90_s").mean for name in comparison.policies}  # type: ignore[union-attr]
    assert first["two by prefix"] < first["three in turn"] < first["two in turn"]
