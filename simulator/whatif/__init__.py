"""What if: a scenario before and after a change, over the same draws.

Reading order: ``numbers`` (how changes say numbers), ``asked`` (changes, as keys of the scenario), ``tenants`` (more of
them, or fewer), ``coupling`` (which requests are the same in both), ``answer`` (what differs), ``words``, ``report``.
"""

from __future__ import annotations

from simulator.whatif.asked import BEFORE, Case, Change, ask, compared, read_change

__all__ = ["BEFORE", "Case", "Change", "ask", "compared", "read_change"]
