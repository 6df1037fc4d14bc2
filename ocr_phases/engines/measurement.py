"""The repeats of a request to a server, and the record of them."""

from __future__ import annotations

import contextlib
import io
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from msgspec.structs import replace
from PIL import Image

from ocr_phases.engines import checks
from ocr_phases.engines.answers import Answer, WorkerStage, ask
from ocr_phases.engines.chat import repetition_rule_of
from ocr_phases.engines.client import Server, ServerFailed
from ocr_phases.engines.dialects import Dialect
from ocr_phases.engines.metrics import metrics, server_times
from ocr_phases.engines.spans import spans_of, stages_of_spans
from ocr_phases.engines.vllm_worker import MODULES
from ocr_phases.errors import OcrPhasesError
from ocr_phases.families import FamilyFacts, ViewSizes
from ocr_phases.images import image_file, load_page
from ocr_phases.measure.record_parts import page_part, request_part, row_part
from ocr_phases.measure.runs import (
    OnProgress,
    OnRunTokens,
    OnTokens,
    numbered_runs,
    recording,
    tokens_of_run,
)
from ocr_phases.measure.verdicts import repeat_checks, unknown_check
from ocr_phases.record.parts import (
    CheckPart,
    DevicePart,
    ModelPart,
    ProbabilitiesPart,
    ResultPart,
    StagePart,
    make_part,
)
from ocr_phases.results.run import PhaseRun
from ocr_phases.settings import ModelSettings, Request, RunSettings
from ocr_phases.show.web import data_address
from ocr_phases.versions import __version__, code_hash


class MeasuredServer(Protocol):
    """What a measurement needs of a `ocr_phases.engines.session.ServerSession`."""

    server: Server
    model: str
    dialect: Dialect
    engine_source: str
    version: str
    extra_body: dict[str, Any]
    family: FamilyFacts
    family_source: str
    worker: dict[str, Any]
    reference: Any

    @property
    def engine(self) -> str:
        """The engine's name."""

    def rpc(self, method: str, kind: Any) -> Any:
        """What the first worker's extension answers, as this type."""

    def body(self, request: Request, page: str) -> dict[str, Any]:
        """The chat completion that a request is, for a page as a data URL."""


class ServerMeasurement:
    """A request to a server: its answers so far, and in the end its record.

    Parameters
    ----------
    session : MeasuredServer
        The server.
    request : Request
        What is asked for.

    Attributes
    ----------
    answers : list of Answer
        The answers of the finished repeats.
    result : PhaseRun or None
        The record, once the measurement has ended with at least one finished repeat.
    """

    def __init__(self, session: MeasuredServer, request: Request) -> None:
        self.session = session
        self.request = request
        self.page = load_page(request.pages[0])
        self._page_url = data_url(*self.page[:2])
        self.answers: list[Answer] = []
        self.result: PhaseRun | None = None
        #: Time to the first token of the first answer of all, in ms.
        self.first = 0.0
        #: The checks that compare with the native class.
        self.compared: list[CheckPart] = []
        #: Why the server ended the measurement; empty where it did not.
        self.failure = ""

    def run(
        self, on_tokens: OnRunTokens | None = None, progress: OnProgress | None = None
    ) -> PhaseRun:
        """Ask for the warm-ups and repeats, then for what is compared with them: the record.

        Callbacks and interrupts are those of `ocr_phases.measure.measurement.Measurement.run`. A
        server that fails after the first repeat leaves the finished ones. Raises `ServerFailed`
        where that came before.
        """
        with recording(self):
            try:
                self._ask_for_all(on_tokens, progress)
            except ServerFailed as error:
                self.failure = f": {error}"
                if not self.answers:
                    raise
        assert self.result is not None
        return self.result

    def _ask_for_all(self, on_tokens: OnRunTokens | None, progress: OnProgress | None) -> None:
        """The warm-ups and repeats, and the checks that ask for more."""
        for number in numbered_runs(self.request, progress):
            answer = self._ask_once(tokens_of_run(on_tokens, number))
            if not self.first:
                self.first = answer.times[0]
            if number >= 0:  # a warm-up is not recorded
                self.answers.append(answer)
        if self.request.verify:
            self.compared = self._compare_with_native()

    def ask(self, on_tokens: OnTokens | None = None) -> Answer:
        """One answer, of at most the tokens that were asked for."""
        body = self.session.body(self.request, self._page_url)
        return ask(self.session.server, body, on_tokens, self.request.max_new_tokens)

    def _ask_once(self, on_tokens: OnTokens | None) -> Answer:
        """One answer, with what the server and its worker say of it.

        They say it as long as the request had the server alone.
        """
        session = self.session
        before = metrics(session.server)
        answer = self.ask(on_tokens)
        told = server_times(session.server, before)
        if told:
            answer.server_times = told
        if answer.server_times.get("prefill_ms", 0.0) > answer.times[0]:
            # A prefill that took longer than the client waited is not that of this request.
            answer.server_times = {}
        was_alone = bool(answer.server_times) or not before
        if session.worker and was_alone:
            answer.stages = self._worker_stages(answer.begun)
            settings = session.worker.get("settings") or {}
            if settings.get("enable_mm_processor_stats"):
                answer.encoder_ms = session.rpc("ocr_encoder_ms", float | None)
        return answer

    def _worker_stages(self, begun: float) -> list[WorkerStage]:
        """What the worker ran since the request was sent, ``begun``, in ms since then."""
        sent = time.monotonic()
        now, calls = self.session.rpc("ocr_take", tuple[float, list[WorkerStage]])
        received = time.monotonic()
        # One host has one clock.
        offset = 0.0 if sent <= now <= received else (sent + received) / 2 - now
        zero = begun - offset
        most_ms = 1e3 * (now - zero)
        stages = []
        for name, at, ms, tokens in calls:
            # What is of another time is not of this request.
            if zero <= at <= now and 0.0 <= ms <= most_ms:
                stages.append((name, 1e3 * (at - zero), ms, tokens))
        return stages

    def _compare_with_native(self) -> list[CheckPart]:
        """The server's prompt and tokens beside those of the native class on the same page."""
        # What runs the reference needs torch, which the measurement of a server does not.
        from ocr_phases.measure.loaded_model import LoadedModel, kept_model
        from ocr_phases.measure.measurement import Measurement

        reference = self.session.reference
        if isinstance(reference, str | Path):
            reference = kept_model(ModelSettings(model=str(reference)))
        elif not isinstance(reference, LoadedModel):
            reference = reference.loaded_model  # of a session
        family = reference.checkpoint.family
        if self.session.family.is_unknown and not family.is_unknown:
            raise OcrPhasesError(
                f"Nothing tells the family of {self.session.model}, which the server runs, and the "
                f"reference {reference.checkpoint.name} is a {family.title}: give the folder of "
                f"the server's own model as the reference (--model), or name its family (--family "
                f"{family.name})."
            )
        request = self.request
        answer = self.answers[0]
        native = Measurement(
            reference,
            request.pages[0],
            RunSettings(
                prompt=request.prompt,
                preset=request.preset,
                base_size=request.base_size,
                image_size=request.image_size,
                crop_mode=request.crop_mode,
                min_crops=request.min_crops,
                max_crops=request.max_crops,
                grounding=request.grounding,
                max_new_tokens=request.max_new_tokens,
                infer=request.infer,
            ),
        )
        prompt = checks.prompt_check(answer, native.packed.input_ids[0].tolist())
        if not answer.ids:
            return [prompt, unknown_check("parity", "the server sends no token ids")]
        return [prompt, native.compare_with_generate(request, [answer.ids])]

    # -- the record --------------------------------------------------------------------------------

    def record(self) -> PhaseRun | None:
        """The record of the finished repeats; what nobody told is not in it.

        None where there is none.
        """
        if not self.answers:
            return None
        session = self.session
        worker = session.worker
        runs = [answer for answer in self.answers if answer.timed]
        if not runs:
            # A busy host joins tokens that came one by one, perhaps in every repeat.
            runs = self.answers
        answer = runs[0]
        cut = checks.how_page_was_cut(
            answer,
            self.request.cutting,
            session.family,
            self.request.prompts[0],
            *self.page[0].size,
        )
        prompt_tokens = answer.prompt_tokens
        text_tokens = None
        if prompt_tokens is not None and cut.image_tokens is not None:
            text_tokens = max(0, prompt_tokens - cut.image_tokens)
        spans = spans_of(runs)
        versions = {session.engine: session.version, "ocr_phases": __version__, "code": code_hash()}
        device = {"name": f"{session.engine} at {session.server.host}", "kind": "server"}
        request = request_part(self.request, repeats=len(runs), prefill_len=prompt_tokens, batch=1)
        if cut.preset != self.request.cutting:
            # The server did not do what it was asked for: the preset that it took has no own sizes.
            no_sizes = dict.fromkeys(vars(ViewSizes()))
            request = replace(request, preset=cut.preset.name, **no_sizes)
        return PhaseRun(
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            versions=versions | worker.get("versions", {}),
            device=make_part(DevicePart, device | worker.get("device", {})),
            model=self._model_part(runs, stages_of_spans(spans, worker.get("modules") or MODULES)),
            pages=[
                page_part(
                    self.page,
                    cut.preset,
                    row=0,
                    image_tokens=cut.image_tokens,
                    text_tokens=text_tokens,
                    embed=self.request.embed_page,
                )
            ],
            request=replace(request, strategy="server", vision="server"),
            results=[self._result_part(answer)],
            spans=spans,
            live_checks=[*self._run_checks(runs), cut.check, *self.compared],
            probabilities=_probabilities(answer),
        )

    def _run_checks(self, runs: list[Answer]) -> Iterator[CheckPart]:
        """What the repeats show; ``runs`` are those that the record has."""
        # How a text is cut into pieces may differ, where pieces stand for ids.
        ids_or_texts = [answer.ids or answer.text for answer in self.answers]
        yield from repeat_checks(ids_or_texts, self.request.repeats, self.failure)
        body = self.session.body(self.request, "")
        settings = self.session.worker.get("settings") or {}
        graphs = checks.graphs_check(settings)
        yield from checks.own_checks(
            runs,
            more=len(self.answers) - len(runs),
            first=self.first,
            rule=repetition_rule_of(body, self.session.dialect),
            limit=self.request.max_new_tokens,
            vision_is_hidden=graphs is not None and not settings.get("encoder_graphs_timed"),
        )
        if graphs is not None:
            yield graphs
        engine = checks.engine_check(self.session.engine, self.session.engine_source)
        if engine is not None:
            yield engine
        tags = checks.tags_check(runs[0].text, self.session.family)
        if tags is not None:
            yield tags

    def _model_part(self, runs: list[Answer], stages: list[StagePart]) -> ModelPart:
        """The record's part about the model, as far as the server and its worker tell."""
        session = self.session
        worker = session.worker
        server = {
            "engine": session.engine,
            "engine_source": session.engine_source,
            "version": session.version,
            "url": session.server.url,
            "family_source": session.family_source,
            "settings": worker.get("settings"),
            "times": [_own_times(run) for run in runs],
        }
        if session.extra_body:
            server["extra_body"] = session.extra_body
        model = {
            "name": session.model,
            "config": {},
            "family": session.family.name,
            "server": server,
            "strategy": "server",
            "implementation": "server",
            "dtype": "unknown",
        }
        part = make_part(ModelPart, model | worker.get("model", {}))
        return replace(part, stages=stages)

    def _result_part(self, answer: Answer) -> ResultPart:
        """The record's part about what the server wrote."""
        ids, texts = answer.tokens
        result = row_part(
            self.request,
            ids=ids,
            texts=texts,
            text=answer.text,
            finish_reason=answer.finish or "unknown",
        )
        tokens = answer.token_count
        if not answer.ids:
            return replace(result, pieces=True, token_count=tokens)
        if tokens != len(ids):
            return replace(result, token_count=tokens)
        return result


def _own_times(answer: Answer) -> dict[str, float]:
    """What the server itself tells of an answer, in ms."""
    if answer.encoder_ms is None:
        return answer.server_times
    return {**answer.server_times, "encoder_ms": answer.encoder_ms}


def _probabilities(answer: Answer) -> list[ProbabilitiesPart] | None:
    """The log probabilities that the server sent; None where it did not send one for each token."""
    ids, _ = answer.tokens
    if len(answer.logprobs) != len(ids):
        return None
    logprobs: list[float | None] = [min(0.0, round(value, 3)) for value in answer.logprobs]
    return [ProbabilitiesPart(logprobs=logprobs, margins=[None] * len(ids))]


def data_url(image: Image.Image, data: bytes | None) -> str:
    """The page as it is in its file where a server reads the same pixels there, else as PNG."""
    with contextlib.suppress(OSError):  # a PDF is no image
        file = Image.open(io.BytesIO(data or b""), formats=["PNG", "JPEG"])
        if data and (file.size, file.tobytes()) == (image.size, image.tobytes()):
            return data_address(data, Image.MIME[file.format or ""])
    return data_address(image_file(image, "PNG"), "image/png")
