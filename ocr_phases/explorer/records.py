"""Records that outlive the kernel: a folder of them, and those of the package.

A file's name says what it measured, so a folder is listed before its records are read.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ocr_phases.analyse.comparison import run_labels
from ocr_phases.analyse.figure_rows import Place, names_in
from ocr_phases.analyse.quality import quality_of
from ocr_phases.analyse.sentences import tokens_text
from ocr_phases.errors import OcrPhasesError
from ocr_phases.explorer.form import MeasurementJob
from ocr_phases.files import save_new
from ocr_phases.results.comparison import Comparison
from ocr_phases.results.run import PhaseRun
from ocr_phases.show.comparison_overview import comparison_bundle
from ocr_phases.show.html_table import table_html
from ocr_phases.show.section import Section
from ocr_phases.show.web import Html, element, printable
from ocr_phases.text import ms_text
from ocr_phases.versions import asset

RECORDS_FOLDER = "ocr_phases_records"
_MOST_LISTED = 200  # the newest
#: The first is shown where nothing was measured yet; the others there are benchmarks.
_SHIPPED = ("tiny-receipt.json.gz", "h200-dummy-*.json.gz", "families/h200-[!b]*")
_NUMBERS = itertools.count()
_SPARK_PARTS = 20  # of a record, whose medians the small curve shows
_FIRST_WORDS = ("page", "name")
_LAST_WORDS = ("model", "preset", "strategy", "when")
_COLUMNS = [*_FIRST_WORDS, *names_in(Place.EXPLORER), "steps", *_LAST_WORDS]
#: The words of `description` with which the name of a file begins, in their order.
_WORDS_OF_NAME = ("when", "page", "model", "preset", "strategy")


# -- records ---------------------------------------------------------------------------------------


def description(run: PhaseRun) -> dict[str, str]:
    """A record in a few words, each by what it tells; a record of one row has no ``rows``."""
    different_files = dict.fromkeys(page.file for page in run.pages)
    files = ", ".join(different_files) or run.page_file
    words = {
        "when": run.created[:19],
        "page": printable(files, 60),
        "model": printable(str(run.model.name), 40),
        "preset": str(run.preset),
        "strategy": str(run.model.strategy),
        "vision": f"vision {run.request.vision}",
    }
    if len(run.results) > 1:
        words["rows"] = f"{len(run.results)} rows"
    words["tokens"] = tokens_text(run)
    return words


def file_stem(run: PhaseRun) -> str:
    """`description` as a file name, in harmless characters."""
    return "_".join(_harmless(word) for word in description(run).values())


def _harmless(text: str) -> str:
    """A text in letters and signs that every file system takes, of at most 60 bytes."""
    # An underscore stands between two texts of a name, so there is none in them.
    harmless = re.sub(r"[^\w.+-]+|_", "-", text).strip("-.")
    return harmless.encode()[:60].decode(errors="ignore")  # without half a character at its end


class RecordRow:
    """A row of the table: a record in memory or in a file, or a measurement that is to become one.

    ``own`` says that it is a person's, who may rename and delete it; ``job`` is what measures it,
    if known. `cells` are what the table shows, from a file's name until it is read.
    """

    def __init__(
        self,
        run: PhaseRun | None = None,
        file: Path | None = None,
        *,
        own: bool = True,
        job: MeasurementJob | None = None,
    ) -> None:
        self.run = run
        self.file = file
        self.own = own
        self.job = job
        self.key = f"record-{next(_NUMBERS)}"
        self.cells: dict[str, Any] = dict.fromkeys((*_FIRST_WORDS, *_LAST_WORDS), "")
        self.cells["steps"] = "…"
        if run is not None:
            self.cells |= cells(run)
        elif file is not None:
            self.cells |= _cells_of_name(_stem(file))
        elif job is not None:
            self.cells |= job.cells()

    def load(self) -> PhaseRun:
        """The record, which then stays in memory; raises as `PhaseRun.load` does."""
        if self.run is None:
            self.run = self.look()
        return self.run

    def look(self) -> PhaseRun:
        """Read the record for its `cells`, without keeping it; raises as `load` does."""
        assert self.file is not None
        run = PhaseRun.load(self.file)
        self.cells |= cells(run)
        return run

    def rename(self, label: str) -> None:
        """Give it a label, which becomes the name of its file; `OcrPhasesError` where that is
        taken.
        """
        stem = _harmless(label)
        if self.file is not None and stem:
            suffixes = self.file.name.removeprefix(_stem(self.file))
            renamed = self.file.with_name(stem + suffixes)
            if renamed.exists():
                raise OcrPhasesError(f"There is a {renamed.name} already: choose another label.")
            self.file = self.file.rename(renamed)
        self.cells["name"] = label.strip()


def _stem(file: Path) -> str:
    """The name of a record's file without ``.json`` or ``.json.gz``."""
    return file.name.removesuffix(".gz").removesuffix(".json")


def _cells_of_name(stem: str) -> dict[str, str]:
    """What the name of a file says: that of `file_stem`, or one that a person gave."""
    parts = stem.split("_")
    if len(parts) == 1:
        return {"name": stem, "page": stem}
    return dict(zip(_WORDS_OF_NAME, parts, strict=False))  # more words follow, such as tokens


def cells(run: PhaseRun) -> dict[str, Any]:
    """The cells of a record's row: words, times in ms, joules, a share and a thinned curve of the
    steps.
    """
    words = description(run)
    different_strategies = dict.fromkeys((str(run.model.strategy), str(run.request.vision)))
    row: dict[str, Any] = {
        "when": words["when"].replace("T", " "),
        "page": words["page"],
        "model": words["model"],
        "preset": words["preset"],
        "strategy": " + ".join(different_strategies),
        "steps": _sparkline(_part_medians(run)),
    }
    figures = run.summary()
    if run.truths is not None:
        figures = figures | quality_of(run)
    for name in names_in(Place.EXPLORER):
        row[name] = figures.get(name)
    return row


def _part_medians(run: PhaseRun) -> list[float]:
    """The median ms of a token in each of so many parts of a record; in fewer of a short one."""
    times = run.token_table["device_ms"].dropna().to_numpy()
    medians = []
    for part in np.array_split(times, _SPARK_PARTS):
        if len(part) > 0:
            medians.append(float(np.median(part)))
    return medians


def kept_files(folder: Path) -> list[Path]:
    """A folder's newest records first: by the date in their names, else by the files' own."""
    paths = [*folder.glob("*.json"), *folder.glob("*.json.gz")]
    files = [path for path in paths if path.is_file()]
    newest_first = sorted(files, key=_when, reverse=True)
    return newest_first[:_MOST_LISTED]


def keep_record(run: PhaseRun, folder: Path) -> Path:
    """Save a record under a name of its own and return its file; raises `CannotWrite` as `save_new`
    does.
    """
    return save_new(run.save, folder / f"{file_stem(run)}.json")


def _when(path: Path) -> tuple[str, str]:
    """When a record was measured, and its name; the date of the file where its name has none."""
    dated = re.match(r"\d{4}-\d\d-\d\dT[\d-]+", path.name)
    if dated:
        return (dated[0], path.name)
    changed = datetime.fromtimestamp(path.stat().st_mtime, UTC)
    return (changed.strftime("%Y-%m-%dT%H-%M-%S"), path.name)


def shipped_files() -> list[Path]:
    """The records that come with the package; the first is shown where there is none yet."""
    runs = asset("data", "runs")
    files = []
    for pattern in _SHIPPED:
        files += sorted(runs.glob(pattern))
    return files


# -- several ---------------------------------------------------------------------------------------


def rows_html(rows: Sequence[RecordRow], shown: RecordRow | None) -> Html:
    """The table of records, with the one shown in bold.

    The first cell of a row has its key and says whether it can be read and is a person's own.
    Measurements that ended without a record stand last.
    """
    rows = sorted(rows, key=_ended_without_record)
    keys = []
    steps = []
    for row in rows:
        can_be_read = row.run is not None or row.file is not None
        keys.append(element("data", value=row.key, data_own=row.own, data_read=can_be_read))
        steps.append(row.cells["steps"])
    table = pd.DataFrame([row.cells for row in rows]).reindex(columns=_COLUMNS)
    # As objects, because pandas would make plain texts of what is HTML.
    table["steps"] = pd.Series(steps, dtype=object)
    table.insert(0, "", pd.Series(keys, dtype=object))
    is_shown = [row is shown for row in rows]
    return table_html(table, headings={"": ("compare", "")}, strong=is_shown)


def _ended_without_record(row: RecordRow) -> bool:
    return str(row.cells["steps"]).startswith(("stopped", "failed", "not run"))


_BARS = "▁▂▃▄▅▆▇█"


def _sparkline(times: Sequence[float]) -> Html:
    """The curve of a record in small, from its fastest to its slowest part, with both in words."""
    low = min(times, default=0.0)
    top = max(times, default=0.0)
    bars = "".join(_BARS[_level(ms, low, top)] for ms in times)
    words = f"Steps from {ms_text(low)} to {ms_text(top)}, medians of {len(times)} parts"
    return element("span", bars, class_="opx-spark", role="img", title=words, aria_label=words)


def _level(ms: float, low: float, top: float) -> int:
    """Which of `_BARS` a time is. Times that differ by less than a tenth are all low."""
    spread = max(top - low, 0.1 * top)
    if spread == 0.0:
        return 0
    highest = len(_BARS) - 1
    return int(highest * (ms - low) / spread)


def comparison_html(runs: Sequence[PhaseRun]) -> str:
    """What a cell shows of `compare`, and curves and stages on common axes."""
    compared = Comparison(runs, run_labels(runs))
    shown = comparison_bundle(compared)["text/html"]
    return Section(shown, compared.plot.decode(), compared.plot.stages()).html()
