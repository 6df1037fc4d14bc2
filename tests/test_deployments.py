"""Servers as people deploy them: behind a proxy, with entries and headers of their own, other
engines.
"""

import json
import pickletools
from collections.abc import Iterator
from typing import Any

import pytest
from fake_server import IDS, Fake, served
from test_engines import found, measure

import ocr_phases
from ocr_phases import OcrPhasesError
from ocr_phases.analyse.grounding import parse_grounding
from ocr_phases.analyse.stages import stages_of
from ocr_phases.engines import chat, checks
from ocr_phases.engines.answers import Answer
from ocr_phases.engines.chat import RepetitionRule, repetition_rule_of
from ocr_phases.engines.client import Server
from ocr_phases.engines.dialects import SGLANG, VLLM, find_dialect
from ocr_phases.engines.extra_body import read_extra_body

CELLS = [128821, 128822]  # the ids of <td> and </td>


@pytest.fixture
def proxy() -> Iterator[Fake]:
    """vLLM behind a proxy that shows only ``/v1``."""
    with served() as fake:
        fake.shown = ("/v1/models",)
        yield fake


def connected(fake: Fake, **arguments: Any) -> Any:
    return ocr_phases.connect(fake.url, patience=1.0, **arguments)


# -- behind a proxy --------------------------------------------------------------------------------


def test_a_named_engine_gives_tags_ids_and_salt_back_behind_a_proxy(proxy: Fake) -> None:
    run = measure(proxy, connected(proxy, engine="vllm"), infer={"no_repeat_ngram_size": 5})
    sent = proxy.bodies[0]
    assert run.result.ids == IDS
    assert (sent["return_token_ids"], sent["skip_special_tokens"]) == (True, False)
    assert len(sent["cache_salt"]) == 32
    assert sent["vllm_xargs"]["ngram_size"] == 5
    assert run.model.server["engine_source"] == "named by the user"
    assert "server_engine" not in set(run.checks["name"])


def test_a_hidden_engine_is_said_with_what_is_lost(proxy: Fake) -> None:
    run = measure(proxy)
    verdict, measured = found(run, "server_engine")
    assert verdict == "note"
    assert "token ids, the tags of regions" in measured
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
    assert found(run, "region_tags")[0] == "note"
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
    ("extra", "named"),
    [
        ('{"stream": false}', "stream"),
        ('{"temperature": 1}', "infer"),
        ('{"max_tokens": 9}', "max_new_tokens"),
        ("[1, 2]", "no JSON object"),
        ('{"a": ', "no JSON object"),
        ("{'a': 1}", "no JSON object"),
        ({"a": object()}, "no JSON object"),
        ({1: 2, "n": 2}, "n"),
        ('{"a": "' + "x" * 100_000 + '"}', "100 kB"),
    ],
)
def test_extra_entries_that_would_change_the_measurement_are_refused(
    extra: Any, named: str
) -> None:
    with pytest.raises(OcrPhasesError, match="extra_body") as refusal:
        read_extra_body(extra)
    assert named in str(refusal.value)


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
    assert found(run, "repetition_rule")[0] == "pass"


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
        ({}, VLLM, None),
        ({"no_repeat_ngram_size": 4}, VLLM, RepetitionRule(4)),
        ({"vllm_xargs": {"ngram_size": 4, "window_size": 1 << 20}}, VLLM, RepetitionRule(4)),
        ({"vllm_xargs": {"ngram_size": 4, "window_size": 9}}, VLLM, RepetitionRule(4, 9)),
        ({"vllm_xargs": {"ngram_size": "4"}}, VLLM, None),
        ({"custom_params": {"ngram_size": 4, "window_size": 9}}, VLLM, None),
        (
            {"custom_params": {"ngram_size": 4, "window_size": 9, "whitelist_token_ids": [7]}},
            SGLANG,
            RepetitionRule(4, 9, frozenset([7])),
        ),
    ],
)
def test_the_rule_is_read_from_what_is_sent(body: Any, dialect: Any, rule: Any) -> None:
    assert repetition_rule_of(body, dialect) == rule


def test_allowed_tokens_may_end_a_repeated_run() -> None:
    answer = Answer(0.0, times=[9.0, 18.0, 27.0, 36.0], ids=[1, 7, 1, 7])
    *_, broken = checks.own_checks([answer], 0, 9.0, RepetitionRule(2))
    *_, allowed = checks.own_checks([answer], 0, 9.0, RepetitionRule(2, None, frozenset([7])))
    assert (broken.verdict, allowed.verdict) == ("fail", "pass")


@pytest.mark.parametrize("ids", [[], [1, 2]])
def test_a_rule_that_cannot_be_seen_is_not_said_to_be_kept(ids: list[int]) -> None:
    answer = Answer(0.0, times=[9.0, 18.0], ids=ids)
    *_, check = checks.own_checks([answer], 0, 9.0, RepetitionRule(3))
    assert (check.name, check.verdict) == ("repetition_rule", "n/a")


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
    assert (found_dialect.name, found_version) == (engine, version)
    assert (source == "unknown") == (engine == "other")


def test_llama_cpp_tells_its_prefill_and_reads_the_page_anew() -> None:
    with served("llama.cpp") as fake:
        infer = {"temperature": 0, "top_k": 4, "repetition_penalty": 1.2}
        run = measure(fake, infer=infer, ignore_eos=True)
    sent = fake.bodies[0]
    assert (sent["cache_prompt"], sent["ignore_eos"]) == (False, True)
    assert (sent["top_k"], sent["repeat_penalty"]) == (4, 1.2)
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
    assert stages["queue"] == ("prepare", "the server's own times")
    assert list(stages) == list(stages_of(run))
