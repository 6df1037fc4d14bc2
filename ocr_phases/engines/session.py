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
from ocr_phases.request import filled_in, recorded
from ocr_phases.results.run import PhaseRun
from ocr_phases.settings import Request, RunSettings

#: Settings that no server can be asked for, and those that an engine is not known to take, either.
_CANNOT = ("first_token", "strategy", "vision", "autocast", "eos_check_every", "generate", "kernels")
_OTHERS = ("no_repeat_ngram_size", "top_k", "ignore_eos")
_LACKS = {"vllm": (), "sglang": _OTHERS[:1], "other": _OTHERS}
#: The family by a part of a class or a served name, which may not say it.
_FAMILIES = {"unlimited": UNLIMITED_OCR, "ocr2": DEEPSEEK_OCR_2, "": DEEPSEEK_OCR}


@public
class ServerSession:
    """A model behind an address: ``engine`` and ``version`` are the server's, as far as it tells them."""

    @checked(Server)
    def __init__(self, url: str, model: str | None = None, *, reference: Any = None, **options: Any) -> None:
        server = self.server = Server(url, **options)
        served = [each["id"] for each in server.call(f"{server.path}/models", SHAPES["models"])["data"]]
        self.reference, self.model = reference, model or server.model or " ".join(served)  # several are none
        require([(f"{server.url} serves {', '.join(served)}: name one of these.", self.model in served)])
        self.engine, self.version = "other", "unknown"
        for engine, path in (("sglang", "/get_server_info"), ("vllm", "/version")):
            with contextlib.suppress(ServerFailed, LookupError):
                self.version = str(server.call(server.root + path, dict[str, Any])["version"])
                self.engine = engine
        #: What the worker's extension says of the model and its device; empty without it.
        self.worker: dict[str, Any] = {}
        with contextlib.suppress(ServerFailed, LookupError):
            self.worker = self.rpc("ocr_watch", dict[str, dict[str, Any]])
        names = re.sub("[^a-z0-9]", "", f"{self.worker.get('model')} {self.model}".lower())
        self.family = facts_of(next(name for part, name in _FAMILIES.items() if part in names))
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
        check = partial(self.check_request, page, prompt=prompt)
        return recorded(self, lambda **own: Measurement(self, check(**own)), given)

    load_test = load_test

    @checked(RunSettings)
    def check_request(self, page: Pages, **settings: Any) -> Request:
        """What `run_inference` would ask for, with every default; raises what that would before it asks."""
        asked = RunSettings(**settings)
        request = filled_in(page, asked, self.family, ignore_eos=False, eos_check_every=1)
        every, lacks = vars(asked) | vars(request.infer), (*_CANNOT, *_LACKS[self.engine])
        given = [(name, every[name]) for name in lacks if every[name]]
        told = "This server cannot do {}={!r}: leave it out, or load the model itself."
        require((told.format(*each), each[1] == getattr(RunSettings, each[0], None)) for each in given)
        told = "A server is asked for one page at a time: name one, with one prompt."
        needed = "verify needs the checkpoint to compare with: give connect a reference."
        single = len(request.pages) == len(request.prompts) == 1
        require([(told, single), (needed, self.reference or not asked.verify)])
        return replace(request, autocast=False)

    def body(self, request: Request, page: str) -> dict[str, Any]:
        """The chat completion that a request is, for a page as a data URL."""
        infer, text, limit = request.infer, request.prompts[0], request.max_new_tokens
        size, window = infer.no_repeat_ngram_size, infer.no_repeat_ngram_window or 1 << 20
        wanted = {"stream": True, "stream_options": {"include_usage": True}, "seed": request.seed}
        image: dict[str, Any] = {"type": "image_url", "image_url": {"url": page}}
        if self.engine == "vllm":
            # A page's own name and salt: no repeat finds the last one's page in a cache.
            image["uuid"] = wanted["cache_salt"] = uuid.uuid4().hex
            wanted["return_token_ids"] = True
        else:  # what the server puts before a text, vLLM takes as it is
            text = text.removeprefix("<image>").lstrip("\n")
        wanted |= {"temperature": infer.temperature if infer.do_sample else 0.0, "top_p": infer.top_p}
        wanted |= {"top_k": infer.top_k} if infer.top_k else {}
        wanted |= {"max_tokens": limit} if limit != self.family.published_limit else {}
        wanted |= {"vllm_xargs": {"ngram_size": size, "window_size": window}} if size else {}
        if self.engine != "other":
            wanted |= {"ignore_eos": request.ignore_eos, "skip_special_tokens": False}
        said = [{"role": "user", "content": [image, {"type": "text", "text": text}]}]
        return wanted | {"model": self.model, "messages": said, "logprobs": request.token_probabilities}


@checked(ServerSession)
def connect(url: str, model: str | None = None, api_key: str | None = None, **options: Any) -> ServerSession:
    """A session on the OpenAI-compatible server at ``url``, such as ``http://127.0.0.1:8000/v1``.

    ``model`` is needed where it serves several (also as ``url#model``). ``api_key`` is by default that of the
    environment variable ``OCR_PHASES_API_KEY``; no record has it. ``reference`` is the checkpoint that
    ``verify=True`` compares the tokens with, as `OCRSession.load` takes it. ``patience`` is how many seconds
    the server may be silent. Raises `OcrPhasesError` where there is no such server or model.
    """
    return ServerSession(url, model, api_key=api_key, **options)
