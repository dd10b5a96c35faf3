"""Where requests come from: traces that are replayed and tenants that are drawn.

Reading order: ``spec`` (what can be asked for), ``tenants`` (the merged stream), then ``mooncake``, ``records``,
``readers`` (every format), ``recorded`` (in order of arrival), ``trace`` and ``replay`` for replaying, ``synthetic``,
``arrivals`` and ``lengths`` for drawing.
"""

from simulator.workload.spec import SyntheticSpec, TenantSpec, TraceSpec, WorkloadSpec
from simulator.workload.tenants import Workload, open_workload

__all__ = ["SyntheticSpec", "TenantSpec", "TraceSpec", "Workload", "WorkloadSpec", "open_workload"]
