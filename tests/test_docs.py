"""The docs hold: links lead somewhere, pictures are small, pages have every name, Python runs as
shown.
"""

import json
import os
import re
import shlex
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

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
DOCS = ROOT / "docs"
README = ROOT / "README.md"
PAGES = [
    README,
    ROOT / "CONTRIBUTING.md",
    *sorted(DOCS.glob("*.md")),
    ROOT / "benchmarks" / "README.md",
    ROOT / "tests" / "golden" / "README.md",
]
LARGEST_PICTURE = 300_000  # bytes


def name_of(path: Path) -> str:
    """A page's name as the id of its case."""
    return path.name


def read(path: Path) -> str:
    """The text of a page."""
    return path.read_text(encoding="utf-8")


def section(text: str, heading: str) -> str:
    """What follows a heading of a page, to the page's end."""
    return text.partition(f"## {heading}")[2]


def code_blocks(text: str, language: str) -> list[str]:
    """The blocks of code in a page that are of this language."""
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def table_rows(text: str) -> list[list[str]]:
    """The rows of all tables of a page, a list of cells each."""
    return [line.split(" | ") for line in re.findall(r"^\| (.*) \|$", text, re.MULTILINE)]


# -- links -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_within_the_repository_leads_somewhere(page: Path) -> None:
    missing = [target for target in inner_links(page) if not leads_somewhere(page, target)]

    assert missing == []


def inner_links(page: Path) -> list[str]:
    """The targets of a page's links, except those with a scheme, such as ``https:``."""
    targets = re.findall(r"\]\(([^)\s]+)[^)]*\)", read(page))
    return [target for target in targets if not re.match(r"[a-z]+:", target)]


def leads_somewhere(page: Path, target: str) -> bool:
    """Whether the file that a page links to is there and has the heading that is named."""
    name, _, anchor = target.partition("#")
    linked = page.parent / name if name else page
    if not linked.exists():
        return False
    return not anchor or anchor in anchors(linked)


def anchors(page: Path) -> set[str]:
    """What links to a page's headings say behind the ``#``."""
    without_code = re.sub(r"^```.*?^```", "", read(page), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.*)$", without_code, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_llms_txt_leads_to_every_page() -> None:
    targets = set(re.findall(r"\]\(([^)]+)\)", read(ROOT / "llms.txt")))

    assert [target for target in targets if not (ROOT / target).exists()] == []
    assert {f"docs/{page.name}" for page in DOCS.glob("*.md")} <= targets


# -- names that a page must have -------------------------------------------------------------------


def test_the_records_page_has_every_name_of_a_record() -> None:
    run = PhaseRun.load(RECORD)
    names = {*run.keys(), *SPAN_COLUMNS, *TOKEN_COLUMNS, *run.to_dict(), "kernels"}

    described = set(re.findall(r"`(\w+)`", read(DOCS / "record.md")))

    assert names - described == set()


def test_the_settings_page_has_every_preset_with_its_tokens() -> None:
    text = read(DOCS / "settings.md")
    rows = re.findall(r"^- `(\w+)`.*?: (\d+) x .*; (\d+) image tokens", text, re.MULTILINE)

    for facts in FAMILIES.values():
        for name, preset in facts.presets.items():
            row = (name, str(preset.base_size), str(image_token_count(preset, (1, 1))))
            assert row in rows, f"{facts.title}: docs/settings.md has no line of these numbers"
    gundam = FAMILIES["deepseek-ocr"].presets["gundam"]
    assert f"{image_token_count(gundam, (2, 3))} tokens" in text


def test_the_settings_page_has_every_prompt() -> None:
    described = re.findall(r"`(\w+)", section(read(DOCS / "settings.md"), "Prompts"))

    assert set(PROMPT_NAMES) - set(described) == set()


def test_the_models_page_has_each_familys_presets_limit_and_file() -> None:
    families = FAMILIES.values()
    longest = [facts.config["language_config"]["max_position_embeddings"] for facts in families]

    rows = {heading: cells for heading, *cells in table_rows(read(DOCS / "models.md"))}

    presets = [quoted_names(cell) for cell in rows["presets"]]
    assert presets == [list(facts.presets) for facts in families], (
        "docs/models.md has a column for each family"
    )
    default_presets = [quoted_names(cell)[0] for cell in rows["preset by default"]]
    assert default_presets == [facts.preset().name for facts in families]
    output_files = [quoted_names(cell)[0] for cell in rows["output file"]]
    assert output_files == [facts.result_name for facts in families]
    assert rows["longest sequence"] == [f"{limit:,} tokens" for limit in longest]


def quoted_names(cell: str) -> list[str]:
    """The names in a cell that stand between backticks."""
    return re.findall(r"`([\w.]+)`", cell)


def test_troubleshooting_has_every_exit_code() -> None:
    rows = re.findall(r"^- \*\*(\d+)\*\*: ", read(DOCS / "troubleshooting.md"), re.MULTILINE)

    codes = {int(code) for code in rows}

    assert codes == {*Exit} - {Exit.SIGNAL} | {Exit.SIGNAL + 2}


def test_troubleshooting_has_every_key_of_the_json_output() -> None:
    described = section(read(DOCS / "troubleshooting.md"), "JSON output")

    keys = keys_of_approved_outputs()

    assert {"verb", "headline", "cells"} <= keys
    assert keys - set(re.findall(r"`(\w+)`", described)) == set()


def keys_of_approved_outputs() -> set[str]:
    """The keys of what the verbs print with ``--json``, by their approved outputs."""
    approved = ROOT / "tests" / "approved"
    keys: set[str] = set()
    for path in approved.glob("*/*.json"):
        output = json.loads(path.read_text())
        if "exit_reason" in output:
            keys.update(output)
    # What verbs say of a record is approved in a file of its own, for which this key stands.
    keys.remove("result")
    for path in approved.glob("*/record.json"):
        keys.update(json.loads(path.read_text()))
    return keys


def test_the_agents_page_has_every_exit_code() -> None:
    described = section(read(DOCS / "agents.md"), "Exit codes")
    rows = re.findall(r"^\| ([\d, ]+) \|", described, re.MULTILINE)

    codes = {int(code) for code in ",".join(rows).split(",")}

    assert codes == {*Exit} - {Exit.SIGNAL} | {Exit.SIGNAL + 2, Exit.SIGNAL + 15}


def test_every_command_of_the_pages_is_one_that_the_program_knows() -> None:
    known = {module.__name__.rpartition(".")[2] for module in VERBS}
    unknown = []

    for page in (README, *DOCS.glob("*.md")):
        for verb in re.findall(r"^ocr-phases (\w+)", read(page), re.MULTILINE):
            if verb not in known:
                unknown.append(f"{page.name}: {verb}")

    assert unknown == []


def rows_from(rows: list[list[str]], heading: list[str]) -> list[list[str]]:
    """The rows of a page from a table's heading on, which is known by its first cells."""
    for number, row in enumerate(rows):
        if row[: len(heading)] == heading:
            return rows[number:]
    raise AssertionError(f"no table has the heading {heading}")


def test_the_readmes_table_of_cards_is_that_of_the_cards_page() -> None:
    readme_heading, *readme_rows = rows_from(table_rows(read(README)), ["preset", "GPU memory"])
    cards = readme_heading[2:]
    rows_of_presets = {row[0]: row for row in reversed(readme_rows)}

    cards_page = table_rows(read(DOCS / "cards.md"))
    memory_needs = {row[1]: row[2] for row in cards_page if row[0] == "DeepSeek-OCR"}
    heading, *speed_rows = rows_from(cards_page, ["card", "token, ms"])
    rows_of_cards = {row[0]: row for row in reversed(speed_rows)}

    for preset, memory in memory_needs.items():
        column = heading.index(preset)
        page_ms = [rows_of_cards[card][column].split(" / ")[1] for card in cards]
        assert rows_of_presets[preset] == [preset, memory, *(f"{ms} ms" for ms in page_ms)]


# -- pictures --------------------------------------------------------------------------------------


def test_diagrams_are_as_drawn() -> None:
    files = {path.stem: read(path) for path in diagrams.FOLDER.iterdir()}

    drawn = {name: diagram.svg() for name, diagram in diagrams.DIAGRAMS.items()}

    assert files == drawn, "run python -m benchmarks.diagrams"


def test_diagrams_are_shown_and_ask_no_other_host() -> None:
    page = read(DOCS / "how-it-works.md")

    for path in diagrams.FOLDER.iterdir():
        assert f"](diagrams/{path.name})" in page
        addresses = re.findall(r"(?:https?:)?//[^\"\s]+", read(path))
        assert addresses == ["http://www.w3.org/2000/svg"]


def test_pictures_are_small_and_shown() -> None:
    sizes = {picture.name: picture.stat().st_size for picture in DOCS.rglob("*.png")}

    text = "".join(read(page) for page in PAGES)

    assert sizes
    assert max(sizes.values()) < LARGEST_PICTURE
    assert [name for name in sizes if name not in text] == []


# -- commands --------------------------------------------------------------------------------------


def test_the_agents_pages_commands_say_what_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "data").symlink_to(ROOT / "data")
    monkeypatch.chdir(tmp_path)
    text = read(DOCS / "agents.md")
    commands = re.search(r"<!-- tested -->\n```bash\n(.*?)```", text, re.DOTALL)
    assert commands

    results = []
    for command in commands[1].splitlines():
        program, *arguments = shlex.split(command)
        assert program == "ocr-phases"
        assert main(arguments) == Exit.DONE, command
        results.append(json.loads(capsys.readouterr().out))

    eager, captured, comparison, fit = results
    for profile in (eager, captured):
        assert profile["checks"]["failed"] == []
        assert profile["checks"]["noisy"] == []
    step = next(row for row in comparison["rows"] if row["metric"] == "inter_token_ms")
    assert step["verdict"] == "faster"
    assert step["ratio_high"] < 0.25
    assert f"{step['ratio']:.3f}" in text
    assert comparison["differs"]
    assert fit["fits"] is True


def comparing_script() -> str:
    """The script of the step that compares with a baseline, in the guide's workflow for CI."""
    (workflow,) = code_blocks(read(DOCS / "guide.md"), "yaml")
    (job,) = yaml.safe_load(workflow)["jobs"].values()
    scripts = [step.get("run", "") for step in job["steps"]]
    (script,) = [script for script in scripts if "--baseline" in script]
    return script


@pytest.mark.parametrize(
    ("answer", "exit_code", "kept_records"),
    [
        (Exit.DONE, 0, 1),
        (Exit.FAILED, 1, 0),
        (Exit.ERROR, 2, 0),
        (Exit.UNDECIDED, 0, 1),
    ],
)
def test_the_guides_workflow_keeps_what_is_not_proven_slower(
    tmp_path: Path, answer: Exit, exit_code: int, kept_records: int
) -> None:
    program = tmp_path / ".venv" / "bin" / "ocr-phases"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\nexit {int(answer)}\n")
    program.chmod(0o755)
    (tmp_path / "run.json").write_text("{}")

    done = subprocess.run(
        ["bash", "-e", "-c", comparing_script()],
        cwd=tmp_path,
        env={"HOME": str(tmp_path), "PATH": os.defpath},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == exit_code, done.stderr
    assert ("::warning::" in done.stdout) == (answer == Exit.UNDECIDED)
    assert len(list((tmp_path / "ocr_phases_records").iterdir())) == kept_records


# -- Python ----------------------------------------------------------------------------------------

#: Snippets that need what is not here, by page and place in it.
SKIPPED = {
    ("engines.md", 0): "a server",
    ("models.md", 0): "a model of the family",
    ("models.md", 1): "a checkpoint of another class",
    ("models.md", 3): "the published weights",
    ("platforms.md", 0): "a notebook of Colab",
}


def snippets(page: Path) -> list[str]:
    """The Python of a page."""
    return code_blocks(read(page), "python")


def load_always(session: OCRSession, patch: pytest.MonkeyPatch) -> None:
    """Let `OCRSession.load` give this session, whatever is asked for."""

    def load(*_: object, **__: object) -> OCRSession:
        return session

    patch.setattr(OCRSession, "load", load)


@pytest.fixture
def quick_session(quick_tiny_session: OCRSession, monkeypatch: pytest.MonkeyPatch) -> OCRSession:
    """The built-in model's session, which `load` gives and whose every run is short."""
    run_inference = quick_tiny_session.run_inference

    def run_shortly(*arguments: Any, max_new_tokens: int = 6, **settings: Any) -> PhaseRun:
        """With few tokens, at the smallest preset or, where another one is named, the next."""
        preset = "tiny"
        if settings.get("preset", "tiny") != "tiny":
            preset = "small"
        settings |= {"preset": preset, "repeats": 2, "warmup": 0, "ceilings": False}
        return run_inference(*arguments, max_new_tokens=min(max_new_tokens, 8), **settings)

    load_always(quick_tiny_session, monkeypatch)
    monkeypatch.setattr(quick_tiny_session, "run_inference", run_shortly)
    return quick_tiny_session


@pytest.mark.parametrize("page", [page for page in PAGES if snippets(page)], ids=name_of)
def test_snippets_run(
    page: Path, quick_session: OCRSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data").symlink_to(asset("data"))
    (tmp_path / "page.png").symlink_to(asset("data", "pages", "slide.png"))
    run = PhaseRun.load(RECORD)
    run.save(tmp_path / "run.json")
    monkeypatch.chdir(tmp_path)

    names = {"session": quick_session, "run": run}
    for place, snippet in enumerate(snippets(page)):
        if (page.name, place) not in SKIPPED:
            exec(compile(snippet, f"{page.name}, snippet {place}", "exec"), names)


def test_no_snippet_is_skipped_that_is_not_there() -> None:
    snippets_of_pages = {page.name: snippets(page) for page in PAGES}

    for name, place in SKIPPED:
        assert place < len(snippets_of_pages[name]), name


@pytest.fixture(scope="module")
def quickstart_folder(
    quick_tiny_session: OCRSession, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A folder with the quickstart as it ran, ``quickstart.ipynb``, and what it wrote."""
    folder = tmp_path_factory.mktemp("quickstart")
    parameters = {
        "preset": "tiny",
        "other_preset": "small",
        "max_new_tokens": 8,
        "output_dir": str(folder),
    }

    with pytest.MonkeyPatch.context() as patch:
        load_always(quick_tiny_session, patch)
        execute_notebook("quickstart", parameters, folder / "quickstart.ipynb")
    return folder


def code_cells(folder: Path) -> list[nbformat.NotebookNode]:
    """The quickstart's cells of code."""
    notebook = nbformat.read(folder / "quickstart.ipynb", as_version=4)
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def shows_html(outputs: Iterable[nbformat.NotebookNode]) -> bool:
    """Whether a cell shows a result in HTML."""
    return any("text/html" in output.get("data", {}) for output in outputs)


def test_the_quickstart_shows_its_results_and_writes_them(quickstart_folder: Path) -> None:
    cells = code_cells(quickstart_folder)

    assert sum(shows_html(cell.outputs) for cell in cells) == 12
    assert (quickstart_folder / "report.html").exists()
    run = PhaseRun.load(quickstart_folder / "quickstart.json")
    assert run.request.max_new_tokens == 8


def test_the_quickstarts_choice_of_presets_shows_the_views_of_one(
    quickstart_folder: Path, quick_session: OCRSession
) -> None:
    (presets,) = [cell.source for cell in code_cells(quickstart_folder) if cell.id == "presets"]
    page = asset("data", "pages", "slide.png")
    names = {"interact": ipywidgets.interact, "session": quick_session, "page": page}

    exec(presets, names)

    assert names["show_views"]("tiny").image_tokens == (73,)


def test_the_quickstart_has_every_call_of_the_readme(quickstart_folder: Path) -> None:
    readme = "".join(snippets(README))
    calls = re.findall(r"\b(?:session|run|OCRSession|PhaseRun)\.[\w.]+\(", readme)

    source = "".join(cell.source for cell in code_cells(quickstart_folder))

    assert calls
    assert [call for call in calls if call not in source] == []
