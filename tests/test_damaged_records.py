"""Damaged records: what loads, every reader can read, and what cannot be read is refused in one sentence."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pandas as pd
import pytest
from example_run import make_run
from kernel_example import example_view
from mutants import mutants
from refusals import refused

from ocr_phases import OcrPhasesError, PhaseRun
from ocr_phases.analyse import scaling
from ocr_phases.analyse import sentences as words
from ocr_phases.analyse.checks import run_checks
from ocr_phases.analyse.comparison import Comparison
from ocr_phases.batch import figures
from ocr_phases.batch.index import build_index
from ocr_phases.batch.jobs import Job
from ocr_phases.batch.store import list_pages
from ocr_phases.cli import main
from ocr_phases.report.artifacts import result_markdown
from ocr_phases.show import page as page_view
from ocr_phases.show import results, results_many
from ocr_phases.store import file_hash, write_status
from ocr_phases.versions import asset

TEXT = "A title <|ref|>text<|/ref|><|det|>[[60, 40, 620, 90]]<|/det|>\nOne line of it."


STATE = {"sm_mhz": 1980, "max_sm_mhz": 1980, "throttle_reasons": 0, "utilization": 3.0, "other_processes": 0}
REPEAT = {"wall_s": 2.0, "cpu_s": 1.9, "waited_s": 0.01, "others": 0.02, "steal": 0.0}
LOADS = {"load_start": 1.0, "load_end": 1.1}
CONDITIONS = {
    "repeats": [{"repeat": number, **REPEAT, **LOADS} for number in range(3)],
    "gpu": {"before": STATE, "after": STATE},
}


def with_floors(run: PhaseRun) -> PhaseRun:
    """The record with a model whose cost is known and a device whose ceilings are."""
    measured = PhaseRun.from_json(asset("data", "runs", "h200-dummy-gundam.json").read_bytes())
    device = measured.device | {"conditions": CONDITIONS, "host_cores": 16, "threads": 8}
    return replace(run, device=device, model=run.model | measured.model)


BASES = [
    with_floors(make_run(text=TEXT, cuda=True, embed=False)),
    replace(with_floors(make_run(text=TEXT, repeats=5, embed=False)), kernels=example_view()),
    make_run(text=TEXT, rows=2, first_token="redecode", repeats=2),
    make_run(text=TEXT, generate=True, repeats=2, embed=False),
]


def as_file(record: dict[str, Any]) -> bytes:
    return json.dumps(record).encode()


def tables(run: PhaseRun, base: PhaseRun) -> object:
    return [getattr(run, name) for name in ("stages", "tokens", "regions", "floors", "checks", "token_table")]


def texts(run: PhaseRun, base: PhaseRun) -> object:
    written = [result["text"] for result in run.results if result["text"] is not None]
    return repr(run), run.summary(), [result_markdown(text) for text in written]


def page_of_a_batch(run: PhaseRun, base: PhaseRun) -> object:
    return figures.page_figures(run, "", "", ""), page_view.regions_html(run.regions)


def same_again(run: PhaseRun, base: PhaseRun) -> None:
    assert PhaseRun.from_dict(run.to_dict()).to_dict() == run.to_dict()


def sentences(run: PhaseRun, base: PhaseRun) -> object:
    return words.headline(run), words.verdict(run), words.checks_verdict(run_checks(run))


def sections(run: PhaseRun, base: PhaseRun) -> object:
    parts = (results.cards, results.stages, results.floors, results.text_notes, results.method)
    return [part(run).html() for part in (*parts, results.checks, results.kernels)]


def compared(run: PhaseRun, base: PhaseRun) -> None:
    for pair in ([base, run], [run, base]):
        found = Comparison(pair)
        assert found.verdict
        results_many.compare_html(found.table), results_many.environment_html(found.differs)


def swept(run: PhaseRun, base: PhaseRun) -> None:
    found = scaling.SweepResult({"base": base, "run": run}, pd.DataFrame())
    assert found.verdict
    results_many.cells_html(found.table), found.curves


QUICK = (texts, page_of_a_batch, same_again)
SLOW = (tables, sentences, sections, compared, swept)


def draw_everything(run: PhaseRun, base: PhaseRun) -> None:
    pair = Comparison([base, run])
    for name in ("latency", "vision", "timeline", "memory", "roofline", "kernels"):
        getattr(run.plot, name)()._repr_mimebundle_()
    for name in ("stages", "decode", "ratios"):
        getattr(pair.plot, name)()._repr_mimebundle_()
    try:
        results.head_html(run), results.page(run).html()
    except OcrPhasesError as error:  # the embedded page is read when it is shown
        assert run.page["file"] in str(error) or "image" in str(error)


def plain(run: PhaseRun) -> dict[str, Any]:
    return json.loads(as_file(run.to_dict()))


def loaded_mutants(base: PhaseRun, count: int, seed: int) -> Iterator[tuple[str, PhaseRun]]:
    """The damaged copies of a record that load, with what was done to each; the others are refused."""
    for number, (told, damaged) in enumerate(mutants(plain(base), count, seed)):
        try:
            run = PhaseRun.from_json(as_file(damaged))
            if number % 4 == 0:  # NaN and surrogates come this way alone
                PhaseRun.from_dict(damaged)
        except OcrPhasesError as error:
            assert "\n" not in str(error)
        else:
            yield told, run


@pytest.mark.parametrize("number", range(len(BASES)))
def test_what_loads_can_be_read(number):
    """The record meets every reader; each damaged one that loads a quick one, one in ten a slow one."""
    base = BASES[number]
    quick, slow = itertools.cycle(QUICK), itertools.cycle(SLOW)
    loaded, broken = 0, []
    for told, run in [("nothing", base), *loaded_mutants(base, 120, seed=number)]:
        readers = [*QUICK, *SLOW] if loaded == 0 else [next(quick)]
        readers += [next(slow)] if loaded % 10 == 5 else []
        readers += [draw_everything] if loaded == 7 else []
        loaded += 1
        for reader in readers:
            try:
                reader(run, base)
            except Exception as error:  # noqa: BLE001  (all of them are told, not the first alone)
                broken.append(f"{reader.__name__} after {told}: {type(error).__name__} {error}")
    assert not broken, "\n".join(broken)
    assert 10 < loaded < 100


def test_no_verb_ends_in_a_traceback(tmp_path, capsys):
    """The real command line: what loads is shown or refused, what does not is refused, in one sentence."""
    base = BASES[0].save(tmp_path / "base.json")
    path = tmp_path / "run.json"
    for number, (_, damaged) in enumerate(mutants(plain(BASES[0]), 24, seed=77)):
        path.write_bytes(as_file(damaged))
        verb = (
            ["verify", "--record", str(path)],
            ["compare", str(base), str(path)],
            ["artifacts", str(path), "--out", str(tmp_path / "out")],
        )[number % 3]
        code = main(verb)
        told = capsys.readouterr()
        assert code in (0, 1) or told.err.startswith("ocr-phases: "), told.err
        said = [line for line in told.err.splitlines() if not line.startswith("Replacing in ")]
        assert len(said) == (code == 2)


def test_a_batch_with_damaged_records_has_its_index(tmp_path):
    listed = []
    done = {"state": "done", "failure": None, "reason": "", "report": None}
    for number, (_, damaged) in enumerate(mutants(plain(BASES[3]), 40, seed=5)):
        job = Job(
            f"{number}.png", f"/{number}.png", f"{number}", {"model": "tiny", "preset": "base"}, {}, None
        )
        listed.append(job)
        folder = tmp_path / job.folder
        folder.mkdir(parents=True)
        (folder / "run.json").write_bytes(as_file(damaged))
        known = {"record": file_hash(folder / "run.json"), "attempts": [{"failure": None, "seconds": 1.0}]}
        write_status(folder / "status.json", {**vars(job), **done, **known})
    list_pages(listed, tmp_path)
    pages = build_index(tmp_path).pages
    assert len(pages) == 40
    assert {"done", "failed"} == set(pages["status"])
    assert pages.loc[pages["status"] == "failed", "reason"].str.contains("record").all()


def test_a_record_asks_for_settings_and_nothing_else(monkeypatch, tmp_path):
    from ocr_phases import session as repeat

    base = BASES[0]
    asked = {
        "kernels": True, "kernel_trace": str(tmp_path / "out"), "kernel_steps": 9, "ceilings": False,
        "on_tokens": "x", "progress": "x", "page": "/etc/passwd", "self": "x", "new": "x",
    }  # fmt: skip
    record = PhaseRun.from_dict(plain(replace(base, request=base.request | asked)))
    seen: dict[str, Any] = {}

    class Session:
        def run_inference(self, page, prompt, **settings):
            seen.update(settings)
            return base

    monkeypatch.setattr(repeat, "load_recorded", lambda *args, **options: Session())
    monkeypatch.setattr(repeat, "recorded_pages", lambda *args: [b"page"])
    repeat.repeat_run(record)
    assert not set(asked) & set(seen)
    assert {"repeats", "warmup", "seed", "max_new_tokens", "preset"} <= set(seen)
    monkeypatch.undo()
    lost = {name: value for name, value in base.model.items() if name != "revision"}
    with refused():
        repeat.load_recorded(replace(base, model=lost))
