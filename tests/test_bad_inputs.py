"""One table of bad inputs: each is refused in one sentence or read as far as it can be, and nothing else is lost.

A section is a room or a kind of input; each row is one bad input.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ocr_phases.batch.job import make_jobs
from ocr_phases.batch.manifest import find_pages
from ocr_phases.errors import OcrPhasesError

# -- text of a model or a truth: read within two seconds of CPU, or refused ---------------------------------


# -- lists of pages: a bad line fails alone ------------------------------------------------------------------

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


# -- records, settings and names ------------------------------------------------------------------------------


# -- calls in a notebook cell ---------------------------------------------------------------------------------


# -- command lines --------------------------------------------------------------------------------------------


# -- the environment: streams, backends, the current folder ---------------------------------------------------
