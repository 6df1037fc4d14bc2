"""Sentences from where the work is done to whoever shows them.

What loads, compiles or measures lies far below what shows progress, and is called in many ways. So
who listens is kept in a context variable, and not handed down through all of them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar

#: Gets a sentence, or a few words.
Listener = Callable[[str], object]


class Channel:
    """What is said of one topic goes to one listener: ``default``, or another in a ``with`` block.

    Examples
    --------
    >>> channel = Channel("topic", default=print)
    >>> heard = []
    >>> with channel.heard_by(heard.append):
    ...     channel.say("It works.")
    >>> heard
    ['It works.']
    """

    def __init__(self, topic: str, default: Listener) -> None:
        self._listener: ContextVar[Listener] = ContextVar(topic, default=default)

    @property
    def listener(self) -> Listener:
        """Who listens now."""
        return self._listener.get()

    def say(self, sentence: str) -> None:
        """Give a sentence to the listener; raises what the listener raises."""
        self.listener(sentence)

    @contextlib.contextmanager
    def heard_by(self, listener: Listener) -> Iterator[None]:
        """Let ``listener`` hear what is said in a ``with`` block, instead of who did before."""
        token = self._listener.set(listener)
        try:
            yield
        finally:
            self._listener.reset(token)
