"""One table of bad inputs: each is refused in one sentence or read as far as it can be; nothing else is lost.

A section is a room or a kind of input; each row is one bad input.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import PAGES, RECORD

from ocr_phases import PhaseRun
from ocr_phases.batch.job import make_jobs
from ocr_phases.batch.manifest import find_pages
from ocr_phases.cli import main
from ocr_phases.errors import OcrPhasesError
from ocr_phases.families import resolve_prompt

# -- text of a model or a truth: read within two seconds of CPU, or refused ------------------


# -- lists of pages: a bad line fails alone ----------------------------------------

DEEP = "[" * 100_000
#: A list's name, its second line, and how that fails: as a page of its own, or as a refusal that names it.
LINES = [
    ("a.jsonl", '{"page": "a\\u0000b"}', "can be no file's name"),
    ("a.jsonl", '{"page": "~\\u0000/b.png"}', "can be no file's name"),
    ("a.csv", "a\0b,", "can be no file's name"),
    ("a.jsonl", '{"page": "~nosuch/x.png"}', ""),
    ("a.jsonl", f'{{"page": "{"x" * 300}"}}', ""),
    ("a.jsonl", '{"page": "b.png", "model": "~nosuch"}', ""),
    ("a.jsonl", f'{{"page": "b.png", "model": "{"x" * 300}"}}', ""),
    ("a.csv", "b.png,~nosuch", ""),
    ("a.jsonl", '{"page": "\\ud800.png"}', "line 2: it is no JSON"),
    ("a.jsonl", DEEP, "line 2: its JSON is nested too deeply"),
    ("a.jsonl", f'{{"page": "b.png", "infer": {{"a": {"[" * 900}{"]" * 900}}}}}', "line 2: .*infer"),
    ("a.jsonl", '{"page": "b.png", "infer": {"temperature": Infinity}}', "line 2: it is no JSON"),
    ("a.jsonl", '{"page": "b.png", "infer": {"temperature": 1e999}}', "line 2: "),
    ("a.jsonl", f'{{"page": "b.png", "seed": {"9" * 5000}}}', "line 2: "),
    ("a.csv", f"b.png,{DEEP}", ""),
]


@pytest.mark.parametrize(("name", "line", "said"), LINES)
def test_a_bad_line_of_a_list_fails_alone_or_is_named(
    name: str, line: str, said: str, tmp_path: Path
) -> None:
    (tmp_path / "good.png").write_bytes(b"1")
    good = '{"page": "good.png"}' if name == "a.jsonl" else "page,model\ngood.png,"
    (tmp_path / name).write_text(f"{good}\n{line}\n", encoding="utf-8-sig")
    try:
        pages = find_pages([str(tmp_path / name)], ["model", "infer", "seed"])
        first, second = make_jobs(pages, {"model": "tiny"})
    except OcrPhasesError as error:
        assert "line 2" in said and re.search(said, str(error)) and len(str(error)) < 400
    else:
        assert first.sha256 and not first.problem
        assert second.sha256 is None or second.settings["model"] != "tiny"
        assert "line 2" not in said and said in second.problem


# -- records, settings and names ----------------------------------------


# -- calls in a notebook cell ----------------------------------------


# -- command lines ----------------------------------------

PAGE, RUN, LONG = str(PAGES / "slide.png"), str(RECORD), "x" * 300
WRONG_COMMANDS = {
    "profil PAGE": "mean profile?",
    "report --prest tiny": "mean --preset? (usage: ocr-phases report [options] [PAGE",
    "profile PAGE --max-new-token 8": "mean --max-new-tokens?",
    "profile PAGE --json=1": "--json",
    "batch PAGE --render non": "mean none?",
    "batch PAGE --render after": "use during or none or only",
    "compare RUN": "B.json (usage: ocr-phases compare",
    "profile PAGE --preset tinny": "mean tiny?",
    "profile PAGE --strategy cudagraph": "mean cuda_graph?",
    "profile PAGE --vision compild": "mean compiled?",
    "profile PAGE --device cdua": "mean cuda?",
    "profile PAGE --dtype bflaot16": "mean bfloat16?",
    "profile PAGE --implementation vender": "mean vendor?",
    "profile PAGE --infer pubished": "mean published?",
    "profile PAGE --infer temprature=1": "mean temperature?",
    "profile PAGE --model dummy:layer=2": "mean layers?",
    "profile PAGE --prompt markdwon": "mean markdown?",
    "profile PAGE --prompt loacte:words": "mean locate?",
    "report PAGE --model tny": "mean tiny?",
    "report PAGE --model dumy": "mean dummy?",
    "report PAGE --dtype fp16": "bfloat16",
    "report PAGE --device abacus": "Unknown device",
    "report PAGE --device cpu --kernels": "--kernels",
    "report PAGE --device cpu --trace": "--kernels",
    "report PAGE --device cpu --strategy cuda_graph": "CUDA",
    "report PAGE --device cpu --preset crop": "crop",
    "report PAGE --device cpu --max-new-tokens 9999": "positions",
    "report PAGE --revision main": "drop --revision",
    "report PAGE --kernel-steps 5": "drop --kernel-steps",
    "report PAGE --trust-remote-code": "drop --trust-remote-code",
    "report PAGE --generate --verify": "drop it, or --verify",
    "report --record RUN --preset tiny --no-ceilings": "drop --preset, --no-ceilings",
    "report --record RUN --trace": "drop --trace",
    "verify --record RUN --model tiny": "drop --model",
    "profile --from RUN --preset=tiny": "drop --preset",
    "sweep --records . --repeats 3 --batch 1": "drop --repeats, --batch",
    "sweep PAGE --models ,": "empty list",
    "sweep PAGE --models tiny --model tiny": "drop --model",
    "sweep PAGE --strategies eagr": "mean eager?",
    "batch PAGE --presets tiny --preset base": "drop --preset",
    "batch --render only --workers 2": "drop --workers",
    "batch PAGE --render none --render-workers 1": "drop --render-workers",
    "batch PAGE --wait-workers 5": "drop --wait-workers",
    "compare RUN RUN --fail-above -5": "--fail-above",
    "compare RUN RUN --margin inf": "--margin",
    "compare RUN RUN --fail-above 5 --metric prefil_ms": "mean prefill_ms?",
    "artifacts RUN --out LONG": "too long",
    "report PAGE --out LONG": "too long",
    "report --record RUN --out LONG": "too long",
    "verify --record RUN --out LONG": "too long",
    "compare RUN RUN --out LONG": "too long",
    "batch PAGE --out LONG": "too long",
    "sweep PAGE --out LONG": "too long",
    "sweep --records LONG": "too long",
    "profile PAGE --save LONG": "too long",
    "profile PAGE --model LONG": "xxx",
    "profile LONG": "too long",
    "report --record LONG": "too long",
    "report --record RUN --truth LONG": "too long",
    "batch PAGE --truth LONG": "too long",
}


@pytest.mark.parametrize("command", WRONG_COMMANDS)
def test_a_wrong_command_is_one_sentence_and_one_json_object(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    known = {"PAGE": PAGE, "RUN": RUN, "LONG": LONG}
    assert main([*(known.get(word, word) for word in command.split()), "--json"]) == 2
    said = capsys.readouterr()
    told = json.loads(said.out)
    assert (told["exit_code"], said.err) == (2, f"ocr-phases: {told['exit_reason']}\n")
    assert WRONG_COMMANDS[command] in told["exit_reason"]
    assert not list(tmp_path.iterdir())


def test_every_end_is_one_json_object(tmp_path, monkeypatch, capsys):
    out = str(tmp_path)
    ends = {("artifacts", RUN, "--out", out): 0, ("report", "--record", RUN, "--out", out): 0, ("--help",): 0}
    for words, code in ends.items():
        assert main([*words, "--json"]) == code
        told = json.loads(capsys.readouterr().out)
        assert told["exit_code"] == code
        files = [*told.get("files", ()), *(report["report"] for report in told.get("reports", ()))]
        assert all(Path(file).is_file() for file in files) and bool(files) == (len(words) > 1)
    monkeypatch.setattr(PhaseRun, "load", lambda path: 1 / 0)
    assert main(["artifacts", RUN, "--json"]) == 70
    said = capsys.readouterr()
    assert "bug" in json.loads(said.out)["exit_reason"] and "Traceback" in said.err


def test_a_word_may_be_a_prompt(tiny_session):
    for prompt in ("<image> markdwon", "Markdwon please", "Translate", "Figures: all of them"):
        assert prompt in resolve_prompt(prompt)
    with pytest.raises(OcrPhasesError, match="mean markdown?"):
        tiny_session.run_inference(PAGE, "markdwon")


# -- the environment: streams, backends, the current folder ----------------------------------------

HERE = Path(__file__).parents[1]
ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"}
CAFE = os.fsdecode(b"caf\xe9")
ENVIRONMENTS = {  # a redirection, a code, and what must be there afterwards
    "verify --record RUN >&-": 0,
    "verify --record RUN 2>&-": 0,
    "verify --record RUN >&- 2>&- <&-": 0,
    "verify --record RUN 2>/dev/full": 0,
    "verify --record RUN >/dev/full": 141,
    "verify --record RUN --json >/dev/full 2>/dev/full": 141,
    "profil 2>/dev/full": 2,
    "report --record RUN --out é >/dev/full": 141,
}


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
@pytest.mark.parametrize("command", ENVIRONMENTS)
def test_a_lost_stream_or_a_strange_environment_ends_no_work(command, tmp_path):
    environment = {**os.environ, **ASCII, "MPLBACKEND": "bogus", "PYTHONPATH": str(HERE), "RUN": RUN}
    line = f"{sys.executable} -m ocr_phases.cli {command.replace('RUN', '$RUN')}"
    done = subprocess.run(["sh", "-c", line], cwd=tmp_path, env=environment, capture_output=True, timeout=120)
    assert (done.returncode, b"Traceback" in done.stderr, b"Exception" in done.stderr) == (
        ENVIRONMENTS[command],
        False,
        False,
    )
    assert "--out" not in command or (tmp_path / "é" / "report.html").is_file()


def test_a_measurement_outlives_its_streams(tiny_session, tmp_path, monkeypatch):
    run = PhaseRun.load(RECORD)
    monkeypatch.setattr("ocr_phases.cli.measuring.measure", lambda *_, **options: run)
    monkeypatch.chdir(tmp_path)
    with Path("/dev/full").open("w") as out, Path("/dev/full").open("w") as err:
        monkeypatch.setattr(sys, "stdout", out)
        monkeypatch.setattr(sys, "stderr", err)
        assert main(["profile", PAGE, "--device", "cpu"]) == 141
    assert PhaseRun.load("run.json").to_json() == run.to_json()


def test_a_name_that_is_no_unicode_has_a_report(tmp_path):
    record = shutil.copy(RECORD, tmp_path / f"{CAFE}.json")
    page = shutil.copy(PAGE, tmp_path / f"{CAFE}.png")
    quick = [
        "--max-new-tokens",
        "2",
        "--repeats",
        "1",
        "--warmup",
        "0",
        "--device",
        "cpu",
        "--preset",
        "tiny",
    ]
    for words in (["--record", str(record)], [str(page), *quick, "--no-ceilings"]):
        assert main(["report", *words, "--out", str(tmp_path / CAFE)]) == 0
    assert (tmp_path / CAFE / "report.html").is_file()
    assert PhaseRun.load(tmp_path / CAFE / CAFE / "run.json")["tokens"] == 2
