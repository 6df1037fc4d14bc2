"""Which token comes next: greedy, or sampled by transformers' logits processors with a seeded generator."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ocr_phases.settings import SamplingSettings


def windowed_processors(settings: SamplingSettings) -> Any:
    """The n-gram rule over the last tokens alone, as transformers' list of processors; empty without one."""
    from transformers.generation import LogitsProcessorList, NoRepeatNGramLogitsProcessor

    class WindowedNGrams(NoRepeatNGramLogitsProcessor):
        def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
            return super().__call__(input_ids[:, -settings.no_repeat_ngram_window :], scores)

    size = settings.no_repeat_ngram_size
    return LogitsProcessorList([WindowedNGrams(size)] if settings.no_repeat_ngram_window else [])


class Sampler:
    """Chooses tokens from logits. Processors run in ``generate()``'s order on float32 logits."""

    def __init__(
        self, settings: SamplingSettings | None = None, seed: int = 0, device: torch.device | str = "cpu"
    ) -> None:
        from transformers import generation

        self.settings = settings or SamplingSettings()
        self.seed, self.device = seed, device
        self.processors = windowed_processors(self.settings)
        self.generator: torch.Generator | None = None
        if self.settings.no_repeat_ngram_size and not self.processors:
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
