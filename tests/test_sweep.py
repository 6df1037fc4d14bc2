"""A sweep: its cells, what is measured again and what is not, its tables, pictures, notebook and verb."""

from __future__ import annotations

import dataclasses
import itertools
import shutil

import pytest
import torch
from conftest import GOLDEN, PAGES, TINY_CONFIG
from elements import Elements
from example_run import altered, failed_cells, make_run, paced
from PIL import Image
from refusals import refused
from wording import says

from ocr_phases.analyse.scaling import SWEEP_COLUMNS, SweepResult, models_sentence, sweep_table
from ocr_phases.cli import main
from ocr_phases.cli.options import model_list
from ocr_phases.families import DEEPSEEK_OCR, FAMILIES
from ocr_phases.files import MANIFEST_NAME
from ocr_phases.record import PhaseRun
from ocr_phases.show import plots_many, results_many
from ocr_phases.show.figures import figure_png
from ocr_phases.sweep_models import Sweep, sweep

PAGE = PAGES / "slide.png"
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


def records(crops=(False, True), lengths=(5, 60)):
    """Records as a sweep over presets, two strategies, two batch sizes and lengths leaves them."""
    runs = {}
    for cell in itertools.product(crops, ("eager", "cuda_graph"), (1, 4), lengths):
        crop, strategy, rows, tokens = cell
        run = make_run(crops=crop, rows=rows, max_tokens=tokens, cuda=strategy != "eager")
        runs["-".join(map(str, cell))] = altered(run, model={"strategy": strategy, "config": TINY_CONFIG})
    return runs


# -- measuring ----------------------------------------------------------------------------------------


def test_cells_are_every_combination_once():
    two = Sweep(page=PAGE, presets=["tiny", "base"], batches=[1, 2, 1], lengths=[8])
    ways = Sweep(page=PAGE, presets=["tiny"], lengths=[8], visions=["eager", "compiled"])
    names = [[cell.name for cell in each.cells] for each in (two, ways)]
    assert names[0] == [f"{preset}-eager-b{rows}-n8" for preset in ("tiny", "base") for rows in (1, 2)]
    assert names[1] == ["tiny-eager-b1-n8", "tiny-eager-b1-n8-vision-compiled"]


@pytest.mark.parametrize(
    ("axis", "values"),
    [
        *(("presets", "tiny"), ("batches", 2), ("strategies", []), ("visions", [])),
        *(("presets", ["huge"]), ("strategies", ["fast"]), ("batches", [0]), ("lengths", [-1])),
        *(("visions", ["fast"]), ("attentions", ["fast"]), ("dtypes", ["int8"])),
        *(("batches", [10**15]), ("lengths", [10**15])),
    ],
)
def test_what_no_sweep_could_measure_is_refused(axis, values):
    with refused():
        _ = Sweep(page=PAGE, **{axis: values}).cells


def test_only_what_is_missing_or_changed_is_measured(golden_session, folder):
    told = []
    both = {"batches": [1, 2], "on_run": lambda cell, done, total: told.append((cell.name, done, total))}
    assert states(golden_session, folder, **both) == {ONE: "kept", TWO: "measured"}
    assert told == [(TWO, 0, 1), (TWO, 1, 1)]
    runs = SweepResult.load(folder).runs
    assert [len(run.results) for run in runs.values()] == [1, 2]
    assert all(run.token_count == 2 and run.request["ignore_eos"] for run in runs.values())
    assert [run.page_image() is None for run in runs.values()] == [False, True]
    # Another request, another version and a file that is no record: each is measured again.
    with refused():  # beside one not asked for
        outcomes(golden_session, folder, repeats=2)
    assert states(golden_session, folder, **both, repeats=2) == {ONE: "measured", TWO: "measured"}
    old = PhaseRun.load(folder / "runs" / f"{TWO}.json")
    dataclasses.replace(old, versions={**old.versions, "torch": "1.0"}).save(folder / "runs" / f"{TWO}.json")
    (folder / "runs" / f"{ONE}.json").write_text("{")
    more = {**both, "repeats": 2, "lengths": [2, 3]}
    new = {name.replace("n2", "n3"): "measured" for name in (ONE, TWO)}
    assert states(golden_session, folder, **more) == {ONE: "measured", TWO: "measured", **new}
    assert set(states(golden_session, folder, **more).values()) == {"kept"}
    earlier = [PhaseRun.load(path) for path in (folder / "runs" / "earlier").glob("*b2-n2*.json")]
    assert sorted(len(run.repeats) for run in earlier) == [1, 2]  # nothing that was measured is gone


def test_a_cell_is_measured_again_after_a_change_of_the_code(golden_session, folder, monkeypatch):
    monkeypatch.setattr("ocr_phases.collectors.machine.git_state", lambda: "another commit")
    assert states(golden_session, folder) == {ONE: "kept"}  # which changed nothing of the package
    monkeypatch.setattr("ocr_phases.collectors.machine._CODE", "another")
    assert states(golden_session, folder) == {ONE: "measured"}
    assert next(iter(SweepResult.load(folder).runs.values())).versions["code"] == "another"


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
    # Records of several models are not put beside those of one.
    with refused():
        sweep(PAGE, ["tiny", "dummy"], folder=folder)
    assert files() == before


def test_the_pages_of_one_file_are_different_pages(golden_session, tmp_path):
    file = tmp_path / "three.tif"
    with Image.open(PAGE) as page:
        page.save(file, save_all=True, append_images=[page.rotate(90), page.rotate(180)])
    for number in ("#2", ""):
        out = tmp_path / f"out{number}"
        assert states(golden_session, out, f"{file}{number}") == {ONE: "measured"}
        assert states(golden_session, out, f"{file}{number or '#1'}") == {ONE: "kept"}
        with refused():
            outcomes(golden_session, out, f"{file}#3")


def test_attention_and_dtype_are_axes(golden_session, folder, monkeypatch):
    monkeypatch.setattr("ocr_phases.session.measure_ceilings", lambda *_: None)  # of each new session
    axes = {"attentions": ["sdpa", "eager", None], "dtypes": ["float32", torch.bfloat16, None]}
    ends = ["", "-dtype-bfloat16", "-attention-eager", "-attention-eager-dtype-bfloat16"]
    names = [f"{ONE}{end}" for end in ends]
    # Those of the model's own are the same ones.
    made = dict.fromkeys(names, "measured") | {ONE: "kept"}
    assert states(golden_session, folder, **axes) == made
    found = SweepResult.load(folder)
    model = {cell: (run.model["attention"], run.model["dtype"]) for cell, run in found.runs.items()}
    asked = itertools.product(["sdpa", "eager"], ["float32", "bfloat16"])
    assert model == dict(zip(names, asked, strict=True))
    table = found.table.set_index("cell")
    assert {cell: tuple(row) for cell, row in table[["attention", "dtype"]].T.items()} == model
    # A session of another dtype is another sweep.
    with refused():
        outcomes(golden_session.with_model(dtype="bfloat16"), folder)
    # What a class cannot have is a failed cell, and the others are there.
    flash = outcomes(golden_session, folder, attentions=["flash_attention_2", "eager"])
    told = {outcome.cell.attention: outcome.state for outcome in flash}
    assert told == {"flash_attention_2": "failed", "eager": "kept"}


def test_a_cell_that_fails_keeps_its_reason_and_stops_nothing(golden_session, folder, monkeypatch):
    axes = {"batches": [1, 2], "lengths": [99_999, 2]}
    real = golden_session.run_inference

    def limited(pages, *args, **options):
        if len(pages) > 1:
            raise torch.OutOfMemoryError("no room\nfor this")
        return real(pages, *args, **options)

    monkeypatch.setattr(golden_session, "run_inference", limited)
    told = outcomes(golden_session, folder, **axes)
    assert [each.state for each in told] == ["failed", "kept", "failed", "failed"]
    assert "positions" in told[0].reason
    assert told[3].reason == "OutOfMemoryError: no room"
    found = SweepResult.load(folder)
    assert list(found.runs) == [ONE]
    failed = {each.cell.name: each.reason for each in told if each.state == "failed"}
    assert dict(zip(found.failures["cell"], found.failures["reason"], strict=True)) == failed
    assert found.failures["max_new_tokens"].tolist() == [99_999, 2, 99_999]
    # Known to fail: not tried again, until asked to or until something changes, or where that is damaged.
    monkeypatch.undo()
    for retry, last in ((False, "failed"), (True, "measured")):
        again = states(golden_session, folder, **axes, retry_failed=retry)
        assert list(again.values()) == ["failed", "kept", "failed", last]
    assert set(SweepResult.load(folder).failures["max_new_tokens"]) == {99_999}
    for damage in ("", "[" * 100_000, "{}"):
        (folder / "runs" / "tiny-eager-b1-n99999.status.json").write_text(damage)
        assert outcomes(golden_session, folder, **axes)[0].reason == told[0].reason


def test_a_device_that_is_lost_ends_the_sweep_and_fails_no_other_cell(golden_session, folder, monkeypatch):
    def lost(*args, **options):
        monkeypatch.setattr(torch, "zeros", lost)
        raise RuntimeError("CUDA error: device-side assert triggered")

    monkeypatch.setattr(golden_session, "run_inference", lost)
    with refused():
        outcomes(golden_session, folder, batches=[1, 2, 3])
    monkeypatch.undo()
    again = states(golden_session, folder, batches=[1, 2, 3])
    assert list(again.values()) == ["kept", "failed", "measured"]


# -- several models, the verb and the notebook --------------------------------------------------------


def test_the_verb_sets_models_side_by_side(tmp_path, capsys):
    for family in FAMILIES:  # the model's name in a table
        place = GOLDEN if family == DEEPSEEK_OCR else GOLDEN / family
        (tmp_path / family).symlink_to(place / "checkpoint")
    names, out = list(FAMILIES), tmp_path / "out"
    lists = ["--models", ",".join(str(tmp_path / name) for name in names), "--presets", "small,large"]
    command = ["sweep", str(PAGE), *lists, "--batch", "1", "--max-new-tokens", "3", "--device", "cpu"]
    assert main([*command, "--repeats", "1", "--warmup", "0", "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert says(said, "measured", "small768-eager-b1-n3") and says(said, "failed", "large-eager-b1-n3")
    found = SweepResult.load(out)
    assert sorted(set(found.table["model"])) == names
    # A preset of another family stands for its own; what none stands for is a failed cell with its reason.
    assert sorted(found.runs) == [
        "deepseek-ocr-2/small768-eager-b1-n3",
        "deepseek-ocr/large-eager-b1-n3",
        "deepseek-ocr/small-eager-b1-n3",
        "unlimited-ocr/small-eager-b1-n3",
    ]
    assert sorted(found.failures["cell"]) == [f"{name}/large-eager-b1-n3" for name in names[1:]]
    assert all("Unknown preset" in reason for reason in found.failures["reason"])
    # The job that all of them have is compared, not the longest prompt of each.
    compared = models_sentence(found.table)
    assert compared in found.verdict
    assert all(name in compared for name in (*names, "small768")) and "large" not in compared
    assert list(found.curves.drop_duplicates("model")["model"].sort_values()) == names
    elements = Elements((out / "sweep.html").read_text(encoding="utf-8"))
    assert not elements.open
    assert all(part in elements.said for part in (*names, "2 cells", "not be measured", "Unknown preset"))
    assert {path.name for path in out.iterdir()} == {MANIFEST_NAME, "sweep.ipynb", "sweep.html", *names}


@pytest.mark.parametrize("models", ["tiny", [], ["dummy", "dummy"]])
def test_models_are_a_list_of_different_names(models, tmp_path):
    with refused():
        sweep(PAGE, models, folder=tmp_path)


def test_one_model_of_the_list_keeps_its_numbers():
    asked = "dummy:layers=2,experts=8,tiny, dummy:unlimited-ocr,window=16"
    assert model_list(asked) == ["dummy:layers=2,experts=8", "tiny", "dummy:unlimited-ocr,window=16"]


def test_a_folder_without_records_is_told(tmp_path):
    with refused():
        SweepResult.load(tmp_path)
    (tmp_path / "x.status.json").write_text("[")
    with refused():
        SweepResult.load(tmp_path)


# -- tables and pictures ------------------------------------------------------------------------------


def test_the_table_has_a_row_a_record():
    runs = records()
    table = sweep_table(runs)
    assert tuple(table.columns) == SWEEP_COLUMNS
    assert len(table) == len(runs)
    assert table["prefill_len"].is_monotonic_increasing
    for _, row in table.iterrows():
        run = runs[row["cell"]]
        for figure in ("prefill_ms", "inter_token_ms"):
            assert row[figure] == pytest.approx(run[figure])
        assert row["batch"] == len(run.results)
        assert 0 < row["vision_share"] < 1
        # The H200 has a datasheet, the example CPU has not.
        assert (row["step_floor_ms"] < row["inter_token_ms"]) == (row["strategy"] == "cuda_graph")
    whole = (table["ttft_ms"] + table["decode_ms"]).to_numpy()
    assert table["page_ms"].to_numpy() == pytest.approx(whole, rel=0.05)  # of medians, not a median of sums
    assert table["page_ms_p90"].isna().all()  # of three repeats there is no 90th percentile
    assert (table["pages_per_min"] * table["page_ms"] / table["batch"]).to_numpy() == pytest.approx(60_000)


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
    best = rest[rest.index("The fastest decode step") :]
    assert best.count("cuda_graph") == 2 and "compiled" not in best
    # What the repeats do not tell apart has no fastest, and a single repeat tells nothing apart.
    alike = result(eager=(1.0, 1.0, 1.0), cuda_graph=(1.01, 0.99, 1.0))
    assert "fastest" not in alike.verdict and says(alike.verdict, "repeats do not tell")
    single = result(eager=(1.0,), cuda_graph=(0.5,))
    assert single.recommended() is None and says(single.verdict, "single repeat", "nothing is called fastest")


def compiled_too(runs):
    return runs | {f"{cell}-v": altered(run, request={"vision": "compiled"}) for cell, run in runs.items()}


@pytest.mark.parametrize(
    "runs",
    [
        {},
        compiled_too(records(crops=[True], lengths=[60])),
        {"one": make_run(max_tokens=1)},
        {"two": make_run(max_tokens=2, repeats=1, memory=False)},
        {"whole": make_run(generate=True)},
    ],
    ids=["none", "two visions", "one token", "one step", "generate"],
)
@pytest.mark.filterwarnings("error")
def test_every_sweep_is_drawn(runs):
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
