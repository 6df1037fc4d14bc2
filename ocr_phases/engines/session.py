"""A session on a running server: the same call as on a loaded model, and the same record."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import re
import signal
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple

import msgspec
from PIL import Image

from ocr_phases.engines import checks
from ocr_phases.engines.answers import Answer, Stage, ask, metrics, server_times, spans_of
from ocr_phases.engines.client import Server, ServerFailed
from ocr_phases.engines.load import LoadResult, load_test
from ocr_phases.errors import Interrupted, OcrPhasesError, Stopped, check_known, checked, public, stop_signals
from ocr_phases.families import (
    DEEPSEEK_OCR,
    DEEPSEEK_OCR_2,
    UNLIMITED_OCR,
    VISION_STAGES,
    facts_of,
)
from ocr_phases.inputs.images import describe_page, load_page
from ocr_phases.inputs.views import Pages, make_rows, valid_image_tokens
from ocr_phases.record import PhaseRun, make_spans
from ocr_phases.settings import NEW_TOKENS, Request, RunSettings, is_published, resolve_infer
from ocr_phases.text import count_text
from ocr_phases.versions import __version__, code_hash

#: What a server measures of a request, by its settings: other values than these are refused by name.
_CANNOT: dict[str, tuple[Any, ...]] = {
    "strategy": ("eager",),
    "vision": ("eager",),
    "autocast": (None, False),
    "first_token": ("prefill",),
    "generate": (False,),
    "kernels": (False,),
    "kernel_trace": (None,),
    "eos_check_every": (None,),
}
_WHOLE_WINDOW = 1 << 20
_KINDS = {"image/png": b"\x89PNG", "image/jpeg": b"\xff\xd8"}
_ORIENTATION = 0x0112


class Repeat(NamedTuple):
    """An answer, the server's own times of it in ms, and the stages that its worker saw."""

    answer: Answer
    own: dict[str, float]
    stages: list[Stage]


class Taken(msgspec.Struct):
    """What the worker's extension gives: its time now and its stages, seconds of its own clock and ms."""

    now: float
    rows: list[tuple[int, str, float, float, int]]


def connect(
    url: str,
    model: str | None = None,
    api_key: str | None = None,
    *,
    reference: str | None = None,
    patience: float = 300.0,
) -> ServerSession:
    """A session on the OpenAI-compatible server at ``url``, such as ``http://127.0.0.1:8000/v1``.

    ``model`` is needed where it serves several (also as ``url#model``). ``api_key`` is by default that of the
    environment variable ``OCR_PHASES_API_KEY``; no record has it. ``reference`` is the checkpoint that
    ``verify=True`` compares the tokens with, as `OCRSession.load` takes it. ``patience`` is how many seconds
    the server may be silent. Raises `OcrPhasesError` where there is no such server or model.
    """
    return ServerSession(Server(url, api_key, patience), model, reference)


@public
class ServerSession:
    """A model behind an address: ``engine`` and ``version`` are the server's, as far as it tells them."""

    def __init__(self, server: Server, model: str | None = None, reference: str | None = None) -> None:
        self.server, self.reference = server, reference
        served, asked = server.models(), model or server.model
        if asked is None and len(served) != 1:
            raise OcrPhasesError(f"{server.url} serves {len(served)} models: name one ({', '.join(served)}).")
        self.model = asked or served[0]
        check_known("model", self.model, served, server.url)
        self.engine, self.version = _engine(server)
        #: What the worker's extension says of the model and its device; empty without it.
        self.worker: dict[str, Any] = {}
        with contextlib.suppress(ServerFailed, ValueError, LookupError, TypeError):
            self.worker = dict(self._rpc("ocr_watch")) if self.engine == "vllm" else {}
        self.family = facts_of(_family(self.worker.get("class", ""), self.model))
        #: What the last `run_inference` measured, also where it was interrupted; None without a repeat.
        self.last_run: PhaseRun | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.model!r} at {self.server.url}, {self.engine} {self.version})"

    def _rpc(self, method: str) -> Any:
        """What the worker's extension answers, of the first worker."""
        answer = self.server.post("/collective_rpc", {"method": method, "timeout": 60})
        return json.loads(answer)["results"][0]

    @checked(RunSettings)
    def check_request(self, page: Pages, **settings: Any) -> Request:
        """What `run_inference` would ask for, with every default; raises what that would before it asks."""
        return self._request(page, RunSettings(**settings))

    def references(self) -> None:
        """A server does not tell where its source does what is measured."""

    @checked(RunSettings)
    def run_inference(
        self,
        page: Pages,
        prompt: str = "markdown",
        *,
        on_tokens: Callable[[int, list[list[int]]], None] | None = None,
        progress: Callable[[int, int], None] | None = None,
        **settings: Any,
    ) -> PhaseRun:
        """Ask the server to read a page: ``warmup`` unrecorded times, then ``repeats`` recorded ones.

        Keywords, callbacks and interrupts are those of `OCRSession.run_inference`. Times are the client's:
        the prefill ends with the first token, each later token is a decode step. What the server or its
        worker tells besides is in the record, and what nobody tells is missing. A server that fails after
        the first repeat leaves the finished ones, with its reason. ``verify`` compares with ``reference``.

        Raises `OcrPhasesError` for what a server cannot do, by name, and where no repeat was finished.
        """
        self.last_run = None
        request = self._request(page, RunSettings(prompt=prompt, **settings))
        more = request.repeats
        told, total = progress or (lambda done, total: None), request.warmup + request.repeats
        page_read = load_page(request.pages[0])
        url, first, runs, failed = _data_url(*page_read[:2]), 0.0, list[Repeat](), ""
        try:
            with contextlib.suppress(Stopped):
                try:
                    for number in range(-request.warmup, request.repeats):
                        told(number + request.warmup, total)
                        notify = None if on_tokens is None else partial(on_tokens, max(number, -1))
                        run = self._once(self.body(request, url), notify)
                        first = first or run.answer.times[0]
                        while number >= 0 and run.answer.untimed and more:  # a busy host joins tokens
                            more, run = more - 1, self._once(self.body(request, url), None)
                        runs += [run] if number >= 0 else []
                    told(total, total)
                except ServerFailed as error:
                    if not runs:
                        raise
                    failed = str(error)
                finally:
                    with stop_signals():  # they wait for the record
                        kept = (request, page_read, runs, first, request.repeats - more)
                        self.last_run = self._record(*kept) if runs else None
        except KeyboardInterrupt as signalled:
            raise Interrupted(self.last_run, *(signalled.args or (signal.SIGINT,))) from None
        if self.last_run is None:
            raise Stopped
        if request.verify and not failed:
            self._add(*self._verified(request, runs[0].answer))
        if len(runs) < request.repeats:
            told_of = f"{len(runs)} of {count_text(request.repeats, 'repeat')}"
            self._add(checks.check("interrupted", "note", f"{told_of}{failed and ': '}{failed}"))
        return self.last_run

    @checked(RunSettings)
    def load_test(
        self,
        pages: Pages,
        concurrency: Sequence[int] = (1, 2, 4, 8),
        *,
        rates: Sequence[float] = (),
        requests: int | None = None,
        progress: Callable[[str], None] = lambda level: None,
        **settings: Any,
    ) -> LoadResult:
        """Ask for ``pages`` in turn, so many at once, and at ``rates`` in pages per minute.

        A level has ``requests``, by default four for each at once, and at least each page. ``settings`` are
        those of `RunSettings`. One page is read before, untimed. Raises as `run_inference` does.
        """
        each = pages if isinstance(pages, Sequence) and not isinstance(pages, str | bytes) else [pages]
        asked = [self._request(page, RunSettings(**settings)) for page in each]
        read = [_data_url(*load_page(request.pages[0])[:2]) for request in asked]
        bodies = [partial(self.body, *pair) for pair in zip(asked, read, strict=True)]
        ask(self.server, bodies[0]())
        return load_test(self.server, bodies, concurrency, rates, requests, progress)

    # -- what is asked ----------------------------------------------------------------------------

    def _request(self, page: Pages, asked: RunSettings) -> Request:
        for name, known in _CANNOT.items():
            if (value := getattr(asked, name)) not in known:
                given = f"{name}={value!r}"
                raise OcrPhasesError(f"A server cannot do {given}: leave it out, or load the model itself.")
        if asked.verify and self.reference is None:
            raise OcrPhasesError("verify needs the checkpoint to compare with: give connect a reference.")
        pages, prompts = make_rows(page, asked, self.family)
        if len(pages) != 1 or len(prompts) != 1:
            raise OcrPhasesError("A server is asked for one page at a time: name one, with one prompt.")
        infer, _ = resolve_infer(asked.infer, None, self.family.name)
        of_engine = {
            "ignore_eos": asked.ignore_eos and self.engine == "other",
            "infer's top_k": infer.top_k and self.engine == "other",
            "infer's no_repeat_ngram_size": infer.no_repeat_ngram_size and self.engine != "vllm",
        }
        for name, lacking in of_engine.items():
            if lacking:
                raise OcrPhasesError(f"{name} is no setting that this server is known to take: leave it out.")
        limit = self.family.published_limit if is_published(asked.infer) else NEW_TOKENS
        settings: dict[str, Any] = {
            "max_new_tokens": limit,
            "ignore_eos": False,
            "eos_check_every": 1,
            **{name: value for name, value in vars(asked).items() if value is not None},
            "pages": pages,
            "prompts": prompts,
            "preset": self.family.preset(asked.preset or self.family.default_preset).name,
            "preset_choice": "asked" if asked.preset else "default",
            "infer": infer,
            "autocast": False,
        }
        return Request(**settings)

    def body(self, request: Request, data_url: str) -> dict[str, Any]:
        """The chat completion that a request is, for a page as a data URL."""
        infer, extra, text = request.infer, dict[str, Any](), request.prompts[0]
        image: dict[str, Any] = {"type": "image_url", "image_url": {"url": data_url}}
        if self.engine == "vllm":
            # A page's own name and salt: no repeat finds the last one's page in a cache.
            image["uuid"] = extra["cache_salt"] = uuid.uuid4().hex
            extra |= {"return_token_ids": True, "skip_special_tokens": False}
        else:  # what the server puts before a text, vLLM takes as it is
            text = text.removeprefix("<image>").lstrip("\n")
            extra |= {"skip_special_tokens": False} if self.engine == "sglang" else {}
        if request.ignore_eos:
            extra["ignore_eos"] = True
        if size := infer.no_repeat_ngram_size:
            window = infer.no_repeat_ngram_window or _WHOLE_WINDOW
            extra["vllm_xargs"] = {"ngram_size": size, "window_size": window}
        if infer.do_sample:
            extra |= {"top_p": infer.top_p, "seed": request.seed}
            extra |= {"top_k": infer.top_k} if infer.top_k else {}
        if not (is_published(request.infer) or request.max_new_tokens == self.family.published_limit):
            extra["max_tokens"] = request.max_new_tokens
        return {
            "model": self.model,
            "messages": [{"role": "user", "content": [image, {"type": "text", "text": text}]}],
            "temperature": infer.temperature if infer.do_sample else 0.0,
            "logprobs": request.token_probabilities,
            "stream": True,
            "stream_options": {"include_usage": True},
            **extra,
        }

    # -- what comes back --------------------------------------------------------------------------

    def _once(self, body: dict[str, Any], notify: Callable[[list[list[int]]], None] | None) -> Repeat:
        """One answer, with what the server and its worker say of it, as long as it had the server alone."""
        before = metrics(self.server) if self.engine == "vllm" else {}
        if self.worker:
            self._rpc("ocr_take")
        answer = ask(self.server, body, notify)
        own = server_times(self.server, before)
        if not self.worker or (before and not own):
            return Repeat(answer, own, [])
        with contextlib.suppress(ValueError, LookupError):  # an extension of another version
            sent = time.monotonic()
            taken = msgspec.convert(self._rpc("ocr_take"), Taken)
            back = time.monotonic()
            away = (sent + back) / 2 - taken.now
            # One host has one clock.
            away = 0.0 if abs(away) <= (back - sent) / 2 else away
            calls = [(row, row[2] + away - answer.begun) for row in taken.rows]
            stages = [Stage(row[0], row[1], begun * 1e3, *row[3:]) for row, begun in calls if begun >= 0]
            return Repeat(answer, own, stages)
        return Repeat(answer, own, [])

    def _record(
        self, request: Request, page: tuple, runs: list[Repeat], first: float, left_out: int
    ) -> PhaseRun:
        """The record of the finished repeats; what nobody told is not in it."""
        image, worker, answers = page[0], self.worker, [run.answer for run in runs]
        answer, asked = answers[0], self.family.preset(request.preset)
        preset, grid, count = cut = checks.read_as(answer, asked, self.family, image.size)
        seen = [{stage.stage for stage in run.stages} for run in runs]
        blind = sum(bool(stages) and not stages & {*VISION_STAGES} for stages in seen)
        # What one repeat lacks would count as 0 in a median over all.
        own, staged = all(run.own for run in runs), all(seen)
        timed = not any(each.untimed for each in answers)
        spans = [
            row
            for number, run in enumerate(runs)
            for row in spans_of(
                number, run.answer, run.own if own else {}, run.stages if staged else [], timed=timed
            )
        ]
        ids, texts = answer.tokens
        texts = texts if request.return_text else [""] * len(ids)
        length = answer.prompt_tokens or count + 1
        known = len(answer.logprobs) == len(ids)
        sure = [min(0.0, round(value, 3)) for value in answer.logprobs]
        server: dict[str, Any] = {"engine": self.engine, "version": self.version, "url": self.server.url}
        server |= {"settings": worker.get("settings"), "times": [run.own for run in runs]}
        part = {"row": 0, "preset": preset.name, "grid": list(grid), "image_tokens": count}
        part["text_tokens"] = length - count
        part["valid_image_tokens"] = valid_image_tokens(preset, image.size, grid)
        of_server = {"strategy": "server", "dtype": "unknown", "implementation": "server"}
        of_worker = {name: worker[name] for name in ("dtype", "class") if name in worker}
        made = {"preset": preset.name, "strategy": "server", "vision": "server", "batch": 1}
        result = {"ids": ids, "token_texts": texts, "text": "".join(texts) if request.return_text else None}
        result["finish_reason"] = "eos" if answer.finish == "stop" else answer.finish
        shown = [*checks.own_checks(answers, first, request.infer, blind, staged, left_out)]
        return PhaseRun(
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            versions={self.engine: self.version, "ocr_phases": __version__, "code": code_hash()}
            | worker.get("versions", {}),
            device={"name": f"{self.engine} at {self.server.host}", "kind": "server"}
            | worker.get("device", {}),
            model={"name": self.model, "config": {}, "family": self.family.name, "server": server}
            | of_server
            | of_worker,
            pages=[describe_page(*page, embed=request.embed_page) | part],
            request=request.described() | made | {"repeats": len(runs), "prefill_len": length},
            results=[result],
            spans=make_spans(spans),
            memory={},
            cache={},
            live_checks=[*shown, checks.preset_check(asked, image.size, cut)],
            probabilities=[{"logprobs": sure, "margins": [None] * len(ids)}] if known else None,
        )

    def _add(self, *found: dict[str, str]) -> None:
        assert self.last_run is not None
        self.last_run = replace(self.last_run, live_checks=[*self.last_run.live_checks, *found])

    def _verified(self, request: Request, answer: Answer) -> list[dict[str, str]]:
        """The server's prompt and tokens beside those of the native class on the same page."""
        from ocr_phases.session import kept_session

        given: Any = self.reference
        session: Any = kept_session(model=given) if isinstance(given, str) else given
        names = ("preset", "prompt", "grounding", "max_new_tokens", "infer", "ignore_eos")
        asked = {name: getattr(request, name) for name in names}
        ids = session.prepare(request.pages[0], **asked).input_ids[0].tolist()
        quick = dict.fromkeys(("token_probabilities", "ceilings"), False)
        run = session.run_inference(request.pages[0], **asked, **quick, repeats=1, warmup=0)
        return [*checks.compared(answer, run.result["ids"], ids, run.model["dtype"])]


def _engine(server: Server) -> tuple[str, str]:
    """``vllm``, ``sglang`` or ``other``, and its version."""
    for name, path in (("vllm", "/version"), ("sglang", "/get_server_info")):
        with contextlib.suppress(ServerFailed, ValueError, LookupError, TypeError):
            return name, str(json.loads(server.get(path))["version"])
    return "other", "unknown"


def _family(*names: str) -> str:
    """The family by a class or a served name: DeepSeek-OCR where these do not say."""
    text = re.sub("[^a-z0-9]", "", " ".join(names).lower())
    return UNLIMITED_OCR if "unlimited" in text else DEEPSEEK_OCR_2 if "ocr2" in text else DEEPSEEK_OCR


def _data_url(image: Image.Image, data: bytes | None) -> str:
    """The page as it is in its file where a server reads the same pixels there, else as PNG."""
    kind = next((kind for kind, magic in _KINDS.items() if data and data.startswith(magic)), None)
    if data and kind:
        with Image.open(io.BytesIO(data)) as file:
            kind = kind if file.mode == "RGB" and file.getexif().get(_ORIENTATION, 1) == 1 else None
    if not data or not kind:
        buffer, kind = io.BytesIO(), "image/png"
        image.save(buffer, "PNG")
        data = buffer.getvalue()
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"
