"""``kvcast profiles``: what is listed, predictions by hand and by simulation, published times on the figures, and when
a profile is called indicative.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from cluster_cases import request
from test_article import published, serve

from calibration.points import measured_points, num_unplaced
from calibration.predictions import BATCHES, CONTEXTS, Predictor
from calibration.profile_comparison import compare, notes, sentence
from calibration.profile_figures import figure_of, figure_of_several
from calibration.profiles_cli import profiles
from simulator import cli, experiment, scenario
from simulator.errors import InputError
from simulator.evidence import evidence_in_words, held_out_error, indicative, num_groups
from simulator.profile import Errors, Point, Profile, Residual, load_profile, shipped_profiles
from simulator.step_time import MEASURED, OUTSIDE, PRIOR
from tests.test_scenario import TEXT

ASCEND, LINEAR = "qwen3-0.6b-ascend910-a3", "linear-8ms-50us"


@pytest.fixture(scope="module")
def ascend() -> Profile:
    return load_profile(ASCEND)


def kvcast(*arguments: str | Path, columns: int = 120) -> str:
    """What the command prints."""
    runner = CliRunner(env={"COLUMNS": str(columns)})
    done = runner.invoke(profiles, [str(argument) for argument in arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def as_json(*arguments: str | Path) -> Any:
    return json.loads(kvcast(*arguments, "--json"))


def words(text: str) -> str:
    return " ".join(text.split())


def scaled(profile: Profile, factor: float, name: str) -> Profile:
    """The profile with every time multiplied."""

    def times(one: Any) -> Any:
        return one.model_copy(update={"value": one.value * factor})

    overhead = profile.overhead
    return profile.model_copy(
        update={
            "name": name,
            "coefficients": {key: times(one) for key, one in profile.coefficients.items()},
            "overhead": overhead.model_copy(
                update={
                    "constant_s": times(overhead.constant_s),
                    "prompt_token_s": times(overhead.prompt_token_s),
                }
            ),
        }
    )


def written(folder: Path, profile: Profile) -> Path:
    path = folder / f"{profile.name}.json"
    path.write_text(profile.model_dump_json())
    return path


# What is listed


def test_every_shipped_profile_is_listed_with_its_evidence_and_errors(ascend: Profile) -> None:
    listed = {one["name"]: one for one in as_json("list")}
    assert list(listed) == shipped_profiles()
    for name, one in listed.items():
        profile = load_profile(name)
        assert one["model"] == profile.identity.model
        assert one["held_out_worst"] == profile.held_out_error
        assert (one["indicative"] is None) == (indicative(profile) is None)
    errors = sorted(abs(one.relative_error) for one in ascend.errors.held_out)
    assert listed[ASCEND]["held_out_median"] == pytest.approx((errors[3] + errors[4]) / 2)
    assert listed[ASCEND]["evidence"] == "rows"
    assert listed[ASCEND]["evidence_in_words"] == "8 measured rows, launches not known"
    assert listed[ASCEND]["num_groups"] == 4  # prompt lengths of the article
    assert (listed[ASCEND]["dialect"], listed[ASCEND]["dialect_verified"]) == ("vllm-0.23", False)  # it ran 0.26
    assert listed[LINEAR]["evidence"] == "synthetic"
    assert listed[LINEAR]["dialect"] is None


def test_the_kv_pool_is_what_vllm_counts_less_the_null_block(ascend: Profile) -> None:
    """By hand: 92 % of 61.27 GiB less weights and 2 GiB, in blocks of 128 tokens of 114,688 bytes."""
    kv_bytes = int(65_788_161_556 * 0.92) - 1_191_968_768 - 2_147_483_648
    blocks = kv_bytes // (128 * 114_688)
    (listed,) = (one for one in as_json("list") if one["name"] == ASCEND)
    assert listed["num_kv_tokens"] == (blocks - 1) * 128


def test_a_file_is_listed_after_what_ships(tmp_path: Path, ascend: Profile) -> None:
    identity = ascend.identity.model_copy(update={"vllm": "0.32.0"})
    path = written(tmp_path, ascend.model_copy(update={"name": "mine", "identity": identity}))
    last = as_json("list", path)[-1]
    assert (last["name"], last["file"]) == ("mine", str(path))
    assert (last["dialect"], last["dialect_verified"]) == ("vllm-0.32", True)


def test_the_list_for_people_names_every_profile() -> None:
    text = kvcast("list")
    for name in shipped_profiles():
        assert name in text
    for piece in ("(A3, one die, 65536 MB HBM)", "8 measured rows", "synthetic: nothing was", "worst 0.9%"):
        assert piece in text


def test_on_a_narrow_terminal_what_does_not_fit_goes_on_below_set_in() -> None:
    blocks = [line[:40].rstrip() for line in kvcast("list", columns=80).splitlines()]
    assert blocks[blocks.index("  meta-llama/Llama-3.1-70B bfloat16,") + 1] == "    TP 4"
    first = blocks.index("llama-3.1-70b-h100-sxm-tp4")
    for line in blocks[first + 1 : first + 6]:
        assert line.startswith("  "), line


# Predictions


def host_device_s(host_s: float, prefill_tokens: int = 0, pairs: int = 0, decodes: int = 0, entries: int = 0) -> float:
    """A step of the article's profile, with the coefficients of its file written out."""
    device_s = 0.00112926 + 6.71659e-6 * prefill_tokens + 1.46121e-9 * pairs + 6.92763e-6 * decodes
    device_s += 1.08654e-7 * entries
    return (host_s**4 + device_s**4) ** 0.25


@pytest.mark.parametrize("cached", [0, 7296])  # 90 % of 8,192 is 7,372.8: 57 blocks of 128
def test_the_time_to_first_token_is_the_formula_by_hand(cached: int) -> None:
    """8,192 tokens in chunks of vllm-ascend's default of 2,048."""
    expected_s = 6.4937e-7 * 8192
    for start in range(cached, 8192, 2048):
        new = min(2048, 8192 - start)
        expected_s += host_device_s(0.0367053, new, new * start + new * (new + 1) // 2)
    found = as_json("show", ASCEND)
    (one,) = (one for one in found["ttft"] if (one["context"], one["cached"]) == (8192, cached))
    assert found["max_num_batched_tokens"] == 2048
    assert one["seconds"] == pytest.approx(expected_s, rel=1e-12)
    assert one["support"] == "measured"


def test_the_time_per_output_token_is_the_formula_by_hand() -> None:
    (one,) = (one for one in as_json("show", ASCEND)["tpot"] if (one["batch"], one["context"]) == (16, 4096))
    assert one["seconds"] == pytest.approx(host_device_s(0.0332366, decodes=16, entries=16 * 4096), rel=1e-12)
    assert one["support"] == "prior"  # only single requests were measured


def test_the_linear_profile_by_hand() -> None:
    """8 ms a step and 50 us a token; on a device of 128 GiB vLLM's budget is 8,192 tokens: four steps for 32K."""
    found = as_json("show", LINEAR)
    (cold,) = (one for one in found["ttft"] if (one["context"], one["cached"]) == (32768, 0))
    assert cold["seconds"] == pytest.approx(4 * 0.008 + 32768 * 50e-6)
    assert {one["support"] for one in (*found["ttft"], *found["tpot"])} == {"prior"}
    assert {one["seconds"] for one in found["tpot"]} == {0.008}


@pytest.mark.parametrize("budget", [2048, 18_432])
@pytest.mark.parametrize("context", [1000, 2049, 4097, 16_000])
def test_a_prediction_is_what_the_simulator_serves(ascend: Profile, context: int, budget: int) -> None:
    """2,049 and 4,097 leave a last chunk of one token, which the scheduler counts as a decode."""
    alone = request(0, 0.0, ((0, 0, context),), 9)
    serve([alone], ascend.step_time(), max_num_batched_tokens=budget)
    assert alone.first_token_s is not None
    predicted = Predictor(ascend, budget).ttft(context)
    assert predicted is not None
    assert predicted.seconds == pytest.approx(alone.first_token_s - alone.arrival_s, rel=1e-9)


def test_what_a_prediction_rests_on(ascend: Profile) -> None:
    """Measured: contexts to 16,461, one decode. What the pool cannot hold is not predicted."""
    predictor = Predictor(ascend)
    found = {(one.batch, one.context): one.prediction.support for one in predictor.tpots()}
    assert found[1, 16384] == MEASURED
    assert found[2, 16384] == PRIOR
    assert found[1, 32768] == OUTSIDE
    blocks = predictor.num_kv_tokens // 128
    expected = {(batch, context) for batch in BATCHES for context in CONTEXTS if batch * context // 128 <= blocks}
    assert set(found) == expected < {(batch, context) for batch in BATCHES for context in CONTEXTS}
    assert all((one.context > 16461) == (one.prediction.support == OUTSIDE) for one in predictor.ttfts())


def supports(profile: Profile) -> dict[str, set[int]]:
    """What the predictions inside the measured range rest on: of one request of at most 8K tokens."""
    predictor = Predictor(profile)
    ttfts = [one for one in predictor.ttfts() if one.context <= 8192]
    return {
        "cold": {one.prediction.support for one in ttfts if not one.cached},
        "cached": {one.prediction.support for one in ttfts if one.cached},
        "TPOT": {one.prediction.support for one in predictor.tpots([1]) if one.context <= 8192},
    }


@pytest.mark.parametrize(
    ("fitted", "told"),
    [
        (["TTFT mean"], {"cold"}),
        (["TTFT p99", "output tokens/s"], {"cold", "TPOT"}),
        (["TPOT p50"], {"TPOT"}),
        (["ITL mean"], {"TPOT"}),
        (["requests/s"], {"TPOT"}),
        (["total time mean"], set()),
    ],
)
def test_what_no_benchmark_told_rests_on_a_prior(ascend: Profile, fitted: list[str], told: set[str]) -> None:
    """Inside the measured range too: a load test of throughput alone measured no time to a first token."""
    cases = tuple(residual(f"{quantity}: load 1") for quantity in fitted)
    found = supports(learned(ascend, in_sample=cases))
    assert found == {name: {MEASURED if name in told else PRIOR} for name in ("cold", "cached", "TPOT")}


def test_a_hit_is_measured_where_a_benchmark_had_one(ascend: Profile) -> None:
    hit = Point(context=3500, cached=2625)
    with_hit = residual("TTFT mean: prefix 75", at=hit)
    assert supports(learned(ascend, in_sample=(with_hit,)))["cached"] == {MEASURED}
    rate = residual("requests/s: prefix 75", at=hit)  # no TTFT: neither a cold nor a cached one
    assert supports(learned(ascend, in_sample=(rate,)))["cached"] == {PRIOR}


def test_the_measured_range_alone_marks_other_evidence(ascend: Profile) -> None:
    assert supports(with_errors(ascend)) == {"cold": {MEASURED}, "cached": {MEASURED}, "TPOT": {MEASURED}}


def test_a_profile_without_ttft_says_so(tmp_path: Path, ascend: Profile) -> None:
    def text(command: str, quantity: str) -> str:
        name = quantity.partition("/")[0].replace(" ", "-")
        held = held_out(quantity, [0.0] * 4)
        profile = learned(ascend, *held, in_sample=tuple(held)).model_copy(update={"name": name})
        return words(kvcast(command, written(tmp_path, profile)))

    assert "8 benchmark rows, no TTFT measured" in text("show", "output tokens/s")
    assert "no TTFT measured" not in text("show", "TTFT mean")
    shown = text("show", "output tokens/s")
    assert "TTFT cells rest on a prior: no TTFT was fitted." in shown
    assert "TPOT cells rest on a prior" not in shown
    listed = as_json("list", tmp_path / "output-tokens.json")
    assert [one["name"] for one in listed if "no TTFT measured" in one["evidence_in_words"]][-1] == "output-tokens"
    assert not any("no TTFT measured" in one["evidence_in_words"] for one in listed if one["evidence"] != "benchmarks")


def test_marks_are_printed_and_explained() -> None:
    text = kvcast("show", ASCEND)
    (line,) = (line.split() for line in text.splitlines() if line.split()[:1] == ["16"])
    by_hand_ms = 1000 * host_device_s(0.0332366, decodes=16, entries=16 * 1024)
    assert line[1:3] == [f"{by_hand_ms:.2f}", "p"]
    assert "o: outside everything measured" in words(text)


def test_show_says_where_each_coefficient_comes_from(ascend: Profile) -> None:
    text = words(kvcast("show", ASCEND))
    for name, one in ascend.coefficients.items():
        assert name in text
        assert words(one.source) in text
    assert "0.03671 ± 7e-05" in text
    assert "and 1 chunk a step, batches up to 1, no chunks beside decodes" in text
    found = as_json("show", ASCEND)["coefficients"]["host_prefill_s"]
    assert (found["value"], found["standard_error"], found["origin"]) == (0.0367053, 0.0000700063, "measured")


def test_show_names_the_worst_case() -> None:
    errors = as_json("show", ASCEND)["errors"]
    (ttft,) = errors["held_out"]
    assert ttft["worst_case"] == "TTFT: 1038 prompt tokens, 0 cached"
    assert ttft["worst"] == pytest.approx(0.0376248 / 0.03728 - 1)
    assert [one["quantity"] for one in errors["in_sample"]] == ["TTFT", "TPOT"]


# Measured times


def test_the_published_medians_are_the_measured_points() -> None:
    found = as_json("show", ASCEND)
    ttft = {
        (one["at"]["context"], one["at"]["cached"]): one["measured_s"]
        for one in found["measured_points"]
        if one["quantity"] == "TTFT"
    }
    expected = {}
    for prefix, one in published().items():
        expected[one.num_prompt_tokens, 0] = one.cold_ttft_s
        expected[one.num_prompt_tokens, prefix] = one.warm_ttft_s
    assert ttft == pytest.approx(expected)
    assert found["num_measured_without_place"] == 0


def test_the_published_medians_are_on_the_figure(ascend: Profile) -> None:
    above, below = figure_of(Predictor(ascend)).axes
    drawn = {line.get_label(): line for line in above.lines}
    for label, side in (("measured, cold", "cold_ttft_s"), ("measured, with a hit", "warm_ttft_s")):
        line = drawn[label]
        expected = [(one.num_prompt_tokens, 1000 * getattr(one, side)) for one in published().values()]
        assert sorted(zip(*line.get_data(), strict=True)) == [pytest.approx(pair) for pair in sorted(expected)]
    (tpot,) = (line for line in below.lines if str(line.get_label()).startswith("measured"))
    assert list(tpot.get_xdata()) == [1, 1]
    assert list(tpot.get_ydata()) == pytest.approx([33.203, 33.2711])


def residual(case: str, error: float = 0.0, at: Point | None = None) -> Residual:
    """A time of one second (or a rate of one) with this relative error of what the case names."""
    predicted_s = 1 / (1 + error) if "/s" in case else 1 + error
    return Residual(case=case, measured_s=1.0, predicted_s=predicted_s, at=at)


def with_errors(profile: Profile, *held_out: Residual, in_sample: tuple[Residual, ...] = (), **more: Any) -> Profile:
    errors = Errors(in_sample=in_sample, held_out=held_out, num_not_held_out=0, **more)
    return profile.model_copy(update={"errors": errors})


def learned(profile: Profile, *held_out: Residual, in_sample: tuple[Residual, ...] = (), **more: Any) -> Profile:
    """The profile as if fitted to load tests, with these errors."""
    provenance = profile.provenance.model_copy(update={"evidence": "benchmarks"})
    return with_errors(profile, *held_out, in_sample=in_sample, **more).model_copy(update={"provenance": provenance})


def test_places_are_told_from_names_or_given(ascend: Profile) -> None:
    cases = (
        residual("TPOT: 1000 prompt tokens, 0 cached, 21 steps"),
        residual("step: 8 decodes over 4096"),
        residual("step: decode b4 c2048, 4 decodes"),
        residual("step: prompt 512, 1 decodes"),
        residual("TPOT mean: 8K in", at=Point(context=8300, batch=12.5)),
        residual("step: mixed b8 c1024 n512, 8 decodes, 512 prefill tokens, 131328 pairs"),
        residual("requests/s: 8K in"),
    )
    profile = with_errors(ascend, in_sample=cases)
    places = [(point.at.batch, point.at.context) for point in measured_points(profile)]
    assert places == [(1, 1011), (8, 512), (4, 2048), (1, 512), (12.5, 8300)]
    assert num_unplaced(profile) == 2
    assert len(figure_of(Predictor(profile)).axes) == 2


def test_only_what_a_curve_shows_is_put_on_it(ascend: Profile) -> None:
    """The curve of TTFT is that of one request served alone, and both are of expected times, not of tails."""
    alone, beside = Point(context=2048), Point(context=2048, batch=200)
    quantities = ("TTFT mean", "TTFT p50", "TTFT p90", "TTFT p99", "TPOT mean", "TPOT p50", "TPOT p99")
    cases = tuple(residual(f"{name}: {at.batch}", at=at) for name in quantities for at in (alone, beside))
    profile = with_errors(ascend, in_sample=cases)
    assert [point.case for point in measured_points(profile)] == [
        "TTFT mean: 1.0", "TTFT p50: 1.0", "TPOT mean: 1.0", "TPOT mean: 200.0", "TPOT p50: 1.0", "TPOT p50: 200.0",
    ]  # fmt: skip
    assert num_unplaced(profile) == len(cases) - 6


def test_chunks_as_measured_are_drawn_only_where_they_were(ascend: Profile) -> None:
    def labels(profile: Profile) -> str:
        return " ".join(str(line.get_label()) for line in figure_of(Predictor(profile)).axes[0].lines)

    assert "as measured" in labels(ascend)
    assert "as measured" not in labels(learned(ascend, in_sample=(residual("requests/s: load 1"),)))


# Indicative


GROUPS = [f"load {number}" for number in range(4)]


def held_out(quantity: str, errors: list[float], groups: list[str] = GROUPS) -> list[Residual]:
    return [residual(f"{quantity}: {group}", error) for group, error in zip(groups, errors, strict=True)]


@pytest.mark.parametrize(
    ("cases", "more", "reason"),
    [
        ([], {}, "nothing was held out of its fit"),
        (held_out("requests/s", [0.2, -0.1, 0.05, 0.09]), {}, None),  # median of sizes: 9.5 %
        (held_out("requests/s", [0.2, -0.11, 0.05, 0.096]), {}, "throughput is 10.3%, above 10%"),
        (held_out("output tokens/s", [-0.3] * 4), {}, "throughput is 30.0%, above 10%"),
        (held_out("TPOT mean", [0.119, -0.119, 0.5, 0.0]), {}, None),
        (held_out("TPOT mean", [0.121, -0.121, 0.5, 0.0]), {}, "TPOT is 12.1%, above 12%"),
        (held_out("TTFT mean", [0.5] * 4), {}, None),  # of TTFT the rule is for load tests only
        (held_out("TPOT mean", [0.0] * 3, GROUPS[:3]), {}, "only 3 groups of times could be held out"),
        (held_out("TPOT mean", [0.0]*4), {"num_groups": 2}, "only 2 groups of times could be held out"),
        (held_out("TPOT mean", [0.0]*3, GROUPS[:3]), {"num_groups": 4}, None),
    ],
)  # fmt: skip
def test_when_a_profile_is_indicative(
    ascend: Profile, cases: list[Residual], more: dict[str, int], reason: str | None
) -> None:
    found = indicative(with_errors(ascend, *cases, **more))
    assert (found is None) == (reason is None)
    assert (reason or "") in (found or "")


@pytest.mark.parametrize(
    ("errors", "reason"),
    [
        ([0.249, -0.249, 0.9, 0.0], None),
        ([0.251, -0.251, 0.9, 0.0], "its median held-out error on TTFT is 25.1%, above 25%"),
    ],
)
def test_a_profile_of_load_tests_far_off_at_ttft_is_indicative(
    ascend: Profile, errors: list[float], reason: str | None
) -> None:
    paces = held_out("TPOT mean", [0.0] * 4)  # they do not dilute the error of TTFT
    assert indicative(learned(ascend, *held_out("TTFT mean", errors), *paces, num_groups=4)) == reason


def test_the_error_of_a_rate_is_that_of_the_rate() -> None:
    """3.5855 requests/s predicted as 3.2: 10.8 % too few, though the inverse is 12.0 % too long."""
    one = Residual(case="requests/s: 0 % prefix", measured_s=1 / 3.5855, predicted_s=1 / 3.2)
    assert one.relative_error == pytest.approx(3.2 / 3.5855 - 1)
    assert one.model_copy(update={"case": "E2E: 0 % prefix"}).relative_error == pytest.approx(3.5855 / 3.2 - 1)


def test_the_shipped_profiles_of_no_device_and_of_the_article_are_not_indicative(ascend: Profile) -> None:
    assert indicative(load_profile(LINEAR)) is None  # it claims no measurement
    assert indicative(ascend) is None
    assert num_groups(ascend) == 4


def test_the_evidence_is_counted(ascend: Profile) -> None:
    def stating(**changes: Any) -> str:
        changed = ascend.provenance.model_copy(update=changes)
        return evidence_in_words(ascend.model_copy(update={"provenance": changed}))

    assert stating(num_launches=3) == "measured, 3 launches, 8 rows"
    assert stating(evidence="benchmarks") == "fitted from 8 benchmark rows"
    assert stating(evidence="operators") == "operator tables, 8 rows"


def test_an_indicative_profile_is_called_so_everywhere(tmp_path: Path, ascend: Profile) -> None:
    poor = with_errors(ascend, *held_out("requests/s", [0.2] * 4)).model_copy(update={"name": "poor"})
    path = written(tmp_path, poor)
    reason = "its median held-out error on throughput is 20.0%, above 10%"
    assert f"poor is indicative: {reason}" in words(kvcast("list", path))
    assert f"INDICATIVE: {reason}" in words(kvcast("show", path))
    assert f"poor is indicative: {reason}" in words(kvcast("compare", ASCEND, path))
    (tmp_path / "poor.yaml").write_text(TEXT.replace(f"profile: {ASCEND}", "profile: poor.json"))
    assert experiment.describe(scenario.load(tmp_path / "poor.yaml")).profile["indicative"] == reason


# Comparing


@pytest.fixture
def judged(ascend: Profile) -> Profile:
    """The article's profile, and a held-out error of 0.5 % at pace too, which it has not of its own."""
    pace = residual("TPOT: 1000 prompt tokens, 0 cached, 21 steps", 0.005)
    return with_errors(ascend, *ascend.errors.held_out, pace)


@pytest.mark.parametrize(
    ("case", "quantity"),
    [
        ("TTFT p99: load", "TTFT"),
        ("TPOT mean: load", "TPOT"),
        ("ITL mean: load", "TPOT"),
        ("output tokens/s: load", None),
        ("total time mean: load", None),
        ("step: 2 x 16 decodes at 512", "TPOT"),
        ("step: decode b4 c2048, 4 decodes", "TPOT"),
        ("step: chunk of 1024 after 8192", "TTFT"),
        ("step: 512 prefill tokens, 131328 pairs", "TTFT"),
        ("step: 16 decodes at 512, chunk of 64 after 2048", None),
        ("step: mixed b8 c1024 n512, 8 decodes, 512 prefill tokens, 131328 pairs", None),
    ],
)
def test_which_quantity_a_held_out_error_judges(ascend: Profile, case: str, quantity: str | None) -> None:
    profile = with_errors(ascend, residual(case, 0.25))
    found = {"TTFT": held_out_error(profile, "TTFT"), "TPOT": held_out_error(profile, "TPOT")}
    assert found == {one: pytest.approx(0.25) if one == quantity else None for one in found}


def test_nothing_is_said_of_what_no_error_judges(ascend: Profile) -> None:
    """An unknown error is not zero: the article's profile has no held-out TPOT, a synthetic one no error at all."""
    text = sentence(compare({"fast": ascend, "slow": scaled(ascend, 2, "slow")}))
    for topic in ("decoding one request", "decoding batches"):
        assert f"of {topic} nothing can be said: no held-out error of TPOT (fast, slow)" in text
    assert text.count("fast is faster") == 2
    text = sentence(compare({"fast": ascend, "slow": scaled(with_errors(ascend), 2, "slow")}))
    assert text.startswith("Of the first token of a cold prompt nothing can be said: no held-out error of TTFT (slow);")
    assert "faster" not in text
    rates = with_errors(ascend, *held_out("requests/s", [0.0] * 4))
    assert "faster" not in sentence(compare({"fast": rates, "slow": scaled(rates, 2, "slow")}))


def test_each_topic_is_judged_by_its_own_error(ascend: Profile) -> None:
    """Twice as slow, TTFT known to 50 % and TPOT to 1 %: 2 < 1.5 x 1.5, though the pooled median is below."""
    known = with_errors(ascend, *held_out("TTFT mean", [0.5] * 4), *held_out("TPOT mean", [0.01] * 4))
    text = sentence(compare({"fast": known, "slow": scaled(known, 2, "slow")}))
    assert text.startswith("At the first token of a cold prompt, no difference exceeds the held-out errors")
    assert "at decoding one request, fast is faster (2 times" in text
    swapped = with_errors(ascend, *held_out("TTFT mean", [0.01] * 4), *held_out("TPOT mean", [0.5] * 4))
    text = sentence(compare({"fast": swapped, "slow": scaled(swapped, 2, "slow")}))
    assert text.startswith("At the first token of a cold prompt, fast is faster (2 times")
    assert "at decoding one request, no difference exceeds the held-out errors" in text


def test_a_publisher_is_no_part_of_a_model(ascend: Profile) -> None:
    def named(model: str) -> Profile:
        return ascend.model_copy(update={"identity": ascend.identity.model_copy(update={"model": model})})

    def said(one: str, other: str) -> bool:
        return any("models" in note for note in notes(compare({"one": named(one), "other": named(other)})))

    assert not said("Qwen3-32B", "Qwen/Qwen3-32B")
    assert not said("/models/Qwen3-32B/", "Qwen/Qwen3-32B")
    assert said("Qwen/Qwen3-32B", "Qwen/Qwen3-8B")


@pytest.mark.parametrize("order", [("zero", "one"), ("one", "zero")])
def test_a_profile_that_takes_no_time_is_not_compared(ascend: Profile, order: tuple[str, str]) -> None:
    known = {"one": ascend, "zero": scaled(ascend, 0, "zero")}
    with pytest.raises(InputError, match=r"^zero: predicts a TTFT of 0 s .*, expected times above 0$"):
        compare({name: known[name] for name in order})


def test_a_profile_twice_as_slow_is_so_in_every_case(judged: Profile) -> None:
    """Formulas are homogeneous of degree one in their coefficients."""
    found = compare({"fast": judged, "slow": scaled(judged, 2, "slow")})
    cells = (*found.cold, *found.warm, *found.decode)
    ratios = [ratio for cell in cells if (ratio := cell.ratios["slow"]) is not None]
    assert len(ratios) > 2 * len(CONTEXTS)
    assert ratios == [pytest.approx(2)] * len(ratios)
    text = sentence(found)
    assert text.startswith("At the first token of a cold prompt, fast is faster (2 times, 1K to 16K tokens; measured);")
    assert "at decoding one request, fast is faster (2 times, 1K to 16K tokens; measured)" in text
    assert "at decoding batches, fast is faster (2 times, 1K to 16K tokens; prior)" in text


def test_no_difference_is_told_within_the_held_out_errors(judged: Profile) -> None:
    """All medians are 0.4 % or 0.5 %: times 0.4 % apart are alike."""
    text = sentence(compare({"one": judged, "other": scaled(judged, 1.004, "other")}))
    assert text.count("no difference exceeds the held-out errors") == 4
    assert "faster" not in text


def test_nothing_is_said_outside_what_was_measured(ascend: Profile) -> None:
    assert ascend.measured is not None
    short = ascend.model_copy(update={"measured": ascend.measured.model_copy(update={"max_context": 500})})
    text = sentence(compare({"one": ascend, "short": scaled(short, 2, "short")}))
    assert text.lower().count("nothing can be said") == 4


def test_who_leads_where_is_told_by_cases(ascend: Profile) -> None:
    """Half the host time and twice the device's: faster at short prompts, slower at long ones."""
    faster_host = {
        name: one.model_copy(update={"value": one.value * (0.5 if name.startswith("host") else 2)})
        for name, one in ascend.coefficients.items()
    }
    other = ascend.model_copy(update={"coefficients": faster_host})
    found = compare({"one": ascend, "other": other}, budget=16_384)
    first = [cell.ratios["other"] for cell in found.cold if cell.supported()]
    assert first[0] is not None
    assert first[-1] is not None
    assert first[0] < 1 < first[-1]
    assert "of 5 cases, other is faster in" in sentence(found)
    assert "one is faster in" in sentence(found)


def test_three_profiles_have_a_line_each(tmp_path: Path, ascend: Profile) -> None:
    names = ["slow", "slower"]
    paths = [written(tmp_path, scaled(ascend, 2 + number, name)) for number, name in enumerate(names)]
    found = as_json("compare", ASCEND, *paths, "-o", tmp_path / "out")
    assert found["profiles"] == [ASCEND, *names]
    assert f"{ASCEND} is fastest (2 times" in found["sentence"]
    assert json.loads((tmp_path / "out" / "comparison.json").read_text()) == found
    figure = figure_of_several({path.stem: Predictor(load_profile(path)) for path in paths})
    assert [len({str(line.get_color()) for line in axes.lines}) for axes in figure.axes] == [2, 2, 2]


def test_the_budget_of_a_step_can_be_given() -> None:
    found = as_json("show", ASCEND, "--max-num-batched-tokens", "16398")
    (one,) = (one for one in found["ttft"] if (one["context"], one["cached"]) == (8192, 0))
    by_hand_s = host_device_s(0.0367053, 8192, 8192 * 8193 // 2) + 6.4937e-7 * 8192
    assert one["seconds"] == pytest.approx(by_hand_s, rel=1e-12)


@pytest.mark.parametrize(
    ("arguments", "stem"),
    [(("show", ASCEND), "profile"), (("show", LINEAR), "profile"), (("compare", ASCEND, LINEAR), "comparison")],
)
def test_the_folder_holds_figure_and_numbers(tmp_path: Path, arguments: tuple[str, ...], stem: str) -> None:
    folder = tmp_path / "new" / "folder"
    assert f"Figure: {folder / stem}.svg" in kvcast(*arguments, "-o", folder)
    assert sorted(path.name for path in folder.iterdir()) == [f"{stem}.json", f"{stem}.png", f"{stem}.svg"]
    assert json.loads((folder / f"{stem}.json").read_text()) == as_json(*arguments)
    first = (folder / f"{stem}.svg").read_bytes()
    kvcast(*arguments, "-o", folder)
    assert (folder / f"{stem}.svg").read_bytes() == first


# Bad input


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.json").write_text('{"kind": "header"}\n')
    (tmp_path / "text.json").write_text("not a profile")
    (tmp_path / "file").write_text("")
    written(tmp_path, scaled(load_profile(LINEAR), 0, "zero"))
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("show", "qwen3-0.6b-ascend910"),
         f"profile: no shipped profile 'qwen3-0.6b-ascend910' (did you mean {ASCEND!r}?); a file is named by its path"),
        (("show", "rows.json"), "rows.json: schema_version: missing"),
        (("list", "text.json"), "text.json: Invalid JSON: expected ident at line 1 column 2"),
        (("show", "absent.json"), "absent.json: cannot read the profile (No such file or directory)"),
        (("compare", ASCEND), f"compare: got one profile ({ASCEND}), expected at least two"),
        (("compare", ASCEND, ASCEND), f"{ASCEND}: given twice, expected different profiles"),
        (("compare", LINEAR, "zero.json"),
         "zero: predicts a TTFT of 0 s (batch 1, 1,024 tokens), expected times above 0"),
        (("show", ASCEND, "-o", "file"), "file: file is not a folder"),
        (("compare", ASCEND, LINEAR, "-o", "file/below"), "file/below: file is not a folder"),
        (("show", ASCEND, "--max-num-batched-tokens", "0"),
         "Invalid value for '--max-num-batched-tokens': 0 is not in the range x>=1."),
    ],
)  # fmt: skip
def test_bad_input_is_one_line_and_exit_2(
    arguments: tuple[str, ...], line: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(folder.rglob("*"))
    with pytest.raises(SystemExit) as ended:
        cli.main(["profiles", *arguments])
    captured = capsys.readouterr()
    assert ended.value.code == 2
    assert captured.err == f"error: {line}\n"
    assert captured.out == ""
    assert sorted(folder.rglob("*")) == before


def test_the_group_is_found_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["profiles", "list"])
    assert not ended.value.code
    assert "Qwen3-0.6B" in capsys.readouterr().out
