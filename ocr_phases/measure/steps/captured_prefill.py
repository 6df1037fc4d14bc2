"""The language model's part of a prefill, captured on CUDA: its 840 launches take longer than its work."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from torch import nn

from ocr_phases.measure.models.caches import forget
from ocr_phases.measure.steps.capturing import captured_call, tensors_in, waits
from ocr_phases.measure.steps.execution import first_call_ms, preparing

#: Prompt lengths whose graphs are kept, each with its activations.
KEPT_PREFILLS = 4


class CapturedPrefill:
    """Captured forwards of a ``language_model`` into one static ``cache``, made at the first of each length.

    ``capture_ms`` has the wall time of those first calls by prompt length, None where nothing was captured:
    the experts of a float32 model, and of any on a GPU before Hopper, wait for the device. Padded rows bring
    a mask, which the model reads on the host: they run as they are.
    """

    def __init__(self, language_model: nn.Module, cache: Any) -> None:
        self._module, self._cache = language_model, cache
        self._made: dict[int, Callable[..., Any]] = {}
        self.capture_ms: dict[int, float | None] = {}

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Run prefills captured within a ``with`` block; hooks on the language model stay outside."""
        self._module.forward = partial(self._forward, self._module.forward)
        try:
            yield
        finally:
            del self._module.forward

    def _forward(self, plain: Callable[..., Any], *args: Any, past_key_values: Any, **options: Any) -> Any:
        tensors = tensors_in(args, options)
        if past_key_values is not self._cache or len(tensors) > 1:
            return plain(*args, past_key_values=past_key_values, **options)

        def run(*args: Any, **options: Any) -> Any:
            forget(self._cache)
            return plain(*args, past_key_values=self._cache, **options)

        length = tensors[0].shape[1]
        if length not in self._made:
            while len(self._made) >= KEPT_PREFILLS:
                self._made.pop(next(iter(self._made)))
            preparing.get()("capturing the prefill")
            run(*args, **options)
            made, took = run, None
            if not waits(partial(run, *args, **options)):
                made, took = first_call_ms(tensors[0].device, captured_call, run, *args, **options)
            self._made[length], self.capture_ms[length] = made, took
        return self._made[length](*args, **options)
