"""Which load tests count as one load (held out together), and which results are those of one engine."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibration.benchmarks.benchmark import Benchmark, Lengths, Measured, about, load_words
from calibration.benchmarks.consistency import one_engine
from simulator.errors import InputError

ANSWERS = Lengths(128)
USUAL = (100, 128, 200, 250, 256, 300, 500, 512, 768, 1000, 1024, 1500, 2048, 2500, 3000, 3500, 4096, 8000, 32_000)


def words(inputs: Lengths, outputs: Lengths = ANSWERS, limit: int | None = 8, rate: float | None = None,
          shared: float = 0.0) -> str:  # fmt: skip
    return load_words(inputs, outputs, limit, rate, shared)


# --- one load ------------------------------------------------------------------------------------------------------


def test_repeats_whose_mean_lengths_differ_by_fractions_are_one_load():
    assert len({words(Lengths(1024), Lengths(mean)) for mean in (198.3, 198.1, 197.7)}) == 1
    assert len({words(Lengths(mean), Lengths(7.9 + mean / 1e4)) for mean in (996.4, 998.2, 1000.0, 1001.3)}) == 1


def test_a_load_is_the_same_whether_lengths_are_equal_drawn_or_listed():
    plain, drawn, detailed = Lengths(512), Lengths(512, deviation=90), Lengths.of([400, 624])
    assert words(plain) == words(drawn) == words(detailed)
    assert words(plain, plain) == words(plain, detailed)


@pytest.mark.parametrize("asked", USUAL)
def test_usual_lengths_are_far_from_where_groups_end(asked):
    assert len({about(asked * factor) for factor in (0.994, 0.997, 1.0, 1.003, 1.006)}) == 1


@given(st.floats(1, 1e6))
def test_lengths_that_differ_by_more_than_a_tenth_are_never_one_load(mean):
    assert about(mean) != about(1.13 * mean + 1)
    assert float(about(mean)) == pytest.approx(mean, rel=0.04, abs=0.6)


def test_short_answers_are_counted_out():
    assert len({about(number) for number in range(1, 20)}) >= 17
    assert all(float(about(low)) <= float(about(high)) for low, high in pairwise(range(1, 5000)))


def test_concurrency_is_exact_and_a_rate_has_two_digits():
    assert words(Lengths(512), limit=100) != words(Lengths(512), limit=101)
    assert words(Lengths(512), limit=None) != words(Lengths(512), limit=512)
    assert words(Lengths(512), rate=92.19) == words(Lengths(512), rate=91.8) == words(Lengths(512), rate=92)
    assert words(Lengths(512), rate=9.2) != words(Lengths(512), rate=9.1)
    assert words(Lengths(512), rate=120) != words(Lengths(512), rate=140)


def test_what_is_shared_tells_loads_apart_by_what_is_left_to_compute():
    assert len({words(Lengths(3500), shared=share) for share in (0, 0.25, 0.5, 0.75, 0.95, 0.98)}) == 6
    # 16 tokens of a prompt of 71.5 and of 71.3: the share is another, the load is not.
    assert words(Lengths(71.5), shared=16 / 71.5) == words(Lengths(71.3), shared=16 / 71.3)


# --- one engine ----------------------------------------------------------------------------------------------------


def row(line: int, model: str | None = "Qwen3-32B", version: str | None = "0.11.0", engine: str = "vllm") -> Benchmark:
    columns = {"model": model or "", "engine_version": version or "", "engine": engine}
    return Benchmark(
        name=f"r/{line}", group="", file=f"r.csv, line {line}", tool="csv", source="", model=model,
        engine_version=version, engine={}, num_prompts=8, inputs=Lengths(8), outputs=ANSWERS, max_concurrency=1,
        requests_per_s=None, measured=Measured(requests_per_s=1.0), columns=columns,
    )  # fmt: skip


FROM_JSON = replace(row(1), file="a.json", columns={}, model="Qwen/Qwen3-32B", engine_version=None)


def test_results_of_one_engine_raise_no_doubt():
    assert one_engine([row(2), row(3)], "Qwen3-32B", "0.11.0") == []
    assert one_engine([row(2), row(3)], "Qwen3-32B", None) == []


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Qwen/Qwen3-32B", "qwen3-32b"),
        ("Qwen3-30B-A3B", "Qwen/Qwen3-30B-A3B-Instruct-2507"),
        ("Qwen2.5-7B-Instruct", "/models/Qwen2.5-7B/"),
        ("DeepSeek-V3", "deepseek-ai/DeepSeek-V3-0324"),
    ],
)
def test_a_model_has_several_names(one, other):
    for rows_name, command_name in ((one, other), (other, one)):
        assert one_engine([row(2, one), row(3, rows_name)], command_name, None) == []


def test_models_that_differ_are_refused_naming_both_rows():
    for other in ("Qwen3-8B", "Qwen3-32B-A3B", "Qwen3", "Llama-3.1-8B-Instruct"):
        with pytest.raises(InputError) as caught:
            one_engine([row(2), row(3), row(4, other)], "Qwen3-32B", None)
        said = str(caught.value)
        for part in ("r.csv, line 2", "r.csv, line 4", "'Qwen3-32B'", repr(other), "--where model=..."):
            assert part in said
        assert "\n" not in said


def test_another_model_than_the_commands_is_refused():
    with pytest.raises(InputError, match=r"r.csv, line 2: model is 'Qwen3-32B', expected Qwen3-8B, .*--where model="):
        one_engine([row(2)], "Qwen3-8B", None)


def test_files_of_different_models_are_refused_too():
    with pytest.raises(InputError, match=r"a.json: model is 'Qwen/Qwen3-32B', but r.csv, line 2: 'Qwen3-8B'"):
        one_engine([FROM_JSON, row(2, "Qwen3-8B")], "Qwen3-8B", None)
    with pytest.raises(InputError, match=r"leave one of the files out \(--where chooses"):
        one_engine([FROM_JSON, replace(FROM_JSON, file="b.json", model="Qwen3-8B")], "Qwen3-8B", None)


def test_another_number_format_is_doubted():
    assert one_engine([row(2, "Qwen3-32B-W8A8")], "Qwen3-32B", None) == []
    (doubt,) = one_engine([row(2), row(3, "Qwen3-32B-W8A8")], "Qwen3-32B", None)
    assert "line 2 is of Qwen3-32B" in doubt
    assert "line 3 of Qwen3-32B-W8A8" in doubt


def test_engines_and_versions_that_differ_are_refused_naming_both_rows():
    with pytest.raises(InputError, match=r"line 2: engine version is '0.11.0', but r.csv, line 3: '0.9.1', .*--where "):
        one_engine([row(2), row(3, version="0.9.1")], "Qwen3-32B", None)
    with pytest.raises(InputError, match=r"line 2: engine is 'vllm', but r.csv, line 3: 'sglang', .*--where engine="):
        one_engine([row(2), row(3, engine="sglang")], "Qwen3-32B", None)
    same = [row(2), row(3, version="vllm 0.11.0"), row(4, version="v0.11.0", engine="vLLM")]
    assert one_engine(same, "Qwen3-32B", None) == []


def test_what_rows_do_not_say_is_said():
    (doubt,) = one_engine([row(2), row(3, None), row(4, None)], "Qwen3-32B", None)
    assert "line 3 and 1 more: no model said, taken to be Qwen3-32B as in r.csv, line 2" in doubt
    (doubt,) = one_engine([row(2), row(3, version=None)], "Qwen3-32B", None)
    assert "line 3: no engine version said, taken to be 0.11.0" in doubt
    nothing = one_engine([row(2, None, None)], "Qwen3-32B", None)
    assert [part for part in ("its model", "version") for doubt in nothing if part in doubt] == ["its model", "version"]
    assert one_engine([row(2, version=None)], "Qwen3-32B", "0.11.0") == []


def test_another_version_than_the_commands_is_doubted():
    (doubt,) = one_engine([row(2)], "Qwen3-32B", "0.9.1")
    assert doubt == "r.csv, line 2: the engine's version is 0.11.0, the command says 0.9.1"
    assert one_engine([row(2, version="0.20.2rc1")], "Qwen3-32B", "0.20.2") == []


@pytest.mark.parametrize("engine", ["sglang", "MindIE"])
def test_an_engine_that_is_not_simulated_is_doubted(engine):
    (doubt,) = one_engine([row(2, engine=engine), row(3, engine=engine)], "Qwen3-32B", None)
    assert f"r.csv, line 2: the engine is {engine}" in doubt
    assert one_engine([row(2, engine="vllm-ascend")], "Qwen3-32B", None) == []
