"""A session on a running server: the same call as on a loaded model, and the same record."""

from __future__ import annotations

import contextlib
import io
import itertools
import re
import signal
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

import msgspec
from PIL import Image

from ocr_phases.engines import checks
from ocr_phases.engines.answers import Answer, Stage, ask, metrics, server_times, spans_of
from ocr_phases.engines.client import SHAPES, Server, ServerFailed
from ocr_phases.engines.load import LoadResult, ask_many
from ocr_phases.errors import (
    Interrupted,
    OcrPhasesError,
    Stopped,
    check_known,
    checked,
    public,
    require,
    stop_signals,
)
from ocr_phases.families import DEEPSEEK_OCR, DEEPSEEK_OCR_2, UNLIMITED_OCR, facts_of
from ocr_phases.inputs.images import describe_page, load_page
from ocr_phases.inputs.views import Pages, make_rows, valid_image_tokens
from ocr_phases.record import PhaseRun, make_spans
from ocr_phases.settings import NEW_TOKENS, Request, RunSettings, is_published, resolve_infer
from ocr_phases.show.web import data_address
from ocr_phases.text import count_text
from ocr_phases.versions import __version__, code_hash

#: What no server can be asked for: another value than the default is refused by name.
_CANNOT: dict[str, Any] = {"first_token": "prefill", **dict.fromkeys(("strategy", "vision"), "eager")}
_CANNOT |= dict.fromkeys(("autocast", "generate", "kernels", "kernel_trace", "eos_check_every"), False)
#: How many of the settings beyond OpenAI's, in the order of `ServerSession.check_request`, an engine takes.
_TAKES = {"vllm": 3, "sglang": 2, "other": 0}
_WHOLE_WINDOW = 1 << 20
_ORIENTATION = 0x0112  # of EXIF


@public
class ServerSession:
    """A model behind an address: ``engine`` and ``version`` are the server's, as far as it tells them."""

    @checked(Server)
    def __init__(self, url: str, model: str | None = None, *, reference: Any = None, **server: Any) -> None:
        self.server, self.reference = Server(url, **server), reference
        url, asked = self.server.url, model or self.server.model
        served = [each["id"] for each in self.server.call(f"{url}/models", SHAPES["models"])["data"]]
        if asked is None and len(served) != 1:
            raise OcrPhasesError(f"{url} serves {len(served)} models: name one ({', '.join(served)}).")
        self.model = asked or served[0]
        check_known("model", self.model, served, url)
        self.engine, self.version = _engine(self.server)
        #: What the worker's extension says of the model and its device; empty without it.
        self.worker: dict[str, Any] = {}
        with contextlib.suppress(ServerFailed, ValueError, LookupError):
            self.worker = self._rpc("ocr_watch", dict[str, dict[str, Any]]) if self.engine == "vllm" else {}
        self.family = facts_of(_family(f"{self.worker.get('model')} {self.model}"))
        #: What the last `run_inference` measured, also where it was interrupted; None without a repeat.
        self.last_run: PhaseRun | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.model!r} at {self.server.url}, {self.engine} {self.version})"

    def _rpc(self, method: str, kind: Any) -> Any:
        """What the first worker's extension answers."""
        body = {"method": method, "timeout": 60}
        answer = self.server.call(f"{self.server.root}/collective_rpc", dict[str, Any], body)
        return msgspec.convert(answer["results"][0], kind)

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
        self.last_run = ended = None
        runs, request = list[Answer](), self.check_request(page, prompt=prompt, **settings)
        read, total = load_page(request.pages[0]), request.warmup + request.repeats
        url, tell = _data_url(*read[:2]), progress or (lambda done, total: None)
        try:
            try:
                for number in range(total):
                    tell(number, total)
                    notify = on_tokens and partial(on_tokens, max(number - request.warmup, -1))
                    runs.append(self._once(self.body(request, url), notify))
                tell(total, total)
            except (ServerFailed, Stopped) as error:
                ended = error
            finally:
                with stop_signals():  # they wait for the record
                    self.last_run = self._record(request, read, runs, ended)
        except KeyboardInterrupt as signalled:
            raise Interrupted(self.last_run, *(signalled.args or (signal.SIGINT,))) from None
        if self.last_run is None:
            raise ended or Stopped
        if request.verify and not ended:
            found = [*self.last_run.live_checks, *self._verified(request, runs[request.warmup])]
            self.last_run = replace(self.last_run, live_checks=found)
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
        """Ask for ``pages`` in turn: closed-loop, so many at once, and open-loop at ``rates`` a minute.

        Closed-loop sends a page as soon as one has ended, open-loop at random (Poisson) times. A level has
        ``requests`` of them, by default four for each at once, and at least each page. ``settings`` are those
        of `RunSettings`. One page is read before, untimed. Raises as `run_inference` does.
        """
        require([("Name a concurrency or a rate to load the server with.", [*concurrency, *rates])])
        require((f"{each!r} is no load: give a number above 0.", each > 0) for each in (*concurrency, *rates))
        each = pages if isinstance(pages, Sequence) and not isinstance(pages, str | bytes) else [pages]
        asked = [self.check_request(page, **settings) for page in each]
        bodies = [partial(self.body, one, _data_url(*load_page(one.pages[0])[:2])) for one in asked]
        ask(self.server, bodies[0]())
        levels = [(f"{number} at once", number, 0.0) for number in concurrency]
        levels += [(f"{rate:g}/min", 4, rate) for rate in rates]
        done: list[dict[str, Any]] = []
        for level, at_once, rate in levels:
            progress(level)
            count = requests or max(4 * at_once, len(bodies))
            some = itertools.islice(itertools.cycle(bodies), count)
            done += ask_many(self.server, level, some, count if rate else at_once, rate)
        return LoadResult(self.server.url, done)

    # -- what is asked ----------------------------------------------------------------------------

    @checked(RunSettings)
    def check_request(self, page: Pages, **settings: Any) -> Request:
        """What `run_inference` would ask for, with every default; raises what that would before it asks."""
        family, asked = self.family, RunSettings(**settings)
        given = {name: value for name, value in vars(asked).items() if value is not None}
        told = "A server cannot do {}={!r}: leave it out, or load the model itself."
        wrong = [name for name, usual in _CANNOT.items() if given.get(name, usual) != usual]
        require((told.format(name, given[name]), False) for name in wrong)
        pages, prompts = make_rows(page, asked, family)
        infer, _ = resolve_infer(asked.infer, None, family.name)
        own = {"ignore_eos": asked.ignore_eos, "infer's top_k": infer.top_k}
        own["infer's no_repeat_ngram_size"] = infer.no_repeat_ngram_size
        told = "{} is no setting that this server is known to take: leave it out."
        require((told.format(name), not value) for name, value in list(own.items())[_TAKES[self.engine] :])
        told = "A server is asked for one page at a time: name one, with one prompt."
        needed = "verify needs the checkpoint to compare with: give connect a reference."
        require([(told, len(pages) == len(prompts) == 1), (needed, self.reference or not asked.verify)])
        limit = family.published_limit if is_published(asked.infer) else NEW_TOKENS
        values: dict[str, Any] = {"max_new_tokens": limit, "ignore_eos": False, "eos_check_every": 1}
        values |= {**given, "pages": pages, "prompts": prompts, "infer": infer, "autocast": False}
        values["preset"] = family.preset(asked.preset or family.default_preset).name
        return Request(**values, preset_choice="asked" if asked.preset else "default")

    def body(self, request: Request, data_url: str) -> dict[str, Any]:
        """The chat completion that a request is, for a page as a data URL."""
        infer, text, limit = request.infer, request.prompts[0], request.max_new_tokens
        image: dict[str, Any] = {"type": "image_url", "image_url": {"url": data_url}}
        wanted: dict[str, Any] = {
            "model": self.model,
            "temperature": infer.temperature if infer.do_sample else 0.0,
            "logprobs": request.token_probabilities,
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_tokens": None if limit == self.family.published_limit else limit,
            "ignore_eos": request.ignore_eos or None,
            "skip_special_tokens": None if self.engine == "other" else False,
        }
        if infer.do_sample:
            wanted |= {"top_p": infer.top_p, "seed": request.seed, "top_k": infer.top_k or None}
        if self.engine == "vllm":
            # A page's own name and salt: no repeat finds the last one's page in a cache.
            image["uuid"] = wanted["cache_salt"] = uuid.uuid4().hex
            wanted["return_token_ids"] = True
        else:  # what the server puts before a text, vLLM takes as it is
            text = text.removeprefix("<image>").lstrip("\n")
        if size := infer.no_repeat_ngram_size:
            window = infer.no_repeat_ngram_window or _WHOLE_WINDOW
            wanted["vllm_xargs"] = {"ngram_size": size, "window_size": window}
        wanted["messages"] = [{"role": "user", "content": [image, {"type": "text", "text": text}]}]
        return {name: value for name, value in wanted.items() if value is not None}

    # -- what comes back --------------------------------------------------------------------------

    def _once(self, body: dict[str, Any], notify: Callable[[list[list[int]]], None] | None) -> Answer:
        """One answer, with what the server and its worker say of it, as long as it had the server alone."""
        before, taken = metrics(self.server), tuple[float, list[Stage]]
        if self.worker:
            self._rpc("ocr_take", taken)
        answer = ask(self.server, body, notify)
        answer.own = server_times(self.server, before)
        if self.worker and (answer.own or before.empty):
            sent = time.monotonic()
            now, rows = self._rpc("ocr_take", taken)
            back = time.monotonic()
            away = (sent + back) / 2 - now
            # One host has one clock.
            begun = answer.begun - (away if abs(away) > (back - sent) / 2 else 0.0)
            stages = [(name, 1e3 * (start - begun), ms, tokens) for name, start, ms, tokens in rows]
            answer.stages = [stage for stage in stages if stage[1] >= 0]
        return answer

    def _record(
        self, request: Request, page: tuple, runs: list[Answer], ended: Exception | None
    ) -> PhaseRun | None:
        """The record of the finished repeats; what nobody told is not in it."""
        finished, worker, image = runs[request.warmup :], self.worker, page[0]
        if not finished:
            return None
        # A busy host joins tokens that came one by one.
        timed = [run for run in finished if not run.untimed] or finished
        answer, asked = timed[0], self.family.preset(request.preset)
        preset, grid, count = cut = checks.read_as(answer, asked, self.family, image.size)
        found = [*checks.own_checks(timed, len(finished) - len(timed), runs[0].times[0], request.infer)]
        found.append(checks.preset_check(asked, image.size, cut))
        if len(finished) < request.repeats:
            why = f": {ended}" if isinstance(ended, ServerFailed) else ""
            told = f"{len(finished)} of {count_text(request.repeats, 'repeat')}{why}"
            found.append(("interrupted", "note", told))
        (ids, texts), length = answer.tokens, answer.prompt_tokens or count + 1
        texts = texts if request.return_text else [""] * len(ids)
        result = {"ids": ids, "token_texts": texts, "text": "".join(texts) if request.return_text else None}
        sure = [min(0.0, round(value, 3)) for value in answer.logprobs]
        known = [{"logprobs": sure, "margins": [None] * len(ids)}] if len(sure) == len(ids) else None
        part = {"row": 0, "preset": preset.name, "grid": list(grid), "image_tokens": count}
        part |= {"text_tokens": length - count}
        part["valid_image_tokens"] = valid_image_tokens(preset, image.size, grid)
        versions = {self.engine: self.version, "ocr_phases": __version__, "code": code_hash()}
        device = {"name": f"{self.engine} at {self.server.host}", "kind": "server"}
        server = {"engine": self.engine, "version": self.version, "url": self.server.url}
        server |= {"settings": worker.get("settings"), "times": [run.own for run in timed]}
        model = {"name": self.model, "config": {}, "family": self.family.name, "server": server}
        model |= {"strategy": "server", "implementation": "server", "dtype": "unknown"}
        made = {"preset": preset.name, "strategy": "server", "vision": "server", "batch": 1}
        return PhaseRun(
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            versions=versions | worker.get("versions", {}),
            device=device | worker.get("device", {}),
            model=model | worker.get("model", {}),
            pages=[describe_page(*page, embed=request.embed_page) | part],
            request=request.described() | made | {"repeats": len(timed), "prefill_len": length},
            results=[result | {"finish_reason": "eos" if answer.finish == "stop" else answer.finish}],
            spans=make_spans([*spans_of(timed)]),
            memory={},
            cache={},
            live_checks=[checks.live(*each) for each in found],
            probabilities=known,
        )

    def _verified(self, request: Request, answer: Answer) -> list[dict[str, str]]:
        """The server's prompt and tokens beside those of the native class on the same page."""
        from ocr_phases.collectors.live_checks import attempted
        from ocr_phases.collectors.parity import parity_check
        from ocr_phases.recorder import execution
        from ocr_phases.session import kept_session

        given: Any = self.reference
        session: Any = kept_session(model=given) if isinstance(given, str) else given
        names = ("preset", "prompt", "grounding", "max_new_tokens", "infer", "ignore_eos")
        packed = session.prepare(request.pages[0], **{name: getattr(request, name) for name in names})
        prompt = checks.live(*checks.prompt_check(answer, packed.input_ids[0].tolist()))
        if not answer.ids:
            return [prompt, checks.live("parity", "n/a", "the server sends no token ids")]
        compared = partial(parity_check, session.checkpoint, request, packed, [answer.ids])
        with execution(session.device):
            return [prompt, attempted("verify", compared)]


@checked(ServerSession)
def connect(url: str, model: str | None = None, api_key: str | None = None, **options: Any) -> ServerSession:
    """A session on the OpenAI-compatible server at ``url``, such as ``http://127.0.0.1:8000/v1``.

    ``model`` is needed where it serves several (also as ``url#model``). ``api_key`` is by default that of the
    environment variable ``OCR_PHASES_API_KEY``; no record has it. ``reference`` is the checkpoint that
    ``verify=True`` compares the tokens with, as `OCRSession.load` takes it. ``patience`` is how many seconds
    the server may be silent. Raises `OcrPhasesError` where there is no such server or model.
    """
    return ServerSession(url, model, api_key=api_key, **options)


def _engine(server: Server) -> tuple[str, str]:
    """``vllm``, ``sglang`` or ``other``, and its version."""
    for name, path in (("vllm", "/version"), ("sglang", "/get_server_info")):
        with contextlib.suppress(ServerFailed, LookupError):
            return name, str(server.call(server.root + path, dict[str, Any])["version"])
    return "other", "unknown"


def _family(names: str) -> str:
    """The family by a class or a served name: DeepSeek-OCR where these do not say."""
    text = re.sub("[^a-z0-9]", "", names.lower())
    return UNLIMITED_OCR if "unlimited" in text else DEEPSEEK_OCR_2 if "ocr2" in text else DEEPSEEK_OCR


def _data_url(image: Image.Image, data: bytes | None) -> str:
    """The page as it is in its file where a server reads the same pixels there, else as PNG."""
    with contextlib.suppress(OSError):  # a PDF is no image
        file = Image.open(io.BytesIO(data or b""))
        upright = file.mode == "RGB" and file.getexif().get(_ORIENTATION, 1) == 1
        if data and upright and file.format in ("PNG", "JPEG"):
            return data_address(data, Image.MIME[file.format])
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return data_address(buffer.getvalue(), "image/png")
