"""What servers send and how they send it: what is counted, timed, cut, waited for, and never
lost.
"""

import gzip
import json
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from scripted_server import (
    STEP,
    Event,
    answer,
    chunk,
    delta_of,
    ended,
    ids,
    serving,
    usage,
    words,
)

import ocr_phases
from ocr_phases import OcrPhasesError, PhaseRun, compare
from ocr_phases.analyse.cards import key_metrics_text
from ocr_phases.analyse.sentences import headline, verdict
from ocr_phases.cli import main
from ocr_phases.engines.client import ServerFailed
from ocr_phases.engines.metrics import read_metrics
from ocr_phases.record import SCHEMA
from ocr_phases.record.record import READABLE_SCHEMAS

ROOT = Path(ocr_phases.__file__).parents[1]
PAGE = ROOT / "data" / "pages" / "receipt.png"
SETTINGS: dict[str, Any] = {"repeats": 2, "warmup": 0, "max_new_tokens": 64}


def measure(events: list[Event], **settings: Any) -> PhaseRun:
    """The record of a page that a server answers with these events."""
    with serving(events) as server:
        return ocr_phases.connect(server.url).run_inference(PAGE, **SETTINGS | settings)


def check_of(run: PhaseRun, name: str) -> tuple[str, str]:
    """The verdict of a check and what it measured; a check that is not there passes."""
    checks = run.checks.set_index("name")
    if name not in checks.index:
        return "pass", ""
    return checks.loc[name, "verdict"], checks.loc[name, "measured"]


def held_back() -> list[Event]:
    """Characters of several tokens come with the token that completes them."""
    texts = ["", "", "文", "", "字", "a", "", "", "b", "c"]
    return [(STEP, chunk(text)) for text in texts]


def counted_in_every_chunk(each: int) -> list[Event]:
    """24 words in chunks of ``each``, of which every one tells how many tokens there are."""
    pieces = []
    for number, (pause, event) in enumerate(words(24, each), 1):
        counts = {"prompt_tokens": 705, "completion_tokens": number * each}
        pieces.append((pause, event | {"usage": counts}))
    return pieces


def all_at_once(pieces: list[Event]) -> list[Event]:
    """What a proxy makes of it that holds a stream back: one write after all the pauses."""
    whole_pause = sum(pause for pause, _ in pieces)
    lines = [f"data: {json.dumps(event)}\n\n" for _, event in pieces]
    return [(whole_pause, "".join(lines))]


#: How tokens come together, and how many there are.
TOGETHER: dict[str, tuple[list[Event], int]] = {
    "three a chunk": (answer(words(24, 3), ended(), (0.0, usage(24))), 24),
    "two a chunk": (answer(words(24, 2), ended(), (0.0, usage(24))), 24),
    "usage with the end": (
        answer(words(24, 3), (0.0, chunk(choice_finish_reason="stop") | usage(24))),
        24,
    ),
    "held back": (answer(held_back(), ended(), (0.0, usage(10))), 10),
    "usage in every chunk": (answer(counted_in_every_chunk(3), ended()), 24),
    "empty deltas": (answer([*words(6), *[(STEP, chunk(""))] * 6], ended(), (0.0, usage(12))), 12),
    "speculative, without ids": (
        answer([*words(4), *words(9, 3), *words(3)], ended(), (0.0, usage(16))),
        16,
    ),
    "speculative, with ids": (
        answer(
            [
                (STEP, chunk("a", **ids(1))),
                (STEP, chunk("bc", **ids(2, 3))),
                (STEP, chunk("d", **ids(4))),
            ],
            ended(),
            (0.0, usage(4)),
        ),
        4,
    ),
    "ids at the end": (
        answer(
            words(24, 4),
            (0.0, chunk(choice_finish_reason="stop", **ids(*range(24)))),
            (0.0, usage(24)),
        ),
        24,
    ),
    "a character a chunk": (
        answer([(STEP, chunk(sign)) for sign in "a word, then more"], ended(), (0.0, usage(4))),
        4,
    ),
    "a proxy that holds all back": (
        answer(all_at_once(words(24)), ended(), (0.0, usage(24))),
        24,
    ),
    "one chunk": (answer(words(24, 24), ended(), (0.0, usage(24))), 24),
}


@pytest.mark.parametrize("case", TOGETHER)
def test_tokens_that_come_together_are_counted_and_not_timed(case: str, tmp_path: Path):
    events, tokens = TOGETHER[case]
    run = measure(events)
    run = PhaseRun.load(run.save(tmp_path / "run.json"))
    assert (run["tokens"], run["decode_steps"]) == (tokens, 0)
    assert (run["inter_token_ms"], run["tokens_per_s"], run["prefill_ms"]) == (None, None, None)
    assert run["ntpot_ms"] == pytest.approx(run["page_ms"] / tokens)
    assert check_of(run, "token_times")[0] == "fail"
    assert check_of(run, "outlier_steps") == ("n/a", "the tokens have no times of their own")
    said = f"{verdict(run)} {key_metrics_text(run)} {run!r}"
    assert "only token" not in said
    assert "refill" not in said
    assert "Normalized time per output token" in said
    run._repr_mimebundle_()


def test_the_times_of_an_answer_are_those_of_the_machine_s_clock():
    pause_s = 0.05
    with serving(answer(words(4, pause=pause_s), ended()), sleeps=True) as server:
        run = ocr_phases.connect(server.url).run_inference(PAGE, **SETTINGS)
    assert run["page_ms"] >= 4 * 1e3 * pause_s


@pytest.mark.parametrize("case", ["a proxy that holds all back", "one chunk"])
def test_an_answer_that_came_at_once_is_not_cut_into_phases(case: str):
    run = measure(TOGETHER[case][0])
    assert set(run.spans["stage"]) == {"generate"}
    assert (run["ttft_ms"], run["decode_ms"]) == (None, None)
    assert headline(run).startswith("The server read this page in ")
    assert "generate()" not in run._repr_mimebundle_()["text/html"]


#: Answers whose tokens came one by one, and what they are.
ONE_BY_ONE: dict[str, tuple[list[Event], int]] = {
    "usage": (answer(words(12), ended(), (0.0, usage(12))), 12),
    "usage has the end token, too": (answer(words(12), ended(), (0.0, usage(13))), 12),
    "usage lacks the first": (answer(words(12), ended(), (0.0, usage(11))), 12),
    "a float": (answer(words(12), ended(), (0.0, usage(12.0))), 12),
    "usage in every chunk": (answer(counted_in_every_chunk(1), ended()), 24),
    "ids": (answer([(STEP, chunk("a", **ids(n))) for n in range(12)], ended()), 12),
    "ids, and a last one without text": (
        answer(
            [*[(STEP, chunk("a", **ids(n))) for n in range(11)], (STEP, chunk("", **ids(99)))],
            ended(),
        ),
        12,
    ),
    "reasoning first": (
        answer(
            [*[(STEP, delta_of(reasoning="r "))] * 6, *words(6)],
            ended(),
            (0.0, usage(12)),
        ),
        12,
    ),
    "reasoning under both names": (
        answer(
            [(STEP, delta_of(reasoning="r ", reasoning_content="r "))] * 12,
            ended(),
            (0.0, usage(12)),
        ),
        12,
    ),
    "reasoning_content": (
        answer(
            [(STEP, delta_of(reasoning_content="r "))] * 12,
            ended(),
            (0.0, usage(12)),
        ),
        12,
    ),
    "content in parts": (
        answer(
            [(STEP, delta_of(content=[{"type": "text", "text": "w "}]))] * 12,
            ended(),
            (0.0, usage(12)),
        ),
        12,
    ),
}


@pytest.mark.parametrize("case", ONE_BY_ONE)
def test_tokens_that_come_one_by_one_are_timed(case: str):
    events, tokens = ONE_BY_ONE[case]
    run = measure(events)
    assert (run["tokens"], run["decode_steps"]) == (tokens, tokens - 1)
    assert run["inter_token_ms"] > 0 and run["tokens_per_s"] > 0
    assert check_of(run, "token_times")[0] in ("note", "pass")
    assert run["ttft_ms"] < 0.6 * run["page_ms"]
    assert set(run.spans.query("phase == 'prefill'")["stage"]) == {"first_token"}
    assert "reasoning" not in case or run.text.startswith("r r ")


@pytest.mark.parametrize("told", [None, 0, -1, "12", True, float(2**60)])
def test_without_a_count_and_ids_there_are_no_rates(told: Any):
    run = measure(answer(words(12), ended(), (0.0, usage(told))))
    assert (run["inter_token_ms"], run["tokens_per_s"], run["ntpot_ms"]) == (None, None, None)
    assert check_of(run, "token_times")[0] == "note"
    assert "at least 12 pieces" in verdict(run)
    assert "at least 12 pieces" in repr(run)
    run._repr_mimebundle_()


def test_the_only_token_is_said_only_of_one():
    run = measure(answer([(STEP, chunk("a", **ids(7)))], ended(), (0.0, usage(1))))
    assert (run["tokens"], run["decode_steps"]) == (1, 0)
    assert "The answer has one token" in verdict(run)


def test_what_is_no_text_is_named():
    call = delta_of(tool_calls=[{"function": {"arguments": "{}"}}])
    run = measure(answer([(STEP, call), *words(6)], ended(), (0.0, usage(6))))
    result, told = check_of(run, "token_times")
    assert result == "fail" and "tool_calls" in told


#: A server of one speed that sends one token a chunk, and the same with other chunks.
RECHUNKED: dict[str, list[Event]] = {
    "three a chunk": answer(words(60, 3, 3 * STEP), ended(), (0.0, usage(60))),
    "ten a chunk": answer(words(60, 10, 10 * STEP), ended(), (0.0, usage(60))),
    "held back": answer(words(60, 60, 60 * STEP), ended(), (0.0, usage(60))),
    "without a count": answer(words(60, 3, 3 * STEP), ended()),
}


@pytest.mark.parametrize("case", RECHUNKED)
def test_a_gate_does_not_fire_on_chunking(case: str, tmp_path: Path):
    one = measure(answer(words(60), ended(), (0.0, usage(60))), repeats=3)
    other = measure(RECHUNKED[case], repeats=3)
    table = compare(one, other).table
    judged = table[table["verdict"].ne("") & table["stage"].eq("") & table["unit"].eq("ms")]
    figure = "page_ms" if case == "without a count" else "ntpot_ms"
    assert judged["metric"].tolist() == [figure]
    assert 0.5 < judged["ratio"].iloc[0] < 2
    paths = [
        str(one.save(tmp_path / "one.json")),
        str(other.save(tmp_path / "other.json")),
    ]
    outcome = main(["compare", *paths, "--fail-above", "100", "--out", str(tmp_path / "compared")])
    assert outcome != 1


def test_two_servers_are_compared_by_the_wait_for_the_first_token():
    runs = [measure(answer(words(12), ended(), (0.0, usage(12))), repeats=3) for _ in range(2)]
    comparison = compare(*runs)
    judged = comparison.table[
        comparison.table["verdict"].ne("") & comparison.table["unit"].eq("ms")
    ]
    assert set(judged["metric"]) == {"ttft_ms", "inter_token_ms"}
    assert "the wait for the first token" in comparison.verdict
    native = PhaseRun.load(ROOT / "data" / "runs" / "tiny-receipt.json.gz")
    assert "ttft_ms" in set(compare(native, runs[0]).table.query("verdict != ''")["metric"])


def test_nothing_calls_the_wait_a_prefill(tmp_path: Path):
    run = measure(answer(words(12), ended(), (0.0, usage(12))))
    assert run["prefill_ms"] is None
    html = run._repr_mimebundle_()["text/html"]
    assert "first token" in html
    run.report(tmp_path / "report")
    for text in (html, verdict(run), key_metrics_text(run), repr(run)):
        assert "the prefill" not in text.replace("rest of the prefill", "the prefill").lower()
    assert run.token_table["source"].iloc[0] == "first_token"
    for draw in (run.plot.timeline, run.plot.vision, run.plot.latency, run.plot.memory):
        draw()


@pytest.mark.parametrize(
    "path", sorted((ROOT / "data" / "runs").rglob("*.json*")), ids=lambda path: path.name
)
def test_every_shipped_record_opens(path: Path):
    data = path.read_bytes()
    content = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)
    if not isinstance(content, dict) or "spans" not in content:
        pytest.skip("a benchmark's table, no record")
    run = PhaseRun.load(path)
    assert content["schema"] in READABLE_SCHEMAS
    assert run.schema == SCHEMA
    assert run.summary()["page_ms"] > 0
    assert verdict(run)


@pytest.mark.parametrize(
    ("times", "stages", "expected"),
    [
        ([{}, {}], [], "first_token"),
        (None, [], "first_token"),
        ([{"prefill_ms": 1.0}, {}], [], "first_token"),
        ([{"prefill_ms": 1.0}] * 2, [], "prefill"),
        ([{}, {}], ["sam"], "prefill"),
    ],
)
def test_a_servers_record_of_schema_2_is_read(times, stages, expected):
    run = measure(answer(words(12), ended(), (0.0, usage(12))))
    record = json.loads(run.to_json())
    record["schema"] = 2
    record["model"]["server"]["times"] = times
    spans = record["spans"]
    spans["stage"] = ["prefill" if stage == "first_token" else stage for stage in spans["stage"]]
    for stage in stages:
        for name, column in spans.items():
            column.append(
                {"phase": "prefill", "stage": stage, "view": "", "step": None}.get(name, 0)
            )
    again = PhaseRun.from_dict(record)
    assert expected in set(again.spans["stage"])
    assert again.schema == SCHEMA
    assert (again["prefill_ms"] is None) == (expected == "first_token")
    assert again["ttft_ms"] == pytest.approx(run["ttft_ms"])


def entries(*tokens: str) -> dict[str, Any]:
    return {"choice_logprobs": {"content": [{"token": token, "logprob": -0.5} for token in tokens]}}


#: Servers that go on after the limit of 8 tokens: their pieces, the text that is taken, and the
#: tokens.
BEYOND: dict[str, tuple[list[Event], str | None, int]] = {
    "pieces": (words(500, pause=0.0005), "".join(f"w{n} " for n in range(8)), 8),
    "ids": ([(0.0005, chunk(f"{n} ", **ids(n))) for n in range(500)], "0 1 2 3 4 5 6 7 ", 8),
    "one chunk of ids": ([(STEP, chunk("x" * 1000, **ids(*range(1000))))], None, 8),
    "inside a chunk": (
        [(STEP, chunk("abc", **ids(1, 2, 3), **entries("a", "b", "c")))] * 9,
        "abcabcab",
        8,
    ),
    "inside a chunk without ids": (
        [(STEP, chunk("abc", **entries("a", "b", "c")))] * 9,
        "abcabcab",
        3,
    ),
    "usage in every chunk": (counted_in_every_chunk(3), None, 8),
}


@pytest.mark.parametrize("case", BEYOND)
def test_no_more_tokens_are_taken_than_were_asked_for(case: str):
    pieces, text, tokens = BEYOND[case]
    endless = [*pieces, (30.0, chunk("late"))]
    settings = SETTINGS | {"max_new_tokens": 8, "repeats": 1}
    with serving(answer(endless), sleeps=True) as server:
        session = ocr_phases.connect(server.url)
        begun = time.monotonic()
        run = session.run_inference(PAGE, **settings)
        waited = time.monotonic() - begun
    assert waited < 20  # for the late one it would have been 30
    assert (run["tokens"], run.result.finish_reason) == (tokens, "length")
    assert text is None or run.text == text
    assert len(run.result.ids) <= 8
    assert check_of(run, "token_limit")[0] == "fail"
    assert "It stopped at the limit of 8 tokens" in verdict(run)


@pytest.mark.parametrize(
    ("reason", "finish"),
    [
        ("stop", "eos"),
        ("length", "length"),
        (None, "unknown"),
        ("abort", "abort"),
        ("x" * 100_000, None),
    ],
)
def test_an_answer_ended_as_the_server_says(reason, finish):
    after = [] if reason is None else [ended(reason)]
    run = measure(answer(words(12), *after, (0.0, usage(12))))
    assert finish is None or run.result.finish_reason == finish
    assert len(run.result.finish_reason or "") < 200
    assert ("stopped at the limit" in verdict(run)) == (reason == "length")
    assert "token_limit" not in run.checks.set_index("name").index


#: What is odd in a stream, and harmless: the events of an answer of 12 tokens.
ODD: dict[str, list[Event]] = {
    "usage null": answer([(0.0, chunk("", usage=None)), *words(12)], ended(), (0.0, usage(12))),
    "prompt_tokens null": answer(words(12), ended(), (0.0, usage(12, None))),
    "prompt_tokens missing": answer(
        words(12), ended(), (0.0, {"usage": {"completion_tokens": 12}})
    ),
    "details null": answer(words(12), ended(), (0.0, usage(12, prompt_tokens_details=None))),
    "details of another kind": answer(
        words(12), ended(), (0.0, usage(12, prompt_tokens_details=[3]))
    ),
    "choices null": answer([(0.0, {"choices": None}), *words(12)], ended(), (0.0, usage(12))),
    "choices missing": answer([(0.0, {"id": "x"}), *words(12)], ended(), (0.0, usage(12))),
    "delta null": answer(
        words(12), (0.0, {"choices": [{"delta": None, "finish_reason": "stop"}]}), (0.0, usage(12))
    ),
    "delta missing": answer(
        words(12), (0.0, {"choices": [{"finish_reason": "stop"}]}), (0.0, usage(12))
    ),
    "content null": answer([(0.0, delta_of(content=None)), *words(12)], ended(), (0.0, usage(12))),
    "no DONE": [*words(12), ended(), (0.0, usage(12))],
    "no DONE and no usage": [*words(12), ended()],
    "error null": answer([(0.0, chunk("", error=None)), *words(12)], ended(), (0.0, usage(12))),
    "null": answer([(0.0, "data: null\n\n"), *words(12)], ended(), (0.0, usage(12))),
    "empty data": answer([(0.0, "data:\n\n"), *words(12)], ended(), (0.0, usage(12))),
    "logprobs null": answer(
        [(0.0, chunk("", choice_logprobs=None)), *words(12)], ended(), (0.0, usage(12))
    ),
    "logprobs of another kind": answer(
        [(0.0, chunk("", choice_logprobs={"tokens": ["a"]})), *words(12)], ended(), (0.0, usage(12))
    ),
    "logprob null": answer(
        [(STEP, chunk("w ", choice_logprobs={"content": [{"token": "w ", "logprob": None}]}))] * 12,
        ended(),
    ),
    "rubbish behind the end": [*words(12), ended(), (0.0, usage(12)), (0.0, "data: {rubbish\n\n")],
    "comments and events": answer(
        [(0.0, "event: message\n"), (0.0, ": ping\n\n"), *words(12)], ended(), (0.0, usage(12))
    ),
}


@pytest.mark.parametrize("case", ODD)
def test_a_harmless_oddity_loses_nothing(case: str, tmp_path: Path):
    run = measure(ODD[case])
    assert len(run.result.ids) == 12
    assert run.result.finish_reason == "eos"
    assert run.repeats == [0, 1]
    PhaseRun.load(run.save(tmp_path / "run.json"))._repr_mimebundle_()


@pytest.mark.parametrize(
    ("error", "told"),
    [
        ("CUDA out of memory", "gave up (CUDA out of memory)."),
        ({"message": "boom"}, "gave up (boom)."),
        ({"error": {"message": "deep"}}, "gave up (deep)."),
        ([{"msg": "a field"}], "gave up (a field)."),
        ({"type": "overloaded"}, "gave up (overloaded)."),
        (True, "gave up without a reason."),
        ("x" * 100_000, "gave up (xxx"),
    ],
)
def test_an_error_is_told(error, told):
    with pytest.raises(ServerFailed) as caught:
        measure(answer([*words(3), (0.0, {"error": error})]))
    assert told in str(caught.value)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    ("choice", "told"),
    [
        ({"finish_reason": "error"}, "gave up without a reason."),
        ({"finish_reason": "error", "error": {"message": "boom"}}, "gave up (boom)."),
        ({"finish_reason": None, "error": {"code": 502}}, "gave up without a reason."),
    ],
)
def test_an_error_of_a_choice_is_no_answer(choice, told):
    error = {"choices": [{"index": 0, "delta": {}, **choice}]}
    with pytest.raises(ServerFailed) as caught:
        measure(answer([*words(3), (0.0, error)]))
    assert str(caught.value).endswith(told)


@pytest.mark.parametrize(
    "value", ["e", "--", "1-2", "1e999", "nan", "inf", "-1", "", "1e400", "0x10", "١"]
)
def test_metrics_of_any_content_end_no_measurement(value: str, tmp_path: Path):
    names = (
        "request_queue_time",
        "request_prefill_time",
        "request_decode_time",
        "time_to_first_token",
    )
    text = "".join(
        f"vllm:{name}_seconds_{part}{{}} {value}\n" for name in names for part in ("sum", "count")
    )
    with serving(answer(words(6), ended(), (0.0, usage(6)))) as server:
        server.answers["/metrics"] = text.encode() + b"\xff\n{} e\n"
        run = ocr_phases.connect(server.url).run_inference(PAGE, **SETTINGS)
    PhaseRun.load(run.save(tmp_path / "run.json"))
    assert run["prefill_ms"] is None


def test_metrics_are_sums_over_engines():
    line = 'vllm:request_queue_time_seconds_sum{{engine="{}"}} {}'
    text = "\n".join(
        [
            "# HELP x",
            line.format(0, 1.5),
            line.format(1, "2e0"),
            "vllm:other_seconds_sum{} e",
            "x y",
        ]
    )
    assert read_metrics(text) == {("request_queue_time", "sum"): 3.5}


def drip(begin: bytes, part: bytes) -> Callable[[socket.socket], None]:
    """Sends ``begin``, then a part now and then, for as long as the client listens."""

    def send(connection: socket.socket) -> None:
        connection.sendall(begin)
        for _ in range(2_000):
            connection.sendall(part)
            time.sleep(0.02)

    return send


HEAD = b"HTTP/1.1 200 OK\r\n"
STREAM = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
FIRST = b'data: {"choices":[{"delta":{"content":"a "}}]}\n\n'


def framed(data: bytes) -> bytes:
    """A chunk of HTTP's transfer encoding."""
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


WITH_FIRST = STREAM + framed(FIRST)
#: Ways to hold a client with a byte now and then; where the first token has come, the answer's time
#: counts.
HELD: dict[str, tuple[bytes, bytes, str]] = {
    "nothing": (b"", b"", "sent no token"),
    "status line": (b"HTTP/1.1 ", b"2", "sent no token"),
    "headers": (HEAD, b"X-A: b\r\n", "sent no token"),
    "one header": (HEAD + b"X-A: ", b"a", "sent no token"),
    "100 Continue": (b"", b"HTTP/1.1 100 Continue\r\n\r\n", "sent no token"),
    "comments": (STREAM, b"8\r\n: ping\n\n\r\n", "sent no token"),
    "blank lines": (STREAM, b"1\r\n\n\r\n", "sent no token"),
    "no line end": (STREAM, b"1\r\nx\r\n", "sent no token"),
    "roles": (STREAM, framed(b'data: {"choices":[{"delta":{}}]}\n\n'), "sent no token"),
    "comments after the first token": (
        WITH_FIRST,
        b"8\r\n: ping\n\n\r\n",
        "did not end its answer",
    ),
    "trailers": (WITH_FIRST + b"0\r\n", b"X-A: b\r\n", "did not end its answer"),
    "no end": (HEAD + b"\r\n" + FIRST, b"\n", "did not end its answer"),
}


@pytest.mark.parametrize("case", HELD)
def test_no_server_holds_a_client_for_ever(case: str):
    begin, part, told = HELD[case]
    # Where a first token has to come in time, a busy machine has twice as long for it.
    limits = {"answer_timeout": 0.8}
    if told == "sent no token":
        limits["first_token_timeout"] = 0.4
    with serving([], sleeps=True) as server:
        server.send_raw = drip(begin, part)
        session = ocr_phases.connect(server.url, **limits)
        with pytest.raises(ServerFailed, match=told):
            session.run_inference(PAGE, **SETTINGS)


def test_a_name_that_is_not_found_holds_no_client_for_ever(monkeypatch: pytest.MonkeyPatch):
    ends = threading.Event()

    def never_answers(*_: Any, **__: Any) -> Any:
        ends.wait(20.0)
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", never_answers)
    begun = time.monotonic()
    with pytest.raises(ServerFailed, match=r"sent nothing for 0\.2 s"):
        ocr_phases.connect("http://slow.example:8000/v1", patience=0.2)
    ends.set()
    assert time.monotonic() - begun < 10.0


def test_a_name_that_does_not_exist_is_told(monkeypatch: pytest.MonkeyPatch):
    def finds_nothing(*_: Any, **__: Any) -> Any:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", finds_nothing)
    with pytest.raises(ServerFailed, match="cannot be reached .Name or service not known."):
        ocr_phases.connect("http://no-such-host.example:8000/v1")


@pytest.mark.parametrize("model", ["Qwen/Qwen2.5-VL-7B-Instruct", "deepseek-ocr"])
@pytest.mark.parametrize(("told", "expected"), [((), None), (((0.0, usage(12)),), 705)])
def test_the_length_of_a_prompt_is_what_the_server_tells(model, told, expected, tmp_path: Path):
    with serving(answer(words(12), ended(), *told)) as server:
        server.models = [model]
        run = ocr_phases.connect(server.url).run_inference(PAGE, **SETTINGS)
    again = PhaseRun.load(run.save(tmp_path / "run.json"))
    assert again.request.prefill_len == again["prefill_len"] == expected
    assert expected is not None or again.page.text_tokens is None


def test_a_slow_reason_is_not_waited_for(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("ocr_phases.engines.client.QUICK_SECONDS", 0.3)
    with serving([], sleeps=True) as server:
        server.send_raw = drip(b'HTTP/1.1 500 No\r\n\r\n{"message": "out of', b" m")
        session = ocr_phases.connect(server.url)
        with pytest.raises(ServerFailed, match="failed /v1/chat/completions"):
            session.run_inference(PAGE, **SETTINGS)


def test_a_long_reason_is_read_to_its_first_part():
    with serving([], sleeps=True) as server:
        body = b'{"message":"' + b"a" * 5_000_000

        def send(connection: socket.socket) -> None:
            connection.sendall(b"HTTP/1.1 500 No\r\n\r\n" + body)

        server.send_raw = send
        with pytest.raises(ServerFailed, match=r"500") as caught:
            ocr_phases.connect(server.url).run_inference(PAGE, **SETTINGS)
    assert len(str(caught.value)) < 500


def test_silent_metrics_are_waited_for_a_little(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("ocr_phases.engines.client._quick", lambda path, seconds=0: quick(path))

    def quick(path: str) -> Any:
        return ocr_phases.engines.client.Deadline(0.2, f"did not answer {path}")

    silenced = pytest.raises(ServerFailed, match=r"did not answer /v1/models")
    with socket.create_server(("127.0.0.1", 0)) as silent, silenced:
        ocr_phases.connect(f"http://127.0.0.1:{silent.getsockname()[1]}/v1")


def test_long_lists_are_cut_where_they_are_shown():
    with serving([], sleeps=True) as server:
        server.models = [f"model-{number}-{'x' * 500}" for number in range(2_000)]
        with pytest.raises(OcrPhasesError, match=r"and 1,995 more: name one of these") as caught:
            ocr_phases.connect(server.url)
        assert len(str(caught.value)) < 1_000
        server.models = []
        with pytest.raises(OcrPhasesError, match="serves no model"):
            ocr_phases.connect(server.url)


@pytest.mark.parametrize("name", ["patience", "first_token_timeout", "answer_timeout"])
@pytest.mark.parametrize("seconds", [0, -1.0, float("inf"), float("nan"), 1e30])
def test_a_wait_is_a_number_of_seconds(name: str, seconds: float):
    with pytest.raises(OcrPhasesError, match=name):
        ocr_phases.connect("http://127.0.0.1:9/v1", **{name: seconds})


def test_the_command_line_takes_both_limits(capsys, tmp_path: Path):
    with serving([], sleeps=True) as server:
        server.send_raw = drip(STREAM, b"8\r\n: ping\n\n\r\n")
        options = ["--server", server.url, "--first-token-timeout", "0.3", "--answer-timeout", "1"]
        assert main(["profile", str(PAGE), *options, "--save", str(tmp_path / "run.json")]) == 2
    assert "sent no token within 0.3 s" in capsys.readouterr().err
    assert main(["profile", str(PAGE), "--model", "tiny", "--answer-timeout", "1"]) == 2


@pytest.mark.parametrize("case", [*TOGETHER])
def test_a_load_counts_tokens_by_usage(case: str):
    events, tokens = TOGETHER[case]
    with serving(events) as server:
        session = ocr_phases.connect(server.url)
        result = session.load_test(PAGE, (1,), requests=2, max_new_tokens=64)
    row = result.table.iloc[0]
    assert result.asked["tokens"].tolist() == [tokens, tokens]
    assert result.table["inter_token_p50_ms"].isna().all()
    assert row["ntpot_p50_ms"] > 0 and row["tokens_per_s"] > 0
    held = case in ("a proxy that holds all back", "one chunk")
    assert result.table["ttft_p50_ms"].isna().all() == held
    result._repr_mimebundle_()


def test_a_load_without_counts_has_no_rate():
    with serving(answer(words(12), ended())) as server:
        result = ocr_phases.connect(server.url).load_test(
            PAGE, (1, 2), requests=2, max_new_tokens=64
        )
    columns = ["tokens_per_s", "inter_token_p50_ms", "ntpot_p50_ms"]
    assert result.table[columns].isna().all(axis=None)
    assert (result.table["pages_per_min"] > 0).all()
    result._repr_mimebundle_()
