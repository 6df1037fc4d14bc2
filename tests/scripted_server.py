"""A server that sends the events of a script, and a client whose clock the script moves.

A client takes the time at which a line arrived. On a busy machine it reads lines late or several at
once, and what it measures then is the machine. So here a line has the time that the script gives
it: the server tells the pause before each event in a comment, as servers may send at any time, and
the clock of the client goes on by that pause as the comment is read.
"""

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any
from unittest import mock

from ocr_phases.engines.client import Server

#: The seconds before an event, and the event: lines as they are sent, or what becomes JSON.
Event = tuple[float, Any]

DONE = "data: [DONE]\n\n"
#: Seconds between two tokens.
STEP = 0.004
#: What a comment begins with that tells the seconds before the next event.
PAUSE = ": pause "


class Handler(BaseHTTPRequestHandler):
    """Answers a chat completion with the events of the server's script."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: "ScriptedServer"

    def log_message(self, *_: Any) -> None:
        """Nothing is logged."""

    def do_GET(self) -> None:
        if self.path.endswith("/models"):
            models = [{"id": name} for name in self.server.models]
            self._answer(json.dumps({"data": models}).encode())
        else:
            self._answer(self.server.answers.get(self.path))

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        if not self.path.endswith("/chat/completions"):
            self._answer(None)
            return
        self.close_connection = True
        with contextlib.suppress(OSError):
            if self.server.send_raw is not None:
                self.server.send_raw(self.connection)
            else:
                self._stream()

    def _answer(self, body: bytes | None) -> None:
        """A whole answer; without a body there is no such path."""
        status = 200
        if body is None:
            status = 404
            body = b""
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _stream(self) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for pause, event in self.server.events:
            if self.server.sleeps:
                time.sleep(pause)
            else:
                self._write_chunk(f"{PAUSE}{pause}\n\n")
            lines = event if isinstance(event, str) else f"data: {json.dumps(event)}\n\n"
            self._write_chunk(lines)
        self.wfile.write(b"0\r\n\r\n")

    def _write_chunk(self, text: str) -> None:
        """A chunk of HTTP's transfer encoding."""
        data = text.encode()
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")


class ScriptedServer(ThreadingHTTPServer):
    """A server that sends these events for every page.

    With ``sleeps`` it waits before each event, by the machine's own clock; else it tells the pause
    and sends the event at once.
    """

    daemon_threads = True

    def __init__(self, events: list[Event], *, sleeps: bool) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.events = events
        self.sleeps = sleeps
        self.models = ["DeepSeek-OCR"]
        #: What other paths answer, such as ``/metrics``.
        self.answers: dict[str, bytes] = {}
        #: What is sent instead of an answer.
        self.send_raw: Callable[[socket.socket], None] | None = None
        self.url = f"http://127.0.0.1:{self.server_address[1]}/v1"


class ScriptedClock(threading.local):
    """The time of a client's thread: it stands still but for the pauses that the script tells."""

    def __init__(self) -> None:
        self.now = time.monotonic()

    def begin(self) -> float:
        """The time at which a request is sent, by the machine's clock."""
        self.now = time.monotonic()
        return self.now

    def read(self) -> float:
        """The time of the line that was read last."""
        return self.now

    def follow(self, lines: Iterator[bytes]) -> Iterator[bytes]:
        """The lines of an answer; the pauses that are told between them pass on this clock."""
        for line in lines:
            if line.startswith(PAUSE.encode()):
                self.now += float(line.removeprefix(PAUSE.encode()))
            yield line


@contextlib.contextmanager
def scripted_time() -> Iterator[None]:
    """Lets every client of this process see the times of the script."""
    clock = ScriptedClock()
    lines_as_sent = Server.lines

    def lines(server: Server, *arguments: Any) -> Iterator[bytes]:
        return clock.follow(lines_as_sent(server, *arguments))

    with (
        mock.patch.object(Server, "lines", lines),
        mock.patch("ocr_phases.engines.answers.time", SimpleNamespace(monotonic=clock.begin)),
        mock.patch("ocr_phases.engines.client.time", SimpleNamespace(monotonic=clock.read)),
    ):
        yield


@contextlib.contextmanager
def serving(events: list[Event], *, sleeps: bool = False) -> Iterator[ScriptedServer]:
    """A running server with this script, whose client has the script's clock unless it sleeps."""
    server = ScriptedServer(events, sleeps=sleeps)
    threading.Thread(target=server.serve_forever, args=(0.002,), daemon=True).start()
    with contextlib.ExitStack() as stack:
        stack.callback(server.server_close)
        stack.callback(server.shutdown)
        if not sleeps:
            stack.enter_context(scripted_time())
        yield server


def chunk(text: str | None = None, **more: Any) -> dict[str, Any]:
    """An event with a delta; what is named ``choice_...`` is of the choice, the rest of the
    event.
    """
    delta = {}
    if text is not None:
        delta["content"] = text
    choice: dict[str, Any] = {"index": 0, "delta": delta}
    event: dict[str, Any] = {}
    for name, value in more.items():
        if name.startswith("choice_"):
            choice[name.removeprefix("choice_")] = value
        else:
            event[name] = value
    return {"choices": [choice]} | event


def delta_of(**entries: Any) -> dict[str, Any]:
    """An event whose delta has these entries and no text of its own."""
    return {"choices": [{"delta": entries}]}


def usage(completion: Any = None, prompt: Any = 705, **more: Any) -> dict[str, Any]:
    """An event with the server's counts of tokens."""
    counts = {"prompt_tokens": prompt, "completion_tokens": completion}
    return {"choices": [], "usage": counts | more}


def ended(reason: str = "stop") -> Event:
    """The event that says why an answer ended."""
    return at_once(chunk(choice_finish_reason=reason))


def at_once(event: Any) -> Event:
    """An event that comes with the one before it."""
    return 0.0, event


def timed(*events: Any) -> list[Event]:
    """Events that come as tokens do, one after the other."""
    return [(STEP, event) for event in events]


def words(count: int, each: int = 1, pause: float = STEP) -> list[Event]:
    """``count`` words in chunks of ``each``."""
    pieces = []
    for start in range(0, count, each):
        numbers = range(start, min(start + each, count))
        text = "".join(f"w{number} " for number in numbers)
        pieces.append((pause, chunk(text)))
    return pieces


def answer(pieces: list[Event], *after: Event) -> list[Event]:
    """A whole answer: the role, the pieces, what follows them, the end of the stream."""
    role = (0.02, chunk("", choice_finish_reason=None))
    return [role, *pieces, *after, at_once(DONE)]


def counted(pieces: list[Event], tokens: Any) -> list[Event]:
    """A whole answer whose last event is the server's count of its tokens."""
    return answer(pieces, ended(), at_once(usage(tokens)))


def ids(*numbers: int) -> dict[str, Any]:
    """The keyword of `chunk` for these token ids."""
    return {"choice_token_ids": list(numbers)}
