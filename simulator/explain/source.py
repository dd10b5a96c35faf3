"""Which run is meant, and whether simulating it again gives the same rows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from simulator import __version__
from simulator.counts import counted
from simulator.errors import InputError
from simulator.routing import parse_routing
from simulator.scenario import Scenario, load, problems

if TYPE_CHECKING:
    import pandas as pd

_SUMMARY, _ROWS = "summary.json", "requests.parquet"
_COMPARED = (
    "request_id", "tenant", "instance", "state", "num_prompt_tokens", "num_output_tokens", "num_cached_tokens",
    "num_preemptions", "arrival_s", "queued_s", "first_scheduled_s", "first_token_s", "finish_s",
)  # fmt: skip


@dataclass(frozen=True)
class Source:
    """``scenario`` is what was or would be run. ``rows`` is the file with the rows of a run that has been, if it is
    there; ``num_replications``, ``version``, and whether each replication drew its profile are that run's.
    """

    scenario: Scenario
    rows: Path | None = None
    num_replications: int | None = None
    version: str | None = None
    draws_profile: bool = False


def open_source(path: Path, base_dir: Path | None = None) -> Source:
    """The output folder of ``kvcast run`` or ``compare``, its summary.json, or a scenario file.

    Paths in a run's scenario start from ``base_dir``, or from where they started then. Raises InputError.
    """
    if path.suffix in (".yaml", ".yml"):
        if base_dir is not None:
            raise InputError(f"--base-dir: is for runs, {path} is a scenario: its paths start from its own folder")
        return Source(load(path))
    summary = path / _SUMMARY if path.is_dir() else path
    if not summary.is_file():
        missing = f"no {_SUMMARY} in it" if path.is_dir() else "no such run"
        raise InputError(f"{path}: {missing}, expected the output folder of kvcast run or compare, or a scenario file")
    said = _read(summary)
    scenario = _restore(said, summary, base_dir)
    rows = summary.parent / _ROWS
    return Source(
        scenario, rows if rows.is_file() else None, said["num_replications"], said["versions"].get("kvcast"),
        said["draws_profile"],
    )  # fmt: skip


def _read(summary: Path) -> dict[str, Any]:
    try:
        said = json.loads(summary.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{summary}: cannot read it as JSON ({error})") from None
    wanted: dict[str, type] = {  # policies: a sweep's summary has none, and its scenario is none of the settings
        "scenario": dict, "digest": str, "versions": dict, "num_replications": int, "draws_profile": bool,
        "policies": list,
    }  # fmt: skip
    for key, kind in wanted.items():
        if not isinstance(said, dict) or not isinstance(said.get(key), kind):
            raise InputError(f"{summary}: has no {key!r}, expected the {_SUMMARY} of kvcast run or compare")
    return said


def _restore(said: Mapping[str, Any], summary: Path, base_dir: Path | None) -> Scenario:
    """The scenario as it was run. Raises InputError unless its digest is the recorded one."""
    there = said["versions"].get("kvcast")
    other = "" if there == __version__ else f" (written by kvcast {there}, this is {__version__})"
    data = {**said["scenario"], **_spelt_short(said["scenario"])}
    try:
        full = Scenario.model_validate(data)
        # As somebody would have said it: some defaults only mean something where nobody states them.
        short = {**full.model_dump(mode="json", exclude_defaults=True), **_spelt_short(data)}
        scenario = Scenario.model_validate(short)
    except ValidationError as error:
        raise InputError(f"{summary}: scenario: {problems.one_line(error, Scenario, data)}{other}") from None
    if scenario.digest != said["digest"]:
        raise InputError(f"{summary}: its scenario is not the one of its digest, expected the file as it was written"
                         f"{other}")  # fmt: skip
    scenario._base_dir = Path(said.get("base_dir", ".")) if base_dir is None else base_dir
    try:
        scenario.check()
    except InputError as error:
        raise InputError(f"{summary}: {error} (--base-dir names another folder)") from None
    return scenario


def _spelt_short(said: Mapping[str, Any]) -> dict[str, Any]:
    """Routing policies without the parameters that they have anyway."""
    routing = said.get("routing")
    if not isinstance(routing, list):
        return {}
    return {"routing": [_short(entry) if isinstance(entry, Mapping) else entry for entry in routing]}


def _short(entry: Mapping[str, Any]) -> dict[str, Any]:
    name = entry.get("policy")
    try:
        usual = parse_routing({"policy": name}).params.model_dump(mode="json")
    except InputError:
        return dict(entry)  # it has parameters that must be given, or is none: whoever reads it next will say so
    return {key: value for key, value in entry.items() if key == "policy" or value != usual.get(key)}


def check_same(source: Source, label: str, replication: int, rows: pd.DataFrame) -> int | None:
    """How many of the run's own rows its report does not count (warm-up and cool-down); None where these rows were not
    there to be compared with ``rows``, simulated again. Raises InputError where they differ.
    """
    import pandas as pd

    if source.rows is None:
        return None
    try:
        table = pd.read_parquet(source.rows)
        then = table[(table["policy"] == label) & (table["replication"] == replication)]
        num_uncounted = int((then["is_warmup"] | then["is_cooldown"]).sum())
        then = then[list(_COMPARED)].sort_values("request_id", ignore_index=True)
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"{source.rows}: cannot read the rows of the run ({error})") from None
    now = rows[list(_COMPARED)].sort_values("request_id", ignore_index=True)
    problem = _difference(then, now)
    if problem is not None:
        versions = "" if source.version == __version__ else f" (kvcast {source.version} then, {__version__} now)"
        raise InputError(
            f"{source.rows}: simulated again, {problem}: a trace, a profile or kvcast has changed since{versions}, "
            "expected all as it was"
        )
    return num_uncounted


def _difference(then: pd.DataFrame, now: pd.DataFrame) -> str | None:
    if len(then) != len(now):
        return f"there were {counted(len(then), 'request')}, now {len(now):,}"
    differ = None
    for name in _COMPARED:
        # As values: categories and nulls have types of their own.
        before, after = then[name].astype(object), now[name].astype(object)
        mine = ~((before == after).fillna(False).astype(bool) | (before.isna() & after.isna()))
        differ = mine if differ is None else differ | mine
        if mine.any():
            row = int(mine.idxmax())
            first = f"request {then['request_id'][row]} has {name} {after[row]}, not {before[row]}"
            return f"{first} (and {counted(int(mine.sum()), 'request')} in all differ in that)"
    return None
