"""What sets the families apart: config, rules and output as the vendors have them, and a record of
each.

Their phases are held in ``test_phases.py``, their pages in ``test_page.py``.
"""

import contextlib
import copy
import json
import operator
import re
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd
import pytest
import torch
from conftest import GOLDEN, GOLDEN_2, GOLDEN_UNLIMITED, PAGES, SMALL_SIZES
from example_run import altered
from golden_cases import RECORDINGS
from hypothesis import given, settings
from hypothesis import strategies as st
from mutants import paths
from PIL import Image
from refusals import refused
from surface import page_section
from transformers.generation import NoRepeatNGramLogitsProcessor

from ocr_phases import OcrPhasesError, OCRSession, PhaseRun
from ocr_phases.analyse.checks import run_checks, with_verdict
from ocr_phases.analyse.grounding import parse_grounding, token_regions
from ocr_phases.cli import main
from ocr_phases.families import DEEPSEEK_OCR, FAMILIES, UNLIMITED_OCR, FamilyFacts
from ocr_phases.images import load_page
from ocr_phases.models.wiring import native_config
from ocr_phases.report.result_files import result_markdown, write_artifacts
from ocr_phases.settings import SamplingSettings, resolve_infer
from ocr_phases.show.page import plot_page
from ocr_phases.steps.sampling import NoRepeatNGrams, Sampler

RECEIPT = PAGES / "receipt.png"
ONCE: dict[str, Any] = {"repeats": 1, "warmup": 0, "ignore_eos": True}
ONCE |= {"ceilings": False, "token_probabilities": False}
WINDOW = 16


# -- config and weights ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["deepseek-ocr-2", "unlimited-ocr"])
def test_what_transformers_saves_loads_whole(name, request, tmp_path):
    row = RECORDINGS[name]
    model = request.getfixturevalue(row.session).model
    model.save_pretrained(tmp_path)
    for path in (row.folder / "checkpoint").glob("tokenizer*.json"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    again = OCRSession.from_local(tmp_path, device="cpu")
    assert again.family is FAMILIES[name]
    assert again.interface.window(again.model) == again.interface.window(model)
    for mine, theirs in zip(again.model.parameters(), model.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    saved = json.loads((tmp_path / "config.json").read_text())
    if name == "unlimited-ocr":
        mixed = copy.deepcopy(saved)
        mixed["text_config"]["layer_types"][0] = "full_attention"
        with refused():
            native_config(mixed)
        del saved["text_config"]["sliding_window"]
    else:
        rope = again.model.config.vision_config.encoder_config.rope_parameters
        assert rope["rope_theta"] == 1_000_000.0
        del saved["vision_config"]["encoder_config"]["rope_parameters"]
    with refused():
        native_config(saved)


def test_the_window_is_the_files() -> None:
    golden = json.loads((GOLDEN_UNLIMITED / "checkpoint" / "config.json").read_text())
    text = native_config(golden).text_config
    assert (text.sliding_window, set(text.layer_types)) == (WINDOW, {"reference_sliding_attention"})
    without = copy.deepcopy(golden)
    places = (
        ("language_config", "sliding_window_size"),
        ("", "sliding_window_size"),
        ("", "sliding_window"),
    )
    for section, name in places:
        changed = copy.deepcopy(golden)
        changed.get(section, changed)[name] = 17
        with refused():
            native_config(changed)
        del without.get(section, without)[name]
    for wrong in (without, {**FAMILIES[UNLIMITED_OCR].config, "sliding_window_size": 1}):
        with refused():
            native_config(wrong)


def test_no_number_of_the_file_is_ignored():
    """Each of them, changed alone, changes the config or is refused."""
    recorded = json.loads((GOLDEN_2 / "checkpoint" / "config.json").read_text())
    raw = {name: recorded[name] for name in ("model_type", "language_config", "vision_config")}
    for name in ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"):
        del raw["language_config"][name]  # of another kind of attention, which this model has not
    raw["language_config"] |= {
        "rope_theta": 10_000.0,
        "rms_norm_eps": 1e-6,
        "routed_scaling_factor": 1.0,
    }
    before = native_config(raw).to_dict()
    numbers = [
        path for path in paths(raw) if type(reduce(operator.getitem, path, raw)) in (int, float)
    ]
    assert len(numbers) > 30
    for path in numbers:
        changed = copy.deepcopy(raw)
        section = reduce(operator.getitem, path[:-1], changed)
        section[path[-1]] *= 2
        section[path[-1]] += 0 if isinstance(section[path[-1]], float) else 2
        with contextlib.suppress(OcrPhasesError):
            assert native_config(changed).to_dict() != before, path


# -- two families of one class ---------------------------------------------------------------------


@pytest.fixture
def hd_family(monkeypatch: pytest.MonkeyPatch) -> FamilyFacts:
    """A release of DeepSeek-OCR with another ``model_type`` and another size behind one preset."""
    known = FAMILIES[DEEPSEEK_OCR]
    facts = replace(
        known,
        name="deepseek-ocr-hd",
        title="DeepSeek-OCR HD",
        config={**known.config, "model_type": "deepseek_vl_hd"},
        presets={
            **known.presets,
            "small": replace(known.presets["small"], base_size=768, image_size=768),
        },
    )
    monkeypatch.setitem(FAMILIES, facts.name, facts)
    return facts


def test_a_family_that_shares_its_class_with_another_keeps_its_own_presets(
    hd_family: FamilyFacts, tmp_path: Path
) -> None:
    session = OCRSession.load(f"dummy:deepseek-ocr-hd,{SMALL_SIZES}", device="cpu")
    assert session.family is hd_family
    run = session.run_inference(RECEIPT, preset="small", max_new_tokens=2, **ONCE)
    assert run.model.family == "deepseek-ocr-hd"
    assert run.pages[0].image_tokens == 157  # 12 x 12 and a line's end each, and the separator
    other = OCRSession.load(f"dummy:{SMALL_SIZES}", device="cpu")
    assert other.family is FAMILIES[DEEPSEEK_OCR]
    assert other.prepare(RECEIPT, preset="small").image_tokens == (111,)


def test_the_published_file_tells_families_of_one_class_apart(
    hd_family: FamilyFacts, golden_checkpoint: Callable[[Path], Path], tmp_path: Path
) -> None:
    folder = tmp_path / "checkpoint"
    shutil.copytree(golden_checkpoint(GOLDEN), folder)
    config = json.loads((folder / "config.json").read_text())
    for model_type, name in (("deepseek_vl_v2", DEEPSEEK_OCR), ("deepseek_vl_hd", hd_family.name)):
        (folder / "config.json").write_text(json.dumps({**config, "model_type": model_type}))
        assert OCRSession.from_local(folder, device="cpu").family.name == name


def test_every_family_has_golden_data() -> None:
    assert list(RECORDINGS) == list(FAMILIES), "add its row to RECORDINGS of golden_cases.py"


@pytest.mark.parametrize("facts", FAMILIES.values(), ids=FAMILIES)
def test_the_facts_of_a_family_agree_with_its_published_file(facts: FamilyFacts) -> None:
    positions = facts.config["language_config"]["max_position_embeddings"]
    assert facts.published_limit == positions
    assert [preset.name for preset in facts.presets.values()] == list(facts.presets)
    assert {*facts.stands_for.values(), facts.default_preset} <= set(facts.presets)
    wirings = [facts.native] if facts.vendor is None else [facts.native, facts.vendor]
    for wiring in wirings:
        stages = {*wiring.modules, *wiring.between}
        assert {*facts.encoders, "projector", "language_model", "lm_head"} <= stages


# -- generation rules ------------------------------------------------------------------------------


RULES = {
    row.name: json.loads((row.folder / "generation.json").read_text())
    for row in RECORDINGS.values()
    if (row.folder / "generation.json").exists()
}
NGRAMS = [(name, case) for name, recorded in RULES.items() for case in recorded["ngram"]["cases"]]


@pytest.mark.parametrize(("name", "case"), NGRAMS)
def test_ngrams_are_banned_as_recorded(name, case):
    size, window = case["ngram_size"], case["window"] or 0
    asked = SamplingSettings(
        no_repeat_ngram_size=size,
        no_repeat_ngram_window=window,
        whitelist_token_ids=tuple(case["whitelist"] or ()),
    )
    scores = torch.tensor(RULES[name]["ngram"]["scores_before"])
    (rule,) = Sampler(asked).processors
    after = rule(torch.tensor(case["input_ids"]), scores.clone())
    assert [row.isneginf().nonzero().flatten().tolist() for row in after] == case["banned"]
    assert torch.equal(after[~after.isneginf()], scores[~after.isneginf()])


@settings(deadline=None, max_examples=40)
@given(
    st.data(),
    st.integers(1, 6),
    st.sampled_from([0, 1, 2, 3, 5, 8]),
    st.integers(1, 12),
    st.integers(1, 3),
)
def test_ngrams_that_come_one_by_one_are_banned_as_by_transformers(
    data, size, window, length, rows
):
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


def test_the_published_rule_is_the_familys():
    for name, published, evaluated in (
        ("deepseek-ocr", {"no_repeat_ngram_size": 20}, {"no_repeat_ngram_size": 35}),
        ("deepseek-ocr-2", {"no_repeat_ngram_size": 20}, {"no_repeat_ngram_size": 35}),
        ("unlimited-ocr", {"no_repeat_ngram_size": 35, "no_repeat_ngram_window": 128}, {}),
    ):
        assert resolve_infer("published", None, name) == (SamplingSettings(**published), True)
        assert resolve_infer("published-eval", None, name) == (SamplingSettings(**evaluated), True)
        for case, rule in (("infer", published), ("infer eval_mode", evaluated)):
            asked = RULES[name]["passed_to_generate"][case] if name == "deepseek-ocr-2" else rule
            assert asked.get("no_repeat_ngram_size") == rule.get("no_repeat_ngram_size")
    many, _ = resolve_infer("published", None, "unlimited-ocr", several_pages=True)
    assert many == SamplingSettings(no_repeat_ngram_size=35, no_repeat_ngram_window=1024)
    assert "no_repeat_ngram_window" not in many.as_generate()
    assert "no_repeat_ngram_window" not in SamplingSettings().described()
    with refused():
        SamplingSettings(no_repeat_ngram_window=5)


def test_cells_of_a_table_may_repeat_under_the_rules_of_the_scripts_for_vllm():
    begin, end, text = 128821, 128822, 77
    cells = torch.tensor([[begin, text, end] * 30])
    for name, size, window in (
        ("published-vllm", 30, 90),
        ("published-vllm-pdf", 20, 50),
        ("published-vllm-eval", 40, 90),
    ):
        asked, autocast = resolve_infer(name, None, "deepseek-ocr")
        assert (asked.no_repeat_ngram_size, asked.no_repeat_ngram_window) == (size, window)
        assert asked.whitelist_token_ids == (begin, end) and not autocast and not asked.do_sample
        (rule,) = Sampler(asked).processors
        for cut, banned in ((0, []), (1, []), (2, [text])):
            ids = cells[:, : cells.shape[1] - cut]
            after = rule(ids, torch.zeros(1, 129_280))
            assert after.isneginf().nonzero()[:, 1].tolist() == banned
    text_form = "no_repeat_ngram_size=3,whitelist_token_ids=[128821, 128822],temperature=0"
    assert SamplingSettings.from_infer(text_form).whitelist_token_ids == (begin, end)
    with refused():
        SamplingSettings(whitelist_token_ids=(5,))


def test_a_whitelist_gives_the_tokens_of_generate(tiny_session):
    free = tiny_session.run_inference(RECEIPT, max_new_tokens=24, **ONCE)
    allowed = free.results[0].ids[:3]
    asked = {"no_repeat_ngram_size": 1, "whitelist_token_ids": allowed}
    run = tiny_session.run_inference(RECEIPT, max_new_tokens=24, infer=asked, verify=True, **ONCE)
    assert run.request.infer.whitelist_token_ids == allowed
    repeated = [token for token, count in Counter(run.results[0].ids).items() if count > 1]
    assert set(repeated) <= set(allowed)
    assert [check.verdict for check in run.live_checks if check.name == "parity"] == ["pass"]


# -- a record --------------------------------------------------------------------------------------


SMALL = {"deepseek-ocr-2": SMALL_SIZES.replace("clip", "encoder")}
SMALL["unlimited-ocr"] = f"{SMALL_SIZES},window=32"


@pytest.mark.parametrize("name", SMALL)
def test_a_small_dummy_runs(name: str) -> None:
    asked, facts = f"dummy:{name},{SMALL[name]}", FAMILIES[name]
    session = OCRSession.load(asked, device="cpu")
    run = session.run_inference(RECEIPT, preset="small", max_new_tokens=2, **ONCE)
    assert (run.model.name, run.model.family) == (asked, name)
    assert not with_verdict(run_checks(run), "fail")
    inputs = session.prepare(RECEIPT)  # as the recorded pages are
    assert (inputs.views[0].preset.name, *inputs.prompts) == (
        facts.preset().name,
        facts.text_of("markdown"),
    )


@pytest.fixture(scope="module")
def several_pages(unlimited_session) -> PhaseRun:
    """Two pages in one prompt, decoded beyond the window, with a rule over a window of its own."""
    asked = {"preset": "small", "max_new_tokens": 24, "verify": True, **ONCE}
    asked["infer"] = {"no_repeat_ngram_size": 2, "no_repeat_ngram_window": 8}
    return unlimited_session.run_inference([RECEIPT, PAGES / "slide.png"], "multipage", **asked)


def test_cache_facts_are_true_for_a_cache_that_stops_growing(several_pages, tmp_path):
    run = PhaseRun.load(several_pages.save(tmp_path / "run.json"))
    prompt, cache = run.request.prefill_len, run.cache
    assert [page.row for page in run.pages] == [0, 0]
    assert cache.window == WINDOW
    assert cache.lengths == list(range(prompt, prompt + 24))
    assert cache.entries == [min(length, prompt + WINDOW - 1) for length in cache.lengths]
    assert cache.bytes_per_token == 2 * 3 * 80 * 4
    assert cache.bytes == [entries * cache.bytes_per_token for entries in cache.entries]
    checks = {check.name: check for check in run_checks(run)}
    assert {check.verdict for check in checks.values()} <= {"pass", "note", "n/a", "noisy"}
    for name in (
        "parity",
        "cache_growth",
        "cache_linear",
        "cache_reused",
        "image_features",
        "prompt_tokens",
    ):
        assert checks[name].verdict == "pass", name
    assert checks["cache_growth"].measured == (
        f"{prompt} to {prompt + 23} tokens seen, {prompt + 15} entries held, window 16"
    )


def test_two_pages_are_rows_or_one_prompt_and_what_the_family_cannot_is_refused(unlimited_session):
    pages, prompts = [RECEIPT, RECEIPT], ["markdown", "<image>Read it, please, all of it."]
    options = {"preset": "small", "max_new_tokens": WINDOW + 1, **ONCE}
    run = unlimited_session.run_inference(pages, prompts, verify=True, **options)
    checks = {check.name: (check.verdict, check.measured) for check in run.live_checks}
    assert checks["mask_handed_over"] == ("pass", "a mask by slot in 16 steps")
    verdict, why = checks["parity"]
    assert verdict == "n/a" and "mistakes which slots are padding once its window of 16" in why
    with refused():
        unlimited_session.run_inference(pages, prompts, generate=True, **options)
    one = unlimited_session.prepare(pages, prompt="multipage")
    assert (one.views[0].preset.name, one.image_tokens) == ("base", (2 * 273,))
    with refused():  # several pages in one prompt have no crops
        unlimited_session.prepare(pages, prompt="multipage", preset="gundam")


def test_pages_of_a_file_are_one_prompt_on_the_command_line(golden_checkpoint, tmp_path, capsys):
    folder = golden_checkpoint(GOLDEN_UNLIMITED)
    record = tmp_path / "run.json"
    document = tmp_path / "three.tif"
    first, *others = (
        Image.open(PAGES / f"{name}.png").convert("RGB") for name in ("receipt", "slide", "form")
    )
    first.save(document, save_all=True, append_images=others)
    asked = (
        f"--model {folder} --device cpu --prompt multipage --preset small "
        "--max-new-tokens 3 --repeats 1"
    )
    quick = ["--no-ceilings", "--no-token-probabilities"]
    command = ["profile", f"{document}#2-3", *asked.split(), "--warmup", "0", *quick]
    assert main([*command, "--save", str(record)]) == 0
    run = PhaseRun.load(record)
    assert [page.file for page in run.pages] == ["three.tif#2", "three.tif#3"]
    assert len(run.results) == 1
    # The same file repeats it; other pages do not.
    again = ["profile", "--from", str(record), "--save", str(tmp_path / "again.json"), *quick]
    assert main([*again, f"{document}#2-3"]) == 0
    capsys.readouterr()
    for page, says in (
        (f"{document}#1-2", "is not the page of the record"),
        (str(document), "2 pages"),
    ):
        assert main([*again, page]) == 2
        assert says in capsys.readouterr().err.splitlines()[-1]


# -- output ----------------------------------------------------------------------------------------


OUTPUTS = json.loads((GOLDEN_UNLIMITED / "artifacts.json").read_text())


def markdown(name: str) -> str:
    case = OUTPUTS[name]
    return result_markdown(case["model_text"], UNLIMITED_OCR, len(case.get("pages", [1])))


@pytest.mark.parametrize(
    ("name", "labels", "boxes", "pages"),
    [
        (
            "single",
            "title text image image_caption table broken image",
            [1, 1, 1, 1, 1, 0, 1],
            [0] * 7,
        ),
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
    lone = parse_grounding(
        "<PAGE>a<PAGE><|det|>image [1, 2, 30, 40]<|/det|>b<PAGE>c", UNLIMITED_OCR
    )
    texts = ["<PAGE>", "a", "<PAGE>", "<|det|>image [1, 2, 30, 40]<|/det|>b", "<PA"]
    assert token_regions(lone, texts) == [-1, -1, -1, 0, -1]


def test_files_of_several_pages_are_named_by_page(tmp_path):
    case = OUTPUTS["multi"]
    pages = [load_page(GOLDEN / "pages" / file)[0] for file in case["pages"]]
    written = write_artifacts(tmp_path, pages, case["model_text"], UNLIMITED_OCR)
    names = [path.relative_to(tmp_path).as_posix() for path in written]
    assert sorted(names) == sorted([*case["files"], "result_ori.md"])
    for name, size in case["crops"].items():
        with Image.open(tmp_path / "images" / name) as crop:
            assert list(crop.size) == size


def test_regions_and_times_are_shown_on_their_page(several_pages):
    text = OUTPUTS["multi"]["model_text"].removesuffix("<｜end▁of▁sentence｜>")
    pieces = re.findall(r"<PAGE>|<\|det\|>.*?<\|/det\|>|[^<]+", text)
    result = {"ids": [5] * len(pieces), "token_texts": pieces, "text": text}
    run = altered(
        several_pages,
        results=[msgspec.structs.replace(several_pages.results[0], **result)],
        probabilities=None,
    )
    assert run.regions["page"].tolist() == [pd.NA, 0, 0, 1, 1, 1, 2]
    assert run.regions["decode_ms"].sum() == run.tokens_of(0)["device_ms"].sum() > 0
    html = page_section(run).html()
    assert [f"Page {number} of 2" in html for number in (1, 2, 3)] == [True, True, False]
    title = plot_page(run, 1, "time").axes[0].get_title("left")
    assert (
        "1 region on later pages" in html
        and "page 2 of 2" in title
        and "1 region on later pages" in title
    )
    with refused():
        plot_page(run, 2)
