"""What every verb prints and writes of eight records, against approved files.

``pytest tests/test_approved.py --approve`` accepts what a change does to them; the commit shows it.
"""

import difflib
import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import refusals
from batch_example import Here, a_job, put_page
from conftest import GOLDEN, PAGES, RUNS
from elements import seen

from ocr_phases import PhaseRun
from ocr_phases.batch.store import list_pages
from ocr_phases.batch.worker import HANDLERS
from ocr_phases.cli import main

APPROVED = Path(__file__).with_name("approved")
FAMILIES = RUNS / "families"
RECORDS = {
    "eager": RUNS / "h200-dummy-gundam.json.gz",
    "compiled": RUNS / "h200-dummy-base-compiled.json.gz",
    "captured": APPROVED / "records" / "captured.json.gz",
    "deepseek-ocr-2": FAMILIES / "h200-deepseek-ocr-2-base1024.json.gz",
    "unlimited-ocr": FAMILIES / "h200-unlimited-ocr-8-pages.json.gz",
    "cpu": GOLDEN / "run.json",
    "rows": APPROVED / "records" / "rows.json.gz",
    "noisy": APPROVED / "records" / "noisy.json.gz",
}
PAIRS = {
    "strategies": ("eager", "compiled", "captured"),
    "families": ("eager", "deepseek-ocr-2"),
    "noise": ("cpu", "noisy"),
}


@pytest.fixture
def show(tmp_path, capsys, monkeypatch):
    """Run a verb in an empty folder and compare its JSON, what else it printed, and its page."""
    monkeypatch.chdir(tmp_path)

    def shown(name, *command, page=None):
        code = main([*command, "--json"])
        printed = capsys.readouterr()
        texts = {
            "json": json.dumps(json.loads(printed.out), indent=1, ensure_ascii=False) + "\n",
            "txt": f"{printed.err}exit code {code}\n",
        }
        if page is not None:
            texts["html.txt"] = seen((tmp_path / page).read_text(encoding="utf-8"))
        for kind, text in texts.items():
            compare(f"{name}.{kind}", text, tmp_path)

    return shown


def compare(name, text, folder):
    """Compare ``text``, without words of this machine and run, with the approved file; or write that."""
    for place, word in {folder: "FOLDER", RUNS: "RUNS", APPROVED: "APPROVED", GOLDEN: "GOLDEN"}.items():
        text = text.replace(str(place), word)
    text = re.sub(r"[ \t]+$", "", text, flags=re.MULTILINE)
    text = re.sub(r"finished [\d-]+ [\d:]+ UTC", "finished WHEN", text)
    text = re.sub(r"[\d.]+ pages/min", "N pages/min", text)
    text = re.sub(r"^Rendering: .*\n", "", text, flags=re.MULTILINE)  # of a slow machine
    path = APPROVED / name
    if refusals.approve:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    known = path.read_text(encoding="utf-8") if path.exists() else ""
    changes = difflib.unified_diff(known.splitlines(), text.splitlines(), name, "now", lineterm="", n=1)
    assert text == known, "accept with pytest --approve:\n" + "\n".join(list(changes)[:80])


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_is_shown_as_approved(name, show, monkeypatch):
    record = RECORDS[name]
    run = PhaseRun.load(record)
    session = SimpleNamespace(run_inference=lambda *_, **__: run)
    monkeypatch.setattr("ocr_phases.session.kept_session", lambda **_: session)
    show(f"{name}/profile", "profile", str(PAGES / "slide.png"), "--device", "cpu")
    show(f"{name}/report", "report", "--record", str(record), "--out", "out", page="out/report.html")
    show(f"{name}/verify", "verify", "--record", str(record), "--out", "checks", page="checks/verify.html")
    show(f"{name}/artifacts", "artifacts", str(record), "--out", "artifacts")


@pytest.mark.parametrize("name", PAIRS)
def test_a_comparison_is_shown_as_approved(name, show):
    records = [str(RECORDS[each]) for each in PAIRS[name]]
    show(f"compare/{name}", "compare", *records, "--out", "out", page="out/compare.html")


def test_a_sweep_is_shown_as_approved(show, tmp_path):
    runs = tmp_path / "cells" / "runs"
    runs.mkdir(parents=True)
    for name in ("eager", "compiled", "captured", "cpu", "noisy"):
        shutil.copy(RECORDS[name], runs / f"{name}{''.join(RECORDS[name].suffixes)}")
    show("sweep/records", "sweep", "--records", "cells", "--out", "out", page="out/sweep.html")


def test_a_batch_index_is_shown_as_approved(show, tmp_path, monkeypatch):
    """In this process, and without its reports, which are shown above: a worker would import it all again."""

    def reported(run, folder, parameters):
        (folder / "report.html").touch()

    monkeypatch.setattr("ocr_phases.report.render.page_report", reported)
    pool = Here(lambda request: HANDLERS[request["mode"]](request, list))
    monkeypatch.setattr("ocr_phases.batch.child.LocalPool", lambda _: pool)
    listed = {name: a_job(f"{name}.png") for name in ("cpu", "noisy", "eager", "failed")}
    for name, job in listed.items():
        told = {"failure": "page", "reason": "No image."} if name == "failed" else {}
        record = None if told else PhaseRun.load(RECORDS[name]).to_json()
        put_page(tmp_path / "batch", job, record, **told)
    list_pages(listed.values(), tmp_path / "batch")
    show("batch/index", "batch", "--out", "batch", "--render", "only", page="batch/index.html")
