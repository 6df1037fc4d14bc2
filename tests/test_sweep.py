"""A sweep: its cells, what is measured again and what is not, its tables, pictures, notebook and
verb.
"""

import dataclasses
import itertools
import shutil

import pytest
import torch
from conftest import GOLDEN, PAGES
from elements import Elements
from example_run import altered, failed_cells, make_run, paced
from PIL import Image
from refusals import refused
from wording import says

from ocr_phases import PhaseRun
from ocr_phases.analyse.sweep_table import SWEEP_COLUMNS, sweep_table
from ocr_phases.analyse.sweep_words import models_sentence
from ocr_phases.cli import main
from ocr_phases.families import DEEPSEEK_OCR, FAMILIES
from ocr_phases.files import MANIFEST_NAME
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
#: One quick cell: the axes and what else is asked, of which a test changes some.
ASKED = {"presets": ["tiny"], "lengths": [2], "repeats": 1, "warmup": 0}
ONE, TWO = "tiny-eager-b1-n2", "tiny-eager-b2-n2"


def outcomes(session, folder, page=PAGE, **options):
    """What `OCRSession.sweep` says of each cell."""
    told = []
    session.sweep(page, folder=folder, progress=told.append, **{**ASKED, **options})
    return told


def states(session, folder, page=PAGE, **options):
    return {each.cell.name: each.state for each in outcomes(session, folder, page, **options)}


@pytest.fixture(scope="module")
def finished(golden_session, tmp_path_factory):
    """A folder with one finished cell."""
    folder = tmp_path_factory.mktemp("finished")
    assert states(golden_session, folder) == {ONE: "measured"}
    return folder


@pytest.fixture
def folder(finished, tmp_path):
    """A copy of it."""
    return shutil.copytree(finished, tmp_path / "sweep")


WRONG = [
    ("presets", "tiny"),
    ("batches", 2),
    ("visions", []),
    ("batches", [0]),
    ("lengths", [10**15]),
]


@pytest.mark.parametrize(
    ("axis", "values"), [*WRONG, ("attentions", ["fast"]), ("dtypes", ["int8"])]
)
def test_what_no_sweep_could_measure_is_refused(axis, values):
    with refused():
        _ = Sweep(page=PAGE, **{axis: values}).cells


def test_only_what_is_missing_or_changed_is_measured(golden_session, folder):
    told = []
    both = {
        "batches": [1, 2, 1],
        "on_run": lambda cell, done, total: told.append((cell.name, done, total)),
    }
    assert states(golden_session, folder, **both) == {ONE: "kept", TWO: "measured"}
    assert told == [(TWO, 0, 1), (TWO, 1, 1)]
    runs = SweepResult.load(folder).runs
    assert [len(run.results) for run in runs.values()] == [1, 2]
    assert all(run.token_count == 2 and run.request.ignore_eos for run in runs.values())
    assert [run.page_image() is None for run in runs.values()] == [False, True]
    # Another request, another version and a file that is no record: each is measured again.
    with refused():  # beside one not asked for
        outcomes(golden_session, folder, repeats=2)
    assert states(golden_session, folder, **both, repeats=2) == {ONE: "measured", TWO: "measured"}
    old = PhaseRun.load(folder / "runs" / f"{TWO}.json")
    dataclasses.replace(old, versions={**old.versions, "torch": "1.0"}).save(
        folder / "runs" / f"{TWO}.json"
    )
    (folder / "runs" / f"{ONE}.json").write_text("{")
    more = {**both, "repeats": 2, "lengths": [2, 3]}
    new = {name.replace("n2", "n3"): "measured" for name in (ONE, TWO)}
    assert states(golden_session, folder, **more) == {ONE: "measured", TWO: "measured", **new}
    assert set(states(golden_session, folder, **more).values()) == {"kept"}
    earlier = [PhaseRun.load(path) for path in (folder / "runs" / "earlier").glob("*b2-n2*.json")]
    assert sorted(len(run.repeats) for run in earlier) == [
        1,
        2,
    ]  # nothing that was measured is gone


def test_a_folder_is_one_sweep(tiny_session, golden_session, folder):
    def files():
        return {path.name: path.read_bytes() for path in (folder / "runs").iterdir()}

    before = files()
    for session, page in ((golden_session, PAGES / "form.png"), (tiny_session, PAGE)):
        with refused():
            outcomes(session, folder, page)
    # A foreign file is refused before anything is measured.
    for name in ("other.json", "other.status.json"):
        (folder / "runs" / name).write_text("{}")
        with refused():
            outcomes(golden_session, folder, batches=[1, 2])
        (folder / "runs" / name).unlink()
    # Records of several models are not put beside those of one, nor is one model there twice.
    for models in (["tiny", "dummy"], "tiny", [], ["dummy", "dummy"]):
        with refused():
            sweep(PAGE, models, folder=folder)
    assert files() == before


def test_all_cells_choose_tokens_as_infer_says_and_a_folder_has_one_infer(tiny_session, tmp_path):
    rule = {"no_repeat_ngram_size": 3, "whitelist_token_ids": [5]}
    result = tiny_session.sweep(PAGE, folder=tmp_path, infer=rule, **ASKED)
    (run,) = result.runs.values()
    assert run.request.infer.no_repeat_ngram_size == 3
    assert run.request.infer.whitelist_token_ids == [5]
    assert states(tiny_session, tmp_path, infer=rule) == {ONE: "kept"}
    with refused():
        outcomes(tiny_session, tmp_path, lengths=[3])


def test_the_pages_of_one_file_are_different_pages(golden_session, tmp_path):
    file = tmp_path / "three.tif"
    with Image.open(PAGE) as page:
        page.save(file, save_all=True, append_images=[page.rotate(90), page.rotate(180)])
    assert states(golden_session, tmp_path / "out", str(file)) == {ONE: "measured"}
    assert states(golden_session, tmp_path / "out", f"{file}#1") == {ONE: "kept"}
    with refused():
        outcomes(golden_session, tmp_path / "out", f"{file}#3")


def test_attention_and_dtype_are_axes(golden_session, folder, monkeypatch):
    monkeypatch.setattr(
        "ocr_phases.measure.loaded_model.measure_ceilings", lambda *_: {"matmul_dtype": "float32"}
    )  # of each new session
    axes = {"attentions": ["sdpa", "eager", None], "dtypes": ["float32", torch.bfloat16, None]}
    # Those of the model's own are the same ones.
    others = ("-dtype-bfloat16", "-attention-eager", "-attention-eager-dtype-bfloat16")
    new = {f"{ONE}{end}": "measured" for end in others}
    assert states(golden_session, folder, **axes) == {ONE: "kept"} | new
    runs = SweepResult.load(folder).runs
    made = {cell: (run.model.attention, run.model.dtype) for cell, run in runs.items()}
    asked = itertools.product(["sdpa", "eager"], ["float32", "bfloat16"])
    assert made == dict(zip((ONE, *new), asked, strict=True))
    # A session of another dtype is another sweep.
    with refused():
        outcomes(golden_session.with_model(dtype="bfloat16"), folder)
    # What a class cannot have is a failed cell, and the others are there.
    flash = outcomes(golden_session, folder, attentions=["flash_attention_2", "eager"])
    told = {outcome.cell.attention: outcome.state for outcome in flash}
    assert told == {"flash_attention_2": "failed", "eager": "kept"}


def test_a_cell_that_fails_keeps_its_reason_and_stops_nothing(golden_session, folder, monkeypatch):
    axes = {"batches": [1, 2], "lengths": [99_999, 2]}
    real = Measurement.run

    def limited(measurement, *args, **options):
        if measurement.packed.batch_size > 1:
            raise torch.OutOfMemoryError("no room\nfor this")
        return real(measurement, *args, **options)

    monkeypatch.setattr(Measurement, "run", limited)
    told = outcomes(golden_session, folder, **axes)
    assert [each.state for each in told] == ["failed", "kept", "failed", "failed"]
    assert "positions" in told[0].reason
    assert told[3].reason == "OutOfMemoryError: no room"
    found = SweepResult.load(folder)
    assert list(found.runs) == [ONE]
    failed = {each.cell.name: each.reason for each in told if each.state == "failed"}
    assert dict(zip(found.failures["cell"], found.failures["reason"], strict=True)) == failed
    assert found.failures["max_new_tokens"].tolist() == [99_999, 2, 99_999]
    # Known to fail: not tried again, until asked to or until something changes, or where that is
    # damaged.
    monkeypatch.undo()
    for retry, last in ((False, "failed"), (True, "measured")):
        again = states(golden_session, folder, **axes, retry_failed=retry)
        assert list(again.values()) == ["failed", "kept", "failed", last]
    assert set(SweepResult.load(folder).failures["max_new_tokens"]) == {99_999}
    for damage in ("", "[" * 100_000, "{}"):
        (folder / "runs" / "tiny-eager-b1-n99999.status.json").write_text(damage)
        assert outcomes(golden_session, folder, **axes)[0].reason == told[0].reason


def test_a_device_that_is_lost_ends_the_sweep_and_fails_no_other_cell(
    golden_session, folder, monkeypatch
):
    def lost(*args, **options):
        monkeypatch.setattr(torch, "zeros", lost)
        raise RuntimeError("CUDA error: device-side assert triggered")

    monkeypatch.setattr(Measurement, "run", lost)
    with refused():
        outcomes(golden_session, folder, batches=[1, 2, 3])
    monkeypatch.undo()
    again = states(golden_session, folder, batches=[1, 2, 3])
    assert list(again.values()) == ["kept", "failed", "measured"]


def test_the_verb_sets_models_side_by_side(golden_checkpoint, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(
        "ocr_phases.measure.loaded_model.measure_ceilings", lambda *_: {"matmul_dtype": "float32"}
    )
    for family in FAMILIES:  # the model's name in a table
        place = GOLDEN if family == DEEPSEEK_OCR else GOLDEN / family
        (tmp_path / family).symlink_to(golden_checkpoint(place))
    names, out = list(FAMILIES), tmp_path / "out"
    lists = [
        "--models",
        ",".join(str(tmp_path / name) for name in names),
        "--presets",
        "small,large",
    ]
    command = [
        "sweep",
        str(PAGE),
        *lists,
        "--batch",
        "1",
        "--max-new-tokens",
        "3",
        "--device",
        "cpu",
    ]
    assert main([*command, "--repeats", "1", "--warmup", "0", "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert says(said, "measured", "small768-eager-b1-n3") and says(
        said, "failed", "large-eager-b1-n3"
    )
    found = SweepResult.load(out)
    # A preset of another family stands for its own; what none stands for is a failed cell with its
    # reason.
    assert sorted(found.runs) == [
        "deepseek-ocr-2/small768-eager-b1-n3",
        "deepseek-ocr/large-eager-b1-n3",
        "deepseek-ocr/small-eager-b1-n3",
        "unlimited-ocr/small-eager-b1-n3",
    ]
    assert sorted(found.failures["cell"]) == [f"{name}/large-eager-b1-n3" for name in names[1:]]
    # The job that all of them have is compared, not the longest prompt of each.
    compared = models_sentence(found.table)
    assert compared in found.verdict
    assert all(name in compared for name in (*names, "small768")) and "large" not in compared
    elements = Elements((out / "sweep.html").read_text(encoding="utf-8"))
    assert not elements.open
    assert all(
        part in elements.said for part in (*names, "2 cells", "not be measured", "Unknown preset")
    )
    assert {path.name for path in out.iterdir()} == {
        MANIFEST_NAME,
        "sweep.ipynb",
        "sweep.html",
        *names,
    }


def test_every_row_is_a_page_of_the_minute():
    """The table of one row each is approved."""
    table = sweep_table({"rows": make_run(rows=4), "one": make_run(crops=False)})
    assert tuple(table.columns) == SWEEP_COLUMNS
    assert table["cell"].tolist() == ["one", "rows"]  # by the prompt's length
    assert table["batch"].tolist() == [1, 4]
    assert (table["pages_per_min"] * table["page_ms"]).to_numpy() == pytest.approx(
        [60_000, 240_000]
    )


def result(**runs):
    """A sweep of records: each strategy's name with its repeats' times as factors, or a record."""
    made = {
        name: altered(paced(make_run(repeats=len(pace)), *pace), model={"strategy": name})
        for name, pace in runs.items()
    }
    return SweepResult(made, failed_cells())


def test_noisy_cells_come_first_and_are_never_the_best():
    found = result(eager=(1.0, 1.0, 1.0), cuda_graph=(0.5, 0.5, 0.5), compiled=(0.1, 0.2, 0.1))
    first, _, rest = found.verdict.partition(". ")
    assert says(first, "repeat spread", "compiled")
    assert found.recommended()[0] == "cuda_graph"
    assert says(rest, "Take cuda_graph decode", "pages per minute")
    best = rest[rest.index("The shortest decode step") :]
    assert best.count("cuda_graph") == 2 and "compiled" not in best
    # What the repeats do not tell apart has no fastest, and a single repeat tells nothing apart.
    alike = result(eager=(1.0, 1.0, 1.0), cuda_graph=(1.01, 0.99, 1.0))
    assert (
        "fastest" not in alike.verdict
        and alike.verdict.count("though the repeats do not tell") == 3
    )
    single = result(eager=(1.0,), cuda_graph=(0.5,))
    assert single.recommended() is None and says(
        single.verdict, "single repeat", "nothing is called fastest"
    )


@pytest.mark.parametrize("odd", [None, {"max_tokens": 1, "repeats": 1}, {"generate": True}])
@pytest.mark.filterwarnings("error")
def test_every_sweep_is_drawn(odd):
    runs = {} if odd is None else {"odd": make_run(**odd)}
    found = SweepResult(runs, failed_cells("<b>why"))
    table = found.table
    plots = (plot_prefill, plot_throughput, plot_floors)
    figures = [plot(table) for plot in plots] + [plot_vision_share(table, runs)]
    for figure in (*figures, plot_cells_decode(found.curves)):
        assert figure_png(figure).startswith(b"\x89PNG")
    elements = Elements(cells_html(table) + failures_html(found.failures))
    assert not elements.open
    assert "b" not in elements.tags()
    assert "nan" not in elements.said + found.verdict
