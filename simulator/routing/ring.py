"""Hash rings: equal keys to equal places, or to the next place where that one has too much."""

from __future__ import annotations

import hashlib
import random
from bisect import bisect_left
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from simulator.prefix import beginning
from simulator.request import Prompt, Request
from simulator.routing.decision import Send
from simulator.routing.router import Params, Router, StatefulParams
from simulator.routing.token_tree import CHARACTERS_A_TOKEN
from simulator.routing.view import View
from simulator.units import Number, PositiveCount


class Ring:
    """``virtual_nodes`` points for each of ``num_instances``. Points are blake2b hashes of names, so that instances
    which are added or removed move only their own share of the keys, in any run and on any machine.
    """

    __slots__ = ("_owners", "_points")

    def __init__(self, num_instances: int, virtual_nodes: int) -> None:
        nodes = sorted((point_of(f"{i}/{v}"), i) for i in range(num_instances) for v in range(virtual_nodes))
        self._points = [point for point, _ in nodes]
        self._owners = [owner for _, owner in nodes]

    def owner(self, point: int) -> int:
        """Whose point comes next at or after ``point``."""
        return self._owners[bisect_left(self._points, point) % len(self._owners)]

    def walk(self, point: int) -> Iterator[int]:
        """The owners of the points at and after ``point``, once around."""
        first = bisect_left(self._points, point)
        for number in range(first, first + len(self._owners)):
            yield self._owners[number % len(self._owners)]


def point_of(key: str) -> int:
    """Where a key lies on every ring, 64 bits."""
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "big")


def prompt_key(prompt: Prompt, num_tokens: int | None) -> str | None:
    """A name of the first ``num_tokens`` tokens (None: of all), whatever else is in the workload; None if some of them
    occur nowhere else.
    """
    runs = beginning(prompt, sum(length for _, _, length in prompt) if num_tokens is None else num_tokens)
    return None if any(segment is None for segment, _, _ in runs) else repr(runs)


class _OnRing(Router):
    """A policy with a ring. A prompt of which there is no second lies anywhere on it: drawn."""

    def __init__(self, params: Any, num_instances: int, rng: random.Random) -> None:
        super().__init__(params, num_instances, rng)
        self.ring = Ring(num_instances, params.virtual_nodes)

    def point(self, key: str | None) -> int:
        """Where the key lies."""
        return self.rng.getrandbits(64) if key is None else point_of(key)


class ConsistentHashParams(Params):
    """``key``: what is hashed. ``prefix_tokens``: of a prompt only its beginning (upstream all of it)."""

    key: Literal["session", "tenant", "prompt"] = "session"
    virtual_nodes: PositiveCount = 160
    prefix_tokens: PositiveCount | None = None

    @model_validator(mode="after")
    def _beginning_of_a_prompt(self) -> ConsistentHashParams:
        if self.prefix_tokens is not None and self.key != "prompt":
            raise ValueError("prefix_tokens has a meaning with key: prompt only")
        return self

    @property
    def needs_sessions(self) -> bool:
        """See `Params.needs_sessions`."""
        return self.key == "session"


class ConsistentHash(_OnRing):
    """vllm-router ``301790e``, ``consistent_hash``: the next of 160 virtual nodes an instance on a hash ring, whatever
    the load. Upstream the key is the first that a request has of session, user, tenant and request id, else its body;
    here it is the one that ``key`` names and, as there, the prompt of a request without a session.
    """

    summary = "equal sessions, tenants or prompts to one instance, by hash ring"
    source = "vllm-router consistent_hash (301790e)"
    Params = ConsistentHashParams

    def choose(self, request: Request, view: View, now_s: float) -> Send:  # noqa: ARG002
        params = self.params
        if params.key == "tenant":
            return Send(self.ring.owner(point_of(f"tenant {request.tenant}")))
        if params.key == "session" and request.session is not None:
            return Send(self.ring.owner(point_of(f"session {request.session}")))
        return Send(self.ring.owner(self.point(prompt_key(request.prompt, params.prefix_tokens))))


class KubeaiParams(StatefulParams):
    """Upstream's names; ``prefix_char_length`` in characters, of which a token has four, ``mean_load_factor`` in %."""

    prefix_char_length: PositiveCount = 100
    mean_load_factor: Annotated[Number, Field(ge=100)] = 125.0
    virtual_nodes: PositiveCount = 256


class KubeaiPrefixHash(_OnRing):
    """KubeAI ``f442a2c``, ``PrefixHash``: consistent hashing with bounded loads. The key is the prompt's first 100
    characters with the adapter; from its place on a ring of 256 virtual nodes an instance the first one with

        requests in flight <= mean_load_factor / 100 * (all in flight + 1) / n

    takes the request (with a factor of at least 100 % there is always one). Upstream hashes the beginning of the first
    *user* message, past any system prompt; here, where a prompt has no messages, it is the prompt's own beginning.
    """

    summary = "equal first 100 characters to one instance, next on the ring above 1.25 times the mean load"
    source = "KubeAI PrefixHash (f442a2c)"
    Params = KubeaiParams

    def __init__(self, params: Any, num_instances: int, rng: random.Random) -> None:
        super().__init__(params, num_instances, rng)
        self._num_tokens = -(-params.prefix_char_length // CHARACTERS_A_TOKEN)

    def choose(self, request: Request, view: View, now_s: float) -> Send:  # noqa: ARG002
        key = prompt_key(request.prompt, self._num_tokens)
        point = self.point(None if key is None else f"{request.lora or ''} {key}")
        loads = view.num_in_flight
        most = self.params.mean_load_factor / 100 * (sum(loads) + 1) / len(loads)
        return Send(next(instance for instance in self.ring.walk(point) if loads[instance] <= most))


class PrefixHashParams(StatefulParams):
    """Upstream's names; the ``virtual_nodes`` of an instance are a constant there."""

    prefix_token_count: PositiveCount = 256
    load_factor: Annotated[Number, Field(ge=1)] = 1.25
    virtual_nodes: PositiveCount = 150


class PrefixHash(_OnRing):
    """SGLang gateway ``065f331``, ``prefix_hash``: the instance at the place of the prompt's first 256 tokens on a hash
    ring, if its requests in flight are at most load_factor * (all in flight + 1) / n, or nothing is in flight; else the
    least loaded, ties to the lowest index. (Upstream's comment on ``load_factor`` speaks of walking the ring; its code
    looks for the least loaded.)
    """

    summary = "equal first 256 tokens to one instance, the least loaded above 1.25 times the mean load"
    source = "SGLang gateway prefix_hash (065f331)"
    Params = PrefixHashParams

    def choose(self, request: Request, view: View, now_s: float) -> Send:  # noqa: ARG002
        first = self.ring.owner(self.point(prompt_key(request.prompt, self.params.prefix_token_count)))
        loads = view.num_in_flight
        total = sum(loads)
        if total and loads[first] > self.params.load_factor * (total + 1) / len(loads):
            return Send(loads.index(min(loads)))
        return Send(first)
