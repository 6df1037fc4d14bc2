"""What every verb prints and writes of nine records, against approved files.

``pytest tests/test_approved.py --approve`` accepts what a change does to them; the commit shows it.
"""

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

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


@pytest.fixture(scope="module", autouse=True)
def records_read_once() -> Iterator[None]:
    """A record that several verbs show is read once. It never changes, and what was computed of it
    is kept with it.
    """
    load = PhaseRun.load
    load_once = cache(load)
    known = {str(path) for path in COMPARED.values()}

    def load_known_once(path: str | Path) -> PhaseRun:
        if str(path) in known:
            return load_once(str(path))
        return load(path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PhaseRun, "load", load_known_once)
        yield


@dataclass
class VerbOutput:
    """What a verb gives: its JSON, what else it printed, and the text of the page that it wrote."""

    said: dict[str, Any]
    text: str
    document: str | None

    def with_marks(self, verb: str, record: ApprovedRecord) -> "VerbOutput":
        """The same with marks for what is approved once for a record."""
        text = record.without_verdict(self.text)
        if verb == "verify":
            text = record.in_print(text)
        document = self.document
        if document is not None:
            document = record.in_page(record.without_verdict(document))
        return VerbOutput(record.in_json(self.said), text, document)


ShowApproved = Callable[..., None]


@pytest.fixture
def show_approved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> ShowApproved:
    """Run a verb in an empty folder and compare its JSON, what else it printed, and its page."""
    monkeypatch.chdir(tmp_path)

    def show(
        name: str,
        *command: str,
        page: str | None = None,
        record: ApprovedRecord | None = None,
    ) -> None:
        code = main([*command, "--json"])

        printed = capsys.readouterr()
        document = None
        if page is not None:
            document = seen((tmp_path / page).read_text(encoding="utf-8"))
        text = f"{printed.err}exit code {code}\n"
        output = VerbOutput(json.loads(printed.out), text, document)
        if record is not None:
            output = output.with_marks(command[0], record)

        compare(f"{name}.json", as_json(output.said), tmp_path)
        compare(f"{name}.txt", output.text, tmp_path)
        if output.document is not None:
            compare(f"{name}.html.txt", output.document, tmp_path)

    return show


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_is_shown_as_approved(
    name: str, show_approved: ShowApproved, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(RECORDS[name])
    run = PhaseRun.load(path)
    session = SimpleNamespace(run_inference=lambda *_, **__: run, device="cpu")
    monkeypatch.setattr("ocr_phases.session.kept.kept_session", lambda **_: session)
    price = []
    record = ApprovedRecord(priced(run, None))
    if name == "energy":
        price = ["--price-per-hour", str(PRICE)]
        record = ApprovedRecord(priced(run, PRICE))

    compare("figures.txt", record.figure_names(), tmp_path)
    compare(f"{name}/record.json", record.result_text(), tmp_path)
    compare(f"{name}/checks.txt", record.checks_text(), tmp_path)

    profile = ["profile", str(PAGES / "slide.png"), "--device", "cpu", *price]
    show_approved(f"{name}/profile", *profile, record=record)
    report = ["report", "--record", path, "--out", "out", *price]
    show_approved(f"{name}/report", *report, page="out/report.html", record=record)
    verify = ["verify", "--record", path, "--out", "checks", *price]
    show_approved(f"{name}/verify", *verify, page="checks/verify.html", record=record)
    show_approved(f"{name}/artifacts", "artifacts", path, "--out", "artifacts")


def test_reason_and_remedy_of_each_check_are_as_approved(tmp_path: Path) -> None:
    texts: dict[str, list[str]] = {}
    for path in RECORDS.values():
        for check in run_checks(PhaseRun.load(path)):
            text = f"  {check.why}\n  {check.fix}\n"
            known = texts.setdefault(check.name, [])
            if text not in known:
                known.append(text)
    lines = [f"{name}\n{''.join(known)}" for name, known in sorted(texts.items())]
    compare("checks.txt", "".join(lines), tmp_path)


@pytest.mark.parametrize(("name", "records"), PAIRS.items(), ids=PAIRS)
def test_a_comparison_is_shown_as_approved(
    name: str, records: tuple[str, ...], show_approved: ShowApproved
) -> None:
    paths = [str(COMPARED[record]) for record in records]
    command = ["compare", *paths, "--out", "out"]
    show_approved(f"compare/{name}", *command, page="out/compare.html")


@pytest.mark.parametrize(
    ("name", "cells", "options"),
    [
        ("records", ("eager", "compiled", "captured", "cpu", "noisy"), ()),
        ("energy", ("eager", "energy"), ("--price-per-hour", str(PRICE))),
    ],
    ids=["records", "energy"],
)
def test_a_sweep_is_shown_as_approved(
    name: str,
    cells: tuple[str, ...],
    options: tuple[str, ...],
    show_approved: ShowApproved,
    tmp_path: Path,
) -> None:
    runs = tmp_path / "cells" / "runs"
    runs.mkdir(parents=True)
    for cell in cells:
        suffixes = "".join(RECORDS[cell].suffixes)
        shutil.copy(RECORDS[cell], runs / f"{cell}{suffixes}")

    command = ["sweep", "--records", "cells", "--out", "out", *options]
    show_approved(f"sweep/{name}", *command, page="out/sweep.html")


def render_nothing(request: Any) -> Any:
    """A worker's answer to a request, without a wait and without a report."""
    return batch_stub.handler(request, lambda: None)


@pytest.mark.parametrize(
    ("name", "pages", "options"),
    [
        ("index", ("cpu", "noisy", "eager", "failed"), ()),
        ("energy", ("eager", "energy"), ("--price-per-hour", str(PRICE))),
    ],
    ids=["index", "energy"],
)
def test_a_batch_index_is_shown_as_approved(
    name: str,
    pages: tuple[str, ...],
    options: tuple[str, ...],
    show_approved: ShowApproved,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In this process, and without its reports, which are shown above: a worker would import it all
    again.
    """
    workers = Here(render_nothing)
    monkeypatch.setattr("ocr_phases.batch.local_workers.LocalWorkers", lambda _: workers)
    jobs = {page: a_job(f"{page}.png") for page in pages}
    for page, job in jobs.items():
        if page == "failed":
            put_page(tmp_path / "batch", job, None, failure="page", reason="No image.")
        else:
            put_page(tmp_path / "batch", job, PhaseRun.load(RECORDS[page]).to_json())
    list_pages(jobs.values(), tmp_path / "batch")

    command = ["batch", "--out", "batch", "--render", "only", *options]
    show_approved(f"batch/{name}", *command, page="batch/index.html")
