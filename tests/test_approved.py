"""What every verb prints and writes of nine records, against approved files.

``pytest tests/test_approved.py --approve`` accepts what a change does to them; the commit shows it.
"""

import json
import shutil
from types import SimpleNamespace

import batch_stub
import pytest
from approvals import APPROVED, ApprovedRecord, as_json, compare
from batch_example import Here, a_job, put_page
from conftest import GOLDEN, PAGES, RUNS
from elements import seen

from ocr_phases import PhaseRun
from ocr_phases.analyse.checks import run_checks
from ocr_phases.analyse.cost import priced
from ocr_phases.batch.archive import list_pages
from ocr_phases.cli import main

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
    "energy": RUNS / "h200-invoice-cuda_graph.json.gz",
}
#: The price of an hour, asked for with the record that has energy: the others have neither.
PRICE = 2.5
PAIRS = {
    "strategies": ("eager", "compiled", "captured"),
    "families": ("eager", "deepseek-ocr-2"),
    "noise": ("cpu", "noisy"),
    "energy": ("invoice-eager", "energy"),
}
COMPARED = RECORDS | {"invoice-eager": RUNS / "h200-invoice-eager.json.gz"}


@pytest.fixture
def show(tmp_path, capsys, monkeypatch):
    """Run a verb in an empty folder and compare its JSON, what else it printed, and its page."""
    monkeypatch.chdir(tmp_path)

    def shown(name, *command, page=None, record=None):
        code = main([*command, "--json"])
        printed = capsys.readouterr()
        said = json.loads(printed.out)
        text = f"{printed.err}exit code {code}\n"
        document = None if page is None else seen((tmp_path / page).read_text(encoding="utf-8"))
        if record is not None:
            said = record.in_json(said)
            text = record.without_verdict(text)
            if command[0] == "verify":
                text = record.in_print(text)
            if document is not None:
                document = record.in_page(record.without_verdict(document))
        compare(f"{name}.json", as_json(said), tmp_path)
        compare(f"{name}.txt", text, tmp_path)
        if document is not None:
            compare(f"{name}.html.txt", document, tmp_path)

    return shown


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_is_shown_as_approved(name, show, tmp_path, monkeypatch):
    path = str(RECORDS[name])
    run = PhaseRun.load(path)
    session = SimpleNamespace(run_inference=lambda *_, **__: run)
    monkeypatch.setattr("ocr_phases.session.kept.kept_session", lambda **_: session)
    price = ["--price-per-hour", str(PRICE)] if name == "energy" else []
    record = ApprovedRecord(priced(run, PRICE if price else None))
    compare("figures.txt", record.figure_names(), tmp_path)
    compare(f"{name}/record.json", record.result_text(), tmp_path)
    compare(f"{name}/checks.txt", record.checks_text(), tmp_path)
    page = str(PAGES / "slide.png")
    show(f"{name}/profile", "profile", page, "--device", "cpu", *price, record=record)
    report = ["report", "--record", path, "--out", "out", *price]
    show(f"{name}/report", *report, page="out/report.html", record=record)
    verify = ["verify", "--record", path, "--out", "checks", *price]
    show(f"{name}/verify", *verify, page="checks/verify.html", record=record)
    show(f"{name}/artifacts", "artifacts", path, "--out", "artifacts")


def test_reason_and_remedy_of_each_check_are_as_approved(tmp_path):
    texts: dict[str, list[str]] = {}
    for path in RECORDS.values():
        for check in run_checks(PhaseRun.load(path)):
            text = f"  {check.why}\n  {check.fix}\n"
            known = texts.setdefault(check.name, [])
            if text not in known:
                known.append(text)
    lines = [f"{name}\n{''.join(known)}" for name, known in sorted(texts.items())]
    compare("checks.txt", "".join(lines), tmp_path)


@pytest.mark.parametrize("name", PAIRS)
def test_a_comparison_is_shown_as_approved(name, show):
    records = [str(COMPARED[each]) for each in PAIRS[name]]
    show(f"compare/{name}", "compare", *records, "--out", "out", page="out/compare.html")


@pytest.mark.parametrize(
    ("name", "cells", "options"),
    [
        ("records", ("eager", "compiled", "captured", "cpu", "noisy"), ()),
        ("energy", ("eager", "energy"), ("--price-per-hour", str(PRICE))),
    ],
)
def test_a_sweep_is_shown_as_approved(name, cells, options, show, tmp_path):
    runs = tmp_path / "cells" / "runs"
    runs.mkdir(parents=True)
    for cell in cells:
        shutil.copy(RECORDS[cell], runs / f"{cell}{''.join(RECORDS[cell].suffixes)}")
    sweep = ["sweep", "--records", "cells", "--out", "out", *options]
    show(f"sweep/{name}", *sweep, page="out/sweep.html")


@pytest.mark.parametrize(
    ("name", "pages", "options"),
    [
        ("index", ("cpu", "noisy", "eager", "failed"), ()),
        ("energy", ("eager", "energy"), ("--price-per-hour", str(PRICE))),
    ],
)
def test_a_batch_index_is_shown_as_approved(name, pages, options, show, tmp_path, monkeypatch):
    """In this process, and without its reports, which are shown above: a worker would import it all
    again.
    """
    pool = Here(lambda request: batch_stub.handler(request, lambda: None))
    monkeypatch.setattr("ocr_phases.batch.local_workers.LocalWorkers", lambda _: pool)
    listed = {page: a_job(f"{page}.png") for page in pages}
    for page, job in listed.items():
        told = {"failure": "page", "reason": "No image."} if page == "failed" else {}
        record = None if told else PhaseRun.load(RECORDS[page]).to_json()
        put_page(tmp_path / "batch", job, record, **told)
    list_pages(listed.values(), tmp_path / "batch")
    batch = ["batch", "--out", "batch", "--render", "only", *options]
    show(f"batch/{name}", *batch, page="batch/index.html")
