"""Damaged records: what loads, every reader can read, and what cannot be read is refused in one
sentence.
"""

import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from example_run import altered, make_run
from kernel_example import example_view
from mutants import mutants
from refusals import APPROVED, refused
from surface import page_section, tables_in

from ocr_phases import OcrPhasesError, PhaseRun
from ocr_phases.analyse import sentences
from ocr_phases.analyse.checks import run_checks
from ocr_phases.batch import figures
from ocr_phases.cli import main
from ocr_phases.record.parts import make_kernels, to_plain
from ocr_phases.report.result_files import result_markdown
from ocr_phases.results.comparison import Comparison
from ocr_phases.results.sweep import SweepResult
from ocr_phases.show.checks_section import checks_section
from ocr_phases.show.comparison_overview import compare_html, environment_html
from ocr_phases.show.kernel_section import kernels_section
from ocr_phases.show.method_section import method_section
from ocr_phases.show.page import regions_html
from ocr_phases.show.page_and_text import text_notes_section
from ocr_phases.show.run_overview import cards_section, head_html
from ocr_phases.show.run_times import floors_section, stages_section
from ocr_phases.show.sweep_overview import cells_html

TEXT = "A title <|ref|>text<|/ref|><|det|>[[60, 40, 620, 90]]<|/det|>\nOne line of it."


def with_floors(run: PhaseRun) -> PhaseRun:
    """The record with a measured model, device and conditions."""
    measured = PhaseRun.load(APPROVED.with_name("records") / "captured.json.gz")
    return altered(run, device=measured.device, model=to_plain(measured.model))


#: Whole records of different shapes, which are damaged.
BASES = [
    with_floors(make_run(text=TEXT, cuda=True, embed=False)),
    replace(
        with_floors(make_run(text=TEXT, repeats=5, embed=False)),
        kernels=make_kernels(example_view()),
    ),
    make_run(text=TEXT, rows=2, first_token="redecode", repeats=2),
    make_run(text=TEXT, generate=True, repeats=2, embed=False),
]


# -- the readers of a record, each with a whole record beside it -----------------------------------

Reader = Callable[[PhaseRun, PhaseRun], object]


def read_texts(run: PhaseRun, base: PhaseRun) -> None:
    run.summary()
    for result in run.results:
        result_markdown(result.text or "")


def read_batch_figures(run: PhaseRun, base: PhaseRun) -> None:
    figures.page_figures(run, "", "", "")


def read_regions(run: PhaseRun, base: PhaseRun) -> None:
    regions_html(run.regions)


def read_tables(run: PhaseRun, base: PhaseRun) -> None:
    tables_in(run)


def read_sentences(run: PhaseRun, base: PhaseRun) -> None:
    repr(run)
    sentences.verdict(run)
    sentences.checks_verdict(run_checks(run))


def read_sections(run: PhaseRun, base: PhaseRun) -> None:
    for section in (
        cards_section,
        stages_section,
        floors_section,
        text_notes_section,
        method_section,
        checks_section,
        kernels_section,
    ):
        section(run).html()


def compare_both_ways(run: PhaseRun, base: PhaseRun) -> None:
    for pair in (Comparison([base, run]), Comparison([run, base])):
        _ = pair.verdict
        compare_html(pair.table)
        environment_html(pair.differs)


def read_sweep(run: PhaseRun, base: PhaseRun) -> None:
    sweep = SweepResult({"base": base, "run": run}, pd.DataFrame())
    _ = sweep.verdict
    cells_html(sweep.table)
    _ = sweep.curves


def draw_everything(run: PhaseRun, base: PhaseRun) -> None:
    pair = Comparison([base, run])
    for plot in (
        run.plot.latency,
        run.plot.vision,
        run.plot.timeline,
        run.plot.memory,
        run.plot.roofline,
        run.plot.kernels,
        pair.plot.stages,
        pair.plot.decode,
        pair.plot.ratios,
    ):
        plot().bundle(still=False)
    try:
        head_html(run)
        page_section(run).html()
    except OcrPhasesError as error:  # the embedded page is read when it is shown
        assert run.page.file in str(error) or "image" in str(error)


QUICK_READERS: list[Reader] = [read_texts, read_batch_figures, read_regions]
SLOW_READERS: list[Reader] = [
    read_tables,
    read_sentences,
    read_sections,
    compare_both_ways,
    read_sweep,
]


# -- damaged records -------------------------------------------------------------------------------


def as_file(content: Any) -> bytes:
    """A record's content as its file has it."""
    return json.dumps(content).encode()


def content_of(run: PhaseRun) -> Any:
    """What a record's file holds."""
    return json.loads(as_file(run.to_dict()))


def loaded_mutants(base: PhaseRun, count: int, seed: int) -> Iterator[tuple[str, PhaseRun]]:
    """The damaged copies of a record that load, with what was done to each; others are refused."""
    for number, (change, damaged) in enumerate(mutants(content_of(base), count, seed)):
        try:
            run = PhaseRun.from_json(as_file(damaged))
            if number % 4 == 0:  # NaN and surrogates come this way alone
                PhaseRun.from_dict(damaged)
        except OcrPhasesError as error:
            assert "\n" not in str(error)
        else:
            assert PhaseRun.from_dict(run.to_dict()).to_dict() == run.to_dict()
            yield change, run


def faults(readers: list[Reader], run: PhaseRun, base: PhaseRun, change: str) -> list[str]:
    """A line for each reader that fails on the record, all of them and not the first alone."""
    lines = []
    for read in readers:
        try:
            read(run, base)
        except Exception as error:  # noqa: BLE001
            lines.append(f"{read.__name__} after {change}: {type(error).__name__} {error}")
    return lines


@pytest.mark.parametrize("number", range(len(BASES)))
def test_every_reader_reads_a_whole_record(number: int) -> None:
    base = BASES[number]
    assert faults([*QUICK_READERS, *SLOW_READERS], base, base, "nothing") == []


@pytest.mark.parametrize("number", range(len(BASES)))
def test_what_loads_can_be_read(number: int) -> None:
    """Each damaged record that loads meets a quick reader, and one in ten a slow one, too."""
    base = BASES[number]
    quick_readers = itertools.cycle(QUICK_READERS)
    slow_readers = itertools.cycle(SLOW_READERS)

    loaded = 0
    broken = []
    for change, run in loaded_mutants(base, 45, seed=number):
        loaded += 1
        readers = [next(quick_readers)]
        if loaded % 10 == 5:
            readers.append(next(slow_readers))
        if loaded == 4 and number > 0:  # the second base has all of the first
            readers.append(draw_everything)
        broken += faults(readers, run, base, change)

    assert not broken, "\n".join(broken)
    assert 5 < loaded < 50


def test_no_verb_ends_in_a_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The real command line: what loads is shown or refused, what does not is refused, in one
    sentence.
    """
    monkeypatch.setattr(
        "ocr_phases.report.render.write_report", lambda *_, **__: tmp_path / "x.html"
    )
    base = BASES[0].save(tmp_path / "base.json")
    path = tmp_path / "run.json"
    verbs = itertools.cycle([["verify", "--record"], ["compare", str(base)], ["artifacts"]])

    for _, damaged in mutants(content_of(BASES[0]), 12, seed=77):
        path.write_bytes(as_file(damaged))
        code = main([*next(verbs), str(path), "--out", str(tmp_path / "out"), "--overwrite"])

        said = capsys.readouterr().err
        lines = [line for line in said.splitlines() if not line.startswith("Replacing in ")]
        if code == 2:
            assert len(lines) == 1
        else:
            assert lines == []
        assert code in (0, 1) or said.startswith("ocr-phases: "), said


def test_a_record_asks_for_settings_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from ocr_phases.session import repeating

    base = BASES[0]
    foreign = {
        "kernels": True,
        "kernel_trace": str(tmp_path / "out"),
        "kernel_steps": 9,
        "ceilings": False,
        "on_tokens": "x",
        "progress": "x",
        "page": "/etc/passwd",
        "self": "x",
        "new": "x",
    }
    request = to_plain(base.request) | foreign
    record = PhaseRun.from_dict(content_of(altered(base, request=request)))
    asked: dict[str, Any] = {}

    class Session:
        """Notes what it is asked to measure."""

        def run_inference(self, page: object, prompt: object, **settings: Any) -> PhaseRun:
            asked.update(settings)
            return base

    monkeypatch.setattr(repeating, "load_recorded", lambda *args, **options: Session())
    monkeypatch.setattr(repeating, "recorded_pages", lambda *args: [b"page"])

    repeating.repeat_run(record)

    for name, value in foreign.items():
        assert asked.get(name) != value
    assert {"repeats", "warmup", "seed", "max_new_tokens", "preset"} <= set(asked)


def test_a_record_that_names_no_revision_of_its_model_is_not_repeated() -> None:
    from ocr_phases.session import repeating

    with refused():
        repeating.load_recorded(altered(BASES[0], model={"revision": None}))
