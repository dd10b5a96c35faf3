"""``cache_salt: {per: session}``: what is shared between sessions is computed for each, what is within one is found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from pydantic import ValidationError

from simulator.errors import InputError
from simulator.isolation import price_of_isolation
from simulator.workload import WorkloadSpec, open_workload

TENANT = """
name: {name}
cache_salt: {{per: session}}
conversations:
  num_conversations: 5
  arrivals: {{process: fixed, rate_per_s: 1}}
  layers: [{{name: system, tokens: 32, shared_as: service}}]
  question_tokens: 8
  output_tokens: 8
  turns: 2
  think_time: 2 s
"""


def tenant(name: str = "red") -> dict:
    loaded: dict = yaml.safe_load(TENANT.format(name=name))
    return loaded


def spec(*tenants: dict) -> WorkloadSpec:
    return WorkloadSpec.model_validate({"tenants": tenants})


def test_each_session_computes_the_shared_text_and_finds_its_own_history() -> None:
    """Five first turns of 40 tokens find nothing, second ones of 56 find the first's 47 with KV: two blocks of 16.
    Without salts four first turns would find two blocks of the shared text too.
    """
    price = price_of_isolation(spec(tenant()), 0, Path(), 16)
    assert price is not None
    assert price.num_requests == 10
    num_tokens = 5 * 40 + 5 * 56
    assert price.salted == pytest.approx(5 * 32 / num_tokens)
    assert price.shared == pytest.approx((5 * 32 + 4 * 32) / num_tokens)


def test_sessions_keep_one_salt_and_no_two_have_the_same_across_tenants() -> None:
    salts: dict[tuple[int, int | None], set[str | None]] = {}
    source = {
        "arrivals": {"process": "poisson", "rate_per_s": 2}, "num_requests": 200, "thread_tokens": [50, 90],
        "another": [[0.6]], "pause": [1, 5], "extended": {"kept": [1.0], "new_tokens": [[20]]},
        "new_output_tokens": [[7]], "output_tokens": [[7]],
    }  # fmt: skip
    tree = {"name": "tree", "cache_salt": {"per": "session"}, "tree": source}
    for one in open_workload(spec(tenant("red"), tenant("blue"), tree), 0, 0):
        salts.setdefault((one.tenant, one.session), set()).add(one.cache_salt)
    assert len(salts) > 60
    assert all(len(found) == 1 and None not in found for found in salts.values())
    assert len(set.union(*salts.values())) == len(salts)


def test_a_request_without_a_session_cannot_have_its_salt(tmp_path: Path) -> None:
    header = {"kvcast_trace": 1, "block_tokens": 16, "source": "by hand", "sessions_start_together": False}
    rows = [{"t": 0, "in": 16, "out": 1, "session": "a"}, {"t": 1, "in": 16, "out": 1}]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(one) + "\n" for one in (header, *rows)))
    salted = {"name": "t", "cache_salt": {"per": "session"}, "trace": {"format": "kvcast", "path": "t.jsonl"}}
    with pytest.raises(InputError, match="tenant 't': a request has no session"):
        list(open_workload(spec(salted), 0, 0, tmp_path))


@pytest.mark.parametrize(
    ("salt", "complaint"),
    [
        ({"per": "session"}, "cache_salt per session needs sessions, its requests have none"),
        ({"per": "user"}, "session"),
        ({}, "expected a salt, or {per: session}"),
        ("", "at least 1 character"),
        (5, "valid dictionary"),
    ],
)
def test_what_is_no_salt_is_refused(salt: object, complaint: str) -> None:
    one = {"num_requests": 1, "arrivals": {"process": "poisson", "rate_per_s": 1}, "suffix_tokens": 1,
           "output_tokens": 1}  # fmt: skip
    with pytest.raises(ValidationError, match=complaint):
        spec({"name": "a", "cache_salt": salt, "synthetic": one})
