"""The result as files: figure, numbers, tables."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from simulator.errors import InputError
from simulator.hit_curve.figure import figure_of
from simulator.hit_curve.study import Study
from simulator.plots import svg


def write(found: Study, folder: Path) -> None:
    """hit_curve.svg, .png, .json and .csv, and static_routing.csv where instances were routed to.

    Raises InputError where that cannot be written.
    """
    numbers, figure = found.to_json(), figure_of(found)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "hit_curve.svg").write_text(svg(figure), encoding="utf-8")
        figure.savefig(folder / "hit_curve.png", dpi=150)
        (folder / "hit_curve.json").write_text(as_text(numbers) + "\n", encoding="utf-8")
        (folder / "hit_curve.csv").write_text(_csv(_rows(found, numbers)), encoding="utf-8")
        if found.routed:
            (folder / "static_routing.csv").write_text(_csv(numbers["static_routing"]), encoding="utf-8")
    except OSError as error:
        raise InputError(f"{folder}: cannot write there ({error.strerror})") from None


def as_text(numbers: dict[str, Any]) -> str:
    """The JSON text."""
    return json.dumps(numbers, indent=2, ensure_ascii=False, allow_nan=False)


def _rows(found: Study, numbers: dict[str, Any]) -> list[dict[str, Any]]:
    """One row a size and policy."""
    return [
        {"num_blocks": point["num_blocks"], "num_tokens": point["num_tokens"], "policy": policy, **point[policy],
         "sampled": found.is_sampled and policy != "lru"}
        for point in numbers["curve"] for policy in ("lru", *found.policies)
    ]  # fmt: skip


def _csv(rows: Iterable[dict[str, Any]]) -> str:
    rows = list(rows)
    target = io.StringIO()
    writer = csv.DictWriter(target, rows[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return target.getvalue()
