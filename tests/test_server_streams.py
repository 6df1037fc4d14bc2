"""What servers send and how they send it: what is counted, timed, cut, waited for, and never
lost.
"""

import gzip
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from http.client import HTTPSConnection
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from scripted_server import (
    DONE,
    STEP,
    Event,
    Handler,
    answer,
    at_once,
    chunk,
    counted,
    delta_of,
    ended,
    ids,
    serving,
    timed,
    usage,
    words,
)

import ocr_phases
from ocr_phases import OcrPhasesError, PhaseRun, compare
from ocr_phases.analyse.cards import key_metrics_text
from ocr_phases.analyse.sentences import headline, verdict
from ocr_phases.cli import main
from ocr_phases.engines.answers import ask
from ocr_phases.engines.client import Choice, Chunk, Deadline, ServerFailed, _TimedSocket
from ocr_phases.engines.metrics import read_metrics
from ocr_phases.record import SCHEMA
from ocr_phases.record.record import READABLE_SCHEMAS

ROOT = Path(ocr_phases.__file__).parents[1]
RECEIPT = ROOT / "data" / "pages" / "receipt.png"
#: A small page: what is on it is of no account to a server that has a script.
PAGE = Image.new("RGB", (60, 80), "white")
SETTINGS: dict[str, Any] = {"repeats": 2, "warmup": 0, "max_new_tokens": 64}


def measure(events: list[Event], page: Image.Image | Path = PAGE, **settings: Any) -> PhaseRun:
    """The record of a page that a server answers with these events."""
    with serving(events) as server:
        return ocr_phases.connect(server.url).run_inference(page, **SETTINGS | settings)


def check_result(run: PhaseRun, name: str) -> tuple[str, str]:
    """The verdict of a check and what it measured; a check that is not there passes."""
    checks = run.checks.set_index("name")
    if name not in checks.index:
        return "pass", ""
    return checks.loc[name, "verdict"], checks.loc[name, "measured"]


@dataclass(frozen=True)
class Answer:
    """The events of an answer, and how many tokens they are."""

    events: list[Event]
    tokens: int


def counted_answer(pieces: list[Event], tokens: int) -> Answer:
    """An answer whose server tells at its end how many tokens it has."""
    return Answer(counted(pieces, tokens), tokens)


def counted_in_every_chunk(each: int) -> list[Event]:
    """24 words in chunks of ``each``, of which every one tells how many tokens there are."""
    pieces = []
    for number, (pause, event) in enumerate(words(24, each), start=1):
        counts = {"prompt_tokens": 705, "completion_tokens": number * each}
        pieces.append((pause, event | {"usage": counts}))
    return pieces


def all_at_once(pieces: list[Event]) -> list[Event]:
    """What a proxy makes of it that holds a stream back: one write after all the pauses."""
    whole_pause = sum(pause for pause, _ in pieces)
    lines = [f"data: {json.dumps(event)}\n\n" for _, event in pieces]
    return [(whole_pause, "".join(lines))]


#: The characters of several tokens come with the token that completes them.
HELD_BACK = ["", "", "文", "", "字", "a", "", "", "b", "c"]
SPECULATED = [chunk("a", **ids(1)), chunk("bc", **ids(2, 3)), chunk("d", **ids(4))]
#: How tokens come together.
TOGETHER = {
    "three a chunk": counted_answer(words(24, 3), 24),
    "two a chunk": counted_answer(words(24, 2), 24),
    "usage with the end": Answer(
        answer(words(24, 3), at_once(chunk(choice_finish_reason="stop") | usage(24))), 24
    ),
    "held back": counted_answer(timed(*map(chunk, HELD_BACK)), 10),
    "usage in every chunk": Answer(answer(counted_in_every_chunk(3), ended()), 24),
    "empty deltas": counted_answer(words(6) + timed(chunk("")) * 6, 12),
    "speculative, without ids": counted_answer(words(4) + words(9, 3) + words(3), 16),
    "speculative, with ids": counted_answer(timed(*SPECULATED), 4),
    "ids at the end": Answer(
        answer(
            words(24, 4),
            at_once(chunk(choice_finish_reason="stop", **ids(*range(24)))),
            at_once(usage(24)),
        ),
        24,
    ),
    "a character a chunk": counted_answer(timed(*map(chunk, "a word, then more")), 4),
    "a proxy that holds all back": counted_answer(all_at_once(words(24)), 24),
    "one chunk": counted_answer(words(24, 24), 24),
}


@pytest.mark.parametrize("case", TOGETHER)
def test_tokens_that_come_together_are_counted_and_not_timed(case: str, tmp_path: Path) -> None:
    tokens = TOGETHER[case].tokens

    run = measure(TOGETHER[case].events)
    run = PhaseRun.load(run.save(tmp_path / "run.json"))

    assert run["tokens"] == tokens
    assert run["decode_steps"] == 0
    assert run["inter_token_ms"] is None
    assert run["tokens_per_s"] is None
    assert run["prefill_ms"] is None
    assert run["ntpot_ms"] == pytest.approx(run["page_ms"] / tokens)
    assert check_result(run, "token_times")[0] == "fail"
    assert check_result(run, "outlier_steps") == ("n/a", "the tokens have no times of their own")
    said = f"{verdict(run)} {key_metrics_text(run)} {run!r}"
    assert "only token" not in said
    assert "refill" not in said
    assert "Normalized time per output token" in said
    run._repr_mimebundle_()


def test_the_times_of_an_answer_are_those_of_the_machines_clock() -> None:
    pause_s = 0.05
    with serving(answer(words(4, pause=pause_s), ended()), sleeps=True) as server:
        run = ocr_phases.connect(server.url).run_inference(PAGE, **SETTINGS)
    assert run["page_ms"] >= 4 * 1e3 * pause_s


@pytest.mark.parametrize("case", ["a proxy that holds all back", "one chunk"])
def test_an_answer_that_came_at_once_is_not_cut_into_phases(case: str) -> None:
    run = measure(TOGETHER[case].events)

    assert set(run.spans["stage"]) == {"generate"}
    assert run["ttft_ms"] is None
    assert run["decode_ms"] is None
    assert headline(run).startswith("The server read this page in ")
    assert "generate()" not in run._repr_mimebundle_()["text/html"]


WITH_IDS = [chunk("a", **ids(number)) for number in range(12)]
LAST_WITHOUT_TEXT = [*WITH_IDS[:11], chunk("", **ids(99))]
REASONING = delta_of(reasoning="r ")
REASONING_TWICE = delta_of(reasoning="r ", reasoning_content="r ")
REASONING_CONTENT = delta_of(reasoning_content="r ")
CONTENT_PART = delta_of(content=[{"type": "text", "text": "w "}])
#: Answers whose tokens came one by one.
ONE_BY_ONE = {
    "usage": Answer(counted(words(12), 12), 12),
    "usage has the end token, too": Answer(counted(words(12), 13), 12),
    "usage lacks the first": Answer(counted(words(12), 11), 12),
    "a float": Answer(counted(words(12), 12.0), 12),
    "usage in every chunk": Answer(answer(counted_in_every_chunk(1), ended()), 24),
    "ids": Answer(answer(timed(*WITH_IDS), ended()), 12),
    "ids, and a last one without text": Answer(answer(timed(*LAST_WITHOUT_TEXT), ended()), 12),
    "reasoning first": counted_answer(timed(REASONING) * 6 + words(6), 12),
    "reasoning under both names": counted_answer(timed(REASONING_TWICE) * 12, 12),
    "reasoning_content": counted_answer(timed(REASONING_CONTENT) * 12, 12),
    "content in parts": counted_answer(timed(CONTENT_PART) * 12, 12),
}


@pytest.mark.parametrize("case", ONE_BY_ONE)
def test_tokens_that_come_one_by_one_are_timed(case: str) -> None:
    tokens = ONE_BY_ONE[case].tokens

    run = measure(ONE_BY_ONE[case].events)

    assert run["tokens"] == tokens
    assert run["decode_steps"] == tokens - 1
    assert run["inter_token_ms"] > 0
    assert run["tokens_per_s"] > 0
    assert check_result(run, "token_times")[0] in ("note", "pass")
    assert run["ttft_ms"] < 0.6 * run["page_ms"]
    assert set(run.spans.query("phase == 'prefill'")["stage"]) == {"first_token"}
    if "reasoning" in case:
        assert run.text.startswith("r r ")


@pytest.mark.parametrize("count", [None, 0, -1, "12", True, float(2**60)])
def test_without_a_count_and_ids_there_are_no_rates(count: Any) -> None:
    run = measure(counted(words(12), count))

    assert run["inter_token_ms"] is None
    assert run["tokens_per_s"] is None
    assert run["ntpot_ms"] is None
    assert check_result(run, "token_times")[0] == "note"
    assert "at least 12 pieces" in verdict(run)
    assert "at least 12 pieces" in repr(run)
    run._repr_mimebundle_()


def test_the_only_token_is_said_only_of_one() -> None:
    run = measure(counted(timed(chunk("a", **ids(7))), 1))

    assert run["tokens"] == 1
    assert run["decode_steps"] == 0
    assert "The answer has one token" in verdict(run)


def test_what_is_no_text_is_named() -> None:
    call = delta_of(tool_calls=[{"function": {"arguments": "{}"}}])

    run = measure(counted(timed(call) + words(6), 6))

    result, measured = check_result(run, "token_times")
    assert result == "fail"
    assert "tool_calls" in measured


#: A server that is as fast as one which sends a token a chunk, but sends other chunks.
RECHUNKED = {
    "three a chunk": counted(words(60, 3, 3 * STEP), 60),
    "ten a chunk": counted(words(60, 10, 10 * STEP), 60),
    "held back": counted(words(60, 60, 60 * STEP), 60),
    "without a count": answer(words(60, 3, 3 * STEP), ended()),
}


@pytest.fixture(scope="module")
def one_a_chunk() -> PhaseRun:
    """The record of a server that sends 60 tokens one by one."""
    return measure(counted(words(60), 60), repeats=3)


@pytest.mark.parametrize("case", RECHUNKED)
@pytest.mark.usefixtures("no_comparison_page")
def test_a_gate_does_not_fire_on_chunking(case: str, one_a_chunk: PhaseRun, tmp_path: Path) -> None:
    rechunked = measure(RECHUNKED[case], repeats=3)

    table = compare(one_a_chunk, rechunked).table
    judged = table[table["verdict"].ne("") & table["stage"].eq("") & table["unit"].eq("ms")]
    figure = "page_ms" if case == "without a count" else "ntpot_ms"
    assert judged["metric"].tolist() == [figure]
    assert 0.5 < judged["ratio"].iloc[0] < 2

    baseline = str(one_a_chunk.save(tmp_path / "one.json"))
    other = str(rechunked.save(tmp_path / "other.json"))
    out = str(tmp_path / "compared")
    assert main(["compare", baseline, other, "--fail-above", "100", "--out", out]) != 1


def test_two_servers_are_compared_by_the_wait_for_the_first_token() -> None:
    events = counted(words(12), 12)
    first = measure(events, repeats=3)
    second = measure(events, repeats=3)

    comparison = compare(first, second)

    table = comparison.table
    judged = table[table["verdict"].ne("") & table["unit"].eq("ms")]
    assert set(judged["metric"]) == {"ttft_ms", "inter_token_ms"}
    assert "the wait for the first token" in comparison.verdict


def test_a_server_and_a_loaded_model_are_compared_by_the_wait_for_the_first_token() -> None:
    native = PhaseRun.load(ROOT / "data" / "runs" / "tiny-receipt.json.gz")
    of_server = measure(counted(words(12), 12), RECEIPT, repeats=3)

    judged = compare(native, of_server).table.query("verdict != ''")

    assert "ttft_ms" in set(judged["metric"])


def test_nothing_calls_the_wait_a_prefill(tmp_path: Path) -> None:
    run = measure(counted(words(12), 12))
    html = run._repr_mimebundle_()["text/html"]
    run.report(tmp_path / "report")

    assert run["prefill_ms"] is None
    assert "first token" in html
    for text in (html, verdict(run), key_metrics_text(run), repr(run)):
        assert "the prefill" not in text.lower()
    assert run.token_table["source"].iloc[0] == "first_token"
    for draw in (run.plot.timeline, run.plot.vision, run.plot.latency, run.plot.memory):
        draw()


@pytest.mark.parametrize(
    "path", sorted((ROOT / "data" / "runs").rglob("*.json*")), ids=lambda path: path.name
)
def test_every_shipped_record_opens(path: Path) -> None:
    data = path.read_bytes()
    content = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)
    if not isinstance(content, dict) or "spans" not in content:
        pytest.skip("a benchmark's table, no record")
    run = PhaseRun.load(path)
    assert content["schema"] in READABLE_SCHEMAS
    assert run.schema == SCHEMA
    assert run.summary()["page_ms"] > 0
    assert verdict(run)


@dataclass(frozen=True)
class OlderServerRecord:
    """What a record of schema 2 tells of a server, and what its ``prefill`` is then.

    ``times`` are the server's own for each repeat, ``stages`` those of the prefill that it timed.
    """

    times: list[dict[str, float]] | None
    stage: str
    stages: Sequence[str] = ()


OLDER_RECORDS = {
    "without-times": OlderServerRecord([{}, {}], "first_token"),
    "no-entry-of-times": OlderServerRecord(None, "first_token"),
    "times-of-one-repeat": OlderServerRecord([{"prefill_ms": 1.0}, {}], "first_token"),
    "times-of-both": OlderServerRecord([{"prefill_ms": 1.0}, {"prefill_ms": 1.0}], "prefill"),
    "with-a-stage": OlderServerRecord([{}, {}], "prefill", ["sam"]),
}


def of_schema_2(run: PhaseRun, older: OlderServerRecord) -> dict[str, Any]:
    """The record of a server's answer as versions before 0.3 wrote it."""
    content = json.loads(run.to_json())
    content["schema"] = 2
    content["model"]["server"]["times"] = older.times
    spans = content["spans"]
    spans["stage"] = ["prefill" if stage == "first_token" else stage for stage in spans["stage"]]
    for stage in older.stages:
        span = {"phase": "prefill", "stage": stage, "view": "", "step": None}
        for name, column in spans.items():
            column.append(span.get(name, 0))
    return content


@pytest.mark.parametrize("case", OLDER_RECORDS)
def test_a_servers_record_of_schema_2_is_read(case: str) -> None:
    older = OLDER_RECORDS[case]
    run = measure(counted(words(12), 12))

    again = PhaseRun.from_dict(of_schema_2(run, older))

    assert again.schema == SCHEMA
    assert older.stage in set(again.spans["stage"])
    if older.stage == "first_token":
        assert again["prefill_ms"] is None
    else:
        assert again["prefill_ms"] is not None
    assert again["ttft_ms"] == pytest.approx(run["ttft_ms"])


def logprobs_of(*tokens: str) -> dict[str, Any]:
    """The keyword of `chunk` for the log probabilities of these tokens."""
    content = [{"token": token, "logprob": -0.5} for token in tokens]
    return {"choice_logprobs": {"content": content}}


@dataclass(frozen=True)
class Endless:
    """What a server sends that goes on after the limit of 8 tokens, how many of them are taken, and
    their text, where it is known.
    """

    pieces: list[Event]
    tokens: int = 8
    text: str | None = None


NUMBERS = [(0.0005, chunk(f"{number} ", **ids(number))) for number in range(500)]
ABC = chunk("abc", **logprobs_of("a", "b", "c"))
ABC_WITH_IDS = chunk("abc", **ids(1, 2, 3), **logprobs_of("a", "b", "c"))
BEYOND_THE_LIMIT = {
    "pieces": Endless(words(500, pause=0.0005), text="w0 w1 w2 w3 w4 w5 w6 w7 "),
    "ids": Endless(NUMBERS, text="0 1 2 3 4 5 6 7 "),
    "one chunk of ids": Endless(timed(chunk("x" * 1000, **ids(*range(1000))))),
    "inside a chunk": Endless(timed(ABC_WITH_IDS) * 9, text="abcabcab"),
    "inside a chunk without ids": Endless(timed(ABC) * 9, tokens=3, text="abcabcab"),
    "usage in every chunk": Endless(counted_in_every_chunk(3)),
}


@pytest.mark.parametrize("case", BEYOND_THE_LIMIT)
def test_no_more_tokens_are_taken_than_were_asked_for(case: str) -> None:
    endless = BEYOND_THE_LIMIT[case]
    late = (30.0, chunk("late"))
    settings = SETTINGS | {"max_new_tokens": 8, "repeats": 1}

    with serving(answer([*endless.pieces, late]), sleeps=True) as server:
        session = ocr_phases.connect(server.url)
        began = time.monotonic()
        run = session.run_inference(PAGE, **settings)
        waited_s = time.monotonic() - began

    assert waited_s < 20  # for the late one it would have been 30
    assert run["tokens"] == endless.tokens
    assert run.result.finish_reason == "length"
    if endless.text is not None:
        assert run.text == endless.text
    assert len(run.result.ids) <= 8
    assert check_result(run, "token_limit")[0] == "fail"
    assert "It stopped at the limit of 8 tokens" in verdict(run)


@pytest.mark.parametrize(
    ("reason", "finish_reason"),
    [("stop", "eos"), ("length", "length"), (None, "unknown"), ("abort", "abort")],
)
def test_an_answer_ended_as_the_server_says(reason: str | None, finish_reason: str) -> None:
    end = [] if reason is None else [ended(reason)]

    run = measure(answer(words(12), *end, at_once(usage(12))))

    assert run.result.finish_reason == finish_reason
    assert ("stopped at the limit" in verdict(run)) == (reason == "length")
    assert "token_limit" not in run.checks.set_index("name").index


def test_a_long_reason_to_end_is_cut() -> None:
    run = measure(answer(words(12), ended("x" * 100_000), at_once(usage(12))))

    assert len(run.result.finish_reason or "") < 200
    assert "stopped at the limit" not in verdict(run)
    assert "token_limit" not in run.checks.set_index("name").index


WORDS = words(12)


def after_odd_event(event: Any) -> list[Event]:
    """An answer of 12 tokens that begins with this event."""
    return counted([at_once(event), *WORDS], 12)


def with_counts(counts: dict[str, Any]) -> list[Event]:
    """An answer of 12 tokens whose last event is this one."""
    return answer(WORDS, ended(), at_once(counts))


def with_last_choice(choice: dict[str, Any]) -> list[Event]:
    """An answer of 12 tokens whose end is this choice."""
    return answer(WORDS, at_once({"choices": [choice]}), at_once(usage(12)))


def of_several_choices(indices: Sequence[int]) -> list[Event]:
    """An answer of 12 tokens to each of several choices, of which one was asked for."""
    events = []
    for pause, event in words(12):
        (choice,) = event["choices"]
        for index in indices:
            events.append((pause, {"choices": [choice | {"index": index}]}))
    end = {"choices": [{"index": index, "finish_reason": "stop"} for index in indices]}
    return [*events, at_once(end), at_once(DONE)]


LOGPROB_NULL = {"content": [{"token": "w ", "logprob": None}]}
#: What is odd in a stream, and harmless: the events of an answer of 12 tokens.
ODD = {
    "usage null": after_odd_event(chunk("", usage=None)),
    "prompt_tokens null": with_counts(usage(12, None)),
    "prompt_tokens missing": with_counts({"usage": {"completion_tokens": 12}}),
    "details null": with_counts(usage(12, prompt_tokens_details=None)),
    "details of another kind": with_counts(usage(12, prompt_tokens_details=[3])),
    "choices null": after_odd_event({"choices": None}),
    "choices missing": after_odd_event({"id": "x"}),
    "delta null": with_last_choice({"delta": None, "finish_reason": "stop"}),
    "delta missing": with_last_choice({"finish_reason": "stop"}),
    "content null": after_odd_event(delta_of(content=None)),
    "no DONE": [*WORDS, ended(), at_once(usage(12))],
    "no DONE and no usage": [*WORDS, ended()],
    "error null": after_odd_event(chunk("", error=None)),
    "null": after_odd_event("data: null\n\n"),
    "empty data": after_odd_event("data:\n\n"),
    "logprobs null": after_odd_event(chunk("", choice_logprobs=None)),
    "logprobs of another kind": after_odd_event(chunk("", choice_logprobs={"tokens": ["a"]})),
    "logprob null": answer(timed(chunk("w ", choice_logprobs=LOGPROB_NULL)) * 12, ended()),
    "rubbish behind the end": [
        *WORDS,
        ended(),
        at_once(usage(12)),
        at_once("data: {rubbish\n\n"),
    ],
    "logprob that no float holds": answer(
        timed(chunk("w ", choice_logprobs={"content": [{"logprob": -(10**400)}]})) * 12, ended()
    ),
    "usage of another kind": with_counts({"usage": [12]}),
    "a count that no float holds": with_counts(usage(10**400)),
    "several choices, one after the other": of_several_choices([0, 1]),
    "several choices, the second first": of_several_choices([1, 0]),
    "a reason to end that is empty": answer(
        timed(chunk("w ", choice_finish_reason="")) * 12, ended()
    ),
    "a reason to end in every chunk": answer(
        timed(chunk("w ", choice_finish_reason="stop")) * 12, ended()
    ),
    "comments and events": counted(
        [at_once("event: message\n"), at_once(": ping\n\n"), *WORDS], 12
    ),
}


@pytest.mark.parametrize("case", ODD)
def test_a_harmless_oddity_loses_nothing(case: str, tmp_path: Path) -> None:
    run = measure(ODD[case])

    assert len(run.result.ids) == 12
    assert run.result.finish_reason == "eos"
    assert run.repeats == [0, 1]
    PhaseRun.load(run.save(tmp_path / "run.json"))._repr_mimebundle_()


def test_a_byte_order_mark_costs_no_token() -> None:
    def send(connection: socket.socket) -> None:
        connection.sendall(HEAD + b"\r\n\xef\xbb\xbf" + FIRST + FIRST + b"data: [DONE]\n\n")

    with serving([]) as server:
        server.send_raw = send
        run = ocr_phases.connect(server.url).run_inference(PAGE, **SETTINGS)

    assert run.text == "a a "


def test_what_repeats_the_text_of_a_delta_is_not_left_out() -> None:
    details = [{"type": "reasoning.text", "text": "r "}]
    twice = delta_of(reasoning="r ", reasoning_details=details)
    of_proxy = delta_of(content="w ", provider_specific_fields={"a": 1})

    run = measure(counted(timed(twice) * 6 + timed(of_proxy) * 6, 12))

    assert run["tokens"] == 12
    assert check_result(run, "token_times")[0] == "note"


def test_an_answer_without_text_says_what_came_instead() -> None:
    call = delta_of(tool_calls=[{"function": {"arguments": "{}"}}])

    with pytest.raises(ServerFailed, match="without a token, with tool_calls instead"):
        measure(counted(timed(call), 6))


@dataclass
class SlowChunks:
    """A server whose chunks come so many seconds after one another by a clock of its own."""

    pause: float
    count: int
    now: float = 0.0
    answer_timeout: float = 3600.0
    first_token_timeout: float = 300.0
    url: str = "http://slow.example/v1"

    def monotonic(self) -> float:
        """The clock's time."""
        return self.now

    def stream(self, body: Any, deadline: Deadline) -> Iterator[tuple[float, Chunk]]:
        """Chunks of which each has a reason to end."""
        del body
        for _ in range(self.count):
            self.now += self.pause
            if deadline.remaining <= 0:
                raise ServerFailed(deadline.missed)
            yield self.now, Chunk([Choice(delta={"content": "w "}, finish_reason="stop")])


def test_tokens_that_follow_a_reason_to_end_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    server: Any = SlowChunks(pause=6.0, count=10)
    monkeypatch.setattr("ocr_phases.engines.client.time", server)
    monkeypatch.setattr("ocr_phases.engines.answers.time", server)

    assert ask(server, {}).text == "w " * 10


@dataclass(frozen=True)
class NoStream:
    """An answer with status 200 that is no stream, and what is said of it."""

    body: str
    sentence: str
    headers: str = ""


NO_STREAMS = {
    "a page of a portal": NoStream(
        "<!DOCTYPE html>\n<p>Log in", "does not stream: its answer begins with '<!DOCTYPE html>"
    ),
    "an error": NoStream('{"error": {"message": "no such model"}}', "gave up (no such model)."),
    "an error on several lines": NoStream(
        '{\n "detail": "no such model"\n}', "gave up (no such model)."
    ),
    "a list of errors": NoStream('[{"error": {"message": "too busy"}}]', "gave up (too busy)."),
    "a whole answer": NoStream('{"choices": []}', "does not stream: it answered all at once."),
    "nothing": NoStream("", "ended the connection in the middle of an answer."),
    "compressed": NoStream(
        "", "compresses its answers (gzip), which holds tokens", "Content-Encoding: gzip\r\n"
    ),
}


@pytest.mark.parametrize("case", NO_STREAMS)
def test_an_answer_that_is_no_stream_is_told(case: str) -> None:
    no_stream = NO_STREAMS[case]

    def send(connection: socket.socket) -> None:
        headers = f"HTTP/1.1 200 OK\r\n{no_stream.headers}\r\n"
        connection.sendall((headers + no_stream.body).encode())

    with serving([]) as server:
        server.send_raw = send
        with pytest.raises(ServerFailed) as caught:
            ocr_phases.connect(server.url).run_inference(PAGE, **SETTINGS)

    assert no_stream.sentence in str(caught.value)


#: Errors in the middle of an answer, of servers that do not tell them as OpenAI does.
OTHER_ERRORS = {
    "older vLLM": {"object": "error", "message": "boom", "type": "BadRequestError", "code": 400},
    "a message alone": {"message": "boom", "code": 500},
    "a detail alone": {"detail": "boom"},
    "an event": 'event: error\ndata: {"message": "boom"}\n\n',
    "an event with text": "event: error\ndata: boom\n\n",
}


@pytest.mark.parametrize("case", OTHER_ERRORS)
def test_an_error_in_other_words_is_no_short_answer(case: str) -> None:
    events = [*words(3), at_once(OTHER_ERRORS[case]), at_once(DONE)]

    with pytest.raises(ServerFailed, match=r"gave up \(boom\)"):
        measure(events)


def test_an_event_of_another_name_does_not_make_the_next_one_an_error() -> None:
    events = [at_once("event: error\n\n"), *words(12), ended(), at_once(DONE)]

    assert len(measure(events).result.ids) == 12


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        pytest.param("CUDA out of memory", "gave up (CUDA out of memory).", id="text"),
        pytest.param({"message": "boom"}, "gave up (boom).", id="message"),
        pytest.param({"error": {"message": "deep"}}, "gave up (deep).", id="deep"),
        pytest.param([{"msg": "a field"}], "gave up (a field).", id="list"),
        pytest.param({"type": "overloaded"}, "gave up (overloaded).", id="type"),
        pytest.param(True, "gave up without a reason.", id="no-reason"),
        pytest.param("x" * 100_000, "gave up (xxx", id="long"),
    ],
)
def test_an_error_is_told(error: Any, sentence: str) -> None:
    with pytest.raises(ServerFailed) as caught:
        measure(answer([*words(3), at_once({"error": error})]))

    assert sentence in str(caught.value)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    ("choice", "sentence"),
    [
        pytest.param({"finish_reason": "error"}, "gave up without a reason.", id="finish-reason"),
        pytest.param(
            {"finish_reason": "error", "error": {"message": "boom"}},
            "gave up (boom).",
            id="message",
        ),
        pytest.param(
            {"finish_reason": None, "error": {"code": 502}},
            "gave up without a reason.",
            id="code",
        ),
    ],
)
def test_an_error_of_a_choice_is_no_answer(choice: dict[str, Any], sentence: str) -> None:
    error = {"choices": [{"index": 0, "delta": {}, **choice}]}

    with pytest.raises(ServerFailed) as caught:
        measure(answer([*words(3), at_once(error)]))

    assert str(caught.value).endswith(sentence)


#: What vLLM counts.
TIMES_OF_VLLM = (
    "request_queue_time",
    "request_prefill_time",
    "request_decode_time",
    "time_to_first_token",
)


@pytest.mark.parametrize(
    "value", ["e", "--", "1-2", "1e999", "nan", "inf", "-1", "", "1e400", "0x10", "١"]
)
def test_metrics_of_any_content_end_no_measurement(value: str, tmp_path: Path) -> None:
    lines = ""
    for name in TIMES_OF_VLLM:
        lines += f"vllm:{name}_seconds_sum{{}} {value}\n"
        lines += f"vllm:{name}_seconds_count{{}} {value}\n"

    with serving(counted(words(6), 6)) as server:
        server.answers["/metrics"] = lines.encode() + b"\xff\n{} e\n"
        run = ocr_phases.connect(server.url).run_inference(PAGE, **SETTINGS | {"repeats": 1})

    PhaseRun.load(run.save(tmp_path / "run.json"))
    assert run["prefill_ms"] is None


def test_metrics_are_sums_over_engines() -> None:
    lines = [
        "# HELP x",
        'vllm:request_queue_time_seconds_sum{engine="0"} 1.5',
        'vllm:request_queue_time_seconds_sum{engine="1"} 2e0',
        "vllm:other_seconds_sum{} e",
        "x y",
    ]
    assert read_metrics("\n".join(lines)) == {("request_queue_time", "sum"): 3.5}


# -- what is waited for ----------------------------------------------------------------------------


def drip(begin: bytes, part: bytes) -> Callable[[socket.socket], None]:
    """Sends ``begin``, then a part now and then, for as long as the client listens."""

    def send(connection: socket.socket) -> None:
        connection.sendall(begin)
        for _ in range(8_000):
            connection.sendall(part)
            time.sleep(0.005)

    return send


HEAD = b"HTTP/1.1 200 OK\r\n"
STREAM = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
FIRST = b'data: {"choices":[{"delta":{"content":"a "}}]}\n\n'


def framed(data: bytes) -> bytes:
    """A chunk of HTTP's transfer encoding."""
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


WITH_FIRST = STREAM + framed(FIRST)
NO_FIRST_TOKEN = "sent no token"
NO_END = "did not end its answer"


@dataclass(frozen=True)
class Delay:
    """A way to hold a client with a byte now and then, and what is said of it.

    Where the first token has come, the time of the answer counts.
    """

    begin: bytes
    part: bytes
    sentence: str = NO_FIRST_TOKEN


DELAYS = {
    "nothing": Delay(b"", b""),
    "status line": Delay(b"HTTP/1.1 ", b"2"),
    "headers": Delay(HEAD, b"X-A: b\r\n"),
    "one header": Delay(HEAD + b"X-A: ", b"a"),
    "100 Continue": Delay(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "comments": Delay(STREAM, b"8\r\n: ping\n\n\r\n"),
    "blank lines": Delay(STREAM, b"1\r\n\n\r\n"),
    "no line end": Delay(STREAM, b"1\r\nx\r\n"),
    "roles": Delay(STREAM, framed(b'data: {"choices":[{"delta":{}}]}\n\n')),
    "comments after the first token": Delay(WITH_FIRST, b"8\r\n: ping\n\n\r\n", NO_END),
    "trailers": Delay(WITH_FIRST + b"0\r\n", b"X-A: b\r\n", NO_END),
    "no end": Delay(HEAD + b"\r\n" + FIRST, b"\n", NO_END),
}


@pytest.mark.parametrize("case", DELAYS)
def test_no_server_holds_a_client_for_ever(case: str) -> None:
    delay = DELAYS[case]
    # A busy machine has longer for a first token than a token that never comes is waited for.
    limits = {"answer_timeout": 0.5}
    if delay.sentence == NO_FIRST_TOKEN:
        limits["first_token_timeout"] = 0.06

    with serving([], sleeps=True) as server:
        server.send_raw = drip(delay.begin, delay.part)
        session = ocr_phases.connect(server.url, **limits)
        with pytest.raises(ServerFailed, match=delay.sentence):
            session.run_inference(PAGE, **SETTINGS)


NAME_UNKNOWN = socket.gaierror(socket.EAI_NONAME, "Name or service not known")


def test_a_name_that_is_not_found_holds_no_client_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    is_over = threading.Event()

    def find_slowly(*_: Any, **__: Any) -> Any:
        is_over.wait(20.0)
        raise NAME_UNKNOWN

    monkeypatch.setattr(socket, "getaddrinfo", find_slowly)
    began = time.monotonic()
    with pytest.raises(ServerFailed, match=r"sent nothing for 0\.2 s"):
        ocr_phases.connect("http://slow.example:8000/v1", patience=0.2)
    is_over.set()
    assert time.monotonic() - began < 10.0


def test_a_name_that_does_not_exist_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def find_nothing(*_: Any, **__: Any) -> Any:
        raise NAME_UNKNOWN

    monkeypatch.setattr(socket, "getaddrinfo", find_nothing)
    with pytest.raises(ServerFailed, match="cannot be reached .Name or service not known."):
        ocr_phases.connect("http://no-such-host.example:8000/v1")


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        # The system would take the port 34463.
        ("http://127.0.0.1:99999/v1", "There is no port 99999"),
        ("http://127.0.0.1:PORT/v1/ü", "characters that no address has"),
        ("http://a..b:PORT/v1", "characters that no address has"),
        ("http://127.0.0.1:PORT/v1/\x01", "characters that no address has"),
    ],
)
def test_an_address_that_cannot_be_is_told(address: str, sentence: str) -> None:
    with serving([]) as server:
        port = server.server_address[1]
        with pytest.raises(OcrPhasesError, match=sentence):
            ocr_phases.connect(address.replace("PORT", str(port)))


def certificate_error() -> ssl.SSLCertVerificationError:
    """The error of a certificate that nobody signed."""
    error = ssl.SSLCertVerificationError(1, "certificate verify failed")
    error.verify_message = "self-signed certificate"
    return error


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (certificate_error(), "not trusted .self-signed certificate.: name .* SSL_CERT_FILE"),
        (ssl.SSLError(1, "wrong version number"), "does not speak TLS .*http instead of https"),
        (ssl.SSLEOFError(8, "EOF occurred"), "ended the connection"),
    ],
)
def test_a_fault_of_tls_is_told(
    error: ssl.SSLError, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: HTTPSConnection) -> None:
        raise error

    monkeypatch.setattr(HTTPSConnection, "connect", fail)
    with pytest.raises(ServerFailed, match=sentence):
        ocr_phases.connect("https://127.0.0.1:9/v1")


@pytest.mark.parametrize("error", [BrokenPipeError, ConnectionResetError, ssl.SSLEOFError])
def test_a_page_that_is_too_large_is_told_by_a_server_that_did_not_read_it(
    error: type[OSError], monkeypatch: pytest.MonkeyPatch
) -> None:
    send_all = _TimedSocket.sendall

    def send_and_fail(self: _TimedSocket, data: Any) -> None:
        send_all(self, data)
        if data.startswith(b'{"'):  # the body of a page
            raise error

    def answer_too_large(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 413 Too Large\r\n\r\n")

    with serving([]) as server:
        session = ocr_phases.connect(server.url)
        monkeypatch.setattr(_TimedSocket, "sendall", send_and_fail)
        server.send_raw = answer_too_large
        with pytest.raises(ServerFailed, match="no request as large as this page .413."):
            session.run_inference(PAGE, **SETTINGS)


def test_an_address_below_which_no_models_are_is_told() -> None:
    def no_such_path(self: Handler) -> None:
        self.send_error(404)

    with serving([]) as server:
        server.RequestHandlerClass = type("Other", (Handler,), {"do_GET": no_such_path})
        with pytest.raises(ServerFailed, match="give the address that stands before /models"):
            ocr_phases.connect(f"{server.url}/chat/completions")


@pytest.mark.parametrize("model", ["Qwen/Qwen2.5-VL-7B-Instruct", "deepseek-ocr"])
@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        pytest.param([], None, id="no-count"),
        pytest.param([at_once(usage(12))], 705, id="a-count"),
    ],
)
def test_the_length_of_a_prompt_is_what_the_server_tells(
    model: str, counts: list[Event], expected: int | None, tmp_path: Path
) -> None:
    with serving(answer(words(12), ended(), *counts)) as server:
        server.models = [model]
        run = ocr_phases.connect(server.url).run_inference(PAGE, **SETTINGS)

    again = PhaseRun.load(run.save(tmp_path / "run.json"))
    assert again.request.prefill_len == expected
    assert again["prefill_len"] == expected
    if expected is None:
        assert again.page.text_tokens is None


def test_a_slow_reason_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ocr_phases.engines.client.QUICK_SECONDS", 0.1)
    with serving([], sleeps=True) as server:
        server.send_raw = drip(b'HTTP/1.1 500 No\r\n\r\n{"message": "out of', b" m")
        session = ocr_phases.connect(server.url)
        with pytest.raises(ServerFailed, match="failed /v1/chat/completions"):
            session.run_inference(PAGE, **SETTINGS)


def test_a_long_reason_is_read_to_its_first_part() -> None:
    body = b'{"message":"' + b"a" * 5_000_000

    def send(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 500 No\r\n\r\n" + body)

    with serving([], sleeps=True) as server:
        server.send_raw = send
        with pytest.raises(ServerFailed, match=r"500") as caught:
            ocr_phases.connect(server.url).run_inference(PAGE, **SETTINGS)

    assert len(str(caught.value)) < 500


def test_silent_metrics_are_waited_for_a_little(monkeypatch: pytest.MonkeyPatch) -> None:
    def short_deadline(path: str, seconds: float = 0) -> Deadline:
        return Deadline(0.2, f"did not answer {path}")

    monkeypatch.setattr("ocr_phases.engines.client._quick", short_deadline)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        _, port = silent.getsockname()
        with pytest.raises(ServerFailed, match=r"did not answer /v1/models"):
            ocr_phases.connect(f"http://127.0.0.1:{port}/v1")


def test_a_long_list_of_models_is_cut_where_it_is_shown() -> None:
    with serving([], sleeps=True) as server:
        server.models = [f"model-{number}-{'x' * 500}" for number in range(2_000)]
        with pytest.raises(OcrPhasesError, match=r"and 1,995 more: name one of these") as caught:
            ocr_phases.connect(server.url)

    assert len(str(caught.value)) < 1_000


def test_a_server_without_a_model_is_refused() -> None:
    with serving([], sleeps=True) as server:
        server.models = []
        with pytest.raises(OcrPhasesError, match="serves no model"):
            ocr_phases.connect(server.url)


@pytest.mark.parametrize("name", ["patience", "first_token_timeout", "answer_timeout"])
@pytest.mark.parametrize("seconds", [0, -1.0, float("inf"), float("nan"), 1e30])
def test_a_wait_is_a_number_of_seconds(name: str, seconds: float) -> None:
    with pytest.raises(OcrPhasesError, match=name):
        ocr_phases.connect("http://127.0.0.1:9/v1", **{name: seconds})


def test_the_command_line_takes_both_limits(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with serving([], sleeps=True) as server:
        server.send_raw = drip(STREAM, b"8\r\n: ping\n\n\r\n")
        command = ["profile", str(RECEIPT), "--server", server.url]
        command += ["--first-token-timeout", "0.1", "--answer-timeout", "1"]
        code = main([*command, "--save", str(tmp_path / "run.json")])

    assert code == 2
    assert "sent no token within 0.1 s" in capsys.readouterr().err


def test_a_loaded_model_has_no_limit_of_an_answer() -> None:
    assert main(["profile", str(RECEIPT), "--model", "tiny", "--answer-timeout", "1"]) == 2


# -- a load test -----------------------------------------------------------------------------------


@pytest.mark.parametrize("case", TOGETHER)
def test_a_load_counts_tokens_by_usage(case: str) -> None:
    tokens = TOGETHER[case].tokens
    with serving(TOGETHER[case].events) as server:
        session = ocr_phases.connect(server.url)
        result = session.load_test(PAGE, (1,), requests=2, max_new_tokens=64)

    level = result.table.iloc[0]
    came_at_once = case in ("a proxy that holds all back", "one chunk")
    assert result.asked["tokens"].tolist() == [tokens, tokens]
    assert result.table["inter_token_p50_ms"].isna().all()
    assert level["ntpot_p50_ms"] > 0
    assert level["tokens_per_s"] > 0
    assert result.table["ttft_p50_ms"].isna().all() == came_at_once
    result._repr_mimebundle_()


def test_a_load_without_counts_has_no_rate() -> None:
    with serving(answer(words(12), ended())) as server:
        session = ocr_phases.connect(server.url)
        result = session.load_test(PAGE, (1, 2), requests=2, max_new_tokens=64)

    columns = ["tokens_per_s", "inter_token_p50_ms", "ntpot_p50_ms"]
    assert result.table[columns].isna().all(axis=None)
    assert (result.table["pages_per_min"] > 0).all()
    result._repr_mimebundle_()
