"""The docs hold: every link leads somewhere, every picture is small, pages have every name."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from ocr_phases.cli.results import Exit
from ocr_phases.families import FAMILIES, PROMPTS
from ocr_phases.inputs.views import image_token_count
from ocr_phases.record import SPAN_COLUMNS, TOKEN_COLUMNS, PhaseRun

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
PAGES += [ROOT / "benchmarks" / "README.md", ROOT / "tests" / "golden" / "README.md"]
PRESETS = FAMILIES["deepseek-ocr"].presets
LARGEST_PICTURE = 300_000  # bytes


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_every_link_within_the_repository_leads_somewhere(path: Path) -> None:
    targets = re.findall(r"\]\(([^)\s]+)[^)]*\)", path.read_text(encoding="utf-8"))
    inside = [target.partition("#") for target in targets if not re.match(r"[a-z]+:", target)]
    missing = [name for name, _, _ in inside if not (path.parent / name).exists()]
    for name, _, anchor in inside:
        if anchor and name not in missing and anchor not in anchors(path.parent / name if name else path):
            missing.append(f"{name}#{anchor}")
    assert missing == []


def anchors(path: Path) -> set[str]:
    """What links to a page's headings say behind the ``#``."""
    text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_record_s_page_has_every_name_of_a_record() -> None:
    text = (ROOT / "docs" / "record.md").read_text(encoding="utf-8")
    run = PhaseRun.load(ROOT / "tests" / "golden" / "run.json")
    names = {*run.keys(), *SPAN_COLUMNS, *TOKEN_COLUMNS, *run.to_dict(), "kernels"}
    assert names - set(re.findall(r"`(\w+)`", text)) == set()


def test_the_settings_page_has_every_preset_and_prompt_with_its_tokens() -> None:
    text = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    presets = {name: preset for facts in FAMILIES.values() for name, preset in facts.presets.items()}
    for name, preset in presets.items():
        row = re.search(rf"^- `{name}`: (\d+) x .*; (\d+) image tokens", text, re.MULTILINE)
        assert row and (int(row[1]), int(row[2])) == (preset.base_size, image_token_count(preset, (1, 1)))
    assert f"{image_token_count(PRESETS['gundam'], (2, 3))} tokens" in text
    assert set(PROMPTS) - set(re.findall(r"`(\w+)", text.partition("## Prompts")[2])) == set()


def test_the_models_page_has_each_family_s_presets_limit_and_file() -> None:
    text, families = (ROOT / "docs" / "models.md").read_text(encoding="utf-8"), FAMILIES.values()
    rows = dict(re.findall(r"^\| ([a-z][\w ]*) \| (.*) \|$", text, re.MULTILINE))
    cells = {
        name: [re.findall(r"`([\w.]+)`", cell) for cell in row.split(" | ")] for name, row in rows.items()
    }
    assert cells["presets"] == [list(facts.presets) for facts in families]
    assert [cell[0] for cell in cells["preset by default"]] == [facts.default_preset for facts in families]
    assert [cell[0] for cell in cells["output file"]] == [facts.result_name for facts in families]
    limits = [facts.config["language_config"]["max_position_embeddings"] for facts in families]
    assert rows["longest sequence"].split(" | ") == [f"{limit:,} tokens" for limit in limits]


def test_troubleshooting_has_every_exit_code_and_key_of_the_json_output() -> None:
    text = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    codes = {int(code) for code in re.findall(r"^- \*\*(\d+)\*\*: ", text, re.MULTILINE)}
    assert codes == {*Exit} - {Exit.SIGNAL} | {Exit.SIGNAL + 2}
    outputs = [json.loads(path.read_text()) for path in (ROOT / "tests" / "approved").glob("*/*.json")]
    keys = {key for output in outputs if "exit_reason" in output for key in output}
    assert {"verb", "headline", "cells"} <= keys
    assert keys - set(re.findall(r"`(\w+)`", text.partition("## JSON output")[2])) == set()


def test_pictures_are_small_and_shown() -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    pictures = sorted((ROOT / "docs").rglob("*.png"))
    assert pictures
    for picture in pictures:
        assert picture.stat().st_size < LARGEST_PICTURE
        assert picture.name in text
