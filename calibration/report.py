"""A page on one's own device: the article's two tables and figures, and how well a profile fits the rows."""

from __future__ import annotations

import base64
import importlib.resources
from collections.abc import Iterator, Sequence
from typing import Any

import jinja2

from calibration.check import Scored, score
from calibration.figures import predicted_against_measured, steps_by_context, ttft_by_prefix
from calibration.measurement import Measurements
from calibration.observations import averaged, observe
from calibration.tables import StepLine, TtftLine, step_lines, ttft_lines
from simulator.counts import counted
from simulator.plots import svg
from simulator.profile import Profile, Residual

_MOST_CASES = 40


def page(profile: Profile, files: Sequence[Measurements]) -> str:
    """The page as HTML that needs no network; the same bytes for the same rows and profile."""
    ttft, steps = ttft_lines(files, profile), step_lines(files, profile)
    fitted_cases = {residual.case for residual in profile.errors.in_sample}
    scored = score(profile, averaged(observe(files)))
    fitted = [one for one in scored if one.case in fitted_cases]
    held_out = [one for one in scored if one.case not in fitted_cases]
    # Autoescape must not be switched off, whatever the file is called.
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    source = importlib.resources.files("calibration").joinpath("report.html.j2").read_text(encoding="utf-8")
    html: str = environment.from_string(source).render(
        profile=profile,
        identity={key: value for key, value in profile.identity.model_dump().items() if value is not None},
        ttft=[_ttft(line) for line in ttft],
        steps=[_step(line) for line in steps],
        fit_lines=list(_fit_lines(profile, fitted, held_out)),
        coefficients=_coefficients(profile),
        cases=[_case(one, one.case in fitted_cases) for one in _furthest(scored)],
        num_cases=len(scored),
        images=list(_images(ttft, steps, held_out, fitted)),
        notes=list(_notes(files)),
    )
    return html


def _ttft(line: TtftLine) -> dict[str, str]:
    cold_total, warm_total = line.cold_total_s, line.warm_total_s
    return {
        "prompt": f"{line.num_prompt_tokens:,}",
        "prefix": f"{line.prefix_tokens:,}",
        "cold": _ms(line.cold.median_s),
        "cold_range": f"{_ms(line.cold.least_s)}–{_ms(line.cold.most_s)}",
        "warm": _ms(line.warm.median_s),
        "warm_range": f"{_ms(line.warm.least_s)}–{_ms(line.warm.most_s)}",
        "speed_up": f"{line.speed_up:.2f}",
        "faster": f"{line.num_faster} / {line.num_pairs}" if line.num_pairs else "",
        "predicted": f"{_ms(line.cold.predicted_s)} / {_ms(line.warm.predicted_s)}",
        "number": f"{line.cold.num_repeats} / {line.warm.num_repeats}",
        "share": f"{line.cold.median_s / cold_total:.1%}" if cold_total else "",
        "saved": f"{1 - warm_total / cold_total:.1%}" if cold_total and warm_total else "",
    }


def _step(line: StepLine) -> dict[str, str]:
    return {
        "batch": str(line.num_decodes),
        "context": f"{line.context:,}",
        "measured": _ms(line.measured_s),
        "predicted": _ms(line.predicted_s),
        "error": f"{line.predicted_s / line.measured_s - 1:+.1%}",
        "spread": "" if line.spread is None else f"{line.spread:.1%}",
        "number": str(line.num_repeats),
    }


def _fit_lines(profile: Profile, fitted: Sequence[Scored], held_out: Sequence[Scored]) -> Iterator[str]:
    launches = profile.provenance.num_launches
    yield f"Formula {profile.formula}, fitted to {counted(len(profile.errors.in_sample), 'case')}" + (
        f" of {counted(launches, 'launch', 'launches')}." if launches else "."
    )
    for name, cases in (("Fitted cases", fitted), ("Cases that the fit never saw", held_out)):
        if cases:
            errors = sorted(abs(one.error) for one in cases)
            yield f"{name}: {len(cases)}, median error {errors[len(errors) // 2]:.1%}, worst {errors[-1]:.1%}."
    if not held_out:
        yield "No case was held out of the fit: these errors say how the formula bends, not how it predicts."
    left_out = profile.errors.held_out
    if left_out:
        yield (
            f"Predicted from a fit without their own length class: {counted(len(left_out), 'case')}, mean error "
            f"{_mean(left_out):.1%}."
        )


def _mean(residuals: Sequence[Residual]) -> float:
    return sum(abs(residual.relative_error) for residual in residuals) / len(residuals)


def _coefficients(profile: Profile) -> list[dict[str, str]]:
    named = {
        **profile.coefficients,
        "overhead, constant": profile.overhead.constant_s,
        "overhead, prompt token": profile.overhead.prompt_token_s,
    }
    if profile.step_noise_s is not None:
        named["step noise"] = profile.step_noise_s
    return [
        {
            "name": name,
            "value": f"{one.value:.4g}",
            "error": f"± {one.standard_error:.2g}" if one.standard_error is not None
            else f"below {one.upper:.2g}" if one.upper is not None else "",
            "unit": one.unit,
            "origin": one.origin,
        }
        for name, one in named.items()
    ]  # fmt: skip


def _furthest(scored: Sequence[Scored]) -> list[Scored]:
    return sorted(scored, key=lambda one: -abs(one.error))[:_MOST_CASES]


def _case(one: Scored, was_fitted: bool) -> dict[str, str]:
    return {
        "case": one.case,
        "regime": one.regime.replace("_", " "),
        "measured": _ms(one.measured_s),
        "predicted": _ms(one.predicted_s),
        "error": f"{one.error:+.1%}",
        "spread": "" if one.spread is None else f"{one.spread:.1%}",
        "side": "fitted" if was_fitted else "held out",
    }


def _images(
    ttft: Sequence[TtftLine], steps: Sequence[StepLine], held_out: Sequence[Scored], fitted: Sequence[Scored]
) -> Iterator[dict[str, str]]:
    drawn: dict[str, Any] = {}
    if ttft:
        longest: dict[int, TtftLine] = {}
        for line in ttft:  # of one prefix length the article's kind: a few tokens after the whole prefix
            known = longest.setdefault(line.prefix_tokens, line)
            if line.num_prompt_tokens < known.num_prompt_tokens:
                longest[line.prefix_tokens] = line
        drawn["Time to first token by shared prefix: median, from least to most measured; dashed: predicted"] = (
            ttft_by_prefix(list(longest.values()))
        )
    if steps:
        drawn["Decode step by context, one line a batch size; dashed: predicted"] = steps_by_context(steps)
    if held_out or fitted:
        drawn["Predicted against measured, and the error: every case once"] = predicted_against_measured(
            held_out, fitted
        )
    for caption, figure in drawn.items():
        yield {"caption": caption, "data": base64.b64encode(svg(figure).encode()).decode()}


def _notes(files: Sequence[Measurements]) -> Iterator[str]:
    outliers = sum(bool(getattr(row, "outlier", False)) for file in files for row in file.rows)
    unused = sum(len(file.unused) for file in files)
    if outliers or unused:
        left_out = f"{counted(outliers, 'outlying row')}, {counted(unused, 'warm-up or failed row')}"
        yield f"In the files and in no number here: {left_out}."
    for file in files:
        header = file.header
        yield f"{file.file}: {counted(len(file.rows), 'row')}, measured {header.measured}; {header.source}"


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.2f}"
