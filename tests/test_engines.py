"""A running server measured into a record: what is timed, what is missing, what goes wrong."""

import json
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from conftest import GOLDEN, PAGES
from fake_server import IDS, TOKENS, Fake, served
from refusals import refused

import ocr_phases
from ocr_phases import OcrPhasesError, OCRSession, PhaseRun
from ocr_phases.analyse.load import TAIL_FROM, AskedPage
from ocr_phases.cli import main
from ocr_phases.engines import checks
from ocr_phases.engines.answers import Answer
from ocr_phases.engines.chat import RepetitionRule
from ocr_phases.engines.client import Server
from ocr_phases.engines.session import ServerSession
from ocr_phases.engines.spans import spans_of
from ocr_phases.engines.vllm_worker import MODULES, StageClocks, Stages
from ocr_phases.families import FAMILIES
from ocr_phases.inputs.views import image_token_count
from ocr_phases.results.load import LoadResult
from ocr_phases.stages import VISION_STAGES

PAGE = GOLDEN / "pages" / "small_400x300.png"
SECRET = "sk-secret-123"
FAMILY = FAMILIES["deepseek-ocr"]
#: Settings of a short measurement, in Python and on the command line, where an address follows.
SHORT: dict[str, Any] = {"max_new_tokens": 8, "repeats": 2, "warmup": 0, "preset": "base"}
SHORT_OPTIONS = (
    *("--max-new-tokens", "8", "--preset", "base"),
    *("--repeats", "1", "--warmup", "0", "--server"),
)
#: The times of a repeat that vLLM tells.
TIMES = {"ttft_ms", "queue_ms", "prefill_ms", "decode_ms"}


@pytest.fixture
def vllm() -> Iterator[Fake]:
    with served() as fake:
        yield fake


def measure(fake: Fake, session: ServerSession | None = None, **settings: Any) -> PhaseRun:
    """The record of a page that the server reads."""
    if session is None:
        session = ocr_phases.connect(fake.url, patience=1.0)
    return session.run_inference(PAGE, **{**SHORT, **settings})


def check_result(run: PhaseRun, name: str) -> tuple[str, str]:
    """The verdict of a check and what it measured."""
    row = run.checks.set_index("name").loc[name]
    return row["verdict"], row["measured"]


# -- what is timed and what is missing -------------------------------------------------------------


def test_a_server_is_timed_as_far_as_it_tells(vllm: Fake, tmp_path: Path) -> None:
    run = measure(vllm)

    assert run.result.ids == IDS
    assert run.text == "".join(TOKENS)
    assert run.request.prefill_len == 276
    assert run["decode_steps"] == len(IDS) - 1
    assert run["inter_token_ms"] > 0
    assert set(run.spans["stage"]) >= {"queue", "preprocess", "prefill", "decode_step"}
    assert run["ttft_ms"] == pytest.approx(run["prepare_ms"] + run["prefill_ms"], rel=0.2)
    assert run.tokens["probability"].round(3).eq(0.607).all()
    assert check_result(run, "server_preset") == ("pass", "273 image tokens, as base has")
    assert check_result(run, "fresh_prompt")[0] == "pass"
    again = PhaseRun.load(run.save(tmp_path / "run.json"))
    assert again.model.server["engine"] == "vllm"
    assert [set(times) for times in again.model.server["times"]] == [TIMES, TIMES]


def test_a_server_is_asked_for_the_tokens_of_a_greedy_decode(vllm: Fake) -> None:
    measure(vllm)

    body = vllm.bodies[0]
    assert body["temperature"] == 0.0
    assert body["max_tokens"] == 8
    assert not body["ignore_eos"]
    assert not body["skip_special_tokens"]


def test_what_a_server_does_not_tell_is_missing_and_not_zero(vllm: Fake) -> None:
    run = measure(vllm)

    for name in (
        "vision_ms",
        "vision_share",
        "stage_coverage",
        "sam_ms",
        "peak_bytes",
        "kv_cache_bytes",
    ):
        assert run[name] is None
    assert run.floors.empty
    assert check_result(run, "stage_coverage")[0] == "n/a"
    assert check_result(run, "decode_memory")[0] == "n/a"
    assert check_result(run, "eval_mode") == ("n/a", "a server does not show it")
    shown = run._repr_mimebundle_()
    assert "rest of the prefill" not in shown["text/html"]
    assert "vision" not in shown["text/plain"].lower()
    metrics = ocr_phases.compare(run, run).table.set_index("metric")
    assert "vision_ms" not in metrics.index or metrics.loc["vision_ms", "baseline"] != 0


@pytest.fixture
def watched_vllm(vllm: Fake) -> Fake:
    """A server whose worker notes its stages."""
    vllm.watched = True
    vllm.pause = 0.02  # a busy client that reads two tokens at once would leave the repeat out
    return vllm


@pytest.mark.parametrize("worker_ahead", [0.0, 1000.0, -1000.0])
def test_stages_of_the_worker_lie_in_the_prefill_whatever_its_clock_says(
    watched_vllm: Fake, worker_ahead: float
) -> None:
    watched_vllm.worker_ahead = worker_ahead

    run = measure(watched_vllm)

    first = run.spans[run.spans["repeat"] == 0].set_index("stage")
    prefill = first.loc["prefill"]
    sam = first.loc["sam"]
    prefill_end = prefill["host_start_ms"] + prefill["host_ms"]
    assert prefill["host_start_ms"] <= sam["host_start_ms"]
    assert sam["host_start_ms"] + sam["host_ms"] <= prefill_end
    decode = run.spans[run.spans["phase"] == "decode"]
    assert (decode["stage"] == "language_model").sum() == 2 * (len(IDS) - 1)
    assert run["vision_ms"] > 0
    assert run.model.dtype == "float32"


#: What no worker's extension says of itself.
STRANGE_WORKERS: dict[str, Any] = {
    "nothing": [],
    "null": [None],
    "a number as dtype": [{"model": {"dtype": 5}}],
    "a list as device": [{"device": {"name": [1]}}],
    "a module of modules": [{"modules": {"sam": {}}}],
}


@pytest.mark.parametrize("case", STRANGE_WORKERS)
def test_what_is_no_extension_is_not_believed(
    case: str, watched_vllm: Fake, tmp_path: Path
) -> None:
    watched_vllm.worker_results["ocr_watch"] = STRANGE_WORKERS[case]

    run = measure(watched_vllm)

    assert "sam" not in set(run.spans["stage"])
    assert PhaseRun.load(run.save(tmp_path / "run.json")).repeats == [0, 1]


#: Calls of stages at times that no request has, by the worker's clock.
STRANGE_TIMES = {
    "long after": [["sam", 1e12, 1.0, 3]],
    "longer than all": [["sam", 1e12, 1e300, 3]],
    "of a negative length": [["sam", 1e12, -1.0, 3]],
}


@pytest.mark.parametrize("case", STRANGE_TIMES)
def test_stages_of_another_time_are_not_of_the_request(
    case: str, watched_vllm: Fake, tmp_path: Path
) -> None:
    watched_vllm.worker_results["ocr_take"] = [[2.0, STRANGE_TIMES[case]]]

    run = measure(watched_vllm)

    assert "sam" not in set(run.spans["stage"])
    assert PhaseRun.load(run.save(tmp_path / "run.json")).repeats == [0, 1]


def test_a_worker_that_answers_no_more_ends_the_measurement(watched_vllm: Fake) -> None:
    watched_vllm.worker_results["ocr_take"] = []
    with refused():
        measure(watched_vllm)


def test_stages_that_may_be_of_others_who_share_the_server_do_not_count(
    watched_vllm: Fake,
) -> None:
    watched_vllm.others = 1

    run = measure(watched_vllm, repeats=1)

    assert run["prepare_ms"] is None
    assert run["vision_ms"] is None
    assert run.model.server["times"] == [{}]


def test_a_long_prompt_takes_several_forwards() -> None:
    stages = [
        ("sam", 1.0, 1.0, 640),
        ("sam", 2.0, 1.0, 640),
        ("language_model", 3.0, 1.0, 256),
        ("language_model", 5.0, 1.0, 20),
        ("language_model", 10.0, 0.5, 1),
        ("language_model", 11.0, 0.5, 1),
        ("language_model", 12.0, 0.5, 1),
    ]
    answer = Answer(
        0.0,
        times=[10.0, 11.0, 12.0],
        ids=[7, 8, 9],
        texts=["a", "b", "c"],
        ids_with_pieces=True,
        usage={"prompt_tokens": 276},
        stages=stages,
    )

    spans = spans_of([answer])

    text = spans[spans["stage"] == "language_model"]
    assert text["phase"].tolist() == ["prefill"] * 2 + ["decode"] * 2  # the last one makes no token
    assert text["step"].fillna(-1).tolist() == [-1, -1, 0, 1]
    assert spans.set_index("stage").loc["prefill", "host_start_ms"] == 1.0
    assert spans[spans["stage"] == "sam"]["view"].tolist() == ["global", "local"]
    assert "preprocess" not in set(spans["stage"])  # of which nobody told


@dataclass(frozen=True)
class Dialect:
    """A server that is no vLLM: the ids of its answer, what its check of the times says, and a
    setting that it cannot do.
    """

    name: str
    ids: list[int]
    measured: str
    refused_setting: dict[str, Any]


DIALECTS = [
    Dialect(
        "sglang",
        ids=IDS,
        measured="chunks of text are timed: ids came at the end",
        refused_setting={"strategy": "cuda_graph"},
    ),
    Dialect(
        "other",
        ids=[*range(8)],
        measured=("chunks of text are timed: the server sends no ids, so its pieces have numbers"),
        refused_setting={"ignore_eos": True},
    ),
]


def test_a_decode_ends_with_the_last_piece() -> None:
    answer = Answer(begun=0.0, times=[10.0, 20.0, 45.0], texts=["a", "b", "c"])
    spans = spans_of([answer]).set_index("stage")["device_ms"]
    assert spans["first_token"] == 10.0
    assert spans["decode"] == 35.0


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
def test_other_dialects_are_timed_by_their_chunks_of_text(dialect: Dialect) -> None:
    with served(dialect.name) as fake:
        run = measure(fake)
        with refused():
            measure(fake, **dialect.refused_setting)

    assert run.result.ids == dialect.ids
    assert run["decode_steps"] == len(TOKENS) - 1
    assert check_result(run, "token_times") == ("note", dialect.measured)
    assert fake.bodies[0]["messages"][0]["content"][1]["text"].startswith("<|grounding|>")
    assert run["prepare_ms"] is None


@pytest.mark.parametrize(
    ("dialect", "infer", "sent"),
    [
        pytest.param("vllm", {"repetition_penalty": 1.2}, 1.2, id="vllm"),
        pytest.param("sglang", {"repetition_penalty": 1.2}, 1.2, id="sglang"),
        pytest.param("vllm", {"repetition_penalty": 1}, None, id="vllm-none"),
        pytest.param("other", {"repetition_penalty": 1}, None, id="other-none"),
        pytest.param("other", {}, None, id="other-default"),
    ],
)
def test_a_repetition_penalty_is_sent_where_there_is_one(
    dialect: str, infer: dict[str, float], sent: float | None
) -> None:
    with served(dialect) as fake:
        run = measure(fake, infer=infer)

    assert fake.bodies[0].get("repetition_penalty") == sent
    assert run.request.infer.repetition_penalty == sent


def test_a_repetition_penalty_is_refused_where_the_server_has_none() -> None:
    with (
        served("other") as fake,
        pytest.raises(OcrPhasesError, match=r"repetition_penalty=1\.2 is not possible"),
    ):
        measure(fake, infer={"repetition_penalty": 1.2})


# -- checks ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CheckedServer:
    """What a server does, how long the runs are that it is asked not to repeat, and the check that
    says so.
    """

    check: str
    verdict: str
    measured: str
    behaviour: dict[str, Any] = field(default_factory=dict)
    no_repeat_size: int = 0


CHECKED_SERVERS = {
    "tokens-together": CheckedServer(
        "token_times",
        "fail",
        "3 chunks came for 8 tokens: there is no inter-token latency",
        # Chunks within a twentieth of the whole wait came all at once, and a busy machine may make
        # the client wait long for the first one.
        {"a_chunk": 3, "pause": 0.1},
    ),
    "nothing-cached": CheckedServer(
        "fresh_prompt", "pass", "no prompt token came from a cache", {"cached": 0}
    ),
    "prompt-cached": CheckedServer(
        "fresh_prompt", "fail", "a cache had 256 of 276 prompt tokens", {"cached": 256}
    ),
    "other-cut": CheckedServer(
        "server_preset",
        "fail",
        "the server read 111 image tokens, base has 273: it cut the page as small, into 1 x 1",
        {"image_tokens": 111},
    ),
    "no-repetition": CheckedServer(
        "repetition_rule", "pass", "0 of 6 runs of 3 tokens were there before", no_repeat_size=3
    ),
}


@pytest.mark.parametrize("case", CHECKED_SERVERS)
def test_checks_say_what_a_server_did(case: str, vllm: Fake) -> None:
    expected = CHECKED_SERVERS[case]
    for name, value in expected.behaviour.items():
        setattr(vllm, name, value)

    run = measure(vllm, infer={"no_repeat_ngram_size": expected.no_repeat_size})

    assert check_result(run, expected.check) == (expected.verdict, expected.measured)
    assert run.result.ids == IDS
    assert run["decode_ms"] > 0
    if expected.check == "token_times":
        assert run["inter_token_ms"] is None
        assert run["decode_steps"] == 0
    else:
        assert run["inter_token_ms"] is not None
        assert run["decode_steps"] == len(IDS) - 1
    assert "--no-enable-prefix-caching" in run.checks.set_index("name").loc["fresh_prompt", "fix"]
    assert len({body["cache_salt"] for body in vllm.bodies}) == len(vllm.bodies)
    if expected.no_repeat_size:
        assert vllm.bodies[0]["vllm_xargs"]["ngram_size"] == expected.no_repeat_size
    run._repr_mimebundle_()


def test_only_a_repeat_whose_tokens_came_together_is_left_out(vllm: Fake) -> None:
    def join_tokens_of_last_repeat(done: int, total: int) -> None:
        vllm.a_chunk = 3 if done == 2 else 1

    run = measure(vllm, progress=join_tokens_of_last_repeat, repeats=3)

    assert run.repeats == [0, 1]
    assert run.request.repeats == 2
    assert run["decode_steps"] == len(IDS) - 1
    stages = run.spans.groupby("repeat")["stage"].value_counts().unstack()
    assert stages.nunique().eq(1).all()
    left_out = "left out: 1 more repeat, with tokens that came together"
    assert check_result(run, "token_times") == ("note", left_out)
    assert "interrupted" not in run.checks.set_index("name").index


def test_chunks_came_together_where_half_of_them_did() -> None:
    together = Answer(0.0, times=[1.0, 1.01, 1.02, 5.0])
    apart = Answer(0.0, times=[1.0, 1.01, 3.0, 5.0])

    assert together.untimed == "2 of 4 chunks came together with another"
    assert not apart.untimed


@pytest.mark.parametrize(
    ("first_ms", "verdict"),
    [pytest.param(400.0, "fail", id="faster"), pytest.param(18.0, "pass", id="as-fast")],
)
def test_where_nobody_tells_of_a_cache_it_is_found_by_the_time_of_the_first_answer(
    first_ms: float, verdict: str
) -> None:
    answer = Answer(0.0, times=[5.0, 25.0], ids=[1, 2])

    fresh, *_ = checks.own_checks([answer], 0, first_ms)

    assert fresh.verdict == verdict


def test_a_repeat_without_vision_read_its_page_from_a_cache() -> None:
    blind = Answer(0.0, times=[5.0, 25.0], ids=[1, 2], stages=[("language_model", 1.0, 1.0, 9)])

    fresh, *_ = checks.own_checks([blind], 0, 400.0)

    assert fresh.verdict == "fail"
    assert "no vision ran in 1 repeat" in fresh.measured


GUNDAM = FAMILY.presets["gundam"]


@pytest.mark.parametrize(
    ("told", "sentence"),
    [
        pytest.param(
            {"prompt_ids": [3] * image_token_count(GUNDAM, (1, 2))},
            "it cut the page as gundam, into 1 x 2",
            id="another-grid",
        ),
        pytest.param({"prompt_ids": [3] * 7}, "no preset has as many", id="no-preset"),
        pytest.param(
            {"usage": {"prompt_tokens": 115}},
            "cut the page as small, into 1 x 1",
            id="another-preset",
        ),
    ],
)
def test_another_cut_of_the_page_is_named(told: dict[str, Any], sentence: str) -> None:
    answer = Answer(0.0, **told)

    _, _, check = checks.how_page_was_cut(answer, GUNDAM, FAMILY, "<image>Free OCR.", 1000, 2000)

    assert check.measured.endswith(sentence)


NO_BOS = "the server's prompt has 2 tokens for 3: the BOS at its beginning is missing"


@pytest.mark.parametrize(
    ("ids", "count", "measured"),
    [
        pytest.param([9, 9], 2, NO_BOS, id="ids-without-bos"),
        pytest.param([], 2, NO_BOS, id="count-without-bos"),
        pytest.param([0, 9, 9], 3, "3 tokens in both", id="same"),
    ],
)
def test_a_prompt_without_its_bos_is_named(ids: list[int], count: int, measured: str) -> None:
    answer = Answer(0.0, prompt_ids=ids, usage={"prompt_tokens": count})
    assert checks.prompt_check(answer, [0, 9, 9]).measured == measured


@dataclass(frozen=True)
class Repetition:
    """Ids of an answer, a rule for it, and how many runs of the ids break it."""

    ids: list[int]
    size: int
    window: int | None
    broken: int


REPETITIONS = {
    "once": Repetition([1, 2, 3, 1, 2, 3], 3, None, broken=1),
    "never": Repetition([1, 2, 3, 1, 2, 4], 3, None, broken=0),
    "within-the-window": Repetition([1, 2, 9, 9, 1, 2], 2, 6, broken=1),
    "just-before-the-window": Repetition([1, 2, 9, 9, 1, 2], 2, 5, broken=0),
}


@pytest.mark.parametrize("case", REPETITIONS)
def test_a_server_that_repeats_tokens_breaks_the_rule(case: str) -> None:
    repetition = REPETITIONS[case]
    rule = RepetitionRule(repetition.size, repetition.window)
    times = [9.0 * place for place in range(1, len(repetition.ids) + 1)]
    answer = Answer(0.0, times=times, ids=repetition.ids)

    *_, check = checks.own_checks([answer], 0, 9.0, rule)

    assert check.name == "repetition_rule"
    assert check.verdict == ("fail" if repetition.broken else "pass")
    assert check.measured.startswith(f"{repetition.broken} of ")


# -- what goes wrong -------------------------------------------------------------------------------


FAULTS = [
    "401",
    "429",
    "500",
    "400",
    "redirect",
    "whole",
    "huge",
    "stall",
    "disconnect",
    "malformed",
    "mistyped",
    "error",
]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_one_sentence_and_keeps_what_was_measured(fault: str, vllm: Fake) -> None:
    vllm.fault = fault
    vllm.fault_from = 1  # one repeat goes well

    run = measure(vllm)

    assert run.repeats == [0]
    _, sentence = check_result(run, "interrupted")
    with refused():
        raise OcrPhasesError(sentence)


@pytest.mark.parametrize(
    "address",
    ["ftp://host/v1", "http://host:port", f"http://me:{SECRET}@host/v1", "http://127.0.0.1:9/v1"],
)
def test_a_wrong_address_is_refused(address: str) -> None:
    with refused() as error:
        ocr_phases.connect(address)
    assert SECRET not in str(error.value)


def test_an_address_without_a_path_has_the_usual_one() -> None:
    assert Server("http://host:1").url == "http://host:1/v1"


def test_a_model_that_the_server_lacks_is_refused_by_name(vllm: Fake) -> None:
    with refused():
        ocr_phases.connect(vllm.url, "big")


def test_a_fault_before_the_first_repeat_ends_is_an_error(vllm: Fake) -> None:
    vllm.fault = "500"
    with refused():
        measure(vllm, warmup=0)


def test_one_of_several_models_is_named(vllm: Fake) -> None:
    vllm.models = ["a", "b"]
    with refused():
        ocr_phases.connect(vllm.url)

    session = ocr_phases.connect(f"{vllm.url}#b", family="deepseek-ocr")
    assert session.model == "b"


#: What a server cannot be asked for, or not without more.
REFUSED_SETTINGS: dict[str, Any] = {
    "strategy": "compiled",
    "vision": "compiled",
    "generate": True,
    "kernels": True,
    "first_token": "redecode",
    "autocast": True,
    "eos_check_every": 4,
    "verify": True,
}


@pytest.mark.parametrize("name", REFUSED_SETTINGS)
def test_a_setting_that_a_server_has_not_is_refused_by_name(name: str, vllm: Fake) -> None:
    with refused():
        measure(vllm, **{name: REFUSED_SETTINGS[name]})


def test_a_server_is_asked_for_one_page_at_a_time(vllm: Fake) -> None:
    with refused():
        ocr_phases.connect(vllm.url).run_inference([PAGE, PAGE])


@pytest.mark.parametrize(
    "levels",
    [
        pytest.param((), id="none"),
        pytest.param((1, 0), id="zero"),
        pytest.param((1, 1001), id="too-many"),
    ],
)
def test_a_load_needs_levels_above_zero(levels: tuple[int, ...], vllm: Fake) -> None:
    with refused():
        ocr_phases.connect(vllm.url).load_test(PAGE, levels)


@pytest.mark.parametrize("requests", [0, -4, 10_001])
def test_a_load_needs_a_number_of_requests_that_one_client_can_send(
    requests: int, vllm: Fake
) -> None:
    with refused():
        ocr_phases.connect(vllm.url).load_test(PAGE, (1,), requests=requests)


def test_the_key_is_sent_and_kept_nowhere(
    vllm: Fake,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    vllm.key = SECRET
    with refused():
        ocr_phases.connect(vllm.url)

    monkeypatch.setenv("OCR_PHASES_API_KEY", SECRET)
    out = tmp_path / "report"
    assert main(["report", str(PAGE), "--out", str(out), *SHORT_OPTIONS, vllm.url]) == 0
    vllm.fault = "400"
    assert main(["profile", str(PAGE), *SHORT_OPTIONS, vllm.url]) == 2
    vllm.key = "another"
    assert main(["profile", str(PAGE), *SHORT_OPTIONS, vllm.url]) == 2

    printed = capsys.readouterr()
    said = printed.out + printed.err
    assert "(400: no, said the server …)" in said
    assert SECRET not in said
    files = [path for path in out.rglob("*") if path.is_file()]
    assert len(files) > 3
    for path in files:
        assert SECRET not in path.read_text(errors="replace")
    assert vllm.url in (out / PAGE.stem / "run.json").read_text()


def test_verify_names_a_missing_bos_and_the_first_difference(
    vllm: Fake, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    vllm.bos = False
    vllm.image_tokens = 73
    saved = tmp_path / "run.json"
    options = ["--max-new-tokens", "8", "--preset", "tiny", "--repeats", "1", "--server", vllm.url]

    code = main(["verify", str(PAGES / "receipt.png"), "--save", str(saved), *options])

    assert code == 1
    assert "token 5 of 8 is the first that differs (900, generate(): 31)" in capsys.readouterr().out
    run = PhaseRun.load(saved)
    assert run.model.implementation == "server"
    assert check_result(run, "server_prompt")[0] == "fail"
    assert check_result(run, "parity")[0] == "fail"


def test_a_server_and_a_model_are_not_both_taken(
    vllm: Fake, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["profile", str(PAGE), "--model", "tiny", *SHORT_OPTIONS, vllm.url]) == 2
    assert "--server has its model" in capsys.readouterr().err


# -- a load test -----------------------------------------------------------------------------------


def test_a_load_tells_its_knee_and_its_price(vllm: Fake) -> None:
    vllm.vision = 0.05
    session = ocr_phases.connect(vllm.url)

    result = session.load_test(
        PAGE, (1, 2), rates=(1200,), price_per_hour=3.0, requests=4, max_new_tokens=8
    )

    table = result.table.set_index("level")
    assert list(table.index) == ["1 at once", "2 at once", "1200/min"]
    assert table.loc["2 at once", "pages_per_min"] > 1.1 * table.loc["1 at once", "pages_per_min"]
    assert table["ttft_p50_ms"].between(40, 400).all()
    price_per_min = table["price_per_1000_pages"] * table["pages_per_min"] / 1000
    assert price_per_min.tolist() == pytest.approx([3.0 / 60] * 3)
    assert result.knee == ""
    assert result.verdict.startswith(
        "Pages per minute were still rising at 2 at once, the highest level tried: "
    )
    assert "\n    level  requests" in result._repr_mimebundle_()["text/plain"]


def test_a_load_tells_what_failed(vllm: Fake, tmp_path: Path) -> None:
    vllm.fault = "500"
    vllm.fault_from = 2  # the warm-up and one page go well
    session = ocr_phases.connect(vllm.url)

    result = session.load_test([PAGE], (2,), max_new_tokens=8)  # four pages for each at once

    assert result.table["errors"].tolist() == [7]
    assert result.verdict.endswith("7 requests failed.")
    assert "no, said the server" in result.save(tmp_path / "load").read_text()


def pages_of_growing_times() -> list[AskedPage]:
    """As many pages as a tail needs, each begun a second after the one before. Its three tokens
    came 1, 2 and 4 s after it was asked for.
    """
    pages = []
    for second in range(TAIL_FROM):
        times = [second + 1.0, second + 2.0, second + 4.0]
        pages.append(
            AskedPage(level="1 at once", begun=float(second), times=times, tokens=3, timed=True)
        )
    return pages


FAILED_PAGE = AskedPage(level="1 at once", begun=0.0, error="no")


def test_figures_of_a_load_are_those_of_its_pages() -> None:
    result = LoadResult("here", [*pages_of_growing_times(), FAILED_PAGE])

    level = result.table.iloc[0]
    last_token_s = TAIL_FROM - 1 + 4
    assert level["requests"] == TAIL_FROM + 1
    assert level["errors"] == 1
    assert level["pages_per_min"] == pytest.approx(60 * TAIL_FROM / last_token_s)
    assert level["tokens_per_s"] == pytest.approx(3 * TAIL_FROM / last_token_s)
    assert level["ttft_p50_ms"] == 1000.0
    assert level["ttft_p99_ms"] == 1000.0
    assert level["inter_token_p50_ms"] == 1500.0
    assert level["inter_token_p99_ms"] == 2000.0


def test_few_pages_have_no_tail() -> None:
    result = LoadResult("here", pages_of_growing_times()[1:])
    assert result.table[["ttft_p99_ms", "inter_token_p99_ms"]].isna().all(axis=None)


def test_the_plots_of_a_load_show_its_pages() -> None:
    result = LoadResult("here", pages_of_growing_times()[1:])

    (axes,) = result.plot.stalls().axes
    assert axes.get_title(loc="left").startswith(
        "One page's tokens: 1.50 s apart, 2.00 s while another"
    )
    assert axes.lines[0].get_xdata().tolist() == [3.0, 5.0]  # of the page asked for after 1 s
    points, _ = result.plot.throughput().axes[0].lines
    assert points.get_ydata().tolist() == [1000.0]


def test_names_of_levels_stand_above_and_those_of_the_open_loop_below() -> None:
    at_once = AskedPage(level="2 at once", begun=0.0, times=[1.0, 2.0], tokens=2, timed=True)
    at_random = AskedPage(level="60/min", begun=0.0, times=[1.0, 2.0], tokens=2, timed=True)

    (axes,) = LoadResult("here", [at_once, at_random]).plot.throughput().axes

    points_above = {text.get_text(): text.xyann[1] for text in axes.texts}
    assert points_above["2 at once"] > 0 > points_above["60/min"]


def test_a_load_in_which_all_failed_has_no_knee() -> None:
    nothing = "There is no knee: no level of pages at once read a page. 1 request failed."
    assert LoadResult("here", [FAILED_PAGE]).verdict == nothing


def test_a_stall_blames_another_page_only_where_one_waited_for_its_first_token() -> None:
    times = [1.0, 2.0, 4.0]
    page = AskedPage(level="2 at once", begun=0.0, times=times, tokens=3, timed=True)
    before = AskedPage(level="2 at once", begun=0.5, times=[1.5], tokens=1)
    during = AskedPage(level="2 at once", begun=2.5, times=[3.5], tokens=1)
    of_another_level = AskedPage(level="4 at once", begun=2.5, times=[3.5], tokens=1)

    (alone,) = LoadResult("here", [page, before, of_another_level]).plot.stalls().axes
    (beside,) = LoadResult("here", [page, before, during]).plot.stalls().axes

    assert alone.get_title(loc="left") == "One page's tokens: 1.50 s apart, 2.00 s at most"
    assert beside.get_title(loc="left").endswith("2.00 s while another waits for its first")


def test_a_saved_load_says_what_was_read_by_whom_and_when(tmp_path: Path) -> None:
    page = AskedPage(level="30/min", begun=0.0, times=[0.5, 0.6], tokens=2, timed=True)
    result = LoadResult(
        "http://host/v1",
        [page],
        slo={"ttft": 500.0},
        engine="vllm 0.32.0",
        model="DeepSeek-OCR",
        page="a.png and 2 more pages",
        created="2026-11-28T10:20:30+00:00",
    )

    html = result.save(tmp_path).read_text()

    for fact in (
        "<title>Load on http://host/v1 – ocr_phases</title>",
        "DeepSeek-OCR · vllm 0.32.0 · a.png and 2 more pages · 2026-11-28 10:20:30 UTC",
        "objective: first token within 500 ms",
        "sends 30 pages per minute at random times",
        'href="load.json"',
        'href="#Stalls"',
    ):
        assert fact in html
    assert "first token p99" not in html  # no level has 100 requests


@dataclass(frozen=True)
class KneeCase:
    """Levels in their order, with the seconds that ten pages took (None: all failed), the knee of
    them, and how the verdict begins.
    """

    levels: dict[str, float | None]
    verdict: str
    knee: str = ""


NO_LEVEL = "There is no knee: no level of pages at once read a page"
KNEES = {
    "one-level": KneeCase({"1 at once": 10}, "There is no knee: 1 at once is the only level"),
    "one-high-level": KneeCase(
        {"64 at once": 10}, "There is no knee: 64 at once is the only level"
    ),
    "rising": KneeCase(
        {"1 at once": 10, "2 at once": 5}, "Pages per minute were still rising at 2 at once"
    ),
    "rising-in-another-order": KneeCase(
        {"2 at once": 5, "1 at once": 10}, "Pages per minute were still rising at 2 at once"
    ),
    "hardly-more": KneeCase(
        {"1 at once": 10, "2 at once": 9.5},
        "The knee is 1 at once: 60.0 pages per minute",
        knee="1 at once",
    ),
    "less": KneeCase(
        {"1 at once": 10, "2 at once": 20},
        "The knee is 1 at once: 60.0 pages per minute",
        knee="1 at once",
    ),
    "of-three": KneeCase(
        {"1 at once": 10, "2 at once": 5, "4 at once": 4.9},
        "The knee is 2 at once",
        knee="2 at once",
    ),
    "of-three-in-another-order": KneeCase(
        {"4 at once": 4.9, "1 at once": 10, "2 at once": 5},
        "The knee is 2 at once",
        knee="2 at once",
    ),
    "of-three-from-the-highest": KneeCase(
        {"16 at once": 4.9, "8 at once": 5, "2 at once": 10},
        "The knee is 8 at once",
        knee="8 at once",
    ),
    "less-and-then-more": KneeCase(
        {"1 at once": 10, "2 at once": 20, "4 at once": 5},
        "Pages per minute were still rising at 4",
    ),
    "highest-failed": KneeCase(
        {"1 at once": 10, "2 at once": 5, "4 at once": None},
        "Pages per minute were still rising at 2",
    ),
    "lowest-failed": KneeCase(
        {"1 at once": None, "2 at once": 5}, "There is no knee: 2 at once is the only level"
    ),
    "all-failed": KneeCase({"1 at once": None, "2 at once": None}, NO_LEVEL),
    "a-rate": KneeCase({"30/min": 10}, f"{NO_LEVEL}."),
    "rates": KneeCase({"30/min": 10, "60/min": 5, "90/min": 5}, f"{NO_LEVEL}."),
    "a-level-and-a-rate": KneeCase(
        {"1 at once": 10, "600/min": 9}, "There is no knee: 1 at once is the only level"
    ),
}


def ten_pages(level: str, seconds: float | None) -> list[AskedPage]:
    """Pages that were asked for together, and of which one ended after the other."""
    if seconds is None:
        return [AskedPage(level=level, begun=0.0, error="no")] * 10
    pages = []
    for number in range(1, 11):
        end = seconds * number / 10
        pages.append(AskedPage(level=level, begun=0.0, times=[end], tokens=1, timed=True))
    return pages


@pytest.mark.parametrize("case", KNEES)
def test_a_knee_needs_a_higher_level_that_brought_less(case: str) -> None:
    expected = KNEES[case]
    pages: list[AskedPage] = []
    for level, seconds in expected.levels.items():
        pages += ten_pages(level, seconds)

    result = LoadResult("here", pages)

    assert result.knee == expected.knee
    assert result.verdict.startswith(expected.verdict)


MARKDOWN = "<image>\n<|grounding|>Convert the document to markdown."


@dataclass(frozen=True)
class ToldPrompt:
    """What a server told of its prompt for a page of 1000 x 1400 at gundam, which has 903 image
    tokens, and what the check of its preset says of that.
    """

    verdict: str
    measured: str
    prompt_ids: list[int] = field(default_factory=list)
    usage: dict[str, int | None] = field(default_factory=dict)


def unknown(**usage: int | None) -> ToldPrompt:
    """A server that told nothing of its prompt."""
    return ToldPrompt("n/a", "tells neither", usage=usage)


def right(prompt_tokens: int) -> ToldPrompt:
    """A prompt of a length that gundam can have."""
    return ToldPrompt(
        "pass", "903 image tokens, as gundam has", usage={"prompt_tokens": prompt_tokens}
    )


def wrong(prompt_tokens: int, measured: str = "no preset has as many") -> ToldPrompt:
    """A prompt of a length that gundam cannot have."""
    return ToldPrompt("fail", measured, usage={"prompt_tokens": prompt_tokens})


IMAGE_IDS = [3] * 903
TOLD_PROMPTS = {
    "nothing": unknown(),
    "length-null": unknown(prompt_tokens=None),
    "length-0": unknown(prompt_tokens=0),
    "other-length": unknown(completion_tokens=5),
    "length-12": wrong(12),
    "length-500": wrong(500),
    "length-903": wrong(903),
    "length-907": right(907),
    "length-915": right(915),
    "length-937": right(937),
    "length-938": wrong(938),
    "length-1400": wrong(1400),
    "length-of-base": wrong(287, "it cut the page as base, into 1 x 1"),
    "ids": ToldPrompt("pass", "903 image tokens, as gundam has", prompt_ids=[0, *IMAGE_IDS, 1, 2]),
    "ids-of-a-long-text": ToldPrompt(
        "pass", "903 image tokens, as gundam has", prompt_ids=[0, *IMAGE_IDS, *range(50, 90)]
    ),
    "one-id-less": ToldPrompt(
        "fail", "no preset has as many", prompt_ids=[0, *IMAGE_IDS[1:], 1, 2]
    ),
    "wrong-ids-and-a-right-length": ToldPrompt(
        "fail",
        "as small, into 1 x 1",
        prompt_ids=[0, *IMAGE_IDS[:111], 1],
        usage={"prompt_tokens": 915},
    ),
    "right-ids-and-a-wrong-length": ToldPrompt(
        "pass", "903 image tokens", prompt_ids=[0, *IMAGE_IDS, 1], usage={"prompt_tokens": 12}
    ),
}


@pytest.mark.parametrize("case", TOLD_PROMPTS)
def test_a_preset_passes_only_by_what_the_server_told(case: str) -> None:
    told = TOLD_PROMPTS[case]
    answer = Answer(0.0, prompt_ids=told.prompt_ids, usage=told.usage)

    _, _, check = checks.how_page_was_cut(answer, GUNDAM, FAMILY, MARKDOWN, 1000, 1400)

    assert check.verdict == told.verdict
    assert told.measured in check.measured


PRESETS = [(family.name, preset) for family in FAMILIES.values() for preset in family.presets]


@pytest.mark.parametrize("more", [-14, 0, 16])
@pytest.mark.parametrize(("family", "name"), PRESETS)
def test_the_length_of_a_right_prompt_is_enough(family: str, name: str, more: int) -> None:
    facts = FAMILIES[family]
    preset = facts.preset(name)
    prompt = facts.text_of("a prompt of my own, which has some more words")
    image_tokens = image_token_count(preset, preset.grid(1000, 1400))
    text_tokens = checks.text_token_count(prompt) + more
    answer = Answer(0.0, usage={"prompt_tokens": image_tokens + text_tokens})

    found, count, check = checks.how_page_was_cut(answer, preset, facts, prompt, 1000, 1400)

    assert found.name == name
    assert count == image_tokens
    assert check.verdict == "pass"


def test_a_level_that_is_named_twice_is_measured_once(vllm: Fake) -> None:
    session = ocr_phases.connect(vllm.url)

    result = session.load_test(PAGE, (2, 1, 2), requests=2, max_new_tokens=2)

    assert result.table["level"].tolist() == ["2 at once", "1 at once"]
    assert result.table["requests"].tolist() == [2, 2]


def test_the_command_line_loads_a_server(
    vllm: Fake, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["sweep", "--pages", str(PAGES), "--server", vllm.url]
    command += ["--concurrency", "1,2", "--requests", "2", "--max-new-tokens", "4", "--json"]
    command += ["--price-per-hour", "2.5", "--out", str(tmp_path / "load")]

    assert main(command) == 0

    printed = json.loads(capsys.readouterr().out)
    assert [level["level"] for level in printed["levels"]] == ["1 at once", "2 at once"]
    assert all(level["price_per_1000_pages"] > 0 for level in printed["levels"])
    assert printed["concurrency"] == [1, 2]
    assert printed["rates_per_min"] == []
    assert Path(printed["report"]).exists()


def test_a_load_has_one_limit_of_new_tokens(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["sweep", str(PAGE), "--server", "http://127.0.0.1:9/v1"]

    assert main([*command, "--max-new-tokens", "32,128"]) == 2

    assert "give --max-new-tokens one number" in capsys.readouterr().err


def asking_threads() -> list[threading.Thread]:
    """The threads that ask for the pages of a load test."""
    return [thread for thread in threading.enumerate() if thread.name == "ocr_phases load"]


def interrupt_once_asking() -> None:
    """Send SIGINT to the main thread once a level's threads ask for pages."""

    def interrupt() -> None:
        while not asking_threads():
            time.sleep(0.001)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()


#: A second level, whose pages would take a while.
LONG_LEVELS: dict[str, dict[str, Any]] = {
    "in the middle of an answer": {"concurrency": (1, 2)},
    "before a page is sent": {"concurrency": (1,), "rates": (1,)},
}


@pytest.mark.parametrize("case", LONG_LEVELS)
def test_an_interrupted_load_ends_at_once_and_keeps_the_finished_levels(
    case: str, vllm: Fake
) -> None:
    session = ocr_phases.connect(vllm.url)

    def begin(level: str) -> None:
        if level != "1 at once":
            vllm.pause = 0.5  # after each of the 8 tokens
            interrupt_once_asking()

    with pytest.raises(KeyboardInterrupt, match="last_load has the finished levels"):
        session.load_test(PAGE, requests=4, max_new_tokens=8, progress=begin, **LONG_LEVELS[case])

    assert session.last_load is not None
    assert session.last_load.table["level"].tolist() == ["1 at once"]
    for thread in asking_threads():
        thread.join(20.0)  # it ends with the next piece of its answer
    assert not asking_threads()


def test_only_a_server_is_loaded(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", str(PAGE), "--concurrency", "2"]) == 2
    assert "Only a --server is loaded" in capsys.readouterr().err


# -- vLLM's worker ---------------------------------------------------------------------------------


def test_the_workers_clocks_see_the_native_classs_modules(golden_session: OCRSession) -> None:
    stages = golden_session.interface.modules(golden_session.model)
    modules = {MODULES[name]: stages[name] for name in ("sam", "clip", "projector")}
    clocks = StageClocks(SimpleNamespace(**modules), torch.device("cpu"))

    run = golden_session.run_inference(
        PAGE, preset="small", max_new_tokens=2, repeats=1, warmup=0, ceilings=False
    )

    now, rows = clocks.take()
    assert [stage for stage, *_ in rows[:3]] == ["sam", "clip", "projector"]
    _, sam_start, sam_ms, _ = rows[0]
    assert sam_ms == pytest.approx(run["sam_ms"], rel=0.2)
    assert sam_start + sam_ms / 1e3 <= now
    _, rows_after = clocks.take()
    assert rows_after == []


class VllmStage(torch.nn.Module):
    """A stage as vLLM calls it, which does nothing."""

    def forward(self, *args: Any, **kwargs: Any) -> None:
        pass


def test_the_extension_watches_a_vllm_worker() -> None:
    modules = {name: VllmStage() for name in MODULES.values() if name != "qwen2_model"}
    worker: Any = Stages()
    worker.model_runner = SimpleNamespace(get_model=lambda: SimpleNamespace(**modules))
    worker.device = torch.device("cpu")
    worker.vllm_config = SimpleNamespace(
        model_config=SimpleNamespace(dtype=torch.float32, enforce_eager=True),
        cache_config=SimpleNamespace(enable_prefix_caching=False),
        scheduler_config=SimpleNamespace(max_num_seqs=4, max_num_batched_tokens=2048),
    )

    facts = worker.ocr_watch()
    assert json.loads(json.dumps(facts))["model"]["dtype"] == "float32"
    assert worker.ocr_watch() == facts

    modules["sam_model"](torch.zeros(3, 640))
    modules["language_model"](None, torch.zeros(5), inputs_embeds=torch.zeros(5, 8))
    _, rows = worker.ocr_take()
    sam, language_model = rows
    assert sam[0] == "sam"
    assert sam[3] == 640
    assert language_model[0] == "language_model"
    assert language_model[3] == 5
    assert set(MODULES) - {"language_model"} == set(VISION_STAGES)
