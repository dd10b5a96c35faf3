"""Fitted sources as the ``workload:`` block of a scenario, with what they were fitted to."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

import yaml

_WIDTH = 116


def entry(name: str, source: dict[str, Any]) -> dict[str, Any]:
    """A tenant of a scenario."""
    return {"name": name, "tree": source}


def text(tenants: Sequence[dict[str, Any]], comments: Iterable[str]) -> str:
    """YAML with these tenants; each comment is wrapped into lines of its own."""
    lines = [f"# {line}" for comment in comments for line in textwrap.wrap(comment, _WIDTH)]
    block = {"workload": {"tenants": list(tenants)}}
    body = yaml.safe_dump(block, sort_keys=False, default_flow_style=None, width=_WIDTH, allow_unicode=True)
    return "\n".join([*lines, body])
