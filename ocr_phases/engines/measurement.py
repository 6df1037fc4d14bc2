"""The repeats of a request to a server, and the record of them."""

from __future__ import annotations

import contextlib
import io
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any

from PIL import Image

from ocr_phases.engines import checks
from ocr_phases.engines.answers import Answer, Stage, ask, metrics, server_times, spans_of
from ocr_phases.engines.client import ServerFailed
from ocr_phases.inputs.images import describe_page, load_page
from ocr_phases.inputs.views import valid_image_tokens
from ocr_phases.record import PhaseRun, make_spans
from ocr_phases.settings import Request
from ocr_phases.show.web import data_address
from ocr_phases.text import count_text
from ocr_phases.versions import __version__, code_hash

_OF_A_CHECK = ("name", "verdict", "measured")
_COMPARED = ("preset", "prompt", "grounding", "max_new_tokens", "infer", "ignore_eos")


class Measurement:
    """A request's answers from a `ServerSession` so far; see `ocr_phases.request.recorded`."""

    def __init__(self, session: Any, request: Request) -> None:
        self.session, self.request, self.page = session, request, load_page(request.pages[0])
        self.runs, self.first = list[Answer](), 0.0  # ms to the first token of the first answer of all
        self.compared, self.ended = list[checks.Check](), ""

    def measure(self, *, on_tokens: Callable | None = None, progress: Callable | None = None) -> None:
        """Ask for the warm-ups and repeats, then for what is compared with them.

        Raises `ServerFailed` where that came before the end of the first repeat, and what the callbacks do.
        """
        request, tell = self.request, progress or (lambda done, total: None)
        numbers, page = range(-request.warmup, request.repeats), data_url(*self.page[:2])
        try:
            for done, number in enumerate(numbers):
                tell(done, len(numbers))
                notify = on_tokens and partial(on_tokens, max(number, -1))
                answer = self._once(self.session.body(request, page), notify)
                self.first = self.first or answer.times[0]
                self.runs += [answer] * (number >= 0)
            tell(len(numbers), len(numbers))
        except ServerFailed as error:
            self.ended = f": {error}"
            if not self.runs:
                raise
        else:
            self.compared += self._compared() if request.verify else []

    def _once(self, body: dict[str, Any], notify: Callable[[list[list[int]]], None] | None) -> Answer:
        """One answer, with what the server and its worker say of it, as long as it had the server alone."""
        server, before = self.session.server, metrics(self.session.server)
        answer = ask(server, body, notify)
        answer.own = server_times(server, before)
        if self.session.worker and (answer.own or not before):
            sent = time.monotonic()
            now, rows = self.session.rpc("ocr_take", tuple[float, list[Stage]])
            took = time.monotonic() - sent
            away = sent + took / 2 - now
            # One host has one clock.
            zero = answer.begun - (away if abs(away) > took / 2 else 0.0)
            answer.stages = [
                (name, 1e3 * (start - zero), *rest) for name, start, *rest in rows if start >= zero
            ]
        return answer

    def _compared(self) -> list[checks.Check]:
        """The server's prompt and tokens beside those of the native class on the same page."""
        from ocr_phases.collectors.live_checks import attempted
        from ocr_phases.collectors.parity import parity_check
        from ocr_phases.recorder import execution
        from ocr_phases.session import kept_session

        given, request, answer = self.session.reference, self.request, self.runs[0]
        session: Any = kept_session(model=given) if isinstance(given, str) else given
        packed = session.prepare(request.pages[0], **{name: getattr(request, name) for name in _COMPARED})
        prompt = checks.prompt_check(answer, packed.input_ids[0].tolist())
        if not answer.ids:
            return [prompt, ("parity", "n/a", "the server sends no token ids")]
        with execution(session.device):
            same = partial(parity_check, session.checkpoint, request, packed, [answer.ids])
            return [prompt, tuple(attempted("verify", same).values())]

    def record(self) -> PhaseRun:
        """The record of the finished repeats; what nobody told is not in it."""
        session, request, image = self.session, self.request, self.page[0]
        # A busy host joins tokens that came one by one.
        runs = [run for run in self.runs if not run.untimed] or self.runs
        server, worker, family, answer = session.server, session.worker, session.family, runs[0]
        preset, count, cut = checks.read_as(answer, family.preset(request.preset), family, image.size)
        left_out = len(self.runs) - len(runs)
        found = [*checks.own_checks(runs, left_out, self.first, request.infer), cut, *self.compared]
        if len(self.runs) < request.repeats:
            told = f"{len(self.runs)} of {count_text(request.repeats, 'repeat')}{self.ended}"
            found.append(("interrupted", "note", told))
        (ids, texts), length = answer.tokens, answer.prompt_tokens or count + 1
        texts = texts if request.return_text else [""] * len(ids)
        result = {"ids": ids, "token_texts": texts, "text": "".join(texts) if request.return_text else None}
        sure = [min(0.0, round(value, 3)) for value in answer.logprobs]
        known = {"logprobs": sure, "margins": [None] * len(ids)}
        told_of: dict[str, Any] = {"engine": session.engine, "version": session.version, "url": server.url}
        told_of |= {"settings": worker.get("settings"), "times": [run.own for run in runs]}
        versions = {session.engine: session.version, "ocr_phases": __version__, "code": code_hash()}
        device = {"name": f"{session.engine} at {server.host}", "kind": "server"}
        model = {"name": session.model, "config": {}, "family": family.name, "server": told_of}
        model |= {"strategy": "server", "implementation": "server", "dtype": "unknown"}
        made = {"preset": preset.name, "strategy": "server", "vision": "server", "batch": 1}
        grid, parts = preset.grid(*image.size), {"image_tokens": count, "text_tokens": length - count}
        page = {"row": 0, "preset": preset.name, "grid": list(grid), **parts}
        page["valid_image_tokens"] = valid_image_tokens(preset, image.size, grid)
        return PhaseRun(
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            versions=versions | worker.get("versions", {}),
            device=device | worker.get("device", {}),
            model=model | worker.get("model", {}),
            pages=[describe_page(*self.page, embed=request.embed_page) | page],
            request=request.described() | made | {"repeats": len(runs), "prefill_len": length},
            results=[result | {"finish_reason": "eos" if answer.finish == "stop" else answer.finish}],
            spans=make_spans([*spans_of(runs)]),
            memory={},
            cache={},
            live_checks=[dict(zip(_OF_A_CHECK, each, strict=True)) for each in found],
            probabilities=[known] if len(sure) == len(ids) else None,
        )


def data_url(image: Image.Image, data: bytes | None) -> str:
    """The page as it is in its file where a server reads the same pixels there, else as PNG."""
    with contextlib.suppress(OSError):  # a PDF is no image
        file = Image.open(io.BytesIO(data or b""), formats=["PNG", "JPEG"])
        if data and file.mode == "RGB" and file.size == image.size and file.tobytes() == image.tobytes():
            return data_address(data, Image.MIME[file.format or ""])
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return data_address(buffer.getvalue(), "image/png")
