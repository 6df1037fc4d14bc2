"""Damaged records: what loads, every reader can read, and what cannot be read is refused in one
sentence.
"""

import itertools
import json
from dataclasses import replace

import pandas as pd
import pytest
from example_run import altered, make_run
from kernel_example import example_view
from mutants import mutants
from refusals import APPROVED, refused
from surface import page_section, tables_in

from ocr_phases import OcrPhasesError, PhaseRun
from ocr_phases.analyse import sentences as words
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


def with_floors(run):
    """The record with a measured model, device and conditions."""
    measured = PhaseRun.load(APPROVED.with_name("records") / "captured.json.gz")
    return altered(run, device=measured.device, model=to_plain(measured.model))


BASES = [
    with_floors(make_run(text=TEXT, cuda=True, embed=False)),
    replace(
        with_floors(make_run(text=TEXT, repeats=5, embed=False)),
        kernels=make_kernels(example_view()),
    ),
    make_run(text=TEXT, rows=2, first_token="redecode", repeats=2),
    make_run(text=TEXT, generate=True, repeats=2, embed=False),
]


def compared(run, base):
    pairs = [Comparison([base, run]), Comparison([run, base])]
    html = compare_html, environment_html
    return [(two.verdict, html[0](two.table), html[1](two.differs)) for two in pairs]


def swept(run, base):
    found = SweepResult({"base": base, "run": run}, pd.DataFrame())
    return found.verdict, cells_html(found.table), found.curves


def draw_everything(run, base):
    pair = Comparison([base, run])
    for name in ("latency", "vision", "timeline", "memory", "roofline", "kernels"):
        getattr(run.plot, name)().bundle(still=False)
    for name in ("stages", "decode", "ratios"):
        getattr(pair.plot, name)().bundle(still=False)
    try:
        head_html(run), page_section(run).html()
    except OcrPhasesError as error:  # the embedded page is read when it is shown
        assert run.page.file in str(error) or "image" in str(error)


SECTIONS = (
    cards_section,
    stages_section,
    floors_section,
    text_notes_section,
    method_section,
    checks_section,
    kernels_section,
)
#: Every reader of a record, with a whole one beside it: the quick ones, then what takes longer.
QUICK = {
    "texts": lambda run, _: (
        run.summary(),
        [result_markdown(r.text or "") for r in run.results],
    ),
    "a batch's page": lambda run, _: figures.page_figures(run, "", "", ""),
    "regions": lambda run, _: regions_html(run.regions),
}
SLOW = {
    "tables": lambda run, _: tables_in(run),
    "sentences": lambda run, _: (
        repr(run),
        words.verdict(run),
        words.checks_verdict(run_checks(run)),
    ),
    "sections": lambda run, _: [section(run).html() for section in SECTIONS],
    "compared": compared,
    "swept": swept,
}


def as_file(record):
    return json.dumps(record).encode()


def plain(run):
    return json.loads(as_file(run.to_dict()))


def loaded_mutants(base, count, seed):
    """The damaged copies of a record that load, with what was done to each; others are refused."""
    for number, (told, damaged) in enumerate(mutants(plain(base), count, seed)):
        try:
            run = PhaseRun.from_json(as_file(damaged))
            if number % 4 == 0:  # NaN and surrogates come this way alone
                PhaseRun.from_dict(damaged)
        except OcrPhasesError as error:
            assert "\n" not in str(error)
        else:
            assert PhaseRun.from_dict(run.to_dict()).to_dict() == run.to_dict()
            yield told, run


@pytest.mark.parametrize("number", range(len(BASES)))
def test_what_loads_can_be_read(number):
    """The record meets every reader; each damaged one that loads a quick one, one in ten a slow
    one.
    """
    base, broken = BASES[number], []
    quick, slow = itertools.cycle(QUICK), itertools.cycle(SLOW)
    for loaded, (told, run) in enumerate(
        [("nothing", base), *loaded_mutants(base, 45, seed=number)]
    ):
        readers = [*QUICK, *SLOW] if loaded == 0 else [next(quick)]
        readers += [next(slow)] if loaded % 10 == 5 else []
        readers += (
            ["all drawn"] if loaded == 4 and number else []
        )  # the second base has all of the first
        for name in readers:
            try:
                ({"all drawn": draw_everything} | QUICK | SLOW)[name](run, base)
            except Exception as error:  # noqa: BLE001  (all of them are told, not the first alone)
                broken.append(f"{name} after {told}: {type(error).__name__} {error}")
    assert not broken, "\n".join(broken)
    assert 5 < loaded < 50


def test_no_verb_ends_in_a_traceback(tmp_path, monkeypatch, capsys):
    """The real command line: what loads is shown or refused, what does not is refused, in one
    sentence.
    """
    monkeypatch.setattr(
        "ocr_phases.report.render.write_report", lambda *_, **__: tmp_path / "x.html"
    )
    base, path = (tmp_path / name for name in ("base.json", "run.json"))
    BASES[0].save(base)
    verbs = ["verify", "--record"], ["compare", str(base)], ["artifacts"]
    for number, (_, damaged) in enumerate(mutants(plain(BASES[0]), 12, seed=77)):
        path.write_bytes(as_file(damaged))
        code = main([*verbs[number % 3], str(path), "--out", str(tmp_path / "out"), "--overwrite"])
        told = capsys.readouterr()
        assert code in (0, 1) or told.err.startswith("ocr-phases: "), told.err
        said = [line for line in told.err.splitlines() if not line.startswith("Replacing in ")]
        assert len(said) == (code == 2)


def test_a_record_asks_for_settings_and_nothing_else(monkeypatch, tmp_path):
    from ocr_phases.session import repeating as repeat

    base = BASES[0]
    asked = {
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
    record = PhaseRun.from_dict(plain(altered(base, request=to_plain(base.request) | asked)))
    seen = {}

    class Session:
        def run_inference(self, page, prompt, **settings):
            seen.update(settings)
            return base

    monkeypatch.setattr(repeat, "load_recorded", lambda *args, **options: Session())
    monkeypatch.setattr(repeat, "recorded_pages", lambda *args: [b"page"])
    repeat.repeat_run(record)
    assert not any(seen.get(name) == value for name, value in asked.items())
    assert {"repeats", "warmup", "seed", "max_new_tokens", "preset"} <= set(seen)
    monkeypatch.undo()
    with refused():
        repeat.load_recorded(altered(base, model={"revision": None}))
