"""A request, and what became of it."""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter
from typing import Any

# A run of tokens: (segment, start, length). Equal segments mean equal tokens; None means tokens that occur nowhere
# else.
Run = tuple[int | None, int, int]
Prompt = tuple[Run, ...]

WAITING, RUNNING, FINISHED, REFUSED, ABORTED = "waiting", "running", "finished", "refused", "aborted"

TOO_LONG = "prompt and max_tokens exceed max_model_len"  # why a request is refused


class Request:
    """One prompt with its answer. The first block of fields describes it, the second is what a run fills in.

    Times are seconds on the simulation's clock; ``None`` means "not yet". ``oracle_num_output_tokens`` is the true
    answer length, which no policy may read. ``timeout_s`` after its arrival the client gives up; ``num_retries`` counts
    the times that it has asked before.
    """

    seq: int  # counts admissions: the order of the running list
    last_output: int  # number of the answer token with which it ends
    stops_early: bool  # by a stop token, which the scheduler cannot foresee
    joined_at: int

    __slots__ = (  # noqa: RUF023 - grouped by who fills them in
        "request_id", "arrival_s", "prompt", "num_prompt_tokens", "max_tokens", "oracle_num_output_tokens",
        "output_segment", "tenant", "session", "priority", "cache_salt", "lora", "skip_reading_prefix_cache",
        "acceptance", "timeout_s", "abandons", "num_retries",
        # What became of it.
        "state", "refusal", "instance", "replica", "block_keys", "prompt_end", "queued_s", "first_scheduled_s",
        "first_token_s", "last_token_s", "finish_s", "hung_up_s", "num_cached_tokens", "num_preemptions",
        "num_output_tokens",
        # The scheduler's own, by vLLM's names where it has one.
        "arrival_time", "seq", "num_computed_tokens", "num_placeholders", "num_in_flight", "num_stale",
        "discards_stale", "num_drafts", "is_prefill_chunk", "last_output", "stops_early", "blocks", "num_published",
        "output_base", "joined", "joined_at",
    )  # fmt: skip

    def __init__(
        self,
        *,
        request_id: int,
        arrival_s: float,
        prompt: Prompt,
        num_prompt_tokens: int,
        max_tokens: int,
        oracle_num_output_tokens: int,
        output_segment: int | None = None,
        tenant: int = 0,
        session: int | None = None,
        priority: int = 0,
        cache_salt: str | None = None,
        lora: str | None = None,
        skip_reading_prefix_cache: bool = False,
        acceptance: Iterator[int] | None = None,
        timeout_s: float | None = None,
        num_retries: int = 0,
    ) -> None:
        self.request_id = request_id
        self.arrival_s = arrival_s
        self.prompt = prompt
        self.num_prompt_tokens = num_prompt_tokens
        self.max_tokens = max_tokens
        self.oracle_num_output_tokens = oracle_num_output_tokens
        self.output_segment = output_segment
        self.tenant = tenant
        self.session = session
        self.priority = priority
        self.cache_salt = cache_salt
        self.lora = lora
        self.skip_reading_prefix_cache = skip_reading_prefix_cache
        self.acceptance = acceptance
        self.timeout_s = timeout_s
        self.abandons = False  # at its time-out nobody asks again
        self.num_retries = num_retries
        self.state = WAITING
        self.refusal: str | None = None
        self.instance: int | None = None
        self.replica = 0  # of the router that takes it
        self.block_keys: list[int] = []
        self.prompt_end: Any = None  # int once the keys are computed: the position after the prompt (prefix.py)
        self.queued_s: float | None = None
        self.first_scheduled_s: float | None = None
        self.first_token_s: float | None = None
        self.last_token_s: float | None = None
        self.finish_s: float | None = None
        self.hung_up_s: float | None = None
        self.num_cached_tokens = 0
        self.num_preemptions = 0
        self.num_output_tokens = 0
        self.arrival_time = arrival_s  # what the priority policy goes by; see cluster.py
        self.seq = -1
        self.num_computed_tokens = 0
        self.num_placeholders = 0
        self.num_in_flight = 0
        self.num_stale = 0
        self.discards_stale = False
        self.num_drafts = 0
        self.is_prefill_chunk = False
        self.blocks: list[int] = []
        self.num_published = 0
        self.output_base: int | None = None
        self.joined: Any = None  # int of a group member (decoding.py), else None


def is_too_long(request: Request, max_model_len: int) -> bool:
    """Whether vLLM refuses the request when it comes, since it could become longer than the engine serves."""
    return request.num_prompt_tokens + request.max_tokens > max_model_len


in_order = attrgetter("seq")  # sort key: the order of admission, which is that of the running list and of scheduling
