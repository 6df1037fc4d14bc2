"""A checkpoint's chat template is a stranger's program: it renders a prompt or is refused."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from ocr_phases.errors import OcrPhasesError
from ocr_phases.models.processors import render_chat

_TOKENIZER = SimpleNamespace(bos_token="<s>", eos_token=None)

_HOSTILE = {
    "loops over a long range": "{% for i in range(10 ** 9) %}{% endfor %}",
    "nests loops over ranges": (
        "{% for i in range(1000) %}{% for j in range(1000) %}{% endfor %}{% endfor %}"
    ),
    "repeats a text": "{{ 'a' * 10 ** 9 }}",
    "repeats a list": "{{ [0] * 10 ** 9 }}",
    "has a large power": "{{ 9 ** 99999 }}",
    "calls itself": "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}",
    "raises": "{{ raise_exception('no such role') }}",
    "imports": "{% import 'os' as os %}{{ os }}",
    "reaches for Python's classes": "{{ ''.__class__.__mro__ }}",
    "is no template": "{% for %}",
    "is too long": "a" * 200_001,
}


def test_a_chat_template_writes_the_pages_and_the_prompt() -> None:
    template = "{{ bos_token }}{% for c in messages[0].content %}[{{ c.type }}]{% endfor %}"

    assert render_chat(template, "Read.", 2, _TOKENIZER) == "<s>[image][image][text]"


@pytest.mark.parametrize("template", _HOSTILE.values(), ids=_HOSTILE.keys())
def test_a_hostile_chat_template_is_refused(template: str) -> None:
    with pytest.raises(OcrPhasesError, match="chat template"):
        render_chat(template, "Read.", 1, _TOKENIZER)
