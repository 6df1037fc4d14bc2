"""What is compiled or captured before a run: it is announced, and its time is taken.

That can take a minute or more, in which nothing else is to be seen. So each part is announced
before it is made, to whoever listens: a progress bar, the explorer.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from time import perf_counter

import torch

from ocr_phases.collectors.energy import POWERCAP, counter_and_idle_watts
from ocr_phases.errors import OcrPhasesError, first_line
from ocr_phases.listeners import Channel, Listener
from ocr_phases.models.devices import device_of


def _ignore(what: str) -> None:
    """The listener where nobody wants to know."""


_announcements = Channel("announcements", default=_ignore)


def announce(what: str) -> None:
    """Say what is compiled or captured next ("compiling SAM"); raises what the listener raises,
    which may be `Stopped`.
    """
    _announcements.say(what)


def announcements_to(listener: Listener) -> AbstractContextManager[None]:
    """Give ``listener`` what is announced in a ``with`` block."""
    return _announcements.heard_by(listener)


@contextlib.contextmanager
def numbered_announcements(total: int | None) -> Iterator[None]:
    """Number what is announced in a ``with`` block: "compiling SAM (1 of 3)".

    Where some of it may be there already, ``total`` is None and only the number is said.
    """
    listener = _announcements.listener
    numbers = itertools.count(1)
    of_total = "" if total is None else f" of {total}"

    def with_number(what: str) -> None:
        listener(f"{what} ({next(numbers)}{of_total})")

    with announcements_to(with_number):
        yield


@dataclass
class Preparation:
    """How long a preparation took, the device's work included; 0 until it has ended."""

    ms: float = 0.0


@contextlib.contextmanager
def timed_preparation(device: torch.device | str) -> Iterator[Preparation]:
    """Take the time of a ``with`` block, which compiles or captures something.

    Raises `OcrPhasesError` where the compiler fails in it.
    """
    waited_for = device_of(device)
    preparation = Preparation()
    waited_for.synchronize()
    start = perf_counter()
    try:
        yield preparation
    except torch._dynamo.exc.TorchDynamoException as error:
        reason = first_line(error)
        raise OcrPhasesError(f"torch.compile failed here ({reason}): use 'eager'.") from error
    waited_for.synchronize()
    preparation.ms = (perf_counter() - start) * 1e3


# -- what is compiled ------------------------------------------------------------------------------


def measure_idle_gpu(device: torch.device) -> None:
    """Measure the watts of an idle GPU, and import the compiler meanwhile.

    Either takes a second or more, and the GPU has nothing to do with the import. A CPU would be
    busy with it, so for all other devices nothing happens here.
    """
    if device.type != "cuda":
        return
    device_of(device).synchronize()
    with ThreadPoolExecutor(max_workers=1) as pool:
        measured = pool.submit(counter_and_idle_watts, device, POWERCAP)
        import_module("torch._inductor.compile_fx")
    # That there is no counter is told where the energy of the runs is measured.
    with contextlib.suppress(OSError):
        measured.result()


@contextlib.contextmanager
def compiling(what: str, device: torch.device | str, made_from: str) -> Iterator[Preparation]:
    """Announce a ``with`` block that compiles something, with the time of its last start, and time
    it.

    ``made_from`` tells apart what the compiler would tell apart: the model, the shapes. Raises
    `OcrPhasesError` where the compiler fails.
    """
    earlier = EarlierStarts(f"{torch.__version__} {device} {made_from}")
    announce(f"compiling {what}{earlier.text()}")
    with timed_preparation(device) as preparation:
        yield preparation
    earlier.add(preparation.ms)


class EarlierStarts:
    """How long a thing took to compile in earlier starts, as this machine remembers it.

    The times lie beside what the compiler keeps, so that both go together: as long as it has the
    thing, a start takes a tenth of the first one's time.
    """

    def __init__(self, made_from: str) -> None:
        from torch._inductor import codecache  # as long to import as torch is

        name = sha256(made_from.encode()).hexdigest()
        self._path = Path(codecache.cache_dir(), f"{name}.ms")

    def text(self) -> str:
        """A clause that says it, or nothing at the first start."""
        times = self._path.read_text().split() if self._path.exists() else []
        if not times:  # nothing is in a file whose writing was cut off
            return ""
        seconds = max(1, round(float(times[-1]) / 1e3))
        if len(times) == 1:
            return f", which took {seconds} s the first time and takes less now"
        return f", which took {seconds} s the last time"

    def add(self, ms: float) -> None:
        """Remember one more start."""
        with self._path.open("a") as file:
            file.write(f"{ms:.0f}\n")
