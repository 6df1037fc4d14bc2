"""A session on a running server: the same call as on a loaded model, and the same record."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

from msgspec import Meta

from ocr_phases.engines.chat import chat_body
from ocr_phases.engines.client import (
    ANSWER_SECONDS,
    FIRST_TOKEN_SECONDS,
    ServedModels,
    Server,
    ServerFailed,
    short_name,
)
from ocr_phases.engines.dialects import find_dialect
from ocr_phases.engines.extra_body import read_extra_body
from ocr_phases.engines.load import load_test
from ocr_phases.engines.measurement import ServerMeasurement
from ocr_phases.errors import (
    Hinted,
    Keyword,
    OcrPhasesError,
    SettingError,
    check_known,
    explain_wrong_calls,
)
from ocr_phases.families import (
    UNKNOWN,
    FamilyFacts,
    facts_of,
    family_of_class,
    family_of_name,
)
from ocr_phases.inputs.rows import Pages
from ocr_phases.measure.request import resolve_request
from ocr_phases.results.load import LoadResult
from ocr_phases.results.run import PhaseRun
from ocr_phases.settings import (
    ENGINES,
    FAMILY_NAMES,
    Request,
    RunSettings,
    SamplingSettings,
    Strategy,
    Vision,
    setting_names,
)

#: Settings of a model that is loaded, which no server can be asked for.
_OF_LOADED_MODELS = (
    "first_token",
    "strategy",
    "vision",
    "threads",
    "autocast",
    "eos_check_every",
    "generate",
    "kernels",
    "phase_energy",
)
#: Seconds that the worker's extension has to answer.
_RPC_SECONDS = 60
#: Served models that are listed where none of them was named.
_MOST_LISTED = 5


#: What the worker's extension says of the model and its device (`vllm_worker.Stages.ocr_watch`),
#: as far as a record has it.
_WorkerModel = TypedDict("_WorkerModel", {"class": str, "dtype": str}, total=False)


class _WorkerDevice(TypedDict, total=False):
    name: str
    kind: str
    threads: Annotated[int, Meta(gt=0)]


class _Worker(TypedDict, total=False):
    model: _WorkerModel
    device: _WorkerDevice
    versions: dict[str, str]
    modules: dict[str, str]
    settings: dict[str, Any]


def _listed(names: Sequence[str]) -> str:
    """Names in a list, cut where there are many."""
    listed = ", ".join(short_name(name) for name in names[:_MOST_LISTED])
    more = len(names) - _MOST_LISTED
    if more <= 0:
        return listed
    return f"{listed} and {more:,} more"


class ServerSession(Hinted):
    """A model behind an address; `connect` makes it and describes its arguments.

    Attributes
    ----------
    model : str
        The served model's name.
    engine : str
        The server's engine, such as ``vllm``; ``other`` where nothing tells it.
    version : str
        The engine's version; ``unknown`` where the server does not tell it.
    family : FamilyFacts
        The facts of the model's family.
    last_run : PhaseRun or None
        What the last `run_inference` measured, also where it was interrupted; None without a
        finished repeat.
    last_load : LoadResult or None
        What the last `load_test` measured, also where it was interrupted; None without a finished
        level.
    """

    @explain_wrong_calls
    def __init__(
        self,
        url: str,
        model: str | None = None,
        *,
        api_key: str | None = None,
        reference: Any = None,
        patience: float = 300.0,
        first_token_timeout: float = FIRST_TOKEN_SECONDS,
        answer_timeout: float = ANSWER_SECONDS,
        family: str | None = None,
        engine: str | None = None,
        extra_body: Mapping[str, Any] | str | None = None,
    ) -> None:
        if family is not None:
            check_known(Keyword("family"), family, FAMILY_NAMES)
        if engine is not None:
            check_known(Keyword("engine"), engine, ENGINES)
        #: Entries that are added to each request.
        self.extra_body = read_extra_body(extra_body)
        self.server = Server(
            url,
            api_key=api_key,
            patience=patience,
            first_token_timeout=first_token_timeout,
            answer_timeout=answer_timeout,
        )
        server = self.server
        models = server.call(f"{server.path}/models", ServedModels)
        served = [served_model.id for served_model in models.data]
        if not served:
            raise OcrPhasesError(f"{server.url} serves no model.")
        self.reference = reference
        self.model = model or server.model
        if not self.model and len(served) == 1:
            self.model = served[0]
        if self.model not in served:
            raise OcrPhasesError(f"{server.url} serves {_listed(served)}: name one of these.")
        self.dialect, self.version, self.engine_source = find_dialect(server, engine)
        #: What the worker's extension says of the model and its device; empty without it.
        self.worker: dict[str, Any] = {}
        with contextlib.suppress(ServerFailed):
            self.worker = self.rpc("ocr_watch", _Worker)
        self.family, self.family_source = self._find_family(family)
        #: What the last `run_inference` measured, also where it was interrupted; None without a
        #: repeat.
        self.last_run: PhaseRun | None = None
        #: What the last `load_test` measured, also where it was interrupted; None without a level.
        self.last_load: LoadResult | None = None

    def _find_family(self, asked: str | None) -> tuple[FamilyFacts, str]:
        """The facts of the model's family, and where its name is from."""
        if asked is not None:
            return facts_of(asked), "named by the user"
        worker_class = self.worker.get("model", {}).get("class")
        if worker_class:
            return facts_of(family_of_class(str(worker_class))), "the worker's class"
        family = family_of_name(self.model)
        if family == UNKNOWN:
            return facts_of(UNKNOWN), "unknown"
        return facts_of(family), "guessed from the served name"

    @property
    def engine(self) -> str:
        """The engine's name, such as ``vllm``; ``other`` where nothing tells it."""
        return self.dialect.name

    def __repr__(self) -> str:
        family = f"family {self.family.name}"
        if self.family.name != self.family_source:
            family += f", {self.family_source}"
        place = f"{self.server.url}, {self.engine} {self.version}"
        return f"{type(self).__name__}({self.model!r} at {place}, {family})"

    def rpc(self, method: str, kind: Any) -> Any:
        """What the first worker's extension answers, as this type."""
        body = {"method": method, "timeout": _RPC_SECONDS}
        path = f"{self.server.root}/collective_rpc"
        answer = self.server.call(path, dict[str, list[kind]], body, seconds=_RPC_SECONDS)
        results = answer.get("results")
        if not results:
            raise ServerFailed(f"{self.server.url} has no worker that answers {method}.")
        return results[0]

    def references(self) -> None:
        """A server does not tell where its source does what is measured."""

    @explain_wrong_calls
    def run_inference(
        self,
        page: Pages | None,
        prompt: str | Sequence[str] = "markdown",
        *,
        preset: str | None = None,
        base_size: int | None = None,
        image_size: int | None = None,
        crop_mode: bool | None = None,
        min_crops: int | None = None,
        max_crops: int | None = None,
        max_new_tokens: int | None = None,
        infer: SamplingSettings | Mapping[str, Any] | str | None = None,
        repeats: int = 3,
        warmup: int = 1,
        warm_once: bool = False,
        strategy: Strategy = "eager",
        vision: Vision = "eager",
        threads: int | None = None,
        grounding: bool | None = None,
        ignore_eos: bool | None = None,
        eos_check_every: int | None = None,
        first_token: Literal["prefill", "redecode"] = "prefill",
        seed: int = 0,
        autocast: bool | None = None,
        generate: bool = False,
        return_text: bool = True,
        embed_page: bool = True,
        verify: bool = False,
        token_probabilities: bool = True,
        ceilings: bool = True,
        phase_energy: bool = False,
        kernels: bool = False,
        kernel_steps: int = 32,
        kernel_trace: str | Path | None = None,
        price_per_hour: float | None = None,
        on_tokens: Callable[[int, list[list[int]]], object] | None = None,
        progress: Callable[[int, int], object] | None = None,
    ) -> PhaseRun:
        """Ask the server to read a page: ``warmup`` unrecorded times, then ``repeats`` recorded
        ones.

        Arguments, callbacks and interrupts are those of `OCRSession.run_inference`. Times are the
        client's: it waits for the first token, and each later token that comes by itself is a
        decode step. What the server or its worker tells besides is in the record, and what nobody
        tells is missing. A server that fails after the first repeat leaves the finished ones, with
        its reason. ``verify`` compares with ``reference``.

        Raises `OcrPhasesError` for what a server cannot do, by name, and where no repeat was
        finished.
        """
        request = self.check_request(
            page,
            prompt,
            preset=preset,
            base_size=base_size,
            image_size=image_size,
            crop_mode=crop_mode,
            min_crops=min_crops,
            max_crops=max_crops,
            max_new_tokens=max_new_tokens,
            infer=infer,
            repeats=repeats,
            warmup=warmup,
            warm_once=warm_once,
            strategy=strategy,
            vision=vision,
            threads=threads,
            grounding=grounding,
            ignore_eos=ignore_eos,
            eos_check_every=eos_check_every,
            first_token=first_token,
            seed=seed,
            autocast=autocast,
            generate=generate,
            return_text=return_text,
            embed_page=embed_page,
            verify=verify,
            token_probabilities=token_probabilities,
            ceilings=ceilings,
            phase_energy=phase_energy,
            kernels=kernels,
            kernel_steps=kernel_steps,
            kernel_trace=kernel_trace,
            price_per_hour=price_per_hour,
        )
        measurement = ServerMeasurement(self, request)
        self.last_run = None
        try:
            return measurement.run(on_tokens, progress)
        finally:
            self.last_run = measurement.result

    load_test = load_test

    @explain_wrong_calls
    def check_request(
        self,
        page: Pages | None,
        prompt: str | Sequence[str] = "markdown",
        *,
        preset: str | None = None,
        base_size: int | None = None,
        image_size: int | None = None,
        crop_mode: bool | None = None,
        min_crops: int | None = None,
        max_crops: int | None = None,
        max_new_tokens: int | None = None,
        infer: SamplingSettings | Mapping[str, Any] | str | None = None,
        repeats: int = 3,
        warmup: int = 1,
        warm_once: bool = False,
        strategy: Strategy = "eager",
        vision: Vision = "eager",
        threads: int | None = None,
        grounding: bool | None = None,
        ignore_eos: bool | None = None,
        eos_check_every: int | None = None,
        first_token: Literal["prefill", "redecode"] = "prefill",
        seed: int = 0,
        autocast: bool | None = None,
        generate: bool = False,
        return_text: bool = True,
        embed_page: bool = True,
        verify: bool = False,
        token_probabilities: bool = True,
        ceilings: bool = True,
        phase_energy: bool = False,
        kernels: bool = False,
        kernel_steps: int = 32,
        kernel_trace: str | Path | None = None,
        price_per_hour: float | None = None,
    ) -> Request:
        """What `run_inference` would ask for, with every default; raises what that would before it
        asks.
        """
        asked = RunSettings(
            prompt=prompt,
            preset=preset,
            base_size=base_size,
            image_size=image_size,
            crop_mode=crop_mode,
            min_crops=min_crops,
            max_crops=max_crops,
            max_new_tokens=max_new_tokens,
            infer=infer,
            repeats=repeats,
            warmup=warmup,
            warm_once=warm_once,
            strategy=strategy,
            vision=vision,
            threads=threads,
            grounding=grounding,
            ignore_eos=ignore_eos,
            eos_check_every=eos_check_every,
            first_token=first_token,
            seed=seed,
            autocast=autocast,
            generate=generate,
            return_text=return_text,
            embed_page=embed_page,
            verify=verify,
            token_probabilities=token_probabilities,
            ceilings=ceilings,
            phase_energy=phase_energy,
            kernels=kernels,
            kernel_steps=kernel_steps,
            kernel_trace=kernel_trace,
            price_per_hour=price_per_hour,
        )
        if page is None:
            raise OcrPhasesError(
                "A server is asked to read a page: name one. A prompt without an image is measured "
                "with a model that is loaded here."
            )
        request = resolve_request(asked, self.family, page)
        self._check_possible(asked, request)
        if len(request.pages) != 1 or len(request.prompts) != 1:
            raise OcrPhasesError(
                "A server is asked for one page at a time: name one, with one prompt."
            )
        if asked.verify and not self.reference:
            raise SettingError(
                "verify", "verify needs the checkpoint to compare with: give connect a reference."
            )
        return replace(request, autocast=False)

    def _check_possible(self, asked: RunSettings, request: Request) -> None:
        """Raise `SettingError` for the first setting that this server cannot be asked for."""
        for name in _OF_LOADED_MODELS:
            self._check_left_out(name, getattr(asked, name), getattr(RunSettings, name), name)
        for name in self.dialect.cannot:
            if name in setting_names(SamplingSettings):
                default = getattr(SamplingSettings, name)
                self._check_left_out(name, getattr(request.infer, name), default, "infer")
            else:
                self._check_left_out(name, getattr(asked, name), getattr(RunSettings, name), name)

    def _check_left_out(self, name: str, value: Any, default: Any, setting: str) -> None:
        """Raise `SettingError` where a value differs from its default and asks for something."""
        if value and value != default:
            raise SettingError(
                setting,
                "{setting} is not possible with this server: leave it out, or load the model "
                "itself.",
                setting=Keyword(name, value),
            )

    def body(self, request: Request, page: str) -> dict[str, Any]:
        """The chat completion that a request is, for a page as a data URL."""
        return chat_body(
            request,
            page,
            model=self.model,
            dialect=self.dialect,
            family=self.family,
            extra=self.extra_body,
        )


@explain_wrong_calls
def connect(
    url: str,
    model: str | None = None,
    api_key: str | None = None,
    *,
    reference: Any = None,
    patience: float = 300.0,
    first_token_timeout: float = FIRST_TOKEN_SECONDS,
    answer_timeout: float = ANSWER_SECONDS,
    family: str | None = None,
    engine: str | None = None,
    extra_body: Mapping[str, Any] | str | None = None,
) -> ServerSession:
    """A session on a running OpenAI-compatible server; it needs no torch.

    Parameters
    ----------
    url : str
        The server's address, such as ``http://127.0.0.1:8000/v1``.
    model : str, optional
        The model to ask, needed where the server has several; also as ``url#model``.
    api_key : str, optional
        The server's key; by default the environment variable ``OCR_PHASES_API_KEY``. No record has
        it.
    reference : optional
        The checkpoint that ``verify=True`` compares the tokens with: a session, or a name as
        `OCRSession.load` takes it.
    patience : float, default 300
        How many seconds the server may be silent.
    first_token_timeout : float, default 300
        How many seconds a page may take until its first token, whatever else the server sends
        meanwhile.
    answer_timeout : float, default 3600
        How many seconds a page may take until its last token.
    family : str, optional
        The model's family (``deepseek-ocr``, ``deepseek-ocr-2``, ``unlimited-ocr`` or ``unknown``),
        where neither the worker's class nor the served name tells it. Of an unknown family no
        preset is assumed, and your own prompt is sent unchanged.
    engine : str, optional
        The server's engine (``vllm``, ``sglang``, ``llama.cpp``, ``ollama`` or ``other``), where
        the server does not tell it, as behind a proxy that shows only ``/v1``. It decides which
        entries beyond OpenAI's a request has.
    extra_body : mapping or str, optional
        Entries that are added to each request, as a mapping or as JSON text; they are in the
        record. An entry that is a setting of its own is refused.

    Returns
    -------
    ServerSession
        Its ``run_inference`` returns the same `PhaseRun` as that of a loaded model.

    Raises
    ------
    OcrPhasesError
        Where there is no such server or model, and where an argument is wrong.

    Examples
    --------
    >>> session = connect("http://127.0.0.1:8000/v1")  # doctest: +SKIP
    >>> session.run_inference("page.png")  # doctest: +SKIP
    """
    return ServerSession(
        url,
        model,
        api_key=api_key,
        reference=reference,
        patience=patience,
        first_token_timeout=first_token_timeout,
        answer_timeout=answer_timeout,
        family=family,
        engine=engine,
        extra_body=extra_body,
    )
