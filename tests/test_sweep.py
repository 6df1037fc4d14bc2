"""A sweep: its cells, what is measured again and what is not, its tables, pictures, notebook and verb."""

from __future__ import annotations

import dataclasses
import itertools
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import GOLDEN, PAGES, TINY_CONFIG
from elements import Elements
from example_run import altered, failed_cells, make_run, paced
from PIL import Image
from refusals import refused
from wording import says

from ocr_phases.analyse.scaling import (
    SWEEP_COLUMNS,
    SweepResult,
    models_sentence,
    sweep_table,
)
from ocr_phases.cli import main
from ocr_phases.cli.options import model_list
from ocr_phases.families import DEEPSEEK_OCR, FAMILIES
from ocr_phases.files import MANIFEST_NAME
from ocr_phases.record import PhaseRun
from ocr_phases.show import plots_many, results_many
from ocr_phases.show.figures import figure_png
from ocr_phases.sweep_models import AXES, CellOutcome, Sweep, sweep

PAGE = PAGES / "slide.png"
#: One quick cell: the axes and what else is asked, of which a test changes some.
ASKED: dict[str, Any] = {"presets": ["tiny"], "lengths": [2], "repeats": 1, "warmup": 0}
ONE = "tiny-eager-b1-n2"


def outcomes(session: Any, folder: Path, page: str | Path = PAGE, **options: Any) -> list[CellOutcome]:
    """What `OCRSession.sweep` says of each cell."""
    told: list[CellOutcome] = []
    session.sweep(page, folder=folder, progress=told.append, **{**ASKED, **options})
    return told


def states(session: Any, folder: Path, page: str | Path = PAGE, **options: Any) -> dict[str, str]:
    return {each.cell.name: each.state for each in outcomes(session, folder, page, **options)}


@pytest.fixture(scope="module")
def finished(tiny_session: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one finished cell."""
    folder = tmp_path_factory.mktemp("finished")
    assert states(tiny_session, folder) == {ONE: "measured"}
    return folder


@pytest.fixture
def folder(finished: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(finished, tmp_path / "sweep"))


def records() -> dict[str, PhaseRun]:
    """Records as a sweep over two presets, two strategies, two batch sizes and two lengths leaves them."""
    runs = {}
    for cell in itertools.product((False, True), ("eager", "cuda_graph"), (1, 4), (5, 60)):
        crops, strategy, rows, tokens = cell
        run = make_run(crops=crops, rows=rows, max_tokens=tokens, cuda=strategy != "eager")
        runs["-".join(map(str, cell))] = altered(run, model={"strategy": strategy, "config": TINY_CONFIG})
    return runs


def with_vision(run: PhaseRun, vision: str) -> PhaseRun:
    return altered(run, request={"vision": vision})


# -- measuring ----------------------------------------------------------------------------------------


def test_cells_are_every_combination_once() -> None:
    def names(**axes: Any) -> list[str]:
        return [cell.name for cell in Sweep(page=PAGE, **axes).cells]

    two = [f"{preset}-eager-b{rows}-n8" for preset in ("tiny", "base") for rows in (1, 2)]
    assert names(presets=["tiny", "base"], batches=[1, 2, 1], lengths=[8]) == two
    ways = names(presets=["tiny"], lengths=[8], visions=["eager", "compiled"])
    assert ways == ["tiny-eager-b1-n8", "tiny-eager-b1-n8-vision-compiled"]


@pytest.mark.parametrize(
    ("axis", "values"),
    [
        *(("presets", "tiny"), ("batches", 2), ("strategies", []), ("visions", [])),
        *(("presets", ["huge"]), ("strategies", ["fast"]), ("batches", [0]), ("lengths", [-1])),
        *(("visions", ["fast"]), ("attentions", ["fast"]), ("dtypes", ["int8"])),
    ],
)
def test_what_no_sweep_could_measure_is_refused(axis: str, values: Any) -> None:
    assert axis in AXES
    with refused():
        _ = Sweep(page=PAGE, **{axis: values}).cells


def test_only_what_is_missing_or_changed_is_measured(tiny_session: Any, tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    both = {"batches": [1, 2], "on_run": lambda cell, done, total: told.append((cell.name, done, total))}
    two = {ONE: "measured", "tiny-eager-b2-n2": "measured"}
    assert states(tiny_session, tmp_path, **both) == two
    assert [name for name, done, total in told if done == total] == list(two)
    runs = SweepResult.load(tmp_path).runs
    assert [len(run.results) for run in runs.values()] == [1, 2]
    assert {run.token_count for run in runs.values()} == {2}
    assert all(run.request["ignore_eos"] for run in runs.values())
    assert [run.page_image() is None for run in runs.values()] == [False, True]
    both["lengths"] = [2, 3]
    more = dict.fromkeys(("tiny-eager-b1-n3", "tiny-eager-b2-n3"), "measured")
    assert states(tiny_session, tmp_path, **both) == {**dict.fromkeys(two, "kept"), **more}
    # Another request, another version and a file that is no record: each is measured again.
    with refused():  # beside those not asked for
        outcomes(tiny_session, tmp_path, repeats=2)
    both["repeats"] = 2
    assert states(tiny_session, tmp_path, **both) == {**two, **more}
    old = PhaseRun.load(tmp_path / "runs" / "tiny-eager-b2-n2.json")
    aged = dataclasses.replace(old, versions={**old.versions, "torch": "1.0"})
    aged.save(tmp_path / "runs" / "tiny-eager-b2-n2.json")
    (tmp_path / "runs" / f"{ONE}.json").write_text("{")
    assert states(tiny_session, tmp_path, **both) == {**two, **dict.fromkeys(more, "kept")}
    earlier = [PhaseRun.load(path) for path in (tmp_path / "runs" / "earlier").glob("*b2-n2*.json")]
    assert sorted(len(run.repeats) for run in earlier) == [1, 2]  # nothing that was measured is gone


def test_a_cell_is_measured_again_after_a_change_of_the_code(
    tiny_session: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ocr_phases.collectors.machine.git_state", lambda: "another commit")
    assert states(tiny_session, folder) == {ONE: "kept"}  # which changed nothing of the package
    monkeypatch.setattr("ocr_phases.collectors.machine._CODE", "another")
    assert states(tiny_session, folder) == {ONE: "measured"}
    assert next(iter(SweepResult.load(folder).runs.values())).versions["code"] == "another"


def test_a_folder_is_one_sweep(tiny_session: Any, golden_session: Any, folder: Path) -> None:
    def files() -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in (folder / "runs").iterdir()}

    before = files()
    for session, page in ((tiny_session, PAGES / "form.png"), (golden_session, PAGE)):
        with refused():
            outcomes(session, folder, page)
    # A foreign file is refused before anything is measured.
    for name in ("other.json", "other.status.json"):
        (folder / "runs" / name).write_text("{}")
        with refused():
            outcomes(tiny_session, folder, batches=[1, 2])
        (folder / "runs" / name).unlink()
    assert files() == before


def test_the_pages_of_one_file_are_different_pages(tiny_session: Any, tmp_path: Path) -> None:
    file = tmp_path / "three.tif"
    with Image.open(PAGE) as page:
        page.save(file, save_all=True, append_images=[page.rotate(90), page.rotate(180)])
    for number in ("#2", ""):
        out = tmp_path / f"out{number}"
        assert states(tiny_session, out, f"{file}{number}") == {ONE: "measured"}
        assert states(tiny_session, out, f"{file}{number or '#1'}") == {ONE: "kept"}
        with refused():
            outcomes(tiny_session, out, f"{file}#3")


def test_attention_and_dtype_are_axes(tiny_session: Any, tmp_path: Path) -> None:
    axes = {"attentions": ["sdpa", "eager"], "dtypes": ["float32", torch.bfloat16]}
    ends = ["", "-dtype-bfloat16", "-attention-eager", "-attention-eager-dtype-bfloat16"]
    names = [f"{ONE}{end}" for end in ends]
    assert states(tiny_session, tmp_path, **axes) == dict.fromkeys(names, "measured")
    found = SweepResult.load(tmp_path)
    model = {cell: (run.model["attention"], run.model["dtype"]) for cell, run in found.runs.items()}
    asked = itertools.product(["sdpa", "eager"], ["float32", "bfloat16"])
    assert model == dict(zip(names, asked, strict=True))
    table = found.table.set_index("cell")
    assert {cell: tuple(row) for cell, row in table[["attention", "dtype"]].T.items()} == model
    # Beside cells of the model's own, which are the same ones; a session of another dtype is another sweep.
    own = {name: [*values, None] for name, values in axes.items()}
    assert states(tiny_session, tmp_path, **own) == dict.fromkeys(names, "kept")
    with refused():
        outcomes(tiny_session.with_model(dtype="bfloat16"), tmp_path)
    # What a class cannot have is a failed cell, and the others are measured.
    flash = outcomes(tiny_session, tmp_path, attentions=["flash_attention_2", "eager"])
    told = {outcome.cell.attention: outcome.state for outcome in flash}
    assert told == {"flash_attention_2": "failed", "eager": "kept"}


def test_a_cell_that_fails_keeps_its_reason_and_stops_nothing(
    tiny_session: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    axes = {"batches": [1, 2], "lengths": [99_999, 2]}
    real = tiny_session.run_inference

    def limited(pages: list[Any], *args: Any, **options: Any) -> PhaseRun:
        if len(pages) > 1:
            raise torch.OutOfMemoryError("no room\nfor this")
        return real(pages, *args, **options)

    monkeypatch.setattr(tiny_session, "run_inference", limited)
    told = outcomes(tiny_session, tmp_path, **axes)
    assert [each.state for each in told] == ["failed", "measured", "failed", "failed"]
    assert "4096 positions" in told[0].reason
    assert told[3].reason == "OutOfMemoryError: no room"
    kept = SweepResult.load(tmp_path)
    assert list(kept.runs) == [ONE]
    failed = {each.cell.name: each.reason for each in told if each.state == "failed"}
    assert dict(zip(kept.failures["cell"], kept.failures["reason"], strict=True)) == failed
    assert kept.failures["max_new_tokens"].tolist() == [99_999, 2, 99_999]
    # Known to fail: not tried again, until asked to or until something changes, or where that is damaged.
    monkeypatch.undo()
    for retry, last in ((False, "failed"), (True, "measured")):
        again = states(tiny_session, tmp_path, **axes, retry_failed=retry)
        assert list(again.values()) == ["failed", "kept", "failed", last]
    assert set(SweepResult.load(tmp_path).failures["max_new_tokens"]) == {99_999}
    for damage in ("", "[" * 100_000, "{}"):
        (tmp_path / "runs" / "tiny-eager-b1-n99999.status.json").write_text(damage)
        assert outcomes(tiny_session, tmp_path, **axes)[0].reason == told[0].reason


def test_a_device_that_is_lost_ends_the_sweep_and_fails_no_other_cell(
    tiny_session: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(*args: Any, **options: Any) -> None:
        monkeypatch.setattr(torch, "zeros", lost)
        raise RuntimeError("CUDA error: device-side assert triggered")

    monkeypatch.setattr(tiny_session, "run_inference", lost)
    with refused():
        outcomes(tiny_session, folder, batches=[1, 2, 3])
    monkeypatch.undo()
    again = states(tiny_session, folder, batches=[1, 2, 3])
    assert list(again.values()) == ["kept", "failed", "measured"]


# -- several models ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a sweep over the three families' small checkpoints, by the verb."""
    folder = tmp_path_factory.mktemp("models")
    models = [named_like_its_family(family, folder) for family in FAMILIES]
    lists = ["--models", ",".join(models), "--presets", "small,large", "--batch", "1"]
    command = ["sweep", str(PAGE), *lists, "--max-new-tokens", "3", "--device", "cpu"]
    assert main([*command, "--repeats", "1", "--warmup", "0", "--out", str(folder / "out")]) == 0
    return folder / "out"


def named_like_its_family(family: str, folder: Path) -> str:
    """A golden checkpoint under its family's name: the model's name in a table."""
    place = GOLDEN if family == DEEPSEEK_OCR else GOLDEN / family
    (folder / family).symlink_to(place / "checkpoint")
    return str(folder / family)


def test_models_stand_side_by_side(swept: Path) -> None:
    found = SweepResult.load(swept)
    models = list(FAMILIES)
    assert sorted(set(found.table["model"])) == models
    # A preset of another family stands for its own; what none stands for is a failed cell with its reason.
    assert sorted(found.runs) == [
        "deepseek-ocr-2/small768-eager-b1-n3",
        "deepseek-ocr/large-eager-b1-n3",
        "deepseek-ocr/small-eager-b1-n3",
        "unlimited-ocr/small-eager-b1-n3",
    ]
    assert sorted(found.failures["cell"]) == [f"{model}/large-eager-b1-n3" for model in models[1:]]
    assert all("Unknown preset" in reason for reason in found.failures["reason"])
    # The job that all of them have is compared, not the longest prompt of each.
    compared = models_sentence(found.table)
    assert compared in found.verdict
    assert all(name in compared for name in (*models, "small768"))
    assert "large" not in compared
    assert list(found.curves.drop_duplicates("model")["model"].sort_values()) == models
    document = Elements((swept / "sweep.html").read_text(encoding="utf-8"))
    assert all(model in document.said for model in models)
    # Records of one model are not put beside those of several, and the other way round.
    with refused():
        (swept / "runs").mkdir()
        sweep(PAGE, ["tiny", "dummy"], folder=swept)
    (swept / "runs").rmdir()


@pytest.mark.parametrize("models", ["tiny", [], ["dummy", "dummy"]])
def test_models_are_a_list_of_different_names(models: Any, tmp_path: Path) -> None:
    with refused():
        sweep(PAGE, models, folder=tmp_path)


def test_one_model_of_the_list_keeps_its_numbers() -> None:
    asked = "dummy:layers=2,experts=8,tiny, dummy:unlimited-ocr,window=16"
    assert model_list(asked) == ["dummy:layers=2,experts=8", "tiny", "dummy:unlimited-ocr,window=16"]


# -- tables and pictures ------------------------------------------------------------------------------


def test_the_table_has_a_row_a_record() -> None:
    runs = records()
    table = sweep_table(runs)
    assert tuple(table.columns) == SWEEP_COLUMNS
    assert len(table) == len(runs)
    assert table["prefill_len"].is_monotonic_increasing
    for _, row in table.iterrows():
        run = runs[row["cell"]]
        assert row["prefill_ms"] == pytest.approx(run["prefill_ms"])
        assert row["inter_token_ms"] == pytest.approx(run["inter_token_ms"])
        assert row["batch"] == len(run.results)
        assert 0 < row["vision_share"] < 1
        # The H200 has a datasheet, the example CPU has not.
        assert (row["step_floor_ms"] < row["inter_token_ms"]) == (row["strategy"] == "cuda_graph")
    said = SweepResult(runs, failed_cells("a", "b")).verdict
    assert says(said, "gundam", "batch 4", "eager", "60 tokens", "912 prompt tokens")
    assert says(said, "2 cells", "not be measured")
    whole = (table["ttft_ms"] + table["decode_ms"]).to_numpy()
    assert table["page_ms"].to_numpy() == pytest.approx(whole, rel=0.05)  # of medians, not a median of sums
    assert table["page_ms_p90"].isna().all()  # of three repeats there is no 90th percentile
    assert (table["pages_per_min"] * table["page_ms"] / table["batch"]).to_numpy() == pytest.approx(60_000)
    assert "pages/min" in results_many.end_to_end_html(table)


def at_pace(run: PhaseRun, *factors: float, strategy: str = "eager") -> PhaseRun:
    """The record as another strategy's, each repeat so many times as long."""
    return altered(paced(run, *factors), model={"strategy": strategy})


def test_noisy_cells_come_first_and_are_never_the_best() -> None:
    run = make_run()
    quiet, quick = at_pace(run, 1.0, 1.0, 1.0), at_pace(run, 0.5, 0.5, 0.5, strategy="cuda_graph")
    loud = at_pace(run, 0.1, 0.2, 0.1, strategy="compiled")
    found = SweepResult({"quiet": quiet, "quick": quick, "loud": loud}, failed_cells())
    first, _, rest = found.verdict.partition(". ")
    assert says(first, "repeat spread", "loud")
    assert found.recommended()[0] == "quick" and says(rest, "Take cuda_graph decode", "pages per minute")
    best = rest[rest.index("The fastest decode step") :]
    assert best.count("cuda_graph") == 2 and "compiled" not in best
    # What the repeats do not tell apart has no fastest, and a single repeat tells nothing apart.
    alike = SweepResult(
        {"a": quiet, "b": at_pace(run, 1.01, 0.99, 1.0, strategy="cuda_graph")}, failed_cells()
    )
    assert "fastest" not in alike.verdict and says(alike.verdict, "repeats do not tell")
    once = make_run(repeats=1)
    single = SweepResult({"a": once, "b": at_pace(once, 0.5, strategy="cuda_graph")}, failed_cells())
    assert single.recommended() is None and says(single.verdict, "single repeat", "nothing is called fastest")


@pytest.mark.parametrize(
    "runs",
    [
        {},
        {"a": records()["True-eager-1-60"], "b": with_vision(records()["True-eager-1-60"], "compiled")},
        {**records(), **{f"{cell}-v": with_vision(run, "compiled") for cell, run in records().items()}},
        {"one": make_run(max_tokens=1)},
        {"two": make_run(max_tokens=2, repeats=1, memory=False)},
        {"whole": make_run(generate=True)},
    ],
    ids=["none", "two visions", "many visions", "one token", "one step", "generate"],
)
@pytest.mark.filterwarnings("error")
def test_every_sweep_is_drawn(runs: dict[str, PhaseRun]) -> None:
    found = SweepResult(runs, failed_cells())
    table, curves = found.table, found.curves
    for figure in (
        plots_many.plot_prefill(table),
        plots_many.plot_vision_share(table, runs),
        plots_many.plot_cells_decode(curves),
        plots_many.plot_throughput(table),
        plots_many.plot_floors(table),
    ):
        assert figure_png(figure).startswith(b"\x89PNG")
    elements = Elements(results_many.cells_html(table) + results_many.failures_html(failed_cells("<b>why")))
    assert not elements.open
    assert "b" not in elements.tags()
    assert "nan" not in elements.said + found.verdict


def test_a_folder_without_records_is_told(tmp_path: Path) -> None:
    with refused():
        SweepResult.load(tmp_path)
    (tmp_path / "x.status.json").write_text("[")
    with refused():
        SweepResult.load(tmp_path)


# -- the verb and the notebook ------------------------------------------------------------------------


def test_the_verb_measures_shows_and_takes_up_where_it_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lists = ["--presets", "tiny", "--batch", "1,2", "--max-new-tokens", "3,9999", "--device", "cpu"]
    command = ["sweep", str(PAGE), *lists, "--repeats", "1", "--warmup", "0", "--out", str(tmp_path / "out")]
    assert main(command) == 0
    said = capsys.readouterr().out
    assert says(said, "measured", "tiny-eager-b2-n3")
    assert says(said, "tiny-eager-b1-n9999", "failed")
    files = {MANIFEST_NAME, "sweep.ipynb", "sweep.html"}
    assert {path.name for path in (tmp_path / "out").iterdir()} == {*files, "runs"}
    elements = Elements((tmp_path / "out" / "sweep.html").read_text(encoding="utf-8"))
    assert not elements.open
    assert "2 cells" in elements.said and "not be measured" in elements.said
    assert "4096 positions" in elements.said
    assert sum(tag == "img" or attributes.get("role") == "img" for tag, attributes in elements.found) == 6
    assert "times floor" in elements.said
    assert main(["sweep", "--records", str(tmp_path / "out"), "--out", str(tmp_path / "shown")]) == 0
    assert "Wrote" in capsys.readouterr().out
    assert {path.name for path in (tmp_path / "shown").iterdir()} == files
