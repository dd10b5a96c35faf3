"""A scenario: the frozen description of one experiment."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    PrivateAttr,
    SerializationInfo,
    StrictStr,
    ValidationError,
    WithJsonSchema,
    model_validator,
)

from simulator.engine_args import EngineArgs, EngineConfig, resolve
from simulator.errors import InputError, nearest
from simulator.eviction import POLICIES, VLLM, EvictionSpec, parse_eviction
from simulator.profile import Profile, load_profile
from simulator.routing import RoutingSpec, parse_routing
from simulator.scenario import changes, problems, variants
from simulator.scenario.plan_spec import PlanSpec
from simulator.scenario.variants import Setting
from simulator.units import Count, PositiveCount, count
from simulator.workload.acceptance import Acceptance
from simulator.workload.spec import TenantSpec, WorkloadSpec


def _read_routing(entry: Any) -> RoutingSpec:
    return entry if isinstance(entry, RoutingSpec) else parse_routing(entry)


def _write_routing(spec: RoutingSpec, info: SerializationInfo) -> dict[str, Any]:
    values = spec.params.model_dump(mode="json", exclude_unset=info.exclude_unset)
    unsaid = spec.preset_values if info.exclude_unset else ()
    return {"policy": spec.name, **{key: value for key, value in values.items() if key not in unsaid}}


Routing = Annotated[
    RoutingSpec,
    PlainValidator(_read_routing),
    PlainSerializer(_write_routing),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string"},
                {"type": "object", "properties": {"policy": {"type": "string"}}, "required": ["policy"]},
            ],
            "description": "a policy or preset by name, or {policy: name, parameter: value, ...}: see `kvcast routers`",
        }
    ),
]


def _read_eviction(entry: Any) -> EvictionSpec:
    return entry if isinstance(entry, EvictionSpec) else parse_eviction(entry)


def _write_eviction(spec: EvictionSpec, info: SerializationInfo) -> dict[str, Any]:
    return {"policy": spec.policy, **spec.params.model_dump(mode="json", exclude_unset=info.exclude_unset)}


Eviction = Annotated[
    EvictionSpec,
    PlainValidator(_read_eviction),
    PlainSerializer(_write_eviction),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string"},
                {"type": "object", "properties": {"policy": {"type": "string"}}, "required": ["policy"]},
            ],
            "description": "a policy by name, or {policy: name, parameter: value, ...} (see `kvcast evictions`)",
        }
    ),
]


def _read_warmup(value: Any) -> int | str:
    if value == "auto":
        return "auto"
    try:
        return count(value)
    except InputError:
        raise InputError(f"got {value!r}, expected auto or a whole number of requests, 0 for none") from None


Warmup = Annotated[
    Literal["auto"] | int, BeforeValidator(_read_warmup, json_schema_input_type=Literal["auto"] | int)
]


class ClusterSpec(BaseModel):
    """The serving instances: equal engines behind one router."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    # An engine takes some 50 bytes a block of its pool, so that 10,000 with 4,000 blocks each take 2 GB.
    instances: PositiveCount = Field(le=10_000, description="how many engines, a whole number up to 10,000")


class Scenario(BaseModel):
    """One experiment: an engine on a profiled device, so many of them, their tenants, and the routers to compare.

    Two scenarios that say the same have the same ``digest``, wherever their files lie.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Annotated[StrictStr, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$")] = Field(
        description="a name of letters, digits, '.', '_' and '-' (output folders are called after it)"
    )
    question: StrictStr = Field(default="", description="what the experiment is to answer")
    seed: Count = 0
    engine: EngineArgs = Field(description="a mapping of vLLM's engine arguments")
    profile: StrictStr = Field(description="the name of a shipped profile or the path of a JSON file", min_length=1)
    cluster: ClusterSpec = Field(description="a mapping with 'instances'")
    workload: WorkloadSpec = Field(description="a mapping with 'tenants'")
    routing: tuple[Routing, ...] = Field(description="a list of routing policies", min_length=1)
    eviction: Eviction = Field(
        default_factory=lambda: parse_eviction("vllm"),
        description="in which order blocks that nobody holds lose their content",
    )
    replications: PositiveCount = 1
    warmup: Warmup = Field(
        default="auto",
        description="how many of the first requests count nowhere: a whole number, or auto (by MSER-5, where several "
        "replications of drawn arrivals at one rate have a steady state)",
    )
    variants: dict[str, dict[str, Any]] = Field(
        default_factory=dict, description="a mapping of names to keys that differ, to compare in place of the policies"
    )
    plan: PlanSpec | None = Field(
        default=None, description="a mapping of what `kvcast plan` looks for; no other command looks at it"
    )

    _base_dir: Path = PrivateAttr(default_factory=Path)
    _limit: int | None = PrivateAttr(default=None)

    @model_validator(mode="after")
    def _each_policy_once(self) -> Self:
        labels = [spec.label for spec in self.routing]
        if repeated := [label for label in dict.fromkeys(labels) if labels.count(label) > 1]:
            raise ValueError(f"policy {repeated[0]} occurs twice in 'routing', expected each once")
        for index, spec in enumerate(self.routing):
            for other in self.routing[:index]:
                if (spec.policy, spec.params) == (other.policy, other.params):
                    raise ValueError(f"{other.label} and {spec.label} are the same policy, expected each once")
        return self

    def __hash__(self) -> int:
        return hash(self.digest)

    @property
    def base_dir(self) -> Path:
        """The folder that relative paths in the scenario start from: that of its file."""
        return self._base_dir

    @cached_property
    def digest(self) -> str:
        """SHA-256 of everything the scenario says, defaults included, as canonical JSON; of variants their digests."""
        said = self.model_dump(mode="json", exclude={"variants"} if self.plan else {"variants", "plan"})
        if self.variants:
            said["variants"] = {name: self.variant(name).digest for name in self.variants}
        text = json.dumps(said, sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()

    @cached_property
    def device_profile(self) -> Profile:
        """The profile that ``profile`` names. Raises InputError."""
        if self.profile.endswith(".json") or "/" in self.profile or "\\" in self.profile:
            return load_profile(self.base_dir / self.profile)
        return load_profile(self.profile)

    @cached_property
    def engine_config(self) -> EngineConfig:
        """The engine's arguments with every default filled in. Raises InputError ``engine.key: ...``."""
        problem = self.engine.problem()
        if problem is not None:
            raise InputError(f"engine.{problem[0]}: {problem[1]}")
        profile = self.device_profile
        try:
            _check_length(self.engine, profile)
            return resolve(self.engine, profile)
        except InputError as error:
            raise InputError(f"engine.{error}") from None

    @property
    def acceptance(self) -> Acceptance | None:
        """How many drafts are accepted; None where none are made. Raises InputError as ``engine_config``."""
        drafts, rate = self.engine_config.speculative, self.engine.acceptance_rate
        return None if drafts is None or rate is None else Acceptance(rate, drafts.num_speculative_tokens)

    def value_at(self, path: changes.KeyPath) -> Any:
        """What the scenario says at this path; where it says nothing the default, of an engine argument the one that
        vLLM would take; None where there is none. Raises InputError for a path into nothing.
        """
        for only_said in (True, False):
            found = changes.value_at(self.model_dump(mode="json", exclude_unset=only_said), path)
            if found is not None:
                return found
        return getattr(self.engine_config, path[-1], None) if path[0] == "engine" else None

    @property
    def settings(self) -> tuple[Setting, ...]:
        """What is compared: every routing policy, or that of every variant. Raises InputError."""
        return tuple(variants.settings(self))

    def variant(self, name: str) -> Scenario:
        """The scenario as this variant has it, without variants. Raises InputError ``variants.NAME: ...``."""
        if name not in self.variants:
            hint = nearest(name, self.variants) if self.variants else " (it has none)"
            raise InputError(f"variants: the scenario has no variant {name!r}{hint}")
        keys = variants.read({name: self.variants[name]})[name]
        try:
            return self.with_changes(keys)
        except InputError as error:
            raise InputError(f"variants.{name}: {error}") from None

    def with_changes(self, keys: Mapping[changes.KeyPath, Any]) -> Scenario:
        """A copy without variants in which these keys have other values. Raises InputError as for a file."""
        # As it was said, not with every default: some defaults only mean something when nobody states them.
        said = self.model_dump(mode="json", exclude_unset=True, exclude={"variants"})
        data = changes.apply(said, keys)
        try:
            copy = Scenario.model_validate(data)
        except ValidationError as error:
            raise InputError(problems.one_line(error, Scenario, data)) from None
        self._hand_on(copy)
        return copy if self._limit is None else copy.changed(limit=self._limit)

    def check(self) -> None:
        """Raise InputError where the scenario, its profile and its files do not fit together."""
        _ = self.engine_config
        for index, tenant in enumerate(self.workload.tenants):
            if problem := _idle_key(tenant, self.engine, self.routing):
                raise InputError(f"workload.tenants[{index}].{problem}")
        if self.engine.enable_lora and not any(tenant.lora for tenant in self.workload.tenants):
            raise InputError("engine.enable_lora: got true, expected a tenant with 'lora': no request has an adapter")
        for index, tenant in enumerate(self.workload.tenants):
            if tenant.trace is not None and not (self.base_dir / tenant.trace.path).is_file():
                raise InputError(f"workload.tenants[{index}].trace.path: no such file {tenant.trace.path!r}, "
                                 f"expected a path relative to {str(self.base_dir)!r}")  # fmt: skip
        if problem := _idle_eviction(self.eviction, self.engine_config, self.workload.tenants):
            raise InputError(f"eviction: {problem}")
        for index, spec in enumerate(self.routing):
            if problem := _idle_routing(spec, self.workload.tenants):
                raise InputError(f"routing[{index}]: {spec.policy} {problem}")
        variants.check(self)

    def changed(
        self,
        *,
        seed: int | None = None,
        replications: int | None = None,
        limit: int | None = None,
        routing: tuple[RoutingSpec, ...] | None = None,
        variants: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> Scenario:
        """A copy with what is given. ``limit`` is the most requests, or conversations, a tenant begins. Raises
        InputError.
        """
        update: dict[str, Any] = {
            "seed": seed, "replications": replications, "routing": routing, "variants": variants
        }  # fmt: skip
        if limit is not None:
            tenants = tuple(_limited(tenant, limit) for tenant in self.workload.tenants)
            update["workload"] = self.workload.model_copy(update={"tenants": tenants})
        kept = {name: getattr(self, name) for name in type(self).model_fields}
        given = {name: value for name, value in update.items() if value is not None}
        copy = Scenario.model_validate({**kept, **given})
        self._hand_on(copy)
        copy._limit = self._limit if limit is None else min(limit, self._limit or limit)
        return copy

    def _hand_on(self, copy: Scenario) -> None:
        """Give a changed copy what is no part of what is said: where paths start, and the profile already read."""
        copy._base_dir = self._base_dir
        if copy.profile == self.profile and "device_profile" in self.__dict__:
            copy.__dict__["device_profile"] = self.device_profile


def _check_length(engine: EngineArgs, profile: Profile) -> None:
    """Raise InputError for more than the model's own length, as vLLM does (``_get_and_verify_max_len``)."""
    own = profile.max_model_len
    is_longer = own is not None and engine.max_model_len > own
    if is_longer and not engine.allow_long_max_model_len:
        raise InputError(
            f"max_model_len: got {engine.max_model_len}, expected at most {own}, the model's own length as in profile "
            f"{profile.name} (or allow_long_max_model_len: true, where vLLM was told so)"
        )
    if engine.allow_long_max_model_len and not is_longer:
        limit = f"at most {own}, the model's own length" if own is not None else "not known to be too long"
        raise InputError(f"allow_long_max_model_len: got true, which changes nothing: max_model_len is {limit}")


def _idle_key(tenant: TenantSpec, engine: EngineArgs, routing: Sequence[RoutingSpec]) -> str | None:
    """Key and message of what a tenant asks for and this engine would ignore or refuse."""
    shed = any(spec.params.sheds_from is not None for spec in routing)
    if tenant.priority and engine.scheduling_policy != "priority" and not shed:
        return f"priority: got {tenant.priority}, which changes nothing without engine.scheduling_policy: priority"
    if tenant.lora and not engine.enable_lora:
        return f"lora: got {tenant.lora!r}, expected engine.enable_lora: true (vLLM refuses the requests)"
    if tenant.skip_reading_prefix_cache and not engine.enable_prefix_caching:
        return "skip_reading_prefix_cache: got true, which changes nothing without engine.enable_prefix_caching"
    return None


def _idle_routing(spec: RoutingSpec, tenants: Sequence[TenantSpec]) -> str | None:
    """What a router goes by and these tenants do not have."""
    least = spec.params.sheds_from
    if least is not None and all(tenant.priority < least for tenant in tenants):
        return f"may refuse requests from priority {least} on, expected a tenant with priority: {least} or more"
    if spec.params.needs_sessions and not any(tenant.has_sessions for tenant in tenants):
        return (
            "needs sessions and no tenant has any, expected conversations, or a trace with sessions (of mooncake: "
            "session_from: second_block)"
        )
    return None


def _idle_eviction(spec: EvictionSpec, engine: EngineConfig, tenants: Sequence[TenantSpec]) -> str | None:
    """What an eviction policy asks for and this scenario does not have."""
    if spec.policy == VLLM:
        return None
    if not engine.enable_prefix_caching:
        return f"got {spec.policy}, which changes nothing without engine.enable_prefix_caching"
    policy = POLICIES[spec.policy]
    if policy.needs_future:
        return f"{spec.policy} needs the future, which no engine knows (`kvcast hit-curve` shows it beside a trace)"
    if policy.needs_sessions and not any(tenant.has_sessions for tenant in tenants):
        return f"{spec.policy} needs sessions and no tenant has any, expected conversations, or a trace with sessions"
    names = [tenant.name for tenant in tenants]
    for name in spec.params.tenants:
        if name not in names:
            return f"{spec.policy}: there is no tenant {name!r}{nearest(name, names)}"
    return None


def _limited(tenant: TenantSpec, limit: int) -> TenantSpec:
    return tenant.model_copy(update={"limit": min(limit, tenant.limit or limit)})
