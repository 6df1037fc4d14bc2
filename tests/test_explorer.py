"""The explorer without a browser: its panel, its views, a real run in its thread, and what may go
wrong.
"""

import asyncio
import base64
import contextlib
import gzip
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import example_run
import pytest
from conftest import GOLDEN, NO_TORCH, PAGES
from elements import Elements
from example_run import altered, make_run, page_image, two_page_run
from fake_server import TOKENS, served
from golden_cases import seen_once
from hypothesis import example, given
from hypothesis import strategies as st
from PIL import Image
from wording import says

from ocr_phases import OcrPhasesError, PhaseRun, compare
from ocr_phases.analyse.statistics import LEAST_REPEATS
from ocr_phases.errors import Stopped
from ocr_phases.explorer import Explorer
from ocr_phases.explorer.form import Job, presets_of
from ocr_phases.explorer.panel import MEASURED, VIEWS
from ocr_phases.explorer.paths import existing_path, project_path
from ocr_phases.explorer.records import kept_files, shipped_files
from ocr_phases.explorer.running import Live, start
from ocr_phases.families import FAMILIES, PRESET_NAMES, PROCESSOR
from ocr_phases.measure.loaded_model import forget_kept_model, keep_model
from ocr_phases.models.host import host_name
from ocr_phases.models.tokenizers import load_tokenizer
from ocr_phases.record.parts import to_plain
from ocr_phases.settings import ModelSettings, Settings
from ocr_phases.steps.preparing import announce
from ocr_phases.view.data import markdown_html, row_data

AGAIN = "Measure again with 8 repeats"
JPEG = "data:image/jpeg;base64,"


class Browser:
    """What a browser sends to a panel, and what it gets back."""

    def __init__(self, explorer):
        self.explorer = explorer
        self.answers = []
        explorer.send = lambda content, buffers=None: self.answers.append((content, buffers))

    def ask(self, what, *buffers, **content):
        asked = {"method": "custom", "content": {"do": what, "from": "here", **content}}
        message = {"content": {"data": asked}, "buffers": [memoryview(each) for each in buffers]}
        self.explorer._handle_msg(message)

    def form(self, **values):
        self.explorer.values = {**self.explorer.values, **values}


def everything(explorer):
    """All HTML that the kernel gave to the browser."""
    parts = [html for parts in explorer.parts.values() for html in parts]
    return "".join([*parts, explorer.head, explorer.compared, explorer.records, explorer.message])


def open_all(explorer, *names):
    """Open views one after the other, all of them unless named."""
    for name in names or VIEWS:
        explorer.view = name
        assert explorer.message == "", (name, explorer.message)


def pages_asked(explorer):
    return [(job.page, job.page_name) for job in explorer.form.jobs(explorer.values)]


@pytest.fixture(scope="module")
def run():
    return make_run()


@pytest.fixture
def explorer(run):
    return Explorer(runs=[run], keep=None)


@pytest.fixture(autouse=True)
def first_shipped(monkeypatch):
    """The package's other records are read by the test of them."""
    monkeypatch.setattr("ocr_phases.explorer.panel.shipped_files", lambda: shipped_files()[:1])


def heard(explorer, call):
    """Call with the number of the repeat at each token, before the panel hears of it."""
    on_tokens = explorer.measuring.on_tokens
    explorer.measuring.on_tokens = lambda repeat, new: (call(repeat), on_tokens(repeat, new))


def test_a_new_panel_shows_one_of_the_package_s_records_which_are_of_every_family(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("ocr_phases.explorer.panel.shipped_files", shipped_files)
    explorer = Explorer(keep=tmp_path)
    assert (explorer.run.page.file, explorer.view, explorer.busy) == ("receipt.png", "page", False)
    assert (
        pages_asked(explorer) == [(str(PAGES / "receipt.png"), None)] and AGAIN not in explorer.head
    )
    assert (
        "data-read" in explorer.records and "data-own" not in explorer.records
    )  # nobody may delete it
    runs = [PhaseRun.load(path) for path in shipped_files()]
    assert {(run.model.family or "deepseek-ocr") for run in runs} == set(FAMILIES)


def test_settings_are_what_the_browser_says(run):
    explorer = Explorer(PAGES / "form.png", "models/DeepSeek-OCR", runs=[run], keep=None)
    given = {"prompt": " locate:Total ", "preset": "gundam", "max_new_tokens": "77"}
    Browser(explorer).form(**given, infer="temperature=0.7", grounding="false")
    (asked,) = explorer.form.jobs(explorer.values)
    wanted = {
        "model": "models/DeepSeek-OCR",
        "prompt": "locate:Total",
        "preset": "gundam",
        "warmup": 1,
    }
    wanted |= {
        "max_new_tokens": 77,
        "infer": "temperature=0.7",
        "grounding": False,
        "autocast": None,
    }
    assert vars(asked.settings) | wanted | {"repeats": LEAST_REPEATS} == vars(asked.settings)
    assert asked.page == str(PAGES / "form.png")
    code = asked.code()
    assert "OCRSession.load(model='models/DeepSeek-OCR')" in code
    assert "preset='gundam', max_new_tokens=77" in code and "grounding=False" in code
    compile(code, "cell", "exec")


def test_a_model_has_its_own_presets_and_no_device_that_is_not_there(run, monkeypatch):
    monkeypatch.setattr("ocr_phases.explorer.form.has_cuda", lambda: False)
    explorer = Explorer(runs=[run], keep=None)
    options = lambda: {field["name"]: field["options"] for field in explorer.fields}  # noqa: E731
    assert options()["device"] == ["auto", "cpu"] and "cuda_graph" not in options()["strategy"]
    assert presets_of("tiny") == tuple(FAMILIES["deepseek-ocr"].presets)
    Browser(explorer).form(preset="gundam", model="dummy:deepseek-ocr-2")
    assert explorer.values["preset"] == ""
    assert options()["preset"][1:] == list(FAMILIES["deepseek-ocr-2"].presets)


def test_a_model_of_no_known_family_is_offered_no_strategy_that_it_refuses(run):
    explorer = Explorer(runs=[run], keep=None)
    Browser(explorer).form(strategy="compiled", vision="compiled")
    Browser(explorer).form(model="dummy:glm_ocr")
    offered = {field["name"]: field["options"] for field in explorer.fields}
    assert offered["strategy"] == ["eager"]
    assert offered["vision"] == ["eager"]
    assert explorer.values["strategy"] == "eager"
    assert explorer.values["vision"] == "eager"


PRESETS = {
    "dummy": FAMILIES["deepseek-ocr"].presets,
    "dummy:layers=2": FAMILIES["deepseek-ocr"].presets,
    "dummy:unlimited-ocr,layers=2": FAMILIES["unlimited-ocr"].presets,
    "dummy:glm_ocr": [PROCESSOR],
    "dummy:GlmOcrForConditionalGeneration": [PROCESSOR],
    "dummy:path/to/config.json": [PROCESSOR],
    "not/here": PRESET_NAMES,
}


@pytest.mark.parametrize("model", PRESETS)
def test_a_model_by_its_name_offers_the_presets_that_it_takes(model):
    assert presets_of(model) == tuple(PRESETS[model])


CONFIGS = {
    "qwen2_5_vl": [PROCESSOR],
    "glm_ocr": [PROCESSOR],
    "deepseek_vl_v2": FAMILIES["deepseek-ocr"].presets,
    "DeepseekOCR": FAMILIES["deepseek-ocr"].presets,
    None: PRESET_NAMES,
}


@pytest.mark.parametrize("model_type", CONFIGS)
def test_a_folder_offers_the_presets_of_its_family_or_the_one_of_its_processor(
    model_type, tmp_path
):
    entries = {"model_type": model_type}
    if model_type == "DeepseekOCR":  # what people write: its parts decide
        entries = {**FAMILIES["deepseek-ocr"].config, **entries}
    (tmp_path / "config.json").write_text(json.dumps(entries), encoding="utf-8")
    assert set(presets_of(str(tmp_path))) >= set(CONFIGS[model_type])
    if CONFIGS[model_type] == [PROCESSOR]:
        assert presets_of(str(tmp_path)) == (PROCESSOR,)


def test_the_browser_has_every_value_of_the_panel(explorer):
    assert set(Explorer.class_own_traits()) <= set(explorer.keys)


def test_pages_come_from_a_folder_a_path_and_files(run, tmp_path):
    explorer = Explorer(PAGES, runs=[run], keep=None)
    browser = Browser(explorer)
    assert [*explorer.form.pages][:6] == sorted(path.name for path in PAGES.glob("*.png"))
    assert pages_asked(explorer) == [(str(PAGES / "dense.png"), None)]
    browser.form(pages=["slide.png"])
    assert pages_asked(explorer) == [(str(PAGES / "slide.png"), None)]
    data = (PAGES / "paper.png").read_bytes()
    browser.ask("files", data, data, names=["mine.png", "other.png"])
    assert pages_asked(explorer) == [(data, "mine.png"), (data, "other.png")]
    browser.ask("path", value=str(PAGES / "form.png"))
    assert pages_asked(explorer) == [(str(PAGES / "form.png"), None)]
    for path, told in (("missing.png", "missing.png"), (str(tmp_path), "no page in")):
        browser.ask("path", value=path)
        assert told in explorer.message and "Traceback" in explorer.message
    browser.form(pages=["receipt"])
    assert explorer.message == ""


def test_a_record_is_shown_where_torch_cannot_be_imported(run, tmp_path):
    program = f"""{NO_TORCH}
import asyncio
from ocr_phases.explorer import Explorer
explorer = Explorer(record=sys.argv[1])
assert "ocr_phases.session" not in sys.modules
explorer.view = "latency"
assert explorer.message == "", explorer.message
asyncio.run(explorer.measure())
print(explorer.run.token_count, explorer.message)
"""
    command = [sys.executable, "-c", program, str(run.save(tmp_path / "run.json"))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(run.token_count)) and "ModuleNotFoundError" in done.stdout


#: Without those that the tests around show.
SHAPES = {name: shape for name, shape in example_run.SHAPES.items() if "crops" not in name}
SHAPES["no region"] = {"text": "no region at all"}


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_of_record_is_drawn_and_has_a_small_picture(shape):
    run = make_run(**SHAPES[shape], page_name="<b>.png")
    explorer = Explorer(runs=[run])
    open_all(
        explorer, "checks", "page"
    )  # figures of all shapes are drawn by the tests of what a cell shows
    json.dumps(explorer.data, allow_nan=False)
    explorer.token = 10**6
    assert (explorer.token, explorer.message) == (run.token_count - 1, "")
    bundle = explorer.picture()
    assert len(json.dumps(bundle)) < 300_000
    least_width = 700 if run.has_page else 600
    picture = Image.open(io.BytesIO(base64.b64decode(bundle["image/jpeg"])))
    assert picture.width > least_width
    named = "&lt;b&gt;.png" if run.has_page else "prompt without an image"
    assert "<b>" not in bundle["text/html"] and says(bundle["text/html"], f'alt="{named}')
    if shape == "cuda":
        explorer.token = 0  # which has no step, so that no line over the curve tells the two apart
        curve = explorer.picture()
        explorer.view = "stages"
        assert explorer.picture() != curve
    if shape == "batch":
        explorer.row, explorer.token = 2, 1
        assert explorer.data["rows"] == [page.file for page in run.pages]
        explorer.row = 1
        assert (explorer.row, explorer.token, explorer.message) == (1, 0, "")


def test_what_a_model_or_a_file_name_says_stays_text():
    attack = "<script>alert(1)</script><img src=x onerror=alert(1)>"
    text = f"<|ref|>{attack}<|/ref|><|det|>[[1, 2, 300, 400]]<|/det|>{attack}</style><script>"
    runs = [make_run(text=text, page_name=f"{attack}.png"), make_run(text=text, cuda=True)]
    explorer = Explorer(runs=runs, keep=None)
    explorer.ticked = [record.key for record in explorer.rows[:2]]
    open_all(explorer)
    Browser(explorer).ask("rename", key=explorer.rows[0].key, value=attack)
    shown = everything(explorer) + str(explorer.data["rendered"])
    assert "<script" not in shown and "<img src=x" not in shown and shown.count("&lt;script") > 3


def test_the_head_says_what_makes_a_record_doubtful_and_a_view_is_drawn_when_it_is_opened(run):
    explorer = Explorer(runs=[run], bar=False, keep=None)
    assert (explorer.run, explorer.bar, explorer.parts) == (run, False, {})
    open_all(explorer, "stages", "page")
    assert all(words in everything(explorer) for words in ("kernels=True", "Time of each phase"))
    explorer.add(run)
    assert explorer.parts == {}  # those were another record's
    assert says(explorer.head, "Decode is", "No check failed") and "op-bar" in explorer.head
    row = {
        "wall_s": 4.0,
        "cpu_s": 4.0,
        "other_threads_s": 1.0,
        "waited_s": 0.0,
        "others": 0.0,
        "steal": 0.0,
    }
    rows = [{"repeat": number, **row, "load_start": 1.0, "load_end": 1.0} for number in run.repeats]
    conditions = {"repeats": rows, "gpu": None}
    device = {**to_plain(run.device), "name": host_name(), "conditions": conditions}
    explorer = Explorer(runs=[altered(run, device=device)], keep=None)
    assert "op-noisy" in explorer.head and f">{AGAIN}</button>" in explorer.head
    open_all(explorer, "checks")
    assert says(everything(explorer), "panel or other cells", "25 % of a core")


@pytest.mark.parametrize("cuda", [False, True])
def test_a_record_of_another_device_says_where_a_new_measurement_would_run(cuda, monkeypatch):
    monkeypatch.setattr("ocr_phases.explorer.form.has_cuda", lambda: False)
    explorer = Explorer(runs=[make_run(repeats=1, cuda=cuda)], keep=None)
    device = explorer.run.device.name
    assert AGAIN not in explorer.head
    assert ">Measure on this machine with 8 repeats</button>" in explorer.head
    assert says(explorer.head, f"was measured on {device}", f"this machine, {host_name()}")


def test_the_package_s_record_says_that_it_is_an_example_and_one_s_own_does_not(explorer, tmp_path):
    shown = Explorer(keep=tmp_path)
    day = shown.run.created[:10]
    assert says(shown.head, shown.run.device.name)
    assert says(shown.head, f"Example, measured on {day}: press Run for your own.")
    assert "Example, measured" not in explorer.head


def test_a_chosen_page_is_shown_at_once_and_the_record_s_own_is_not_shown_twice(tmp_path):
    explorer = Explorer(keep=tmp_path)
    assert explorer.chosen_page == {}
    Browser(explorer).form(pages=["invoice"])
    assert "invoice has not been measured yet: press Run" in explorer.chosen_page["said"]
    assert "grey belongs to receipt.png" in explorer.chosen_page["said"]
    assert explorer.chosen_page["href"].startswith(JPEG)
    Browser(explorer).form(pages=["receipt"])
    assert explorer.chosen_page == {}
    Browser(explorer).ask("files", (PAGES / "form.png").read_bytes(), names=["mine.png"])
    assert "mine.png has not been measured" in explorer.chosen_page["said"]
    Browser(explorer).ask("show", key=explorer.rows[0].key)
    assert explorer.chosen_page == {}


def test_a_refused_file_is_neither_chosen_nor_kept_on_offer(explorer, tmp_path):
    before = (dict(explorer.form.pages), explorer.values["pages"])
    browser = Browser(explorer)
    browser.ask("files", b"no page", names=["README.md"])
    assert 'role="alert"' in explorer.message and "README.md" in explorer.message
    (tmp_path / "notes.txt").write_text("no page")
    browser.ask("path", value=str(tmp_path / "notes.txt"))
    assert 'role="alert"' in explorer.message
    assert (explorer.form.pages, explorer.values["pages"]) == before
    page = (PAGES / "form.png").read_bytes()
    browser.ask("files", b"no page", page, names=["README.md", "mine.png"])
    assert "README.md" in explorer.message
    assert pages_asked(explorer) == [(page, "mine.png")] and "README.md" not in explorer.form.pages
    (tmp_path / "a.png").write_text("no page")
    (tmp_path / "b.png").write_bytes(page)
    browser.ask("path", value=str(tmp_path))  # of a folder, the others are on offer
    assert "a.png" in explorer.message and "a.png" not in explorer.form.pages
    assert pages_asked(explorer) == [(str(tmp_path / "b.png"), None)]


def test_a_command_that_the_panel_does_not_have_is_an_error_in_words(explorer):
    Browser(explorer).ask("measure")
    assert says(explorer.message, "The explorer has no command")


# -- what the view draws ---------------------------------------------------------------------------


def test_tokens_regions_boxes_and_slowest_are_those_of_the_record(explorer, run):
    table, data = run.token_table, explorer.data
    assert data["texts"] == table["text"].tolist()
    assert data["region"] == table["region"].tolist()
    assert (data["ms"][0], data["step"][:2]) == (None, [None, 0])  # the prefill's has no time
    assert data["slowest"] == table["device_ms"].nlargest(6).index.tolist()
    low, high = data["scale"]
    assert 0 < low < high <= table["device_ms"].max()
    explorer.token = -3
    assert explorer.token == 0
    (page,) = data["pages"]
    assert {box["region"] for box in page["boxes"]} == {0, 1, 2, 3, 4}
    assert all(0 <= box["box"][0] < box["box"][2] < page["size"][0] for box in page["boxes"])
    values = [-2.0] * run.token_count  # in every region but the picture, which has no text
    doubted = altered(run, probabilities=[{"logprobs": values, "margins": values}])
    unsure = Explorer(runs=[doubted], keep=None).data
    assert unsure["uncertain"]["regions"] and "opv-uncertain" not in data["rendered"]
    assert unsure["rendered"].count('class="opv-uncertain"') == len(unsure["uncertain"]["regions"])
    bare = Explorer(runs=[make_run(embed=False)], keep=None).data
    assert "no page image" in bare["note"] and bare["pages"][0]["href"] == ""


def test_all_pages_of_a_prompt_are_there():
    explorer = Explorer(runs=[two_page_run()])
    data = explorer.data
    assert [[box["region"] for box in page["boxes"]] for page in data["pages"]] == [[0], [1]]
    assert [region["page"] for region in data["regions"]] == [None, 0, 1]
    rendered = {-1: "one", 0: "a", 1: "b"}.items()
    sections = [f'<section data-region="{at}"><p>{said}</p>\n</section>' for at, said in rendered]
    assert data["rendered"] == "".join(sections)
    pictures = [each.picture()["image/jpeg"] for each in (explorer, Explorer(runs=[make_run()]))]
    both, one = (Image.open(io.BytesIO(base64.b64decode(each))).width for each in pictures)
    assert both > one


def test_markdown_has_its_tables_and_nothing_of_html():
    shown = markdown_html(
        "# A *b*\n\n<table><tr><td colspan=2 onclick=x>x <b>y</b></td></tr></table>\n\n"
        "| p |\n|---|\n| q |\n\n![i](http://e/x.png)\n<img src=x>"
    )
    assert re.sub(r"\n *", "", shown) == (
        '<h3>A <em>b</em></h3><table><tr><td colspan="2">x &lt;b&gt;y&lt;/b&gt;</td></tr></table>'
        "<table><thead><tr><th>p</th></tr></thead><tbody><tr><td>q</td></tr></tbody></table>"
        "<p>![i](http://e/x.png)<br />&lt;img src=x&gt;</p>"
    )


_PIECES = (
    "<table>",
    "</table>",
    "<tr>",
    "<td>",
    "<td onclick=x colspan=3>",
    "<script>",
    "<!--",
    "&lt;",
)
_PIECES += ("# ", "| a |\n|--|\n", "[x](y)", "`", "**", "- ", "> ", "\n", "![", "$x_1$", "\\(")
_NAMES = "p|br|hr|pre|code|em|strong|blockquote|ul|ol|li|table|thead|tbody|tr|td|th|h[1-6]"
_VALUES = {"colspan": "[0-9]+", "rowspan": "[0-9]+", "start": "[0-9]+", "class": "language-.*"}
_VALUES["style"] = "text-align:(left|center|right)"


@given(st.lists(st.one_of(st.sampled_from(_PIECES), st.text(max_size=8)), max_size=12))
def test_any_text_becomes_html_of_few_names(pieces):
    shown = markdown_html("".join(pieces))
    assert "<!" not in shown and "<?" not in shown
    for tag, attributes in Elements(shown).found:
        assert re.fullmatch(_NAMES, tag)
        assert all(re.fullmatch(_VALUES[name], value) for name, value in attributes.items())


# -- what a running measurement tells --------------------------------------------------------------

_MARKED = "<|ref|>title<|/ref|><|det|>[[1, 2, 300, 400]]<|/det|>x"
_TIMES = st.lists(st.one_of(st.just(float("nan")), st.floats(0.01, 500)), max_size=900)


@example([1.0, 5.0, 2.0] * 300)
@given(_TIMES)
def test_a_live_update_is_small_and_keeps_the_slowest_token(times):
    live = Live()
    live.begin(32, repeats=1, warmup=0)
    live._times = [times]
    state = live.state()
    (points,) = state["lines"]
    known = [ms for ms in times if ms == ms]
    assert len(points) <= 400
    assert max((ms for _, ms in points), default=0) == pytest.approx(
        max(known, default=0), abs=1e-4
    )
    assert len(json.dumps(state, allow_nan=False)) < 40_000


@pytest.mark.parametrize("text", [_MARKED, "<|det|>title [1, 2, 300, 400]<|/det|>"])
def test_live_tells_text_boxes_pace_and_progress_and_a_result_is_tightened_by_repeats(text):
    live, many = Live(), len(text)
    live.begin(many, repeats=2, warmup=1, page=page_image(60, 80))
    assert live.size == (60, 80) and live.picture.startswith(JPEG)
    live.doing("loading tiny")
    state = live.state()
    assert (
        "loading tiny" in state["doing"] and state["done"] is None
    )  # nobody knows how long loading takes
    live.reader(lambda: lambda token: text[token])
    live.progress(0, 3)
    for token in range(many - 12):
        live.on_tokens(-1, [[token]])
    state = live.state()
    assert says(state["doing"], "warm-up", f"token {many - 12} of at most {many}")
    # During the first run nobody knows how long runs are.
    assert (state["left"], state["done"], state["total"]) == ("", None, None)
    assert state["boxes"] == []
    assert state["text"] == text[:-12] and len(state["lines"][0]) == many - 13
    live.on_tokens(-1, [[*range(many - 12, many)]])
    assert [box["region"] for box in live.state()["boxes"]] == [0]
    for done, new in ((1, 3), (2, 2)):
        live.progress(done, 3)
        for _ in range(new):
            live.on_tokens(0, [[7]])
    state = live.state()
    assert says(state["doing"], "repeat 2 of 2", "token 2 of about 3", "per token")
    assert state["left"].endswith("s left")
    assert (state["done"], state["total"]) == (many + 3 + 2, many + 3 + 3)
    # What a finished run brought stays while the next one is measured, whose curve is the faint
    # one.
    assert (state["text"], len(state["lines"])) == (3 * text[7], 2)
    live.progress(3, 3)
    live.state()
    live._times = [[9.0], [1.0, 5.0], [2.0, 8.0]]
    assert live.state()["lines"] == [[(0, 2.0), (1, 8.0)], [(0, 1.5), (1, 6.5)]]
    live.stop()
    with pytest.raises(Stopped):  # at the next token, also where no layer can be stopped
        live.on_tokens(1, [[7]])


def test_a_run_s_half_character_is_not_shown_in_the_next_one(monkeypatch):
    tokenizer = load_tokenizer(GOLDEN / "checkpoint")

    def run_inference(page, *, on_tokens, progress, **options):
        for number in range(2):
            progress(number, 2)
            on_tokens(number, [[250]])  # the first byte of a longer character
        on_tokens(1, [tokenizer.encode("!", add_special_tokens=False)])
        progress(2, 2)

    session = SimpleNamespace(
        tokenizer=tokenizer, device="cuda", model=None, run_inference=run_inference
    )
    monkeypatch.setattr("ocr_phases.session.kept.kept_session", lambda **_: session)
    live, asked = Live(), Job(str(PAGES / "form.png"), None, Settings(repeats=2, warmup=0))
    start(asked, live).result()
    assert live.state()["text"] == "\ufffd!"


# -- records ---------------------------------------------------------------------------------------


def test_records_are_loaded_named_and_deleted(run, tmp_path):
    explorer = Explorer(keep=tmp_path / "kept")
    browser = Browser(explorer)
    file = run.save(tmp_path / "one.json")
    browser.ask("path", value=str(file))
    assert explorer.run.result == run.result
    key, data = explorer.rows[0].key, run.to_json()
    browser.ask("files", data, gzip.compress(data), names=["up.json", "up.json.gz"])
    assert len(explorer.runs) == 4  # with the package's
    browser.ask("rename", key=key, value="my run/1")
    assert (tmp_path / "my-run-1.json").exists() and not file.exists()
    assert f'value="{key}"' in explorer.records and "<td>my run/1</td>" in explorer.records
    browser.ask("show", key=key)
    browser.ask("delete", key=key)
    assert not (tmp_path / "my-run-1.json").exists() and f'value="{key}"' not in explorer.records
    assert explorer.run is not None


@pytest.mark.parametrize("content", [None, b"{", b"{}", b'{"schema": 99}', b"\xff\xfe"])
def test_a_file_that_is_no_record_is_told_and_changes_nothing(explorer, run, tmp_path, content):
    path, browser, before = tmp_path / "wrong.json", Browser(explorer), explorer.run
    if content is not None:
        path.write_bytes(content)
    browser.ask("path", value=str(path))
    assert 'role="alert"' in explorer.message
    assert "OcrPhasesError" not in explorer.message.split("<details")[0]
    assert explorer.run is before
    with pytest.raises(OcrPhasesError):
        Explorer(record=path)
    if content is not None:  # which keeps none of the others back
        files = {"wrong.json": content, "good.json": run.to_json(), "worse.json": b"{}"}
        browser.ask("files", *files.values(), names=[*files])
        said = re.sub("<details.*?</details>", "", explorer.message, flags=re.DOTALL)
        assert [name in said for name in files] == [True, False, True] and len(explorer.runs) == 2
    if content == b"{":  # one in the folder of records is passed over
        explorer = Explorer(keep=tmp_path)
        assert says(explorer.message, "wrong.json") and explorer.run.page.file == "receipt.png"
        explorer.view = "records"
        assert "<td>damaged: " in explorer.records


def prefill_ratio(baseline, other):
    return float(compare(baseline, other).table.set_index("metric").loc["prefill_ms", "ratio"])


def test_two_ticked_records_are_compared_with_the_pinned_one(run):
    others = [make_run(seed=5, crops=False), make_run(seed=6, text=_MARKED)]
    explorer = Explorer(runs=[others[1], others[0], run], keep=None)
    keys = [record.key for record in explorer.rows[:3]]
    explorer.ticked = keys[:1]
    assert explorer.compared == ""
    explorer.ticked = keys[:2]
    shown = explorer.compared
    assert shown.count('class="op-svg"') == 2 and says(
        shown, "Set Repeats (--repeats) to 5 or more"
    )
    assert f'data-value="{prefill_ratio(run, others[0])!r}"' in shown
    explorer.pinned = keys[2]
    assert says(explorer.compared, "How the text differs")
    assert f'data-value="{prefill_ratio(others[1], run)!r}"' in explorer.compared
    explorer.ticked, explorer.pinned = [], ""
    assert explorer.compared == ""


def test_two_ticked_records_are_drawn_over_one_another_and_the_page_is_the_first_one_s(run):
    other, third = make_run(seed=5, crops=False), make_run(seed=6, text=_MARKED)
    explorer = Explorer(runs=[third, other, run], keep=None)
    shown, first, second = explorer.rows[:3]
    explorer.ticked = [first.key]
    assert (explorer.run, explorer.curves) == (shown.run, [])
    explorer.ticked = [first.key, second.key]
    assert explorer.run is first.run
    assert explorer.data["texts"] == row_data(first.run, 0)["texts"]
    assert [curve["tokens"] for curve in explorer.curves] == [
        first.run.token_count,
        second.run.token_count,
    ]
    assert says(explorer.compared, "The view Page draws the latency curves of these 2 records")
    Browser(explorer).ask("show", key=second.key)  # whose page is now shown, over the same curves
    assert explorer.run is second.run
    assert len(explorer.curves) == 2
    explorer.ticked = []
    assert (explorer.run, explorer.curves) == (second.run, [])


def test_of_many_ticked_records_six_curves_are_drawn_and_the_page_says_so(run):
    explorer = Explorer(runs=[make_run(seed=seed) for seed in range(8)], keep=None)
    explorer.ticked = [record.key for record in explorer.rows[:8]]
    assert len(explorer.curves) == 6
    assert says(explorer.compared, "the latency curves of the first 6 of these records")


def test_a_report_is_made_of_a_record(explorer, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").touch()
    browser = Browser(explorer)
    browser.ask("report", key=explorer.rows[0].key)
    (content, (data,)) = browser.answers[-1]
    (report,) = tmp_path.rglob("report.html")
    assert (content["to"], content["file"]) == ("here", f"{report.parent.name}.html")
    assert data == report.read_bytes()


# -- running ---------------------------------------------------------------------------------------


@pytest.fixture
def quick(tiny_session, run, tmp_path):
    """A panel that asks for little, where the kernel already holds the model."""
    keep_model(ModelSettings(**Settings().of_model()), tiny_session.loaded_model)
    explorer = Explorer(PAGES / "receipt.png", runs=[run], keep=tmp_path / "kept")
    less = {"ceilings": False, "token_probabilities": False}
    Browser(explorer).form(preset="tiny", max_new_tokens=2, repeats=1, warmup=0, **less)
    with seen_once(tiny_session):
        yield explorer
    MEASURED.clear()
    forget_kept_model()


def test_a_run_is_measured_in_its_thread_watched_and_repeated_over_its_curve(quick):
    seen, threads, shown = [], set(), len(quick.runs)
    Browser(quick).form(max_new_tokens=6, repeats=2)
    quick.observe(lambda change: seen.append(change["new"]), "live")
    heard(quick, lambda _: threads.add((threading.current_thread().name, quick.busy)))
    heard(quick, lambda _: len(quick.runs) == shown and time.sleep(0.06))  # in time to be watched
    asyncio.run(quick.measure())
    assert (quick.message, quick.busy, quick.live) == ("", False, {})
    first = quick.run
    assert (first.token_count, first.repeats, first.page.file) == (6, [0, 1], "receipt.png")
    ((thread, busy),) = threads
    assert busy and thread != threading.current_thread().name
    states = [state for state in seen if state]
    assert any("title" in state["text"] for state in states)
    assert any(state["left"].endswith("s left") for state in states)
    assert quick.live_page.startswith(JPEG)
    Browser(quick).ask("again", label=AGAIN)
    assert len(quick.run.repeats) == 8
    now, before = quick.curves
    assert (now["name"], before["name"]) == ("now", "before")
    assert [ms for _, ms in before["points"]] == pytest.approx(
        first.token_table["device_ms"].dropna().tolist(), abs=1e-4
    )
    assert quick.runs[1] is first and len(quick.runs) == shown + 2


STOPS = [("repeat 0", "stop"), ("repeat 1", "stop"), ("set-up", "stop")]
STOPS += [("layer", by) for by in ("stop", "interrupt", "cancel")]


@pytest.mark.parametrize(("where", "by"), STOPS)
def test_a_measurement_ends_where_it_is_stopped(quick, tiny_session, monkeypatch, where, by):
    layers = tiny_session.model.model.vision_tower.vision_encoder.encoder.layers
    calls, heeded, named = [], [], threading.Event()
    before, handler = quick.run, signal.getsignal(signal.SIGINT)
    Browser(quick).form(max_new_tokens=3, repeats=2)

    async def measure():
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        how = {
            "stop": quick.stop,
            "interrupt": lambda: os.kill(os.getpid(), signal.SIGINT),
            "cancel": lambda: loop.call_soon_threadsafe(task.cancel),
        }[by]

        def stop(*_):
            how()
            heeded.append(quick.measuring._stop.wait(10))

        def at_token(repeat):
            calls.append(f"repeat {repeat}")
            if calls.count(where) == 3:
                stop()

        def set_up(*_):  # nothing is compiled here
            announce("compiling the decode step")
            assert named.wait(30)
            stop()

        told = lambda change: "compiling the decode step" in change["new"].get("doing", "")  # noqa: E731
        quick.observe(lambda change: told(change) and named.set(), "live")
        heard(quick, at_token)
        with monkeypatch.context() as patch, contextlib.ExitStack() as after:
            if where == "set-up":
                Browser(quick).form(strategy="compiled")
                patch.setattr("ocr_phases.measure.measurement.Measurement.set_up", set_up)
            if where == "layer":
                after.callback(layers[0].register_forward_hook(stop).remove)
            await quick.measure()

    with pytest.raises(asyncio.CancelledError) if by == "cancel" else contextlib.nullcontext():
        asyncio.run(measure())
    assert heeded == [True] and not quick.busy
    assert len(calls) == {"repeat 0": 3, "repeat 1": 6}.get(where, 0)
    assert by == "cancel" or "Stopped" in quick.message
    if where == "repeat 1":
        assert quick.run.repeats == [0] and "1 of 2 repeats" in quick.message
    else:
        assert quick.run is before and quick.rows[0].cells["steps"] == "stopped"
    assert not any(layer._forward_pre_hooks for layer in layers)
    assert signal.getsignal(signal.SIGINT) == handler
    if where == "layer":
        asyncio.run(quick.measure())  # which does not wait for the one before
        assert quick.run.repeats == [0, 1]


def test_pages_and_presets_run_one_after_another(quick, tmp_path, monkeypatch):
    told, doing = [], Live.doing
    monkeypatch.setattr(Live, "doing", lambda live, what: (told.append(what), doing(live, what)))
    folder = tmp_path / "pages"
    folder.mkdir()
    shutil.copy(PAGES / "slide.png", folder)
    shutil.copy(PAGES / "slide.png", folder / "bad.png")
    browser = Browser(quick)
    browser.ask("path", value=str(folder))
    (folder / "bad.png").write_text("no image")  # after it was offered
    browser.form(pages=["bad.png", "slide.png"], presets=["tiny"], preset="small")
    seen = []
    states = lambda: [row.cells["steps"].split(":")[0] for row in quick.rows[:4]]  # noqa: E731
    quick.observe(lambda _: seen.append(states()), "records")
    asyncio.run(quick.measure())
    assert ["waiting", "running", "failed", "failed"] in seen
    assert states()[2:] == ["failed", "failed"] and "not an image" in quick.rows[3].cells["steps"]
    assert [run.page.preset for run in quick.runs[:2]] == ["tiny", "small"]
    assert len(kept_files(quick.folder)) == 2
    assert [what for what in told if what.startswith("loading: tiny at small needs ")]
    quick.view = "records"  # with rows that have no file to read
    assert quick.records.index("slide.png") < quick.records.index("failed: ")


def test_a_server_s_address_is_a_model(quick):
    with served() as fake:
        Browser(quick).form(model=f"{fake.url}#{fake.models[0]}", max_new_tokens=8)
        asyncio.run(quick.measure())
    assert quick.message == ""
    assert quick.run.device.kind == "server" and quick.run.result.token_texts == TOKENS
    assert quick.data["texts"] == TOKENS and "Measure again" in quick.head


def test_finished_records_are_kept_and_the_newest_is_shown_again(quick, tmp_path, monkeypatch):
    monkeypatch.setattr("ocr_phases.collectors.machine.now", lambda: "2026-11-23T03:00:00")
    for _ in range(2):
        asyncio.run(quick.measure())
    stem = "2026-11-23T03-00-00_receipt.png_tiny_tiny_eager_vision-eager_2-tokens"
    kept = tmp_path / "kept"
    assert sorted(path.name for path in kept.iterdir()) == [f"{stem}-2.json", f"{stem}.json"]
    assert says(quick.told, "2 records") and quick.records.count("data-own") == 3
    MEASURED.clear()  # as a restart does
    (kept / "old.json.gz").write_bytes(gzip.compress(quick.run.to_json()))
    os.utime(kept / "old.json.gz", (0, 0))
    again = Explorer(keep=kept)
    names = [record.file.name for record in again.rows[:3]]
    assert names == [f"{stem}.json", f"{stem}-2.json", "old.json.gz"]
    assert again.run.to_dict() == quick.runs[1].to_dict()
    assert "prefill_ms" not in again.rows[2].cells
    again.view = "records"
    assert again.rows[2].cells["prefill_ms"] == quick.run["prefill_ms"]
    assert len(again.runs) == 1  # the others are read for the table alone


def test_what_is_asked_is_done_with_what_the_browser_holds_back(explorer):
    browser, told = Browser(explorer), []
    explorer._handle = SimpleNamespace(
        update=lambda bundle, raw: told.append((explorer.token, bundle))
    )
    browser.ask("save", state={"token": 7, "color": "time"})
    assert told == [(7, explorer.picture())] and browser.answers[-1][0]["saved"]
    browser.ask("code", state={"values": {**explorer.values, "seed": 12}})
    assert "seed=12" in browser.answers[-1][0]["copy"]


def test_confidential_records_are_kept_by_the_kernel_alone(quick, tmp_path):
    told = []
    quick._handle = SimpleNamespace(update=lambda bundle, raw: told.append(bundle))
    quick.keeps = False
    assert "image/jpeg" not in told[-1]
    asyncio.run(quick.measure())
    assert not (tmp_path / "kept").exists()
    again = Explorer(keep=None)  # the cell run again
    assert again.run is quick.run
    assert "image/jpeg" not in again.picture()  # nor is the page in the notebook's file
    again.keeps = True
    assert "image/jpeg" in again.picture()


def test_a_record_that_cannot_be_kept_is_shown(quick, tmp_path):
    (tmp_path / "kept").write_text("a file")
    asyncio.run(quick.measure())
    assert quick.run.token_count == 2 and says(quick.message, "cannot be written")


def test_paths_begin_in_the_project(tmp_path, monkeypatch):
    project, notebooks = tmp_path / "project", tmp_path / "project" / "notebooks"
    notebooks.mkdir(parents=True)
    monkeypatch.chdir(notebooks)
    assert project_path("out") == notebooks / "out"
    (project / ".git").mkdir()
    (notebooks / "scan.pdf").touch()
    assert (project_path("out"), existing_path("scan.pdf#2")) == (
        project / "out",
        notebooks / "scan.pdf#2",
    )
    (project / "scan.pdf").touch()
    assert existing_path("scan.pdf#2") == project / "scan.pdf#2"
    assert existing_path("/a/b.png") == Path("/a/b.png")


REFUSED = [
    ({"pages": []}, "No page chosen"),
    ({"prompt": ""}, "No prompt chosen"),
    ({"model": "no/such folder"}, "no/such folder"),
    ({"device": ""}, "No device chosen"),
    ({}, "RuntimeError: &lt;b&gt;the device&lt;/b&gt; went away</p>"),
]


@pytest.mark.parametrize(("change", "says"), REFUSED, ids=str)
def test_what_cannot_be_run_is_said_in_a_sentence(quick, monkeypatch, change, says):
    def fails(*_, **__):
        raise RuntimeError("<b>the device</b> went away\nand more")

    if not change:
        monkeypatch.setattr("ocr_phases.session.kept.kept_session", fails)
    before = quick.run
    Browser(quick).form(**change)
    asyncio.run(quick.measure())
    sentence, _, rest = quick.message.partition("<details")
    assert says in sentence and "Traceback (most recent call last)" in rest
    assert quick.run is before and not quick.busy
