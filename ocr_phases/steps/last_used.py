"""A bounded cache: the values that were used last."""

from __future__ import annotations

from typing import Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class LastUsed(Generic[Key, Value]):
    """Keeps the ``most`` values that were used last, each under a key.

    What is kept here holds memory of a device, where there may be no room for one more. So a value
    is made in three steps::

        step = steps.get(key)
        if step is None:
            steps.make_room()  # lets go of the one that was used longest ago
            step = StaticStep(model, *key)
            steps.put(key, step)
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._values: dict[Key, Value] = {}  # in the order of their last use

    def get(self, key: Key) -> Value | None:
        """The value of a key, which counts as a use of it; None where there is none."""
        value = self._values.pop(key, None)
        if value is not None:
            self._values[key] = value
        return value

    def make_room(self) -> None:
        """Let go of the values used longest ago, until there is room for a new one."""
        while len(self._values) >= self._most:
            oldest = next(iter(self._values))
            del self._values[oldest]

    def put(self, key: Key, value: Value) -> None:
        """Keep a new value."""
        self.make_room()
        self._values[key] = value

    def values(self) -> list[Value]:
        """All that are kept, the one used last at the end."""
        return list(self._values.values())

    def __contains__(self, key: Key) -> bool:
        return key in self._values

    def __len__(self) -> int:
        return len(self._values)
