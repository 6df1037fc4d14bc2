"""The docs hold: links lead somewhere, pictures are small, pages have every name, Python runs as
shown.
"""

import json
import os
import re
import shlex
import subprocess
from functools import partial
from pathlib import Path

import ipywidgets
import nbformat
import pytest
import yaml
from conftest import RECORD

from benchmarks import diagrams
from ocr_phases import OCRSession, PhaseRun
from ocr_phases.analyse.stages import TOKEN_COLUMNS
from ocr_phases.cli import VERBS, main
from ocr_phases.cli.results import Exit
from ocr_phases.families import FAMILIES, PROMPT_NAMES
from ocr_phases.inputs.views import image_token_count
from ocr_phases.record import SPAN_COLUMNS
from ocr_phases.report.render import execute_notebook
from ocr_phases.versions import asset

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
PAGES += [ROOT / "benchmarks" / "README.md", ROOT / "tests" / "golden" / "README.md"]
PRESETS = FAMILIES["deepseek-ocr"].presets
LARGEST_PICTURE = 300_000  # bytes


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_every_link_within_the_repository_leads_somewhere(path):
    targets = re.findall(r"\]\(([^)\s]+)[^)]*\)", path.read_text(encoding="utf-8"))
    inside = [target.partition("#") for target in targets if not re.match(r"[a-z]+:", target)]
    missing = [name for name, _, _ in inside if not (path.parent / name).exists()]
    for name, _, anchor in inside:
        if (
            anchor
            and name not in missing
            and anchor not in anchors(path.parent / name if name else path)
        ):
            missing.append(f"{name}#{anchor}")
    assert missing == []


def anchors(path):
    """What links to a page's headings say behind the ``#``."""
    text = re.sub(
        r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE
    )
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_record_s_page_has_every_name_of_a_record():
    text = (ROOT / "docs" / "record.md").read_text(encoding="utf-8")
    run = PhaseRun.load(ROOT / "tests" / "golden" / "run.json")
    names = {*run.keys(), *SPAN_COLUMNS, *TOKEN_COLUMNS, *run.to_dict(), "kernels"}
    assert names - set(re.findall(r"`(\w+)`", text)) == set()


def test_the_settings_page_has_every_preset_and_prompt_with_its_tokens():
    text = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    rows = re.findall(r"^- `(\w+)`.*?: (\d+) x .*; (\d+) image tokens", text, re.MULTILINE)
    for facts in FAMILIES.values():
        for name, preset in facts.presets.items():
            tokens = image_token_count(preset, (1, 1))
            row = (name, str(preset.base_size), str(tokens))
            assert row in rows, f"{facts.title}: docs/settings.md has no line of these numbers"
    assert f"{image_token_count(PRESETS['gundam'], (2, 3))} tokens" in text
    assert set(PROMPT_NAMES) - set(re.findall(r"`(\w+)", text.partition("## Prompts")[2])) == set()


def test_the_models_page_has_each_family_s_presets_limit_and_file():
    text, families = (ROOT / "docs" / "models.md").read_text(encoding="utf-8"), FAMILIES.values()
    rows = dict(re.findall(r"^\| ([a-z][\w ]*) \| (.*) \|$", text, re.MULTILINE))
    cells = {
        name: [re.findall(r"`([\w.]+)`", cell) for cell in row.split(" | ")]
        for name, row in rows.items()
    }
    known = [list(facts.presets) for facts in families]
    assert cells["presets"] == known, "docs/models.md has a column for each family"
    assert [cell[0] for cell in cells["preset by default"]] == [
        facts.preset().name for facts in families
    ]
    assert [cell[0] for cell in cells["output file"]] == [facts.result_name for facts in families]
    limits = [facts.config["language_config"]["max_position_embeddings"] for facts in families]
    assert rows["longest sequence"].split(" | ") == [f"{limit:,} tokens" for limit in limits]


def test_troubleshooting_has_every_exit_code_and_key_of_the_json_output():
    text = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    codes = {int(code) for code in re.findall(r"^- \*\*(\d+)\*\*: ", text, re.MULTILINE)}
    assert codes == {*Exit} - {Exit.SIGNAL} | {Exit.SIGNAL + 2}
    approved = ROOT / "tests" / "approved"
    outputs = [json.loads(path.read_text()) for path in approved.glob("*/*.json")]
    keys = {key for output in outputs if "exit_reason" in output for key in output}
    # What verbs say of a record is approved in a file of its own, for which this key stands.
    keys.remove("result")
    keys.update(*(json.loads(path.read_text()) for path in approved.glob("*/record.json")))
    assert {"verb", "headline", "cells"} <= keys
    assert keys - set(re.findall(r"`(\w+)`", text.partition("## JSON output")[2])) == set()


def test_the_agents_page_has_every_exit_code():
    text = (ROOT / "docs" / "agents.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([\d, ]+) \|", text.partition("## Exit codes")[2], re.MULTILINE)
    codes = {int(code) for row in rows for code in row.split(",")}
    assert codes == {*Exit} - {Exit.SIGNAL} | {Exit.SIGNAL + 2, Exit.SIGNAL + 15}


def test_the_agents_page_s_commands_say_what_the_page_says(tmp_path, monkeypatch, capsys):
    (tmp_path / "data").symlink_to(ROOT / "data")
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs" / "agents.md").read_text(encoding="utf-8")
    block = re.search(r"<!-- tested -->\n```bash\n(.*?)```", text, re.DOTALL)
    assert block
    results = []
    for command in block[1].splitlines():
        program, *arguments = shlex.split(command)
        assert program == "ocr-phases"
        assert main(arguments) == Exit.DONE, command
        results.append(json.loads(capsys.readouterr().out))
    eager, graph, compared, fits = results
    assert eager["checks"]["failed"] == graph["checks"]["failed"] == []
    assert eager["checks"]["noisy"] == graph["checks"]["noisy"] == []
    step = next(row for row in compared["rows"] if row["metric"] == "inter_token_ms")
    assert step["verdict"] == "faster" and step["ratio_high"] < 0.25
    assert f"{step['ratio']:.3f}" in text
    assert compared["differs"] and fits["fits"] is True


def test_every_command_of_the_pages_is_one_that_the_program_knows():
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    known = {module.__name__.rpartition(".")[2] for module in VERBS}
    unknown = []
    for page in pages:
        text = page.read_text(encoding="utf-8")
        for verb in re.findall(r"^ocr-phases (\w+)", text, re.MULTILINE):
            if verb not in known:
                unknown.append(f"{page.name}: {verb}")
    assert unknown == []


@pytest.mark.parametrize(
    ("answer", "ends_with", "is_kept"),
    [
        (Exit.DONE, 0, True),
        (Exit.FAILED, 1, False),
        (Exit.ERROR, 2, False),
        (Exit.UNDECIDED, 0, True),
    ],
)
def test_the_guide_s_workflow_keeps_what_is_not_proven_slower(tmp_path, answer, ends_with, is_kept):
    text = (ROOT / "docs" / "guide.md").read_text(encoding="utf-8")
    (workflow,) = re.findall(r"^```yaml\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    (job,) = yaml.safe_load(workflow)["jobs"].values()
    (compare,) = [step["run"] for step in job["steps"] if "--baseline" in step.get("run", "")]
    program = tmp_path / ".venv" / "bin" / "ocr-phases"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\nexit {int(answer)}\n")
    program.chmod(0o755)
    (tmp_path / "run.json").write_text("{}")
    done = subprocess.run(
        ["bash", "-e", "-c", compare],
        cwd=tmp_path,
        env={"HOME": str(tmp_path), "PATH": os.defpath},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == ends_with, done.stderr
    assert ("::warning::" in done.stdout) == (answer == Exit.UNDECIDED)
    kept = [*(tmp_path / "ocr_phases_records").iterdir()]
    assert len(kept) == int(is_kept)


def test_llms_txt_leads_to_every_page():
    text = (ROOT / "llms.txt").read_text(encoding="utf-8")
    targets = set(re.findall(r"\]\(([^)]+)\)", text))
    assert [target for target in targets if not (ROOT / target).exists()] == []
    assert {f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md")} <= targets


def test_the_readme_s_table_of_cards_is_that_of_the_cards_page():
    rows = {}
    for page in ("README.md", "docs/cards.md"):
        text = (ROOT / page).read_text(encoding="utf-8")
        lines = re.findall(r"^\| (.*) \|$", text, re.MULTILINE)
        rows[page] = [line.split(" | ") for line in lines]
    heading = next(row for row in rows["README.md"] if row[:2] == ["preset", "GPU memory"])
    needs = {row[1]: row[2] for row in rows["docs/cards.md"] if row[0] == "DeepSeek-OCR"}
    begin = next(
        n for n, row in enumerate(rows["docs/cards.md"]) if row[:2] == ["card", "token, ms"]
    )
    presets = rows["docs/cards.md"][begin]
    cards = {row[0]: row for row in reversed(rows["docs/cards.md"][begin:])}
    for preset, need in needs.items():
        row = next(row for row in rows["README.md"] if row[0] == preset)
        pages = [cards[card][presets.index(preset)].split(" / ")[1] for card in heading[2:]]
        assert row[1:] == [need, *(f"{ms} ms" for ms in pages)]


def test_diagrams_are_as_drawn_shown_and_ask_for_nothing():
    files = {path.stem: path.read_text(encoding="utf-8") for path in diagrams.FOLDER.iterdir()}
    drawn = {name: diagram.svg() for name, diagram in diagrams.DIAGRAMS.items()}
    assert files == drawn, "run python -m benchmarks.diagrams"
    page = (ROOT / "docs" / "how-it-works.md").read_text(encoding="utf-8")
    for name, text in files.items():
        assert f"](diagrams/{name}.svg)" in page
        assert re.findall(r"(?:https?:)?//[^\"\s]+", text) == ["http://www.w3.org/2000/svg"]


def test_pictures_are_small_and_shown():
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    sizes = {picture.name: picture.stat().st_size for picture in (ROOT / "docs").rglob("*.png")}
    assert sizes and max(sizes.values()) < LARGEST_PICTURE
    assert [name for name in sizes if name not in text] == []


#: Snippets that need what is not here, by page and place in it.
SKIPPED = {
    ("engines.md", 0): "a server",
    ("models.md", 0): "a model of the family",
    ("models.md", 1): "a checkpoint of another class",
    ("models.md", 3): "the published weights",
    ("platforms.md", 0): "a notebook of Colab",
}
FEW = {"repeats": 2, "warmup": 0, "ceilings": False}


def snippets(path):
    return re.findall(
        r"^```python\n(.*?)^```", path.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )


@pytest.fixture
def quick(tiny_session, monkeypatch):
    """The built-in model's session, which `load` gives and whose every run is short."""
    short = partial(measure, tiny_session.run_inference)
    monkeypatch.setattr(OCRSession, "load", lambda *_, **__: tiny_session)
    monkeypatch.setattr(tiny_session, "run_inference", short)
    return tiny_session


def measure(run_inference, *given, max_new_tokens=6, **asked):
    """With few tokens, at the smallest preset or, where one is named, the next."""
    few = FEW | {"preset": "small" if asked.get("preset", "tiny") != "tiny" else "tiny"}
    return run_inference(*given, **asked | few, max_new_tokens=min(max_new_tokens, 8))


@pytest.mark.parametrize("path", filter(snippets, PAGES), ids=lambda path: path.name)
def test_snippets_run(path, quick, tmp_path, monkeypatch):
    (tmp_path / "data").symlink_to(asset("data"))
    (tmp_path / "page.png").symlink_to(asset("data", "pages", "slide.png"))
    run = PhaseRun.load(RECORD)
    run.save(tmp_path / "run.json")
    monkeypatch.chdir(tmp_path)
    names = {"session": quick, "run": run}
    for place, snippet in enumerate(snippets(path)):
        if (path.name, place) not in SKIPPED:
            exec(compile(snippet, f"{path.name}, snippet {place}", "exec"), names)
    assert {place for name, place in SKIPPED if name == path.name} <= {*range(len(snippets(path)))}


def test_the_quickstart_runs_with_every_call_of_the_readme(quick, tmp_path):
    parameters = {
        "preset": "tiny",
        "other_preset": "small",
        "max_new_tokens": 8,
        "output_dir": str(tmp_path),
    }
    notebook = nbformat.read(
        execute_notebook("quickstart", parameters, tmp_path / "q.ipynb"), as_version=4
    )
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    shown = [{kind for output in cell.outputs for kind in output.get("data", {})} for cell in code]
    assert sum("text/html" in kinds for kinds in shown) == 12
    assert (tmp_path / "report.html").exists()
    assert PhaseRun.load(tmp_path / "quickstart.json").request.max_new_tokens == 8
    (presets,) = [cell.source for cell in code if cell.id == "presets"]
    page = asset("data", "pages", "slide.png")
    names = {"interact": ipywidgets.interact, "session": quick, "page": page}
    exec(presets, names)
    assert names["show_views"]("tiny").image_tokens == (73,)
    source, readme = "".join(cell.source for cell in code), "".join(snippets(ROOT / "README.md"))
    calls = re.findall(r"\b(?:session|run|OCRSession|PhaseRun)\.[\w.]+\(", readme)
    assert calls and not [call for call in calls if call not in source]
