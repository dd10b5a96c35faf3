"""The recorded cases notice each of vLLM's rules: with any one of them broken, some case differs."""

from __future__ import annotations

from pathlib import Path

import pytest
from broken_rules import RULES

from simulator.parity.record import Recorded, read

HOME = Path(__file__).parent / "data" / "parity"
FILES = {"0.32": "vllm-0.32.0.jsonl.gz", "0.23": "vllm-0.23.0.jsonl.gz"}
FIRST = ("edge", "speculation", "async", "priority", "pressure", "basic")  # the families which notice most come first


@pytest.fixture(scope="module")
def recorded() -> dict[str, list[Recorded]]:
    """Cases of each dialect, those first that are likely to notice something soon."""
    cases = {dialect: read(HOME / name)[1] for dialect, name in FILES.items()}
    for some in cases.values():
        some.sort(key=lambda one: (len(one.case["requests"]) > 100, FIRST.index(one.case["family"]), len(one.digests)))
    return cases


@pytest.mark.parametrize(
    ("dialect", "name"), [(dialect, name) for name, rule in RULES.items() for dialect in rule.dialects]
)
def test_a_broken_rule_is_noticed(
    dialect: str, name: str, recorded: dict[str, list[Recorded]], monkeypatch: pytest.MonkeyPatch
) -> None:
    rule = RULES[name]
    able = [one for one in recorded[dialect] if rule.can_matter(one.case)]
    rule.break_it(monkeypatch)
    assert any(differs(one) for one in able), f"none of {len(able)} cases noticed"


def differs(one: Recorded) -> bool:
    """Whether other decisions were made, or one that cannot be carried out."""
    try:
        return one.difference(grouping=False) is not None
    except IndexError:  # blocks were to be taken that are not there
        return True
