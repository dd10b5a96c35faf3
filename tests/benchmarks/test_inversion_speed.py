"""How long learning a profile from load tests takes, printed by ``make bench``."""

from __future__ import annotations

import time

import numpy as np
import pytest

from calibration.benchmarks.belief import believe
from calibration.benchmarks.invert import Inversion
from calibration.roofline import Prior
from tests.test_inversion import ENGINE, SHEET, load_test, measured

pytestmark = pytest.mark.benchmark


def test_thirty_load_tests() -> None:
    rng = np.random.default_rng(1)
    loads = [(inputs, outputs) for inputs in (256, 1024, 4000, 8000, 12000) for outputs in (64, 300)]
    tests = [measured(load_test(*load, concurrency), rng, 0.02) for load in loads for concurrency in (1, 16, 100)]
    pool = Prior(float((ENGINE.num_gpu_blocks - 1) * ENGINE.block_size), "as it is")
    inversion = Inversion(tests, [ENGINE] * len(tests), believe(SHEET, pool))
    began_s = time.perf_counter()
    solution = inversion.solve()
    elapsed_s = time.perf_counter() - began_s
    print(
        f"\n{len(tests)} load tests, {len(solution.figures)} figures, {len(inversion.belief.names)} unknowns: "
        f"{elapsed_s:.0f} s for {solution.num_evaluations:,} simulated tests, misfit {solution.misfit:.2f} tolerances"
    )
    assert solution.misfit < 1
