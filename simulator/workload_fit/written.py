"""A fitted source as the ``workload:`` block of a scenario, with what it was fitted to."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from typing import Any

import yaml

_WIDTH = 116


def text(name: str, source: dict[str, Any], comments: Iterable[str]) -> str:
    """YAML with a tenant ``name``; each comment is wrapped into lines of its own."""
    lines = [f"# {line}" for comment in comments for line in textwrap.wrap(comment, _WIDTH)]
    block = {"workload": {"tenants": [{"name": name, "tree": source}]}}
    body = yaml.safe_dump(block, sort_keys=False, default_flow_style=None, width=_WIDTH, allow_unicode=True)
    return "\n".join([*lines, body])
