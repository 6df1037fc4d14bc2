"""Which token comes next: greedy, or sampled by transformers' logits processors with a seeded generator."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers.generation.streamers import BaseStreamer

from ocr_phases.errors import OcrPhasesError
from ocr_phases.inputs.packing import DeviceInputs
from ocr_phases.settings import Request, SamplingSettings

if TYPE_CHECKING:
    from ocr_phases.models.load import Checkpoint


def windowed_processors(settings: SamplingSettings) -> Any:
    """The n-gram rule over the last tokens alone, as ``generate()`` takes it; empty without a window."""
    from transformers.generation import LogitsProcessorList, NoRepeatNGramLogitsProcessor

    class WindowedNGrams(NoRepeatNGramLogitsProcessor):
        def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
            return super().__call__(input_ids[:, -settings.no_repeat_ngram_window :], scores)

    size = settings.no_repeat_ngram_size
    return LogitsProcessorList([WindowedNGrams(size)] if settings.no_repeat_ngram_window else [])


class NoRepeatNGrams:
    """transformers' ``NoRepeatNGramLogitsProcessor`` for tokens that come one by one, over all or a window.

    It waits for nothing, and a token costs one comparison with each one before it, whatever ``size`` is.
    """

    def __init__(self, size: int, window: int = 0) -> None:
        self._size, self._window = size, window
        self._common = torch.empty(0, 0)  # of each place: how many tokens before it are those at the end

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """``scores`` [B, vocab] for the token after ``input_ids`` int64 [B, length], banned ones -inf."""
        length, vocab = input_ids.shape[1], scores.shape[1]
        if self._common.shape == (len(input_ids), length - 1):
            same = input_ids[:, :-1] == input_ids[:, -1:]
            self._common = nn.functional.pad((self._common + 1) * same, (1, 0))
        else:
            self._common = self._counted(input_ids)
        # In a window the whole n-gram must lie in it.
        first = max(0, length - self._window + self._size - 1) if self._window else 0
        repeats = self._common[:, first:] >= self._size - 1
        token = torch.where(repeats, input_ids[:, first:].clamp(max=vocab), vocab)
        banned = scores.new_zeros(len(scores), vocab + 1, dtype=torch.bool).scatter_(1, token, True)
        return scores.masked_fill(banned[:, :vocab], -torch.inf)

    def _counted(self, input_ids: Tensor) -> Tensor:
        """The counts for a sequence that was not seen before, of at most the tokens that matter."""
        length = input_ids.shape[1]
        most = min(self._size - 1, length)
        before = nn.functional.pad(input_ids, (most, 0), value=-1).unfold(1, most, 1)[:, :length]
        same = before == input_ids[:, None, length - most :]
        return same.flip(-1).cumprod(-1, dtype=torch.uint8).sum(-1)


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
        if size := self.settings.no_repeat_ngram_size:
            self.processors.append(NoRepeatNGrams(size, self.settings.no_repeat_ngram_window))
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


OnTokens = Callable[[list[list[int]]], None]


class _Streamer(BaseStreamer):
    """Tells of new ids as generate() makes them; it starts with the prompt's."""

    def __init__(self, on_tokens: OnTokens) -> None:
        self._on_tokens = on_tokens
        self._prompt_seen = False

    def put(self, value: Tensor) -> None:
        if self._prompt_seen:
            self._on_tokens([[token] for token in value.tolist()])
        self._prompt_seen = True

    def end(self) -> None:
        """Nothing is held back."""


def one_shot(
    checkpoint: Checkpoint, inputs: DeviceInputs, request: Request, on_tokens: OnTokens | None = None
) -> list[list[int]]:
    """One list of new ids a row; ``on_tokens`` gets those of each step, one list a row.

    The caller's random numbers stay what they would have been. `OcrPhasesError` where the class cannot
    generate.
    """
    model, family = checkpoint.model, checkpoint.family
    ends: dict[str, Any] = {"eos_token_id": checkpoint.eos_id}
    if request.ignore_eos:
        ends = {"eos_token_id": None, "min_new_tokens": request.max_new_tokens}
    arguments = family.prefill_arguments(inputs)
    window = family.window(model)
    if window is not None and inputs.position_ids is not None and request.max_new_tokens > window:
        raise OcrPhasesError(
            f"generate() of {type(model).__name__} mistakes which slots are padding once its window "
            f"of {window} tokens is full: give rows of equal length, or measure without it."
        )
    if not hasattr(model, "generate"):
        raise OcrPhasesError(f"{type(model).__name__} has no generate() here: measure without generate=True.")
    with torch.no_grad(), family.silenced(), _seeded(request, inputs.input_ids.device):
        tokens = model.generate(
            **{**arguments, "attention_mask": inputs.attention_mask, "position_ids": None},
            max_new_tokens=request.max_new_tokens,
            pad_token_id=checkpoint.pad_id,
            streamer=None if on_tokens is None else _Streamer(on_tokens),
            logits_processor=windowed_processors(request.infer),
            **ends,
            **request.infer.as_generate(),
        )
    return tokens[:, inputs.input_ids.shape[1] :].tolist()


@contextlib.contextmanager
def _seeded(request: Request, device: torch.device) -> Iterator[None]:
    """torch's own generator of ``device``, which is what generate() samples with, at the request's seed."""
    cuda = device.type == "cuda"
    with torch.random.fork_rng([device] if cuda else [], enabled=request.infer.do_sample):
        if request.infer.do_sample:
            (torch.cuda.manual_seed if cuda else torch.default_generator.manual_seed)(request.seed)
        yield
