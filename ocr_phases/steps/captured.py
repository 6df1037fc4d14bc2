"""A decode step over a static KV cache: every input has a fixed address, so it can be captured or
compiled.

The step feeds itself: it opens its token's column of the mask, runs the model, takes the argmax as
the next token and moves on by one, around the window where there is one, all on the device. The
host only starts it, and reads tokens when it wants them. So inputs are changed in place, nothing in
the step may wait for the host, and the model has no hook when the step is made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from ocr_phases.errors import OcrPhasesError
from ocr_phases.families import windowed_length
from ocr_phases.models.caches import cache_bytes_per_token, static_cache
from ocr_phases.models.wiring import interface_of
from ocr_phases.steps.compiled import (
    compiled_apart,
    first_largest,
    fused_forms,
    single_norms,
    sum_of_each,
    tuned_steadily,
)
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
    syncs_counted,
    tensors_in,
)
from ocr_phases.steps.phases import DecodeState

#: Entries that a cache has room for unless a run needs more: DeepSeek-OCR's longest sequence.
#: Nearly all prompts and limits so share one step, which takes a minute to compile.
CAPACITY = 8192
#: The fewest entries that a step reads: a graph for fewer would save too little.
LEAST_READ = 512
#: The compiler tunes its kernels, what it makes is captured here. torch's version has some of
#: these.
_OPTIONS = {
    "max_autotune": True,
    "coordinate_descent_tuning": True,
    # A test of each expert's number would run for every weight.
    "assert_indirect_indexing": False,
    # Kernels that need nothing of each other are one: the router's and the shared experts', for
    # example.
    "combo_kernels": True,
    "combo_kernel_per_subkernel_blocks": True,
    # One token's attention would be summed up by a second kernel, which takes longer than it saves.
    "split_reductions": False,
    # A kernel's blocks may start while the one before is ending (programmatic dependent launch).
    "triton.enable_pdl": True,
    # With it, a start from the compiler's cache tunes most kernels again.
    "use_static_cuda_launcher": False,
}
#: Steps that are kept, each with a KV cache, and of each the prefills of so many prompt lengths; on
#: CUDA both with their graphs' memory.
KEPT_STEPS = 4


def power_of_two(least: int, needed: int) -> int:
    """The smallest of ``least`` and its doubles that is not below ``needed``."""
    return least << max(0, -(-needed // least) - 1).bit_length()


def capacity_for(prompt_len: int, max_new_tokens: int, window: int | None = None) -> int:
    """The length of a static cache with room for a prompt and what is kept of the generated tokens."""
    return power_of_two(CAPACITY, windowed_length(prompt_len + max_new_tokens, prompt_len, window))


class StaticStep:
    """One decode step of ``batch`` rows over a static cache of ``max_cache_len`` entries, ready to
    be run.

    ``strategy``: ``cuda_graph`` captures the step and replays it; ``compiled`` compiles it, and
    captures it too on CUDA; ``eager`` runs the same step as it is. Hand it to `prefill`, then to
    `decode`: it continues from the state it is called with, also where a caller changed the state's
    token. The logits it gives are overwritten by the next step. ``setup`` says for the record what
    it holds (the cache's length, and bytes for the whole batch) and what making it took (ms, None
    for nothing). Each length that is read is made by `ready_for`, before the run that needs it.
    """

    def __init__(self, model: Any, batch: int, max_cache_len: int, strategy: str) -> None:
        self.model = model
        self.interface = interface_of(model)
        self.window = self.interface.window(model)
        self.strategy, self.max_cache_len = strategy, max_cache_len
        self.device, dtype = model.device, model.dtype
        config = model.config.get_text_config()
        self._slot = torch.zeros(1, dtype=torch.long, device=self.device)
        self._reach = SimpleNamespace(slot=self._slot, extent=None)
        # One more than is ever read: to the compiler reading all of them would be a step of its
        # own.
        self.cache = static_cache(config, max_cache_len + 1, self.window, self._reach)
        width = (
            getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        )
        self.cache.early_initialization(
            batch, config.num_key_value_heads, width, dtype, self.device
        )
        self._token = torch.zeros(batch, 1, dtype=torch.long, device=self.device)
        self._position = torch.zeros_like(self._token)  # of the newest entry
        #: Of all logits since the last prefill, float32 [B]: finite only if they all were.
        self.sums = torch.zeros(batch, dtype=torch.float32, device=self.device)
        # The window's first slot, and the one behind its last.
        self._ring = torch.zeros(2, 1, dtype=torch.long, device=self.device)
        # Added to the scores: 0 where a column may be seen, else -inf. A Boolean mask would be
        # turned into this in every layer.
        self._mask = torch.full(
            (batch, 1, 1, max_cache_len + 1), -torch.inf, dtype=dtype, device=self.device
        )
        language_model = self.interface.modules(model)["language_model"]
        self._forms = (fused_forms if strategy == "compiled" else single_norms)(language_model)
        self.prefill = CapturedPrefill(language_model, strategy == "compiled")
        captures = strategy != "eager" and self.device.type == "cuda"
        #: How a prefill into the step's cache runs; `prefill` enters this. Captured too where the
        #: step is.
        self.prefill_execution = self.prefill.installed if captures else nullcontext
        self._length: int | None = None  # entries in the cache, where a state is loaded
        self._given: Tensor | None = None  # the token that the step itself fed back
        self.setup: dict[str, Any] = {
            "max_cache_len": max_cache_len,
            "compile_ms": None,
            "capture_ms": None,
        }
        self.setup["allocated_bytes"] = cache_bytes_per_token(self.cache) * max_cache_len
        known = (
            torch._inductor.list_options()
            if (self.device.type, strategy) == ("cuda", "compiled")
            else ()
        )
        options = {name: value for name, value in _OPTIONS.items() if name in known} or None
        self._body = (
            compiled_apart(self._step, options=options) if strategy == "compiled" else self._step
        )
        self._runs: dict[
            int, Callable[[], Tensor]
        ] = {}  # as ``strategy`` runs it, by the entries it reads

    @torch.no_grad()
    def ready_for(self, prompt_len: int, max_new_tokens: int) -> StaticStep:
        """Make what a run of these lengths reads, where it is missing: a graph for each power of
        two.

        Attention reads masked entries like others, so that each step would cost what the last one
        does. A state that the step is in the middle of is lost. Raises `OcrPhasesError` where it
        cannot be compiled.
        """
        counts = (
            windowed_length(prompt_len + new, prompt_len, self.window)
            for new in (1, max_new_tokens)
        )
        first, last = (power_of_two(LEAST_READ, count) for count in counts)
        reads = {
            min(first << doubled, self.max_cache_len)
            for doubled in range((last // first).bit_length())
        }
        self._length = None
        self._slot.zero_()  # trial runs move on by a few slots, far fewer than there are
        with current_device(self.device), self.execution():
            runs = {read: self._reading(read) for read in sorted(reads - self._runs.keys())}
            if runs and self.strategy == "compiled" and not self._runs:
                from torch._inductor import codecache  # as long to import as torch is

                made_of = (
                    f"{torch.__version__} {self._mask.shape} {self.device.type} {self.model.config}"
                )
                # Beside what the compiler keeps, so that both go together.
                note = Path(codecache.cache_dir(), sha256(made_of.encode()).hexdigest())
                left = (
                    "about 10 s, compiled before"
                    if note.exists()
                    else "about 80 s, 10 s the next time"
                )
                preparing.get()(f"compiling the decode step: {left}")
                with tuned_steadily():
                    _, self.setup["compile_ms"] = first_call_ms(
                        self.device, next(iter(runs.values()))
                    )
                note.touch()
            if runs and self.strategy != "eager" and self.device.type == "cuda":
                runs, ms = first_call_ms(
                    self.device, lambda: {read: captured(runs[read]) for read in runs}
                )
                self.setup["capture_ms"] = ms + (self.setup["capture_ms"] or 0)
        self._runs |= runs
        return self

    @contextmanager
    def execution(self) -> Iterator[None]:
        """The kernels the step runs with; `decode` enters this."""
        with decode_execution(self.model, self.strategy), forwards(self._forms):
            yield

    def fresh_cache(self) -> Any:
        """The step's own cache, emptied for a new prefill: there is only one, so one state at a
        time.
        """
        self._length = None
        self.sums.zero_()
        self.cache.reset()
        return self.cache

    def __call__(self, state: DecodeState) -> tuple[Tensor, Tensor | None]:
        """One step of ``state``: logits [B, vocab] and, where it is greedy, the next token int64
        [B].

        ``state`` gets its position; counting is `decode_step`'s.
        """
        if state.cache is not self.cache:
            raise OcrPhasesError(
                "This state has another KV cache: prefill with cache=step.fresh_cache()."
            )
        needed = windowed_length(state.length + 1, state.lengths[0], self.window)
        read = min((read for read in self._runs if read >= needed), default=None)
        if read is None:
            raise OcrPhasesError(
                f"The step is ready for {max(self._runs, default=0):,} of {needed:,} entries, its cache has "
                f"room for {self.max_cache_len:,}: call ready_for with all new tokens."
            )
        if self._length != state.length:
            self._load(state)
        elif state.token is not self._given:
            self._token.copy_(state.token[:, None])
        logits = self._runs[read]()
        self._length = state.length + 1
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
            self._slot.sub_(max(0, length - prompt_len) // self.window * self.window)
        self._mask.fill_(-torch.inf)
        self._mask[:, 0, 0, :held].masked_fill_(state.attention_mask[:, :held].bool(), 0.0)
        self._position.fill_(length - 1)  # a copy from the host would wait for it
        if state.position_ids is not None:
            self._position.copy_(state.position_ids + (length - prompt_len))

    # -- making it --------------------------------------------------------------------------------

    def _step(self) -> Tensor:
        self._mask.index_fill_(3, self._slot, 0.0)
        self._position.add_(1)
        arguments = {
            "input_ids": self._token,
            "attention_mask": self.interface.ready_mask(
                self._mask[..., : self._reach.extent.shape[0]]
            ),
            "position_ids": self._position,
            "past_key_values": self.cache,
        }
        logits = self.model(**arguments, use_cache=True, logits_to_keep=1).logits[:, -1]
        self.sums.add_(sum_of_each(logits))
        self._token.copy_(first_largest(logits))
        self._slot.add_(1)
        if self.window is not None:
            self._slot.copy_(torch.where(self._slot == self._ring[1], self._ring[0], self._slot))
        return logits

    def _reading(self, read: int) -> Callable[[], Tensor]:
        """The step over so many entries, which the compiler takes for a size that varies."""
        extent = torch.empty(read, 0, device=self.device)
        torch._dynamo.mark_dynamic(extent, 0)

        def run() -> Tensor:
            self._reach.extent = extent
            return self._body()

        return run


class CapturedPrefill(MadeForwards):
    """Captured forwards of a ``language_model`` into a static cache, made at the first of each
    length.

    Where it ``compiles``, they are compiled too, once for all lengths. What waits for the device
    runs as it is: the experts in all dtypes but bfloat16, and on GPUs for which torch has no
    grouped product, and the mask of DeepSeek-OCR-2. So do padded rows, whose mask is read on the
    host.
    """

    def __init__(self, language_model: nn.Module, compiles: bool) -> None:
        super().__init__({"language_model": language_model}, KEPT_STEPS)
        self._forms = single_norms(language_model)
        self._compiled = compiled_apart(language_model.forward) if compiles else None

    def run(self, name: str, forward: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """One forward, as it is where it has a mask to read."""
        run = (
            forward
            if tensors_in(options["attention_mask"])
            else partial(super().run, name, forward)
        )
        return run(*args, **options)

    def make(self, name: str, forward: Callable[..., Any], *args: Any, **options: Any) -> Made:
        """What runs for one length."""
        tensors, waits = tensors_in(args, options), list[str]()
        preparing.get()(f"preparing the prefill for {tensors[0].shape[1]:,} tokens")
        with current_device(tensors[0].device), forwards(self._forms):
            forward(*args, **options)
            with syncs_counted(waits):
                forward(*args, **options)
            if waits:
                return forward, None
            for tensor in tensors:
                torch._dynamo.mark_dynamic(tensor, 1)
            run = partial(captured_call, self._compiled or forward, *args, **options)
            return first_call_ms(tensors[0].device, run)
