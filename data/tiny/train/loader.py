"""Batches for the device: worker processes draw chunks of pages into shared memory, a thread ships them.

A chunk is an eighth of a batch. Drawing is slower than learning, so a batch is made of some fresh chunks and
of chunks that earlier batches have used, drawn from a pool of the bucket's latest ones; every time, the pages
get other colours and noise on the device. What a chunk holds follows from the seed and its number alone, and
chunks are used in the order of their numbers, however fast each worker is.
"""

from __future__ import annotations

import mmap
import multiprocessing
import os
import queue
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from forward import Batch
from pages import Bucket, Sources, make_example
from tokenizer import PAD, Codec

CHUNKS = 8
_TEXT_STEP = 32  # text is padded to a multiple of this, so that few shapes are met
_JOIN_S = 5
_PATIENCE_S = 20


@dataclass(frozen=True)
class Order:
    """One chunk to draw: where to, what, and how hard."""

    number: int
    slot: int
    bucket: Bucket
    stage: dict[str, Any]


@dataclass(frozen=True)
class Plan:
    """One batch: its bucket and the numbers of its fresh chunks."""

    bucket: Bucket
    fresh: tuple[int, ...]


@dataclass(frozen=True)
class Recipe:
    """What every worker must know to draw chunks."""

    seed: int
    buckets: dict[str, Bucket]
    prompts: dict[str, float]
    sources: Sources
    codec: Codec
    longest: int


class Store:
    """Slots of shared memory, one chunk each; made before the workers are forked, and so theirs too."""

    def __init__(self, slots: int, buckets: Sequence[Bucket], longest: int) -> None:
        self.sizes = {bucket.name: _view_bytes(bucket) for bucket in buckets}
        pages = max(bucket.pages for bucket in buckets)
        # A mapping for each slot: one for all is more than a machine promises whose memory grows with use.
        largest = max(self.sizes[bucket.name] * bucket.pages for bucket in buckets)
        self.pixels = [_shared((largest,), np.uint8) for _ in range(slots)]
        self.maps = _shared((slots, max(_cells(b) * b.pages for b in buckets)), np.uint8)
        self.text = _shared((slots, pages, longest), np.int32)
        self.lengths = _shared((slots, pages, 2), np.int32)

    def fill(self, order: Order, recipe: Recipe) -> None:
        """Draw the chunk's pages into its slot."""
        bucket, slot = order.bucket, order.slot
        pixels = self.pixels[slot]
        size, cells = self.sizes[bucket.name], _cells(bucket)
        for index in range(bucket.pages):
            seed = f"train {recipe.seed} {order.number} {index}"
            example = make_example(
                seed, bucket, order.stage, recipe.prompts, recipe.sources, recipe.codec, recipe.longest
            )
            views = np.concatenate([example.views.global_view.ravel(), example.views.crops.ravel()])
            pixels[index * size : (index + 1) * size] = views
            self.maps[slot, index * cells : (index + 1) * cells] = example.characters.ravel()
            self.text[slot, index] = PAD
            self.text[slot, index, : len(example.text)] = example.text
            self.lengths[slot, index] = len(example.text), example.prompt_length

    def batch(self, bucket: Bucket, slots: Sequence[int], *, pin: bool, maps: bool) -> Batch:
        """The chunks of those slots as one batch on the host."""
        each, side = bucket.pages, bucket.preset.base_size
        size, crop = self.sizes[bucket.name], bucket.preset.image_size
        count = each * len(slots)
        lengths = np.concatenate([self.lengths[slot, :each] for slot in slots])
        longest = -(-int(lengths[:, 0].max()) // _TEXT_STEP) * _TEXT_STEP
        longest = min(longest, self.text.shape[2])
        pixels = torch.empty((count, side, side, 3), dtype=torch.uint8, pin_memory=pin)
        crops = None
        if bucket.crops:
            crops = torch.empty((count, bucket.crops, crop, crop, 3), dtype=torch.uint8, pin_memory=pin)
        for place, slot in enumerate(slots):
            source = torch.from_numpy(self.pixels[slot][: each * size].reshape(each, size))
            rows = slice(place * each, (place + 1) * each)
            whole = side * side * 3
            pixels[rows].copy_(source[:, :whole].reshape(each, side, side, 3))
            if crops is not None:
                crops[rows].copy_(source[:, whole:].reshape(each, bucket.crops, crop, crop, 3))
        text = np.concatenate([self.text[slot, :each, :longest] for slot in slots]).astype(np.int64)
        at = np.arange(longest)[None]
        wanted = (at >= lengths[:, 1:]) & (at < lengths[:, :1])
        characters = None
        if maps and not bucket.crops:
            cells = np.concatenate([self.maps[slot, : each * _cells(bucket)] for slot in slots])
            characters = torch.from_numpy(cells.astype(np.int64).reshape(count, side // 16, side // 8))
        flat = None if crops is None else crops.flatten(0, 1)
        return Batch(pixels, flat, bucket.grid, torch.from_numpy(text), torch.from_numpy(wanted), characters)


def _view_bytes(bucket: Bucket) -> int:
    return 3 * (bucket.preset.base_size**2 + bucket.crops * bucket.preset.image_size**2)


def _cells(bucket: Bucket) -> int:
    return bucket.preset.base_size**2 // 128


def _shared(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    memory = mmap.mmap(-1, int(np.prod(shape)) * np.dtype(dtype).itemsize)
    return np.frombuffer(memory, dtype).reshape(shape)


def _work(store: Store, recipe: Recipe, orders: Any, done: Any) -> None:
    torch.set_num_threads(1)
    os.nice(5)  # whoever compiles and learns goes first
    while (order := orders.get()) is not None:
        try:
            store.fill(order, recipe)
        except Exception as error:  # noqa: BLE001 - a dead worker would leave the trainer waiting for ever
            done.put((order.number, f"{type(error).__name__}: {error} (chunk {order.number})"))
        else:
            done.put((order.number, ""))


class Loader:
    """Endless batches on the device, planned ``ahead`` of their use.

    plan(number) names the bucket, its stage, and how many of the batch's chunks are fresh. Without workers
    chunks are drawn here when they are due, nothing runs ahead, and a run can be repeated exactly.
    """

    def __init__(
        self,
        recipe: Recipe,
        plan: Callable[[int], tuple[Bucket, dict[str, Any], int]],
        *,
        pool: Callable[[Bucket], int],
        workers: int,
        ahead: int,
    ) -> None:
        buckets = list(recipe.buckets.values())
        self._recipe, self._plan, self._pool_size = recipe, plan, pool
        self._ahead = ahead if workers else 0
        slots = sum(pool(bucket) for bucket in buckets) + CHUNKS * (self._ahead + 2)
        self._store = Store(slots, buckets, recipe.longest)
        self._free = deque(range(slots))
        self._pools: dict[str, deque[int]] = {bucket.name: deque() for bucket in buckets}
        self._ready: dict[int, str] = {}
        self._slots: dict[int, int] = {}
        self._plans: deque[Plan] = deque()
        self._chunk = 0
        self.chunks = 0
        """Number of the first chunk that no batch has used yet."""
        context = multiprocessing.get_context("fork")
        self._orders, self._done = context.Queue(), context.Queue()
        arguments = (self._store, recipe, self._orders, self._done)
        self._workers = [context.Process(target=_work, args=arguments, daemon=True) for _ in range(workers)]
        for worker in self._workers:
            worker.start()

    def host_batches(
        self, first: int, first_chunk: int, *, pin: bool, maps: Callable[[], bool]
    ) -> Iterator[tuple[Bucket, Batch]]:
        """Batches from number ``first`` on, the first fresh chunk being ``first_chunk``, on the host.

        ``maps`` is asked for every batch whether it needs character maps.
        """
        self._chunk, planned = first_chunk, first
        for number in range(first, 2**62):
            while planned <= number + self._ahead:
                self._order(planned)
                planned += 1
            plan = self._plans.popleft()
            fresh = [self._receive(chunk) for chunk in plan.fresh]
            pool = self._pools[plan.bucket.name]
            rng = random.Random(f"replay {self._recipe.seed} {number}")
            again = rng.sample(list(pool), min(len(pool), CHUNKS - len(fresh)))
            batch = self._store.batch(plan.bucket, [*fresh, *again], pin=pin, maps=maps())
            pool.extend(fresh)
            while len(pool) > self._pool_size(plan.bucket):
                self._free.append(pool.popleft())
            self.chunks = plan.fresh[-1] + 1
            yield plan.bucket, batch

    def _order(self, number: int) -> None:
        bucket, stage, fresh = self._plan(number)
        chunks = tuple(range(self._chunk, self._chunk + fresh))
        self._chunk += fresh
        self._plans.append(Plan(bucket, chunks))
        for chunk in chunks:
            self._slots[chunk] = self._free.pop()
            order = Order(chunk, self._slots[chunk], bucket, stage)
            if self._workers:
                self._orders.put(order)
            else:
                self._store.fill(order, self._recipe)
                self._ready[chunk] = ""

    def _receive(self, chunk: int) -> int:
        while chunk not in self._ready:
            try:
                number, error = self._done.get(timeout=_PATIENCE_S)
            except queue.Empty:
                if not all(worker.is_alive() for worker in self._workers):
                    raise RuntimeError("A drawing process died: is there enough memory?") from None
                continue
            self._ready[number] = error
        if error := self._ready.pop(chunk):
            raise RuntimeError(f"Drawing pages failed: {error}")
        return self._slots.pop(chunk)

    def close(self) -> None:
        """End the workers."""
        self._orders.cancel_join_thread()
        for worker in self._workers:
            worker.terminate()
        for worker in self._workers:
            worker.join(_JOIN_S)


class Shipper:
    """A thread that brings host batches to a CUDA device on a stream of its own, a few ahead of their use."""

    def __init__(self, batches: Iterator[tuple[Bucket, Batch]], device: str, ahead: int = 3) -> None:
        self._queue: queue.Queue[tuple[Bucket, Batch] | Exception] = queue.Queue(ahead)
        self._device = device
        self._current = torch.cuda.current_device()  # every thread has a current device of its own
        self.waited_s = 0.0
        threading.Thread(target=self._ship, args=(batches,), daemon=True).start()

    def _ship(self, batches: Iterator[tuple[Bucket, Batch]]) -> None:
        torch.cuda.set_device(self._current)
        stream = torch.cuda.Stream(self._device)
        try:
            for bucket, batch in batches:
                with torch.cuda.stream(stream):
                    moved = _to(batch, self._device)
                stream.synchronize()
                self._queue.put((bucket, moved))
        except Exception as error:  # noqa: BLE001 - raised again in the training loop
            self._queue.put(error)

    def __next__(self) -> tuple[Bucket, Batch]:
        start = time.perf_counter()
        shipped = self._queue.get()
        self.waited_s += time.perf_counter() - start
        if isinstance(shipped, Exception):
            raise shipped
        bucket, batch = shipped
        for tensor in (batch.pixels, batch.crops, batch.text, batch.wanted, batch.characters):
            if tensor is not None:  # else the allocator could hand its memory out while it is read here
                tensor.record_stream(torch.cuda.current_stream())
        return bucket, batch


class Direct:
    """Host batches moved to the device when they are asked for, for training on a CPU."""

    def __init__(self, batches: Iterator[tuple[Bucket, Batch]], device: str) -> None:
        self._batches, self._device = batches, device
        self.waited_s = 0.0

    def __next__(self) -> tuple[Bucket, Batch]:
        start = time.perf_counter()
        bucket, batch = next(self._batches)
        self.waited_s += time.perf_counter() - start
        return bucket, _to(batch, self._device)


def _to(batch: Batch, device: str) -> Batch:
    def move(tensor: torch.Tensor | None) -> torch.Tensor | None:
        return None if tensor is None else tensor.to(device, non_blocking=True)

    return Batch(
        move(batch.pixels),
        move(batch.crops),
        batch.grid,
        move(batch.text),
        move(batch.wanted),
        move(batch.characters),
    )
