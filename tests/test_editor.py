"""What a type checker says of calls of the public names: wrong ones are found, right ones pass."""

import subprocess
import sys
from pathlib import Path

import pytest
from surface import tables_of

from ocr_phases import PhaseRun

ROOT = Path(__file__).parents[1]

PREAMBLE = """
from pathlib import Path
from ocr_phases import OCRSession, PhaseRun, SweepResult, Timeline, compare, connect, sweep
session = OCRSession.load("tiny")
run = session.run_inference("page.png")
"""

#: Each is an error by itself.
WRONG = [
    'OCRSession.load("tiny", devise="cpu")',
    'OCRSession.load("tiny", dtype="float61")',
    'session.run_inference("page.png", repeets=3)',
    'session.run_inference("page.png", max_new_tokens="many")',
    'session.run_inference("page.png", strategy="cudagraph")',
    'session.check_request("page.png", warmups=1)',
    'session.prepare("page.png", presets=["base"])',
    'session.sweep("page.png", preset="base")',
    'sweep("page.png", model=["tiny"])',
    'connect("http://127.0.0.1:8000/v1", apikey="x")',
    "run.plot.latensy()",
    "run.plot.latency(axes=None)",
    'run.plot.page(colour="time")',
    "run.stages.foo()",
    "run.tokens.foo()",
    "run.modell",
    "run.summery()",
    "run.report()",
    'run.save("run.json", overwright=True)',
    "compare(run, run).plot.stage()",
    "compare(run, run, label=['a', 'b'])",
    'SweepResult.load("swept").plot.latency()',
    'Timeline("cpu").tabel()',
    "PhaseRun.load(123)",
]

RIGHT = """
import torch
from matplotlib.figure import Figure
import pandas as pd
settings = OCRSession.load(Path("folder"), device="cuda", dtype=torch.float16, attention="sdpa")
inputs = session.prepare("page.png", "ocr", preset="base")
timeline = Timeline(session.device)
state = session.run_prefill(inputs, timeline)
session.run_decode_step(state, timeline)
table: pd.DataFrame = timeline.table()
measured: PhaseRun = session.run_inference(
    ["a.png", "b.png"],
    ["markdown", "ocr"],
    infer={"temperature": 0.7},
    strategy="compiled",
    progress=print,
)
figure: Figure = run.plot.latency()
page: Figure = run.plot.page(color="time")
stages: pd.DataFrame = run.stages
priced: float = run["prefill_ms"]
saved: Path = run.save("run.json", overwrite=True)
text: str | None = PhaseRun.load("run.json").text
change = compare(run, "b.json", labels=["a", "b"])
ratios: Figure = change.plot.ratios()
verdict: str = change.verdict
swept: SweepResult = session.sweep("page.png", presets=["base"], batches=[1, 2], progress=print)
many: SweepResult = sweep("page.png", ["tiny", "dummy"], load={"device": "cpu"})
cells: pd.DataFrame = many.table
server = connect("http://127.0.0.1:8000/v1", api_key="x").run_inference("page.png", repeats=1)
"""


#: What has a type that an editor can show.
TYPED = [
    "run",
    "run.plot",
    "run.plot.vision()",
    *(f"run.{name}" for name in tables_of(PhaseRun)),
    "run.quality()",
    "run.summary()",
    "run.text",
    "run.page_image()",
    "run.report('out')",
    "run.explore()",
    "run.with_truth('page.md')",
    "session.prepare('page.png')",
    "session.check_request('page.png')",
    "session.run_prefill(session.prepare('page.png'))",
    "session.sweep('page.png')",
    "session.sweep('page.png').table",
    "session.sweep('page.png').plot.decode()",
    "session.sweep('page.png').first",
    "session.last_run",
    "sweep('page.png')",
    "compare(run, run)",
    "compare(run, run).table",
    "compare(run, run).runs",
    "compare(run, run).plot.ratios()",
    "connect('http://127.0.0.1:8000/v1')",
    "connect('http://127.0.0.1:8000/v1').run_inference('page.png')",
    "OCRSession.connect('http://127.0.0.1:8000/v1')",
    "Timeline('cpu').table()",
    "Timeline('cpu').plot()",
]


#: The files of a user of the package, by name.
FILES = {
    "wrong.py": PREAMBLE + "\n".join(WRONG) + "\n",
    "right.py": PREAMBLE + RIGHT,
    "typed.py": PREAMBLE + "\n".join(f"reveal_type({expression})" for expression in TYPED) + "\n",
}


@pytest.fixture(scope="module")
def mypy_lines(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """What mypy says of each file that a user of the package may have."""
    folder = tmp_path_factory.mktemp("user")
    for name, source in FILES.items():
        (folder / name).write_text(source, encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml")]
    command += [str(folder / name) for name in FILES]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode in (0, 1), done.stderr

    lines = done.stdout.splitlines()
    elsewhere = [line for line in lines if ": error: " in line and not line.startswith(str(folder))]
    assert elsewhere == []
    return {name: [line for line in lines if line.startswith(str(folder / name))] for name in FILES}


def errors_by_line(lines: list[str]) -> dict[int, str]:
    """mypy's errors of a file, by line."""
    errors = {}
    for line in lines:
        place, _, message = line.partition(": error: ")
        if message:
            errors[int(place.rpartition(":")[2])] = message
    return errors


def test_every_wrong_call_is_found(mypy_lines: dict[str, list[str]]) -> None:
    errors = errors_by_line(mypy_lines["wrong.py"])
    first = PREAMBLE.count("\n") + 1
    missed = [call for number, call in enumerate(WRONG, first) if number not in errors]
    assert missed == []


def test_every_right_call_passes(mypy_lines: dict[str, list[str]]) -> None:
    assert errors_by_line(mypy_lines["right.py"]) == {}


def test_what_a_user_holds_has_a_type(mypy_lines: dict[str, list[str]]) -> None:
    notes = [line for line in mypy_lines["typed.py"] if "Revealed type is" in line]
    untyped = [
        expression
        for expression, note in zip(TYPED, notes, strict=True)
        if note.endswith('"Any"') or "[Any" in note
    ]
    assert untyped == []
