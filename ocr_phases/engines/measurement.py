"""The repeats of a request to a server, and the record of them."""

from __future__ import annotations

import contextlib
import io
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any

from msgspec.structs import replace
from PIL import Image

from ocr_phases.engines import checks
from ocr_phases.engines.answers import Answer, Stage, ask, metrics, server_times, spans_of
from ocr_phases.engines.client import ServerFailed
from ocr_phases.images import image_file, load_page
from ocr_phases.measure.request import each_run, page_part, row_part
from ocr_phases.measure.verdicts import LiveCheck, check, repeat_checks
from ocr_phases.record.parts import (
    CheckPart,
    DevicePart,
    ModelPart,
    ProbabilitiesPart,
    RequestPart,
    ResultPart,
    make_part,
)
from ocr_phases.results.run import PhaseRun
from ocr_phases.settings import Request
from ocr_phases.show.web import data_address
from ocr_phases.versions import __version__, code_hash


class Measurement:
    """A request's answers from a `ServerSession` so far; see `ocr_phases.measure.request.recorded`."""

    def __init__(self, session: Any, request: Request) -> None:
        self.session = session
        self.request = request
        self.page = load_page(request.pages[0])
        self.body = partial(session.body, request, data_url(*self.page[:2]))
        self.runs, self.first = (
            list[Answer](),
            0.0,
        )  # ms to the first token of the first answer of all
        self.compared, self.ended = list[LiveCheck](), ""

    def measure(
        self, *, on_tokens: Callable | None = None, progress: Callable | None = None
    ) -> None:
        """Ask for the warm-ups and repeats, then for what is compared with them.

        Raises `ServerFailed` where that came before the end of the first repeat, and what the
        callbacks do.
        """
        try:
            for number, notify in each_run(self.request, on_tokens, progress):
                answer = self._once(notify)
                self.first = self.first or answer.times[0]
                if number >= 0:  # a warm-up is not recorded
                    self.runs.append(answer)
            self.compared += self._compared() if self.request.verify else []
        except ServerFailed as error:
            self.ended = f": {error}"
            if not self.runs:
                raise

    def ask(self, notify: Callable[[list[list[int]]], None] | None = None) -> Answer:
        """One answer, of at most the tokens that were asked for."""
        return ask(self.session.server, self.body(), notify, self.request.max_new_tokens)

    def _once(self, notify: Callable[[list[list[int]]], None] | None) -> Answer:
        """One answer, with what the server and its worker say of it, as long as it had the server
        alone.
        """
        session = self.session
        before = metrics(session.server)
        answer = self.ask(notify)
        own = server_times(session.server, before)
        # A prefill that took longer than the client waited is not that of this request.
        if own and own["prefill_ms"] <= answer.times[0]:
            answer.own = own
        if session.worker and (answer.own or not before):
            sent = time.monotonic()
            now, calls = session.rpc("ocr_take", tuple[float, list[Stage]])
            got = time.monotonic()
            # One host has one clock.
            zero = answer.begun - (0.0 if sent <= now <= got else (sent + got) / 2 - now)
            answer.stages = [
                (name, 1e3 * (at - zero), *rest) for name, at, *rest in calls if at >= zero
            ]
        return answer

    def _compared(self) -> list[LiveCheck]:
        """The server's prompt and tokens beside those of the native class on the same page."""
        from ocr_phases.measure.live_checks import attempted
        from ocr_phases.measure.measurement import execution
        from ocr_phases.measure.parity import parity_check
        from ocr_phases.session import kept_session

        given, request, answer = self.session.reference, self.request, self.runs[0]
        session: Any = kept_session(model=given) if isinstance(given, str) else given
        packed = session.prepare(
            request.pages[0],
            request.prompt,
            preset=request.preset,
            grounding=request.grounding,
            max_new_tokens=request.max_new_tokens,
            infer=request.infer,
        )
        prompt = checks.prompt_check(answer, packed.input_ids[0].tolist())
        if not answer.ids:
            return [prompt, check("parity", "n/a", "the server sends no token ids")]
        with execution(session.device):
            same = partial(parity_check, session.checkpoint, request, packed, [answer.ids])
            return [prompt, attempted("verify", same)]

    def record(self) -> PhaseRun:
        """The record of the finished repeats; what nobody told is not in it."""
        session, request, worker = self.session, self.request, self.session.worker
        # A busy host joins tokens that came one by one.
        runs = [run for run in self.runs if run.timed] or self.runs
        answer, more = runs[0], len(self.runs) - len(runs)
        asked = session.family.preset(request.preset)
        preset, count, cut = checks.read_as(
            answer, asked, session.family, request.prompts[0], *self.page[0].size
        )
        # How a text is cut into pieces may differ, where pieces stand for ids.
        texts_or_ids = [run.ids or run.text for run in self.runs]
        agreed = repeat_checks(texts_or_ids, request.repeats, self.ended)
        own = checks.own_checks(runs, more, self.first, request.infer, request.max_new_tokens)
        found = [*agreed, *own, cut, *self.compared]
        ids = answer.tokens[0]
        length = answer.usage.get("prompt_tokens") or count + 1
        sure = [min(0.0, round(value, 3)) for value in answer.logprobs]
        known = ProbabilitiesPart(logprobs=[*sure], margins=[None] * len(ids))
        server = {"engine": session.engine, "version": session.version, "url": session.server.url}
        server |= {"family_source": session.family_source}
        server |= {"settings": worker.get("settings"), "times": [run.own for run in runs]}
        versions = {session.engine: session.version, "ocr_phases": __version__, "code": code_hash()}
        device = {"name": f"{session.engine} at {session.server.host}", "kind": "server"}
        made = {"strategy": "server", "vision": "server", "preset": preset.name, "batch": 1}
        model = {
            "name": session.model,
            "config": {},
            "family": session.family.name,
            "server": server,
        }
        model |= {"strategy": "server", "implementation": "server", "dtype": "unknown"}
        return PhaseRun(
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            versions=versions | worker.get("versions", {}),
            device=make_part(DevicePart, device | worker.get("device", {})),
            model=make_part(ModelPart, model | worker.get("model", {})),
            pages=[page_part(self.page, preset, 0, count, length - count, request.embed_page)],
            request=make_part(
                RequestPart,
                request.described() | made | {"repeats": len(runs), "prefill_len": length},
            ),
            results=[self._result(answer)],
            spans=spans_of(runs),
            live_checks=[make_part(CheckPart, each) for each in found],
            probabilities=[known] if len(sure) == len(ids) else None,
        )

    def _result(self, answer: Answer) -> ResultPart:
        """The record's part about what the server wrote."""
        ids, texts = answer.tokens
        result = row_part(self.request, ids, texts, answer.text, answer.finish or "unknown")
        tokens = answer.token_count
        if not answer.ids:
            return replace(result, pieces=True, token_count=tokens)
        return replace(result, token_count=tokens) if tokens != len(ids) else result


def data_url(image: Image.Image, data: bytes | None) -> str:
    """The page as it is in its file where a server reads the same pixels there, else as PNG."""
    with contextlib.suppress(OSError):  # a PDF is no image
        file = Image.open(io.BytesIO(data or b""), formats=["PNG", "JPEG"])
        if data and (file.size, file.tobytes()) == (image.size, image.tobytes()):
            return data_address(data, Image.MIME[file.format or ""])
    return data_address(image_file(image, "PNG"), "image/png")
