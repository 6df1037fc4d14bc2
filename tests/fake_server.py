"""A small OpenAI-compatible server for tests: as vLLM, as SGLang or as neither, and failing as
asked.
"""

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from scripted_server import PAUSE, scripted_time

#: The tokens of the answer, and their ids.
TOKENS = ["<|ref|>", "title", "<|/ref|>", "<|det|>", "[[1, 2, 3, 4]]", "<|/det|>", "\n", "Hello"]
IDS = [4, 15, 5, 6, 900, 7, 1232, 77]
#: The ids of a page's tokens and of the first token of a prompt.
IMAGE = 3
BOS = 0
#: The times of which vLLM's ``/metrics`` has the sums.
TIMES = (
    "time_to_first_token",
    "request_queue_time",
    "request_prefill_time",
    "request_decode_time",
)
NOT_FOUND = {"detail": "Not Found"}
ELSEWHERE = "http://elsewhere.example/v1/chat/completions"


class Fake:
    """What the server does; a test changes its attributes between requests."""

    def __init__(self, dialect: str = "vllm") -> None:
        self.dialect = dialect
        self.url = ""
        self.fault = ""  # what goes wrong
        self.fault_from = 0  # from which request on
        self.image_tokens = 273
        self.bos = True  # whether a prompt has a first token
        self.cached: int | None = None  # the tokens of a prompt that were in a cache
        self.a_chunk = 1  # how many tokens come together
        self.pause = 0.004  # seconds after each chunk
        self.vision = 0.02  # seconds before the first chunk
        self.others = 0  # requests that others ended meanwhile
        self.key: str | None = None
        self.version: str | None = "0.32.0"
        self.models = ["tiny/DeepSeek-OCR"]
        self.watched = False  # whether the worker's extension is loaded
        self.worker_ahead = 0.0  # seconds that the worker's clock is ahead of this host's
        self.worker_results: dict[str, Any] = {}  # what it answers instead, by its method
        self.shown: tuple[str, ...] | None = None  # the paths that a proxy lets through
        self.tokens = TOKENS
        #: What was asked, and with which headers.
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        #: The stages that the worker's extension noted since it was last asked.
        self.stages: list[list[Any]] = []
        self.totals = dict.fromkeys(TIMES, 0.0)
        self.finished = 0

    @property
    def prompt(self) -> list[int]:
        """The ids of a prompt."""
        ids = [IMAGE] * self.image_tokens + [50, 51]
        if self.bos:
            ids.insert(0, BOS)
        return ids

    @property
    def metrics(self) -> bytes:
        """What ``/metrics`` answers."""
        lines = []
        for name, total in self.totals.items():
            lines.append(f'vllm:{name}_seconds_sum{{engine="0"}} {total}')
            lines.append(f'vllm:{name}_seconds_count{{engine="0"}} {self.finished}')
        return "\n".join(lines).encode()

    @property
    def pages(self) -> dict[str, Any]:
        """What is answered to a GET, by its path: bytes or what becomes JSON."""
        pages: dict[str, dict[str, Any]] = {
            "vllm": {"/version": {"version": self.version}, "/metrics": self.metrics},
            "sglang": {"/get_server_info": {"version": "0.5.5"}},
            "sglang-2026": {"/server_info": {"version": "0.5.9"}},
            "llama.cpp": {"/props": {"build_info": "b6500-1a2b3c", "total_slots": 1}},
            "ollama": {"/api/version": {"version": "0.13.1"}},
        }
        of_dialect = pages.get(self.dialect, {})
        if self.shown is not None:
            of_dialect = {path: page for path, page in of_dialect.items() if path in self.shown}
        models = [{"id": name} for name in self.models]
        return {**of_dialect, "/v1/models": {"data": models}}

    def take_stages(self) -> list[Any]:
        """The time by the worker's clock, and the stages that were noted since the last call."""
        stages = []
        for name, begun, *rest in self.stages:
            stages.append([name, begun + self.worker_ahead, *rest])
        self.stages = []
        return [time.monotonic() + self.worker_ahead, stages]

    def add_times(self, ttft: float, queue: float, prefill: float, decode: float) -> None:
        """Count a finished request, with its seconds in the order of `TIMES`."""
        for name, seconds in zip(self.totals, (ttft, queue, prefill, decode), strict=True):
            self.totals[name] += seconds
        self.finished += 1 + self.others


class Handler(BaseHTTPRequestHandler):
    """Answers a request as the fake says."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else chunks arrive together
    fake: Fake
    last_sent: float  # when the last event of an answer was sent

    def log_message(self, *_: Any) -> None:
        """Nothing is logged."""

    def say(self, value: Any, status: int = 200, **headers: str) -> None:
        """Answer with these bytes, or with JSON."""
        data = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        for name, text in headers.items():
            self.send_header(name, text)
        self.end_headers()
        self.wfile.write(data)

    def refuses_key(self) -> bool:
        """Whether the key is wrong, which is answered then; a careless server repeats it."""
        key = self.headers.get("Authorization")
        if not self.fake.key or key == f"Bearer {self.fake.key}":
            return False
        self.say({"error": {"message": f"wrong key {key}"}}, 401)
        return True

    def do_GET(self) -> None:
        if self.refuses_key():
            return
        pages = self.fake.pages
        if self.path in pages:
            self.say(pages[self.path])
        else:
            self.say(NOT_FOUND, 404)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/collective_rpc" and self.fake.watched:
            self.call_worker(body["method"])
        elif self.path != "/v1/chat/completions":
            self.say(NOT_FOUND, 404)
        elif not self.refuses_key():
            self.read_page(body)

    def call_worker(self, method: str) -> None:
        """What the worker's extension answers."""
        if method in self.fake.worker_results:
            self.say({"results": self.fake.worker_results[method]})
        elif method == "ocr_watch":
            model = {"class": "DeepseekOCRForCausalLM", "dtype": "float32"}
            self.say({"results": [{"model": model}]})
        else:
            self.say({"results": [self.fake.take_stages()]})

    def read_page(self, body: dict[str, Any]) -> None:
        """Answer a chat completion, or go wrong at once where the fault is no stream's."""
        fake = self.fake
        fake.bodies.append(body)
        fake.headers.append(dict(self.headers))
        fault = fake.fault if len(fake.bodies) > fake.fault_from else ""
        if fault.isdigit():
            message = "no, said the server"
            if fake.key:  # it repeats the key, too
                message += f" {fake.key}"
            self.say({"error": {"message": message}}, int(fault))
        elif fault == "redirect":
            self.say({"choices": []}, 307, Location=ELSEWHERE)
        elif fault == "whole":
            self.say({"choices": []}, 200)
        else:
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            with contextlib.suppress(OSError):
                self.stream(body, fault)

    def event(self, value: Any) -> None:
        """Send these bytes, or an event with JSON, as a chunk of HTTP's transfer encoding.

        A comment tells how long before it the last event was sent, for a client whose clock is
        the script's (`scripted_server`).
        """
        if isinstance(value, bytes):
            data = value
        else:
            now = time.monotonic()
            pause = now - self.last_sent
            self.last_sent = now
            data = f"{PAUSE}{pause}\n\ndata: {json.dumps(value)}\n\n".encode()
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    def go_wrong(self, fault: str) -> None:
        """What happens once half of the tokens are sent."""
        if fault == "stall":
            time.sleep(5)
        elif fault == "disconnect":
            self.connection.shutdown(socket.SHUT_RDWR)
        elif fault == "huge":
            while True:
                self.event(b"data: " + b"x" * 10**6)
        elif fault == "malformed":
            self.event(b"data: {not json\n\n")
        elif fault == "mistyped":
            self.event({"choices": [{"token_ids": ["four"]}]})
        elif fault == "error":
            self.event({"error": {"message": "out of memory", "code": 500}})

    def note_prefill(self, begun: float) -> None:
        """Note a vision stage and a call of the text model in the time before the first token."""
        fake = self.fake
        vision_start = begun + fake.vision / 4
        vision_s = fake.vision / 2
        text_start = vision_start + vision_s / 2
        fake.stages.append(["sam", vision_start, vision_s * 400, 1024])
        fake.stages.append(["language_model", text_start, 1.0, len(fake.prompt)])

    def stream(self, body: dict[str, Any], fault: str) -> None:
        """The events of an answer."""
        fake = self.fake
        count = min(body.get("max_tokens", 99), len(fake.tokens))
        begun = time.monotonic()
        self.last_sent = begun
        time.sleep(fake.vision)
        self.note_prefill(begun)

        self.send_role()
        first_sent = time.monotonic()
        for start in range(0, count, fake.a_chunk):
            if start and start >= count // 2:
                self.go_wrong(fault)
            self.send_tokens(
                slice(start, min(start + fake.a_chunk, count)), bool(body.get("logprobs"))
            )
            fake.stages.append(["language_model", time.monotonic(), 0.4, 1])
            time.sleep(fake.pause)

        prefill_s = (first_sent - begun) / 2
        decode_s = time.monotonic() - first_sent
        self.send_end_of_tokens(count)
        fake.add_times(first_sent - begun, 0.001, prefill_s, decode_s)
        self.send_usage(count, prefill_s, decode_s)
        self.event(b"data: [DONE]\n\n")
        self.wfile.write(b"0\r\n\r\n")

    def send_role(self) -> None:
        """The first event, which has no token; vLLM tells the prompt's ids in it."""
        choice = {"index": 0, "delta": {"role": "assistant", "content": ""}}
        event: dict[str, Any] = {"choices": [choice]}
        if self.fake.dialect == "vllm":
            event["prompt_token_ids"] = self.fake.prompt
        self.event(event)
        self.event(b": ping\n\n")

    def send_tokens(self, part: slice, with_logprobs: bool) -> None:
        """An event with the text of some tokens; vLLM sends their ids, too."""
        choice: dict[str, Any] = {
            "delta": {"content": "".join(self.fake.tokens[part])},
            "finish_reason": None,
        }
        if self.fake.dialect == "vllm":
            choice["token_ids"] = IDS[part]
        if with_logprobs:
            content = [{"token": "x", "logprob": -0.5} for _ in IDS[part]]
            choice["logprobs"] = {"content": content}
        self.event({"choices": [choice]})

    def send_end_of_tokens(self, count: int) -> None:
        """The event that says why the answer ended; SGLang sends all ids in it."""
        choice: dict[str, Any] = {"delta": {}, "finish_reason": "length"}
        if self.fake.dialect == "sglang":
            choice["token_ids"] = IDS[:count]
        self.event({"choices": [choice]})

    def send_usage(self, count: int, prefill_s: float, decode_s: float) -> None:
        """The event with the counts of tokens; llama.cpp tells its times in it."""
        fake = self.fake
        details = None
        if fake.cached is not None:
            details = {"cached_tokens": fake.cached}
        usage = {
            "prompt_tokens": len(fake.prompt),
            "prompt_tokens_details": details,
            "completion_tokens": count,
        }
        event: dict[str, Any] = {"choices": [], "usage": usage}
        if fake.dialect == "llama.cpp":
            event["timings"] = {"prompt_ms": 1e3 * prefill_s, "predicted_ms": 1e3 * decode_s}
        self.event(event)


@contextlib.contextmanager
def served(dialect: str = "vllm", *, own_clock: bool = True) -> Iterator[Fake]:
    """A running fake.

    Without an ``own_clock`` the client sees an event at the time at which it was sent: a busy
    client that reads two at once does not take them for ones that came together.
    """
    fake = Fake(dialect)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Own", (Handler,), {"fake": fake}))
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    with contextlib.ExitStack() as stack:
        stack.callback(server.server_close)
        stack.callback(server.shutdown)
        if not own_clock:
            stack.enter_context(scripted_time())
        fake.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
        yield fake
