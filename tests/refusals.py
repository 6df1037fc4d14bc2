"""The sentences of errors: held by ``tests/approved/refusals``, accepted with ``pytest -n 0
--approve``.
"""

import contextlib
import json
import os
import re
import socket
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from ocr_phases import OcrPhasesError

APPROVED = Path(__file__).with_name("approved") / "refusals"
ROOT = Path(__file__).resolve().parents[1]

approve = False  # set by the option
_refused_before: Counter[str] = Counter()


@contextlib.contextmanager
def refused(kind: type[Exception] = OcrPhasesError) -> Iterator[pytest.ExceptionInfo[Exception]]:
    """In a ``with`` block an error of ``kind`` is raised, and its sentence is the approved one of
    this test.

    A test's refusals are counted; folders of this run and machine, and the version of
    transformers that is here, do not count as words.
    """
    with pytest.raises(kind) as caught:
        yield caught
    module, _, test = os.environ["PYTEST_CURRENT_TEST"].removesuffix(" (call)").partition("::")
    _refused_before[f"{module}::{test}"] += 1
    key = f"{test} {_refused_before[f'{module}::{test}']}"
    path = APPROVED / f"{Path(module).stem}.json"
    known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    sentence = _without_places(str(caught.value))
    assert "\n" not in sentence
    if approve:
        known[key] = sentence
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(known, indent=0, sort_keys=True, ensure_ascii=False)
        path.write_text(text + "\n", encoding="utf-8")
    assert sentence == known.get(key), (
        f"another sentence than {path.name} has for {key!r}: accept it with pytest --approve"
    )


def _without_places(sentence: str) -> str:
    sentence = re.sub(
        r"[^\s'\"(]*/pytest-of-[^/]+/pytest-\d+/(popen-gw\d+/)?[\w-]+", "TMP", sentence
    )
    sentence = re.sub(r"\btransformers \d+(\.\d+)+", "transformers VERSION", sentence)
    sentence = re.sub(r"\btorch \d+(\.\d+)+(\+\w+)?", "torch VERSION", sentence)
    sentence = re.sub(r"\bocr-unsaved-\w+", "ocr-unsaved-NAME", sentence)
    sentence = re.sub(r"127\.0\.0\.1:\d{4,}", "HOST:PORT", sentence)
    sentence = sentence.replace(f" on {socket.gethostname()},", " on HOST,").replace(
        str(ROOT), "ROOT"
    )
    return sentence.encode(errors="replace").decode()  # a lone surrogate is no text
