"""A pydantic error as one line: key path, what was found, what was expected."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from simulator.errors import nearest

_EXPECTED = {
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "dict_type": "a mapping",
    "tuple_type": "a list",
    "list_type": "a list",
    "string_type": "text",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "string_too_short": "some text",
    "too_short": "at least one entry",
}


def one_line(error: ValidationError, model: type[BaseModel], data: object) -> str:
    """The first problem, as ``key.path: what, expected ...``, and how many more there are.

    An unknown key comes before the rest: it is usually why another one is missing.
    """
    details = [detail for detail in error.errors() if not _is_echo(detail)]
    problems = [problem for detail in details for problem in _problems(detail, model, data)]
    problems.sort(key=lambda problem: not problem[1].startswith("unknown key"))
    key, message = problems[0]
    num_others = len({other for other, _ in problems} - {key})  # a union's members each have their say of one key
    more = f" (and {num_others} more)" if num_others else ""
    return " ".join(f"{key + ': ' if key else ''}{message}{more}".split())


def _is_echo(detail: Any) -> bool:
    """Whether pydantic calls a list too short only because it does not count the entries that it refused."""
    return detail["type"] == "too_short" and len(detail["input"]) >= detail["ctx"]["min_length"]


def _problems(detail: Any, model: type[BaseModel], data: object) -> Iterator[tuple[str, str]]:
    path = _real_path(detail["loc"], data, is_missing=detail["type"] == "missing")
    if detail["type"] == "several":
        for name, message in detail["ctx"]["problems"].items():
            yield _key([*path, name]), message
    else:
        yield _key(path), _message(detail, path, model)


def _real_path(loc: tuple[int | str, ...], data: Any, *, is_missing: bool) -> list[int | str]:
    """``loc`` without what pydantic adds to it, such as the name of a union's member."""
    path: list[int | str] = []
    for position, part in enumerate(loc):
        if _has(data, part):
            data = data[part]
        elif not (is_missing and position == len(loc) - 1):
            continue
        path.append(part)
    return path


def _has(data: Any, part: int | str) -> bool:
    if isinstance(data, Mapping):
        return part in data
    return isinstance(data, list) and isinstance(part, int) and part < len(data)


def _key(path: list[int | str]) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")


def _message(detail: Any, path: list[int | str], model: type[BaseModel]) -> str:
    kind, message = detail["type"], detail["msg"]
    if kind == "extra_forbidden":
        keys = {key for found in _models_at(model, path[:-1]) for key in found.model_fields}
        return "unknown key" + (nearest(str(path[-1]), keys) if keys else "")
    if kind == "missing":
        return f"missing, expected {_description(model, path) or 'a value'}"
    if kind == "value_error":
        message = message.removeprefix("Value error, ")
        for key in ("routing", "eviction"):
            message = message.removeprefix(f"{key}: ").removeprefix(f"{key} ")
        return message
    expected = _description(model, path) if kind == "string_pattern_mismatch" else _EXPECTED.get(kind)
    expected = expected or message.removeprefix("Input should be ")
    hint = ""
    if kind == "literal_error" and isinstance(detail["input"], str):
        close = nearest(detail["input"], detail["ctx"]["expected"].replace("'", "").replace(" or ", ", ").split(", "))
        hint = close if "did you mean" in close else ""
    shown = repr(detail["input"])
    return f"got {shown if len(shown) <= 60 else shown[:57] + '...'}, expected {expected}{hint}"


def _description(model: type[BaseModel], path: list[int | str]) -> str | None:
    fields = [found.model_fields.get(str(path[-1])) for found in _models_at(model, path[:-1])]
    return next((field.description for field in fields if field and field.description), None)


def _models_at(model: type[BaseModel], path: list[int | str]) -> list[type[BaseModel]]:
    """The models that may stand at ``path``."""
    models = [model]
    for part in path:
        if isinstance(part, str):
            fields = [found.model_fields[part] for found in models if part in found.model_fields]
            models = [inner for field in fields for inner in _models_in(field.annotation)]
    return models


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [inner for argument in get_args(annotation) for inner in _models_in(argument)]
