"""A running server measured into a record: what is timed, what is missing, what goes wrong."""

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
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

PAGE = Path(ocr_phases.__file__).parents[1] / "data" / "pages" / "receipt.png"
SECRET = "sk-secret-123"
OTHER_CUT = "the server read 111 image tokens, base has 273:"
FAMILY = FAMILIES["deepseek-ocr"]
#: Settings of a short measurement, in Python and on the command line.
SHORT: dict[str, Any] = {"max_new_tokens": 8, "repeats": 2, "preset": "base"}
OPTIONS = ("--max-new-tokens", "8", "--preset", "base", "--repeats", "1", "--server")
QUICK = {"preset": "small", "max_new_tokens": 2, "repeats": 1, "warmup": 0, "ceilings": False}
TIMES = {"ttft_ms", "queue_ms", "prefill_ms", "decode_ms"}


@pytest.fixture
def vllm() -> Iterator[Fake]:
    with served() as fake:
        yield fake


def measure(fake: Fake, session: ServerSession | None = None, **settings: Any) -> PhaseRun:
    session = session or ocr_phases.connect(fake.url, patience=1.0)
    return session.run_inference(PAGE, **{**SHORT, **settings})


def found(run: PhaseRun, name: str) -> tuple[str, str]:
    row = run.checks.set_index("name").loc[name]
    return row["verdict"], row["measured"]


def test_a_server_is_timed_as_far_as_it_tells_and_the_rest_is_missing(vllm: Fake, tmp_path: Path):
    run = measure(vllm)
    assert (run.result.ids, run.text) == (IDS, "".join(TOKENS))
    assert (run.request.prefill_len, run["decode_steps"]) == (276, len(IDS) - 1)
    assert run["inter_token_ms"] > 0
    assert set(run.spans["stage"]) >= {"queue", "preprocess", "prefill", "decode_step"}
    assert run["ttft_ms"] == pytest.approx(run["prepare_ms"] + run["prefill_ms"], rel=0.2)
    assert run.tokens["probability"].round(3).eq(0.607).all()
    assert found(run, "server_preset") == ("pass", "273 image tokens, as base has")
    assert found(run, "fresh_prompt")[0] == "pass"
    wanted = {
        "temperature": 0.0,
        "max_tokens": 8,
        "ignore_eos": False,
        "skip_special_tokens": False,
    }
    assert wanted.items() <= vllm.bodies[0].items()
    again = PhaseRun.load(run.save(tmp_path / "run.json"))
    assert again.model.server["engine"] == "vllm"
    assert [set(times) for times in again.model.server["times"]] == [TIMES] * 2
    missing = (
        "vision_ms",
        "vision_share",
        "stage_coverage",
        "sam_ms",
        "peak_bytes",
        "kv_cache_bytes",
    )
    assert [run[name] for name in missing] == [None] * len(missing)
    assert run.floors.empty
    assert found(run, "stage_coverage")[0] == found(run, "decode_memory")[0] == "n/a"
    assert found(run, "eval_mode") == ("n/a", "a server does not show it")
    shown = run._repr_mimebundle_()
    assert "rest of the prefill" not in shown["text/html"]
    assert "vision" not in shown["text/plain"].lower()
    table = ocr_phases.compare(run, run).table.set_index("metric")
    assert "vision_ms" not in table.index or table.loc["vision_ms", "baseline"] != 0


def test_stages_of_the_worker_lie_in_the_prefill(vllm: Fake):
    vllm.watched = True
    vllm.pause = 0.02  # a busy client that reads two tokens at once would leave the repeat out
    run = measure(vllm)
    spans = run.spans[run.spans["repeat"] == 0].set_index("stage")
    whole = spans.loc["prefill"]
    sam = spans.loc["sam"]
    assert whole["host_start_ms"] <= sam["host_start_ms"]
    assert sam["host_start_ms"] + sam["host_ms"] <= whole["host_start_ms"] + whole["host_ms"]
    decode = run.spans[run.spans["phase"] == "decode"]
    assert (decode["stage"] == "language_model").sum() == 2 * (len(IDS) - 1)
    assert run["vision_ms"] > 0
    assert run.model.dtype == "float32"
    vllm.others = 1  # who shares the server may have run the stages
    run = measure(vllm)
    assert (run["prepare_ms"], run["vision_ms"]) == (None, None)
    assert run.model.server["times"] == [{}, {}]


def test_a_long_prompt_takes_several_forwards():
    stages = [("sam", 1.0, 1.0, 640), ("sam", 2.0, 1.0, 640)]
    stages += [("language_model", 3.0, 1.0, 256), ("language_model", 5.0, 1.0, 20)]
    stages += [("language_model", 10.0 + step, 0.5, 1) for step in range(3)]
    times: dict[str, Any] = {
        "times": [10.0, 11.0, 12.0],
        "ids": [7, 8, 9],
        "texts": ["a", "b", "c"],
    }
    spans = spans_of(
        [Answer(0.0, **times, ids_with_pieces=True, usage={"prompt_tokens": 276}, stages=stages)]
    )
    text = spans[spans["stage"] == "language_model"]
    assert text["phase"].tolist() == ["prefill"] * 2 + ["decode"] * 2  # the last one makes no token
    assert text["step"].fillna(-1).tolist() == [-1, -1, 0, 1]
    assert spans.set_index("stage").loc["prefill", "host_start_ms"] == 1.0
    assert spans[spans["stage"] == "sam"]["view"].tolist() == ["global", "local"]
    assert "preprocess" not in set(spans["stage"])  # of which nobody told


NO_IDS = "the server sends no ids, so its pieces have numbers"
DIALECTS = [("sglang", IDS, "ids came at the end", {"strategy": "cuda_graph"})]
DIALECTS += [("other", [*range(8)], NO_IDS, {"ignore_eos": True})]


@pytest.mark.parametrize(("dialect", "ids", "told", "cannot"), DIALECTS)
def test_other_dialects_are_timed_by_their_chunks_of_text(dialect, ids, told, cannot):
    with served(dialect) as fake:
        run = measure(fake)
        with refused():
            measure(fake, **cannot)
    assert (run.result.ids, run["decode_steps"]) == (ids, len(TOKENS) - 1)
    assert found(run, "token_times") == ("note", f"chunks of text are timed: {told}")
    assert fake.bodies[0]["messages"][0]["content"][1]["text"].startswith("<|grounding|>")
    assert run["prepare_ms"] is None


@pytest.mark.parametrize(
    ("dialect", "infer", "sent"),
    [
        ("vllm", {"repetition_penalty": 1.2}, 1.2),
        ("sglang", {"repetition_penalty": 1.2}, 1.2),
        ("other", {"repetition_penalty": 1.2}, "refused"),
        ("vllm", {"repetition_penalty": 1}, None),
        ("other", {"repetition_penalty": 1}, None),
        ("other", {}, None),
    ],
)
def test_a_repetition_penalty_is_sent_or_refused(dialect, infer, sent):
    with served(dialect) as fake:
        if sent == "refused":
            with pytest.raises(
                OcrPhasesError, match=r"This server cannot do repetition_penalty=1\.2"
            ):
                measure(fake, infer=infer)
        else:
            run = measure(fake, infer=infer)
            assert fake.bodies[0].get("repetition_penalty") == sent
            assert run.request.infer.repetition_penalty == sent


#: What the server does, the size of runs that it is asked not to repeat, and the check that says
#: so.
CHECKED: list[tuple[dict[str, Any], int, str, str, str]] = [
    (
        {"a_chunk": 3},
        0,
        "token_times",
        "fail",
        "3 chunks came for 8 tokens: there is no inter-token latency",
    ),
    ({"cached": 0}, 0, "fresh_prompt", "pass", "no prompt token came from a cache"),
    ({"cached": 256}, 0, "fresh_prompt", "fail", "a cache had 256 of 276 prompt tokens"),
    (
        {"image_tokens": 111},
        0,
        "server_preset",
        "fail",
        f"{OTHER_CUT} it cut the page as small, into 1 x 1",
    ),
    ({}, 3, "repetition_rule", "pass", "0 of 6 runs of 3 tokens were there before"),
]


@pytest.mark.parametrize(("does", "size", "name", "verdict", "told"), CHECKED)
def test_checks_say_what_a_server_did(vllm: Fake, does, size, name, verdict, told):
    vars(vllm).update(does)
    run, timed = measure(vllm, infer={"no_repeat_ngram_size": size}), name != "token_times"
    assert found(run, name) == (verdict, told)
    assert (run.result.ids, run["decode_ms"] > 0) == (IDS, True)
    assert (run["inter_token_ms"] is not None, run["decode_steps"]) == (
        timed,
        timed * (len(IDS) - 1),
    )
    assert "--no-enable-prefix-caching" in run.checks.set_index("name").loc["fresh_prompt", "fix"]
    assert len({body["cache_salt"] for body in vllm.bodies}) == len(vllm.bodies)
    assert not size or vllm.bodies[0]["vllm_xargs"]["ngram_size"] == size
    run._repr_mimebundle_()


def test_only_a_repeat_whose_tokens_came_together_is_left_out(vllm: Fake):
    def joined(done: int, total: int) -> None:
        vllm.a_chunk = 3 if done == 2 else 1

    run = measure(vllm, progress=joined, repeats=3)
    assert (run.repeats, run.request.repeats, run["decode_steps"]) == ([0, 1], 2, len(IDS) - 1)
    assert run.spans.groupby("repeat")["stage"].value_counts().unstack().nunique().eq(1).all()
    told = "left out: 1 more repeat, with tokens that came together"
    assert found(run, "token_times") == ("note", told)
    assert "interrupted" not in run.checks.set_index("name").index


def test_what_is_found_in_an_answer_itself():
    assert (
        Answer(0.0, times=[1.0, 1.01, 1.02, 5.0]).untimed
        == "2 of 4 chunks came together with another"
    )
    assert not Answer(0.0, times=[1.0, 1.01, 3.0, 5.0]).untimed
    given: dict[str, Any] = {"times": [5.0, 25.0], "ids": [1, 2]}
    blind = Answer(0.0, **given, stages=[("language_model", 1.0, 1.0, 9)])
    other = Answer(0.0, **given)  # where nobody tells of a cache it is found by time
    for answer, first, verdict in [
        (blind, 400.0, "fail"),
        (other, 400.0, "fail"),
        (other, 18.0, "pass"),
    ]:
        (fresh, *_) = checks.own_checks([answer], 0, first)
        assert fresh.verdict == verdict
        assert "no vision ran in 1 repeat" in fresh.measured or not answer.stages
    gundam = FAMILY.presets["gundam"]
    cuts: dict[str, dict[str, Any]] = {
        "it cut the page as gundam, into 1 x 2": {
            "prompt_ids": [3] * image_token_count(gundam, (1, 2))
        },
        "no preset has as many": {"prompt_ids": [3] * 7},
        "cut the page as small, into 1 x 1": {"usage": {"prompt_tokens": 115}},
    }
    for told, tokens in cuts.items():
        cut = checks.how_page_was_cut(
            Answer(0.0, **tokens), gundam, FAMILY, "<image>Free OCR.", 1000, 2000
        )
        assert cut[2].measured.endswith(told)
    bos = "the server's prompt has 2 tokens for 3: the BOS at its beginning is missing"
    for ids, count, told in [([9, 9], 2, bos), ([], 2, bos), ([0, 9, 9], 3, "3 tokens in both")]:
        answer = Answer(0.0, prompt_ids=ids, usage={"prompt_tokens": count})
        assert checks.prompt_check(answer, [0, 9, 9]).measured == told


#: Ids, the size and window of the rule, and how many runs break it; one stands just before the
#: window.
RULES = [([1, 2, 3, 1, 2, 3], 3, 0, 1), ([1, 2, 3, 1, 2, 4], 3, 0, 0)]
RULES += [([1, 2, 9, 9, 1, 2], 2, 6, 1), ([1, 2, 9, 9, 1, 2], 2, 5, 0)]


@pytest.mark.parametrize(("ids", "size", "window", "count"), RULES)
def test_a_server_that_repeats_tokens_breaks_the_rule(ids, size, window, count):
    rule = RepetitionRule(size, window or None)
    answer = Answer(0.0, times=[9.0 * place for place, _ in enumerate(ids, 1)], ids=ids)
    *_, broken = checks.own_checks([answer], 0, 9.0, rule)
    assert (broken.name, broken.verdict) == ("repetition_rule", "fail" if count else "pass")
    assert broken.measured.startswith(f"{count} of ")


FAULTS = ("401", "429", "500", "400", "redirect", "whole", "huge", "stall", "disconnect")
FAULTS += ("malformed", "mistyped", "error")


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_one_sentence_and_keeps_what_was_measured(vllm: Fake, fault: str):
    vllm.fault, vllm.fault_from = fault, 1  # one repeat goes well
    run = measure(vllm, warmup=0)
    assert run.repeats == [0]
    with refused():
        raise OcrPhasesError(found(run, "interrupted")[1])


@pytest.mark.parametrize(
    "address",
    ["ftp://host/v1", "http://host:port", f"http://me:{SECRET}@host/v1", "http://127.0.0.1:9/v1"],
)
def test_a_wrong_address_is_refused(address: str):
    with refused() as error:
        ocr_phases.connect(address)
    assert SECRET not in str(error.value)
    assert Server("http://host:1").url == "http://host:1/v1"


#: What a server cannot be asked for, or not without more.
REFUSED: dict[str, Any] = {
    "strategy": "compiled",
    "vision": "compiled",
    "generate": True,
    "kernels": True,
}
REFUSED |= {"first_token": "redecode", "autocast": True, "eos_check_every": 4, "verify": True}


def test_models_and_settings_that_a_server_has_not_are_refused_by_name(vllm: Fake):
    with refused():
        ocr_phases.connect(vllm.url, "big")
    vllm.fault = "500"  # before the first repeat ends
    with refused():
        measure(vllm, warmup=0)
    vllm.models = ["a", "b"]
    with refused():
        ocr_phases.connect(vllm.url)
    session = ocr_phases.connect(f"{vllm.url}#b", family="deepseek-ocr")
    assert session.model == "b"
    for name, value in REFUSED.items():
        with refused():
            measure(vllm, session, **{name: value})
    with refused():
        session.run_inference([PAGE, PAGE])
    for levels in ((), (1, 0)):
        with refused():
            session.load_test(PAGE, levels)


def test_the_key_is_sent_and_kept_nowhere(vllm: Fake, monkeypatch, tmp_path: Path, capsys):
    monkeypatch.chdir(tmp_path)
    vllm.key = SECRET
    with refused():
        ocr_phases.connect(vllm.url)
    monkeypatch.setenv("OCR_PHASES_API_KEY", SECRET)
    target = tmp_path / "report"
    assert main(["report", str(PAGE), "--out", str(target), *OPTIONS, vllm.url]) == 0
    vllm.fault = "400"
    assert main(["profile", str(PAGE), *OPTIONS, vllm.url]) == 2
    vllm.key = "another"
    assert main(["profile", str(PAGE), *OPTIONS, vllm.url]) == 2
    said = "".join(capsys.readouterr())
    assert "(400: no, said the server …)" in said
    texts = [path.read_text(errors="replace") for path in target.rglob("*") if path.is_file()]
    assert len(texts) > 3
    assert not any(SECRET in text for text in [*texts, said])
    assert vllm.url in (target / "receipt" / "run.json").read_text()


def test_verify_names_a_missing_bos_and_the_first_difference(vllm: Fake, tmp_path: Path, capsys):
    vllm.bos, vllm.image_tokens, saved = False, 73, tmp_path / "run.json"
    options = [*OPTIONS[:2], "--preset", "tiny", *OPTIONS[4:], vllm.url]
    assert main(["verify", str(PAGE), "--save", str(saved), *options]) == 1
    assert "token 5 of 8 is the first that differs (900, generate(): 31)" in capsys.readouterr().out
    run = PhaseRun.load(saved)
    assert run.model.implementation == "server"
    assert found(run, "server_prompt")[0] == found(run, "parity")[0] == "fail"
    assert main(["profile", str(PAGE), "--model", "tiny", *OPTIONS, vllm.url]) == 2
    assert "--server has its model" in capsys.readouterr().err


def test_a_load_tells_its_knee_its_price_and_what_failed(vllm: Fake, tmp_path: Path):
    vllm.vision = 0.05
    session = ocr_phases.connect(vllm.url)
    asked: dict[str, Any] = {"requests": 4, "max_new_tokens": 8}
    result = session.load_test(PAGE, (1, 2), rates=(1200,), price_per_hour=3.0, **asked)
    table = result.table.set_index("level")
    assert list(table.index) == ["1 at once", "2 at once", "1200/min"]
    assert table.loc["2 at once", "pages_per_min"] > 1.1 * table.loc["1 at once", "pages_per_min"]
    assert table["ttft_p50_ms"].between(40, 400).all()
    assert (table["price_per_1000_pages"] * table["pages_per_min"]).tolist() == pytest.approx(
        [50.0] * 3
    )
    assert result.knee == ""
    assert result.verdict.startswith(
        "Pages per minute were still rising at 2 at once, the highest level tried: "
    )
    assert "\n    level  requests" in result._repr_mimebundle_()["text/plain"]
    vllm.fault, vllm.fault_from = "500", len(vllm.bodies) + 2
    result = session.load_test([PAGE], (2,), max_new_tokens=8)  # four pages for each at once
    assert result.table["errors"].tolist() == [7]
    assert result.verdict.endswith("7 requests failed.")
    assert "no, said the server" in result.save(tmp_path / "load").read_text()


def test_figures_of_a_load_are_those_of_its_rows():
    rows = []
    for second in range(TAIL_FROM):
        times = [second + 1.0, second + 2.0, second + 4.0]
        rows.append(
            AskedPage(level="1 at once", begun=float(second), times=times, tokens=3, timed=True)
        )
    failed = AskedPage(level="1 at once", begun=0.0, error="no")
    table = LoadResult("here", [*rows, failed]).table.iloc[0]
    assert (table["requests"], table["errors"]) == (TAIL_FROM + 1, 1)
    assert table["pages_per_min"] == pytest.approx(60 * TAIL_FROM / 103)
    assert table["tokens_per_s"] == pytest.approx(3 * TAIL_FROM / 103)
    assert (table["ttft_p50_ms"], table["ttft_p99_ms"]) == (1000.0, 1000.0)
    assert (table["inter_token_p50_ms"], table["inter_token_p99_ms"]) == (1500.0, 2000.0)
    few = LoadResult("here", rows[1:])
    assert few.table[["ttft_p99_ms", "inter_token_p99_ms"]].isna().all(axis=None)
    (axes,) = few.plot.stalls().axes
    assert axes.get_title(loc="left").startswith(
        "One page's tokens: 1.50 s apart, 2.00 s while another"
    )
    assert axes.lines[0].get_xdata().tolist() == [3.0, 5.0]  # of the page asked for after 1 s
    (points, _) = few.plot.throughput().axes[0].lines
    assert points.get_ydata().tolist() == [1000.0]
    nothing = "There is no knee: no level of pages at once read a page. 1 request failed."
    assert LoadResult("here", [failed]).verdict == nothing


def test_a_stall_blames_another_page_only_where_one_waited_for_its_first_token():
    times = [1.0, 2.0, 4.0]
    page = AskedPage(level="2 at once", begun=0.0, times=times, tokens=3, timed=True)
    before = AskedPage(level="2 at once", begun=0.5, times=[1.5], tokens=1)
    during = AskedPage(level="2 at once", begun=2.5, times=[3.5], tokens=1)
    elsewhere = AskedPage(level="4 at once", begun=2.5, times=[3.5], tokens=1)
    (axes,) = LoadResult("here", [page, before, elsewhere]).plot.stalls().axes
    assert axes.get_title(loc="left") == "One page's tokens: 1.50 s apart, 2.00 s at most"
    (axes,) = LoadResult("here", [page, before, during]).plot.stalls().axes
    assert axes.get_title(loc="left").endswith("2.00 s while another waits for its first")


def test_a_saved_load_says_what_was_read_by_whom_and_when(tmp_path: Path):
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


#: Levels in their order, with the seconds for ten pages (None: all failed); the knee; the verdict's
#: start.
KNEES: list[tuple[list[tuple[str, float | None]], str, str]] = [
    ([("1 at once", 10)], "", "There is no knee: 1 at once is the only level"),
    ([("64 at once", 10)], "", "There is no knee: 64 at once is the only level"),
    ([("1 at once", 10), ("2 at once", 5)], "", "Pages per minute were still rising at 2 at once"),
    ([("2 at once", 5), ("1 at once", 10)], "", "Pages per minute were still rising at 2 at once"),
    (
        [("1 at once", 10), ("2 at once", 9.5)],
        "1 at once",
        "The knee is 1 at once: 60.0 pages per minute",
    ),
    (
        [("1 at once", 10), ("2 at once", 20)],
        "1 at once",
        "The knee is 1 at once: 60.0 pages per minute",
    ),
    (
        [("1 at once", 10), ("2 at once", 5), ("4 at once", 4.9)],
        "2 at once",
        "The knee is 2 at once",
    ),
    (
        [("4 at once", 4.9), ("1 at once", 10), ("2 at once", 5)],
        "2 at once",
        "The knee is 2 at once",
    ),
    (
        [("16 at once", 4.9), ("8 at once", 5), ("2 at once", 10)],
        "8 at once",
        "The knee is 8 at once",
    ),
    (
        [("1 at once", 10), ("2 at once", 20), ("4 at once", 5)],
        "",
        "Pages per minute were still rising at 4",
    ),
    (
        [("1 at once", 10), ("2 at once", 5), ("4 at once", None)],
        "",
        "Pages per minute were still rising at 2",
    ),
    ([("1 at once", None), ("2 at once", 5)], "", "There is no knee: 2 at once is the only level"),
    (
        [("1 at once", None), ("2 at once", None)],
        "",
        "There is no knee: no level of pages at once read a page",
    ),
    ([("30/min", 10)], "", "There is no knee: no level of pages at once read a page."),
    (
        [("30/min", 10), ("60/min", 5), ("90/min", 5)],
        "",
        "There is no knee: no level of pages at once read a page.",
    ),
    ([("1 at once", 10), ("600/min", 9)], "", "There is no knee: 1 at once is the only level"),
]


@pytest.mark.parametrize(("levels", "knee", "verdict"), KNEES)
def test_a_knee_needs_a_higher_level_that_brought_less(levels, knee, verdict):
    rows = []
    for level, seconds in levels:
        for page in range(10):
            if seconds is None:
                rows.append(AskedPage(level=level, begun=0.0, error="no"))
                continue
            times = [seconds * (page + 1) / 10]
            rows.append(AskedPage(level=level, begun=0.0, times=times, tokens=1, timed=True))
    result = LoadResult("here", rows)
    assert result.knee == knee
    assert result.verdict.startswith(verdict)


MARKDOWN = "<image>\n<|grounding|>Convert the document to markdown."
#: What a server told of its prompt for a page of 1000 x 1400 at gundam, 903 image tokens; and the
#: verdict.
TOLD: list[tuple[dict[str, Any], str, str]] = [
    ({}, "n/a", "tells neither"),
    ({"usage": {"prompt_tokens": None}}, "n/a", "tells neither"),
    ({"usage": {"prompt_tokens": 0}}, "n/a", "tells neither"),
    ({"usage": {"completion_tokens": 5}}, "n/a", "tells neither"),
    ({"usage": {"prompt_tokens": 12}}, "fail", "no preset has as many"),
    ({"usage": {"prompt_tokens": 500}}, "fail", "no preset has as many"),
    ({"usage": {"prompt_tokens": 907}}, "pass", "903 image tokens, as gundam has"),
    ({"usage": {"prompt_tokens": 915}}, "pass", "903 image tokens, as gundam has"),
    ({"usage": {"prompt_tokens": 937}}, "pass", "903 image tokens, as gundam has"),
    ({"usage": {"prompt_tokens": 938}}, "fail", "no preset has as many"),
    ({"usage": {"prompt_tokens": 903}}, "fail", "no preset has as many"),
    ({"usage": {"prompt_tokens": 1400}}, "fail", "no preset has as many"),
    ({"usage": {"prompt_tokens": 287}}, "fail", "it cut the page as base, into 1 x 1"),
    ({"prompt_ids": [0, *[3] * 903, 1, 2]}, "pass", "903 image tokens, as gundam has"),
    ({"prompt_ids": [0, *[3] * 903, *range(50, 90)]}, "pass", "903 image tokens, as gundam has"),
    ({"prompt_ids": [0, *[3] * 902, 1, 2]}, "fail", "no preset has as many"),
    (
        {"prompt_ids": [0, *[3] * 111, 1], "usage": {"prompt_tokens": 915}},
        "fail",
        "as small, into 1 x 1",
    ),
    (
        {"prompt_ids": [0, *[3] * 903, 1], "usage": {"prompt_tokens": 12}},
        "pass",
        "903 image tokens",
    ),
]


@pytest.mark.parametrize(("told", "verdict", "says"), TOLD)
def test_a_preset_passes_only_by_what_the_server_told(told, verdict, says):
    _, _, check = checks.how_page_was_cut(
        Answer(0.0, **told), FAMILY.preset("gundam"), FAMILY, MARKDOWN, 1000, 1400
    )
    assert check.verdict == verdict
    assert says in check.measured


@pytest.mark.parametrize("more", [-14, 0, 16])
@pytest.mark.parametrize(
    ("family", "name"), [(row.name, name) for row in FAMILIES.values() for name in row.presets]
)
def test_the_length_of_a_right_prompt_is_enough(family, name, more):
    facts = FAMILIES[family]
    preset = facts.preset(name)
    prompt = facts.text_of("a prompt of my own, which has some more words")
    image = image_token_count(preset, preset.grid(1000, 1400))
    answer = Answer(0.0, usage={"prompt_tokens": image + checks.text_token_count(prompt) + more})
    found_preset, count, check = checks.how_page_was_cut(answer, preset, facts, prompt, 1000, 1400)
    assert (found_preset.name, count, check.verdict) == (name, image, "pass")


def test_a_level_that_is_named_twice_is_measured_once(vllm: Fake):
    result = ocr_phases.connect(vllm.url).load_test(PAGE, (2, 1, 2), requests=2, max_new_tokens=2)
    assert result.table["level"].tolist() == ["2 at once", "1 at once"]
    assert result.table["requests"].tolist() == [2, 2]


def test_the_command_line_loads_a_server(vllm: Fake, tmp_path: Path, capsys):
    options = ["--concurrency", "1,2", "--requests", "2", "--max-new-tokens", "4", "--json"]
    options += ["--price-per-hour", "2.5", "--out", str(tmp_path / "load")]
    assert main(["sweep", "--pages", str(PAGE.parent), "--server", vllm.url, *options]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [row["level"] for row in told["levels"]] == ["1 at once", "2 at once"]
    assert (told["concurrency"], told["rates_per_min"]) == ([1, 2], [])
    assert all(row["price_per_1000_pages"] > 0 for row in told["levels"])
    assert Path(told["report"]).exists()
    assert main(["sweep", str(PAGE), "--concurrency", "2"]) == 2
    assert "Only a --server is loaded" in capsys.readouterr().err


def test_the_workers_clocks_see_the_native_classs_modules(golden_session: OCRSession):
    stages = golden_session.interface.modules(golden_session.model)
    modules = {MODULES[name]: stages[name] for name in ("sam", "clip", "projector")}
    clocks = StageClocks(SimpleNamespace(**modules), torch.device("cpu"))
    run = golden_session.run_inference(PAGE, **QUICK)
    now, rows = clocks.take()
    assert [row[0] for row in rows][:3] == ["sam", "clip", "projector"]
    sam = rows[0]
    assert sam[2] == pytest.approx(run["sam_ms"], rel=0.2)
    assert sam[1] + sam[2] / 1e3 <= now
    assert clocks.take()[1] == []


class Seen(torch.nn.Module):
    def forward(self, *given: Any, **named: Any) -> None:
        """As vLLM calls a stage."""


def test_the_extension_watches_a_vllm_worker():
    named = {name: Seen() for name in MODULES.values() if name != "qwen2_model"}
    worker: Any = Stages()
    worker.model_runner = SimpleNamespace(get_model=lambda: SimpleNamespace(**named))
    worker.device = torch.device("cpu")
    worker.vllm_config = SimpleNamespace(
        model_config=SimpleNamespace(dtype=torch.float32, enforce_eager=True),
        cache_config=SimpleNamespace(enable_prefix_caching=False),
        scheduler_config=SimpleNamespace(max_num_seqs=4, max_num_batched_tokens=2048),
    )
    facts = worker.ocr_watch()
    assert json.loads(json.dumps(facts))["model"]["dtype"] == "float32"
    assert worker.ocr_watch() == facts
    named["sam_model"](torch.zeros(3, 640))
    named["language_model"](None, torch.zeros(5), inputs_embeds=torch.zeros(5, 8))
    assert [(row[0], row[3]) for row in worker.ocr_take()[1]] == [
        ("sam", 640),
        ("language_model", 5),
    ]
    assert set(MODULES) - {"language_model"} == set(VISION_STAGES)
