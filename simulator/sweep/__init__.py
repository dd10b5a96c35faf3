"""A scenario over a range of settings: which are best, and which of the varied keys matters most.

Reading order: ``axes`` (what is varied), ``design`` (which settings are run), ``row_store`` (rows that outlive a
kill), ``workers`` and ``warmup``, ``runs`` (only what is missing is computed), ``findings`` and ``effects`` (what the
rows say), ``figures`` and ``report``.
"""

from simulator.sweep.axes import Axis, read_axis
from simulator.sweep.design import Design, grid, hypercube
from simulator.sweep.findings import Findings
from simulator.sweep.runs import run

__all__ = ["Axis", "Design", "Findings", "grid", "hypercube", "read_axis", "run"]
