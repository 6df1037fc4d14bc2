"""Servers as people deploy them: behind a proxy, with entries and headers of their own, other
engines.
"""

import json
import pickletools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from example_run import check_of, make_run
from fake_server import IDS, Fake, served
from test_engines import PAGE, measure

import ocr_phases
from ocr_phases import Comparison, OcrPhasesError
from ocr_phases.analyse.first_token import first_token_table
from ocr_phases.analyse.grounding import parse_grounding
from ocr_phases.analyse.load import AskedPage, lag_sentence, read_slo
from ocr_phases.analyse.noise import Verdict
from ocr_phases.analyse.stages import stages_of
from ocr_phases.engines import chat, checks
from ocr_phases.engines.answers import Answer
from ocr_phases.engines.chat import RepetitionRule, repetition_rule_of
from ocr_phases.engines.client import Server
from ocr_phases.engines.dialects import SGLANG, VLLM, find_dialect
from ocr_phases.engines.extra_body import read_extra_body
from ocr_phases.engines.spans import spans_of, stages_of_spans
from ocr_phases.engines.vllm_worker import ENCODER_GRAPH, MODULES, StageClocks, Stages
from ocr_phases.report import comparison_sections
from ocr_phases.results.load import LoadResult

#: The ids of <td> and </td>.
CELLS = [128821, 128822]


@pytest.fixture
def proxy() -> Iterator[Fake]:
    """vLLM behind a proxy that shows only ``/v1``."""
    with served() as fake:
        fake.shown = ("/v1/models",)
        yield fake


def connected(fake: Fake, **arguments: Any) -> Any:
    """A session of a fake server, which is not waited for long."""
    return ocr_phases.connect(fake.url, patience=1.0, **arguments)


# -- behind a proxy --------------------------------------------------------------------------------


def test_a_named_engine_gives_tags_ids_and_salt_back_behind_a_proxy(proxy: Fake) -> None:
    run = measure(proxy, connected(proxy, engine="vllm"), infer={"no_repeat_ngram_size": 5})

    sent = proxy.bodies[0]
    assert run.result.ids == IDS
    assert sent["return_token_ids"] is True
    assert sent["skip_special_tokens"] is False
    assert len(sent["cache_salt"]) == 32
    assert sent["vllm_xargs"]["ngram_size"] == 5
    assert run.model.server["engine_source"] == "named by the user"
    assert "server_engine" not in set(run.checks["name"])


def test_a_hidden_engine_is_said_with_what_is_lost(proxy: Fake) -> None:
    run = measure(proxy)
    check = check_of(run, "server_engine")
    assert check.verdict == "note"
    assert "token ids, the tags of regions" in check.measured
    assert "skip_special_tokens" not in proxy.bodies[0]


def test_an_unknown_engine_is_refused_before_the_server_is_asked() -> None:
    with pytest.raises(OcrPhasesError, match="engine"):
        ocr_phases.connect("http://127.0.0.1:9/v1", engine="vlm")


# -- regions without tags --------------------------------------------------------------------------


def test_lines_of_label_and_boxes_are_regions_where_a_text_has_no_tags() -> None:
    text = "title[[120, 40, 880, 96]]\n# Receipt\n\ntext[[1, 2, 3, 4], [5, 6, 7, 8]]\nTotal 12.40"

    grounding = parse_grounding(text)

    assert grounding.without_tags
    assert [region.label for region in grounding.regions] == ["title", "text"]
    assert [region.text for region in grounding.regions] == ["# Receipt", "Total 12.40"]
    assert grounding.regions[1].boxes == ((1, 2, 3, 4), (5, 6, 7, 8))
    assert grounding.without_marks(text) == "\n\n\n# Receipt\n\n\n\n\nTotal 12.40"


@pytest.mark.parametrize(
    "text",
    [
        "see [[1, 2, 3, 4]] there",
        "matrix[[1, 2], [3, 4]]",
        "a[[1, 2, 3, 4]] and more",
        "[[1, 2, 3, 4]]",
        "x[[1, 2, 3, four]]",
        "<|ref|>cut[[1, 2, 3, 4]]",
    ],
)
def test_other_lines_with_brackets_stay_text(text: str) -> None:
    assert parse_grounding(text).regions == ()


def test_tagged_text_keeps_its_untagged_lines_as_content() -> None:
    text = "<|ref|>title<|/ref|><|det|>[[1, 2, 3, 4]]<|/det|>\nlike text[[5, 6, 7, 8]]"
    grounding = parse_grounding(text)
    assert not grounding.without_tags
    assert [region.label for region in grounding.regions] == ["title"]


def test_a_server_that_leaves_tags_out_is_said_to(proxy: Fake) -> None:
    proxy.tokens = ["title", "[[1, 2, 3, 4]]", "\n", "Hello"]
    run = measure(proxy)
    assert check_of(run, "region_tags").verdict == "note"
    assert run.regions["label"].tolist() == ["title"]


# -- what a deployment needs -----------------------------------------------------------------------


def test_extra_entries_are_sent_and_recorded(proxy: Fake) -> None:
    extra = {"priority": 3, "vllm_xargs": {"whitelist_token_ids": CELLS}}
    rule = {"no_repeat_ngram_size": 5, "no_repeat_ngram_window": 90}
    session = connected(proxy, engine="vllm", extra_body=extra)

    run = measure(proxy, session, infer=rule)

    sent = proxy.bodies[0]
    assert sent["priority"] == 3
    assert sent["vllm_xargs"] == {
        "ngram_size": 5,
        "window_size": 90,
        "whitelist_token_ids": CELLS,
    }
    assert "no_repeat_ngram_size" not in sent
    assert run.model.server["extra_body"] == extra


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        pytest.param('{"stream": false}', "stream", id="an entry of ours"),
        pytest.param('{"temperature": 1}', "infer", id="sampling"),
        pytest.param('{"max_tokens": 9}', "max_new_tokens", id="the token limit"),
        pytest.param("[1, 2]", "no JSON object", id="a list"),
        pytest.param('{"a": ', "no JSON object", id="half an object"),
        pytest.param("{'a': 1}", "no JSON object", id="Python"),
        pytest.param({"a": object()}, "no JSON object", id="no JSON value"),
        pytest.param({1: 2, "n": 2}, "n", id="the number of answers"),
        pytest.param('{"a": "' + "x" * 100_000 + '"}', "100 kB", id="too long"),
    ],
)
def test_extra_entries_that_would_change_the_measurement_are_refused(
    extra: Any, words: str
) -> None:
    with pytest.raises(OcrPhasesError, match="extra_body") as refusal:
        read_extra_body(extra)
    assert words in str(refusal.value)


def test_headers_of_the_environment_are_sent_and_never_shown(
    proxy: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OCR_PHASES_HEADERS", '{"X-Tenant": "tenant-77", "Authorization": "Own k"}')

    run = measure(proxy)

    assert proxy.headers[-1]["X-Tenant"] == "tenant-77"
    assert proxy.headers[-1]["Authorization"] == "Own k"
    assert "tenant-77" not in json.dumps(run.to_dict())

    proxy.key = "tenant-77"  # it refuses, and repeats the key
    with pytest.raises(OcrPhasesError) as refusal:
        measure(proxy)
    assert "tenant-77" not in str(refusal.value)


@pytest.mark.parametrize(
    "headers", ["X-Tenant: a", '{"A B": "c"}', '{"A": "b\\nC: d"}', '{"Host": "x"}', '{"A": 1}']
)
def test_headers_that_are_none_are_refused_without_their_values(
    headers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OCR_PHASES_HEADERS", headers)
    with pytest.raises(OcrPhasesError, match="OCR_PHASES_HEADERS"):
        Server("http://127.0.0.1:9/v1")


# -- the rule against repetition -------------------------------------------------------------------


def test_a_rule_without_window_is_also_vllm_s_own_parameter(proxy: Fake) -> None:
    measure(proxy, connected(proxy, engine="vllm"), infer={"no_repeat_ngram_size": 5})
    assert proxy.bodies[0]["no_repeat_ngram_size"] == 5


def test_sglang_gets_its_processor_and_parameters() -> None:
    with served("sglang") as fake:
        run = measure(fake, infer={"no_repeat_ngram_size": 3, "no_repeat_ngram_window": 90})

    sent = fake.bodies[0]
    assert sent["custom_params"] == {"ngram_size": 3, "window_size": 90}
    assert sent["custom_logit_processor"] == chat.sglang_processor()
    assert check_of(run, "repetition_rule").verdict == "pass"


def test_sglang_s_processor_is_a_pickled_reference_and_nothing_else() -> None:
    pickled = bytes.fromhex(json.loads(chat.sglang_processor())["callable"])

    steps = [(step.name, value) for step, value, _ in pickletools.genops(pickled)]
    assert steps == [
        ("PROTO", 4),
        ("SHORT_BINUNICODE", "sglang.srt.sampling.custom_logit_processor"),
        ("SHORT_BINUNICODE", "DeepseekOCRNoRepeatNGramLogitProcessor"),
        ("STACK_GLOBAL", None),
        ("STOP", None),
    ]


@pytest.mark.parametrize(
    ("body", "dialect", "rule"),
    [
        pytest.param({}, VLLM, None, id="none"),
        pytest.param({"no_repeat_ngram_size": 4}, VLLM, RepetitionRule(4), id="its parameter"),
        pytest.param(
            {"vllm_xargs": {"ngram_size": 4, "window_size": 1 << 20}},
            VLLM,
            RepetitionRule(4),
            id="a window without an end",
        ),
        pytest.param(
            {"vllm_xargs": {"ngram_size": 4, "window_size": 9}},
            VLLM,
            RepetitionRule(4, 9),
            id="a window",
        ),
        pytest.param({"vllm_xargs": {"ngram_size": "4"}}, VLLM, None, id="no number"),
        pytest.param(
            {"custom_params": {"ngram_size": 4, "window_size": 9}}, VLLM, None, id="of SGLang"
        ),
        pytest.param(
            {"custom_params": {"ngram_size": 4, "window_size": 9, "whitelist_token_ids": [7]}},
            SGLANG,
            RepetitionRule(4, 9, frozenset([7])),
            id="allowed tokens",
        ),
    ],
)
def test_the_rule_is_read_from_what_is_sent(
    body: dict[str, Any], dialect: Any, rule: RepetitionRule | None
) -> None:
    assert repetition_rule_of(body, dialect) == rule


def repetition_check(answer: Answer, rule: RepetitionRule) -> Verdict:
    """Whether an answer keeps a rule against repetition."""
    *_, check = checks.own_checks([answer], 0, 9.0, rule)
    assert check.name == "repetition_rule"
    return check


def test_allowed_tokens_may_end_a_repeated_run() -> None:
    answer = Answer(0.0, times=[9.0, 18.0, 27.0, 36.0], ids=[1, 7, 1, 7])
    with_allowed_token = RepetitionRule(2, None, frozenset([7]))
    assert repetition_check(answer, RepetitionRule(2)).verdict == "fail"
    assert repetition_check(answer, with_allowed_token).verdict == "pass"


@pytest.mark.parametrize("ids", [[], [1, 2]])
def test_a_rule_that_cannot_be_seen_is_not_said_to_be_kept(ids: list[int]) -> None:
    answer = Answer(0.0, times=[9.0, 18.0], ids=ids)
    assert repetition_check(answer, RepetitionRule(3)).verdict == "n/a"


# -- other engines ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dialect", "engine", "version"),
    [
        ("vllm", "vllm", "0.32.0"),
        ("sglang", "sglang", "0.5.5"),
        ("sglang-2026", "sglang", "0.5.9"),
        ("llama.cpp", "llama.cpp", "b6500-1a2b3c"),
        ("ollama", "ollama", "0.13.1"),
        ("other", "other", "unknown"),
    ],
)
def test_an_engine_is_known_by_what_it_answers(dialect: str, engine: str, version: str) -> None:
    with served(dialect) as fake:
        found_dialect, found_version, source = find_dialect(Server(fake.url))
    assert found_dialect.name == engine
    assert found_version == version
    assert (source == "unknown") == (engine == "other")


def test_a_version_that_is_null_is_unknown() -> None:
    with served("vllm") as fake:
        fake.version = None
        found_dialect, found_version, _ = find_dialect(Server(fake.url))

    assert found_dialect.name == "vllm"
    assert found_version == "unknown"


def test_llama_cpp_tells_its_prefill_and_reads_the_page_anew() -> None:
    with served("llama.cpp") as fake:
        infer = {"temperature": 0, "top_k": 4, "repetition_penalty": 1.2}
        run = measure(fake, infer=infer, ignore_eos=True)

    sent = fake.bodies[0]
    assert sent["cache_prompt"] is False
    assert sent["ignore_eos"] is True
    assert sent["top_k"] == 4
    assert sent["repeat_penalty"] == 1.2
    assert sent["repeat_last_n"] == -1
    assert run["prefill_ms"] is not None
    assert set(run.model.server["times"][0]) == {"prefill_ms", "decode_ms"}


# -- a record's stages -----------------------------------------------------------------------------


def test_a_server_s_record_lists_its_stages_with_what_tells_of_them() -> None:
    with served() as fake:
        fake.watched = True
        run = measure(fake)

    stages = {part.name: (part.role, part.path) for part in run.model.stages or []}
    assert stages["sam"] == ("vision", "sam_model")
    assert stages["language_model"] == ("language", "language_model")
    assert stages["preprocess"] == ("prepare", "the server's own times")
    assert list(stages) == list(stages_of(run))


# -- CUDA graphs of the encoder --------------------------------------------------------------------


class GraphManager:
    """Stands in for vLLM's EncoderCudaGraphManager: replays a graph, or says that none fits."""

    def __init__(self, replay: Callable[[], None]) -> None:
        self.replay = replay

    def _run_budget_graph(self, fits: bool, path: str = "default") -> str | None:
        if not fits:
            return None
        self.replay()
        return path


def test_replays_of_the_encoder_s_graphs_are_timed_from_outside() -> None:
    def sleep_20_ms() -> None:
        time.sleep(0.02)

    graphs = GraphManager(sleep_20_ms)
    clocks = StageClocks(SimpleNamespace(), torch.device("cpu"), graphs)

    assert graphs._run_budget_graph(True, path="global") == "global"
    assert graphs._run_budget_graph(False) is None
    assert graphs._run_budget_graph(True, path="local") == "local"

    _, rows = clocks.take()
    stages = [stage for stage, _, _, _ in rows]
    times_ms = [ms for _, _, ms, _ in rows]
    assert clocks.times_graphs
    assert stages == [ENCODER_GRAPH, ENCODER_GRAPH]
    assert min(times_ms) >= 20


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_replayed_cuda_graph_is_timed_by_the_device() -> None:
    device = torch.device("cuda")
    matrix = torch.randn(2048, 2048, device=device)
    output = torch.empty_like(matrix)
    torch.mm(matrix, matrix, out=output)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(8):
            torch.mm(matrix, matrix, out=output)
    graphs = GraphManager(graph.replay)
    clocks = StageClocks(SimpleNamespace(), device, graphs)

    graphs._run_budget_graph(True)

    _, [(stage, _, ms, _)] = clocks.take()
    assert stage == ENCODER_GRAPH
    assert 0 < ms < 1000


def answer_of_two_tokens(stages: list[tuple[str, float, float, int]]) -> Answer:
    """An answer whose worker timed these stages: name, start, length and number of tokens."""
    return Answer(
        0.0,
        times=[10.0, 30.0],
        ids=[1, 2],
        ids_with_pieces=True,
        usage={"prompt_tokens": 9},
        stages=stages,
    )


LANGUAGE_MODEL = ("language_model", 8.0, 1.0, 9)


def test_a_graph_s_stage_is_part_of_vision() -> None:
    answer = answer_of_two_tokens(
        [(ENCODER_GRAPH, 1.0, 4.0, 0), (ENCODER_GRAPH, 5.0, 2.0, 0), LANGUAGE_MODEL]
    )

    spans = spans_of([answer])

    of_graphs = spans[spans["stage"] == ENCODER_GRAPH]
    assert of_graphs["view"].tolist() == ["global", "local"]
    roles = {part.name: part.role for part in stages_of_spans(spans, MODULES)}
    assert roles == {ENCODER_GRAPH: "vision", "language_model": "language"}
    fresh_vision, *_ = checks.own_checks([answer], 0, 10.0)
    assert fresh_vision.verdict == "pass"
    assert fresh_vision.measured == "vision ran in every repeat"


def test_vision_that_no_one_can_time_is_not_said_to_be_cached() -> None:
    answer = answer_of_two_tokens([LANGUAGE_MODEL])
    cached, *_ = checks.own_checks([answer], 0, 10.0)
    hidden, *_ = checks.own_checks([answer], 0, 10.0, vision_is_hidden=True)
    assert cached.verdict == "fail"
    assert hidden.verdict == "pass"


def test_graphs_of_the_encoder_that_are_not_timed_are_noted() -> None:
    note = checks.graphs_check({"cudagraph_mm_encoder": True, "encoder_graphs_timed": False})
    assert note is not None
    assert "are not timed" in note.measured


# -- a load with an objective ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("slo", "objective"),
    [
        (None, {}),
        ("", {}),
        ("ttft=500, itl=30", {"ttft": 500.0, "itl": 30.0}),
        ({"itl": 30}, {"itl": 30.0}),
    ],
)
def test_an_objective_is_read(slo: Any, objective: dict[str, float]) -> None:
    assert read_slo(slo) == objective


@pytest.mark.parametrize("slo", ["tpot=3", "ttft", "ttft=0", "itl=nan", "ttft=1,,", {"ttft": "x"}])
def test_a_wrong_objective_is_refused(slo: Any) -> None:
    with pytest.raises(OcrPhasesError, match="objective"):
        read_slo(slo)


def asked_page(begun: float, times: list[float], **entries: Any) -> AskedPage:
    """A page that was asked for at ``begun``, with the time of each of its tokens."""
    tokens = entries.pop("tokens", len(times))
    return AskedPage(level="2 at once", begun=begun, times=times, tokens=tokens, **entries)


def test_goodput_counts_the_pages_that_meet_all_of_the_objective() -> None:
    pages = [
        asked_page(0.0, [0.4, 0.42, 0.44]),  # meets both
        asked_page(0.0, [0.6, 0.62, 0.64]),  # its first token is late
        asked_page(0.0, [0.4, 0.5, 0.6]),  # its tokens are slow
        asked_page(0.0, [0.4]),  # one token has no time between tokens
        asked_page(0.0, [0.1, 0.2], tokens=None),  # nobody knows how many tokens
        asked_page(0.0, [], error="failed"),
    ]
    all_seconds = 0.64
    good_pages = 2

    load = LoadResult("here", pages, slo={"ttft": 500, "itl": 30})

    assert load.table["goodput_per_min"].tolist() == [pytest.approx(60 * good_pages / all_seconds)]
    assert "met the objective at 2 at once" in load.verdict
    assert "goodput_per_min" not in LoadResult("here", pages).table


def test_the_client_s_own_lag_is_told_above_64_streams_alone() -> None:
    pages = [asked_page(0.0, [1.0, 2.0], client_lag_ms=40.0) for _ in range(65)]
    assert "up to 40" in lag_sentence(LoadResult("here", pages).asked)
    assert lag_sentence(LoadResult("here", pages[:64]).asked) == ""


def test_a_short_lag_of_the_client_is_not_told() -> None:
    pages = [asked_page(0.0, [1.0, 2.0], client_lag_ms=1.0) for _ in range(65)]
    assert lag_sentence(LoadResult("here", pages).asked) == ""


def test_a_lag_of_pages_that_were_asked_for_in_turn_is_not_told() -> None:
    pages = [
        asked_page(float(begun), [begun + 0.5, begun + 1.0], client_lag_ms=40.0)
        for begun in range(70)
    ]
    assert lag_sentence(LoadResult("here", pages).asked) == ""


def test_a_load_s_page_says_what_was_measured_and_has_contents(tmp_path: Path) -> None:
    with served() as fake:
        session = connected(fake)
        load = session.load_test(
            PAGE, (1,), rates=(1200,), requests=2, max_new_tokens=8, slo="ttft=5000"
        )
    page = load.save(tmp_path).read_text(encoding="utf-8")

    for fact in (
        load.created[:10],
        str(session.model),
        PAGE.name,
        "objective: first token within",
        'href="load.json"',
    ):
        assert fact in page
    for name in ("Levels", "Stalls", "Data"):
        assert f'href="#{name}"' in page
    assert (load.table["goodput_per_min"] > 0).all()
    assert load.asked["client_lag_ms"].notna().all()


# -- native and server side by side ----------------------------------------------------------------


def test_settings_that_only_one_kind_of_run_has_are_not_listed_as_different() -> None:
    with served() as fake:
        server = measure(fake)

    differs = ocr_phases.compare(make_run(), server).differs
    assert not (differs == "–").to_numpy().any()
    assert {"family_source", "threads"}.isdisjoint(differs["name"])


@pytest.fixture(scope="module")
def native_and_server() -> Comparison:
    """A record of a loaded model beside one of a server whose worker tells its stages."""
    with served() as fake:
        fake.watched = True
        server = measure(fake)
    return ocr_phases.compare(make_run(), server, labels=["native", "vllm"])


def test_the_wait_for_the_first_token_has_its_parts_each_with_its_source(
    native_and_server: Comparison,
) -> None:
    _, server = native_and_server.runs

    table = native_and_server.first_token.set_index(["part", "run"])

    parts = table.index.get_level_values("part").unique()
    assert parts.tolist() == [
        "decode of the image",
        "processor",
        "queue",
        "encoder",
        "prefill",
        "first token",
    ]
    assert table.loc[("encoder", "vllm"), "ms"] == pytest.approx(server["vision_ms"])
    assert table.loc[("first token", "vllm"), "source"] == "the client's stream"
    assert table.loc[("queue", "vllm"), "ms"] == pytest.approx(1.0, rel=0.01)
    assert table.loc[("queue", "native"), "source"] == "n/a: a loaded model has no queue"


def test_a_part_of_the_wait_has_a_time_or_a_reason(native_and_server: Comparison) -> None:
    table = native_and_server.first_token
    is_untold = table["source"].str.startswith("n/a: ")
    assert table.loc[is_untold, "ms"].isna().all()
    assert table.loc[~is_untold, "ms"].notna().all()


def test_a_comparison_shows_the_parts_of_the_wait(native_and_server: Comparison) -> None:
    assert "decode of the image" in native_and_server._repr_mimebundle_()["text/html"]
    assert "decode of the image" in comparison_sections.figures(native_and_server).html()


def test_a_server_that_tells_nothing_has_reasons_for_all_but_the_first_token() -> None:
    with served("other") as fake:
        server = measure(fake)

    table = first_token_table([server], ["server"]).set_index("part")
    assert table["ms"].notna().to_dict() == {
        "decode of the image": False,
        "processor": False,
        "queue": False,
        "encoder": False,
        "prefill": False,
        "first token": True,
    }


def test_vllm_s_statistics_of_the_encoder_are_read_where_they_are_on() -> None:
    statistics = {"request": {"encoder_forward_secs": 0.25, "num_encoder_calls": 1}}
    observability = SimpleNamespace(enable_mm_processor_stats=True)
    worker: Any = Stages()
    worker.model_runner = SimpleNamespace(get_encoder_timing_stats=lambda: statistics)
    worker.vllm_config = SimpleNamespace(observability_config=observability)

    assert worker.ocr_encoder_ms() == 250.0
    observability.enable_mm_processor_stats = False
    assert worker.ocr_encoder_ms() is None
