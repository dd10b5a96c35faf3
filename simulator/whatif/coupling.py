"""Which requests are the same before and after a change: what the pairs of runs have in common."""

from __future__ import annotations

from simulator.scenario import Scenario
from simulator.whatif.asked import Case
from simulator.whatif.numbers import times
from simulator.workload.spec import TenantSpec


def lines(before: Scenario, case: Case) -> list[str]:
    """How the requests of both are coupled, in sentences."""
    old = {tenant.name: tenant for tenant in before.workload.tenants}
    new = {tenant.name: tenant for tenant in case.scenario.workload.tenants}
    if old == new:
        return ["Both serve the same requests: the same draws in every replication."]
    found: dict[str, list[str]] = {}
    for name, tenant in old.items():
        if name in new:
            found.setdefault(_of_tenant(tenant, new[name], case.loads.get(name, 1.0)), []).append(name)
    said = [f"Requests of {', '.join(names)}: {text}." for text, names in found.items()]
    said += [
        f"Requests of {name}: only after; {_of_added(tenant)}." for name, tenant in new.items() if name not in old
    ]
    if gone := [name for name in old if name not in new]:
        said.append(f"Requests of {', '.join(gone)}: only before.")
    return said


def _of_tenant(old: TenantSpec, new: TenantSpec, factor: float) -> str:
    if old == new:
        return "the same draws before and after"
    if factor == 1:
        return "drawn from the same random streams, so that what the change does not touch is the same before and after"
    return _at_another_rate(new, factor)


def _of_added(tenant: TenantSpec) -> str:
    if tenant.trace is not None and tenant.trace.window is None:
        return "its trace as it was recorded"
    return "drawn from random streams of its own"


def _at_another_rate(tenant: TenantSpec, factor: float) -> str:
    """``tenant`` is the one whose rate is ``factor`` times that of before."""
    source = tenant.synthetic or tenant.conversations or tenant.tree
    if source is None:
        return _of_trace(tenant, factor)
    begins = "request" if tenant.synthetic is not None else "conversation"
    if source.arrivals is None:
        return f"{times(factor)} as many users, who take turns in the same drawn conversations"
    process = source.arrivals.process
    if process == "on_off":
        return (f"what {begins} n holds is the same draw before and after; times on and off are as long, but other "
                f"draws, and within them {begins}s come at {times(factor)} the rate")  # fmt: skip
    if process == "profile":
        return (f"{begins} n is the same draw before and after, and comes when a profile {times(factor)} as high has "
                "it")  # fmt: skip
    return (f"{begins} n is the same draw before and after, and its gap to the one before is the same draw times "
            f"{1 / factor:.4g}")  # fmt: skip


def _of_trace(tenant: TenantSpec, factor: float) -> str:
    trace = tenant.trace
    assert trace is not None  # who calls has looked
    if trace.session_arrivals is not None:
        return f"the same recorded sessions, which begin at {times(factor)} the rate"
    return f"the same recorded requests, with gaps {1 / factor:.4g} times as long"
