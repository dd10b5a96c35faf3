"""Reading the engine arguments out of a `vllm serve ...` command line."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from simulator.dialect import DIALECTS
from simulator.engine_args.arguments import EngineArgs, refusal
from simulator.engine_args.names import LISTS, SECRET, SHORT, SWITCHES
from simulator.errors import InputError

_ALIASES = {"device_memory_utilization": "gpu_memory_utilization"}
_NUMBER = re.compile(r"-?\d+(\.\d+)?([eE][+-]?\d+)?")


@dataclass
class Command:
    """What a command line says: arguments by vLLM's name, and why some of them are refused."""

    arguments: dict[str, Any] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)


def read_command(text: str) -> Command:
    """The arguments of a command line like ``vllm serve MODEL --max-num-seqs 64``. Raises InputError if it is none.

    Environment assignments and anything before ``vllm serve`` (``python -m``, ``docker run ...``) are skipped. Dashes
    and underscores are the same, as in vLLM; dotted JSON keys count as their argument.
    """
    try:
        words = shlex.split(text, comments=True)
    except ValueError as error:
        raise InputError(f"command: {str(error).lower()}, expected a shell command line") from None
    command = Command()
    for name, value in _arguments(_after_serve(words)):
        _add(command, name, value)
    return command


def _bad_value(name: str, value: Any) -> str | None:
    """Why the argument cannot have this value; the others are filled with something valid."""
    if name not in EngineArgs.model_fields:
        return None
    try:
        EngineArgs.model_validate({"dialect": next(iter(DIALECTS)), "max_model_len": 1, name: value})
    except ValidationError as error:
        return _worded(error.errors()[0])
    return None


def _worded(problem: Any) -> str:
    """A problem with a value, led by the key within it where the value is a mapping."""
    inside = "".join(f"{part}: " for part in problem["loc"][1:])
    if problem["type"] == "several":
        key, message = next(iter(problem["ctx"]["problems"].items()))
        return f"{inside}{key}: {message}"
    if problem["type"] == "missing":
        return f"{inside}missing"
    message = problem["msg"]
    return inside + (
        message.removeprefix("Value error, ") if "got " in message else f"got {problem['input']!r}: {message}"
    )


def _after_serve(words: list[str]) -> list[str]:
    words = [word for word in words if word.strip()]
    for index in range(len(words) - 1):
        if words[index].rpartition("/")[2] == "vllm" and words[index + 1] == "serve":
            return words[index + 2 :]
        if words[index : index + 2] == ["-m", "vllm.entrypoints.openai.api_server"]:
            return words[index + 2 :]
    raise InputError(f"command: got {' '.join(words[:3])!r}, expected 'vllm serve MODEL --argument value ...'")


def _arguments(words: list[str]) -> Iterator[tuple[str, Any]]:
    """Name and value of each argument; the positional word is the model."""
    index = 0
    while index < len(words):
        word = words[index]
        index += 1
        if not _is_flag(word):
            yield "model", word
            continue
        flag, equals, attached = word.partition("=")
        name, value = _name(flag)
        if equals:
            yield name, _value(attached)
        elif value is not None:
            yield name, value
        elif name in SWITCHES or index == len(words) or _is_flag(words[index]):
            yield name, True
        elif name in LISTS:
            end = next((i for i in range(index, len(words)) if _is_flag(words[i])), len(words))
            yield name, words[index:end] if end - index > 1 else words[index]
            index = end
        else:
            yield name, _value(words[index])
            index += 1


def _is_flag(word: str) -> bool:
    return word.startswith("-") and not _NUMBER.fullmatch(word)


def _name(flag: str) -> tuple[str, Any]:
    """The argument a flag stands for, with the value where the flag alone says it (``--no-...``, ``-O3``)."""
    flag = flag.partition(".")[0]
    if not flag.startswith("--"):
        if flag.startswith("-O") and flag != "-O":
            return SHORT["-O"], flag[2:]
        return SHORT.get(flag, flag), None
    name = flag[2:].replace("-", "_")
    name = _ALIASES.get(name, name)
    if name.startswith("no_") and name[3:] in SWITCHES:
        return name[3:], False
    return name, None


def _value(text: str) -> Any:
    """JSON where it is a JSON list or mapping, else the text: the scenario reads numbers by vLLM's rule."""
    if text[:1] in ("{", "["):
        try:
            return json.loads(text)
        except json.JSONDecodeError:
            return text
    return {"true": True, "false": False, "none": None}.get(text.lower(), text)


def _add(command: Command, name: str, value: Any) -> None:
    value = _as_number(name, value)
    if (problem := refusal(name, value) or _bad_value(name, value)) is not None:
        command.refused[name] = problem
    elif name in command.arguments and command.arguments[name] != value:
        command.refused[name] = f"given twice, as {command.arguments[name]!r} and {value!r}"
    else:
        command.arguments[name] = "(hidden)" if name in SECRET else value


def _as_number(name: str, value: Any) -> Any:
    # So that the YAML has numbers where vLLM has; text like "32k" stays and is read by the scenario.
    if not isinstance(value, str) or not _NUMBER.fullmatch(value) or name in SECRET:
        return value
    number = float(value)
    return int(number) if number == int(number) and "." not in value else number
