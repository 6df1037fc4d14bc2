"""What sets the families apart: config, rules and output as the vendors have them, and a record of
each.

Their phases are held in ``test_phases.py``, their pages in ``test_page.py``.
"""

import contextlib
import copy
import json
import re
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd
import pytest
import torch
from conftest import GOLDEN, GOLDEN_2, GOLDEN_UNLIMITED, PAGES, SMALL_SIZES
from example_run import EOS, altered, check_of
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
from ocr_phases.analyse.grounding import Grounding, parse_grounding, token_regions
from ocr_phases.cli import main
from ocr_phases.families import DEEPSEEK_OCR, FAMILIES, UNLIMITED_OCR, FamilyFacts
from ocr_phases.images import load_page
from ocr_phases.models.wiring import native_config
from ocr_phases.report.result_files import result_markdown, write_artifacts
from ocr_phases.settings import SamplingSettings, resolve_infer
from ocr_phases.show.page import plot_page
from ocr_phases.steps.sampling import NoRepeatNGrams, Sampler

RECEIPT = PAGES / "receipt.png"
ONCE: dict[str, Any] = {
    "repeats": 1,
    "warmup": 0,
    "ignore_eos": True,
    "ceilings": False,
    "token_probabilities": False,
}
#: The window of the recorded model of Unlimited-OCR.
WINDOW = 16

Json = dict[str, Any]


# -- config and weights ----------------------------------------------------------------------------


def entry_at(content: Any, path: tuple[str | int, ...]) -> Any:
    """The entry of plain JSON that these keys lead to."""
    for key in path:
        content = content[key]
    return content


def with_entry(content: Json, path: tuple[str | int, ...], value: object) -> Json:
    """A copy of plain JSON with another value at the end of these keys."""
    changed = copy.deepcopy(content)
    *sections, name = path
    entry_at(changed, tuple(sections))[name] = value
    return changed


def without_entry(content: Json, path: tuple[str | int, ...]) -> Json:
    """A copy of plain JSON without the entry at the end of these keys."""
    changed = copy.deepcopy(content)
    *sections, name = path
    del entry_at(changed, tuple(sections))[name]
    return changed


@pytest.mark.parametrize("name", ["deepseek-ocr-2", "unlimited-ocr"])
def test_what_transformers_saves_loads_whole(
    name: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    recording = RECORDINGS[name]
    model = request.getfixturevalue(recording.session).model
    model.save_pretrained(tmp_path)
    for path in (recording.folder / "checkpoint").glob("tokenizer*.json"):
        shutil.copy(path, tmp_path)

    again = OCRSession.from_local(tmp_path, device="cpu")

    assert again.family is FAMILIES[name]
    assert again.interface.window(again.model) == again.interface.window(model)
    for loaded, saved in zip(again.model.parameters(), model.parameters(), strict=True):
        assert torch.equal(loaded, saved)

    config = json.loads((tmp_path / "config.json").read_text())
    if name == "unlimited-ocr":
        first_layer = ("text_config", "layer_types", 0)
        with refused():
            native_config(with_entry(config, first_layer, "full_attention"))
        needed = ("text_config", "sliding_window")
    else:
        rope = again.model.config.vision_config.encoder_config.rope_parameters
        assert rope["rope_theta"] == 1_000_000.0
        needed = ("vision_config", "encoder_config", "rope_parameters")
    with refused():
        native_config(without_entry(config, needed))


def test_the_window_is_the_files() -> None:
    recorded = json.loads((GOLDEN_UNLIMITED / "checkpoint" / "config.json").read_text())
    text_config = native_config(recorded).text_config
    assert text_config.sliding_window == WINDOW
    assert set(text_config.layer_types) == {"reference_sliding_attention"}

    without_window = recorded
    for place in (
        ("language_config", "sliding_window_size"),
        ("sliding_window_size",),
        ("sliding_window",),
    ):
        with refused():
            native_config(with_entry(recorded, place, WINDOW + 1))
        without_window = without_entry(without_window, place)
    with refused():
        native_config(without_window)
    with refused():
        native_config({**FAMILIES[UNLIMITED_OCR].config, "sliding_window_size": 1})


def config_of_ocr2() -> Json:
    """The published layout with every number that its model reads, and with none that it lacks."""
    recorded = json.loads((GOLDEN_2 / "checkpoint" / "config.json").read_text())
    config = {name: recorded[name] for name in ("model_type", "language_config", "vision_config")}
    language = config["language_config"]
    for name in ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"):
        del language[name]  # of another kind of attention, which this model has not
    language["rope_theta"] = 10_000.0
    language["rms_norm_eps"] = 1e-6
    language["routed_scaling_factor"] = 1.0
    return config


def test_no_number_of_the_file_is_ignored() -> None:
    """Each of them, changed alone, changes the config or is refused."""
    config = config_of_ocr2()
    before = native_config(config).to_dict()
    numbers = [path for path in paths(config) if type(entry_at(config, path)) in (int, float)]
    assert len(numbers) > 30

    for path in numbers:
        value = entry_at(config, path)
        larger = 2 * value if isinstance(value, float) else 2 * value + 2
        with contextlib.suppress(OcrPhasesError):
            assert native_config(with_entry(config, path, larger)).to_dict() != before, path


# -- two families of one class ---------------------------------------------------------------------


@pytest.fixture
def hd_family(monkeypatch: pytest.MonkeyPatch) -> FamilyFacts:
    """A release of DeepSeek-OCR with another ``model_type`` and another size behind one preset."""
    known = FAMILIES[DEEPSEEK_OCR]
    larger_small = replace(known.presets["small"], base_size=768, image_size=768)
    facts = replace(
        known,
        name="deepseek-ocr-hd",
        title="DeepSeek-OCR HD",
        config={**known.config, "model_type": "deepseek_vl_hd"},
        presets={**known.presets, "small": larger_small},
    )
    monkeypatch.setitem(FAMILIES, facts.name, facts)
    return facts


def test_a_family_that_shares_its_class_with_another_keeps_its_own_presets(
    hd_family: FamilyFacts,
) -> None:
    session = OCRSession.load(f"dummy:deepseek-ocr-hd,{SMALL_SIZES}", device="cpu")
    run = session.run_inference(RECEIPT, preset="small", max_new_tokens=2, **ONCE)
    assert session.family is hd_family
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
    wirings = [facts.native]
    if facts.vendor is not None:
        wirings.append(facts.vendor)
    for wiring in wirings:
        stages = {*wiring.modules, *wiring.between}
        assert {*facts.encoders, "projector", "language_model", "lm_head"} <= stages


# -- generation rules ------------------------------------------------------------------------------


#: What the vendors' code does with tokens, of each family that has such a recording.
RECORDED_RULES = {
    recording.name: json.loads((recording.folder / "generation.json").read_text())
    for recording in RECORDINGS.values()
    if (recording.folder / "generation.json").exists()
}
NGRAM_CASES = [
    (name, case) for name, rules in RECORDED_RULES.items() for case in rules["ngram"]["cases"]
]


def banned_tokens(scores: torch.Tensor) -> list[list[int]]:
    """The tokens of each row that cannot come."""
    return [row.isneginf().nonzero().flatten().tolist() for row in scores]


@pytest.mark.parametrize(("name", "case"), NGRAM_CASES)
def test_ngrams_are_banned_as_recorded(name: str, case: Json) -> None:
    sampling = SamplingSettings(
        no_repeat_ngram_size=case["ngram_size"],
        no_repeat_ngram_window=case["window"] or 0,
        whitelist_token_ids=tuple(case["whitelist"] or ()),
    )
    (rule,) = Sampler(sampling).processors
    scores = torch.tensor(RECORDED_RULES[name]["ngram"]["scores_before"])

    after = rule(torch.tensor(case["input_ids"]), scores.clone())

    assert banned_tokens(after) == case["banned"]
    allowed = ~after.isneginf()
    assert torch.equal(after[allowed], scores[allowed])


@settings(deadline=None, max_examples=40)
@given(
    data=st.data(),
    size=st.integers(1, 6),
    window=st.sampled_from([0, 1, 2, 3, 5, 8]),
    length=st.integers(1, 12),
    rows=st.integers(1, 3),
)
def test_ngrams_that_come_one_by_one_are_banned_as_by_transformers(
    data: st.DataObject, size: int, window: int, length: int, rows: int
) -> None:
    vocabulary = data.draw(st.integers(2, 5))
    token = st.integers(0, vocabulary + 1)  # beyond the vocabulary, too: image tokens may be
    row = st.lists(token, min_size=length + 8, max_size=length + 8)
    ids = torch.tensor(data.draw(st.lists(row, min_size=rows, max_size=rows)))
    theirs = NoRepeatNGramLogitsProcessor(size)
    ours = NoRepeatNGrams(size, window)

    for end in range(length, length + 9):
        scores = torch.randn(rows, vocabulary)
        seen = ids[:, :end]
        expected = theirs(seen[:, -window:], scores)
        torch.testing.assert_close(ours(seen, scores), expected, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("family", "published", "evaluated"),
    [
        ("deepseek-ocr", {"no_repeat_ngram_size": 20}, {"no_repeat_ngram_size": 35}),
        ("deepseek-ocr-2", {"no_repeat_ngram_size": 20}, {"no_repeat_ngram_size": 35}),
        ("unlimited-ocr", {"no_repeat_ngram_size": 35, "no_repeat_ngram_window": 128}, {}),
    ],
)
def test_the_published_rule_is_the_familys(
    family: str, published: dict[str, int], evaluated: dict[str, int]
) -> None:
    expected = SamplingSettings(**published)
    expected_in_evaluation = SamplingSettings(**evaluated)
    assert resolve_infer("published", None, family) == (expected, True)
    assert resolve_infer("published-eval", None, family) == (expected_in_evaluation, True)


def test_the_published_rule_is_what_the_vendors_code_passed_to_generate() -> None:
    passed = RECORDED_RULES["deepseek-ocr-2"]["passed_to_generate"]
    for name, call in (("published", "infer"), ("published-eval", "infer eval_mode")):
        rule, _ = resolve_infer(name, None, "deepseek-ocr-2")
        assert passed[call]["no_repeat_ngram_size"] == rule.no_repeat_ngram_size


def test_the_published_rule_for_several_pages_looks_back_further() -> None:
    rule, _ = resolve_infer("published", None, "unlimited-ocr", several_pages=True)
    assert rule == SamplingSettings(no_repeat_ngram_size=35, no_repeat_ngram_window=1024)


def test_a_window_is_no_option_of_generate_and_nothing_without_a_size() -> None:
    rule = SamplingSettings(no_repeat_ngram_size=35, no_repeat_ngram_window=1024)
    assert "no_repeat_ngram_window" not in rule.as_generate()
    assert "no_repeat_ngram_window" not in SamplingSettings().described()
    with refused():
        SamplingSettings(no_repeat_ngram_window=5)


#: The tokens that begin and end a cell of a table, and one that may stand in it.
CELL_BEGIN = 128821
CELL_END = 128822
CELL_TEXT = 77


@pytest.mark.parametrize(
    ("name", "size", "window"),
    [
        ("published-vllm", 30, 90),
        ("published-vllm-pdf", 20, 50),
        ("published-vllm-eval", 40, 90),
    ],
)
def test_cells_of_a_table_may_repeat_under_the_rules_of_the_scripts_for_vllm(
    name: str, size: int, window: int
) -> None:
    rule, autocast = resolve_infer(name, None, "deepseek-ocr")
    assert rule.no_repeat_ngram_size == size
    assert rule.no_repeat_ngram_window == window
    assert rule.whitelist_token_ids == (CELL_BEGIN, CELL_END)
    assert not autocast
    assert not rule.do_sample

    (processor,) = Sampler(rule).processors
    cells = torch.tensor([[CELL_BEGIN, CELL_TEXT, CELL_END] * 30])
    before_the_text = cells[:, :-2]
    scores = torch.zeros(1, 129_280)
    assert banned_tokens(processor(cells, scores.clone())) == [[]]
    assert banned_tokens(processor(cells[:, :-1], scores.clone())) == [[]]
    assert banned_tokens(processor(before_the_text, scores.clone())) == [[CELL_TEXT]]


def test_a_whitelist_can_be_written_and_needs_a_size() -> None:
    text = "no_repeat_ngram_size=3,whitelist_token_ids=[128821, 128822],temperature=0"
    assert SamplingSettings.from_infer(text).whitelist_token_ids == (CELL_BEGIN, CELL_END)
    with refused():
        SamplingSettings(whitelist_token_ids=(5,))


def test_a_whitelist_gives_the_tokens_of_generate(quick_tiny_session: OCRSession) -> None:
    options: dict[str, Any] = {"preset": "tiny", "max_new_tokens": 16, **ONCE}
    free = quick_tiny_session.run_inference(RECEIPT, **options)
    allowed = free.results[0].ids[:3]
    rule = {"no_repeat_ngram_size": 1, "whitelist_token_ids": allowed}

    run = quick_tiny_session.run_inference(RECEIPT, infer=rule, verify=True, **options)

    assert run.request.infer.whitelist_token_ids == allowed
    counts = Counter(run.results[0].ids)
    repeated = {token for token, count in counts.items() if count > 1}
    assert repeated <= set(allowed)
    assert check_of(run, "parity").verdict == "pass"


# -- a record --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "sizes"),
    [
        ("deepseek-ocr-2", SMALL_SIZES.replace("clip", "encoder")),
        ("unlimited-ocr", f"{SMALL_SIZES},window=32"),
    ],
    ids=["deepseek-ocr-2", "unlimited-ocr"],
)
def test_a_small_dummy_runs(family: str, sizes: str) -> None:
    name = f"dummy:{family},{sizes}"
    facts = FAMILIES[family]
    session = OCRSession.load(name, device="cpu")

    run = session.run_inference(RECEIPT, preset="small", max_new_tokens=2, **ONCE)

    assert run.model.name == name
    assert run.model.family == family
    assert not with_verdict(run_checks(run), "fail")
    by_default = session.prepare(RECEIPT)
    assert by_default.views[0].preset.name == facts.preset().name
    assert list(by_default.prompts) == [facts.text_of("markdown")]


@pytest.fixture(scope="module")
def several_pages(unlimited_session: OCRSession) -> PhaseRun:
    """Two pages in one prompt, decoded beyond the window, with a rule over a window of its own."""
    return unlimited_session.run_inference(
        [RECEIPT, PAGES / "slide.png"],
        "multipage",
        preset="small",
        max_new_tokens=24,
        verify=True,
        infer={"no_repeat_ngram_size": 2, "no_repeat_ngram_window": 8},
        **ONCE,
    )


def test_cache_facts_are_true_for_a_cache_that_stops_growing(
    several_pages: PhaseRun, tmp_path: Path
) -> None:
    run = PhaseRun.load(several_pages.save(tmp_path / "run.json"))
    prompt_length = run.request.prefill_len
    cache = run.cache
    most_entries = prompt_length + WINDOW - 1

    assert [page.row for page in run.pages] == [0, 0]
    assert cache.window == WINDOW
    assert cache.lengths == list(range(prompt_length, prompt_length + 24))
    assert cache.entries == [min(length, most_entries) for length in cache.lengths]
    assert cache.bytes_per_token == 2 * 3 * 80 * 4
    assert cache.bytes == [entries * cache.bytes_per_token for entries in cache.entries]


def test_checks_of_a_cache_that_stops_growing_pass(several_pages: PhaseRun) -> None:
    checks = {check.name: check for check in run_checks(several_pages)}
    prompt_length = several_pages.request.prefill_len

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
        f"{prompt_length} to {prompt_length + 23} tokens seen, "
        f"{prompt_length + 15} entries held, window 16"
    )


def test_two_pages_are_rows_or_one_prompt_and_what_the_family_cannot_is_refused(
    unlimited_session: OCRSession,
) -> None:
    pages = [RECEIPT, RECEIPT]
    prompts = ["markdown", "<image>Read it, please, all of it."]
    options: dict[str, Any] = {"preset": "small", "max_new_tokens": WINDOW + 1, **ONCE}

    run = unlimited_session.run_inference(pages, prompts, verify=True, **options)
    mask = check_of(run, "mask_handed_over")
    parity = check_of(run, "parity")
    assert mask.verdict == "pass"
    assert mask.measured == "a mask by slot in 16 steps"
    assert parity.verdict == "n/a"
    assert "mistakes which slots are padding once its window of 16" in parity.measured
    with refused():
        unlimited_session.run_inference(pages, prompts, generate=True, **options)

    one_prompt = unlimited_session.prepare(pages, prompt="multipage")
    assert one_prompt.views[0].preset.name == "base"
    assert one_prompt.image_tokens == (2 * 273,)
    with refused():  # several pages in one prompt have no crops
        unlimited_session.prepare(pages, prompt="multipage", preset="gundam")


def save_three_pages(path: Path) -> None:
    """Save three sample pages as one file."""
    images = []
    for name in ("receipt", "slide", "form"):
        images.append(Image.open(PAGES / f"{name}.png").convert("RGB"))
    images[0].save(path, save_all=True, append_images=images[1:])


def test_pages_of_a_file_are_one_prompt_on_the_command_line(
    golden_checkpoint: Callable[[Path], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = tmp_path / "three.tif"
    save_three_pages(document)
    record = tmp_path / "run.json"
    quick = ["--no-ceilings", "--no-token-probabilities"]

    command = ["profile", f"{document}#2-3"]
    command += ["--model", str(golden_checkpoint(GOLDEN_UNLIMITED)), "--device", "cpu"]
    command += ["--prompt", "multipage", "--preset", "small", "--max-new-tokens", "3"]
    command += ["--repeats", "1", "--warmup", "0", "--save", str(record), *quick]
    assert main(command) == 0
    run = PhaseRun.load(record)
    assert [page.file for page in run.pages] == ["three.tif#2", "three.tif#3"]
    assert len(run.results) == 1

    # The same file repeats it; other pages do not.
    repeat = ["profile", "--from", str(record), "--save", str(tmp_path / "again.json"), *quick]
    assert main([*repeat, f"{document}#2-3"]) == 0
    capsys.readouterr()
    assert main([*repeat, f"{document}#1-2"]) == 2
    assert "is not the page of the record" in capsys.readouterr().err.splitlines()[-1]
    assert main([*repeat, str(document)]) == 2
    assert "2 pages" in capsys.readouterr().err.splitlines()[-1]


# -- output ----------------------------------------------------------------------------------------


#: Texts of the model, and what the vendor's code made of them.
OUTPUTS = json.loads((GOLDEN_UNLIMITED / "artifacts.json").read_text())


def markdown_of(name: str) -> str:
    """The Markdown of a recorded text."""
    output = OUTPUTS[name]
    pages = len(output.get("pages", ["the only one"]))
    return result_markdown(output["model_text"], UNLIMITED_OCR, pages)


def grounding_of(name: str) -> Grounding:
    """The regions of a recorded text."""
    return parse_grounding(OUTPUTS[name]["model_text"], UNLIMITED_OCR)


@dataclass(frozen=True)
class ExpectedRegions:
    """The label of each region, and how many boxes it has."""

    labels: str
    box_counts: list[int]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        pytest.param(
            "single",
            ExpectedRegions(
                "title text image image_caption table broken image", [1, 1, 1, 1, 1, 0, 1]
            ),
            id="single",
        ),
        pytest.param("two_boxes", ExpectedRegions("image text image", [2, 1, 1]), id="two boxes"),
        pytest.param(
            "old_format", ExpectedRegions("image title image", [2, 1, 1]), id="old format"
        ),
    ],
)
def test_regions_of_a_page_are_read_in_every_form(name: str, expected: ExpectedRegions) -> None:
    regions = grounding_of(name).regions
    assert [region.page for region in regions] == [0] * len(regions)
    assert [region.label for region in regions] == expected.labels.split()
    assert [len(region.boxes) for region in regions] == expected.box_counts


def test_regions_of_several_pages_know_their_page_and_have_no_page_mark() -> None:
    regions = grounding_of("multi").regions
    assert [region.page for region in regions] == [0, 0, 1, 1, 1, 2]
    assert not any("<PAGE>" in region.text for region in regions)


def test_a_broken_box_is_dropped_and_another_family_reads_none_of_these_forms() -> None:
    found = grounding_of("single")
    assert found.dropped == 1
    assert found.regions[0].boxes == ((100, 40, 900, 90),)
    as_deepseek_ocr = parse_grounding(OUTPUTS["single"]["model_text"])
    assert as_deepseek_ocr.regions == ()


def test_the_output_is_the_vendors_where_that_is_right() -> None:
    up_to_the_tail = OUTPUTS["single"]["result"].removesuffix("tail")
    beyond_the_pages = "<|det|>text [80, 120, 920, 300]<|/det|>"
    links = [f"![](images/{number}.jpg)\n" for number in range(3)]
    expected = {
        "single": f"{up_to_the_tail}lost\n![](images/1.jpg)\ntail",  # the vendor's loses both
        "same_box_twice": f"a\nb\n{links[0]}\n{links[1]}",
        "two_boxes": f"{links[0]}{links[1]}\nb\n{links[2]}",
        "multi": OUTPUTS["multi"]["result"].replace(beyond_the_pages, ""),
        "multi_text_before_first_page": "preamble\n<PAGE>\nOnly page",
        "multi_no_page_mark": "No page mark",
    }
    assert {name: markdown_of(name) for name in expected} == expected


def test_an_image_on_a_page_that_was_not_given_stays_as_the_model_wrote_it() -> None:
    text = "<PAGE>x\n<PAGE><|det|>image [1, 2, 3, 4]<|/det|>"
    assert result_markdown(text, UNLIMITED_OCR) == (
        "<PAGE>\nx\n<PAGE>\n<|det|>image [1, 2, 3, 4]<|/det|>"
    )


def test_tokens_of_page_marks_and_of_text_without_a_box_are_of_no_region() -> None:
    region = "<|det|>image [1, 2, 30, 40]<|/det|>b"
    grounding = parse_grounding(f"<PAGE>a<PAGE>{region}<PAGE>c", UNLIMITED_OCR)
    tokens = ["<PAGE>", "a", "<PAGE>", region, "<PA"]
    assert token_regions(grounding, tokens) == [-1, -1, -1, 0, -1]


def test_files_of_several_pages_are_named_by_page(tmp_path: Path) -> None:
    output = OUTPUTS["multi"]
    pages = []
    for file in output["pages"]:
        page, *_ = load_page(GOLDEN / "pages" / file)
        pages.append(page)

    written = write_artifacts(tmp_path, pages, output["model_text"], UNLIMITED_OCR)

    names = [path.relative_to(tmp_path).as_posix() for path in written]
    assert sorted(names) == sorted([*output["files"], "result_ori.md"])
    for name, size in output["crops"].items():
        with Image.open(tmp_path / "images" / name) as crop:
            assert list(crop.size) == size


@pytest.fixture(scope="module")
def grounded_pages(several_pages: PhaseRun) -> PhaseRun:
    """The record of two pages, as if it had written regions on them and on a third one."""
    text = OUTPUTS["multi"]["model_text"].removesuffix(EOS)
    pieces = re.findall(r"<PAGE>|<\|det\|>.*?<\|/det\|>|[^<]+", text)
    result = msgspec.structs.replace(
        several_pages.results[0], ids=[5] * len(pieces), token_texts=pieces, text=text
    )
    return altered(several_pages, results=[result], probabilities=None)


def test_regions_of_several_pages_share_the_time_of_all_tokens(grounded_pages: PhaseRun) -> None:
    token_ms = grounded_pages.tokens_of(0)["device_ms"].sum()
    assert grounded_pages.regions["page"].tolist() == [pd.NA, 0, 0, 1, 1, 1, 2]
    assert grounded_pages.regions["decode_ms"].sum() == token_ms
    assert token_ms > 0


def test_regions_and_times_are_shown_on_their_page(grounded_pages: PhaseRun) -> None:
    html = page_section(grounded_pages).html()
    assert "Page 1 of 2" in html
    assert "Page 2 of 2" in html
    assert "Page 3 of 2" not in html
    assert "1 region on later pages" in html

    title = plot_page(grounded_pages, 1, "time").axes[0].get_title("left")
    assert "page 2 of 2" in title
    assert "1 region on later pages" in title
    with refused():
        plot_page(grounded_pages, 2)
