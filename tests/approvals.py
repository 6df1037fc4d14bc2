"""Approved outputs: what verbs print and write, against the files in ``tests/approved``.

A record's figures and checks are in most of what is printed and written of it. They are approved
once, in two files of the record: ``record.json`` is what the JSON of every verb says of it,
``checks.txt`` lists its checks. In an output a mark stands for them and for the sentences that sum
them up, and in ``record.json`` one for the number of checks, so that a new check or figure changes
few files. Nothing is hidden by that: a mark replaces only exactly what those two files have, in the
layout that is written down here, and a test fails where an output has anything else.
"""

import difflib
import json
import re
from pathlib import Path
from typing import Any

import refusals
from conftest import GOLDEN, RUNS

from ocr_phases import PhaseRun
from ocr_phases.analyse.checks import run_checks
from ocr_phases.analyse.expectations import EXPECTATIONS
from ocr_phases.analyse.sentences import checks_verdict
from ocr_phases.cli.results import run_result

APPROVED = Path(__file__).with_name("approved")
CHECKS_MARK = "[the checks, as in checks.txt]\n"
VERDICT_MARK = "[the verdict of the checks, as in record.json]"


def compare(name: str, text: str, folder: Path) -> None:
    """Compare ``text``, without words of this machine and run, with the approved file; or write
    that.
    """
    for place, word in {
        folder: "FOLDER",
        RUNS: "RUNS",
        APPROVED: "APPROVED",
        GOLDEN: "GOLDEN",
    }.items():
        text = text.replace(str(place), word)
    text = re.sub(r"[ \t]+$", "", text, flags=re.MULTILINE)
    text = re.sub(r"finished [\d-]+ [\d:]+ UTC", "finished WHEN", text)
    text = re.sub(r"[\d.]+ pages/min", "N pages/min", text)
    text = re.sub(r"^Rendering: .*\n", "", text, flags=re.MULTILINE)  # of a slow machine
    path = APPROVED / name
    if refusals.approve:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    known = path.read_text(encoding="utf-8") if path.exists() else ""
    changes = difflib.unified_diff(
        known.splitlines(), text.splitlines(), name, "now", lineterm="", n=1
    )
    assert text == known, "accept with pytest --approve:\n" + "\n".join(list(changes)[:80])


def as_json(value: Any) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False) + "\n"


class ApprovedRecord:
    """What the verbs say of one record: the text of its own files, and marks in the place of it
    elsewhere.
    """

    def __init__(self, run: PhaseRun) -> None:
        self.checks = run_checks(run)
        self.result = json.loads(json.dumps(run_result(run)))

    def result_text(self) -> str:
        """``record.json``, without the figures that the record lacks: ``figures.txt`` has all
        names.
        """
        figures = {
            name: value for name, value in self.result["metrics"].items() if value is not None
        }
        return self._without_counts(as_json(self.result | {"metrics": figures}))

    def figure_names(self) -> str:
        return "\n".join(self.result["metrics"]) + "\n"

    def checks_text(self) -> str:
        """``checks.txt``; what a check says of every record, its reason and remedy, is approved
        elsewhere.
        """
        rows = [
            (check.verdict, check.name, check.expected, check.measured) for check in self.checks
        ]
        return "".join(" | ".join(row) + "\n" for row in rows)

    def without_verdict(self, text: str) -> str:
        """The text with a mark for the sentences on all checks, which it has once or not at all."""
        sentences = checks_verdict(self.checks)
        assert text.count(sentences) <= 1, f"twice: {sentences}"
        return text.replace(sentences, VERDICT_MARK)

    def _without_counts(self, text: str) -> str:
        """The text without the number of checks, if it is the right one."""
        verdicts = [check.verdict for check in self.checks if check.name not in EXPECTATIONS]
        counts = f"{verdicts.count('pass')} of {len(verdicts)} checks passed"
        pattern = "N of N checks passed"
        words = {
            "fail": "failed",
            "noisy": "found it noisy",
            "note": "left a note",
            "n/a": "do not apply or have no data",
        }
        for verdict, word in words.items():
            if verdict in verdicts:
                counts += f", {verdicts.count(verdict)} {word}"
                pattern += f", N {word}"
        return text.replace(counts, pattern)

    def in_json(self, said: dict[str, Any]) -> dict[str, Any]:
        """A verb's JSON with marks for the record's result and checks."""
        if "reports" in said:
            return said | {"reports": [self.in_json(report) for report in said["reports"]]}
        assert {name: said.get(name) for name in self.result} == self.result, (
            "not what run_result() says"
        )
        marked = {"result": "as in record.json"}
        marked |= {name: value for name, value in said.items() if name not in self.result}
        if "rows" in said:
            names = ("name", "verdict", "measured", "expected")
            rows = [{name: getattr(check, name) for name in names} for check in self.checks]
            assert said["rows"] == rows, "not the record's checks"
            marked["rows"] = "as in checks.txt"
        return marked

    def in_print(self, text: str) -> str:
        """What ``verify`` printed, with a mark for its list of checks."""
        lines = []
        for check in self.checks:
            lines.append(f"{check.verdict:5} {check.label:29} {check.measured}")
            if check.verdict in ("fail", "noisy"):
                lines.append(f"      expected: {check.expected}. {check.why} {check.fix}")
        return _marked(text, lines)

    def in_page(self, text: str) -> str:
        """The text of a page, with marks for its table of checks and for its table of rules of
        thumb.
        """
        rules = [check for check in self.checks if check.name not in EXPECTATIONS]
        usual = [check for check in self.checks if check.name in EXPECTATIONS]
        for table in filter(None, (rules, usual)):
            lines = []
            for check in table:
                label = check.label.removeprefix("expected ")
                lines.append(f"{label} | | {check.verdict} | {check.expected} | {check.measured}")
                lines += ["reason and remedy", check.why, check.fix]
            text = _marked(text, lines)
        return text


def _marked(text: str, lines: list[str]) -> str:
    """The text with a mark in the place of these lines, which it has once."""
    block = "\n".join(lines) + "\n"
    if text.count(block) != 1:
        missing = [line for line in lines if line not in text.splitlines()]
        reason = f"there is no line {missing[0]!r}" if missing else "their lines have another order"
        raise AssertionError(f"the checks look otherwise than in {__file__}: {reason}")
    return text.replace(block, CHECKS_MARK)
