"""A measuring session on an engine with a scripted clock: rows, checks, resuming, refusal, budget, verdicts."""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from calibration.measure import Outcome, Settings, measure
from calibration.measurement import Measurements, RequestRow, StepRow, read_measurements
from calibration.probes import plan
from calibration.protocol import Rules, judge
from simulator.errors import InputError
from tests.scripted_engine import CONTEXT_S, GAP_S, LIMITS, STEP_S, SUBMIT_S, TOKEN_S, ScriptedEngine, Watched


def session(
    path: Path, engine: ScriptedEngine | None = None, budget_s: float | None = None, num_launches: int = 3
) -> tuple[Outcome, Watched, ScriptedEngine]:
    engine = engine or ScriptedEngine()
    watched = Watched()
    settings = Settings(Rules(num_launches=num_launches), budget_s, now=engine.now)
    return measure(engine, path, settings, watched), watched, engine


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> Measurements:
    path = tmp_path_factory.mktemp("quiet") / "rows.jsonl"
    session(path)
    return read_measurements(path)


def test_every_planned_case_has_every_launch(quiet: Measurements) -> None:
    launches: dict[str | None, set[int | None]] = {}
    for row in quiet.rows:
        launches.setdefault(row.case, set()).add(row.launch)
    assert launches == {case.key: {0, 1, 2} for case in plan(LIMITS)}
    assert [header.launch for header in quiet.headers] == [0, 1, 2]
    assert quiet.header.capacity is not None
    assert quiet.header.capacity.num_gpu_blocks == LIMITS.num_gpu_blocks
    assert all(row.warmup for row in quiet.unused)


def test_step_rows_hold_the_scripted_times(quiet: Measurements) -> None:
    steps = [row for row in quiet.rows if isinstance(row, StepRow)]
    assert {row.regime for row in steps} == {"cold_prefill", "warm_prefill", "decode", "mixed"}
    for row in steps:
        computed = row.decode_context - row.num_decodes + sum(before for _, before in row.prefill_pieces or ())
        work = TOKEN_S * (row.num_decodes + row.num_prefill_tokens) + CONTEXT_S * computed
        assert row.duration_s == pytest.approx(STEP_S + work, rel=1e-9)
        assert row.gap_s is None or row.gap_s == pytest.approx(GAP_S)


def test_a_time_to_first_token_is_its_steps_and_overhead(quiet: Measurements) -> None:
    requests = [row for row in quiet.rows if isinstance(row, RequestRow)]
    assert requests
    for row in requests:
        assert row.ttft_s is not None
        assert row.steps_s is not None
        assert row.overhead_s == pytest.approx(SUBMIT_S + GAP_S)
        assert row.ttft_s == pytest.approx(row.steps_s + row.overhead_s)
        chunks = -(-(row.num_prompt_tokens - row.num_cached_tokens) // LIMITS.max_num_batched_tokens)
        assert row.num_steps == chunks
        assert row.num_cached_tokens == row.expected_cached_tokens


def test_warm_requests_hit_all_full_blocks_of_what_is_shared(quiet: Measurements) -> None:
    by_key = {case.key: case for case in plan(LIMITS)}
    warm = [row for row in quiet.rows if isinstance(row, RequestRow) and row.num_cached_tokens]
    shares = {by_key[row.case or ""].num_shared_tokens % LIMITS.block_size for row in warm}
    assert len(shares) > 1, "aligned and not aligned"
    for row in warm:
        case = by_key[row.case or ""]
        known = min(case.num_shared_tokens, row.num_prompt_tokens - 1)
        assert row.num_cached_tokens == known - known % LIMITS.block_size


def test_cold_and_warm_alternate(quiet: Measurements) -> None:
    first: dict[tuple[Any, ...], str | None] = {}
    for row in quiet.rows:
        if isinstance(row, RequestRow):
            first.setdefault((row.case, row.launch, row.repeat), row.regime)
    warm_first = {key for key, regime in first.items() if regime == "warm_prefill"}
    both = {key for key in first if any(other[0] == key[0] for other in warm_first)}
    assert {repeat % 2 for _, _, repeat in warm_first} == {1}
    assert {repeat % 2 for _, _, repeat in both - warm_first} == {0}


def test_order_is_shuffled_and_repeats_with_the_seed(tmp_path: Path) -> None:
    orders = []
    for name in ("a", "b"):
        _, _, engine = session(tmp_path / name)
        orders.append(engine.taken)
    assert orders[0] == orders[1]
    firsts = [[key for launch, key in orders[0] if launch == number][20:40] for number in (2, 3)]
    assert firsts[0] != firsts[1]


def test_nothing_on_file_is_measured_again(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    session(path)
    before = path.read_bytes()
    outcome, watched, engine = session(path)
    assert (outcome.num_launches, outcome.num_takes, engine.num_launches) == (0, 0, 0)
    assert path.read_bytes() == before
    assert "every case has 3 launches" in watched.said[-1]


def test_other_settings_are_other_questions_to_the_same_file(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    session(path, num_launches=1)
    fewer = dataclasses.replace(LIMITS, max_num_seqs=2)
    outcome, _, _ = session(path, ScriptedEngine(limits=fewer), num_launches=1)
    assert outcome.num_takes > 0
    cases = {limits.max_num_seqs: {case.key for case in plan(limits)} for limits in (LIMITS, fewer)}
    found: dict[int | None, set[str | None]] = {}
    for row in read_measurements(path).rows:
        found.setdefault(row.covariates.max_num_seqs, set()).add(row.case)
    assert found == cases
    for limits in (LIMITS, fewer):
        again, _, engine = session(path, ScriptedEngine(limits=limits), num_launches=1)
        assert (again.num_takes, engine.num_launches) == (0, 0)


@pytest.mark.parametrize("kind", [InputError("the engine ended"), KeyboardInterrupt()])
def test_an_interrupted_session_goes_on_where_it_stopped(tmp_path: Path, kind: BaseException) -> None:
    path = tmp_path / "rows.jsonl"
    engine = ScriptedEngine()
    engine.breaks_at, engine.breaks_with = 90, kind
    with pytest.raises(type(kind)):
        session(path, engine)
    taken = Counter((row.case, row.launch) for row in read_measurements(path).rows)
    _, _, second = session(path)
    rows = read_measurements(path).rows
    after = Counter((row.case, row.launch) for row in rows)
    assert all(after[key] == count for key, count in taken.items()), "no launch is added to afterwards"
    per_case = {case: {launch for other, launch in after if other == case} for case, _ in after}
    assert {len(launches) for launches in per_case.values()} == {3}
    assert second.num_launches == 3, "some cases had no launch yet"
    wanted_last = {key for launch, key in second.taken[-40:] if launch == 3}
    assert wanted_last.isdisjoint(case for case, _ in taken), "what had one launch needs two more"


def test_a_line_cut_off_by_a_crash_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    session(path, num_launches=1)
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"kind":"step","cov')
    session(path, num_launches=1)
    assert path.read_bytes() == whole


def test_another_identity_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    session(path, num_launches=1)
    before = path.read_bytes()
    other = ScriptedEngine()
    other.identity["driver"] = "2"
    with pytest.raises(InputError, match=r"identity\.driver is '2', earlier rows have None: never mixed"):
        session(path, other)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("attribute", "value", "message", "some"),
    [
        ("reset_works", False, "reset_prefix_cache did not return True", "ttft"),
        ("hits_are_right", False, "cached tokens reported, expected", "ttft"),
        ("answers_repeat", False, "output token ids differ", "ttft"),
    ],
)
def test_a_failed_check_fails_the_case_loudly(
    tmp_path: Path, attribute: str, value: bool, message: str, some: str
) -> None:
    engine = ScriptedEngine()
    engine.prepare = lambda steps: setattr(steps, attribute, value)
    outcome, watched, _ = session(tmp_path / "rows.jsonl", engine)
    failed = [case.key for case in plan(LIMITS) if case.probe == some]
    assert set(failed) <= set(outcome.failures)
    assert all(message in outcome.failures[key] for key in failed)
    assert any(line.startswith("FAILED") for line in watched.said)
    measurements = read_measurements(tmp_path / "rows.jsonl")
    assert {row.case for row in measurements.rows}.isdisjoint(failed)
    assert {row.case for row in measurements.unused if row.failed} >= set(failed)


def test_a_budget_drops_the_least_informative_and_keeps_the_corners(tmp_path: Path) -> None:
    everything, _, whole = session(tmp_path / "all.jsonl")
    outcome, watched, engine = session(tmp_path / "some.jsonl", budget_s=0.6 * whole.clock_s)
    assert not everything.dropped
    assert outcome.dropped
    assert min(case.rank for case in outcome.dropped) > 0
    kept = {row.case for row in read_measurements(tmp_path / "some.jsonl").rows}
    assert {case.key for case in plan(LIMITS) if case.rank == 0} <= kept
    assert max(case.rank for case in plan(LIMITS) if case.key in kept) <= min(case.rank for case in outcome.dropped)
    assert engine.clock_s <= 0.6 * whole.clock_s
    assert any("left out for want of time" in line for line in watched.said)


def test_a_budget_too_small_for_the_corners_says_so(tmp_path: Path) -> None:
    outcome, watched, _ = session(tmp_path / "rows.jsonl", budget_s=30)
    assert {case.rank for case in plan(LIMITS) if case not in outcome.dropped} == {0}
    assert any("will be exceeded" in line for line in watched.said)


def test_time_left_is_known_and_falls_to_nothing(tmp_path: Path) -> None:
    _, watched, engine = session(tmp_path / "rows.jsonl")
    estimates = [seconds for _, _, seconds in watched.lefts]
    assert estimates[-1] == 0
    begun = estimates[0]
    assert 0.3 * engine.clock_s < begun < 1.2 * engine.clock_s


def test_a_quiet_machine_is_called_quiet(quiet: Measurements) -> None:
    verdict = judge(quiet)
    assert verdict.quiet
    assert verdict.machine.startswith("quiet machine: 100% of")
    assert all(judgement.verdict.startswith("stable: within 0.0%") for judgement in verdict.judgements)


def test_launches_that_differ_are_called_noisy_however_alike_their_repeats(tmp_path: Path) -> None:
    session(tmp_path / "rows.jsonl", ScriptedEngine(drift=1.3))
    verdict = judge(read_measurements(tmp_path / "rows.jsonl"))
    assert not verdict.quiet
    assert verdict.machine.startswith("noisy machine")
    steps = [judgement for judgement in verdict.judgements if judgement.name.endswith("step")]
    assert all("differ by up to 69%" in judgement.verdict for judgement in steps)


def test_too_few_launches_are_not_judged(tmp_path: Path) -> None:
    session(tmp_path / "rows.jsonl", num_launches=2)
    verdict = judge(read_measurements(tmp_path / "rows.jsonl"))
    assert not verdict.quiet
    assert verdict.machine.startswith("not judged")
    assert {judgement.verdict for judgement in verdict.judgements} == {"too few launches: 2 of 3"}


def test_a_single_launch_is_not_judged_even_where_no_more_was_asked_for(tmp_path: Path) -> None:
    session(tmp_path / "rows.jsonl", num_launches=1)
    verdict = judge(read_measurements(tmp_path / "rows.jsonl"), Rules(num_launches=1))
    assert not verdict.quiet
    assert verdict.machine.startswith("not judged")
    assert all(judgement.verdict.startswith("a single launch") for judgement in verdict.judgements)


def test_noisy_cases_are_repeated_more_often_than_steady_ones(tmp_path: Path) -> None:
    draw = random.Random(5)
    calm, _, _ = session(tmp_path / "calm.jsonl")
    wild, _, _ = session(tmp_path / "wild.jsonl", ScriptedEngine(noise=lambda: draw.uniform(0.7, 1.3)))
    num_cases = len(plan(LIMITS))
    assert calm.num_takes == 3 * Rules().min_repeats * num_cases
    assert calm.num_takes < wild.num_takes <= 3 * Rules().max_repeats * num_cases


def test_outliers_are_kept_and_marked(tmp_path: Path) -> None:
    draw = random.Random(8)
    engine = ScriptedEngine(noise=lambda: 5.0 if draw.random() < 0.01 else 1.0)
    session(tmp_path / "rows.jsonl", engine)
    rows = read_measurements(tmp_path / "rows.jsonl").rows
    slow = [row for row in rows if isinstance(row, StepRow) and row.duration_s > 4 * STEP_S]
    assert len(slow) > 20
    decodes = [row for row in slow if row.regime == "decode"]
    assert all(row.outlier for row in decodes)
    fine = [row for row in rows if isinstance(row, StepRow) and row.duration_s < 2 * STEP_S]
    assert not any(row.outlier for row in fine)


def test_an_impossible_row_is_one_line(tmp_path: Path) -> None:
    engine = ScriptedEngine()

    def broken(steps: Any) -> None:
        steps.recorded = list

    engine.prepare = broken
    outcome, _, _ = session(tmp_path / "rows.jsonl", engine, num_launches=1)
    decode = [case.key for case in plan(LIMITS) if case.probe == "decode"]
    assert all(outcome.failures[key] == "no rows" for key in decode)
