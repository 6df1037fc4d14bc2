"""Asking a server for many pages at once."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np

from ocr_phases.analyse.load import AskedPage, read_slo
from ocr_phases.engines.client import ServerFailed
from ocr_phases.engines.measurement import ServerMeasurement
from ocr_phases.errors import OcrPhasesError, explain_wrong_calls
from ocr_phases.inputs.rows import Pages
from ocr_phases.results.load import LoadResult
from ocr_phases.settings import SamplingSettings, Strategy, Vision
from ocr_phases.text import count_text


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
        A row per level in ``table``, the result in words in ``verdict``, and plots in ``plot``.

    Raises
    ------
    OcrPhasesError
        Where a level is not above 0, and where `ServerSession.run_inference` raises it.

    Examples
    --------
    >>> session = connect("http://127.0.0.1:8000/v1")  # doctest: +SKIP
    >>> session.load_test("page.png", (1, 2, 4, 8), max_new_tokens=256)  # doctest: +SKIP
    """
    objective = read_slo(slo)
    levels = _levels(concurrency, rates)
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
    for level in levels:
        if progress is not None:
            progress(level.name)
        count = max(4 * level.at_once, len(measurements))
        if requests:
            count = requests
        asked += _ask_level(level, measurements, count, seed)
    return LoadResult(
        session.server.url,
        asked,
        price_per_hour,
        slo=objective,
        engine=f"{session.engine} {session.version}",
        model=session.model,
        page=_pages_text(measurements),
    )


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
    zero = time.monotonic()
    with ThreadPoolExecutor(threads) as pool, _LagWatch() as lag:
        ask = partial(_ask, level.name, zero)
        pages = [*pool.map(ask, itertools.cycle(measurements), starts)]
    return [replace(page, client_lag_ms=lag.worst_ms) for page in pages]


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


def _ask(level: str, zero: float, measurement: ServerMeasurement, start: float) -> AskedPage:
    """Ask for a page, at the earliest ``start`` seconds after the clock showed ``zero``."""
    time.sleep(max(0.0, zero + start - time.monotonic()))
    begun = time.monotonic() - zero
    try:
        answer = measurement.ask()
    except ServerFailed as error:
        return AskedPage(level=level, begun=begun, error=str(error))
    return AskedPage(
        level=level,
        begun=begun,
        times=[answer.begun - zero + ms / 1e3 for ms in answer.times],
        tokens=answer.token_count,
        timed=answer.timed,
        at_once=answer.at_once,
    )
