"""What is believed of an engine before its load tests: a data sheet's figures, and by what factor they may be off.

A belief is a normal distribution of the coefficients' natural logarithms. Coefficients that rest on the same rate of
the device (its arithmetic, its memory) share most of their error: that is the efficiency which a few results can tell
long before they can tell one coefficient from another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from calibration.estimate import OVERHEAD_SLOPE
from calibration.observations import Array
from calibration.roofline import Prior
from simulator.uncertainty import OVERHEAD

FORMULA = "roofline_max"
POOL = "num_kv_tokens"  # that the engine's pool holds: what its memory leaves is as little known as its step times

# Standard deviations of logarithms: 0.5 is a factor of 1.65 either way. All are conventions.
_SHARED = {"arithmetic": 0.5, "memory": 0.4}
_RATE = {
    "token_s": "arithmetic",
    "prefill_pair_s": "arithmetic",
    "weights_s": "memory",
    "experts_s": "memory",
    "context_s": "memory",
}
# Of its own: attention kernels reach their rates less well than matrix products do.
# Of the pool: what activations and buffers take beside weights that are known.
_OWN = {"token_s": 0.2, "prefill_pair_s": 0.7, "weights_s": 0.2, "experts_s": 0.3, "context_s": 0.6, POOL: 1.0}
# Host work has no data sheet. What one launch of a model's layers takes in Python, and of the server around it.
_HOST = {
    "host_step_s": (4e-3, 1.0, "4 ms a step, a factor of 2.7 either way: the range of published single-stream steps"),
    "host_request_s": (2e-5, 1.5, "20 us a request and step, a factor of 4.5 either way"),
    OVERHEAD: (5e-3, 1.0, "5 ms a request, a factor of 2.7 either way: HTTP, tokenisation, transport"),
}


@dataclass(frozen=True)
class Belief:
    """``priors`` by coefficient; ``names`` are those that results may move, with the covariance of their logarithms.

    The others (pure numbers of the model's shape) are taken as they are.
    """

    priors: Mapping[str, Prior]
    names: tuple[str, ...]
    covariance: Array

    @property
    def mean(self) -> Array:
        """Natural logarithms of the priors of ``names``."""
        logarithms: Array = np.log([self.priors[name].value for name in self.names])
        return logarithms

    @property
    def deviation(self) -> Array:
        """Standard deviations of these logarithms."""
        deviations: Array = np.sqrt(np.diag(self.covariance))
        return deviations

    def values(self, logarithms: Array) -> dict[str, float]:
        """All coefficients, where ``names`` have these logarithms. Load tests show no overhead by length."""
        fixed = {name: prior.value for name, prior in self.priors.items()} | {OVERHEAD_SLOPE: 0.0}
        return fixed | dict(zip(self.names, np.exp(logarithms).tolist(), strict=True))


def believe(sheet: Mapping[str, Prior], pool: Prior | None = None) -> Belief:
    """What a data sheet (see ``roofline``) makes one believe; ``pool``: tokens of KV cache, where nobody says."""
    priors = {name: sheet[name] for name in (*_RATE, "expert_share") if name in sheet}
    priors |= {name: Prior(value, f"convention: {words}") for name, (value, _, words) in _HOST.items()}
    if pool is not None:
        priors[POOL] = pool
    names = tuple(name for name in (*_HOST, *_RATE, POOL) if name in priors)
    return Belief(priors, names, np.array([[_covariance(one, other) for other in names] for one in names]))


def _covariance(one: str, other: str) -> float:
    own = 0.0
    if one == other:
        own = _HOST[one][1] if one in _HOST else _OWN[one]
    rate = _RATE.get(one)
    shared = _SHARED[rate] if rate is not None and rate == _RATE.get(other) else 0.0
    return own**2 + shared**2
