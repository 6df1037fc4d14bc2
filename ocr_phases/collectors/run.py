"""What one run of a request leaves behind, before it is a record."""

from __future__ import annotations

from dataclasses import dataclass

from ocr_phases.collectors.live_checks import Verdict
from ocr_phases.inputs.packing import PageInputs


@dataclass(frozen=True)
class Run:
    """What one run leaves: ``ids`` a row, peak bytes a phase, and of the cache after prefill and each step
    the tokens seen (``lengths``) and the entries held.
    """

    packed: PageInputs
    pages: list[list[tuple]]  # (image, bytes, name) of each page, a list a row
    ids: list[list[int]]
    spans: list[tuple]
    peaks: dict[str, int | None]
    lengths: list[int]
    entries: list[int]
    window: int | None
    bytes_per_token: int
    waits: int | None  # of the host in decode; counted in a warm-up run on CUDA only
    max_cache_len: int | None  # entries a static cache has room for
    verdicts: dict[str, Verdict]  # of the checks that need the live model
