"""What a scenario says about its tenants: frozen, strict, and without a key that changes nothing.

Durations are read in any unit and kept in seconds, lengths are tokens, rates are requests per second.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, StrictBool, model_validator

from simulator.errors import InputError
from simulator.units import Count, PositiveCount, PositiveNumber, PositiveSeconds, Seconds, Share, TargetSeconds
from simulator.workload.conversation_spec import ConversationSpec
from simulator.workload.distributions import ArrivalSpec, Length, Pause, Spec
from simulator.workload.tree_spec import TreeSpec


class SyntheticSpec(Spec):
    """Drawn requests: one of ``num_prefixes`` shared texts, then a text of the request's own, then an answer.

    Exactly one of ``num_requests`` and ``duration`` (seconds; arrivals strictly before it) ends the stream. A prefix
    has one length for as long as the replication lasts. Prefixes are equally popular, or the k-th has weight
    ``k ** -prefix_zipf_exponent``.
    """

    arrivals: ArrivalSpec
    num_requests: PositiveCount | None = None
    duration: PositiveSeconds | None = None
    num_prefixes: PositiveCount | None = Field(default=None, le=10**6)
    prefix_tokens: Length | None = None
    prefix_zipf_exponent: PositiveNumber | None = None
    suffix_tokens: Length | None = None
    output_tokens: Length

    @model_validator(mode="after")
    def _describes_one_stream(self) -> Self:
        if (self.num_requests is None) == (self.duration is None):
            raise ValueError("give exactly one of num_requests and duration")
        if (self.num_prefixes is None) != (self.prefix_tokens is None):
            raise ValueError("num_prefixes and prefix_tokens go together")
        if self.prefix_zipf_exponent is not None and (self.num_prefixes or 1) < 2:
            raise ValueError("prefix_zipf_exponent would change nothing without two prefixes or more")
        if all(length is None or length.is_zero for length in (self.prefix_tokens, self.suffix_tokens)):
            raise ValueError("a prompt has at least one token: give prefix_tokens or suffix_tokens")
        if self.output_tokens.is_zero:
            raise ValueError("output_tokens: a request generates at least one token")
        return self


# Formats that tell how long a client waited after an answer.
_WITH_DELAYS = ("weka", "aiperf", "kvcast")


class TraceSpec(Spec):
    """A recorded trace, replayed in this order: spread lumps, cut a window, compress time, stop at ``limit`` requests.

    ``path`` is relative to the scenario file. ``smooth_s`` spreads each arrival evenly over that many seconds after its
    timestamp, for traces whose clock ticks coarsely. ``window`` (seconds of trace time) takes a random contiguous piece
    of that length, another one in each replication; without it every replication replays the whole trace. A window
    starts with cold caches: what the trace sent before it is not replayed. ``rate_scale`` divides every gap between
    arrivals, so that a 20 min window lasts 5 min at scale 4. ``session_from: second_block`` makes requests that agree
    in their first two blocks one session (the Mooncake conversation trace starts every request with the same block).

    ``strict: false`` passes over lines that cannot be used, and says how many; otherwise the first one is an error.
    ``session_arrivals`` says when sessions start, where the file has times within each session only. ``tokenizer`` (a
    tokenizer.json, for texts) and ``lengths`` (of ServeGen's clients) are further files, ``block_tokens`` is what an id
    stands for, ``gap_s`` tells requests apart in KV events. With ``pace: answers`` a request with a recorded delay
    comes that long after the *simulated* end of the one that it waited for, instead of at its recorded time.

    ``tenant`` replays that tenant's requests of a file that names tenants, and no others. Tenants of one file share the
    texts that they share there, and the window.
    """

    format: Literal[
        "mooncake", "mooncake_arxiv", "bailian", "weka", "aiperf", "azure", "burstgpt", "servegen", "vllm_bench",
        "openai", "kv_events", "kvcast",
    ]  # fmt: skip
    path: str = Field(min_length=1)
    strict: StrictBool = True
    tokenizer: str | None = Field(default=None, min_length=1)
    lengths: str | None = Field(default=None, min_length=1)
    block_tokens: PositiveCount | None = Field(default=None, le=2**20)
    gap_s: PositiveSeconds | None = None
    tenant: str | None = Field(default=None, min_length=1)
    session_arrivals: ArrivalSpec | None = None
    pace: Literal["answers"] | None = None
    smooth_s: PositiveSeconds | None = None
    window: PositiveSeconds | None = None
    rate_scale: PositiveNumber = 1.0
    session_from: Literal["second_block"] | None = None
    limit: PositiveCount | None = None

    @property
    def has_sessions(self) -> bool:
        """Whether its requests can have sessions."""
        from simulator.workload.readers import READERS

        return self.session_from is not None or READERS[self.format].may_have_sessions

    @model_validator(mode="after")
    def _every_key_matters(self) -> Self:
        from simulator.workload.readers import READERS

        reader = READERS[self.format]
        for key in ("tokenizer", "lengths", "block_tokens", "gap_s"):
            if getattr(self, key) is not None and key not in reader.options:
                takers = " and ".join(name for name, other in READERS.items() if key in other.options)
                raise ValueError(f"{key} would change nothing for format {self.format} (it is for {takers})")
        if "lengths" in reader.options and self.lengths is None:
            raise ValueError(f"format {self.format} needs lengths, the file of its clients' lengths")
        if self.tenant is not None and not reader.may_have_tenants:
            takers = " and ".join(name for name, other in READERS.items() if other.may_have_tenants)
            raise ValueError(f"tenant would change nothing for format {self.format} (it is for {takers})")
        if self.session_from is not None and not self.format.startswith("mooncake"):
            raise ValueError(f"session_from would change nothing for format {self.format} (it is for mooncake)")
        if self.pace is not None:
            self._check_pace()
        if reader.sessions_start_together and self.session_arrivals is None:
            raise ValueError(f"format {self.format} has times within sessions only: give session_arrivals")
        if self.session_arrivals is not None and not (reader.sessions_start_together or reader.may_start_together):
            raise ValueError(f"session_arrivals would change nothing for format {self.format}: its requests have times")
        return self

    def _check_pace(self) -> None:
        if self.format not in _WITH_DELAYS:
            takers = " and ".join(_WITH_DELAYS)
            raise ValueError(f"pace would change nothing for format {self.format}: it has no delays ({takers} have)")
        for key in ("window", "smooth_s", "limit"):
            if getattr(self, key) is not None:
                raise ValueError(f"{key} does not go with pace: answers (a tenant's limit counts what starts unasked)")
        if self.rate_scale != 1:
            raise ValueError("rate_scale does not go with pace: answers (session_arrivals says when sessions start)")


class AbandonsSpec(Spec):
    """This share of the requests is given up by its reader, so long after it was sent, if it has not ended by then."""

    share: Share
    after: Pause

    @model_validator(mode="after")
    def _matters(self) -> Self:
        if not self.share or not self.after.mean:
            raise ValueError("abandons: share and after must be above 0")
        return self


class SaltSpec(Spec):
    """One salt for all requests of a tenant (``text``), or one for each of its sessions (``per``): then nobody finds
    another session's blocks, not even of the same text.
    """

    text: str | None = Field(default=None, min_length=1)
    per: Literal["session"] | None = None

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if (self.text is None) == (self.per is None):
            raise ValueError("expected a salt, or {per: session}")
        return self


def _plain_salt(value: object) -> object:
    return {"text": value} if isinstance(value, str) else value


Salt = Annotated[SaltSpec, BeforeValidator(_plain_salt, json_schema_input_type=str | SaltSpec)]


class TargetsSpec(Spec):
    """What a tenant was promised, in seconds: a request is within its targets if it finishes and meets them all."""

    ttft: TargetSeconds | None = None
    tpot: TargetSeconds | None = None
    e2e: TargetSeconds | None = None

    @model_validator(mode="after")
    def _has_one(self) -> Self:
        if not self.limits_s:
            raise ValueError("targets: give at least one of ttft, tpot and e2e")
        return self

    @property
    def limits_s(self) -> dict[str, float]:
        """The targets that there are, by the name of the latency."""
        return {name: value for name, value in self if value is not None}


class TenantSpec(Spec):
    """Who sends requests, a ``trace``, a ``synthetic`` stream, ``conversations`` or a growing ``tree`` of prompts, and
    how the engine treats them.

    ``priority`` is vLLM's (lower runs first); ``cache_salt`` keeps cached blocks apart from those of other salts
    (``{per: session}`` gives each session its own); ``lora`` names the adapter that its requests are for. With
    ``skip_reading_prefix_cache``, as vLLM has it for prompt log-probabilities, they compute their whole prompts, which
    others may find.

    ``limit`` ends its stream after so many requests, or conversations. Its clients hang up when a request has not
    ended ``timeout`` after it was sent, and ask the same again up to ``retries`` times, ``retry_after`` later; the
    engine drops what it had computed of the answer, and keeps the blocks as cached.
    """

    name: str = Field(min_length=1)
    trace: TraceSpec | None = None
    synthetic: SyntheticSpec | None = None
    conversations: ConversationSpec | None = None
    tree: TreeSpec | None = None
    priority: int = Field(default=0, strict=True)
    cache_salt: Salt | None = None
    lora: str | None = Field(default=None, min_length=1)
    skip_reading_prefix_cache: StrictBool = False
    limit: PositiveCount | None = None
    timeout: PositiveSeconds | None = None
    retries: Count = 0
    retry_after: Seconds = 0.0
    abandons: AbandonsSpec | None = None
    targets: TargetsSpec | None = None

    @property
    def is_stationary(self) -> bool:
        """Whether its requests come at one rate, drawn anew in each replication: it has a steady state to speak of."""
        drawn = self.synthetic or self.conversations or self.tree
        return drawn is not None and (drawn.arrivals is None or drawn.arrivals.is_stationary)

    @property
    def has_sessions(self) -> bool:
        """Whether its requests can have sessions that routers know of."""
        return self.conversations is not None or (self.trace is not None and self.trace.has_sessions)

    def salt_of(self, session: int | None) -> str | None:
        """The salt of a request of that session. Raises InputError where it needs one and has none."""
        salt = self.cache_salt
        if salt is None or salt.per is None:
            return None if salt is None else salt.text
        if session is None:
            raise InputError(f"tenant {self.name!r}: a request has no session, expected one for cache_salt per session")
        return f"{self.name} {session}"

    @property
    def hangs_up(self) -> bool:
        """Whether its clients end requests themselves."""
        return self.timeout is not None or self.abandons is not None

    @model_validator(mode="after")
    def _retries_follow_a_timeout(self) -> Self:
        if self.retries and self.timeout is None:
            raise ValueError(f"tenant {self.name!r}: retries would change nothing without a timeout")
        if self.retry_after and not self.retries:
            raise ValueError(f"tenant {self.name!r}: retry_after would change nothing without retries")
        return self

    @model_validator(mode="after")
    def _salted_sessions_exist(self) -> Self:
        if self.cache_salt is not None and self.cache_salt.per and not self.has_sessions and self.tree is None:
            raise ValueError(f"tenant {self.name!r}: cache_salt per session needs sessions, its requests have none")
        return self

    @model_validator(mode="after")
    def _has_one_source(self) -> Self:
        if sum(source is not None for source in (self.trace, self.synthetic, self.conversations, self.tree)) != 1:
            raise ValueError(f"tenant {self.name!r}: give exactly one of trace, synthetic, conversations and tree")
        return self


class WorkloadSpec(Spec):
    """The tenants of a cluster. Names are unique, since a tenant's random streams are named after it."""

    tenants: tuple[TenantSpec, ...] = Field(min_length=1)

    @property
    def is_stationary(self) -> bool:
        """Whether all tenants are."""
        return all(tenant.is_stationary for tenant in self.tenants)

    @model_validator(mode="after")
    def _names_are_unique(self) -> Self:
        names = [tenant.name for tenant in self.tenants]
        if repeated := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"two tenants are called {repeated[0]!r}")
        return self

    @model_validator(mode="after")
    def _shared_layers_are_alike(self) -> Self:
        seen: dict[str, tuple[object, ...]] = {}
        for tenant in self.tenants:
            for layer in tenant.conversations.layers if tenant.conversations else ():
                texts = (layer.tokens, layer.texts, layer.churn)
                if layer.shared_as is not None and seen.setdefault(layer.shared_as, texts) != texts:
                    raise ValueError(
                        f"tenant {tenant.name!r}, layer {layer.name!r}: tokens, texts and churn differ from those of "
                        f"another layer shared as {layer.shared_as!r}"
                    )
        return self
