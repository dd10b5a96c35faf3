"""Law 7: advancing equals stepping, to the bit, in every record."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, given, settings
from tests.cluster_cases import MODES, Case, cases, record, serve

SETTINGS = settings(
    max_examples=int(os.environ.get("KVCAST_EXAMPLES", "150")), deadline=None, derandomize=True,
    suppress_health_check=list(HealthCheck),
)


@SETTINGS
@given(cases())
def test_law_7_advancing_equals_stepping(case: Case) -> None:
    plain, *others = (record(serve(case, **mode)) for mode in reversed(MODES.values()))
    for other in others:
        for name in plain:
            assert plain[name] == other[name], name
