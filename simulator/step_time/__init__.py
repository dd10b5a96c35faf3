"""Plan -> elapsed seconds: one formula a file, the same functions for prediction and for fitting.

Formulas use operators only, so that a plan of floats (prediction) and a plan of numpy arrays (fitting) both pass. Each
is homogeneous of degree one in its coefficients: twice all coefficients is twice the time, and a coefficient alone is
linear. Fitting relies on that for where its search starts.
"""

from __future__ import annotations

from collections.abc import Mapping

from simulator.step_time.additive import Additive
from simulator.step_time.formula import MEASURED, OUTSIDE, PRIOR, Measured, StepTime, Work
from simulator.step_time.host_device import HostDevice
from simulator.step_time.linear import Linear
from simulator.step_time.padding import Padding
from simulator.step_time.roofline_max import RooflineMax

__all__ = [
    "FORMULAS",
    "MEASURED",
    "OUTSIDE",
    "PRIOR",
    "Additive",
    "HostDevice",
    "Linear",
    "Measured",
    "Padding",
    "RooflineMax",
    "StepTime",
    "Work",
]

FORMULAS: Mapping[str, type[StepTime]] = {
    formula.name: formula for formula in (HostDevice, Linear, Additive, RooflineMax)
}
