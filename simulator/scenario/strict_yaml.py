"""YAML without its traps: no key twice, no base-60 numbers, no yes and no, and ``1e5`` is a number."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from simulator.errors import InputError
from simulator.signatures import NUM_BYTES, kind_of


def text_of(path: Path, expected: str) -> str:
    """The text in a file of which ``expected`` says what it should be. Raises InputError ``FILE: ...``."""
    if path.is_dir():
        raise InputError(f"{path}: is a folder, expected {expected}")
    try:
        content = path.read_bytes()
        return content.decode("utf-8-sig")
    except FileNotFoundError:
        raise InputError(f"{path}: no such file, expected {expected}") from None
    except UnicodeDecodeError as error:
        kind = kind_of(content[:NUM_BYTES])
        what = f"byte {error.start} is not UTF-8" if kind is None else f"is {kind}"
        raise InputError(f"{path}: {what}, expected {expected}") from None
    except OSError as error:
        raise InputError(f"{path}: cannot read it ({error.strerror}), expected {expected}") from None


def read(text: str, where: str) -> dict[str, Any]:
    """The mapping that ``text`` holds; ``where`` names it in errors. Raises InputError with line and column."""
    try:
        data = yaml.load(text, Loader=_Loader)  # noqa: S506 - derived from SafeLoader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        position = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise InputError(f"{where}: {position}{_one_line(error.problem or error.context)}") from None
    except (yaml.YAMLError, ValueError) as error:
        raise InputError(f"{where}: not a YAML text: {_one_line(str(error))}") from None
    except RecursionError:
        raise InputError(f"{where}: nested too deeply") from None
    if data is None:
        raise InputError(f"{where}: empty, expected a mapping of keys")
    if not isinstance(data, dict):
        raise InputError(f"{where}: got {_kind(data)}, expected a mapping of keys")
    return data


class _Loader(yaml.SafeLoader):
    """YAML 1.2's core scalars in place of 1.1's, and keys that are text and occur once."""

    # Not inherited: the parent's resolvers are what makes 10:30 the number 630 and 2024-01-01 a date.
    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 - PyYAML's own interface

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            if key_node.tag != "tag:yaml.org,2002:str":
                raise yaml.MarkedYAMLError(problem="expected a key that is text", problem_mark=key_node.start_mark)
            if key_node.value in seen:
                problem = f"key {key_node.value!r} occurs twice"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key_node.start_mark)
            seen.add(key_node.value)
        return super().construct_mapping(node, deep=deep)


def _resolve(tag: str, pattern: str, first: str) -> None:
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{tag}", re.compile(rf"(?:{pattern})\Z", re.ASCII), list(first))


_resolve("bool", "true|True|TRUE|false|False|FALSE", "tTfF")
_resolve("null", "~|null|Null|NULL", "~nN")
_resolve("merge", "<<", "<")
# A leading zero is no octal number, and 40 digits are no number that anybody means: both stay text.
_resolve("int", r"[-+]?(?:0|[1-9]\d{0,29})", "-+0123456789")
_resolve("float", r"[-+]?(?:\d+\.\d*|\.\d+|\d+(?=[eE]))(?:[eE][-+]?\d+)?", "-+.0123456789")
_Loader.yaml_implicit_resolvers[""] = [("tag:yaml.org,2002:null", re.compile(r"\Z"))]


def _kind(data: object) -> str:
    if isinstance(data, list):
        return "a list"
    return repr(data)[:60]


def _one_line(text: str | None) -> str:
    return " ".join((text or "not a YAML text").split())
