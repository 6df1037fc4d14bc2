"""A decode step over a static KV cache: every input has a fixed address, so it can be captured or compiled.

The step feeds itself: it opens its token's column of the mask, runs the model, takes the argmax as the next
token and moves on by one, around the window where there is one, all on the device. The host only starts it,
and reads tokens when it wants them.
So inputs are changed in place, nothing in the step may wait for the host, and the model has no hook when the
step is made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ocr_phases.errors import OcrPhasesError
from ocr_phases.families import windowed_length
from ocr_phases.models.caches import cache_bytes_per_token, forget, read_up_to, static_cache
from ocr_phases.models.wiring import family_of
from ocr_phases.steps.compiled import compiled_apart, first_largest, fused_forms, tuned_steadily
from ocr_phases.steps.execution import (
    Made,
    MadeForwards,
    captured,
    captured_call,
    current_device,
    decode_execution,
    first_call_ms,
    forwards,
    preparing,
    tensors_in,
    waits,
)
from ocr_phases.steps.phases import DecodeState

#: The fewest entries that a cache has room for, and that a captured step reads: a graph for fewer would save
#: too little.
LEAST_READ = 512
#: The compiler tunes its kernels; what it makes is captured here, not by the compiler.
_WANTED_OPTIONS = {
    "max_autotune": True,
    "coordinate_descent_tuning": True,
    # A test of each expert's number would run for every weight.
    "assert_indirect_indexing": False,
    # A kernel's blocks may start while the one before is ending (programmatic dependent launch).
    "triton.enable_pdl": True,
    # With it, a start from the compiler's cache tunes most kernels again.
    "use_static_cuda_launcher": False,
}
#: Steps that are kept, each with a KV cache, and on CUDA a graph's memory.
KEPT_STEPS = 4


def read_lengths(max_cache_len: int) -> list[int]:
    """How many entries captured steps read: all, and each half down to `LEAST_READ`.

    Attention reads masked entries like others, so that each step would cost what the last one does. Each
    length is a graph of its own.
    """
    lengths = [max_cache_len]
    while lengths[0] > LEAST_READ:
        lengths.insert(0, -(-lengths[0] // 2))
    return lengths


def max_cache_len_for(prompt_len: int, max_new_tokens: int, window: int | None = None) -> int:
    """The length of a static cache with room for a prompt and what is kept of the generated tokens.

    A power of two, so that nearly all prompts and limits share few steps: making one takes a minute.
    """
    needed = windowed_length(prompt_len + max_new_tokens, prompt_len, window)
    return max(LEAST_READ, 1 << (needed - 1).bit_length())


class StaticStep:
    """One decode step of ``batch`` rows over a static cache of ``max_cache_len`` entries, ready to be run.

    ``strategy``: ``cuda_graph`` captures the step and replays it; ``compiled`` compiles it, and captures it
    too on CUDA; ``eager`` runs the same step as it is. Hand it to `prefill`, then to `decode`: it continues
    from the state it is called with, also where a caller changed the state's token.
    The logits it gives are overwritten by the next step. ``setup`` says for the record what it holds (the
    cache's length, and bytes for the whole batch) and what making it took (ms, None for nothing).
    Raises `OcrPhasesError` where it cannot be compiled.
    """

    @torch.no_grad()
    def __init__(self, model: Any, batch: int, max_cache_len: int, strategy: str) -> None:
        self.model, self.family = model, family_of(model)
        self.window = self.family.window(model)
        self.strategy, self.max_cache_len = strategy, max_cache_len
        self.device, dtype = model.device, model.dtype
        config = model.config.get_text_config()
        self._slot = torch.zeros(1, dtype=torch.long, device=self.device)
        self.cache = static_cache(config, max_cache_len, self.window, self._slot)
        width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self.cache.early_initialization(batch, config.num_key_value_heads, width, dtype, self.device)
        self._token = torch.zeros(batch, 1, dtype=torch.long, device=self.device)
        self._position = torch.zeros_like(self._token)  # of the newest entry
        # The window's first slot, and the one behind its last.
        self._ring = torch.zeros(2, 1, dtype=torch.long, device=self.device)
        # Added to the scores: 0 where a column may be seen, else -inf. A Boolean mask would be turned into
        # this in every layer.
        self._mask = torch.full((batch, 1, 1, max_cache_len), -torch.inf, dtype=dtype, device=self.device)
        language_model = self.family.stages(model)["language_model"]
        self.prefill = CapturedPrefill(language_model, self.cache)
        self._forms = fused_forms(language_model) if strategy == "compiled" else {}
        self._length: int | None = None  # entries in the cache, where a state is loaded
        self._given: Tensor | None = None  # the token that the step itself fed back
        allocated = cache_bytes_per_token(self.cache) * max_cache_len
        self.setup: dict[str, Any] = {"max_cache_len": max_cache_len, "allocated_bytes": allocated}
        self.setup |= {"compile_ms": None, "capture_ms": None}
        with current_device(self.device), self.execution():
            self._runs = self._made()

    @contextmanager
    def execution(self) -> Iterator[None]:
        """The kernels the step runs with; `decode` enters this."""
        with decode_execution(self.model, self.strategy), forwards(self._forms):
            yield

    def prefill_execution(self) -> AbstractContextManager[None]:
        """How a prefill into the step's cache runs; `prefill` enters this. Captured too where the step is."""
        captures = self.strategy != "eager" and self.device.type == "cuda"
        return self.prefill.installed() if captures else nullcontext()

    def fresh_cache(self) -> Any:
        """The step's own cache, emptied for a new prefill: there is only one, so one state at a time."""
        self._length = None
        self.cache.reset()
        return self.cache

    def __call__(self, state: DecodeState) -> tuple[Tensor, Tensor | None]:
        """One step of ``state``: logits [B, vocab] and, where it is greedy, the next token int64 [B].

        ``state`` gets its position; counting is `decode_step`'s.
        """
        if state.cache is not self.cache:
            raise OcrPhasesError("This state has another KV cache: prefill with cache=step.fresh_cache().")
        needed = windowed_length(state.length + 1, state.lengths[0], self.window)
        if needed > self.max_cache_len:
            raise OcrPhasesError(
                f"The static KV cache is full with {self.max_cache_len} entries: ask for fewer new tokens, "
                "or make a step with a larger max_cache_len."
            )
        if self._length != state.length:
            self._load(state)
        elif state.token is not self._given:
            self._token.copy_(state.token[:, None])
        read = next(read for read in self._runs if read >= needed)
        logits = self._runs[read]()
        self._length = state.length + 1
        if state.position_ids is not None:
            state.position_ids = self._position
        self._given = self._token[:, 0].clone() if state.sampler.greedy else None
        return logits, self._given

    def _load(self, state: DecodeState) -> None:
        """Start from ``state``: its token, place, and which columns of its prompt are padding."""
        length, prompt_len = state.length, state.lengths[0]
        held = windowed_length(length, prompt_len, self.window)
        self._token.copy_(state.token[:, None])
        self._slot.fill_(length)
        if self.window is not None:
            self._ring[0].fill_(prompt_len)
            self._ring[1].fill_(prompt_len + self.window)
            if length > prompt_len:
                self._slot.sub_((length - prompt_len) // self.window * self.window)
        self._mask.fill_(-torch.inf)
        self._mask[:, 0, 0, :held].masked_fill_(state.attention_mask[:, :held].bool(), 0.0)
        if state.position_ids is None:
            self._position.fill_(length - 1)
        else:
            self._position.copy_(state.position_ids)

    # -- making it --------------------------------------------------------------------------------

    def _body(self, read: int | None = None) -> Tensor:
        if read is not None:
            read_up_to(self.cache, read)
        self._mask.index_fill_(3, self._slot, 0.0)
        self._position.add_(1)
        arguments = {
            "input_ids": self._token,
            "attention_mask": self.family.ready_mask(self._mask[..., : self.cache.layers[0].read]),
            "position_ids": self._position,
            "past_key_values": self.cache,
        }
        logits = self.model(**arguments, use_cache=True, logits_to_keep=1).logits[:, -1]
        compiled = self.strategy == "compiled"
        self._token.copy_(first_largest(logits) if compiled else logits.argmax(dim=-1, keepdim=True))
        self._slot.add_(1)
        if self.window is not None:
            self._slot.copy_(torch.where(self._slot == self._ring[1], self._ring[0], self._slot))
        return logits

    def _made(self) -> dict[int, Callable[[], Tensor]]:
        """The step as ``strategy`` runs it, by how many entries it reads; ``setup`` gets what it took."""
        cuda = self.device.type == "cuda"
        runs: dict[int, Callable[[], Tensor]]
        if self.strategy == "compiled":
            preparing.get()("compiling the decode step")
            known = torch._inductor.list_options()  # of this version
            options = {name: value for name, value in _WANTED_OPTIONS.items() if name in known}
            run = compiled_apart(self._body, options=options if cuda else None)
            with tuned_steadily():
                _, self.setup["compile_ms"] = first_call_ms(self.device, run)
            runs = {self.max_cache_len: run}
        else:
            runs = {read: partial(self._body, read) for read in read_lengths(self.max_cache_len)}
        if self.strategy != "eager" and cuda:
            preparing.get()("capturing the decode step")
            # Trial runs move on by a few slots, far fewer than there are.
            made = {read: first_call_ms(self.device, partial(captured, run)) for read, run in runs.items()}
            runs = {read: run for read, (run, _) in made.items()}
            self.setup["capture_ms"] = sum(ms for _, ms in made.values())
        return runs


#: Prompt lengths whose graphs are kept, each with its activations.
KEPT_PREFILLS = 4


class CapturedPrefill(MadeForwards):
    """Captured forwards of a ``language_model`` into one static ``cache``, made at the first of each length.

    What waits for the device runs as it is: the experts in all dtypes but bfloat16, and on GPUs for which
    torch has no grouped product, and the mask of DeepSeek-OCR-2. So do padded rows, whose mask is read on the
    host.
    """

    def __init__(self, language_model: nn.Module, cache: Any) -> None:
        super().__init__({"language_model": language_model}, _captured_prefill, KEPT_PREFILLS)
        self._cache = cache

    def run(self, name: str, forward: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """One forward, as it is where it fills another cache or has a mask to read."""
        cache = options.pop("past_key_values")
        if cache is not self._cache or len(tensors_in(args, options)) > 1:
            return forward(*args, past_key_values=cache, **options)
        return super().run(name, partial(self._from_the_start, forward), *args, **options)

    def _from_the_start(self, forward: Callable[..., Any], *args: Any, **options: Any) -> Any:
        forget(self._cache)
        return forward(*args, past_key_values=self._cache, **options)


def _captured_prefill(name: str, forward: Callable[..., Any], *args: Any, **options: Any) -> Made:
    device = tensors_in(args, options)[0].device
    with current_device(device):
        forward(*args, **options)
        if waits(partial(forward, *args, **options)):
            return forward, None
        return first_call_ms(device, partial(captured_call, forward, *args, **options))
