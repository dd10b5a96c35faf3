"""``--engine-arg NAME=VALUE``, as several commands take it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from simulator.errors import InputError


def engine_arguments(pairs: Sequence[str]) -> dict[str, Any]:
    """``name=value`` pairs; a value is JSON where it reads as such, else text.

    Raises InputError naming the option.
    """
    arguments: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        name = name.strip().lstrip("-").replace("-", "_")
        if not equals or not name:
            raise InputError(f"--engine-arg {pair}: expected NAME=VALUE, for example max_num_seqs=16")
        if name in ("model", "scheduler_cls"):
            raise InputError(f"--engine-arg {name}: set by the measurement itself")
        if name in arguments:
            raise InputError(f"--engine-arg {name}: given twice")
        word = {"true": "true", "false": "false", "none": "null"}.get(text.lower(), text)
        try:
            arguments[name] = json.loads(word)
        except json.JSONDecodeError:
            arguments[name] = text
    return arguments
