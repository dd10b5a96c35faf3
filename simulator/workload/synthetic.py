"""A tenant's requests from distributions.

Each quantity has a random stream of its own, so that other answers leave the arrivals as they were.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from simulator.request import Prompt, Request
from simulator.streams import stream
from simulator.workload.arrivals import arrival_times_s, until
from simulator.workload.distributions import LengthSpec
from simulator.workload.draws import NUM_PER_DRAW, choices, lengths
from simulator.workload.lengths import draw_lengths
from simulator.workload.segments import first_segment
from simulator.workload.spec import SyntheticSpec, TenantSpec


def synthesize(tenant: TenantSpec, index: int, seed: int, replication: int) -> Iterator[Request]:
    """Yield drawn requests in order of arrival. Numbering is left to who merges the tenants."""
    spec = tenant.synthetic
    assert spec is not None  # who calls has looked
    return until(_endless(tenant, spec, index, seed, replication), spec.num_requests, spec.duration)


def _endless(tenant: TenantSpec, spec: SyntheticSpec, index: int, seed: int, replication: int) -> Iterator[Request]:
    def named(purpose: str) -> np.random.Generator:
        return stream(seed, "workload", tenant.name, purpose, replication)

    heads = _heads(spec, first_segment(index), named("prefix_tokens"))
    prefixes = choices(len(heads), spec.prefix_zipf_exponent or 0.0, named("prefix"))
    suffixes = lengths(spec.suffix_tokens or LengthSpec(distribution="fixed", mean=0), named("suffix_tokens"))
    outputs = lengths(spec.output_tokens, named("output_tokens"))
    salt = tenant.salt_of(None)
    for times_s in arrival_times_s(spec.arrivals, named("arrivals"), NUM_PER_DRAW):
        for arrival_s in times_s.tolist():
            prompt, num_prompt_tokens = heads[next(prefixes)]
            if suffix := next(suffixes):
                prompt, num_prompt_tokens = (*prompt, (None, 0, suffix)), num_prompt_tokens + suffix
            output = next(outputs)
            yield Request(
                request_id=-1,
                arrival_s=arrival_s,
                prompt=prompt,
                num_prompt_tokens=num_prompt_tokens,
                max_tokens=output,
                oracle_num_output_tokens=output,
                tenant=index,
                priority=tenant.priority,
                cache_salt=salt,
                lora=tenant.lora,
                skip_reading_prefix_cache=tenant.skip_reading_prefix_cache,
            )


def _heads(spec: SyntheticSpec, base: int, rng: np.random.Generator) -> list[tuple[Prompt, int]]:
    """The shared beginnings with their lengths; one empty beginning where there are none."""
    if spec.num_prefixes is None or spec.prefix_tokens is None:
        return [((), 0)]
    drawn = draw_lengths(spec.prefix_tokens, rng, spec.num_prefixes).tolist()
    return [(((base + k, 0, n),) if n else (), n) for k, n in enumerate(drawn)]
