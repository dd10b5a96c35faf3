"""Which requests of a file one generator each is fitted to: those of a tenant, or of all tenants that send too few."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from simulator.counts import counted
from simulator.errors import InputError
from simulator.workload.records import Record
from simulator.workload_fit.observed import FEWEST_REQUESTS

UNNAMED, OTHERS = "unnamed", "others"
_MOST_NAMED = 5  # tenants, in a line


@dataclass(frozen=True)
class Part:
    """Records in order of arrival for one tenant ``name`` of the scenario, sent by ``tenants`` of the file (None: by
    nobody that it names). ``where`` is what errors call them.
    """

    name: str
    where: str
    tenants: tuple[str | None, ...]
    records: list[Record]


@dataclass(frozen=True)
class Parts:
    """The parts that are fitted to, the one with the most requests first, and what to know of the choice."""

    parts: tuple[Part, ...]
    notes: tuple[str, ...] = ()


def whole(records: list[Record], name: str, path: object) -> Parts:
    """All tenants as one. Raises InputError where there is only one."""
    if len(_groups(records)) < 2:
        raise InputError(f"--as-one: would change nothing, {path} has no two tenants")
    return Parts((_all(records, name, path),))


def of_tenant(records: Sequence[Record], tenant: str, path: object, format_: str) -> Parts:
    """That tenant alone. Raises InputError for one that is not there."""
    own = [record for record in records if record.tenant == tenant]
    if own:
        return Parts((Part(tenant, f"{path}, tenant {tenant}", (tenant,), own),))
    names = [name for name in _groups(records) if name is not None]
    if not names:
        raise InputError(f"{path}: no request names a tenant (format {format_}), expected it without --tenant")
    close = difflib.get_close_matches(tenant, names, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"it has {some(names)}"
    raise InputError(f"{path}: no request of tenant {tenant!r} ({hint})")


def by_tenant(records: list[Record], name: str, path: object, share: float = 1.0) -> Parts:
    """Each tenant by itself if a ``share`` of its requests is enough to fit to, the others together, or not at all.

    A file in which no two senders are told apart, or in which nobody sends enough, is one part called ``name``.
    """
    groups = _groups(records)
    kept = {tenant: own for tenant, own in groups.items() if _is_enough(own, share)}
    few = {tenant: own for tenant, own in groups.items() if tenant not in kept}
    if len(groups) < 2 or not kept:
        note = f"All {len(groups):,} tenants fitted as one: none has the {FEWEST_REQUESTS} requests that a fit needs."
        return Parts((_all(records, name, path),), (note,) if len(groups) > 1 else ())
    taken = {tenant for tenant in kept if tenant is not None}
    parts = [
        Part(_free(UNNAMED, taken) if tenant is None else tenant,
             f"{path}, {'requests without a tenant' if tenant is None else f'tenant {tenant}'}", (tenant,), own)
        for tenant, own in kept.items()
    ]  # fmt: skip
    if not few:
        return Parts(tuple(parts))
    rest = sorted((record for own in few.values() for record in own), key=lambda record: record.arrival_s)
    who = (
        f"{some('those without a name' if one is None else one for one in few)} with fewer than {FEWEST_REQUESTS} "
        f"requests{' to fit to' if share < 1 else ''} ({counted(len(rest), 'request')}, "
        f"{percent(len(rest) / len(records))} of all)"
    )
    if not _is_enough(rest, share):
        return Parts(tuple(parts), (f"Left out: {who}.",))
    others = Part(_free(OTHERS, {part.name for part in parts}), f"{path}, small tenants", tuple(few), rest)
    return Parts((*parts, others), (f"Fitted as one, {others.name}: {who}.",))


def shares_of(num_requests: int, parts: Sequence[Part]) -> list[int]:
    """So many requests dealt out to the parts in proportion to theirs. Raises InputError for fewer than there are."""
    if num_requests < len(parts):
        raise InputError(f"--requests: {num_requests} for {len(parts)} tenants, expected at least one each")
    # One each, and the others in proportion, each rounded where it ends.
    free, total = num_requests - len(parts), sum(len(part.records) for part in parts)
    ends, seen = [0], 0
    for part in parts:
        seen += len(part.records)
        ends.append(round(free * seen / total))
    return [1 + high - low for low, high in pairwise(ends)]


def some(names: Iterable[str]) -> str:
    """The first few of them, and how many there are more."""
    names = list(names)
    more = len(names) - _MOST_NAMED
    return ", ".join(names) if more <= 0 else f"{', '.join(names[:_MOST_NAMED])} and {more:,} more"


def percent(share: float) -> str:
    """``0.031 %``, ``2.5 %``, ``31 %``."""
    return f"{100 * share:.0f} %" if share >= 0.095 else f"{100 * share:.2g} %"


def _groups(records: Iterable[Record]) -> dict[str | None, list[Record]]:
    """By tenant, the one with the most requests first."""
    found: dict[str | None, list[Record]] = {}
    for record in records:
        found.setdefault(record.tenant, []).append(record)
    return dict(sorted(found.items(), key=lambda item: -len(item[1])))


def _all(records: list[Record], name: str, path: object) -> Part:
    return Part(name, str(path), tuple(dict.fromkeys(record.tenant for record in records)), records)


def _is_enough(records: Sequence[Record], share: float) -> bool:
    return int(len(records) * share) >= FEWEST_REQUESTS


def _free(name: str, taken: set[str]) -> str:
    """``name``, or with a number behind where a tenant of the file is called so."""
    number = 1
    found = name
    while found in taken:
        number += 1
        found = f"{name}-{number}"
    return found
