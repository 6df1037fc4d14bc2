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
        self.models = ["tiny/DeepSeek-OCR"]
        self.watched = False  # whether the worker's extension is loaded
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
        lines = [
            f'vllm:{name}_seconds_sum{{engine="0"}} {total}' for name, total in self.totals.items()
        ]
        lines += [
            f'vllm:{name}_seconds_count{{engine="0"}} {self.finished}' for name in self.totals
        ]
        return "\n".join(lines).encode()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else chunks arrive together
    fake: Fake

    def log_message(self, *_: Any) -> None:
        pass

    def say(self, value: Any, status: int = 200, **headers: str) -> None:
        """Answer with these bytes, or with JSON."""
        data = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        for name, text in {"Content-Length": str(len(data)), **headers}.items():
            self.send_header(name, text)
        self.end_headers()
        self.wfile.write(data)

    def refused(self) -> bool:
        """Whether the key is wrong; a careless server repeats it."""
        given = self.headers.get("Authorization")
        wrong = bool(self.fake.key) and given != f"Bearer {self.fake.key}"
        if wrong:
            self.say({"error": {"message": f"wrong key {given}"}}, 401)
        return wrong

    def do_GET(self) -> None:
        fake = self.fake
        answers = {
            "vllm": {"/version": {"version": "0.32.0"}, "/metrics": fake.metrics},
            "sglang": {"/get_server_info": {"version": "0.5.5"}},
            "sglang-2026": {"/server_info": {"version": "0.5.9"}},
            "llama.cpp": {"/props": {"build_info": "b6500-1a2b3c", "total_slots": 1}},
            "ollama": {"/api/version": {"version": "0.13.1"}},
        }.get(fake.dialect, {})
        if fake.shown is not None:
            answers = {path: answers[path] for path in answers if path in fake.shown}
        answers["/v1/models"] = {"data": [{"id": name} for name in fake.models]}
        if not self.refused():
            self.say(answers.get(self.path, NOT_FOUND), 200 if self.path in answers else 404)

    def do_POST(self) -> None:
        fake = self.fake
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/collective_rpc" and fake.watched:
            if body["method"] == "ocr_watch":
                model = {"class": "DeepseekOCRForCausalLM", "dtype": "float32"}
                return self.say({"results": [{"model": model}]})
            noted = fake.stages
            fake.stages = []
            return self.say({"results": [[time.monotonic(), noted]]})
        if self.path != "/v1/chat/completions":
            return self.say(NOT_FOUND, 404)
        if self.refused():
            return None
        fake.bodies.append(body)
        fake.headers.append(dict(self.headers))
        fault = fake.fault if len(fake.bodies) > fake.fault_from else ""
        if fault.isdigit():
            message = "no, said the server"
            if fake.key:  # it repeats the key, too
                message += f" {fake.key}"
            return self.say({"error": {"message": message}}, int(fault))
        if fault == "redirect":
            return self.say({"choices": []}, 307, Location=ELSEWHERE)
        if fault == "whole":
            return self.say({"choices": []}, 200)
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        with contextlib.suppress(OSError):
            self.stream(body, fault)
        return None

    def event(self, value: Any) -> None:
        """Send these bytes, or an event with JSON, as a chunk of HTTP's transfer encoding."""
        data = value if isinstance(value, bytes) else f"data: {json.dumps(value)}\n\n".encode()
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    def go_wrong(self, fault: str) -> None:
        """What happens once half of the tokens are sent."""
        if fault == "stall":
            time.sleep(5)
        if fault == "disconnect":
            self.connection.shutdown(socket.SHUT_RDWR)
        while fault == "huge":
            self.event(b"data: " + b"x" * 10**6)
        sent = {
            "malformed": b"data: {not json\n\n",
            "mistyped": {"choices": [{"token_ids": ["four"]}]},
        }
        sent["error"] = {"error": {"message": "out of memory", "code": 500}}
        if fault in sent:
            self.event(sent[fault])

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
        begun = time.monotonic()
        sends_ids = fake.dialect == "vllm"
        count = min(body.get("max_tokens", 99), len(fake.tokens))
        time.sleep(fake.vision)
        self.note_prefill(begun)
        choice: dict[str, Any] = {"index": 0, "delta": {"role": "assistant", "content": ""}}
        first_event: dict[str, Any] = {"choices": [choice]}
        if sends_ids:
            first_event["prompt_token_ids"] = fake.prompt
        self.event(first_event)
        self.event(b": ping\n\n")
        sent = time.monotonic()
        for start in range(0, count, fake.a_chunk):
            part = slice(start, min(start + fake.a_chunk, count))
            if start and start >= count // 2:
                self.go_wrong(fault)
            choice = {"delta": {"content": "".join(fake.tokens[part])}, "finish_reason": None}
            if sends_ids:
                choice["token_ids"] = IDS[part]
            if body.get("logprobs"):
                choice["logprobs"] = {
                    "content": [{"token": "x", "logprob": -0.5} for _ in IDS[part]]
                }
            self.event({"choices": [choice]})
            fake.stages.append(["language_model", time.monotonic(), 0.4, 1])
            time.sleep(fake.pause)
        last: dict[str, Any] = {"delta": {}, "finish_reason": "length"}
        if fake.dialect == "sglang":  # which sends all ids at the end
            last["token_ids"] = IDS[:count]
        self.event({"choices": [last]})
        times = (sent - begun, 0.001, (sent - begun) / 2, time.monotonic() - sent)
        for name, seconds in zip(fake.totals, times, strict=True):
            fake.totals[name] += seconds
        fake.finished += 1 + fake.others
        details = None if fake.cached is None else {"cached_tokens": fake.cached}
        usage = {
            "prompt_tokens": len(fake.prompt),
            "prompt_tokens_details": details,
            "completion_tokens": count,
        }
        end: dict[str, Any] = {"choices": [], "usage": usage}
        if fake.dialect == "llama.cpp":
            end["timings"] = {"prompt_ms": 1e3 * times[2], "predicted_ms": 1e3 * times[3]}
        self.event(end)
        self.event(b"data: [DONE]\n\n")
        self.wfile.write(b"0\r\n\r\n")


@contextlib.contextmanager
def served(dialect: str = "vllm") -> Iterator[Fake]:
    """A running fake."""
    fake = Fake(dialect)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Own", (Handler,), {"fake": fake}))
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        fake.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
        yield fake
    finally:
        server.shutdown()
        server.server_close()
