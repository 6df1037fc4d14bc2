"""Renders a checkpoint's chat template, in a process of its own with a bound of time and memory.

`ocr_phases.models.processors.render_chat` runs this file as a script: a template is a program that
somebody else wrote, and jinja2's sandbox bounds neither its loops nor its texts. The request comes
as JSON on the standard input; the text, or the reason why there is none, goes to the standard
output.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

_MOST_MEMORY = 512 << 20  # bytes, of which Python and jinja2 need about 30 MB
_LONGEST_PROMPT = 1_000_000


def limit_resources(seconds: int) -> None:
    """Bound the memory and the processor's time that this process may use, where the system can."""
    try:
        import resource
    except ImportError:  # Windows: the caller's time limit remains
        return
    resource.setrlimit(resource.RLIMIT_AS, (_MOST_MEMORY, _MOST_MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))


def raise_exception(reason: str) -> None:
    """What a template calls ``raise_exception``."""
    raise TemplateError(reason)


def render(request: dict[str, Any]) -> str:
    """The text of a request with ``template`` and ``values``; raises what goes wrong."""
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.globals["raise_exception"] = raise_exception
    text = environment.from_string(request["template"]).render(request["values"])
    if len(text) > _LONGEST_PROMPT:
        raise TemplateError(f"it writes more than {_LONGEST_PROMPT:,} characters")
    return text


def main() -> None:
    """Answer one request."""
    limit_resources(int(sys.argv[1]))
    answer = {}
    try:
        answer["text"] = render(json.load(sys.stdin))
    except MemoryError:
        answer["reason"] = "it needs too much memory"
    except Exception as error:  # noqa: BLE001  # a template may raise whatever it likes
        answer["reason"] = (str(error).strip() or type(error).__name__).splitlines()[0]
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()
