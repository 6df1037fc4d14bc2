"""The language model's part of a prefill, captured on CUDA: its 840 launches take longer than its work."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from torch import nn

from ocr_phases.models.caches import forget
from ocr_phases.steps.capturing import captured_call, tensors_in, waits
from ocr_phases.steps.execution import current_device, first_call_ms, forwards

#: Prompt lengths whose graphs are kept, each with its activations.
KEPT_PREFILLS = 4


class CapturedPrefill:
    """Captured forwards of a ``language_model`` into one static ``cache``, made at the first of each length.

    What waits for the device runs as it is: the experts in all dtypes but bfloat16, and on GPUs for which
    torch has no grouped product, and the mask of DeepSeek-OCR-2. So do padded rows, whose mask is read on the
    host.
    """

    def __init__(self, language_model: nn.Module, cache: Any) -> None:
        self._module, self._cache = language_model, cache
        self._made: dict[int, tuple[Callable[..., Any], float | None]] = {}

    def made(self, prompt_len: int) -> bool:
        """Whether the first prefill of this length has been."""
        return prompt_len in self._made

    def capture_ms(self, prompt_len: int) -> float | None:
        """Wall time of that first prefill's capture, ms; None where nothing was captured."""
        return self._made[prompt_len][1] if self.made(prompt_len) else None

    def installed(self) -> AbstractContextManager[None]:
        """Run prefills captured within a ``with`` block."""
        return forwards({self._module: partial(self._forward, self._module.forward)})

    def _forward(self, plain: Callable[..., Any], *args: Any, past_key_values: Any, **options: Any) -> Any:
        tensors = tensors_in(args, options)
        if past_key_values is not self._cache or len(tensors) > 1:
            return plain(*args, past_key_values=past_key_values, **options)

        def run(*args: Any, **options: Any) -> Any:
            forget(self._cache)
            return plain(*args, past_key_values=self._cache, **options)

        length, device = tensors[0].shape[1], tensors[0].device
        if not self.made(length):
            while len(self._made) >= KEPT_PREFILLS:
                self._made.pop(next(iter(self._made)))
            with current_device(device):
                run(*args, **options)
                self._made[length] = (
                    (run, None)
                    if waits(partial(run, *args, **options))
                    else first_call_ms(device, captured_call, run, *args, **options)
                )
        return self._made[length][0](*args, **options)
