"""Parameters of a policy as people write them: checked against a model, with errors of one line, and as a label."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from simulator.errors import InputError, nearest

Model = TypeVar("Model", bound=BaseModel)


def read_params(key: str, policy: str, model: type[Model], values: Mapping[str, object]) -> Model:
    """``values`` checked against ``model``; ``key`` is the scenario's key that the policy stands under.

    Raises InputError, one line for the first thing wrong: ``routing dynamo: event_delay: got ..., expected ...``.
    """
    fields = model.model_fields
    for name in values:
        if name not in fields:
            hint = nearest(name, fields) if fields else " (it has none)"
            raise InputError(f"{key} {policy}: {name}: unknown parameter{hint}")
    try:
        return model.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        message = first["msg"].removeprefix("Value error, ").replace("Input should be", "expected")
        if first["type"] == "missing":
            message = f"missing, expected {fields[where].description}"
        elif first["type"] != "value_error" and where:
            message = f"got {first['input']!r}, {message[:1].lower()}{message[1:]}"
        raise InputError(f"{key} {policy}: {where + ': ' if where else ''}{message}") from None


def label(policy: str, params: BaseModel, usual: Mapping[str, object] | None = None) -> str:
    """The policy, and those of its parameters that are not the model's defaults, or not the ``usual`` ones."""
    usual = usual or {}
    changed = [
        f"{name}={_shown(value)}"
        for name, value in params
        if value != usual.get(name, type(params).model_fields[name].get_default(call_default_factory=True))
    ]
    return f"{policy}({', '.join(changed)})" if changed else policy


def _shown(value: object) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_shown(one)}" for key, one in value.items()) + "}"
    return value if isinstance(value, str) else repr(value)
