"""Which texts are whose: each tenant numbers its own segments, and no two tenants share one."""

from __future__ import annotations

SEGMENTS_PER_TENANT = 2**40


def first_segment(tenant: int) -> int:
    """The segment from which tenant number ``tenant`` counts; two tenants replaying one trace stay apart too."""
    return tenant * SEGMENTS_PER_TENANT
