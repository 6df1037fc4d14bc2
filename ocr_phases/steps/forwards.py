"""Other forwards for modules: put in the place of their class's, and made once for each shape."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, NamedTuple

from torch import nn

from ocr_phases.steps.graphs import tensors_in
from ocr_phases.steps.last_used import LastUsed

#: A forward of a module, with whatever arguments its class takes.
Forward = Callable[..., Any]
#: The name of a module, and the sizes of the first tensor of a call.
Shape = tuple[str | int, ...]


class MadeForward(NamedTuple):
    """A forward that was made, and the milliseconds that it took; None where nothing was made."""

    run: Forward
    took_ms: float | None


@contextlib.contextmanager
def replaced_forwards(forwards: Mapping[nn.Module, Forward]) -> Iterator[None]:
    """Run modules by other forwards than their class's, for the length of a ``with`` block.

    Hooks on the modules stay outside of them.
    """
    with contextlib.ExitStack() as undo:
        for module, forward in forwards.items():
            module.forward = forward
            undo.callback(delattr, module, "forward")
        yield


@contextlib.contextmanager
def methods_of_kinds(methods: Mapping[nn.Module, Forward]) -> Iterator[None]:
    """Run modules by other methods than their class's, which get the module first, in a ``with``
    block.

    A module is of a subclass with that method for so long. So modules of one class that have one
    method are of one class still, and what is compiled for one of them serves all of them; a
    forward of its own, as `replaced_forwards` gives, would make each of them something else.
    """
    with contextlib.ExitStack() as undo:
        for module, method in methods.items():
            undo.callback(setattr, module, "__class__", type(module))
            module.__class__ = _kind_with(type(module), method)
        yield


#: The subclasses of `methods_of_kinds`, by the class and the method that they were made of.
_KINDS: dict[tuple[type[nn.Module], Forward], type[nn.Module]] = {}


def _kind_with(module_class: type[nn.Module], method: Forward) -> type[nn.Module]:
    """A subclass whose forward is this method: the same one each time."""
    made_of = (module_class, method)
    if made_of not in _KINDS:
        _KINDS[made_of] = type(module_class.__name__, (module_class,), {"forward": method})
    return _KINDS[made_of]


class ForwardsByShape:
    """Other forwards of modules, each made at the first call with inputs of a shape.

    A subclass says in `make` what runs for a shape. ``made`` keeps the ``most`` last used of them.
    """

    def __init__(self, modules: Mapping[str, nn.Module], most: int) -> None:
        self._modules = modules
        self.made: LastUsed[Shape, MadeForward] = LastUsed(most)
        # What making took, of the forwards that were called since the last `installed`.
        self._took_ms: dict[Shape, float | None] = {}

    def installed(self) -> AbstractContextManager[None]:
        """Run the modules by these forwards within a ``with`` block; `took_ms` counts from here."""
        self._took_ms.clear()
        forwards: dict[nn.Module, Forward] = {}
        for name, module in self._modules.items():
            forwards[module] = partial(self.run, name, module.forward)
        return replaced_forwards(forwards)

    def run(self, name: str, forward: Forward, *args: Any, **options: Any) -> Any:
        """One call of the module of this ``name``, whose own forward is ``forward``."""
        shape = (name, *tensors_in(args, options)[0].shape)
        made = self.made.get(shape)
        if made is None:
            self.made.make_room()
            made = self.make(name, forward, *args, **options)
            self.made.put(shape, made)
        self._took_ms[shape] = made.took_ms
        return made.run(*args, **options)

    def make(self, name: str, forward: Forward, *args: Any, **options: Any) -> MadeForward:
        """What runs in place of ``forward`` for arguments like these."""
        raise NotImplementedError

    def took_ms(self) -> float | None:
        """Milliseconds that making the forwards took which were called since `installed`.

        None where nothing was made.
        """
        times = [ms for ms in self._took_ms.values() if ms is not None]
        return sum(times) or None
