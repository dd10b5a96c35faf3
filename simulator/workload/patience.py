"""Clients that hang up: after a time-out, perhaps to ask again, or because nobody reads on."""

from __future__ import annotations

import math

from simulator.request import Request
from simulator.streams import python_stream
from simulator.workload.distributions import PauseSpec
from simulator.workload.spec import TenantSpec


class Patience:
    """How long a tenant's clients wait. Draws are named after the request, so that no other request changes them."""

    def __init__(self, tenant: TenantSpec, seed: int, replication: int) -> None:
        self._tenant = tenant
        self._names = (seed, "workload", tenant.name, "abandons", replication)

    def limit(self, request: Request, *names: object) -> Request:
        """The request, with the time after which its client hangs up. ``names`` tell it from the tenant's others."""
        request.timeout_s = self._tenant.timeout
        abandons = self._tenant.abandons
        if abandons is not None:
            rng = python_stream(*self._names, *names)
            if rng.random() < abandons.share:
                after_s = _drawn_s(abandons.after, rng.random(), rng.gauss(0.0, 1.0))
                if request.timeout_s is None or after_s <= request.timeout_s:
                    request.timeout_s, request.abandons = after_s, True
        return request

    def again(self, request: Request, now_s: float) -> Request | None:
        """The same request once more, if its client timed out and has retries left."""
        tenant = self._tenant
        timed_out = request.hung_up_s is not None and not request.abandons
        if not timed_out or request.num_retries >= tenant.retries:
            return None
        return Request(
            request_id=-1,
            arrival_s=now_s + tenant.retry_after,
            prompt=request.prompt,
            num_prompt_tokens=request.num_prompt_tokens,
            max_tokens=request.max_tokens,
            oracle_num_output_tokens=request.oracle_num_output_tokens,
            output_segment=request.output_segment,
            tenant=request.tenant,
            session=request.session,
            priority=request.priority,
            cache_salt=request.cache_salt,
            lora=request.lora,
            skip_reading_prefix_cache=request.skip_reading_prefix_cache,
            acceptance=request.acceptance,
            timeout_s=request.timeout_s,
            num_retries=request.num_retries + 1,
        )


def _drawn_s(spec: PauseSpec, uniform: float, normal: float) -> float:
    if spec.distribution == "fixed":
        return spec.mean
    if spec.distribution == "exponential":
        return -spec.mean * math.log1p(-uniform)
    assert spec.cv is not None  # the specification demands it
    variance = math.log1p(spec.cv**2)
    return math.exp(math.log(spec.mean) - variance / 2 + math.sqrt(variance) * normal)
