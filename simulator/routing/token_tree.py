"""A router's own memory of the texts that it dispatched, compared token by token.

Routers in front of an engine know neither its blocks nor what it evicts. They remember texts: who was sent which
beginning, until space or time runs out. Upstream they compare characters; a trace has none, so that tokens are
compared and a character is a quarter of one (`CHARACTERS_A_TOKEN`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Set as AbstractSet

from simulator.prefix import Prefixes
from simulator.request import Request
from simulator.routing.fleet import Fleet

CHARACTERS_A_TOKEN = 4  # for traces without text: the usual estimate for English


class Texts:
    """Beginnings of prompts by who was sent them. A piece of text is a chain of `Prefixes.chains`, so a visit costs an
    operation a run of the prompt, however long it is. ``salted``: whether salts and adapters are told apart; who reads
    only the text does not.
    """

    __slots__ = ("_asked", "_path", "_prefixes", "_reach", "_salted")

    def __init__(self, fleet: Fleet, *, salted: bool = False) -> None:
        self._prefixes = Prefixes(1, fleet.prefixes)
        self._salted = salted
        # Chain -> {instance: tokens of it that it was sent}, the latest visitor last.
        self._reach: dict[int, dict[int, int]] = {}
        self._asked: Request | None = None
        self._path: list[tuple[int, int]] = []

    def matches(self, request: Request, now_s: float) -> dict[int, int]:
        """Instance -> leading tokens of the prompt that it was sent, for those that were sent any."""
        self._sweep(now_s)
        found: dict[int, int] = {}
        alive: AbstractSet[int] = set()  # those that were sent everything so far
        before = 0
        for chain, length in self._chains(request):
            reach = self._reach.get(chain)
            if not reach:
                break
            those = alive & reach.keys() if before else reach.keys()
            if len(those) == len(reach) and min(reach.values()) >= length:
                found |= dict.fromkeys(those, before + length)  # as of a beginning that everybody has
                alive = those
            else:
                found |= {instance: before + min(reach[instance], length) for instance in those}
                alive = {instance for instance in those if reach[instance] >= length}
            if not alive:
                break
            before += length
        return found

    def levels(self, request: Request, now_s: float) -> list[tuple[int, AbstractSet[int]]]:
        """`matches` by depth, the deepest first: (leading tokens, who was sent just so many)."""
        self._sweep(now_s)
        found: list[tuple[int, AbstractSet[int]]] = []
        alive: AbstractSet[int] | None = None
        before = 0
        for chain, length in self._chains(request):
            reach = self._reach.get(chain)
            if not reach:
                break
            those = reach.keys() if alive is None else alive & reach.keys()
            if alive is not None and (rest := alive - those):
                found.append((before, rest))
            if min(reach.values()) < length:
                short = {instance for instance in those if reach[instance] < length}
                found += sorted([(before + reach[one], {one}) for one in short], key=lambda level: level[0])
                those = those - short
            alive = those
            if not alive:
                break
            before += length
        if alive:
            found.append((before, alive))
        found.reverse()
        return found

    def matched_tokens(self, request: Request, instance: int, now_s: float) -> int:
        """See `view.OwnIndex`."""
        self._sweep(now_s)
        matched = 0
        for chain, length in self._chains(request):
            tokens = self._reach.get(chain, {}).get(instance, 0)
            matched += min(tokens, length)
            if tokens < length:
                break
        return matched

    def _chains(self, request: Request) -> list[tuple[int, int]]:
        if request is not self._asked:
            root = self._prefixes.root(request.cache_salt, request.lora) if self._salted else 0
            self._asked, self._path = request, self._prefixes.chains(request.prompt, root)
        return self._path

    def _sweep(self, now_s: float) -> None:
        """Forget what is too old or too much, as often as that is looked after."""
        raise NotImplementedError


class TokenTree(Texts):
    """A tree that keeps ``max_tokens`` an instance (None: everything), the least recently used ends of its texts going
    first. That is looked after every ``sweep_s`` seconds; in between it may grow.
    """

    __slots__ = ("_max_tokens", "_next_sweep_s", "_recency", "_sweep_s", "num_tokens")

    def __init__(
        self, fleet: Fleet, *, max_tokens: float | None, sweep_s: float = 1.0, salted: bool = False
    ) -> None:
        super().__init__(fleet, salted=salted)
        self._max_tokens = max_tokens
        self._sweep_s = sweep_s
        self._next_sweep_s = sweep_s
        # By instance: chains, the longest not visited first. What comes later in a text is put in front of what comes
        # before it, so that leaves go first.
        self._recency: list[OrderedDict[int, None]] = [OrderedDict() for _ in range(fleet.num_instances)]
        self.num_tokens = [0] * fleet.num_instances

    def longest(self, request: Request, now_s: float) -> tuple[int, int | None]:
        """Leading tokens of the prompt that anyone was sent, and who was the last to be sent that node; None if nobody
        was sent any.
        """
        self._sweep(now_s)
        matched, owner = 0, None
        for chain, length in self._chains(request):
            reach = self._reach.get(chain)
            if not reach:
                break
            for instance in reversed(reach):
                if reach[instance] >= length:
                    matched, owner = matched + length, instance
                    break
            else:
                furthest = max(reach.values())
                owner = next(instance for instance in reversed(reach) if reach[instance] == furthest)
                return matched + furthest, owner
        return matched, owner

    def insert(self, request: Request, instance: int, now_s: float) -> None:
        """See `view.OwnIndex`."""
        self._sweep(now_s)
        recency = self._recency[instance]
        for chain, length in reversed(self._chains(request)):
            reach = self._reach.setdefault(chain, {})
            before = reach.pop(instance, 0)
            reach[instance] = max(before, length)
            self.num_tokens[instance] += reach[instance] - before
            recency[chain] = None
            recency.move_to_end(chain)

    def _sweep(self, now_s: float) -> None:
        if self._max_tokens is None or now_s < self._next_sweep_s:
            return
        self._next_sweep_s = (now_s // self._sweep_s + 1) * self._sweep_s
        for instance, num_tokens in enumerate(self.num_tokens):
            if num_tokens > self._max_tokens:
                while self.num_tokens[instance] > self._max_tokens:
                    self._forget_oldest(instance)

    def _forget_oldest(self, instance: int) -> None:
        chain, _ = self._recency[instance].popitem(last=False)
        reach = self._reach[chain]
        self.num_tokens[instance] -= reach.pop(instance)
        if not reach:
            del self._reach[chain]
