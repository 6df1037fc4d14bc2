"""A sweep: its cells, what is measured again and what is not, its tables, pictures, notebook and
verb.
"""

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import GOLDEN, PAGES
from elements import Elements
from example_run import altered, failed_cells, make_run, paced
from PIL import Image
from refusals import refused
from wording import says

from ocr_phases import OCRSession, PhaseRun
from ocr_phases.analyse.sweep_table import SWEEP_COLUMNS, sweep_table
from ocr_phases.analyse.sweep_words import models_sentence
from ocr_phases.cli import main
from ocr_phases.families import DEEPSEEK_OCR, FAMILIES
from ocr_phases.files import MANIFEST_NAME
from ocr_phases.measure.cells import Cell, CellOutcome
from ocr_phases.measure.measurement import Measurement
from ocr_phases.results.sweep import SweepResult
from ocr_phases.session import sweep
from ocr_phases.session.sweeps import Sweep
from ocr_phases.show.shown_figure import figure_png
from ocr_phases.show.sweep_overview import cells_html, failures_html
from ocr_phases.show.sweep_plots import (
    plot_cells_decode,
    plot_floors,
    plot_prefill,
    plot_throughput,
    plot_vision_share,
)

pytestmark = pytest.mark.usefixtures("pixels_seen_once")
PAGE = GOLDEN / "pages" / "small_400x300.png"
#: The axes of one quick cell and what else is asked for, of which a test changes some.
ONE_CELL: dict[str, Any] = {"presets": ["tiny"], "lengths": [2], "repeats": 1, "warmup": 0}
#: The names of that cell and of the same one with two pages at once.
ONE = "tiny-eager-b1-n2"
TWO = "tiny-eager-b2-n2"


def outcomes(
    session: OCRSession, folder: Path, page: Path | str = PAGE, **options: Any
) -> list[CellOutcome]:
    """What `OCRSession.sweep` tells of each cell, in their order."""
    reported: list[CellOutcome] = []
    session.sweep(page, folder=folder, progress=reported.append, **{**ONE_CELL, **options})
    return reported


def states(
    session: OCRSession, folder: Path, page: Path | str = PAGE, **options: Any
) -> dict[str, str]:
    """Whether each cell was measured, kept or failed, by its name."""
    return {
        outcome.cell.name: outcome.state for outcome in outcomes(session, folder, page, **options)
    }


def record_of(folder: Path, cell: str) -> Path:
    """The file of a cell's record."""
    return folder / "runs" / f"{cell}.json"


def earlier_runs(folder: Path, cell: str) -> list[PhaseRun]:
    """The records of a cell that newer ones have replaced."""
    files = (folder / "runs" / "earlier").glob(f"*{cell}*.json")
    return [PhaseRun.load(path) for path in files]


@pytest.fixture(scope="module")
def finished(golden_session: OCRSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one finished cell, which no test changes."""
    folder = tmp_path_factory.mktemp("finished")
    assert states(golden_session, folder) == {ONE: "measured"}
    return folder


@pytest.fixture
def folder(finished: Path, tmp_path: Path) -> Path:
    """A folder with one finished cell."""
    return Path(shutil.copytree(finished, tmp_path / "sweep"))


@pytest.fixture
def no_ceilings(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ceilings of a device are not measured anew for each session."""

    def known_ceilings(*_: object) -> dict[str, str]:
        return {"matmul_dtype": "float32"}

    monkeypatch.setattr("ocr_phases.measure.loaded_model.measure_ceilings", known_ceilings)


@pytest.mark.parametrize(
    ("axis", "values"),
    [
        pytest.param("presets", "tiny", id="presets that are no list"),
        pytest.param("batches", 2, id="batches that are no list"),
        pytest.param("visions", [], id="an empty list"),
        pytest.param("batches", [0], id="no page at once"),
        pytest.param("lengths", [10**15], id="too many tokens"),
        pytest.param("attentions", ["fast"], id="an unknown attention"),
        pytest.param("dtypes", ["int8"], id="an unknown dtype"),
    ],
)
def test_what_no_sweep_could_measure_is_refused(axis: str, values: object) -> None:
    with refused():
        _ = Sweep(page=PAGE, **{axis: values}).cells


def test_only_the_cell_that_is_missing_is_measured(
    golden_session: OCRSession, folder: Path
) -> None:
    reported = []

    def on_run(cell: Cell, done: int, total: int) -> None:
        reported.append((cell.name, done, total))

    found = states(golden_session, folder, batches=[1, 2, 1], on_run=on_run)

    assert found == {ONE: "kept", TWO: "measured"}
    assert reported == [(TWO, 0, 1), (TWO, 1, 1)]
    one, two = SweepResult.load(folder).runs.values()
    assert len(one.results) == 1
    assert len(two.results) == 2
    for run in (one, two):
        assert run.token_count == 2
        assert run.request.ignore_eos
    # The page itself is kept once.
    assert one.page_image() is not None
    assert two.page_image() is None


def test_a_cell_is_measured_again_for_another_request_and_earlier_records_stay(
    golden_session: OCRSession, folder: Path
) -> None:
    with refused():  # the new cell would stand beside one of another request
        outcomes(golden_session, folder, batches=[2], repeats=2)

    assert states(golden_session, folder, repeats=2) == {ONE: "measured"}
    assert states(golden_session, folder) == {ONE: "measured"}

    assert sorted(len(run.repeats) for run in earlier_runs(folder, ONE)) == [1, 2]


def test_a_cell_of_another_version_is_measured_again(
    golden_session: OCRSession, folder: Path
) -> None:
    run = PhaseRun.load(record_of(folder, ONE))
    of_another_version = dataclasses.replace(run, versions={**run.versions, "torch": "1.0"})
    of_another_version.save(record_of(folder, ONE))

    assert states(golden_session, folder) == {ONE: "measured"}

    (earlier,) = earlier_runs(folder, ONE)
    assert earlier.versions["torch"] == "1.0"
    assert states(golden_session, folder) == {ONE: "kept"}


def test_a_cell_whose_file_is_no_record_is_measured_again(
    golden_session: OCRSession, folder: Path
) -> None:
    record_of(folder, ONE).write_text("{")
    assert states(golden_session, folder) == {ONE: "measured"}
    assert states(golden_session, folder) == {ONE: "kept"}


def test_only_the_length_that_is_missing_is_measured(
    golden_session: OCRSession, folder: Path
) -> None:
    found = states(golden_session, folder, lengths=[2, 3])
    assert found == {ONE: "kept", "tiny-eager-b1-n3": "measured"}


def test_a_folder_is_one_sweep(
    tiny_session: OCRSession, golden_session: OCRSession, folder: Path
) -> None:
    def files() -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in (folder / "runs").iterdir()}

    before = files()

    with refused():
        outcomes(golden_session, folder, PAGES / "form.png")
    with refused():
        outcomes(tiny_session, folder)

    # A foreign file is refused before anything is measured.
    for name in ("other.json", "other.status.json"):
        foreign = folder / "runs" / name
        foreign.write_text("{}")
        with refused():
            outcomes(golden_session, folder, batches=[1, 2])
        foreign.unlink()

    # Records of several models are not put beside those of one, nor is one model there twice.
    address = "http://127.0.0.1:9/v1"
    wrong_models: list[Any] = [["tiny", "dummy"], "tiny", [], ["dummy", "dummy"], ["tiny", address]]
    for models in wrong_models:
        with refused():
            sweep(PAGE, models, folder=folder)

    assert files() == before


def test_all_cells_choose_tokens_as_infer_says_and_a_folder_has_one_infer(
    golden_session: OCRSession, tmp_path: Path
) -> None:
    rule = {"no_repeat_ngram_size": 3, "whitelist_token_ids": [5]}

    result = golden_session.sweep(PAGE, folder=tmp_path, infer=rule, **ONE_CELL)

    (run,) = result.runs.values()
    assert run.request.infer.no_repeat_ngram_size == 3
    assert run.request.infer.whitelist_token_ids == [5]
    assert states(golden_session, tmp_path, infer=rule) == {ONE: "kept"}
    with refused():
        outcomes(golden_session, tmp_path, lengths=[3])


def test_all_cells_compute_with_the_threads_asked_for_and_a_folder_has_one_number(
    golden_session: OCRSession, tmp_path: Path
) -> None:
    result = golden_session.sweep(PAGE, folder=tmp_path, threads=1, **ONE_CELL)

    (run,) = result.runs.values()
    assert run.device.threads == 1
    assert states(golden_session, tmp_path, threads=1) == {ONE: "kept"}
    with refused():
        outcomes(golden_session, tmp_path, threads=2, lengths=[3])


def test_the_pages_of_one_file_are_different_pages(
    golden_session: OCRSession, tmp_path: Path
) -> None:
    file = tmp_path / "three.tif"
    with Image.open(PAGE) as page:
        page.save(file, save_all=True, append_images=[page.rotate(90), page.rotate(180)])

    assert states(golden_session, tmp_path / "out", str(file)) == {ONE: "measured"}
    assert states(golden_session, tmp_path / "out", f"{file}#1") == {ONE: "kept"}
    with refused():
        outcomes(golden_session, tmp_path / "out", f"{file}#3")


def test_attention_and_dtype_are_axes(
    golden_session: OCRSession, folder: Path, no_ceilings: None
) -> None:
    # The model's own attention and dtype are the same cells as those that nobody named.
    attentions = ["sdpa", "eager", None]
    dtypes = ["float32", torch.bfloat16, None]

    found = states(golden_session, folder, attentions=attentions, dtypes=dtypes)

    assert found == {
        ONE: "kept",
        f"{ONE}-dtype-bfloat16": "measured",
        f"{ONE}-attention-eager": "measured",
        f"{ONE}-attention-eager-dtype-bfloat16": "measured",
    }
    runs = SweepResult.load(folder).runs
    assert {cell: (run.model.attention, run.model.dtype) for cell, run in runs.items()} == {
        ONE: ("sdpa", "float32"),
        f"{ONE}-dtype-bfloat16": ("sdpa", "bfloat16"),
        f"{ONE}-attention-eager": ("eager", "float32"),
        f"{ONE}-attention-eager-dtype-bfloat16": ("eager", "bfloat16"),
    }


def test_a_session_of_another_dtype_is_another_sweep(
    golden_session: OCRSession, folder: Path, no_ceilings: None
) -> None:
    with refused():
        outcomes(golden_session.with_model(dtype="bfloat16"), folder)


def test_an_attention_that_a_class_cannot_have_is_a_failed_cell_beside_the_others(
    golden_session: OCRSession, folder: Path, no_ceilings: None
) -> None:
    found = states(golden_session, folder, attentions=["flash_attention_2", "sdpa"])
    assert found == {f"{ONE}-attention-flash_attention_2": "failed", ONE: "kept"}


#: Two batches and two lengths, of which one is longer than any model of ours takes.
LONG_AND_SHORT: dict[str, Any] = {"batches": [1, 2], "lengths": [99_999, 2]}


@pytest.fixture
def partly_failed(
    golden_session: OCRSession, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> list[CellOutcome]:
    """The outcomes of a sweep of which one cell was finished before, and all others failed."""
    run_whole = Measurement.run

    def run_one_row(measurement: Measurement, *args: Any, **options: Any) -> PhaseRun:
        if measurement.packed.batch_size > 1:
            raise torch.OutOfMemoryError("no room\nfor this")
        return run_whole(measurement, *args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Measurement, "run", run_one_row)
        return outcomes(golden_session, folder, **LONG_AND_SHORT)


def test_a_cell_that_fails_keeps_its_reason_and_stops_nothing(
    partly_failed: list[CellOutcome], folder: Path
) -> None:
    assert [outcome.state for outcome in partly_failed] == ["failed", "kept", "failed", "failed"]
    assert "positions" in partly_failed[0].reason
    assert partly_failed[3].reason == "OutOfMemoryError: no room"

    found = SweepResult.load(folder)
    reasons = {
        outcome.cell.name: outcome.reason for outcome in partly_failed if outcome.state == "failed"
    }
    assert list(found.runs) == [ONE]
    assert found.failures.set_index("cell")["reason"].to_dict() == reasons
    assert found.failures["max_new_tokens"].tolist() == [99_999, 2, 99_999]


def test_a_cell_that_failed_is_tried_again_only_when_asked_to(
    partly_failed: list[CellOutcome], golden_session: OCRSession, folder: Path
) -> None:
    asked_once_more = states(golden_session, folder, **LONG_AND_SHORT)
    assert list(asked_once_more.values()) == ["failed", "kept", "failed", "failed"]
    retried = states(golden_session, folder, **LONG_AND_SHORT, retry_failed=True)
    assert list(retried.values()) == ["failed", "kept", "failed", "measured"]
    assert set(SweepResult.load(folder).failures["max_new_tokens"]) == {99_999}


def test_a_cell_whose_status_is_damaged_is_tried_again(
    partly_failed: list[CellOutcome], golden_session: OCRSession, folder: Path
) -> None:
    status = folder / "runs" / "tiny-eager-b1-n99999.status.json"
    empty = ""
    nested_too_deeply = "[" * 100_000
    without_entries = "{}"
    for damage in (empty, nested_too_deeply, without_entries):
        status.write_text(damage)
        again = outcomes(golden_session, folder, **LONG_AND_SHORT)
        assert again[0].reason == partly_failed[0].reason


def test_a_device_that_is_lost_ends_the_sweep_and_fails_no_other_cell(
    golden_session: OCRSession, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose_device(*args: Any, **options: Any) -> None:
        monkeypatch.setattr(torch, "zeros", lose_device)
        raise RuntimeError("CUDA error: device-side assert triggered")

    monkeypatch.setattr(Measurement, "run", lose_device)
    with refused():
        outcomes(golden_session, folder, batches=[1, 2, 3])
    monkeypatch.undo()

    again = states(golden_session, folder, batches=[1, 2, 3])
    assert list(again.values()) == ["kept", "failed", "measured"]


@pytest.fixture
def model_folders(golden_checkpoint: Callable[[Path], Path], tmp_path: Path) -> dict[str, Path]:
    """The recorded model of each family in a folder of its name, which a table shows."""
    folders = {}
    for family in FAMILIES:
        recording = GOLDEN if family == DEEPSEEK_OCR else GOLDEN / family
        folders[family] = tmp_path / family
        folders[family].symlink_to(golden_checkpoint(recording))
    return folders


def test_the_verb_sets_models_side_by_side(
    model_folders: dict[str, Path],
    no_ceilings: None,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "out"
    command = ["sweep", str(PAGE)]
    command += ["--models", ",".join(str(folder) for folder in model_folders.values())]
    command += ["--presets", "small,large", "--batch", "1", "--max-new-tokens", "3"]
    command += ["--device", "cpu", "--repeats", "1", "--warmup", "0", "--out", str(out)]

    assert main(command) == 0

    printed = capsys.readouterr().out
    assert says(printed, "measured", "small768-eager-b1-n3")
    assert says(printed, "failed", "large-eager-b1-n3")

    # A preset of another family stands for its own; what none stands for is a failed cell with its
    # reason.
    found = SweepResult.load(out)
    assert sorted(found.runs) == [
        "deepseek-ocr-2/small768-eager-b1-n3",
        "deepseek-ocr/large-eager-b1-n3",
        "deepseek-ocr/small-eager-b1-n3",
        "unlimited-ocr/small-eager-b1-n3",
    ]
    assert sorted(found.failures["cell"]) == [
        "deepseek-ocr-2/large-eager-b1-n3",
        "unlimited-ocr/large-eager-b1-n3",
    ]

    # The job that all of them have is compared, not the longest prompt of each.
    compared = models_sentence(found.table)
    assert compared in found.verdict
    for name in (*model_folders, "small768"):
        assert name in compared
    assert "large" not in compared

    page = Elements((out / "sweep.html").read_text(encoding="utf-8"))
    assert not page.open
    for part in (*model_folders, "2 cells", "not be measured", "Unknown preset"):
        assert part in page.said
    assert {path.name for path in out.iterdir()} == {
        MANIFEST_NAME,
        "sweep.ipynb",
        "sweep.html",
        *model_folders,
    }


def test_every_row_is_a_page_of_the_minute() -> None:
    """The table of one row each is approved."""
    table = sweep_table({"rows": make_run(rows=4), "one": make_run(crops=False)})
    assert tuple(table.columns) == SWEEP_COLUMNS
    assert table["cell"].tolist() == ["one", "rows"]  # by the prompt's length
    assert table["batch"].tolist() == [1, 4]
    pages_of_a_minute = table["pages_per_min"] * table["page_ms"] / 60_000
    assert pages_of_a_minute.to_numpy() == pytest.approx([1, 4])


def sweep_of_strategies(**factors: tuple[float, ...]) -> SweepResult:
    """A sweep with a record of each strategy, whose repeats take these times as long as usual."""
    runs = {}
    for strategy, of_repeats in factors.items():
        run = paced(make_run(repeats=len(of_repeats)), *of_repeats)
        runs[strategy] = altered(run, model={"strategy": strategy})
    return SweepResult(runs, failed_cells())


def test_noisy_cells_come_first_and_are_never_the_best() -> None:
    found = sweep_of_strategies(
        eager=(1.0, 1.0, 1.0), cuda_graph=(0.5, 0.5, 0.5), compiled=(0.1, 0.2, 0.1)
    )

    first, _, rest = found.verdict.partition(". ")

    assert says(first, "repeat spread", "compiled")
    assert found.recommended()[0] == "cuda_graph"
    assert says(rest, "Take cuda_graph decode", "pages per minute")
    best = rest[rest.index("The shortest decode step") :]
    assert best.count("cuda_graph") == 2
    assert "compiled" not in best


def test_what_the_repeats_do_not_tell_apart_has_no_fastest() -> None:
    found = sweep_of_strategies(eager=(1.0, 1.0, 1.0), cuda_graph=(1.01, 0.99, 1.0))
    assert "fastest" not in found.verdict
    assert found.verdict.count("though the repeats do not tell") == 3


def test_a_single_repeat_tells_nothing_apart() -> None:
    found = sweep_of_strategies(eager=(1.0,), cuda_graph=(0.5,))
    assert found.recommended() is None
    assert says(found.verdict, "single repeat", "nothing is called fastest")


@pytest.mark.parametrize(
    "runs",
    [
        pytest.param({}, id="failures alone"),
        pytest.param({"odd": make_run(max_tokens=1, repeats=1)}, id="one token"),
        pytest.param({"odd": make_run(generate=True)}, id="generate"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_every_sweep_is_drawn(runs: dict[str, PhaseRun]) -> None:
    found = SweepResult(runs, failed_cells("<b>why"))
    table = found.table

    figures = [
        plot_prefill(table),
        plot_throughput(table),
        plot_floors(table),
        plot_vision_share(table, runs),
        plot_cells_decode(found.curves),
    ]

    for figure in figures:
        assert figure_png(figure).startswith(b"\x89PNG")
    page = Elements(cells_html(table) + failures_html(found.failures))
    assert not page.open
    assert "b" not in page.tags()
    assert "nan" not in page.said + found.verdict
