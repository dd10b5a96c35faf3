"""What differs between vLLM versions, as named behaviours. No other module compares versions."""

from __future__ import annotations

from dataclasses import dataclass

from simulator.errors import InputError, nearest


@dataclass(frozen=True)
class Dialect:
    """The behaviours of one vLLM version that decide differently from another's (vLLM 0.23.0 and 0.32.0 are
    verified).
    """

    name: str
    keyless_blocks_first: bool  # returned blocks without a key go to the front of the free list, else all to the tail
    statistics_at_admission: bool  # prefix statistics count once, at admission, else at every lookup
    cached_tokens_of_first_admission: (
        bool  # num_cached_tokens is that of the first admission, else of the last lookup before a token
    )
    lone_request_uncapped: bool  # the long-prefill threshold spares a request that is alone
    has_watermark: bool  # watermark, max_num_active_seqs and the adaptive threshold exist
    skipped_have_own_queue: bool  # waiting requests passed over keep a queue of their own, served first
    victim_before_scan_corrected: bool  # a victim before the scan point that was not scheduled does not shift the scan
    stale_output: (
        bool  # output in flight at a preemption is stale (counters restart), else placeholders stay until it returns
    )
    draft_slots_reserved: (
        bool  # input slots of drafters are set apart for max_num_seqs requests, else counted as scheduled
    )
    draft_model_asynchronous: bool  # asynchronous scheduling is the default with a draft model
    pads_admissions: bool  # with drafts, an admission of one token is padded to the uniform decode size


VLLM_0_23 = Dialect(
    name="vllm-0.23",
    keyless_blocks_first=False,
    statistics_at_admission=False,
    cached_tokens_of_first_admission=False,
    lone_request_uncapped=False,
    has_watermark=False,
    skipped_have_own_queue=True,
    victim_before_scan_corrected=False,
    stale_output=False,
    draft_slots_reserved=True,
    draft_model_asynchronous=False,
    pads_admissions=False,
)
VLLM_0_32 = Dialect(
    name="vllm-0.32",
    keyless_blocks_first=True,
    statistics_at_admission=True,
    cached_tokens_of_first_admission=True,
    lone_request_uncapped=True,
    has_watermark=True,
    skipped_have_own_queue=False,
    victim_before_scan_corrected=True,
    stale_output=True,
    draft_slots_reserved=False,
    draft_model_asynchronous=True,
    pads_admissions=True,
)
DIALECTS = {dialect.name: dialect for dialect in (VLLM_0_23, VLLM_0_32)}


def find_dialect(name: str) -> Dialect:
    """The dialect of that name. Raises :class:`InputError` for any other."""
    if name not in DIALECTS:
        raise InputError(f"dialect {name!r}: expected one of {', '.join(DIALECTS)}{nearest(name, DIALECTS)}")
    return DIALECTS[name]
