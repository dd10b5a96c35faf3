"""The explanation as files and as JSON: bands, the parts of every request, the figure."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from simulator.errors import InputError
from simulator.explain.explanation import Explanation
from simulator.explain.figure import figure_of
from simulator.explain.parts import NAMES, PARTS
from simulator.explain.story import Story
from simulator.plots import svg

_COLUMNS = (
    "request_id", "tenant", "instance", "arrival_s", "num_prompt_tokens", "num_cached_tokens", "ttft_s", *NAMES,
    "saved_s", "num_preemptions_before",
)  # fmt: skip


def to_json(found: Explanation, num_slowest: int) -> dict[str, Any]:
    """All numbers, times in seconds; ``slowest`` with what each waited for, in words too."""
    story = Story(found)
    slowest = [
        {
            **{name: _plain(getattr(row, name)) for name in _COLUMNS},
            "in_front": story.in_front(row),
            "story": story.of(row),
        }
        for row in found.slowest(num_slowest).itertuples()
    ]
    return {
        "scenario": found.scenario.name,
        "digest": found.scenario.digest,
        "policy": found.label,
        "replication": found.replication,
        "rows_checked": found.num_uncounted is not None,
        "num_uncounted": found.num_uncounted,
        "num_requests": len(found.meant),
        "num_with_first_token": len(found.answered),
        "parts": [part._asdict() for part in PARTS],
        "bands": [
            {
                "tenant": band.tenant, "band": band.name, "num_requests": band.num_requests, "mean_s": band.mean_s,
                "share": {name: band.share(name) for name in NAMES} if band.num_requests else {},
            }
            for band in found.bands()
        ],
        "slowest": slowest,
    }  # fmt: skip


def write(found: Explanation, num_slowest: int, folder: Path) -> None:
    """ttft_bands.csv, ttft_requests.csv, ttft.json, ttft.svg and ttft.png. Raises InputError where that cannot be
    written.
    """
    numbers, figure = to_json(found, num_slowest), figure_of(found)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _bands_table(found).to_csv(folder / "ttft_bands.csv", index=False)
        found.answered[list(_COLUMNS)].to_csv(folder / "ttft_requests.csv", index=False)
        (folder / "ttft.json").write_text(as_text(numbers) + "\n", encoding="utf-8")
        (folder / "ttft.svg").write_text(svg(figure), encoding="utf-8")
        figure.savefig(folder / "ttft.png", dpi=150)
    except OSError as error:
        raise InputError(f"{folder}: cannot write there ({error.strerror or error})") from None


def as_text(numbers: dict[str, Any]) -> str:
    """The JSON text."""
    return json.dumps(numbers, indent=1, ensure_ascii=False, allow_nan=False)


def _bands_table(found: Explanation) -> Any:
    import pandas as pd

    return pd.DataFrame(
        [
            {
                "tenant": band.tenant, "band": band.name, "num_requests": band.num_requests, "part": name,
                "mean_s": band.mean_s[name], "share": None if name == "saved_s" else band.share(name),
            }
            for band in found.bands() if band.num_requests for name in ("ttft_s", *NAMES, "saved_s")
        ],
        columns=["tenant", "band", "num_requests", "part", "mean_s", "share"],
    )  # fmt: skip


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value
