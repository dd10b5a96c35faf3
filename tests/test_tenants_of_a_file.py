"""A file that names tenants, replayed as several tenants of a scenario: together they are the file."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from pydantic import ValidationError

from simulator import experiment, scenario
from simulator.errors import InputError
from simulator.workload import WorkloadSpec, open_workload
from simulator.workload.segments import first_segment
from tests.test_scenario import TEXT

HEADER = {"kvcast_trace": 1, "block_tokens": 16, "source": "by hand", "sessions_start_together": False}
# Everyone's system prompt is text 0, each request's question its own.
ROWS = [
    {"t": 0.5 * place, "in": 48, "out": 4, "runs": [[0, 0, 32], [1 + place, 0, 16]], "session": place // 6,
     "tenant": ("web", "api", "web", None)[place % 4]}
    for place in range(400)
]  # fmt: skip


def written(tmp_path, rows=ROWS):
    lines = [json.dumps(one) for one in (HEADER, *rows)]
    (tmp_path / "merged.jsonl").write_text("\n".join(lines) + "\n")
    return tmp_path


def workload(folder, *tenants, replication=0, **trace):
    spec = [
        {"name": str(name), "trace": {"format": "kvcast", "path": "merged.jsonl", **trace}
         | ({} if name is None else {"tenant": name})}
        for name in tenants
    ]  # fmt: skip
    return open_workload(WorkloadSpec.model_validate({"tenants": spec}), 3, replication, folder)


def test_tenants_of_a_file_are_the_file_but_for_what_is_nobodys(tmp_path):
    whole = [one for one in workload(written(tmp_path), None) if one.request_id % 4 != 3]
    parts = list(workload(tmp_path, "web", "api"))
    assert [(one.arrival_s, one.prompt) for one in parts] == [(one.arrival_s, one.prompt) for one in whole]
    assert [one.tenant for one in parts[:6]] == [0, 1, 0, 0, 1, 0]
    assert not {one.session for one in parts if one.tenant} & {one.session for one in parts if not one.tenant}


def test_what_they_share_in_the_file_they_share_in_the_cluster_and_with_nobody_else(tmp_path):
    written(tmp_path)
    parts = list(workload(tmp_path, None, "web", "api"))
    texts = [{segment for one in parts if one.tenant == tenant for segment, _, _ in one.prompt} for tenant in range(3)]
    assert texts[1] & texts[2] == {first_segment(1)}
    assert not texts[0] & (texts[1] | texts[2])


def test_results_show_each_with_targets_of_its_own(tmp_path):
    written(tmp_path)
    synthetic = TEXT[TEXT.index("    - name: chat") : TEXT.index("routing:")]
    tenants = "".join(
        f"    - name: {name}\n      trace: {{format: kvcast, path: merged.jsonl, tenant: {name}}}\n"
        f"      targets: {{ttft: {target}}}\n"
        for name, target in (("web", "1000 s"), ("api", "1 us"))
    )
    loaded = scenario.parse(TEXT.replace(synthetic, tenants), base_dir=tmp_path)
    web, api = experiment.run(loaded, router="round_robin", replication=0).by_tenant()
    assert (web["tenant"], web["num_requests"], web["within_targets"]) == ("web", 200, 1)
    assert (api["tenant"], api["num_requests"], api["within_targets"]) == ("api", 100, 0)


def test_a_window_is_the_same_for_all_tenants_of_a_file(tmp_path):
    written(tmp_path)
    for replication in range(3):
        parts = list(workload(tmp_path, "web", "api", replication=replication, window="20 s"))
        times = [one.arrival_s for one in parts]
        # 40 of the file's requests, of which a fourth is nobody's: gaps are 0.5 s, or 1 s over what is nobody's.
        assert len(parts) in (29, 30, 31)
        assert {round(later - earlier, 6) for earlier, later in pairwise(times)} == {0.5, 1.0}


def test_what_waits_for_an_answer_waits_within_its_tenant(tmp_path):
    rows = [
        {"t": 0, "in": 16, "out": 1, "session": "a", "tenant": "x"},
        {"t": 0, "in": 16, "out": 1, "session": "b", "tenant": "web"},
        {"t": 5, "in": 16, "out": 1, "session": "a", "tenant": "x", "after": 1},
        {"t": 5, "in": 17, "out": 1, "session": "c", "tenant": "web", "after": 2.5, "parent": 1},
        {"t": 6, "in": 18, "out": 1, "session": "d", "tenant": "web", "after": 3, "parent": 0},
    ]
    loaded = workload(written(tmp_path, rows), "web", pace="answers")
    first, alone = list(loaded)
    assert (first.num_prompt_tokens, alone.num_prompt_tokens) == (16, 18), "what it waited for is another tenant's"
    (follower,) = loaded.ended(first, 10.0)
    assert (follower.num_prompt_tokens, follower.arrival_s) == (17, 12.5)


def test_a_tenant_that_the_file_does_not_name_is_refused_with_those_that_it_does(tmp_path):
    with pytest.raises(InputError, match="no request of tenant 'wbe', expected one of web, api"):
        workload(written(tmp_path), "wbe")
    with pytest.raises(ValidationError, match=r"tenant would change nothing for format azure \(it is for kvcast\)"):
        WorkloadSpec.model_validate(
            {"tenants": [{"name": "a", "trace": {"format": "azure", "path": "x", "tenant": "b"}}]}
        )
