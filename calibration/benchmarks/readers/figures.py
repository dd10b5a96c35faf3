"""What the readers of several tools compute alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from calibration.benchmarks.benchmark import Lengths

_CONTRADICTS = 0.1


def statistics(name: str, values_s: Sequence[float]) -> dict[str, float]:
    """``ttft_mean_s``, ``ttft_p50_s``, ``ttft_p90_s`` and ``ttft_p99_s`` of single values, as vLLM's client counts."""
    if not values_s:
        return {}
    points = np.percentile(values_s, (50, 90, 99))
    keys = (f"{name}_mean_s", f"{name}_p50_s", f"{name}_p90_s", f"{name}_p99_s")
    return dict(zip(keys, (float(np.mean(values_s)), *map(float, points)), strict=True))


def stretch_s(ttft_s: float | None, e2e_s: float | None, outputs: Lengths) -> float | None:
    """Seconds a token between the first and the last, from means: of all tokens alike, whichever request they are of.

    None where the means do not tell.
    """
    if ttft_s is None or e2e_s is None or outputs.mean <= 1 or e2e_s <= ttft_s:
        return None
    return (e2e_s - ttft_s) / (outputs.mean - 1)


def without_miscounted(measured: dict[str, Any], outputs: Lengths) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Figures of inference-perf, where TPOT is right; and what was done about it.

    Releases before the fix of kubernetes-sigs/inference-perf#564 counted a token of every streamed piece twice, so that
    the gaps between tokens came out about half as long. The requests' total times are right, and tell.
    """
    tpot_s = stretch_s(measured.get("ttft_mean_s"), measured.get("e2e_mean_s"), outputs)
    stated_s = measured.get("tpot_mean_s")
    if tpot_s is None or not stated_s or abs(stated_s / tpot_s - 1) <= _CONTRADICTS:
        return measured, ()
    kept = {name: value for name, value in measured.items() if not name.startswith(("tpot", "itl"))}
    words = (
        f"TPOT is {tpot_s * 1e3:.3g} ms, from total time, TTFT and output length: the file's own "
        f"{stated_s * 1e3:.3g} ms contradicts them (inference-perf counted tokens twice before its issue 564)"
    )
    return kept | {"tpot_mean_s": tpot_s}, (words,)
