"""A session on a running server: the same call as on a loaded model, and the same record."""

from __future__ import annotations

import contextlib
import re
import uuid
from dataclasses import replace
from functools import partial
from typing import Any

from ocr_phases.engines.client import SHAPES, Server, ServerFailed
from ocr_phases.engines.load import load_test
from ocr_phases.engines.measurement import Measurement
from ocr_phases.errors import checked, public, require
from ocr_phases.families import DEEPSEEK_OCR, DEEPSEEK_OCR_2, UNLIMITED_OCR, facts_of
from ocr_phases.inputs.views import Pages
from ocr_phases.record import PhaseRun
from ocr_phases.request import filled_in, recorded
from ocr_phases.settings import Request, RunSettings

#: Settings that no server can be asked for: another value than the default is refused by name.
_STEPS = ("first_token", "strategy", "vision", "autocast", "eos_check_every")
_CANNOT = (*_STEPS, "generate", "kernels", "kernel_trace")
#: How many of the settings beyond OpenAI's, in the order of `ServerSession.check_request`, an engine takes.
_TAKES = {"vllm": 3, "sglang": 2, "other": 0}
_WHOLE_WINDOW = 1 << 20


@public
class ServerSession:
    """A model behind an address: ``engine`` and ``version`` are the server's, as far as it tells them."""

    @checked(Server)
    def __init__(self, url: str, model: str | None = None, *, reference: Any = None, **options: Any) -> None:
        server = self.server = Server(url, **options)
        served = [each["id"] for each in server.call(f"{server.path}/models", SHAPES["models"])["data"]]
        only = served[0] if len(served) == 1 else ""
        self.reference, self.model = reference, model or server.model or only
        require([(f"{server.url} serves {', '.join(served)}: name one of these.", self.model in served)])
        self.engine, self.version = _engine(server)
        #: What the worker's extension says of the model and its device; empty without it.
        self.worker: dict[str, Any] = {}
        with contextlib.suppress(ServerFailed, LookupError):
            self.worker = self.rpc("ocr_watch", dict[str, dict[str, Any]])
        self.family = facts_of(_family(f"{self.worker.get('model')} {self.model}"))
        #: What the last `run_inference` measured, also where it was interrupted; None without a repeat.
        self.last_run: PhaseRun | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.model!r} at {self.server.url}, {self.engine} {self.version})"

    def rpc(self, method: str, kind: Any) -> Any:
        """What the first worker's extension answers, as this type."""
        body, path = {"method": method, "timeout": 60}, f"{self.server.root}/collective_rpc"
        return self.server.call(path, dict[str, list[kind]], body)["results"][0]

    def references(self) -> None:
        """A server does not tell where its source does what is measured."""

    @checked(RunSettings, Measurement.measure)
    def run_inference(self, page: Pages, prompt: str = "markdown", **given: Any) -> PhaseRun:
        """Ask the server to read a page: ``warmup`` unrecorded times, then ``repeats`` recorded ones.

        Keywords, callbacks and interrupts are those of `OCRSession.run_inference`. Times are the client's:
        the prefill ends with the first token, each later token is a decode step. What the server or its
        worker tells besides is in the record, and what nobody tells is missing. A server that fails after
        the first repeat leaves the finished ones, with its reason. ``verify`` compares with ``reference``.

        Raises `OcrPhasesError` for what a server cannot do, by name, and where no repeat was finished.
        """
        request = partial(self.check_request, page, prompt=prompt)
        return recorded(self, lambda **own: Measurement(self, request(**own)), given)

    load_test = load_test

    @checked(RunSettings)
    def check_request(self, page: Pages, **settings: Any) -> Request:
        """What `run_inference` would ask for, with every default; raises what that would before it asks."""
        asked = RunSettings(**settings)
        told = "A server cannot do {}={!r}: leave it out, or load the model itself."
        given = {name: getattr(asked, name) for name in _CANNOT if getattr(asked, name) is not False}
        require((told.format(*each), each[1] == getattr(RunSettings, each[0])) for each in given.items())
        request = filled_in(page, asked, self.family, ignore_eos=False, eos_check_every=1)
        own = {"ignore_eos": request.ignore_eos, "infer's top_k": request.infer.top_k}
        own["infer's no_repeat_ngram_size"] = request.infer.no_repeat_ngram_size
        told = "{} is no setting that this server is known to take: leave it out."
        require((told.format(name), not own[name]) for name in [*own][_TAKES[self.engine] :])
        told = "A server is asked for one page at a time: name one, with one prompt."
        needed = "verify needs the checkpoint to compare with: give connect a reference."
        single = len(request.pages) == len(request.prompts) == 1
        require([(told, single), (needed, self.reference or not asked.verify)])
        return replace(request, autocast=False)

    def body(self, request: Request, page: str) -> dict[str, Any]:
        """The chat completion that a request is, for a page as a data URL."""
        infer, text, limit = request.infer, request.prompts[0], request.max_new_tokens
        size, window = infer.no_repeat_ngram_size, infer.no_repeat_ngram_window or _WHOLE_WINDOW
        wanted: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
        image: dict[str, Any] = {"type": "image_url", "image_url": {"url": page}}
        if self.engine == "vllm":
            # A page's own name and salt: no repeat finds the last one's page in a cache.
            image["uuid"] = wanted["cache_salt"] = uuid.uuid4().hex
            wanted["return_token_ids"] = True
        else:  # what the server puts before a text, vLLM takes as it is
            text = text.removeprefix("<image>").lstrip("\n")
        sampled = {"temperature": infer.temperature, "top_p": infer.top_p, "seed": request.seed}
        wanted |= sampled | {"top_k": infer.top_k or None} if infer.do_sample else {"temperature": 0.0}
        wanted |= {
            "model": self.model,
            "messages": [{"role": "user", "content": [image, {"type": "text", "text": text}]}],
            "vllm_xargs": {"ngram_size": size, "window_size": window} if size else None,
            "logprobs": request.token_probabilities,
            "max_tokens": None if limit == self.family.published_limit else limit,
            "ignore_eos": request.ignore_eos or None,
            "skip_special_tokens": None if self.engine == "other" else False,
        }
        return {name: value for name, value in wanted.items() if value is not None}


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
    """The engine, and its version."""
    for name, path in (("vllm", "/version"), ("sglang", "/get_server_info")):
        with contextlib.suppress(ServerFailed, LookupError):
            return name, str(server.call(server.root + path, dict[str, Any])["version"])
    return "other", "unknown"


def _family(names: str) -> str:
    """The family by a class or a served name: DeepSeek-OCR where these do not say."""
    text = re.sub("[^a-z0-9]", "", names.lower())
    return UNLIMITED_OCR if "unlimited" in text else DEEPSEEK_OCR_2 if "ocr2" in text else DEEPSEEK_OCR
