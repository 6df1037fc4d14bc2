"""One table of bad inputs: each is refused in one sentence or read as far as it can be, and nothing else is lost.

A section is a room or a kind of input; each row is one bad input.
"""

from __future__ import annotations

import builtins
import contextlib
import io
from collections.abc import Callable

import pytest
from example_run import make_run
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

import ocr_phases
from ocr_phases.measure.session import OCRSession

# -- text of a model or a truth: read within two seconds of CPU, or refused ---------------------------------


# -- lists of pages: a bad line fails alone -------------------------------------------------------------------


# -- records, settings and names ------------------------------------------------------------------------------


# -- calls in a notebook cell ---------------------------------------------------------------------------------

#: A call, what its error is besides an `OcrPhasesError`, and what its one line says.
CALLS = (
    ('session.run_inference("page.png", max_tokens=64)', "TypeError", "Did you mean max_new_tokens?"),
    ('session.run_inference("page.png", max_length=64)', "TypeError", "max_new_tokens"),
    ('session.run_inference("page.png", base_size=1024)', "TypeError", "preset"),
    ('session.run_inference("page.png", images=[])', "TypeError", "prepare"),
    ('session.run_inference("page.png", past_key_values=None)', "TypeError", "DecodeState"),
    ('session.run_inference("page.png", streamer=print)', "TypeError", "on_tokens"),
    ('session.run_inference("page.png", dtype="float32")', "TypeError", "OCRSession.load"),
    ("session.run_inference()", "TypeError", "page"),
    ("session.run_inference(None)", "Exception", "NoneType"),
    ("session.run_inference(numpy.zeros((3, 3)))", "Exception", "ndarray"),
    ("session.run_inference([])", "Exception", "page"),
    ('session.run_inference("data/pages/receipt.png", progress=5)', "TypeError", "progress is 5"),
    ('session.prepare("page.png", presets="tiny")', "TypeError", "Did you mean preset?"),
    ('session.prepare("data/pages/receipt.png", preset="tinny")', "Exception", "'tinny'"),
    ('session.sweep("page.png", max_new_tokens=4)', "TypeError", "lengths"),
    ('session.sweep("page.png", lengths=[1.5])', "Exception", "1.5"),
    ('session.run_prefill("page.png")', "TypeError", "PageInputs or DeviceInputs"),
    ('session.run_decode_step("page.png")', "TypeError", "DecodeState"),
    ("session.modle", "AttributeError", "Did you mean model?"),
    ('OCRSession.load(modle="tiny")', "TypeError", "Did you mean model?"),
    ('OCRSession.load("tiny", torch_dtype="float16")', "TypeError", "dtype"),
    ('OCRSession.load("tiny", _attn_implementation="sdpa")', "TypeError", "attention"),
    ('OCRSession.load("tiny", repeats=3)', "TypeError", "run_inference"),
    ('OCRSession.load("tiny", device=0)', "Exception", "device"),
    ("OCRSession.load(session.model)", "Exception", "model is of type"),
    ('sweep("page.png", model=["tiny"])', "TypeError", "Did you mean models?"),
    ('Timeline("gpu")', "Exception", "'gpu'"),
    ("Settings(max_tokens=3)", "TypeError", "Did you mean max_new_tokens?"),
    ("decode(session.model, None, 1.5)", "TypeError", "state is None"),
    ("generate(session.model, None, 3, pad=1)", "TypeError", "Did you mean pad_id?"),
    ('run["prefil_ms"]', "KeyError", "Did you mean prefill_ms?"),
    ("run.plot.latncy()", "AttributeError", "Did you mean latency?"),
    ("run.tokens_of(9)", "KeyError", "row 9"),
    ("run.save(5)", "TypeError", "path is 5"),
    ("PhaseRun.load(123)", "TypeError", "path is 123"),
    ('compare(run, "nofile.json")', "Exception", "nofile.json"),
    ("compare([run, run])", "TypeError", "PhaseRun, str or Path"),
    ('compare(run, run, labels=["a", "b"]).plot.stagse()', "AttributeError", "Did you mean stages?"),
    ("ocr_phases.OCRSesion", "AttributeError", "Did you mean OCRSession?"),
)


@pytest.fixture(scope="module")
def cell(tiny_session: OCRSession) -> Callable[[str], tuple[BaseException | None, str]]:
    """Runs a cell in IPython: its error, and all that it printed."""
    shell = InteractiveShell(config=Config(HistoryManager={"enabled": False}), colors="NoColor")
    public = {name: getattr(ocr_phases, name) for name in ocr_phases.__all__}
    shell.push({**public, "ocr_phases": ocr_phases, "session": tiny_session, "run": make_run()})
    shell.run_cell("import numpy")

    def run(code: str) -> tuple[BaseException | None, str]:
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            result = shell.run_cell(code)
        return result.error_in_exec, printed.getvalue().strip()

    return run


@pytest.mark.parametrize(("code", "kind", "said"), CALLS, ids=[call[0] for call in CALLS])
def test_a_wrong_call_is_one_line_in_a_cell(cell: Callable, code: str, kind: str, said: str) -> None:
    error, printed = cell(code)
    assert isinstance(error, ocr_phases.OcrPhasesError)
    assert isinstance(error, getattr(builtins, kind))
    assert said in str(error)
    assert printed == f"{type(error).__name__}: {error}"


def test_the_traceback_is_a_second_look_or_a_switch(cell: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    cell("PhaseRun.load(123)")
    assert "Traceback" in cell("%tb")[1]
    monkeypatch.setenv("OCR_PHASES_TRACEBACK", "1")
    assert "Traceback" in cell("PhaseRun.load(123)")[1]


def test_an_error_of_the_caller_s_own_function_stays(tiny_session: OCRSession) -> None:
    def progress(done: int, total: int) -> None:
        raise TypeError("mine")

    with pytest.raises(TypeError, match="^mine$"):
        tiny_session.run_inference("data/pages/receipt.png", preset="tiny", progress=progress)


# -- command lines --------------------------------------------------------------------------------------------


# -- the environment: streams, backends, the current folder ---------------------------------------------------
