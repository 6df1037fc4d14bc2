"""Which token comes next: greedy, or sampled by transformers' logits processors with a seeded generator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import torch
from torch import Tensor

from ocr_phases.errors import OcrPhasesError
from ocr_phases.measure.request import LARGEST_NUMBER

# A logit divided by less than this, or by more, is no float32 any more.
_SMALLEST, _LARGEST = 1e-30, 1e30


@dataclass(frozen=True)
class SamplingSettings:
    """How the next token is chosen; ``top_k=0`` and ``top_p=1`` mean off.

    Raises `OcrPhasesError` for a value of a wrong type or out of range.
    """

    do_sample: bool = False
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    no_repeat_ngram_size: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.do_sample, bool):
            raise OcrPhasesError(f"infer's do_sample is {self.do_sample!r}: it must be True or False.")
        for name, kinds, least, most, wanted in (
            ("temperature", (int, float), _SMALLEST, _LARGEST, f"0, or from {_SMALLEST} to {_LARGEST}"),
            ("top_p", (int, float), _SMALLEST, 1, "above 0 and at most 1"),
            ("top_k", int, 0, LARGEST_NUMBER, "a whole number from 0"),
            ("no_repeat_ngram_size", int, 0, LARGEST_NUMBER, "a whole number from 0"),
        ):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, kinds) or not least <= value <= most:
                raise OcrPhasesError(f"infer's {name} is {value!r}: it must be {wanted}.")
            if kinds is not int:  # transformers takes no whole number for these
                object.__setattr__(self, name, float(value))

    @classmethod
    def from_infer(cls, infer: Mapping[str, Any] | None) -> SamplingSettings:
        """Read an ``infer`` mapping, where temperature 0 means greedy; `OcrPhasesError` where it is wrong."""
        if not isinstance(infer, Mapping | None):
            raise OcrPhasesError(f'infer is {infer!r}: give a mapping, such as {{"temperature": 0.7}}.')
        infer = dict(infer or {})
        known = [item.name for item in fields(cls)]
        unknown = sorted(map(str, set(infer) - set(known)))
        if unknown:
            raise OcrPhasesError(f"infer does not know {', '.join(unknown)}; it knows {', '.join(known)}.")
        if infer.get("do_sample") and infer.get("temperature") == 0:
            raise OcrPhasesError("infer asks for do_sample with temperature 0: drop one of the two.")
        if infer.get("temperature") == 0:
            infer.update(do_sample=False, temperature=1.0)
        elif "temperature" in infer and "do_sample" not in infer:
            infer["do_sample"] = True
        return cls(**infer)

    def as_generate(self) -> dict[str, Any]:
        """The same settings as keyword arguments of ``generate()``."""
        arguments = asdict(self)
        if not self.do_sample:
            arguments = {"do_sample": False, "no_repeat_ngram_size": self.no_repeat_ngram_size}
        return arguments


#: The no-repeat n-gram size of the published ``infer()``, by the name of the setting.
PUBLISHED = {"published": 20, "published-eval": 35}


def resolve_infer(infer: dict[str, Any] | str | None, autocast: bool | None) -> tuple[SamplingSettings, bool]:
    """The sampling settings and autocast of a run, where ``infer`` is a mapping or a name of `PUBLISHED`.

    A name stands for what the published ``infer()`` does: greedy, its n-gram size (``published-eval``: with
    its ``eval_mode``), under bfloat16 autocast. Raises `OcrPhasesError` for another name, for a name with
    ``autocast=False``, and as `SamplingSettings.from_infer` does.
    """
    if not isinstance(infer, str):
        return SamplingSettings.from_infer(infer), bool(autocast)
    if infer not in PUBLISHED:
        raise OcrPhasesError(f"There is no infer {infer!r}: use {' or '.join(PUBLISHED)}, or a mapping.")
    if autocast is False:
        raise OcrPhasesError(f"infer={infer!r} runs under autocast: drop autocast=False, or the name.")
    return SamplingSettings(no_repeat_ngram_size=PUBLISHED[infer]), True


class Sampler:
    """Chooses tokens from logits. Processors run in ``generate()``'s order on float32 logits."""

    def __init__(
        self, settings: SamplingSettings | None = None, seed: int = 0, device: torch.device | str = "cpu"
    ) -> None:
        from transformers import generation

        self.settings = settings or SamplingSettings()
        self.seed, self.device = seed, device
        self.processors = generation.LogitsProcessorList()
        self.generator: torch.Generator | None = None
        if self.settings.no_repeat_ngram_size:
            self.processors.append(
                generation.NoRepeatNGramLogitsProcessor(self.settings.no_repeat_ngram_size)
            )
        if self.settings.do_sample:
            self.generator = torch.Generator(device).manual_seed(seed)
            if self.settings.temperature != 1.0:
                self.processors.append(generation.TemperatureLogitsWarper(self.settings.temperature))
            if self.settings.top_k:
                self.processors.append(generation.TopKLogitsWarper(self.settings.top_k))
            if self.settings.top_p < 1.0:
                self.processors.append(generation.TopPLogitsWarper(self.settings.top_p))

    def restarted(self) -> Sampler:
        """The same sampler with its generator back at the seed."""
        return Sampler(self.settings, self.seed, self.device)

    def __call__(self, logits: Tensor, sequence: Tensor | None) -> Tensor:
        """Next token ids, int64 [B], for the last position's ``logits`` [B, vocab].

        ``sequence`` int64 [B, length] is prompt plus generated ids, read by processors only (see
        `needs_sequence`).
        """
        if self.greedy:
            return logits.argmax(dim=-1)
        scores = self.processors(sequence, logits.float())
        if self.generator is None:
            return scores.argmax(dim=-1)
        return torch.multinomial(scores.softmax(dim=-1), 1, generator=self.generator).squeeze(1)

    @property
    def greedy(self) -> bool:
        """Whether the next token is the argmax of the logits as they are."""
        return not self.processors and self.generator is None

    @property
    def needs_sequence(self) -> bool:
        """Whether the ids so far must be kept for a processor."""
        return bool(self.processors)
