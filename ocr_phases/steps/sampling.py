"""Which token comes next: greedy, or sampled by transformers' logits processors with a seeded
generator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from ocr_phases.errors import Keyword, OcrPhasesError, SettingError
from ocr_phases.inputs.processed import ModelInputs
from ocr_phases.models.devices import device_of
from ocr_phases.models.text_model import vocabulary_size
from ocr_phases.settings import Request, SamplingSettings

if TYPE_CHECKING:
    from ocr_phases.models.load import Checkpoint


class Processor(Protocol):
    """What changes scores before a token is chosen, as transformers' logits processors do."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """``scores`` [B, vocab] for the token after ``input_ids`` int64 [B, length]."""


class TokenSampler(Protocol):
    """What chooses the next token; `Sampler` is one."""

    #: Those that read the ids so far. Without any, no one keeps the sequence for them.
    processors: Sequence[Processor]
    #: Whether the next token is the argmax of the logits as they are, so that a step may take it.
    greedy: bool

    def restart(self) -> None:
        """Choose from here on as after the prefill."""

    def __call__(self, logits: Tensor, sequence: Tensor) -> Tensor:
        """Next token ids, int64 [B], for ``logits`` [B, vocab] after ``sequence`` [B, length]."""


class NoRepeatNGrams:
    """Forbids each token that would repeat an n-gram of ``size`` tokens; a logits processor.

    Its scores are those of transformers' ``NoRepeatNGramLogitsProcessor``, but the host never waits
    for the device, and it can look at the last ``window`` tokens alone (0 stands for all). Tokens
    of ``allowed`` may come again. ``generate()`` is given this rule where there is a window or such
    a token, and takes its own otherwise.
    """

    def __init__(self, size: int, window: int = 0, allowed: Sequence[int] = ()) -> None:
        self._before = size - 1
        self._window = window
        self._allowed = tuple(allowed)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """``scores`` [B, vocab] for the token after ``input_ids`` int64 [B, length], banned ones
        -inf.
        """
        length = input_ids.shape[1]
        vocab = scores.shape[1]
        before = self._before
        first = before
        if self._window:  # the whole n-gram must lie in it
            first = max(before, length - self._window + before)
        if first >= length:
            return scores
        ngrams = input_ids[:, first - before :].unfold(1, before + 1, 1)
        repeats = (ngrams[..., :-1] == input_ids[:, None, length - before :]).all(dim=-1)
        token = torch.where(repeats, ngrams[..., -1].clamp(max=vocab), vocab)
        banned = scores.new_zeros(len(scores), vocab + 1, dtype=torch.bool).scatter_(1, token, True)
        for allowed in self._allowed:
            banned[:, min(allowed, vocab)] = False
        return scores.masked_fill(banned[:, :vocab], -torch.inf)


class Sampler:
    """Chooses tokens from logits. Processors run in ``generate()``'s order on float32 logits.

    ``rules`` are further processors, a checkpoint's own (`checkpoint_rules`).
    """

    def __init__(
        self,
        settings: SamplingSettings | None = None,
        seed: int = 0,
        device: torch.device | str = "cpu",
        rules: Sequence[Processor] = (),
    ) -> None:
        from transformers import generation

        settings = settings or SamplingSettings()
        chosen: list[Processor] = []
        if settings.repetition_penalty != 1.0:
            chosen.append(generation.RepetitionPenaltyLogitsProcessor(settings.repetition_penalty))
        if settings.no_repeat_ngram_size:
            chosen.append(_ngram_rule(settings))
        chosen += rules
        if settings.do_sample:
            if settings.temperature != 1.0:
                chosen.append(generation.TemperatureLogitsWarper(settings.temperature))
            if settings.top_k != 0:
                chosen.append(generation.TopKLogitsWarper(settings.top_k))
            if settings.top_p != 1.0:
                chosen.append(generation.TopPLogitsWarper(settings.top_p))
        self.processors = generation.LogitsProcessorList(chosen)
        #: Whether the next token is the argmax of the logits as they are.
        self.greedy = not chosen and not settings.do_sample
        self.generator: torch.Generator | None = None
        if settings.do_sample:
            self.generator = torch.Generator(device)
        self.seed = seed
        self.restart()

    def restart(self) -> None:
        """Put the generator back to the seed."""
        if self.generator is not None:
            self.generator.manual_seed(self.seed)

    def __call__(self, logits: Tensor, sequence: Tensor | None) -> Tensor:
        """Next token ids, int64 [B], for the last position's ``logits`` [B, vocab].

        ``sequence`` int64 [B, length] is prompt plus generated ids, read by processors only.
        """
        if self.greedy:
            return logits.argmax(dim=-1)
        scores = self.processors(sequence, logits.float())
        if self.generator is None:  # greedy, by scores that processors changed
            return scores.argmax(dim=-1)
        # torch.multinomial stops the device at a NaN. Any token will do in its place, because the
        # check of finite logits fails such a run.
        probabilities = scores.softmax(dim=-1).nan_to_num(nan=1.0)
        return torch.multinomial(probabilities, 1, generator=self.generator).squeeze(1)


def _ngram_rule(settings: SamplingSettings) -> NoRepeatNGrams:
    """The rule against repetition that the settings ask for."""
    return NoRepeatNGrams(
        settings.no_repeat_ngram_size,
        settings.no_repeat_ngram_window,
        settings.whitelist_token_ids,
    )


def checkpoint_rules(
    rules: Mapping[str, Any], end_tokens: Sequence[int], prompt_len: int, device: str
) -> list[Processor]:
    """transformers' logits processors for what a checkpoint's ``rules`` say, in ``generate()``'s
    order.

    Those that put off the end read ``end_tokens``, of which there are none where the end is
    ignored.
    """
    from transformers import generation

    ends = list(end_tokens)
    chosen: list[Processor] = []
    bad_words = rules.get("bad_words_ids")
    if bad_words:
        chosen.append(generation.NoBadWordsLogitsProcessor(bad_words, ends or None))
    min_length = rules.get("min_length")
    if min_length and ends:
        chosen.append(generation.MinLengthLogitsProcessor(min_length, ends, device=device))
    min_new_tokens = rules.get("min_new_tokens")
    if min_new_tokens and ends:
        chosen.append(
            generation.MinNewTokensLengthLogitsProcessor(
                prompt_len, min_new_tokens, ends, device=device
            )
        )
    never = rules.get("suppress_tokens")
    if never:
        chosen.append(generation.SuppressTokensLogitsProcessor(never, device=device))
    not_first = rules.get("begin_suppress_tokens")
    if not_first:
        chosen.append(
            generation.SuppressTokensAtBeginLogitsProcessor(not_first, prompt_len, device=device)
        )
    return chosen


def sampler_for(
    checkpoint: Checkpoint, request: Request, prompt_len: int, kind: type[Sampler] = Sampler
) -> Sampler:
    """What a request of a checkpoint chooses its tokens with, after prompts of ``prompt_len``
    tokens.
    """
    generation = checkpoint.generation
    end_tokens = () if request.ignore_eos else generation.end_tokens
    rules = checkpoint_rules(generation.rules, end_tokens, prompt_len, checkpoint.device)
    return kind(request.infer, request.seed, checkpoint.device, rules)


class _Listener:
    """Hands on the tokens of each step of ``generate()``, which asks it whether to stop: never."""

    def __init__(self, on_tokens: Callable[[list[list[int]]], None]) -> None:
        self._on_tokens = on_tokens

    def __call__(self, ids: Tensor, scores: Any, **options: Any) -> bool:
        self._on_tokens(ids[:, -1:].tolist())
        return False


def one_shot(
    checkpoint: Checkpoint,
    inputs: ModelInputs,
    request: Request,
    on_tokens: Callable[[list[list[int]]], None] | None = None,
    *,
    end_tokens: Sequence[int] = (),
) -> list[list[int]]:
    """Let the model's own ``generate()`` write the answers: a list of new ids for each row.

    Parameters
    ----------
    checkpoint : Checkpoint
        The loaded model.
    inputs : ModelInputs
        The prompts, on the model's device.
    request : Request
        How many tokens, and how each is chosen. The caller's random numbers stay what they would
        have been.
    on_tokens : callable, optional
        Called with the new ids of each step, a list for each row.
    end_tokens : sequence of int, optional
        What ends an answer; by default what ends one in ``generate()`` of this checkpoint.

    Raises
    ------
    OcrPhasesError
        Where the class cannot generate, or not with these rows.
    """
    from transformers.generation import LogitsProcessorList

    model = checkpoint.model
    interface = checkpoint.interface
    infer = request.infer
    generation = checkpoint.generation
    end_tokens = end_tokens or generation.own_end_tokens or generation.end_tokens
    if request.ignore_eos:  # an id that no token has; None would mean the checkpoint's own ends
        end_tokens = [vocabulary_size(model)]
    own_rules = []
    if infer.has_own_rule:
        own_rules.append(_ngram_rule(infer))
    window = interface.window(model)
    if window is not None and inputs.position_ids is not None and request.max_new_tokens > window:
        raise OcrPhasesError(
            f"generate() of {type(model).__name__} mistakes which slots are padding once its "
            f"window of {window} tokens is full: give rows of equal length, or measure without it."
        )
    if not hasattr(model, "generate"):
        raise SettingError(
            "generate",
            "{model} has no generate() here: measure without {generate}.",
            model=type(model).__name__,
            generate=Keyword("generate", True),
        )
    listeners = None
    if on_tokens is not None:
        listeners = [_Listener(on_tokens)]
    # generate() samples with torch's own generator of the device.
    seeded = device_of(inputs.input_ids.device).seeded(request.seed)
    with torch.no_grad(), interface.silenced(), seeded:
        tokens = model.generate(
            **interface.generate_arguments(inputs),
            max_new_tokens=request.max_new_tokens,
            eos_token_id=list(end_tokens),
            return_dict_in_generate=False,
            use_cache=True,
            pad_token_id=checkpoint.pad_id,
            stopping_criteria=listeners,
            logits_processor=LogitsProcessorList(own_rules),
            **infer.as_generate(),
        )
    return tokens[:, inputs.input_ids.shape[1] :].tolist()
