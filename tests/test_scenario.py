"""Scenario files: what they mean, and the one line that each mistake gets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from simulator import scenario
from simulator.engine_args import EngineArgs, platform, read_command, refusal, resolve
from simulator.errors import InputError
from simulator.profile import Profile, load_profile
from simulator.workload import open_workload

SHIPPED = Path(__file__).parent.parent / "scenarios"

TEXT = """\
name: small
engine:
  model: Qwen/Qwen3-0.6B
  dialect: vllm-0.23
  async_scheduling: false
  max_model_len: 4096
  max_num_seqs: 64
profile: qwen3-0.6b-ascend910-a3
cluster: {instances: 2}
workload:
  tenants:
    - name: chat
      synthetic: {num_requests: 10, arrivals: {process: poisson, rate_per_s: 6}, suffix_tokens: 500, output_tokens: 20}
routing:
  - round_robin
  - {policy: longest_prefix, index: dispatch}
"""


def refused(text: str) -> str:
    with pytest.raises(InputError) as error:
        scenario.parse(text, "x.yaml")
    return str(error.value)


def engine(**arguments: Any) -> EngineArgs:
    given = {"dialect": "vllm-0.32", "async_scheduling": False, "max_model_len": 4096, **arguments}
    return EngineArgs.model_validate(given)


@pytest.fixture(scope="module")
def ascend() -> Profile:
    return load_profile("qwen3-0.6b-ascend910-a3")


def on(profile: Profile, device: str, memory_gib: int, **identity: Any) -> Profile:
    """The profile as if measured on another device."""
    data = profile.model_dump()
    data["identity"] |= {"device": device, "cann": None, "vllm_ascend": None, "torch_npu": None, **identity}
    data["memory"]["device"]["value"] = memory_gib * 2**30
    return Profile.model_validate(data)


# What a file means


@pytest.mark.parametrize("path", sorted(SHIPPED.glob("*.yaml")), ids=lambda path: path.stem)
def test_shipped_scenarios_load(path: Path) -> None:
    assert scenario.load(path).name == path.stem


def test_the_schema_covers_every_field() -> None:
    schema = scenario.Scenario.model_json_schema()
    assert set(schema["properties"]) == set(scenario.Scenario.model_fields)
    assert schema["additionalProperties"] is False


def test_equal_scenarios_have_equal_digests_wherever_they_lie(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(TEXT)
    (tmp_path / "b.yaml").write_text(TEXT + "replications: 1\nseed: 0\n")
    first, stated = scenario.load(tmp_path / "a.yaml"), scenario.load(tmp_path / "b.yaml")
    assert first.digest == stated.digest == scenario.parse(TEXT).digest
    assert hash(first) == hash(stated)
    assert len({scenario.parse(TEXT + f"seed: {seed}\n").digest for seed in range(5)}) == 5


def test_a_scenario_cannot_be_written_into() -> None:
    read = scenario.parse(TEXT)
    with pytest.raises(ValidationError):
        read.seed = 3  # type: ignore[misc]
    with pytest.raises(ValidationError):
        read.engine.block_size = 16  # type: ignore[misc]


def test_changes_make_a_copy_that_keeps_the_folder(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(TEXT)
    read = scenario.load(tmp_path / "a.yaml")
    changed = read.changed(seed=7, replications=4, limit=3, routing=read.routing[:1])
    limit = changed.workload.tenants[0].limit
    assert (changed.seed, changed.replications, limit, len(changed.routing)) == (7, 4, 3, 1)
    assert changed.base_dir == tmp_path
    assert read.changed().digest == read.digest != changed.digest


def test_long_targets_stay_what_they_are_when_other_keys_change() -> None:
    """What a scenario says is read again, so that a target of 20 s must not become a bare 20."""
    text = TEXT.replace("- name: chat", "- name: chat\n      targets: {ttft: 1.5, e2e: 20 s}")
    read = scenario.parse(text + "plan: {targets: {chat: {e2e_p99: 1 min}}, free: {cluster.instances: 1..4}}\n")
    changed = read.with_changes({("cluster", "instances"): 3})
    assert changed.workload.tenants[0].targets == read.workload.tenants[0].targets
    assert changed.plan == read.plan


def test_a_limit_never_adds_requests() -> None:
    workload = scenario.parse(TEXT).changed(limit=1000).workload
    assert len(list(open_workload(workload, 0, 0))) == 10
    assert scenario.parse(TEXT).changed(limit=3).changed(limit=5).workload.tenants[0].limit == 3


def test_a_limit_holds_for_a_tenant_that_ends_by_time() -> None:
    read = scenario.parse(TEXT.replace("num_requests: 10", "duration: 1 min"))
    assert len(list(open_workload(read.changed(limit=3).workload, 0, 0))) == 3


def test_the_models_own_length_binds_unless_vllm_was_told_otherwise() -> None:
    """Qwen3-0.6B's config.json has max_position_embeddings 40960 and no scaling of positions."""
    for keys in ("max_model_len: 40960", "max_model_len: 128K\n  allow_long_max_model_len: true"):
        read = scenario.parse(TEXT.replace("max_model_len: 4096", keys))
        assert read.engine_config.max_model_len == read.engine.max_model_len


def test_any_length_goes_where_the_profile_does_not_know_the_models_own(tmp_path: Path, ascend: Profile) -> None:
    unknown = ascend.model_copy(update={"max_model_len": None})
    (tmp_path / "mine.json").write_text(unknown.model_dump_json())
    text = TEXT.replace("qwen3-0.6b-ascend910-a3", "mine.json").replace("max_model_len: 4096", "max_model_len: 128K")
    assert scenario.parse(text, base_dir=tmp_path).engine_config.max_model_len == 131_072
    with pytest.raises(InputError, match="changes nothing: max_model_len is not known to be too long"):
        scenario.parse(text.replace("  async", "  allow_long_max_model_len: true\n  async"), base_dir=tmp_path)


def test_ten_thousand_instances_are_not_too_many() -> None:
    assert scenario.parse(TEXT.replace("instances: 2", "instances: 10000")).cluster.instances == 10_000


def test_a_profile_beside_the_scenario(tmp_path: Path, ascend: Profile) -> None:
    (tmp_path / "mine.json").write_text(ascend.model_dump_json())
    (tmp_path / "a.yaml").write_text(TEXT.replace("profile: qwen3-0.6b-ascend910-a3", "profile: mine.json"))
    assert scenario.load(tmp_path / "a.yaml").device_profile == ascend


def test_numbers_as_people_write_them() -> None:
    read = scenario.parse(
        TEXT.replace("max_model_len: 4096", "max_model_len: 4k\n  max_num_batched_tokens: 1e4").replace(
            "max_num_seqs: 64", "kv_cache_memory_bytes: 8 GiB"
        )
    )
    assert read.engine.max_model_len == 4000
    assert read.engine.max_num_batched_tokens == 10_000
    assert read.engine.kv_cache_memory_bytes == 8 * 2**30


# One line for each mistake

YAML_MISTAKES = [
    ("", "empty, expected a mapping of keys"),
    ("# nothing\n", "empty, expected a mapping of keys"),
    ("- a\n- b\n", "got a list, expected a mapping of keys"),
    ("hello\n", "got 'hello', expected a mapping of keys"),
    ("name: a\nseed: 1\nname: b\n", "line 3, column 1: key 'name' occurs twice"),
    (TEXT.replace("max_num_seqs: 64", "dialect: vllm-0.32"), "line 7, column 3: key 'dialect' occurs twice"),
    ("1: a\n", "line 1, column 1: expected a key that is text"),
    ("[a]: b\n", "line 1, column 1: expected a key that is text"),
    ("name: [a\n", "line 2, column 1: expected ',' or ']', but got '<stream end>'"),
    ("name: a\n\tseed: 1\n", "line 2, column 1: found character '\\t' that cannot start any token"),
    ("a: !!python/object:os.system x\n",
     "line 1, column 4: could not determine a constructor for the tag 'tag:yaml.org,2002:python/object:os.system'"),
    ("a: 1\n---\nb: 2\n", "line 2, column 1: but found another document"),
    ("a: *b\n", "line 1, column 4: found undefined alias 'b'"),
    ("a: " + "[" * 5000, "nested too deeply"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "line"), YAML_MISTAKES)
def test_yaml_mistakes(text: str, line: str) -> None:
    assert refused(text) == f"x.yaml: {line}"


@pytest.mark.parametrize(
    ("written", "read"),
    [("10:30", "10:30"), ("yes", "yes"), ("on", "on"), ("no", "no"), ("2024-01-01", "2024-01-01"), ("010", "010"),
     ("0x10", "0x10"), ("1e5", 100_000.0), ("1.5E-3", 0.0015), ("true", True), ("False", False), ("~", None),
     ("", None), ("-3", -3), (".5", 0.5), ("1_000", "1_000"), ("9" * 40, "9" * 40)],
)  # fmt: skip
def test_scalars_have_no_traps(written: str, read: object) -> None:
    found = scenario.strict_yaml.read(f"a: {written}\n", "x.yaml")["a"]
    assert found == read
    assert type(found) is type(read)


MISTAKES = [
    ("max_num_seqs: 64", "max_num_sqs: 64", "engine.max_num_sqs: unknown key (did you mean 'max_num_seqs'?)"),
    ("max_num_seqs: 64", "block_sise: 64", "engine.block_sise: unknown key (did you mean 'block_size'?)"),
    ("max_num_seqs: 64", "zzzzzz: 64", "engine.zzzzzz: unknown key"),
    ("max_num_seqs: 64", "max-num-seqs: 64", "engine.max-num-seqs: unknown key (did you mean 'max_num_seqs'?)"),
    ("max_num_seqs: 64", "max_num_seqs: 0", "engine.max_num_seqs: got 0, expected at least 1"),
    ("max_num_seqs: 64", "max_num_seqs: .nan",
     "engine.max_num_seqs: got '.nan', expected a whole number like 2048, '32k' (32000), '32K' (32768) or 1e5"),
    ("max_num_seqs: 64", "enable_prefix_caching: yes",
     "engine.enable_prefix_caching: got 'yes', expected true or false"),
    ("max_num_seqs: 64", "enable_prefix_caching: 1", "engine.enable_prefix_caching: got 1, expected true or false"),
    ("max_num_seqs: 64", "scheduling_policy: fcsf",
     "engine.scheduling_policy: got 'fcsf', expected 'fcfs' or 'priority' (did you mean 'fcfs'?)"),
    ("max_num_seqs: 64", "gpu_memory_utilization: 1.2",
     "engine.gpu_memory_utilization: got 1.2, expected a share between 0 and 1, or like '92 %'"),
    ("max_num_seqs: 64", "gpu_memory_utilization: 0", "engine.gpu_memory_utilization: got 0.0, expected more than 0"),
    ("max_num_seqs: 64", "quantization: awq",
     "engine.quantization: not modelled: the profile was measured with one kernel, graph and number format, so that "
     "'awq' would change results"),
    ("max_num_seqs: 64", "speculative_config: {method: ngram}",
     "engine.speculative_config.num_speculative_tokens: missing, expected how many drafts a step, a whole number"),
    ("max_num_seqs: 64", "watermark: 0.1",
     "engine.watermark: does not exist in vllm-0.23, expected dialect vllm-0.32"),
    ("max_num_seqs: 64", "max_num_active_seqs: 8",
     "engine.max_num_active_seqs: does not exist in vllm-0.23, expected dialect vllm-0.32"),
    ("max_num_seqs: 64", "block_size: 16",
     "engine.block_size: got 16, expected 128 (vllm-ascend overwrites any other with prefix caching or chunked "
     "prefill)"),
    ("max_num_seqs: 64", "tensor_parallel_size: 2",
     "engine.tensor_parallel_size: got 2, expected 1 as in profile qwen3-0.6b-ascend910-a3"),
    ("max_num_seqs: 64", "num_gpu_blocks_override: 32",
     "engine.max_model_len: got 4096, expected at most 3968: one request of that length needs 32 blocks of 128 tokens, "
     "the pool has 31 (num_gpu_blocks 32 less the null block)"),
    ("max_num_seqs: 64", "max_num_batched_tokens: 32\n  max_num_seqs: 64",
     "engine.max_num_batched_tokens: got 32, expected at least max_num_seqs (64)"),
    ("max_num_seqs: 64", "max_num_batched_tokens: 1024\n  enable_chunked_prefill: false",
     "engine.max_num_batched_tokens: got 1024, expected at least max_model_len (4096) without chunked prefill"),
    ("max_num_seqs: 64", "long_prefill_token_threshold: 5000",
     "engine.long_prefill_token_threshold: got 5000, expected at most max_model_len (4096)"),
    ("vllm-0.23", "vllm-0.24", "engine.dialect: got 'vllm-0.24', expected 'vllm-0.23' or 'vllm-0.32'"),
    ("  dialect: vllm-0.23\n", "",
     "engine.dialect: missing, expected the vLLM release whose decisions are simulated (vllm-0.23, vllm-0.32)"),
    ("Qwen/Qwen3-0.6B", "Qwen/Qwen3-8B",
     "engine.model: got 'Qwen/Qwen3-8B', expected 'Qwen/Qwen3-0.6B' as in profile qwen3-0.6b-ascend910-a3"),
    ("name: small", "name: 5", "name: got 5, expected text"),
    ("name: small", "name: ../up",
     "name: got '../up', expected a name of letters, digits, '.', '_' and '-' (output folders are called after it)"),
    ("name: small\n", "",
     "name: missing, expected a name of letters, digits, '.', '_' and '-' (output folders are called after it)"),
    ("{instances: 2}", "{instances: 0}", "cluster.instances: got 0, expected at least 1"),
    ("max_model_len: 4096", "max_model_len: 40961",
     "engine.max_model_len: got 40961, expected at most 40960, the model's own length as in profile "
     "qwen3-0.6b-ascend910-a3 (or allow_long_max_model_len: true, where vLLM was told so)"),
    ("max_model_len: 4096", "max_model_len: 40960\n  allow_long_max_model_len: true",
     "engine.allow_long_max_model_len: got true, which changes nothing: max_model_len is at most 40960, the model's "
     "own length"),
    ("{instances: 2}", "{instances: 10000000}",
     "cluster.instances: got 10000000, expected less than or equal to 10000"),
    ("{instances: 2}", "2", "cluster: got 2, expected a mapping"),
    ("{instances: 2}", "", "cluster: got None, expected a mapping"),
    ("{instances: 2}", "{instances: 2}\nseed: -1",
     "seed: got -1, expected a whole number like 2048, '32k' (32000), '32K' (32768) or 1e5"),
    ("{instances: 2}", "{instance: 2}", "cluster.instance: unknown key (did you mean 'instances'?) (and 1 more)"),
    ("{instances: 2}", "{instances: 2}\nsede: 1", "sede: unknown key (did you mean 'seed'?)"),
    ("- name: chat", "- name: chat\n      targets: {tpot: 80}",
     "workload.tenants[0].targets.tpot: 80 means 80 s; write 80 ms, or 80 s if that is meant"),
    ("name: small", "name: small\nplan: {targets: {chat: {ttft_p90: 500}}, free: {cluster.instances: 1..4}}",
     "plan.targets: chat.ttft_p90: 500 means 500 s; write 500 ms, or 500 s if that is meant"),
    ("rate_per_s: 6", "rate_per_s: -6",
     "workload.tenants[0].synthetic.arrivals.rate_per_s: got -6, expected a rate like 6 (per second), '90/min' or "
     "'3600/h'"),
    ("rate_per_s: 6", "rate: 6",
     "workload.tenants[0].synthetic.arrivals.rate: unknown key (known: cv, every, off_for, on_for, period, process, "
     "rate_per_s, rates_per_s, size)"),
    ("poisson", "poison",
     "workload.tenants[0].synthetic.arrivals.process: got 'poison', expected 'poisson', 'gamma', 'fixed', 'on_off', "
     "'profile' or 'batch' (did you "
     "mean 'poisson'?)"),
    ("suffix_tokens: 500", "suffix_tokens: {distribution: fixed, mean: 500, cvv: 1}",
     "workload.tenants[0].synthetic.suffix_tokens.cvv: unknown key (did you mean 'cv'?)"),
    ("  - round_robin\n", "  - round_robbin\n",
     "routing[0]: unknown policy 'round_robbin' (did you mean 'round_robin'?)"),
    ("  - round_robin\n", "  - {policy: longest_prefix, index: dispatch}\n",
     "policy longest_prefix occurs twice in 'routing', expected each once"),
    ("  - round_robin\n", "  - round_robin\n  - rr\n", "round_robin and rr are the same policy, expected each once"),
    ("routing:\n  - round_robin\n  - {policy: longest_prefix, index: dispatch}\n", "routing: round_robin\n",
     "routing: got 'round_robin', expected a list"),
    ("routing:\n  - round_robin\n  - {policy: longest_prefix, index: dispatch}\n", "routing: []\n",
     "routing: got [], expected at least one entry"),
    ("cluster: {instances: 2}", "cluster: {instances: 2}\neviction: lruu",
     "eviction: unknown policy 'lruu' (did you mean 'lru'?)"),
    ("cluster: {instances: 2}", "cluster: {instances: 2}\neviction: [lru]",
     "eviction: got ['lru'], expected the name of a policy or a mapping with 'policy'"),
    ("cluster: {instances: 2}", "cluster: {instances: 2}\neviction: {policy: lru, counts: kept}",
     "eviction: lru: counts: unknown parameter (it has none)"),
    ("cluster: {instances: 2}", "cluster: {instances: 2}\neviction: {policy: lfu, counts: some}",
     "eviction: lfu: counts: got 'some', expected 'lost' or 'kept'"),
    ("cluster: {instances: 2}", "cluster: {instances: 2}\neviction: ttl",
     "eviction: ttl: ttl: missing, expected how long the blocks of a session wait for its next turn"),
    ("cluster: {instances: 2}", "cluster: {instances: 2}\neviction: {policy: ttl, ttl: 60 s}",
     "eviction: ttl needs sessions and no tenant has any, expected conversations, or a trace with sessions"),
    ("cluster: {instances: 2}", "cluster: {instances: 2}\neviction: quota",
     "eviction: quota: expected 'limit' or 'reserve', each a mapping of tenants to shares"),
    ("cluster: {instances: 2}", "cluster: {instances: 2}\neviction: {policy: quota, limit: {chta: 30 %}}",
     "eviction: quota: there is no tenant 'chta' (did you mean 'chat'?)"),
    ("cluster: {instances: 2}", "cluster: {instances: 2}\neviction: {policy: quota, reserve: {chat: 0.4, code: 0.7}}",
     "eviction: quota: reserve: got 1.1 in all, expected at most 1"),
    ("cluster: {instances: 2}",
     "cluster: {instances: 2}\neviction: {policy: quota, reserve: {chat: 0.4}, limit: {chat: 0.1}}",
     "eviction: quota: chat: got a reserve above its limit, expected at most 0.1"),
    ("cluster: {instances: 2}", "cluster: {instances: 2}\neviction: belady",
     "eviction: belady needs the future, which no engine knows (`kvcast hit-curve` shows it beside a trace)"),
    ("  max_num_seqs: 64", "  enable_prefix_caching: false\neviction: lru",
     "eviction: got lru, which changes nothing without engine.enable_prefix_caching"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "line"), MISTAKES, ids=[line[:50] for _, _, line in MISTAKES])
def test_mistakes(old: str, new: str, line: str) -> None:
    assert old in TEXT
    assert refused(TEXT.replace(old, new, 1)) == f"x.yaml: {line}"


def test_an_unknown_profile_names_the_nearest() -> None:
    line = refused(TEXT.replace("profile: qwen3-0.6b-ascend910-a3", "profile: qwen3-0.6b-ascend910"))
    assert line.startswith("x.yaml: profile: no shipped profile 'qwen3-0.6b-ascend910' (did you mean")


def test_several_mistakes_are_counted() -> None:
    text = TEXT.replace("max_num_seqs: 64", "max_num_sqs: 64\n  block_sise: 1").replace("instances: 2", "instances: 0")
    assert refused(text) == "x.yaml: engine.max_num_sqs: unknown key (did you mean 'max_num_seqs'?) (and 2 more)"


def test_a_missing_trace_is_found_before_anything_runs(tmp_path: Path) -> None:
    data = yaml.safe_load(TEXT)
    data["workload"]["tenants"] = [{"name": "a", "trace": {"format": "mooncake", "path": "none.jsonl"}}]
    with pytest.raises(InputError) as error:
        scenario.parse(yaml.safe_dump(data), "x.yaml", tmp_path)
    where = "x.yaml: workload.tenants[0].trace.path"
    assert str(error.value) == f"{where}: no such file 'none.jsonl', expected a path relative to {str(tmp_path)!r}"


def test_unreadable_files(tmp_path: Path) -> None:
    missing, binary = tmp_path / "none.yaml", tmp_path / "binary.yaml"
    binary.write_bytes(b"name: \xff\n")
    table = tmp_path / "requests.parquet"
    table.write_bytes(b"PAR1\x15\x04\xff")
    for path, line in (
        (missing, "no such file, expected a scenario in YAML"),
        (tmp_path, "is a folder, expected a scenario in YAML"),
        (binary, "byte 6 is not UTF-8, expected a scenario in YAML"),
        (table, "is a Parquet file, expected a scenario in YAML"),
    ):
        with pytest.raises(InputError) as error:
            scenario.load(path)
        assert str(error.value) == f"{path}: {line}"


# Engine arguments: vLLM's defaults, and what is accepted since it changes nothing


def test_harmless_arguments_are_kept_for_the_report_but_secrets_are_not() -> None:
    args = engine(port=8000, api_key="k3y", hf_token="t0ken", served_model_name=["a", "b"])
    shown = {"port": 8000, "api_key": "(hidden)", "hf_token": "(hidden)", "served_model_name": ["a", "b"]}
    assert args.harmless == shown
    assert "k3y" not in args.model_dump_json()


@pytest.mark.parametrize(
    ("name", "value"),
    [("kv_cache_dtype", "auto"), ("enforce_eager", False), ("data_parallel_size", 1), ("speculative_config", None),
     ("stream_interval", "1"), ("hf_overrides", {})],
)  # fmt: skip
def test_vllms_own_default_may_be_stated(name: str, value: object) -> None:
    assert refusal(name, value) is None


@pytest.mark.parametrize(
    ("name", "value"), [("enforce_eager", True), ("stream_interval", 2), ("swa_bounded_replay", 1), ("nnodes", 0)]
)
def test_any_other_value_would_change_results(name: str, value: object) -> None:
    assert (refusal(name, value) or "").startswith("not modelled: ")


def test_no_argument_is_on_two_lists() -> None:
    from simulator.engine_args.names import DEFAULTS, HARMLESS, LISTS, NOT_MODELLED, SECRET, SWITCHES

    modelled = set(EngineArgs.model_fields)
    assert not modelled & HARMLESS
    assert not modelled & set(NOT_MODELLED)
    assert not HARMLESS & set(NOT_MODELLED)
    known = modelled | HARMLESS | set(NOT_MODELLED)
    assert known >= SWITCHES | LISTS
    assert SECRET <= HARMLESS
    assert set(DEFAULTS) <= set(NOT_MODELLED)


# vLLM's table (`EngineArgs.get_batch_defaults`) for its server: device, GiB, dialect -> budget, sequences, block size.
@pytest.mark.parametrize(
    ("device", "memory_gib", "dialect", "expected"),
    [
        ("NVIDIA H100", 80, "vllm-0.32", (8192, 1024, 16)),
        ("NVIDIA A100-SXM4-80GB", 80, "vllm-0.32", (2048, 256, 16)),
        ("NVIDIA A10G", 24, "vllm-0.32", (2048, 256, 16)),
        ("NVIDIA B200", 180, "vllm-0.32", (16384, 1024, 16)),
        ("NVIDIA B200", 180, "vllm-0.23", (8192, 1024, 16)),
        ("x86 cpu", 64, "vllm-0.32", (2048, 128, 128)),
    ],
)
def test_server_defaults(
    ascend: Profile, device: str, memory_gib: int, dialect: str, expected: tuple[int, ...]
) -> None:
    profile = on(ascend, device, memory_gib)
    config = resolve(engine(dialect=dialect, max_model_len=32768, num_gpu_blocks_override=10_000), profile)
    assert (config.max_num_batched_tokens, config.max_num_seqs, config.block_size) == expected


def test_ascend_defaults_ignore_the_memory(ascend: Profile) -> None:
    assert platform(ascend) == "ascend"
    config = resolve(engine(max_model_len=32768), ascend)
    assert (config.max_num_batched_tokens, config.max_num_seqs, config.block_size) == (2048, 256, 128)


@pytest.mark.parametrize(
    ("given", "budget", "num_seqs"),
    [
        ({"enable_chunked_prefill": False, "max_model_len": 8192}, 8192, 256),
        ({"max_model_len": 100, "max_num_seqs": 4}, 400, 4),  # T = min(T, S * L)
        ({"max_num_batched_tokens": 100}, 100, 100),  # S = min(S, T)
        ({"max_num_batched_tokens": 5000, "max_num_seqs": 7}, 5000, 7),  # given values stay
    ],
)
def test_defaults_are_fitted_to_each_other(ascend: Profile, given: dict[str, Any], budget: int, num_seqs: int) -> None:
    config = resolve(engine(**given), ascend)
    assert (config.max_num_batched_tokens, config.max_num_seqs) == (budget, num_seqs)


def test_the_pool_follows_the_memory(ascend: Profile) -> None:
    block_bytes = 128 * ascend.kv_bytes_per_token
    assert resolve(engine(kv_cache_memory_bytes=100 * block_bytes + 5), ascend).num_gpu_blocks == 100
    assert resolve(engine(num_gpu_blocks_override=77), ascend).num_gpu_blocks == 77
    less, more = (resolve(engine(gpu_memory_utilization=share), ascend).num_gpu_blocks for share in (0.8, 0.9))
    assert 0 <= (more - less) - ascend.memory.device.value // 10 // block_bytes <= 1


def test_a_pool_of_exactly_one_request_is_enough(ascend: Profile) -> None:
    assert resolve(engine(max_model_len=4096, num_gpu_blocks_override=33), ascend).num_gpu_blocks == 33


def test_active_sequences_are_at_most_the_sequences(ascend: Profile) -> None:
    assert resolve(engine(max_num_seqs=8), ascend).max_num_active_seqs == 8
    with pytest.raises(InputError, match=r"^max_num_active_seqs: got 9, expected at most max_num_seqs \(8\)$"):
        resolve(engine(max_num_seqs=8, max_num_active_seqs=9), ascend)


# Command lines


def test_a_command_line_says_what_a_scenario_says() -> None:
    command = read_command(
        "VLLM_USE_V1=1 /opt/bin/vllm serve Qwen/Qwen3-8B -tp 2 --max-model-len 32k --max_num_seqs=64 "
        "--no-enable-prefix-caching --trust-remote-code --api-key one two --served-model-name a b --port 80 \\\n"
        "  --gpu-memory-utilization 0.9 -dp 1 --default-chat-template-kwargs '{\"enable_thinking\": false}'"
    )
    assert command.refused == {}
    assert command.arguments == {
        "model": "Qwen/Qwen3-8B", "tensor_parallel_size": 2, "max_model_len": "32k", "max_num_seqs": 64,
        "enable_prefix_caching": False, "trust_remote_code": True, "api_key": "(hidden)",
        "served_model_name": ["a", "b"], "port": 80, "gpu_memory_utilization": 0.9, "data_parallel_size": 1,
        "default_chat_template_kwargs": {"enable_thinking": False},
    }  # fmt: skip


def test_a_switch_before_the_model_does_not_swallow_it() -> None:
    command = read_command("vllm serve --enable-prefix-caching M")
    assert command.arguments == {"enable_prefix_caching": True, "model": "M"}


@pytest.mark.parametrize(
    ("flags", "name", "reason"),
    [
        ("--max-num-seq 3", "max_num_seq", "unknown key (did you mean 'max_num_seqs'?)"),
        ("--max-num-seqs 0", "max_num_seqs", "got 0, expected at least 1"),
        ("--port 80 --port 81", "port", "given twice, as 80 and 81"),
        ("-dp 2", "data_parallel_size", "not modelled: only tensor and pipeline parallel engines, as measured by the "
         "profile, are simulated, so that 2 would change results"),
        ("--compilation-config.mode 3", "compilation_config", "not modelled: the profile was measured with one kernel, "
         "graph and number format, so that 3 would change results"),
        ("-O3", "optimization_level", "not modelled: the profile was measured with one kernel, graph and number "
         "format, so that 3 would change results"),
    ],
)  # fmt: skip
def test_refused_flags(flags: str, name: str, reason: str) -> None:
    assert read_command(f"vllm serve M {flags}").refused == {name: reason}


@pytest.mark.parametrize(
    ("text", "line"),
    [("sglang serve M", "command: got 'sglang serve M', expected 'vllm serve MODEL --argument value ...'"),
     ("vllm serve 'M", "command: no closing quotation, expected a shell command line"),
     ("", "command: got '', expected 'vllm serve MODEL --argument value ...'")],
)  # fmt: skip
def test_what_is_no_vllm_command(text: str, line: str) -> None:
    with pytest.raises(InputError) as error:
        read_command(text)
    assert str(error.value) == line
