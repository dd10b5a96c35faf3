"""What the documentation says works: commands, scenarios, Python, links, numbers, the notebook."""

from __future__ import annotations

import re
import shlex
import statistics
from pathlib import Path

import pytest
import yaml

from simulator import cli, scenario
from simulator.eviction import POLICIES
from simulator.profile import load_profile
from simulator.routing import PRESETS, ROUTERS

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
DOCUMENTS = ["README.md", "CHANGELOG.md", "calibration/data/README.md", "scenarios/traces/README.md"]


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, flags=re.DOTALL | re.MULTILINE)


def command_lines() -> list[str]:
    return [line for block in blocks("console") for line in block.replace("\\\n", " ").splitlines()]


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that looks like the repository, so that commands write nothing into it."""
    for name in ("scenarios", "calibration"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        cli.main([*arguments])
    return int(ended.value.code or 0)


@pytest.mark.parametrize("line", [line for line in command_lines() if line.startswith("kvcast ")])
def test_every_command_of_the_readme_runs(line: str, checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = shlex.split(line)[1:]
    if words[0] in ("compare", "run"):
        words += ["--jobs", "1", "--limit", "40"]
    assert run(*words) == 0
    printed = capsys.readouterr()
    assert printed.out
    assert printed.err == ""


def test_every_other_command_of_the_readme_is_a_target_of_make() -> None:
    makefile = (ROOT / "Makefile").read_text()
    others = [line.split() for line in command_lines() if not line.startswith("kvcast ")]
    assert others
    for words in others:
        assert words[0] == "make"
        assert re.search(rf"^{words[1]}:", makefile, flags=re.MULTILINE)


@pytest.mark.parametrize("source", blocks("python"))
def test_every_python_block_of_the_readme_runs(
    source: str, checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    exec(compile(source, "README.md", "exec"), {"__name__": "readme"})
    assert capsys.readouterr().out


def test_the_scenario_of_the_readme_runs(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, _ = blocks("yaml")
    assert set(yaml.safe_load(text)) == set(scenario.Scenario.model_fields), "a top-level key is not shown"
    (checkout / "mine.yaml").write_text(text)
    assert run("compare", "mine.yaml", "--jobs", "1", "--limit", "20", "--replications", "2") == 0
    assert "dynamo" in capsys.readouterr().out


@pytest.mark.parametrize("path", sorted((ROOT / "scenarios").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_shipped_scenario_runs(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(tmp_path / "out")
    assert run("compare", str(path), "--jobs", "1", "--limit", "20", "--replications", "2", "-o", folder) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("name", DOCUMENTS)
def test_links_lead_somewhere(name: str) -> None:
    document = ROOT / name
    links = re.findall(r"\]\(([^)\s]+)\)", document.read_text(encoding="utf-8"))
    for link in links:
        if not link.startswith(("http://", "https://", "#")):
            assert (document.parent / link.partition("#")[0]).exists(), link


def test_the_routers_are_all_listed() -> None:
    section = README.partition("\n## Routers\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.*?) \| (.*?) \|", section, flags=re.MULTILINE)
    policies, presets = (
        [name for row in rows for name in re.findall(r"`([\w.-]+)`", row[column])] for column in (0, 1)
    )
    assert sorted(policies) == sorted(ROUTERS)
    assert sorted(presets) == sorted(PRESETS)


def test_the_evictions_are_all_listed() -> None:
    section = README.partition("\n## Eviction\n")[2].partition("\n## ")[0]
    cells = re.findall(r"^\| (`.*?) \|", section, flags=re.MULTILINE)
    listed = [name for cell in cells for name in re.findall(r"`(\w+)`", cell)]
    assert listed == ["vllm", *(name for name, policy in POLICIES.items() if not policy.needs_future)]


def test_the_conversations_of_the_readme_are_ones() -> None:
    from simulator.workload.conversation_spec import ConversationSpec

    _, text = blocks("yaml")
    assert ConversationSpec.model_validate(yaml.safe_load(text)["conversations"]).more_turns


def test_the_ready_scenarios_are_all_listed() -> None:
    section = README.partition("**Ready scenarios**")[2].partition("\n\n**")[0]
    cells = re.findall(r"^\| (`.*?) \|", section, flags=re.MULTILINE)
    listed = {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}
    shipped = {path.stem for path in (ROOT / "scenarios").glob("*.yaml")}
    assert listed == shipped - {"mooncake_conversation", "shared_prefix"}


def test_the_stated_errors_are_those_of_the_profile() -> None:
    errors = load_profile("qwen3-0.6b-ascend910-a3").errors
    found = re.findall(r"^\| ([\d,]+), ([\d,]+) \| ([\d.]+) \| (\S+) % \| (\S+) % \|$", README, flags=re.MULTILINE)
    in_sample = {row.case: row for row in errors.in_sample if row.case.startswith("TTFT")}
    held_out = {row.case: row for row in errors.held_out if row.case.startswith("TTFT")}
    assert len(found) == len(in_sample) == len(held_out)
    for prompt, cached, measured_ms, fitted, predicted in found:
        case = f"TTFT: {prompt.replace(',', '')} prompt tokens, {cached.replace(',', '')} cached"
        assert f"{1000 * in_sample[case].measured_s:.1f}" == measured_ms
        assert f"{100 * in_sample[case].relative_error:+.1f}" == fitted
        assert f"{100 * held_out[case].relative_error:+.1f}" == predicted


def test_the_changelog_is_tagged_and_of_this_version() -> None:
    from simulator import __version__

    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"\n## {__version__} " in text
    entries = re.findall(r"^- (.*)$", text, flags=re.MULTILINE)
    assert entries
    assert all(re.match(r"(NEW|FIX|CHANGE|BREAKING|DOCS): ", entry) for entry in entries)


@pytest.mark.slow
def test_the_notebook_runs(checkout: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    import nbclient
    import nbformat

    path = "scenarios/mooncake_conversation.yaml"
    assert run("compare", path, "--jobs", "1", "--limit", "60", "-o", "out") == 0
    monkeypatch.setenv("KVCAST_OUT", str(checkout / "out"))
    notebook = nbformat.read(ROOT / "notebooks" / "quick_start.ipynb", as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "the notebook is kept without outputs"
    nbclient.NotebookClient(notebook, timeout=60, kernel_name="python3").execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 3


def test_the_stated_errors_of_learned_profiles_are_theirs() -> None:
    """Medians of what was held out: throughput, mean TPOT, mean TTFT."""
    cell = r" (\S+) %? ?\|"
    rows = re.findall(rf"^\| \[([\w.-]+)\]\(\S+\) \| (\d+) \|{cell}{cell}{cell}$", README, re.MULTILINE)
    assert len(rows) >= 4
    for name, groups, *stated in rows:
        errors = load_profile(name).errors
        assert errors.num_groups == int(groups)
        for kind, value in zip(("/s", "TPOT mean", "TTFT mean"), stated, strict=True):
            sizes = [abs(one.relative_error) for one in errors.held_out if one.quantity.endswith(kind)]
            assert value == (f"{100 * statistics.median(sizes):.1f}" if sizes else "–"), (name, kind)
