"""A decode step over a static KV cache: every input has a fixed address, so it can be captured or
compiled.

The step feeds itself: it opens its token's column of the mask, runs the model, takes the argmax as
the next token and moves on by one, around the window where there is one, all on the device. The
host only starts it, and reads tokens when it wants them. So inputs are changed in place, nothing in
the step may wait for the host, and the model has no hook when the step is made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers import Cache

from ocr_phases.collectors.timeline import Timeline
from ocr_phases.errors import OcrPhasesError
from ocr_phases.families import windowed_length
from ocr_phases.models.caches import Reach, cache_bytes_per_token, static_cache
from ocr_phases.models.devices import device_of
from ocr_phases.models.wiring import interface_of
from ocr_phases.settings import Strategy
from ocr_phases.stages import stage_title
from ocr_phases.steps.capacity import power_of_two
from ocr_phases.steps.compiled import (
    KEPT_SHAPES,
    compile_apart,
    compiled_language_model,
    first_largest,
    fused_methods,
    norm_methods,
    prefill_methods,
    row_sums,
    step_options,
    tuned_kernels,
    vision_encoders,
)
from ocr_phases.steps.decode_kernels import decode_execution
from ocr_phases.steps.forwards import (
    Forward,
    ForwardsByShape,
    MadeForward,
    methods_of_kinds,
    replaced_forwards,
)
from ocr_phases.steps.graphs import capture, capture_call, tensors_in, waits_for_device
from ocr_phases.steps.phases import DecodeState
from ocr_phases.steps.preparing import announce, compiling, timed_preparation
from ocr_phases.steps.token_step import (
    TOKEN_KERNELS,
    TokenState,
    TokenStep,
    starts_early,
    token_kernels_fit,
    triton_explained,
)

if TYPE_CHECKING:
    from transformers import PreTrainedModel

#: The fewest entries that a step reads: a graph for fewer would save too little.
LEAST_READ = 512
#: How many steps are kept, each with its KV cache, and for how many prompt lengths each of them
#: keeps its prefill. On CUDA, steps and prefills also hold the memory of their graphs.
KEPT_STEPS = 4
#: One decode step that reads a fixed number of entries: logits [B, vocab].
Run = Callable[[], Tensor]


@dataclass
class StepSetup:
    """What a `StaticStep` holds, and what making it took.

    ``max_cache_len`` counts the entries of its cache, ``allocated_bytes`` is their size for the
    whole batch. ``compile_ms`` and ``capture_ms`` are None as long as nothing was compiled or
    captured.
    """

    max_cache_len: int
    allocated_bytes: int
    compile_ms: float | None = None
    capture_ms: float | None = None


class StaticStep:
    """One decode step of ``batch`` rows over a static cache of ``max_cache_len`` entries.

    ``strategy``: ``cuda_graph`` captures the step and replays it; ``compiled`` compiles it, and
    captures it too on CUDA; on an NVIDIA GPU from Hopper on, one row of the three families runs by
    kernels of its own (`TokenStep`) in place of the compiler's. ``eager`` runs the same step as it
    is.

    Hand it to `prefill`, then to `decode`: it continues from the state it is called with, also
    where a caller changed the state's token. The logits it gives are overwritten by the next step.
    ``setup`` says for the record what it holds and what making it took. Each length that is read is
    made by `ready_for`, before the run that needs it.
    """

    def __init__(
        self, model: PreTrainedModel, batch: int, max_cache_len: int, strategy: Strategy
    ) -> None:
        self.model = model
        self.interface = interface_of(model)
        self.window = self.interface.window(model)
        self.strategy = strategy
        self.max_cache_len = max_cache_len
        self.device: torch.device = model.device
        self._captures = strategy != "eager" and self.device.type == "cuda"

        # Every input of the step, at the address that a graph will hold.
        # The cache and the mask have one entry more than is ever read: to the compiler, reading all
        # of them would be a step of its own.
        slots = max_cache_len + 1
        self._token = torch.zeros(batch, 1, dtype=torch.long, device=self.device)
        self._position = torch.zeros_like(self._token)  # of the newest entry
        self._slot = torch.zeros(1, dtype=torch.long, device=self.device)
        # The window's first slot, and the one behind its last.
        self._window_slots = torch.zeros(2, 1, dtype=torch.long, device=self.device)
        # Added to the scores: 0 where a column may be seen, else -inf. A Boolean mask would be
        # turned into this in every layer.
        self._mask = torch.full(
            (batch, 1, 1, slots), -torch.inf, dtype=model.dtype, device=self.device
        )
        self._count = torch.zeros((), dtype=torch.long, device=self.device)
        self._reach = Reach(self._slot, self._count, extent=torch.empty(0, 0, device=self.device))
        self.cache = self._empty_cache(batch, slots)
        #: Of all logits since the last prefill, float32 [B]: finite only if they all were.
        self.sums = torch.zeros(batch, dtype=torch.float32, device=self.device)

        # What the host knows of them.
        self._length: int | None = None  # entries in the cache, where a state is loaded
        self._own_token: Tensor | None = None  # that the step itself fed back

        language_model = self.interface.modules(model)["language_model"]
        self.prefill = CapturedPrefill(language_model, compiles=strategy == "compiled")
        # What the modules run in place of their class's methods, and of their own calls.
        self._methods = norm_methods(language_model)
        self._parts: dict[nn.Module, Forward] = {}
        self._open = self._open_column
        self._close = self._close_step
        #: The step's own kernels, where they run it.
        self.token_step: TokenStep | None = None
        if strategy == "compiled":
            self._choose_kernels(language_model, batch)
        #: As ``strategy`` runs it, by the entries that it reads.
        self._runs: dict[int, Run] = {}
        self.setup = StepSetup(
            max_cache_len=max_cache_len,
            allocated_bytes=cache_bytes_per_token(self.cache) * max_cache_len,
        )

    def _empty_cache(self, batch: int, slots: int) -> Cache:
        """The step's static cache, with its memory."""
        config = self.model.config.get_text_config()
        width = getattr(config, "head_dim", None)
        if not width:
            width = config.hidden_size // config.num_attention_heads
        cache = static_cache(config.num_hidden_layers, slots, self.window, self._reach)
        cache.early_initialization(
            batch, config.num_key_value_heads, width, self.model.dtype, self.device
        )
        return cache

    def _choose_kernels(self, language_model: nn.Module, batch: int) -> None:
        """Run a compiled step by its own kernels where they fit, else by the compiler's."""
        head = self.model.get_output_embeddings()
        if starts_early(self.device) and token_kernels_fit(language_model, head, batch):
            self.use_token_kernels()
            return
        options = step_options(self.device)
        self._methods = fused_methods(language_model)
        self._parts = compiled_language_model(language_model, options)
        self._parts[head] = compile_apart(head.forward, options)
        self._open = compile_apart(self._open_column, options)
        self._close = compile_apart(self._close_step, options)

    def use_token_kernels(self) -> None:
        """Run the step by kernels of its own, for a model such as `token_kernels_fit` is true for.

        They may start early on NVIDIA GPUs from Hopper on.
        """
        state = TokenState(
            token=self._token,
            position=self._position,
            slot=self._slot,
            window_slots=self._window_slots,
            mask=self._mask,
            count=self._count,
            sums=self.sums,
        )
        self.token_step = TokenStep(
            self.interface.modules(self.model)["language_model"],
            self.model.get_output_embeddings(),
            self.cache,
            state,
            early=starts_early(self.device),
            multiprocessors=device_of(self.device).chip().cores,
        )

    # -- running it -------------------------------------------------------------------------------

    def prefill_execution(self) -> AbstractContextManager[None]:
        """How a prefill into the step's cache runs: captured too, where the step is."""
        if not self._captures:
            return nullcontext()
        return self.prefill.installed()

    @contextmanager
    def execution(self) -> Iterator[None]:
        """The kernels the step runs with; `decode` enters this."""
        with (
            decode_execution(self.model, self.strategy),
            methods_of_kinds(self._methods),
            replaced_forwards(self._parts),
        ):
            yield

    def fresh_cache(self) -> Cache:
        """The step's own cache, emptied for a new prefill.

        There is only one, so one state at a time.
        """
        self._length = None
        self.sums.zero_()
        self.cache.reset()
        return self.cache

    def __call__(self, state: DecodeState) -> tuple[Tensor, Tensor | None]:
        """One step of ``state``: logits [B, vocab] and, where it is greedy, the next token.

        The token is int64 [B]. ``state`` gets its position; counting is `decode_step`'s.
        """
        if state.cache is not self.cache:
            raise OcrPhasesError(
                "This state has another KV cache: prefill with cache=step.fresh_cache()."
            )
        needed = windowed_length(state.length + 1, state.lengths[0], self.window)
        read = min((read for read in self._runs if read >= needed), default=None)
        if read is None:
            raise OcrPhasesError(
                f"The step is ready for {max(self._runs, default=0):,} of {needed:,} entries, its "
                f"cache has room for {self.max_cache_len:,}: call ready_for with all new tokens."
            )
        if self._length != state.length:
            self._load(state)
        elif state.token is not self._own_token:
            self._token.copy_(state.token[:, None])
        logits = self._runs[read]()
        self._length = state.length + 1
        self._own_token = None
        if state.sampler.greedy:
            self._own_token = self._token[:, 0].clone()
        return logits, self._own_token

    def _load(self, state: DecodeState) -> None:
        """Start from ``state``: its token, place, and which columns of its prompt are padding."""
        length = state.length
        prompt_len = state.lengths[0]
        held = windowed_length(length, prompt_len, self.window)
        self._token.copy_(state.token[:, None])
        self._slot.fill_(length)
        if self.window is not None:
            self._window_slots[0].fill_(prompt_len)
            self._window_slots[1].fill_(prompt_len + self.window)
            full_turns = max(0, length - prompt_len) // self.window
            self._slot.sub_(full_turns * self.window)
        self._mask.fill_(-torch.inf)
        self._mask[:, 0, 0, :held].masked_fill_(state.attention_mask[:, :held].bool(), 0.0)
        self._position.fill_(length - 1)  # a copy from the host would wait for it
        if state.position_ids is not None:
            self._position.copy_(state.position_ids + (length - prompt_len))

    # -- making it --------------------------------------------------------------------------------

    @torch.no_grad()
    def ready_for(self, prompt_len: int, max_new_tokens: int) -> StaticStep:
        """Make what a run of these lengths reads, where it is missing: a graph for each power of
        two.

        With one graph for all of them, each step would cost what the last one does, because
        attention reads masked entries like others. A state that the step is in the middle of is
        lost. Raises `OcrPhasesError` where it cannot be compiled.
        """
        runs: dict[int, Run] = {}
        for read in self._reads_of(prompt_len, max_new_tokens):
            if read not in self._runs:
                runs[read] = self._step_over(read)
        self._length = None
        self._slot.zero_()  # trial runs move on by a few slots, far fewer than there are
        with device_of(self.device).made_current(), self.execution():
            if self._has_to_compile(runs):
                self._compile_with(list(runs.values()))
            if runs and self._captures:
                with timed_preparation(self.device) as preparation:
                    runs = {read: capture(run) for read, run in runs.items()}
                self.setup.capture_ms = (self.setup.capture_ms or 0.0) + preparation.ms
        self._runs.update(runs)
        return self

    def _reads_of(self, prompt_len: int, max_new_tokens: int) -> list[int]:
        """How many entries the steps of a run read, from its first to its last."""
        first = windowed_length(prompt_len + 1, prompt_len, self.window)
        last = windowed_length(prompt_len + max_new_tokens, prompt_len, self.window)
        reads = [power_of_two(LEAST_READ, first)]
        while reads[-1] < last:
            reads.append(2 * reads[-1])
        # A length that is no power of two is the last one to be read, and only once.
        return sorted({min(read, self.max_cache_len) for read in reads})

    def _step_over(self, read: int) -> Run:
        """The step over so many entries, which the compiler takes for a size that varies."""
        if self.token_step is not None:
            return partial(self.token_step, read)
        extent = torch.empty(read, 0, device=self.device)
        torch._dynamo.mark_dynamic(extent, 0)

        def run() -> Tensor:
            self._reach.extent = extent
            return self._step()

        return run

    def _has_to_compile(self, runs: dict[int, Run]) -> bool:
        """Whether something is compiled for these lengths: the compiler's step is, for all lengths
        at once, and of the step's own kernels those that a length needs besides.
        """
        if self.strategy != "compiled" or not runs:
            return False
        return not self._runs or self.token_step is not None

    def _compile_with(self, runs: Sequence[Run]) -> None:
        """Let the compiler make the step for these lengths, which the first call of each does."""
        made_from = f"{self._mask.shape} {self.model.config}"
        kernels: AbstractContextManager[None] = tuned_kernels(self.device)
        if self.token_step is not None:
            made_from += f" {TOKEN_KERNELS}"
            kernels = triton_explained()
        with kernels, compiling("the decode step", self.device, made_from) as preparation:
            for run in runs:
                run()
        self.setup.compile_ms = (self.setup.compile_ms or 0.0) + preparation.ms

    def uncaptured(self, prompt_len: int, timeline: Timeline | None = None) -> Run:
        """The step as it was before it was captured: a call starts it kernel by kernel.

        It goes on from a prompt of this length in the cache. This is for a profiler, which cannot
        see for whom a graph's kernels work. The step's own kernels belong to no module, so their
        stages become spans of the ``timeline``. The state that the step was in is lost.
        """
        self._slot.fill_(prompt_len)
        self._length = None
        read = self._reads_of(prompt_len, 1)[0]
        if self.token_step is not None:
            return partial(self.token_step, read, timeline)
        return self._step_over(read)

    def _step(self) -> Tensor:
        """The work of one step: what is captured, and of which every part is compiled."""
        self._open()
        seen = self._mask[..., : self._reach.extent.shape[0]]
        out = self.model(
            input_ids=self._token,
            attention_mask=self.interface.ready_mask(seen),
            position_ids=self._position,
            past_key_values=self.cache,
            use_cache=True,
            logits_to_keep=1,
        )
        logits = out.logits[:, -1]
        self._close(logits)
        return logits

    def _open_column(self) -> None:
        """Let the step see its own entry, and count it."""
        self._mask.index_fill_(3, self._slot, 0.0)
        self._position.add_(1)

    def _close_step(self, logits: Tensor) -> None:
        """Take the next token from [B, vocab], and move on to the next entry."""
        self.sums.add_(row_sums(logits))
        self._token.copy_(first_largest(logits))
        self._count.add_(1)
        self._slot.add_(1)
        if self.window is not None:
            first = self._window_slots[0]
            end = self._window_slots[1]
            self._slot.copy_(torch.where(self._slot == end, first, self._slot))


class CapturedPrefill(ForwardsByShape):
    """Captured forwards of a ``language_model`` over whole prompts, into a static cache.

    Each is made at the first prompt of its length.

    Where it ``compiles``, they are compiled too, once for all lengths. What waits for the device
    runs as it is: the experts in all dtypes but bfloat16, and on GPUs for which torch has no
    grouped product. So do padded rows, whose mask is read on the host.
    """

    def __init__(self, language_model: nn.Module, *, compiles: bool) -> None:
        super().__init__({"language_model": language_model}, KEPT_STEPS)
        self._methods = prefill_methods(language_model)
        self._parts: dict[nn.Module, Forward] = {}
        if compiles:
            self._parts = compiled_language_model(language_model)

    def run(self, name: str, forward: Forward, *args: Any, **options: Any) -> Any:
        """One forward, as it is where it has a mask to read."""
        if tensors_in(options["attention_mask"]):
            return forward(*args, **options)
        return super().run(name, forward, *args, **options)

    def make(self, name: str, forward: Forward, *args: Any, **options: Any) -> MadeForward:
        """What runs for one length."""
        tensors = tensors_in(args, options)
        device = tensors[0].device
        announce(f"preparing the prefill for {tensors[0].shape[1]:,} tokens")
        with device_of(device).made_current(), methods_of_kinds(self._methods):
            if waits_for_device(forward, *args, **options):
                return MadeForward(forward, None)
            with replaced_forwards(self._parts), timed_preparation(device) as preparation:
                run = capture_call(forward, *args, **options)
            return MadeForward(run, preparation.ms)


class CapturedVision(ForwardsByShape):
    """Captured forwards of a model's vision encoders, made at each shape's first call and kept.

    They run the kernels of the model's class, without a compiler. An encoder that waits for the
    device runs as it is. SAM's attention would: its class looks up its relative positions by an
    index that it makes on the host, in every layer of every page. They depend on the weights and
    the size alone, so each is looked up once, before the capture.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        encoders = vision_encoders(model)
        super().__init__(encoders, KEPT_SHAPES)
        # Graphs read these positions at their addresses, so they live as long as the graphs.
        self._positions: dict[Any, RelativePositions] = {}
        for encoder in encoders.values():
            attention: Any
            for attention in encoder.modules():
                if getattr(attention, "use_rel_pos", False):
                    self._positions[attention] = RelativePositions(attention.get_rel_pos)

    def make(self, name: str, forward: Forward, *args: Any, **options: Any) -> MadeForward:
        """What runs for one shape."""
        pixels = tensors_in(args, options)[0]
        sizes = " × ".join(map(str, pixels.shape))
        announce(f"capturing {stage_title(name)} for {sizes} inputs")
        with device_of(pixels.device).made_current(), self._positions_remembered():
            if waits_for_device(forward, *args, **options):
                return MadeForward(forward, None)
            with timed_preparation(pixels.device) as preparation:
                run = capture_call(forward, *args, **options)
        return MadeForward(run, preparation.ms)

    @contextmanager
    def _positions_remembered(self) -> Iterator[None]:
        """Within it an attention that has relative positions takes those that are remembered."""
        with ExitStack() as undo:
            for attention, positions in self._positions.items():
                attention.get_rel_pos = positions
                undo.callback(delattr, attention, "get_rel_pos")
            yield


class RelativePositions:
    """The relative positions of an attention, looked up once for each size.

    ``look_up(query_size, key_size, weight)`` is the method of its class.
    """

    def __init__(self, look_up: Callable[[int, int, Tensor], Tensor]) -> None:
        self._look_up = look_up
        self._known: dict[tuple[int, int, int], Tensor] = {}

    def __call__(self, query_size: int, key_size: int, weight: Tensor) -> Tensor:
        """The positions of queries and keys, [query_size, key_size, channels]."""
        key = (query_size, key_size, weight.data_ptr())
        if key not in self._known:
            self._known[key] = self._look_up(query_size, key_size, weight)
        return self._known[key]
