"""Unlimited-OCR against what its vendor's code gave: pages, its window in prefill and decode, its config."""

from __future__ import annotations

import copy
import json
import re
from dataclasses import replace

import pandas as pd
import pytest
import torch
from conftest import GOLDEN, GOLDEN_UNLIMITED, PAGES
from golden_cases import RECORDINGS
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from refusals import refused
from transformers import DynamicCache
from transformers.generation import NoRepeatNGramLogitsProcessor

from ocr_phases import PhaseRun, decode_step, prefill
from ocr_phases.analyse.checks import run_checks
from ocr_phases.analyse.cost import run_cost
from ocr_phases.analyse.floors import decode_floor
from ocr_phases.analyse.grounding import parse_grounding, token_regions
from ocr_phases.cli import main
from ocr_phases.families import FAMILIES, UNLIMITED_OCR
from ocr_phases.inputs.images import load_page
from ocr_phases.models.wiring import native_config
from ocr_phases.report.artifacts import result_markdown, write_artifacts
from ocr_phases.show import results
from ocr_phases.show.page import plot_page
from ocr_phases.steps.phases import generate
from ocr_phases.steps.sampling import NoRepeatNGrams

FACTS = FAMILIES[UNLIMITED_OCR]
WINDOW = 16
RECORDED_RUN = RECORDINGS[UNLIMITED_OCR]


# -- prefill and decode ------------------------------------------------------------------------------


def test_padded_rows_stay_right_beyond_the_window(unlimited_session):
    """The vendor's own second row is wrong from token 3 on: it is held to the row alone."""
    golden = RECORDED_RUN.forward
    state = generate(unlimited_session.model, RECORDED_RUN.inputs("padded"), 24)
    alone = golden["padded.row1_alone_tokens"].tolist()
    assert state.ids == [golden["padded.greedy_tokens"][0].tolist(), *alone]
    assert state.entries[-1] == 30 + WINDOW - 1


def test_a_cache_with_another_window_is_refused(unlimited_session, golden_session):
    model, inputs = unlimited_session.model, RECORDED_RUN.inputs("long")
    windowed = DynamicCache(config=model.config.get_text_config())
    for other, cache in ((model, DynamicCache()), (golden_session.model, windowed)):
        with refused():
            prefill(other, inputs, cache=cache)
    state = prefill(model, inputs, cache=windowed)
    assert state.window == WINDOW
    for layer in state.cache.layers:  # so is one that grows beyond it
        layer.sliding_window = 3
    with refused():
        for _ in range(WINDOW):
            decode_step(model, state)


# -- generation rules --------------------------------------------------------------------------------


@settings(deadline=None, max_examples=80)
@given(
    st.data(), st.integers(1, 6), st.sampled_from([0, 1, 2, 3, 5, 8]), st.integers(1, 12), st.integers(1, 3)
)
def test_ngrams_that_come_one_by_one_are_banned_as_by_transformers(data, size, window, length, rows):
    """Ids beyond the vocabulary, too: image tokens may be."""
    vocab = data.draw(st.integers(2, 5))
    many = st.lists(st.integers(0, vocab + 1), min_size=length + 8, max_size=length + 8)
    ids = torch.tensor(data.draw(st.lists(many, min_size=rows, max_size=rows)))
    theirs = NoRepeatNGramLogitsProcessor(size)
    ours = NoRepeatNGrams(size, window)
    for end in range(length, length + 9):
        scores = torch.randn(rows, vocab)
        expected = theirs(ids[:, :end][:, -window:], scores)
        torch.testing.assert_close(ours(ids[:, :end], scores), expected, rtol=0, atol=0)


# -- a measured run ----------------------------------------------------------------------------------


RECEIPT = PAGES / "receipt.png"
ONCE = {"repeats": 1, "warmup": 0, "ceilings": False, "ignore_eos": True}


@pytest.fixture(scope="module")
def several_pages(unlimited_session) -> PhaseRun:
    """Two pages in one prompt, decoded beyond the window, with a rule over a window of its own."""
    return unlimited_session.run_inference(
        [RECEIPT, PAGES / "slide.png"],
        "multipage",
        preset="small",
        max_new_tokens=24,
        infer={"no_repeat_ngram_size": 2, "no_repeat_ngram_window": 8},
        verify=True,
        **ONCE,
    )


def test_cache_facts_are_true_for_a_cache_that_stops_growing(several_pages, tmp_path):
    run = PhaseRun.load(several_pages.save(tmp_path / "run.json"))
    prompt, cache = run.request["prefill_len"], run.cache
    assert run.model["family"] == UNLIMITED_OCR
    assert [page["row"] for page in run.pages] == [0, 0]
    assert run.request["prompts"] == ["<image><image>Multi page parsing."]
    assert cache["window"] == WINDOW
    assert cache["lengths"] == list(range(prompt, prompt + 24))
    assert cache["entries"] == [min(length, prompt + WINDOW - 1) for length in cache["lengths"]]
    assert cache["bytes_per_token"] == 2 * 3 * 80 * 4
    assert cache["bytes"] == [entries * cache["bytes_per_token"] for entries in cache["entries"]]
    assert run["kv_cache_bytes"] == (prompt + WINDOW - 1) * cache["bytes_per_token"]
    checks = {check.name: check for check in run_checks(run)}
    assert {check.verdict for check in checks.values()} <= {"pass", "note", "n/a", "noisy"}
    for name in ("parity", "cache_growth", "cache_linear", "cache_reused", "image_features", "prompt_tokens"):
        assert checks[name].verdict == "pass", name
    assert checks["cache_growth"].measured == (
        f"{prompt} to {prompt + 23} tokens seen, {prompt + 15} entries held, window 16"
    )


def test_padded_rows_are_measured_and_generate_is_refused_beyond_the_window(unlimited_session):
    pages, prompts = [RECEIPT, RECEIPT], ["markdown", "<image>Read it, please, all of it."]
    options = {"preset": "small", "max_new_tokens": WINDOW + 1, **ONCE}
    run = unlimited_session.run_inference(pages, prompts, verify=True, **options)
    checks = {check["name"]: check for check in run.live_checks}
    assert checks["parity"]["verdict"] == "n/a"
    assert "mistakes which slots are padding once its window of 16" in checks["parity"]["measured"]
    assert checks["mask_handed_over"]["verdict"] == "pass"
    assert checks["mask_handed_over"]["measured"] == "a mask by slot in 16 steps"
    with refused():
        unlimited_session.run_inference(pages, prompts, generate=True, **options)
    alone = unlimited_session.run_inference(RECEIPT, prompts[1], **options)
    assert alone.results[0]["ids"] == run.results[1]["ids"]


def test_several_pages_in_one_prompt_have_no_crops(unlimited_session):
    pages = [RECEIPT, RECEIPT]
    inputs = unlimited_session.prepare(pages, prompt="multipage")
    assert (inputs.views[0].preset.name, inputs.image_tokens) == ("base", (2 * 273,))
    with refused():
        unlimited_session.prepare(pages, prompt="multipage", preset="gundam")
    assert unlimited_session.prepare(pages).batch_size == 2


def test_cost_and_floor_follow_the_window(several_pages):
    """Beyond it a step costs the same; `test_cost` counts what the class does there."""
    prompt = several_pages.request["prefill_len"]
    late = replace(several_pages, cache={**several_pages.cache, "lengths": [prompt, prompt + 23]})
    at_end = run_cost(late).query("phase == 'decode'")["kv_bytes"].sum()
    assert at_end == (prompt + WINDOW) * several_pages.cache["bytes_per_token"]
    measured = {"bandwidth_bytes_per_s": 1e9, "matmul_flops_per_s": 1e12, "matmul_dtype": "float32"}
    floor = decode_floor(replace(several_pages, device={**several_pages.device, "ceilings": measured}))
    assert floor["cache_len"].tolist() == several_pages.cache["lengths"][1:]
    assert floor["floor_ms"].nunique() == WINDOW  # then it stays
    assert floor["floor_ms"].is_monotonic_increasing


# -- its config --------------------------------------------------------------------------------------


def test_the_window_is_the_files():
    golden = json.loads((GOLDEN_UNLIMITED / "checkpoint" / "config.json").read_text())
    text = native_config(golden).text_config
    assert (text.sliding_window, set(text.layer_types)) == (16, {"reference_sliding_attention"})
    without = copy.deepcopy(golden)
    for place, name in (
        ("language_config", "sliding_window_size"),
        (None, "sliding_window_size"),
        (None, "sliding_window"),
    ):
        changed = copy.deepcopy(golden)
        (changed[place] if place else changed)[name] = 17
        with refused():
            native_config(changed)
        del (without[place] if place else without)[name]
    for wrong in (without, {**FACTS.config, "sliding_window_size": 1}):
        with refused():
            native_config(wrong)


# -- output ------------------------------------------------------------------------------------------


OUTPUTS = json.loads((GOLDEN_UNLIMITED / "artifacts.json").read_text())


def markdown(name: str) -> str:
    case = OUTPUTS[name]
    return result_markdown(case["model_text"], UNLIMITED_OCR, len(case.get("pages", [1])))


@pytest.mark.parametrize(
    ("name", "labels", "boxes", "pages"),
    [
        ("single", "title text image image_caption table broken image", [1, 1, 1, 1, 1, 0, 1], [0] * 7),
        ("two_boxes", "image text image", [2, 1, 1], [0] * 3),
        ("old_format", "image title image", [2, 1, 1], [0] * 3),
        ("multi", None, None, [0, 0, 1, 1, 1, 2]),
    ],
)
def test_regions_are_read_in_every_form(name, labels, boxes, pages):
    found = parse_grounding(OUTPUTS[name]["model_text"], UNLIMITED_OCR)
    assert [region.page for region in found.regions] == pages
    assert "<PAGE>" not in "".join(region.text for region in found.regions)
    if labels:
        assert [region.label for region in found.regions] == labels.split()
        assert [len(region.boxes) for region in found.regions] == boxes
    if name == "single":
        assert (found.dropped, found.regions[0].boxes) == (1, ((100, 40, 900, 90),))
        assert parse_grounding(OUTPUTS[name]["model_text"]).regions == ()  # not DeepSeek-OCR's


def test_the_output_is_the_vendors_where_that_is_right():
    theirs = OUTPUTS["single"]["result"].removesuffix("tail")
    links = [f"![](images/{number}.jpg)\n" for number in range(3)]
    beyond = "<|det|>text [80, 120, 920, 300]<|/det|>"
    written = {
        "single": f"{theirs}lost\n![](images/1.jpg)\ntail",  # the vendor's loses both
        "same_box_twice": f"a\nb\n{links[0]}\n{links[1]}",
        "two_boxes": f"{links[0]}{links[1]}\nb\n{links[2]}",
        "multi": OUTPUTS["multi"]["result"].replace(beyond, ""),
        "multi_text_before_first_page": "preamble\n<PAGE>\nOnly page",
        "multi_no_page_mark": "No page mark",
    }
    assert {name: markdown(name) for name in written} == written
    assert result_markdown("<PAGE>x\n<PAGE><|det|>image [1, 2, 3, 4]<|/det|>", UNLIMITED_OCR) == (
        "<PAGE>\nx\n<PAGE>\n<|det|>image [1, 2, 3, 4]<|/det|>"  # it was given one page
    )
    lone = parse_grounding("<PAGE>a<PAGE><|det|>image [1, 2, 30, 40]<|/det|>b<PAGE>c", UNLIMITED_OCR)
    texts = ["<PAGE>", "a", "<PAGE>", "<|det|>image [1, 2, 30, 40]<|/det|>b", "<PA"]
    assert token_regions(lone, texts) == [-1, -1, -1, 0, -1]


def test_files_of_several_pages_are_named_by_page(tmp_path):
    case = OUTPUTS["multi"]
    pages = [load_page(GOLDEN / "pages" / file)[0] for file in case["pages"]]
    written = write_artifacts(tmp_path, pages, case["model_text"], UNLIMITED_OCR)
    assert sorted(path.relative_to(tmp_path).as_posix() for path in written) == sorted(case["files"])
    for name, size in case["crops"].items():
        with Image.open(tmp_path / "images" / name) as crop:
            assert list(crop.size) == size
    for name, text in OUTPUTS.items():
        for number in range(len(text["model_text"])):  # a text that ends anywhere keeps its words
            cut = parse_grounding(text["model_text"][:number], UNLIMITED_OCR)
            assert len(cut.regions) <= len(parse_grounding(text["model_text"], UNLIMITED_OCR).regions), name


def test_regions_and_times_are_shown_on_their_page(several_pages):
    text = OUTPUTS["multi"]["model_text"].removesuffix("<｜end▁of▁sentence｜>")
    pieces = re.findall(r"<PAGE>|<\|det\|>.*?<\|/det\|>|[^<]+", text)
    result = {"ids": [5] * len(pieces), "token_texts": pieces, "text": text}
    run = replace(several_pages, results=[{**several_pages.results[0], **result}], probabilities=None)
    assert run.regions["page"].tolist() == [pd.NA, 0, 0, 1, 1, 1, 2]
    assert run.regions["decode_ms"].sum() == run.tokens_of(0)["device_ms"].sum() > 0
    html = results.page(run).html()
    assert [f"Page {number} of 2" in html for number in (1, 2, 3)] == [True, True, False]
    title = plot_page(run, 1, "time").axes[0].get_title("left")
    assert "1 region on later pages" in html and "page 2 of 2" in title and "1 region on later pages" in title
    with refused():
        plot_page(run, 2)


# -- every verb --------------------------------------------------------------------------------------


def test_pages_of_a_file_are_one_prompt_on_the_command_line(tmp_path, capsys):
    folder, record, document = GOLDEN_UNLIMITED / "checkpoint", tmp_path / "run.json", tmp_path / "three.tif"
    first, *others = (
        Image.open(PAGES / f"{name}.png").convert("RGB") for name in ("receipt", "slide", "form")
    )
    first.save(document, save_all=True, append_images=others)
    asked = f"--model {folder} --device cpu --prompt multipage --preset small --max-new-tokens 3 --repeats 1"
    command = ["profile", f"{document}#2-3", *asked.split(), "--warmup", "0", "--no-ceilings"]
    assert main([*command, "--save", str(record)]) == 0
    run = PhaseRun.load(record)
    assert [page["file"] for page in run.pages] == ["three.tif#2", "three.tif#3"]
    assert len(run.results) == 1
    # The same file repeats it; other pages do not.
    again = ["profile", "--from", str(record), "--save", str(tmp_path / "again.json"), "--no-ceilings"]
    assert main([*again, f"{document}#2-3"]) == 0
    capsys.readouterr()
    for page, says in ((f"{document}#1-2", "is not the page of the record"), (str(document), "2 pages")):
        assert main([*again, page]) == 2
        assert says in capsys.readouterr().err.splitlines()[-1]
