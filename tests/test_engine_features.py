"""From a scenario's keys to what the engine then does differently; and the line that each wrong key gets."""

from __future__ import annotations

import math
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import yaml
from cluster_cases import config, request, step_time

from simulator import experiment
from simulator.cluster import Cluster
from simulator.engine_args import EngineArgs, read_command, resolve, unmeasured
from simulator.engine_args.config import SpeculativeConfig
from simulator.errors import InputError
from simulator.metrics import Metrics
from simulator.profile import Profile, load_profile
from simulator.report import basis
from simulator.result import RunResult
from simulator.routing import make_router, parse_routing
from simulator.scenario import Scenario, parse
from simulator.workload import WorkloadSpec, acceptance, open_workload
from simulator.workload.acceptance import Acceptance

STEP_S = 0.008  # of the profile linear-8ms-50us; a prefill token takes 50 us more, a decode nothing
SCENARIOS = Path(__file__).parents[1] / "scenarios"
ARTICLE = "qwen3-0.6b-ascend910-a3"
EAGLE = {"method": "eagle", "num_speculative_tokens": 3, "model": "some/head"}


def synthetic(num_requests: int, rate_per_s: float, **lengths: Any) -> dict[str, Any]:
    arrivals = {"process": "fixed", "rate_per_s": rate_per_s}
    return {"num_requests": num_requests, "arrivals": arrivals, "suffix_tokens": 100, "output_tokens": 41} | lengths


def described(
    *tenants: dict[str, Any], profile: str = "linear-8ms-50us", instances: int = 1, **engine: Any
) -> Scenario:
    """One tenant of ten requests a second apart, unless others are given."""
    tenants = tenants or ({"name": "chat", "synthetic": synthetic(10, 1)},)
    data = {
        "name": "features",
        "engine": {"dialect": "vllm-0.32", "max_model_len": 4096, "num_gpu_blocks_override": 2000} | engine,
        "profile": profile,
        "cluster": {"instances": instances},
        "workload": {"tenants": list(tenants)},
        "routing": ["round_robin", "least_requests"],
    }
    return parse(yaml.safe_dump(data))


def run(*tenants: dict[str, Any], **settings: Any) -> RunResult:
    return experiment.run(described(*tenants, **settings), router="round_robin", replication=0)


def refused(*tenants: dict[str, Any], **settings: Any) -> str:
    with pytest.raises(InputError) as error:
        described(*tenants, **settings)
    return str(error.value).removeprefix("scenario: ")


def on(device: str, **identity: Any) -> Profile:
    data = load_profile("linear-8ms-50us").model_dump()
    data["identity"] |= {"device": device} | identity
    return Profile.model_validate(data)


# --- asynchronous scheduling


@pytest.mark.parametrize(
    ("device", "dialect", "method", "expected"),
    [
        ("NVIDIA H100", "vllm-0.32", None, True),
        ("NVIDIA H100", "vllm-0.23", None, True),
        ("x86 cpu", "vllm-0.32", None, False),  # CpuPlatform.check_and_update_config
        ("NVIDIA H100", "vllm-0.32", "eagle", True),
        ("NVIDIA H100", "vllm-0.32", "ngram", False),
        ("NVIDIA H100", "vllm-0.32", "draft_model", True),
        ("NVIDIA H100", "vllm-0.23", "draft_model", False),
    ],
)
def test_async_scheduling_is_vllms_default(device: str, dialect: str, method: str | None, expected: bool) -> None:
    """vLLM ``VllmConfig.__post_init__`` of both versions."""
    given: dict[str, Any] = {"dialect": dialect, "max_model_len": 1024, "num_gpu_blocks_override": 100}
    if method is not None:
        given |= {"speculative_config": EAGLE | {"method": method}, "acceptance_rate": 0.5}
    assert resolve(EngineArgs.model_validate(given), on(device)).async_scheduling is expected
    assert resolve(EngineArgs.model_validate(given | {"async_scheduling": False}), on(device)).async_scheduling is False


def test_what_cannot_be_asynchronous_is_refused() -> None:
    given = {"dialect": "vllm-0.32", "max_model_len": 1024, "async_scheduling": True}
    with pytest.raises(InputError, match=r"^async_scheduling: got true, expected false \(vLLM switches it off on CPUs"):
        resolve(EngineArgs.model_validate(given), on("x86 cpu"))
    with pytest.raises(InputError, match="^pipeline_parallel_size: got 2 by profile linear-8ms-50us, expected 1"):
        resolve(EngineArgs.model_validate(given), on("NVIDIA H100", pipeline_parallel_size=2))
    assert refused(async_scheduling=True, speculative_config=EAGLE | {"method": "ngram"}, acceptance_rate=0.5) == (
        "engine.async_scheduling: got true, expected false (vLLM has n-gram drafts without it only)"
    )


def test_a_request_that_comes_during_a_step_waits_out_one_more_when_scheduling_is_asynchronous() -> None:
    """Requests 100 ms apart beside a long answer: 8 ms more to the first token, and nothing else differs."""
    long = {"name": "long", "synthetic": synthetic(1, 1000, output_tokens=400)}
    short = {"name": "short", "synthetic": synthetic(5, 3, output_tokens=1)}
    waits = {}
    for asynchronous in (False, True):
        rows = run(long, short, async_scheduling=asynchronous).requests
        waits[asynchronous] = rows.loc[rows["tenant"] == "short", "ttft_s"].to_numpy()
    assert waits[True] - waits[False] == pytest.approx([STEP_S] * 5)


@pytest.mark.parametrize(
    ("engine", "share", "sentence"),
    [
        ({"async_scheduling": False}, "100.0% of busy time rests on measurement, 0.0% on a prior", None),
        ({}, "0.0% of busy time rests on measurement, 100.0% on a prior",
         "Measured with synchronous scheduling, simulated asynchronous: host time would overlap, so step times rest on "
         "a prior."),
        ({"async_scheduling": False, "speculative_config": EAGLE, "acceptance_rate": 0.5},
         "0.0% of busy time rests on measurement, 100.0% on a prior",
         "Measured without speculative decoding: drafts are charged as decodes, the drafter's own time is not, so step "
         "times rest on a prior."),
    ],
)  # fmt: skip
def test_the_basis_says_where_the_engine_is_not_the_measured_one(
    engine: dict[str, Any], share: str, sentence: str | None
) -> None:
    """Lone requests within the measured range, on the article's profile, which was measured synchronously."""
    chat = {"name": "chat", "synthetic": synthetic(3, 0.1)}
    found = basis(experiment.compare(described(chat, profile=ARTICLE, **engine), jobs=1))
    assert share in found
    assert found.endswith(f"where measured. {sentence}" if sentence else "where measured.")


def test_adapters_and_the_reverse_are_said_too() -> None:
    asynchronous = load_profile(ARTICLE).model_dump()
    asynchronous["identity"]["async_scheduling"] = True
    found = unmeasured(config(max_loras=1), Profile.model_validate(asynchronous))
    assert [line.split(":")[0] for line in found] == [
        "Measured with asynchronous scheduling, simulated synchronous", "Measured without LoRA adapters",
    ]  # fmt: skip
    assert unmeasured(config(async_scheduling=True), load_profile("linear-8ms-50us")) == []  # nothing was measured


# --- speculative decoding


@pytest.mark.parametrize("rate", [0.0, 0.3, 0.9, 1.0])
def test_the_number_accepted_is_geometric_and_cut_off(rate: float) -> None:
    """P(at least k) = rate^k for k up to the number of drafts; five standard errors."""
    count, num_drafts = 20_000, 4
    seen = Counter(islice(Acceptance(rate, num_drafts).draws(0, "a"), count))
    assert set(seen) <= set(range(num_drafts + 1))
    for k in range(1, num_drafts + 1):
        share = sum(times for accepted, times in seen.items() if accepted >= k) / count
        chance = rate**k
        assert abs(share - chance) <= 5 * math.sqrt(chance * (1 - chance) / count)


def acceptances(tenants: list[dict[str, Any]], name: str, **names: int) -> list[list[int]]:
    spec = WorkloadSpec.model_validate({"tenants": tenants})
    index = next(number for number, tenant in enumerate(tenants) if tenant["name"] == name)
    workload = open_workload(spec, **({"seed": 0, "replication": 0} | names), acceptance=Acceptance(0.6, 5))
    mine = [one for one in workload if one.tenant == index]
    return [list(islice(one.acceptance or iter(()), 20)) for one in mine]


def test_law_4_acceptance_is_a_requests_own() -> None:
    """Another tenant, or longer answers, change no draw; another seed or replication does; requests differ."""
    chat, other = ({"name": name, "synthetic": synthetic(6, 5)} for name in ("chat", "other"))
    alone = acceptances([chat], "chat")
    assert alone == acceptances([other, chat], "chat")
    assert alone == acceptances([chat | {"synthetic": synthetic(6, 5, output_tokens=7)}], "chat")
    assert len({tuple(draws) for draws in alone}) == 6
    assert alone != acceptances([chat], "chat", seed=1)
    assert alone != acceptances([chat], "chat", replication=1)
    assert alone != acceptances([other, chat], "other")


def test_a_stream_is_made_only_for_a_request_that_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple] = []
    plain = acceptance.python_stream
    monkeypatch.setattr(acceptance, "python_stream", lambda *names: made.append(names) or plain(*names))
    workload = open_workload(described().workload, 0, 0, acceptance=Acceptance(0.5, 2))
    first, *_ = list(workload)
    assert made == []
    assert first.acceptance is not None
    next(first.acceptance)
    next(first.acceptance)
    assert made == [(0, "acceptance", "chat", 0, 0)]


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize(("rate", "num_steps"), [(0.0, 40), (1.0, 10)])
def test_accepted_drafts_shorten_answers(asynchronous: bool, rate: float, num_steps: int) -> None:
    """Forty tokens after the first: one a step, or four where all three drafts are accepted."""
    rows = run(async_scheduling=asynchronous, speculative_config=EAGLE, acceptance_rate=rate).requests
    taken_s = rows["finish_s"] - rows["first_token_s"]
    assert taken_s.tolist() == pytest.approx([num_steps * STEP_S] * 10)


def test_inter_token_times_are_counted_once_a_step_as_vllm_does() -> None:
    """One interval an output (``IterationStats.update_from_output``), however many tokens it brings."""
    found = run(async_scheduling=False, speculative_config=EAGLE, acceptance_rate=1.0)
    assert found.gaps.weight == 10 * 10
    assert found.gaps.mean() == pytest.approx(STEP_S)


def test_drafts_are_charged_as_decodes() -> None:
    """A step of n requests with K drafts computes n (1 + K) decode tokens (known answer tokens and drafts)."""
    drafts = SpeculativeConfig("ngram", 3)
    metrics = Metrics(1)
    router = make_router(parse_routing("round_robin"), 1, None)  # type: ignore[arg-type]
    times = step_time("linear", decode_token_s=1.0, prefill_token_s=1.0)
    one = request(0, 0.0, 5, 9)
    one.acceptance = Acceptance(1.0, 3).draws(0)
    Cluster(config(speculative=drafts), times, router, 1, metrics).run([one])
    assert (one.first_token_s, one.finish_s) == (5.0, 13.0)


def test_eagle_recomputes_the_last_block_of_a_hit() -> None:
    shared = {"num_prefixes": 1, "prefix_tokens": 320, "suffix_tokens": 10}
    chat = {"name": "chat", "synthetic": synthetic(4, 1, **shared)}
    cached = {}
    for method in ("ngram", "eagle", "eagle3", "mtp", "draft_model"):
        rows = run(chat, speculative_config=EAGLE | {"method": method}, acceptance_rate=0.5).requests
        cached[method] = rows["num_cached_tokens"].tolist()
    assert cached["ngram"] == cached["draft_model"] == [0, 320, 320, 320]
    assert cached["eagle"] == cached["eagle3"] == cached["mtp"] == [0, 304, 304, 304]


@pytest.mark.parametrize(
    ("engine", "line"),
    [
        ({"speculative_config": EAGLE},
         "engine.acceptance_rate: missing, expected the probability that a draft is accepted if those before it were, "
         "between 0 and 1 (speculative_config needs it)"),
        ({"acceptance_rate": 0.5},
         "engine.acceptance_rate: got 0.5, which changes nothing without speculative_config"),
        ({"speculative_config": EAGLE, "acceptance_rate": 1.5},
         "engine.acceptance_rate: got 1.5, expected a share between 0 and 1, or like '92 %'"),
        ({"speculative_config": "eagle"}, "engine.speculative_config: got 'eagle', expected a mapping"),
        ({"speculative_config": EAGLE | {"method": "medusa"}},
         "engine.speculative_config.method: got 'medusa', expected 'eagle', 'eagle3', 'mtp', 'draft_model' or 'ngram'"),
        ({"speculative_config": EAGLE | {"num_speculative_tokens": 0}},
         "engine.speculative_config.num_speculative_tokens: got 0, expected at least 1"),
        ({"speculative_config": EAGLE | {"parallel_drafting": True}},
         "engine.speculative_config.parallel_drafting: not modelled: a fixed number of drafts and vLLM's defaults are, "
         "so that True would change results"),
        ({"speculative_config": EAGLE | {"num_speculative_token": 3}},
         "engine.speculative_config.num_speculative_token: unknown key (did you mean 'num_speculative_tokens'?)"),
        ({"speculative_config": EAGLE, "acceptance_rate": 0.5, "max_num_batched_tokens": 3, "max_num_seqs": 2},
         "engine.max_num_batched_tokens: got 3, expected at least 4 (one request with its drafts)"),
        ({"speculative_config": EAGLE | {"method": "draft_model"}, "acceptance_rate": 0.5, "dialect": "vllm-0.23",
          "max_num_batched_tokens": 8, "max_num_seqs": 8},
         "engine.max_num_batched_tokens: got 8, expected at least 9 (a slot of the draft model for each of "
         "max_num_seqs)"),
        ({"speculative_config": EAGLE, "acceptance_rate": 0.5, "long_prefill_token_threshold": 3},
         "engine.long_prefill_token_threshold: got 3, expected at least 4 with 3 drafts (vLLM stops with an "
         "assertion)"),
        ({"speculative_config": EAGLE, "acceptance_rate": 0.5, "enable_lora": True, "max_num_batched_tokens": 2048,
          "max_num_seqs": 1024},
         "engine.max_num_batched_tokens: got 2048, expected at least 4096 (max_num_seqs times a token and its drafts, "
         "as vLLM demands with LoRA)"),
    ],
)  # fmt: skip
def test_refused_drafts(engine: dict[str, Any], line: str) -> None:
    assert refused(**engine) == line


def test_what_asks_for_nothing_is_taken() -> None:
    given = EAGLE | {"parallel_drafting": False, "prompt_lookup_max": 4, "quantization": None, "revision": "main"}
    assert described(speculative_config=given, acceptance_rate=0.5).acceptance == Acceptance(0.5, 3)


# --- priorities, adapters, thresholds, log-probabilities


def test_the_urgent_tenant_overtakes() -> None:
    """One place, all come nearly at once: under FCFS the tenants alternate, under priority one waits for the other."""
    tenants = [{"name": name, "synthetic": synthetic(8, 1000)} for name in ("slow", "urgent")]
    fair = run(*tenants, max_num_seqs=1).requests
    tenants[0]["priority"] = 1
    ranked = run(*tenants, max_num_seqs=1, scheduling_policy="priority").requests
    urgent, slow = (ranked.loc[ranked["tenant"] == name] for name in ("urgent", "slow"))
    assert slow["first_token_s"].iloc[1:].min() > urgent["finish_s"].max()  # the first had arrived alone
    assert fair.loc[fair["tenant"] == "slow", "first_token_s"].median() < urgent["finish_s"].max()
    assert refused(*tenants) == (
        "workload.tenants[0].priority: got 1, which changes nothing without engine.scheduling_policy: priority"
    )


@pytest.mark.parametrize(("max_loras", "together"), [(None, False), (1, False), (2, True)])
def test_requests_of_an_adapter_without_a_place_wait(max_loras: int | None, together: bool) -> None:
    """vLLM's ``max_loras`` is how many adapters a step may have, 1 by default; requests without one do not count."""
    tenants = [{"name": name, "lora": name, "synthetic": synthetic(1, 100)} for name in ("a", "b")]
    tenants.append({"name": "plain", "synthetic": synthetic(1, 100)})
    rows = run(*tenants, enable_lora=True, max_loras=max_loras).requests.set_index("tenant")
    assert (rows.loc["b", "first_token_s"] < rows.loc["a", "finish_s"]) == together
    assert rows.loc["plain", "first_scheduled_s"] < rows.loc["a", "finish_s"]


def test_refused_adapters() -> None:
    chat = {"name": "chat", "synthetic": synthetic(10, 1)}
    assert refused(chat | {"lora": "sql"}) == (
        "workload.tenants[0].lora: got 'sql', expected engine.enable_lora: true (vLLM refuses the requests)"
    )
    assert refused(enable_lora=True) == (
        "engine.enable_lora: got true, expected a tenant with 'lora': no request has an adapter"
    )
    assert refused(max_loras=2) == "engine.max_loras: got 2, which changes nothing without enable_lora"
    assert "max_lora_rank: not modelled: what LoRA adapters cost" in refused(enable_lora=True, max_lora_rank=64)


def test_an_adaptive_threshold_is_at_least_a_fair_share() -> None:
    """Two prompts of 1,000 and a budget of 1,000: ten chunks of 100, or two of 500."""
    tenants = [{"name": name, "synthetic": synthetic(1, 100, suffix_tokens=1000)} for name in ("a", "b")]
    common = {"long_prefill_token_threshold": 100, "max_num_batched_tokens": 1000, "max_num_seqs": 4}
    plain, adaptive = (
        run(*tenants, async_scheduling=False, long_prefill_token_threshold_adaptive=value, **common)
        for value in (False, True)
    )
    steps = [sum(found.num_steps) for found in (plain, adaptive)]
    assert steps[0] - steps[1] == 10 - 2
    assert refused(long_prefill_token_threshold_adaptive=True) == (
        "engine.long_prefill_token_threshold_adaptive: got true, which changes nothing without "
        "long_prefill_token_threshold"
    )
    assert refused(long_prefill_token_threshold_adaptive=True, dialect="vllm-0.23") == (
        "engine.long_prefill_token_threshold_adaptive: does not exist in vllm-0.23, expected dialect vllm-0.32"
    )


def test_who_wants_prompt_log_probabilities_computes_the_whole_prompt() -> None:
    shared = {"num_prefixes": 1, "prefix_tokens": 320, "suffix_tokens": 10}
    chat = {"name": "chat", "synthetic": synthetic(4, 1, **shared)}
    assert run(chat).requests["num_cached_tokens"].tolist() == [0, 320, 320, 320]
    skipping = chat | {"skip_reading_prefix_cache": True}
    assert run(skipping).requests["num_cached_tokens"].tolist() == [0, 0, 0, 0]
    assert refused(skipping, enable_prefix_caching=False) == (
        "workload.tenants[0].skip_reading_prefix_cache: got true, which changes nothing without "
        "engine.enable_prefix_caching"
    )


def test_requests_of_a_trace_carry_what_their_tenant_asks_for() -> None:
    trace = {"format": "mooncake", "path": "traces/mooncake_synthetic.jsonl.gz", "limit": 3}
    asked = {"priority": 2, "cache_salt": "salt", "lora": "sql", "skip_reading_prefix_cache": True}
    spec = WorkloadSpec.model_validate({"tenants": [{"name": "a", "trace": trace, **asked}]})
    found = list(open_workload(spec, 0, 0, SCENARIOS, acceptance=Acceptance(1.0, 2)))
    assert [{name: getattr(one, name) for name in asked} for one in found] == [asked] * 3
    assert [next(one.acceptance or iter(())) for one in found] == [2, 2, 2]


def test_a_command_line_with_all_of_it() -> None:
    command = read_command(
        "vllm serve M --no-async-scheduling --scheduling-policy priority --long-prefill-token-threshold 64 "
        "--long-prefill-token-threshold-adaptive --enable-lora --max-loras 2 --lora-modules sql=org/sql law=org/law "
        '--speculative-config \'{"method": "eagle3", "model": "org/head", "num_speculative_tokens": 3}\''
    )
    assert command.refused == {}
    assert command.arguments["speculative_config"]["num_speculative_tokens"] == 3
    assert command.arguments["async_scheduling"] is False


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ('{"method": "suffix", "num_speculative_tokens": 3}',
         "method: got 'suffix': Input should be 'eagle', 'eagle3', 'mtp', 'draft_model' or 'ngram'"),
        ('{"method": "ngram"}', "num_speculative_tokens: missing"),
        ('{"method": "ngram", "num_speculative_tokens": 0}', "num_speculative_tokens: got 0, expected at least 1"),
        ('{"method": "ngram", "num_speculative_tokens": 3, "kv_cache_dtype": "fp8"}',
         "kv_cache_dtype: not modelled: a fixed number of drafts and vLLM's defaults are, so that 'fp8' would change "
         "results"),
    ],
)  # fmt: skip
def test_refused_drafts_on_a_command_line(given: str, line: str) -> None:
    assert read_command(f"vllm serve M --speculative-config '{given}'").refused == {"speculative_config": line}
