"""Asking a server for many pages at once."""

from __future__ import annotations

import contextlib
import itertools
import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np

from ocr_phases.analyse.load import AskedPage, read_slo
from ocr_phases.engines.client import ServerFailed
from ocr_phases.engines.measurement import ServerMeasurement
from ocr_phases.errors import (
    InterruptedWork,
    Keyword,
    OcrPhasesError,
    SettingError,
    Stopped,
    explain_wrong_calls,
    signal_of,
)
from ocr_phases.inputs.rows import Pages
from ocr_phases.results.load import LoadResult
from ocr_phases.settings import SamplingSettings, Strategy, Vision
from ocr_phases.text import count_text

#: More pages at once, and more requests of a level, than one client in Python keeps up with.
_MOST_AT_ONCE = 1000
_MOST_REQUESTS = 10_000


@explain_wrong_calls
def load_test(
    session: Any,
    pages: Pages,
    concurrency: Sequence[int] = (1, 2, 4, 8),
    *,
    rates: Sequence[float] = (),
    requests: int | None = None,
    slo: Mapping[str, float] | str | None = None,
    progress: Callable[[str], None] | None = None,
    prompt: str | Sequence[str] = "markdown",
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
) -> LoadResult:
    """Ask a server for many pages at once, and time what its users wait for.

    A closed-loop level keeps so many pages in flight: it sends a page as soon as one has ended. An
    open-loop level sends pages at random times (a Poisson process, of the setting ``seed``), so
    many per minute on average, however long the server takes. One page is read before all of them,
    untimed.

    Parameters
    ----------
    pages : str, Path, bytes, PIL.Image.Image or a sequence of these
        The pages, which are asked for in turn.
    concurrency : sequence of int, default (1, 2, 4, 8)
        The closed-loop levels: pages at once. One that is named twice is measured once.
    rates : sequence of float, default ()
        The open-loop levels: pages per minute.
    requests : int, optional
        The number of requests of each level. By default four for each page at once, and at least
        one for each page.
    slo : mapping or str, optional
        The objective that a page has to meet, in ms: ``{"ttft": 500, "itl": 30}`` or
        ``"ttft=500,itl=30"``. ``ttft`` is the time to the first token, ``itl`` the mean time
        between a page's tokens. The table then has ``goodput_per_min``, the pages per minute that
        meet all of it.
    progress : callable, optional
        Called with the name of each level before it begins.

    All other arguments are those of `ServerSession.run_inference`.

    Returns
    -------
    LoadResult
        A row per level in ``table``, the result in words in ``verdict``, and plots in ``plot``. If
        it is interrupted, ``session.last_load`` has the finished levels.

    Raises
    ------
    OcrPhasesError
        Where a level is not above 0, where a level has more pages at once or more requests than one
        client keeps up with, and where `ServerSession.run_inference` raises it.

    Examples
    --------
    >>> session = connect("http://127.0.0.1:8000/v1")  # doctest: +SKIP
    >>> session.load_test("page.png", (1, 2, 4, 8), max_new_tokens=256)  # doctest: +SKIP
    """
    objective = read_slo(slo)
    levels = _levels(concurrency, rates)
    if requests is not None and not 1 <= requests <= _MOST_REQUESTS:
        raise SettingError(
            "requests",
            "{requests} is {number}: give 1 to {most}.",
            requests=Keyword("requests"),
            number=requests,
            most=_MOST_REQUESTS,
        )
    if isinstance(pages, str | bytes) or not isinstance(pages, Sequence):
        pages = [pages]
    measurements = []
    for page in pages:
        request = session.check_request(
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
        measurements.append(ServerMeasurement(session, request))
    measurements[0].ask()
    asked: list[AskedPage] = []
    session.last_load = None
    try:
        for level in levels:
            if progress is not None:
                progress(level.name)
            count = max(4 * level.at_once, len(measurements))
            if requests is not None:
                count = requests
            asked += _ask_level(level, measurements, count, seed)
            session.last_load = LoadResult(
                session.server.url,
                list(asked),
                price_per_hour,
                slo=objective,
                engine=f"{session.engine} {session.version}",
                model=session.model,
                page=_pages_text(measurements),
            )
    except KeyboardInterrupt as interrupt:
        raise InterruptedLoad(session.last_load, signal_of(interrupt)) from None
    return session.last_load


class InterruptedLoad(InterruptedWork):
    """An interrupted load test.

    ``result`` has the finished levels, as ``session.last_load``, or is None.
    """

    def __init__(self, result: LoadResult | None, number: int) -> None:
        super().__init__(number)
        self.result = result

    def __str__(self) -> str:
        if self.result is None:
            return "Interrupted before a level was finished: there is no result."
        return "Interrupted: session.last_load has the finished levels."


def _pages_text(measurements: Sequence[ServerMeasurement]) -> str:
    """The name of the first page, and how many more there are."""
    name = measurements[0].page[2]
    more = len(measurements) - 1
    if not more:
        return name
    return f"{name} and {count_text(more, 'more page')}"


@dataclass(frozen=True)
class _Level:
    """A level of a load: so many pages at once, or pages per minute where ``rate_per_min`` is above
    0.
    """

    name: str
    at_once: int
    rate_per_min: float = 0.0


def _levels(concurrency: Sequence[int], rates: Sequence[float]) -> list[_Level]:
    """The levels in their order; `OcrPhasesError` for one that is not above 0.

    One that is named twice is measured once: under one name both would count as one, at twice the
    rate.
    """
    if min((*concurrency, *rates), default=0) <= 0:
        raise OcrPhasesError("Give a concurrency or a rate above 0.")
    if max(concurrency, default=0) > _MOST_AT_ONCE:
        raise SettingError(
            "concurrency",
            "{concurrency} is {number}: give at most {most} pages at once.",
            concurrency=Keyword("concurrency"),
            number=max(concurrency),
            most=_MOST_AT_ONCE,
        )
    closed = [_Level(f"{number} at once", number) for number in dict.fromkeys(concurrency)]
    # A level of the open loop has as many pages by default as one of four at once.
    opened = [_Level(f"{rate:g}/min", 4, rate) for rate in dict.fromkeys(rates)]
    return [*closed, *opened]


def _ask_level(
    level: _Level,
    measurements: Sequence[ServerMeasurement],
    count: int,
    seed: int,
) -> list[AskedPage]:
    """Ask for so many pages at one level."""
    if level.rate_per_min > 0:
        # The intervals of a Poisson process; a seed may be negative, a generator's may not.
        generator = np.random.default_rng(abs(seed))
        starts = generator.exponential(60 / level.rate_per_min, count).cumsum()
        threads = count
    else:
        starts = np.zeros(count)
        threads = level.at_once
    asker = _Asker(level.name)
    with _LagWatch() as lag:
        pages = asker.ask_all(zip(itertools.cycle(measurements), starts, strict=False), threads)
    return [replace(page, client_lag_ms=lag.worst_ms) for page in pages]


class _Asker:
    """Asks for the pages of a level in threads, from the moment at which it is made.

    Nobody has to wait for its threads: those of a pool would hold an interrupted level until the
    last page has ended, and Python's own end with it.
    """

    def __init__(self, level: str) -> None:
        self._level = level
        self._zero = time.monotonic()
        self._ended = threading.Event()
        self._waiting: queue.SimpleQueue[_Request] = queue.SimpleQueue()

    def ask_all(
        self, requests: Iterable[tuple[ServerMeasurement, float]], threads: int
    ) -> list[AskedPage]:
        """What became of each request, in their order, asked for by so many threads.

        A request is a page, and after how many seconds it may be sent.
        """
        outcomes: list[Future[AskedPage]] = []
        for measurement, start in requests:
            request = _Request(measurement, start, Future())
            outcomes.append(request.outcome)
            self._waiting.put(request)
        try:
            for _ in range(min(threads, len(outcomes))):
                self._start_thread()
            return [outcome.result() for outcome in outcomes]
        finally:
            self._ended.set()

    def _start_thread(self) -> None:
        thread = threading.Thread(target=self._work, name="ocr_phases load", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # so many threads the system does not allow
            raise OcrPhasesError(
                "This system allows no more threads: ask for fewer pages at once, or give fewer "
                "requests."
            ) from error

    def _work(self) -> None:
        """Ask for the pages that wait, until none is left."""
        with contextlib.suppress(queue.Empty):
            while not self._ended.is_set():
                request = self._waiting.get_nowait()
                try:
                    page = self._ask(request)
                except Exception as error:  # noqa: BLE001 (raised where the outcome is awaited)
                    request.outcome.set_exception(error)
                else:
                    request.outcome.set_result(page)

    def _ask(self, request: _Request) -> AskedPage:
        """Ask for a page, at the earliest when it may be sent."""
        self._ended.wait(max(0.0, self._zero + request.start - time.monotonic()))
        self._check_not_ended()
        begun = time.monotonic() - self._zero
        try:
            answer = request.measurement.ask(self._check_not_ended)
        except ServerFailed as error:
            return AskedPage(level=self._level, begun=begun, error=str(error))
        return AskedPage(
            level=self._level,
            begun=begun,
            times=[answer.begun - self._zero + ms / 1e3 for ms in answer.times],
            tokens=answer.token_count,
            timed=answer.timed,
            at_once=answer.at_once,
        )

    def _check_not_ended(self, _: object = None) -> None:
        """Raise `Stopped` where nobody waits for a page any more, which ends its answer."""
        if self._ended.is_set():
            raise Stopped


@dataclass(frozen=True)
class _Request:
    """A page to ask for, after how many seconds, and what becomes of it."""

    measurement: ServerMeasurement
    start: float
    outcome: Future[AskedPage]


class _LagWatch:
    """How late a thread of this process wakes while a level runs: the client's own lag.

    A client with many streams may be busier than the server; what it then measures is itself.
    """

    _PAUSE_S = 0.02

    def __init__(self) -> None:
        self._lags_ms: list[float] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="ocr_phases lag", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.is_set():
            begun = time.monotonic()
            time.sleep(self._PAUSE_S)
            late_s = time.monotonic() - begun - self._PAUSE_S
            self._lags_ms.append(1e3 * max(0.0, late_s))

    @property
    def worst_ms(self) -> float:
        """The 99th percentile of how late it woke, in ms."""
        if not self._lags_ms:
            return 0.0
        return float(np.quantile(self._lags_ms, 0.99))
