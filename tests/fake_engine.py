"""Stands in for a Python with vLLM: answers as the harness would, by our own scheduler, with one planted difference.

``fake_engine.py VERSION [FIRST SECOND] -m simulator.parity.engine_harness ...``: where a case has both the requests
FIRST and SECOND, the number of free blocks in the last record is another.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from simulator.parity.engine_harness import COUNTERS, digest
from simulator.parity.replay import Replay


def main(version: str, *rest: str) -> None:
    planted = {int(word) for word in rest if word.isdecimal()}
    if "--describe" in rest:
        print("what an import of vLLM may print")
        print(json.dumps({"vllm": version}))
        return
    for line in sys.stdin:
        case = json.loads(line)
        records = Replay(case).run()
        if planted and planted <= {row["id"] for row in case["requests"]}:
            (records[-1]["update"] or records[-1]["schedule"])["num_free"] += 1
        summary = dict.fromkeys(COUNTERS, 0) | {"num_steps": len(records), "assertion": False, "stalled": False}
        summary["stalled"] = case["seed"] == 1_000  # as if vLLM had stood still there
        shown = [digest(record) for record in records] if "--digest" in rest else records
        print(json.dumps({"case": case, "records": shown, "summary": summary}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
