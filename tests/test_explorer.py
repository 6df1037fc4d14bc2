"""The explorer without a browser: its panel, its views, a real run in its thread, and what may go
wrong.
"""

import asyncio
import base64
import gzip
import io
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from importlib import resources
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import example_run
import pytest
from conftest import GOLDEN, NO_TORCH, PAGES, RUNS
from elements import Elements
from example_run import altered, make_run, page_image, two_page_run
from fake_server import TOKENS, served
from hypothesis import example, given
from hypothesis import strategies as st
from PIL import Image
from wording import says

from ocr_phases import OcrPhasesError, OCRSession, PhaseRun, compare
from ocr_phases.analyse.statistics import LEAST_REPEATS
from ocr_phases.collectors.conditions import CoreWaits
from ocr_phases.errors import Stopped
from ocr_phases.explorer import Explorer
from ocr_phases.explorer.form import MeasurementJob, presets_of
from ocr_phases.explorer.paths import existing_path, project_path
from ocr_phases.explorer.record_panel import MEASURED
from ocr_phases.explorer.records import kept_files, shipped_files
from ocr_phases.explorer.running import Live, start
from ocr_phases.explorer.sections import VIEWS
from ocr_phases.families import FAMILIES, PRESET_NAMES, PROCESSOR
from ocr_phases.measure.loaded_model import forget_kept_model, keep_model
from ocr_phases.models.host import host_name
from ocr_phases.models.tokenizers import load_tokenizer
from ocr_phases.record.parts import to_plain
from ocr_phases.settings import ModelSettings, Settings
from ocr_phases.steps.preparing import announce
from ocr_phases.view.data import row_data
from ocr_phases.view.markdown import markdown_html

#: The button of a record that was measured on this machine.
AGAIN = "Measure again with 8 repeats"
JPEG_ADDRESS = "data:image/jpeg;base64,"
ALERT = 'role="alert"'
#: A model's text with one region.
MARKED_TITLE = "<|ref|>title<|/ref|><|det|>[[1, 2, 300, 400]]<|/det|>x"


class Browser:
    """What a browser sends to a panel, and in ``answers`` what it gets back: contents and files."""

    def __init__(self, explorer: Explorer) -> None:
        self.explorer = explorer
        self.answers: list[tuple[dict[str, Any], Sequence[bytes] | None]] = []
        explorer.send = self._receive

    def _receive(self, content: dict[str, Any], buffers: Sequence[bytes] | None = None) -> None:
        self.answers.append((content, buffers))

    def ask(self, command: str, *files: bytes, **content: Any) -> None:
        """Send a command of the panel's script, with files and with what else belongs to it."""
        asked = {"method": "custom", "content": {"do": command, "from": "here", **content}}
        buffers = [memoryview(file) for file in files]
        self.explorer._handle_msg({"content": {"data": asked}, "buffers": buffers})

    def fill_in(self, **values: Any) -> None:
        """Change these fields of the form."""
        self.explorer.values = {**self.explorer.values, **values}


def all_html(explorer: Explorer) -> str:
    """All HTML that the kernel gave to the browser."""
    shown = ""
    for fragments in explorer.parts.values():
        shown += "".join(fragments)
    return shown + explorer.head + explorer.compared + explorer.records + explorer.message


def open_views(explorer: Explorer, *names: str) -> None:
    """Open views one after the other, all of them unless named; none may fail."""
    for name in names or VIEWS:
        explorer.view = name
        assert explorer.message == "", (name, explorer.message)


def pages_to_measure(explorer: Explorer) -> list[tuple[str | bytes, str | None]]:
    """The pages that Run would measure, each with its name if it was uploaded."""
    return [(job.page, job.page_name) for job in explorer.form.jobs(explorer.values)]


def field_options(explorer: Explorer) -> dict[str, list[str]]:
    """What each field of the form offers."""
    return {field["name"]: field["options"] for field in explorer.fields}


def jpeg_of(explorer: Explorer) -> Image.Image:
    """The small picture that a notebook's file keeps of a panel."""
    return Image.open(io.BytesIO(base64.b64decode(explorer.picture()["image/jpeg"])))


def call_at_tokens(explorer: Explorer, call: Callable[[int], object]) -> None:
    """Call with the number of the repeat at each token, before the panel hears of it."""
    on_tokens = explorer.measuring.on_tokens

    def call_first(repeat: int, new: list[list[int]]) -> None:
        call(repeat)
        on_tokens(repeat, new)

    explorer.measuring.on_tokens = call_first


@pytest.fixture(scope="module")
def run() -> PhaseRun:
    return make_run()


@pytest.fixture
def explorer(run: PhaseRun) -> Explorer:
    """A panel with one record, which keeps none."""
    return Explorer(runs=[run], keep=None)


@pytest.fixture(autouse=True)
def one_shipped_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """A panel lists one of the package's records: reading all of them takes a while."""
    monkeypatch.setattr(
        "ocr_phases.explorer.record_panel.shipped_files", lambda: shipped_files()[:1]
    )


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ocr_phases.explorer.form.has_cuda", lambda: False)


# -- the form --------------------------------------------------------------------------------------


def test_a_new_panel_shows_a_record_of_the_package_that_nobody_may_delete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ocr_phases.explorer.record_panel.shipped_files", shipped_files)

    explorer = Explorer(keep=tmp_path)

    assert explorer.run.page.file == "receipt.png"
    assert explorer.view == "page"
    assert not explorer.busy
    assert pages_to_measure(explorer) == [(str(PAGES / "receipt.png"), None)]
    assert AGAIN not in explorer.head
    assert "data-read" in explorer.records
    assert "data-own" not in explorer.records


def test_the_package_has_a_record_of_every_family() -> None:
    families = set()
    for path in shipped_files():
        families.add(PhaseRun.load(path).model.family or "deepseek-ocr")
    assert families == set(FAMILIES)


def test_a_measurement_has_the_settings_of_the_form(run: PhaseRun) -> None:
    explorer = Explorer(PAGES / "form.png", "models/DeepSeek-OCR", runs=[run], keep=None)

    Browser(explorer).fill_in(
        prompt=" locate:Total ",
        preset="gundam",
        max_new_tokens="77",
        infer="temperature=0.7",
        grounding="false",
    )

    (job,) = explorer.form.jobs(explorer.values)
    assert job.page == str(PAGES / "form.png")
    settings = vars(job.settings)
    expected = {
        "model": "models/DeepSeek-OCR",
        "prompt": "locate:Total",
        "preset": "gundam",
        "max_new_tokens": 77,
        "infer": "temperature=0.7",
        "grounding": False,
        "autocast": None,
        "warmup": 1,
        "repeats": LEAST_REPEATS,
    }
    assert settings | expected == settings
    code = job.code()
    assert "OCRSession.load(model='models/DeepSeek-OCR')" in code
    assert "preset='gundam', max_new_tokens=77" in code
    assert "grounding=False" in code
    compile(code, "cell", "exec")


def test_no_device_is_offered_that_is_not_there(run: PhaseRun, no_gpu: None) -> None:
    options = field_options(Explorer(runs=[run], keep=None))

    assert options["device"] == ["auto", "cpu"]
    assert "cuda_graph" not in options["strategy"]


def test_another_model_brings_its_own_presets_and_clears_the_one_it_lacks(
    explorer: Explorer,
) -> None:
    assert presets_of("tiny") == tuple(FAMILIES["deepseek-ocr"].presets)

    Browser(explorer).fill_in(preset="gundam", model="dummy:deepseek-ocr-2")

    assert explorer.values["preset"] == ""
    offered = field_options(explorer)["preset"]
    assert offered[1:] == list(FAMILIES["deepseek-ocr-2"].presets)


def test_a_model_of_no_known_family_is_offered_no_strategy_that_it_refuses(
    explorer: Explorer,
) -> None:
    Browser(explorer).fill_in(strategy="compiled", vision="compiled")

    Browser(explorer).fill_in(model="dummy:glm_ocr")

    offered = field_options(explorer)
    assert offered["strategy"] == ["eager"]
    assert offered["vision"] == ["eager"]
    assert explorer.values["strategy"] == "eager"
    assert explorer.values["vision"] == "eager"


PRESETS_BY_NAME = {
    "dummy": FAMILIES["deepseek-ocr"].presets,
    "dummy:layers=2": FAMILIES["deepseek-ocr"].presets,
    "dummy:unlimited-ocr,layers=2": FAMILIES["unlimited-ocr"].presets,
    "dummy:glm_ocr": [PROCESSOR],
    "dummy:GlmOcrForConditionalGeneration": [PROCESSOR],
    "dummy:path/to/config.json": [PROCESSOR],
    "not/here": PRESET_NAMES,
}


@pytest.mark.parametrize("model", PRESETS_BY_NAME)
def test_a_model_by_its_name_offers_the_presets_that_it_takes(model: str) -> None:
    assert presets_of(model) == tuple(PRESETS_BY_NAME[model])


#: The presets that a folder offers whose ``config.json`` has this ``model_type``.
PRESETS_BY_TYPE = {
    "qwen2_5_vl": [PROCESSOR],
    "glm_ocr": [PROCESSOR],
    "deepseek_vl_v2": FAMILIES["deepseek-ocr"].presets,
    "DeepseekOCR": FAMILIES["deepseek-ocr"].presets,
    None: PRESET_NAMES,
}


@pytest.mark.parametrize("model_type", PRESETS_BY_TYPE)
def test_a_folder_offers_the_presets_of_its_family_or_the_one_of_its_processor(
    model_type: str | None, tmp_path: Path
) -> None:
    expected = PRESETS_BY_TYPE[model_type]
    config = {"model_type": model_type}
    if model_type == "DeepseekOCR":  # what people write: its parts decide
        config = {**FAMILIES["deepseek-ocr"].config, **config}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")

    presets = presets_of(str(tmp_path))

    assert set(presets) >= set(expected)
    if expected == [PROCESSOR]:
        assert presets == (PROCESSOR,)


def test_the_browser_has_every_value_of_the_panel(explorer: Explorer) -> None:
    assert set(Explorer.class_own_traits()) <= set(explorer.keys)


def test_pages_come_from_a_folder_a_path_and_files(run: PhaseRun) -> None:
    explorer = Explorer(PAGES, runs=[run], keep=None)
    browser = Browser(explorer)
    assert list(explorer.form.pages)[:6] == sorted(path.name for path in PAGES.glob("*.png"))
    assert pages_to_measure(explorer) == [(str(PAGES / "dense.png"), None)]

    browser.fill_in(pages=["slide.png"])
    assert pages_to_measure(explorer) == [(str(PAGES / "slide.png"), None)]

    upload = (PAGES / "paper.png").read_bytes()
    browser.ask("files", upload, upload, names=["mine.png", "other.png"])
    assert pages_to_measure(explorer) == [(upload, "mine.png"), (upload, "other.png")]

    browser.ask("path", value=str(PAGES / "form.png"))
    assert pages_to_measure(explorer) == [(str(PAGES / "form.png"), None)]


def test_a_path_without_a_page_is_an_error_until_a_page_is_chosen(
    run: PhaseRun, tmp_path: Path
) -> None:
    explorer = Explorer(PAGES, runs=[run], keep=None)
    browser = Browser(explorer)

    browser.ask("path", value="missing.png")
    assert "missing.png" in explorer.message
    assert "Traceback" in explorer.message

    browser.ask("path", value=str(tmp_path))
    assert "no page in" in explorer.message
    assert "Traceback" in explorer.message

    browser.fill_in(pages=["receipt"])
    assert explorer.message == ""


def test_a_record_is_shown_where_torch_cannot_be_imported(run: PhaseRun, tmp_path: Path) -> None:
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
    assert done.stdout.startswith(str(run.token_count))
    assert "ModuleNotFoundError" in done.stdout


# -- the views -------------------------------------------------------------------------------------

#: Shapes of records, without those that the other tests show.
SHAPES = {name: shape for name, shape in example_run.SHAPES.items() if "crops" not in name}
SHAPES["no region"] = {"text": "no region at all"}


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_of_record_is_drawn_and_has_a_small_picture(shape: str) -> None:
    run = make_run(**SHAPES[shape], page_name="<b>.png")
    explorer = Explorer(runs=[run])

    # The other views consist of figures, which the tests of a cell's output draw in all shapes.
    open_views(explorer, "checks", "page")
    json.dumps(explorer.data, allow_nan=False)
    explorer.token = 10**6
    assert explorer.token == run.token_count - 1
    assert explorer.message == ""

    bundle = explorer.picture()
    assert len(json.dumps(bundle)) < 300_000
    least_width = 600
    page_name = "prompt without an image"
    if run.has_page:
        least_width = 700
        page_name = "&lt;b&gt;.png"
    assert jpeg_of(explorer).width > least_width
    assert "<b>" not in bundle["text/html"]
    assert says(bundle["text/html"], f'alt="{page_name}')


def test_the_small_picture_is_of_the_open_view() -> None:
    explorer = Explorer(runs=[make_run(cuda=True)])
    open_views(explorer, "checks", "page")
    explorer.token = 0  # which has no step, so that no line over the curve tells the two apart
    curve = explorer.picture()

    explorer.view = "stages"

    assert explorer.picture() != curve


def test_the_small_picture_has_the_curves_of_ticked_records() -> None:
    explorer = Explorer(runs=[make_run(), make_run(seed=5)])
    alone = explorer.picture()

    explorer.ticked = [row.key for row in explorer.rows[:2]]

    assert explorer.picture() != alone
    explorer.ticked = []
    assert explorer.picture() == alone


def test_another_row_of_a_batch_begins_at_its_first_token() -> None:
    run = make_run(rows=3)
    explorer = Explorer(runs=[run])
    explorer.row = 2
    explorer.token = 1
    assert explorer.data["rows"] == [page.file for page in run.pages]

    explorer.row = 1

    assert explorer.row == 1
    assert explorer.token == 0
    assert explorer.message == ""


def test_what_a_model_or_a_file_name_says_stays_text() -> None:
    attack = "<script>alert(1)</script><img src=x onerror=alert(1)>"
    text = f"<|ref|>{attack}<|/ref|><|det|>[[1, 2, 300, 400]]<|/det|>{attack}</style><script>"
    runs = [make_run(text=text, page_name=f"{attack}.png"), make_run(text=text, cuda=True)]
    explorer = Explorer(runs=runs, keep=None)

    explorer.ticked = [record.key for record in explorer.rows[:2]]
    open_views(explorer)
    Browser(explorer).ask("rename", key=explorer.rows[0].key, value=attack)

    shown = all_html(explorer) + str(explorer.data["rendered"])
    assert "<script" not in shown
    assert "<img src=x" not in shown
    assert shown.count("&lt;script") > 3


def test_a_view_is_drawn_when_it_is_opened_and_again_for_another_record(run: PhaseRun) -> None:
    explorer = Explorer(runs=[run], bar=False, keep=None)
    assert explorer.run == run
    assert not explorer.bar
    assert explorer.parts == {}

    open_views(explorer, "stages", "page")
    shown = all_html(explorer)
    assert "kernels=True" in shown
    assert "Time of each phase" in shown

    explorer.add(run)
    assert explorer.parts == {}
    assert says(explorer.head, "Decode is", "No check failed")
    assert "op-bar" in explorer.head


def disturbed(run: PhaseRun) -> PhaseRun:
    """The record, measured on this machine while other threads of the process were at work."""
    conditions = []
    for repeat in run.repeats:
        conditions.append(
            {
                "repeat": repeat,
                "wall_s": 4.0,
                "cpu_s": 4.0,
                "other_threads_s": 1.0,
                "waited_s": 0.0,
                "others": 0.0,
                "steal": 0.0,
                "load_start": 1.0,
                "load_end": 1.0,
            }
        )
    device = to_plain(run.device)
    device["name"] = host_name()
    device["conditions"] = {"repeats": conditions, "gpu": None}
    return altered(run, device=device)


def test_the_head_says_that_a_record_is_doubtful_and_offers_to_measure_again(
    run: PhaseRun,
) -> None:
    explorer = Explorer(runs=[disturbed(run)], keep=None)

    open_views(explorer, "checks")

    assert "op-noisy" in explorer.head
    assert f">{AGAIN}</button>" in explorer.head
    assert says(all_html(explorer), "panel or other cells", "25 % of a core")


@pytest.mark.parametrize("cuda", [False, True])
def test_a_record_of_another_device_says_where_a_new_measurement_would_run(
    cuda: bool, no_gpu: None
) -> None:
    explorer = Explorer(runs=[make_run(repeats=1, cuda=cuda)], keep=None)

    device = explorer.run.device.name
    assert AGAIN not in explorer.head
    assert ">Measure on this machine with 8 repeats</button>" in explorer.head
    assert says(explorer.head, f"was measured on {device}", f"this machine, {host_name()}")


@pytest.mark.parametrize("name", ["tiny", "dummy:layers=2"])
def test_a_servers_record_is_shown_though_its_model_is_called_like_a_built_in_one(
    name: str,
) -> None:
    run = altered(PhaseRun.load(RUNS / "cpu-vllm-gundam.json.gz"), model={"name": name})

    explorer = Explorer(runs=[run], keep=None)

    assert explorer.message == ""
    assert "</button>" not in explorer.head


def test_the_packages_record_says_that_it_is_an_example_and_ones_own_does_not(
    explorer: Explorer, tmp_path: Path
) -> None:
    of_package = Explorer(keep=tmp_path)

    day = of_package.run.created[:10]
    assert says(of_package.head, of_package.run.device.name)
    assert says(of_package.head, f"Example, measured on {day}: press Run for your own.")
    assert "Example, measured" not in explorer.head


def test_a_chosen_page_is_shown_at_once_and_the_records_own_is_not_shown_twice(
    tmp_path: Path,
) -> None:
    explorer = Explorer(keep=tmp_path)
    browser = Browser(explorer)
    assert explorer.chosen_page == {}

    browser.fill_in(pages=["invoice"])
    assert "invoice has not been measured yet: press Run" in explorer.chosen_page["said"]
    assert "grey belongs to receipt.png" in explorer.chosen_page["said"]
    assert explorer.chosen_page["href"].startswith(JPEG_ADDRESS)

    browser.fill_in(pages=["receipt"])
    assert explorer.chosen_page == {}

    browser.ask("files", (PAGES / "form.png").read_bytes(), names=["mine.png"])
    assert "mine.png has not been measured" in explorer.chosen_page["said"]

    browser.ask("show", key=explorer.rows[0].key)
    assert explorer.chosen_page == {}


def test_a_file_that_is_no_page_is_refused_and_changes_no_choice(
    explorer: Explorer, tmp_path: Path
) -> None:
    browser = Browser(explorer)
    offered = dict(explorer.form.pages)
    chosen = explorer.values["pages"]
    (tmp_path / "notes.txt").write_text("no page")

    browser.ask("files", b"no page", names=["README.md"])
    assert ALERT in explorer.message
    assert "README.md" in explorer.message

    browser.ask("path", value=str(tmp_path / "notes.txt"))
    assert ALERT in explorer.message
    assert explorer.form.pages == offered
    assert explorer.values["pages"] == chosen


def test_a_refused_file_among_pages_is_named_and_the_pages_are_on_offer(
    explorer: Explorer, tmp_path: Path
) -> None:
    browser = Browser(explorer)
    page = (PAGES / "form.png").read_bytes()
    (tmp_path / "a.png").write_text("no page")
    (tmp_path / "b.png").write_bytes(page)

    browser.ask("files", b"no page", page, names=["README.md", "mine.png"])
    assert "README.md" in explorer.message
    assert "README.md" not in explorer.form.pages
    assert pages_to_measure(explorer) == [(page, "mine.png")]

    browser.ask("path", value=str(tmp_path))
    assert "a.png" in explorer.message
    assert "a.png" not in explorer.form.pages
    assert pages_to_measure(explorer) == [(str(tmp_path / "b.png"), None)]


def test_a_command_that_the_panel_does_not_have_is_an_error_in_words(explorer: Explorer) -> None:
    Browser(explorer).ask("measure")
    assert says(explorer.message, "The explorer has no command")


# -- what the view draws ---------------------------------------------------------------------------


def test_tokens_and_the_slowest_are_those_of_the_record(explorer: Explorer, run: PhaseRun) -> None:
    tokens = run.token_table
    data = explorer.data

    assert data["texts"] == tokens["text"].tolist()
    assert data["region"] == tokens["region"].tolist()
    assert data["ms"][0] is None  # the prefill's token has no time
    assert data["step"][:2] == [None, 0]
    assert data["slowest"] == tokens["device_ms"].nlargest(6).index.tolist()
    low, high = data["scale"]
    assert 0 < low < high <= tokens["device_ms"].max()


def test_a_token_before_the_first_is_the_first(explorer: Explorer) -> None:
    explorer.token = -3
    assert explorer.token == 0


def test_each_region_has_its_box_within_the_page(explorer: Explorer) -> None:
    (page,) = explorer.data["pages"]
    assert {box["region"] for box in page["boxes"]} == {0, 1, 2, 3, 4}
    width, _ = page["size"]
    for box in page["boxes"]:
        left, _, right, _ = box["box"]
        assert 0 <= left < right < width


def test_words_that_the_model_doubted_are_marked_in_the_text(
    explorer: Explorer, run: PhaseRun
) -> None:
    assert "opv-uncertain" not in explorer.data["rendered"]
    values = [-2.0] * run.token_count  # in every region but the picture, which has no text
    doubted = altered(run, probabilities=[{"logprobs": values, "margins": values}])

    data = Explorer(runs=[doubted], keep=None).data

    regions = data["uncertain"]["regions"]
    assert regions
    assert data["rendered"].count('class="opv-uncertain"') == len(regions)


def test_a_record_without_its_page_says_so() -> None:
    data = Explorer(runs=[make_run(embed=False)], keep=None).data
    assert "no page image" in data["note"]
    assert data["pages"][0]["href"] == ""


def test_all_pages_of_a_prompt_are_there() -> None:
    explorer = Explorer(runs=[two_page_run()])

    data = explorer.data

    first, second = data["pages"]
    assert [box["region"] for box in first["boxes"]] == [0]
    assert [box["region"] for box in second["boxes"]] == [1]
    assert [region["page"] for region in data["regions"]] == [None, 0, 1]
    assert data["rendered"] == (
        '<section data-region="-1"><p>one</p>\n</section>'
        '<section data-region="0"><p>a</p>\n</section>'
        '<section data-region="1"><p>b</p>\n</section>'
    )
    of_one_page = Explorer(runs=[make_run()])
    assert jpeg_of(explorer).width > jpeg_of(of_one_page).width


def test_markdown_has_its_tables_and_nothing_of_html() -> None:
    shown = markdown_html(
        "# A *b*\n\n<table><tr><td colspan=2 onclick=x>x <b>y</b></td></tr></table>\n\n"
        "| p |\n|---|\n| q |\n\n![i](http://e/x.png)\n<img src=x>"
    )
    assert re.sub(r"\n *", "", shown) == (
        '<h3>A <em>b</em></h3><table><tr><td colspan="2">x &lt;b&gt;y&lt;/b&gt;</td></tr></table>'
        "<table><thead><tr><th>p</th></tr></thead><tbody><tr><td>q</td></tr></tbody></table>"
        "<p>![i](http://e/x.png)<br />&lt;img src=x&gt;</p>"
    )


#: Pieces of which a text consists that tries to be something else.
HTML_PIECES = [
    "<table>",
    "</table>",
    "<tr>",
    "<td>",
    "<td onclick=x colspan=3>",
    "<script>",
    "<!--",
    "&lt;",
]
MARKDOWN_PIECES = [
    "# ",
    "| a |\n|--|\n",
    "[x](y)",
    "`",
    "**",
    "- ",
    "> ",
    "\n",
    "![",
    "$x_1$",
    "\\(",
]
PIECES = st.sampled_from(HTML_PIECES + MARKDOWN_PIECES) | st.text(max_size=8)
ALLOWED_TAGS = "p|br|hr|pre|code|em|strong|blockquote|ul|ol|li|table|thead|tbody|tr|td|th|h[1-6]"
#: The values that each attribute may have.
ALLOWED_ATTRIBUTES = {
    "colspan": "[0-9]+",
    "rowspan": "[0-9]+",
    "start": "[0-9]+",
    "class": "language-.*",
    "style": "text-align:(left|center|right)",
}


@given(st.lists(PIECES, max_size=12))
def test_any_text_becomes_html_of_few_names(pieces: list[str]) -> None:
    shown = markdown_html("".join(pieces))

    assert "<!" not in shown
    assert "<?" not in shown
    for tag, attributes in Elements(shown).found:
        assert re.fullmatch(ALLOWED_TAGS, tag)
        for name, value in attributes.items():
            assert re.fullmatch(ALLOWED_ATTRIBUTES[name], value)


# -- what a running measurement tells --------------------------------------------------------------

TOKEN_TIMES = st.lists(st.one_of(st.just(float("nan")), st.floats(0.01, 500)), max_size=900)


@example([1.0, 5.0, 2.0] * 300)
@given(TOKEN_TIMES)
def test_a_live_update_is_small_and_keeps_the_slowest_token(times: list[float]) -> None:
    live = Live()
    live.begin(32, repeats=1, warmup=0)
    live._times = [times]

    state = live.state()

    (points,) = state["lines"]
    assert len(points) <= 400
    slowest_drawn = max((ms for _, ms in points), default=0)
    slowest = max((ms for ms in times if not math.isnan(ms)), default=0)
    assert slowest_drawn == pytest.approx(slowest, abs=1e-4)
    assert len(json.dumps(state, allow_nan=False)) < 40_000


#: A region as the two forms of marks write it.
MARKED_TEXTS = [MARKED_TITLE, "<|det|>title [1, 2, 300, 400]<|/det|>"]
#: How many characters the end of both texts has, without which there is no region.
END = 12


def live_of(text: str) -> Live:
    """A measurement of one warm-up and two repeats; each token is a character of this text."""
    live = Live()
    live.begin(len(text), repeats=2, warmup=1, page=page_image(60, 80))
    live.reader(lambda: text.__getitem__)
    return live


def test_a_page_is_seen_while_its_model_is_loaded_which_takes_nobody_knows_how_long() -> None:
    live = live_of(MARKED_TITLE)

    live.doing("loading tiny")

    assert live.size == (60, 80)
    assert live.picture.startswith(JPEG_ADDRESS)
    state = live.state()
    since_the_click = re.fullmatch(r"loading tiny, (\d+) s", state["doing"])
    assert since_the_click is not None
    assert int(since_the_click[1]) < 10
    assert state["done"] is None


@pytest.mark.parametrize("text", MARKED_TEXTS)
def test_the_first_run_is_watched_though_nobody_knows_how_long_it_is(text: str) -> None:
    live = live_of(text)
    before_end = len(text) - END

    live.progress(0, 3)
    for token in range(before_end):
        live.on_tokens(-1, [[token]])
    state = live.state()
    assert says(state["doing"], "warm-up", f"token {before_end} of at most {len(text)}")
    assert state["left"] == ""
    assert state["done"] is None
    assert state["total"] is None
    assert state["boxes"] == []
    assert state["text"] == text[:-END]
    assert len(state["lines"][0]) == before_end - 1

    live.on_tokens(-1, [[*range(before_end, len(text))]])
    assert [box["region"] for box in live.state()["boxes"]] == [0]


@pytest.mark.parametrize("text", MARKED_TEXTS)
def test_a_later_run_says_how_much_is_left_and_keeps_the_text_of_the_one_before(
    text: str,
) -> None:
    live = live_of(text)
    live.progress(0, 3)
    live.on_tokens(-1, [[*range(len(text))]])

    live.progress(1, 3)
    for _ in range(3):
        live.on_tokens(0, [[7]])
    live.progress(2, 3)
    for _ in range(2):
        live.on_tokens(0, [[7]])

    state = live.state()
    assert says(state["doing"], "repeat 2 of 2", "token 2 of about 3", "per token")
    assert state["left"].endswith("s left")
    assert state["done"] == len(text) + 3 + 2
    assert state["total"] == len(text) + 3 + 3
    assert state["text"] == text[7] * 3
    assert len(state["lines"]) == 2  # the faint one is of the repeat before


def test_the_faint_curve_is_the_median_of_the_finished_repeats() -> None:
    live = live_of(MARKED_TITLE)
    for done in range(4):
        live.progress(done, 3)
    live.state()
    live._times = [[9.0], [1.0, 5.0], [2.0, 8.0]]

    current, median = live.state()["lines"]

    assert current == [(0, 2.0), (1, 8.0)]
    assert median == [(0, 1.5), (1, 6.5)]


def test_stop_is_heeded_at_the_next_token_also_where_no_layer_can_be_stopped() -> None:
    live = live_of(MARKED_TITLE)
    live.stop()
    with pytest.raises(Stopped):
        live.on_tokens(1, [[7]])


def test_a_runs_half_character_is_not_shown_in_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tokenizer = load_tokenizer(GOLDEN / "checkpoint")
    first_byte = 250  # of a longer character
    exclamation_mark = tokenizer.encode("!", add_special_tokens=False)

    def run_inference(
        page: str,
        *,
        on_tokens: Callable[[int, list[list[int]]], None],
        progress: Callable[[int, int], None],
        **options: Any,
    ) -> None:
        progress(0, 2)
        on_tokens(0, [[first_byte]])
        progress(1, 2)
        on_tokens(1, [[first_byte]])
        on_tokens(1, [exclamation_mark])
        progress(2, 2)

    session = SimpleNamespace(
        tokenizer=tokenizer, device="cuda", model=None, run_inference=run_inference
    )
    monkeypatch.setattr("ocr_phases.session.kept.kept_session", lambda **_: session)
    live = Live()

    start(
        MeasurementJob(str(PAGES / "form.png"), None, Settings(repeats=2, warmup=0)), live
    ).result()

    assert live.state()["text"] == "\ufffd!"


# -- records ---------------------------------------------------------------------------------------


def test_records_are_loaded_named_and_deleted(run: PhaseRun, tmp_path: Path) -> None:
    explorer = Explorer(keep=tmp_path / "kept")
    browser = Browser(explorer)
    file = run.save(tmp_path / "one.json")
    data = run.to_json()

    browser.ask("path", value=str(file))
    assert explorer.run.result == run.result

    key = explorer.rows[0].key
    browser.ask("files", data, gzip.compress(data), names=["up.json", "up.json.gz"])
    assert len(explorer.runs) == 4  # with the package's

    browser.ask("rename", key=key, value="my run/1")
    assert (tmp_path / "my-run-1.json").exists()
    assert not file.exists()
    assert f'value="{key}"' in explorer.records
    assert "<td>my run/1</td>" in explorer.records

    browser.ask("show", key=key)
    browser.ask("delete", key=key)
    assert not (tmp_path / "my-run-1.json").exists()
    assert f'value="{key}"' not in explorer.records
    assert explorer.run is not None


#: What a file holds that is no record.
NO_RECORDS = [
    pytest.param(b"{", id="cut"),
    pytest.param(b"{}", id="empty"),
    pytest.param(b'{"schema": 99}', id="unknown-schema"),
    pytest.param(b"\xff\xfe", id="no-text"),
]


@pytest.mark.parametrize("content", [pytest.param(None, id="missing"), *NO_RECORDS])
def test_a_path_to_no_record_is_told_and_changes_nothing(
    content: bytes | None, explorer: Explorer, tmp_path: Path
) -> None:
    path = tmp_path / "wrong.json"
    if content is not None:
        path.write_bytes(content)
    before = explorer.run

    Browser(explorer).ask("path", value=str(path))

    sentence, _, _ = explorer.message.partition("<details")
    assert ALERT in explorer.message
    assert "OcrPhasesError" not in sentence
    assert explorer.run is before
    with pytest.raises(OcrPhasesError):
        Explorer(record=path)


@pytest.mark.parametrize("content", NO_RECORDS)
def test_an_upload_that_is_no_record_keeps_no_other_back(
    content: bytes, explorer: Explorer, run: PhaseRun
) -> None:
    Browser(explorer).ask(
        "files", content, run.to_json(), b"{}", names=["wrong.json", "good.json", "worse.json"]
    )

    sentences = re.sub("<details.*?</details>", "", explorer.message, flags=re.DOTALL)
    assert "wrong.json" in sentences
    assert "good.json" not in sentences
    assert "worse.json" in sentences
    assert len(explorer.runs) == 2


def test_a_damaged_file_in_the_folder_of_records_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "wrong.json").write_bytes(b"{")

    explorer = Explorer(keep=tmp_path)

    assert says(explorer.message, "wrong.json")
    assert explorer.run.page.file == "receipt.png"
    explorer.view = "records"
    assert "<td>damaged: " in explorer.records


def prefill_ratio(baseline: PhaseRun, other: PhaseRun) -> float:
    """How much longer the other's prefill took."""
    metrics = compare(baseline, other).table.set_index("metric")
    return float(metrics.loc["prefill_ms", "ratio"])


def test_two_ticked_records_are_compared_with_the_pinned_one(run: PhaseRun) -> None:
    without_crops = make_run(seed=5, crops=False)
    of_another_text = make_run(seed=6, text=MARKED_TITLE)
    explorer = Explorer(runs=[of_another_text, without_crops, run], keep=None)
    keys = [record.key for record in explorer.rows[:3]]

    explorer.ticked = keys[:1]
    assert explorer.compared == ""

    explorer.ticked = keys[:2]
    assert explorer.compared.count('class="op-svg"') == 2
    assert says(explorer.compared, "Set Repeats (--repeats) to 5 or more")
    assert f'data-value="{prefill_ratio(run, without_crops)!r}"' in explorer.compared

    explorer.pinned = keys[2]
    assert says(explorer.compared, "How the text differs")
    assert f'data-value="{prefill_ratio(of_another_text, run)!r}"' in explorer.compared

    explorer.ticked = []
    explorer.pinned = ""
    assert explorer.compared == ""


def test_two_ticked_records_are_drawn_over_one_another_on_the_page_of_the_first(
    run: PhaseRun,
) -> None:
    other = make_run(seed=5, crops=False)
    third = make_run(seed=6, text=MARKED_TITLE)
    explorer = Explorer(runs=[third, other, run], keep=None)
    shown, first, second = explorer.rows[:3]

    explorer.ticked = [first.key]
    assert explorer.run == shown.run
    assert explorer.curves == []

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
    assert explorer.run == second.run
    assert explorer.curves == []


def test_of_many_ticked_records_six_curves_are_drawn_and_the_page_says_so() -> None:
    runs = [make_run(seed=seed, max_tokens=8, repeats=1) for seed in range(7)]
    explorer = Explorer(runs=runs, keep=None)

    explorer.ticked = [record.key for record in explorer.rows[:7]]

    assert len(explorer.curves) == 6
    assert says(explorer.compared, "the latency curves of the first 6 of these records")


def test_a_report_is_made_of_a_record_and_sent(
    explorer: Explorer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").touch()
    browser = Browser(explorer)

    browser.ask("report", key=explorer.rows[0].key)

    content, files = browser.answers[-1]
    (report,) = tmp_path.rglob("report.html")
    assert content["to"] == "here"
    assert content["file"] == f"{report.parent.name}.html"
    assert list(files) == [report.read_bytes()]


# -- running ---------------------------------------------------------------------------------------


@pytest.fixture
def quick(quick_tiny_session: OCRSession, run: PhaseRun, tmp_path: Path) -> Iterator[Explorer]:
    """A panel that asks for little, where the kernel already holds the model."""
    keep_model(ModelSettings(**Settings().of_model()), quick_tiny_session.loaded_model)
    explorer = Explorer(PAGES / "receipt.png", runs=[run], keep=tmp_path / "kept")
    Browser(explorer).fill_in(
        preset="tiny",
        max_new_tokens=2,
        repeats=1,
        warmup=0,
        ceilings=False,
        token_probabilities=False,
    )
    yield explorer
    MEASURED.clear()
    forget_kept_model()


def measure(explorer: Explorer) -> None:
    """Press Run, and wait until all is measured."""
    asyncio.run(explorer.measure())


def test_a_run_is_measured_in_a_thread_of_its_own_and_watched(quick: Explorer) -> None:
    states = []
    threads = set()
    Browser(quick).fill_in(max_new_tokens=6, repeats=2)

    def note_state(change: Any) -> None:
        if change["new"]:
            states.append(change["new"])

    def note_thread(_: int) -> None:
        threads.add((threading.current_thread().name, quick.busy))
        time.sleep(0.06)  # in time to be watched

    quick.observe(note_state, "live")
    call_at_tokens(quick, note_thread)
    measure(quick)

    assert quick.message == ""
    assert not quick.busy
    assert quick.live == {}
    assert quick.run.token_count == 6
    assert quick.run.repeats == [0, 1]
    assert quick.run.page.file == "receipt.png"
    ((thread, busy),) = threads
    assert busy
    assert thread != threading.current_thread().name
    assert any("title" in state["text"] for state in states)
    assert any(state["left"].endswith("s left") for state in states)
    assert quick.live_page.startswith(JPEG_ADDRESS)


def test_a_record_is_measured_again_and_drawn_over_its_curve(quick: Explorer) -> None:
    records_before = len(quick.runs)
    Browser(quick).fill_in(max_new_tokens=3)
    measure(quick)
    first = quick.run

    Browser(quick).ask("again", label=AGAIN)

    assert len(quick.run.repeats) == 8
    now, before = quick.curves
    assert now["name"] == "now"
    assert before["name"] == "before"
    times = first.token_table["device_ms"].dropna().tolist()
    assert [ms for _, ms in before["points"]] == pytest.approx(times, abs=1e-4)
    assert quick.runs[1] is first
    assert len(quick.runs) == records_before + 2


def test_an_interval_of_reads_that_is_asked_for_is_kept(quick: Explorer) -> None:
    (job,) = quick.form.jobs(quick.values)
    asked = replace(job.settings, eos_check_every=3)

    measured = start(replace(job, settings=asked), Live()).result()

    assert measured.request.eos_check_every == 3


def test_a_busy_machine_is_told_while_the_page_is_measured(
    quick: Explorer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CoreWaits, "share", 0.9)
    (job,) = quick.form.jobs(quick.values)
    live = Live()

    start(replace(job, settings=replace(job.settings, warmup=1)), live).result()

    assert "too noisy" in live.state()["warning"]


class Stopper:
    """Stops a panel's measurement in one of the ways that a person has: the button (``stop``),
    Ctrl-C (``interrupt``), or the end of the cell's task (``cancel``).

    Its method `stop` is called where it shall happen, or it happens at the third token of a repeat.
    ``heeded`` then says for each time whether the panel told the measuring thread. ``tokens`` are
    the numbers of the repeats in which a token was made.
    """

    def __init__(
        self, explorer: Explorer, way: str = "stop", at_third_token_of: int | None = None
    ) -> None:
        self.explorer = explorer
        self.way = way
        self.at_third_token_of = at_third_token_of
        self.heeded: list[bool] = []
        self.tokens: list[int] = []
        call_at_tokens(explorer, self._note_token)

    def _note_token(self, repeat: int) -> None:
        self.tokens.append(repeat)
        if repeat == self.at_third_token_of and self.tokens.count(repeat) == 3:
            self.stop()

    def stop(self, *_: object) -> None:
        """Stop from within the measuring thread, and wait until it is told."""
        if self.way == "stop":
            self.explorer.stop()
        elif self.way == "interrupt":
            os.kill(os.getpid(), signal.SIGINT)
        else:
            self.loop.call_soon_threadsafe(self.task.cancel)
        self.heeded.append(self.explorer.measuring._stop.wait(10))

    async def measure(self) -> None:
        """Measure as a notebook's cell does, in a task that can be cancelled."""
        self.task = asyncio.current_task()
        self.loop = asyncio.get_running_loop()
        await self.explorer.measure()


@pytest.fixture
def layers(tiny_session: OCRSession) -> Iterator[Sequence[Any]]:
    """The layers of the model's CLIP. However a measurement ends, it leaves no hook there, and no
    other handler of Ctrl-C.
    """
    layers = tiny_session.model.model.vision_tower.vision_encoder.encoder.layers
    handler = signal.getsignal(signal.SIGINT)
    yield layers
    assert not any(layer._forward_pre_hooks for layer in layers)
    assert signal.getsignal(signal.SIGINT) == handler


@pytest.mark.usefixtures("layers")
def test_stop_in_the_first_repeat_leaves_no_record(quick: Explorer) -> None:
    Browser(quick).fill_in(max_new_tokens=3, repeats=2)
    before = quick.run
    stopper = Stopper(quick, at_third_token_of=0)

    asyncio.run(stopper.measure())

    assert stopper.heeded == [True]
    assert len(stopper.tokens) == 3
    assert not quick.busy
    assert "Stopped" in quick.message
    assert quick.run is before
    assert quick.rows[0].cells["steps"] == "stopped"


@pytest.mark.usefixtures("layers")
def test_stop_in_a_later_repeat_keeps_those_before_it(quick: Explorer) -> None:
    Browser(quick).fill_in(max_new_tokens=3, repeats=2)
    stopper = Stopper(quick, at_third_token_of=1)

    asyncio.run(stopper.measure())

    assert stopper.heeded == [True]
    assert len(stopper.tokens) == 6
    assert not quick.busy
    assert "Stopped" in quick.message
    assert "1 of 2 repeats" in quick.message
    assert quick.run.repeats == [0]


@pytest.mark.usefixtures("layers")
def test_stop_while_a_step_is_compiled_ends_before_the_first_token(
    quick: Explorer, monkeypatch: pytest.MonkeyPatch
) -> None:
    Browser(quick).fill_in(max_new_tokens=3, repeats=2, strategy="compiled")
    before = quick.run
    stopper = Stopper(quick)
    is_shown = threading.Event()

    def note_compiling(change: Any) -> None:
        if "compiling the decode step" in change["new"].get("doing", ""):
            is_shown.set()

    def set_up(*_: object) -> None:  # nothing is compiled here
        announce("compiling the decode step")
        assert is_shown.wait(30)
        stopper.stop()

    quick.observe(note_compiling, "live")
    monkeypatch.setattr("ocr_phases.measure.measurement.Measurement.set_up", set_up)
    asyncio.run(stopper.measure())

    assert stopper.heeded == [True]
    assert stopper.tokens == []
    assert not quick.busy
    assert "Stopped" in quick.message
    assert quick.run is before
    assert quick.rows[0].cells["steps"] == "stopped"


@pytest.mark.parametrize("way", ["stop", "interrupt", "cancel"])
def test_stop_within_the_prefill_ends_it_at_its_next_layer_and_delays_no_next_run(
    way: str, quick: Explorer, layers: Sequence[Any]
) -> None:
    Browser(quick).fill_in(max_new_tokens=3, repeats=2)
    before = quick.run
    stopper = Stopper(quick, way)
    hook = layers[0].register_forward_hook(stopper.stop)

    if way == "cancel":
        with pytest.raises(asyncio.CancelledError):
            asyncio.run(stopper.measure())
    else:
        asyncio.run(stopper.measure())
        assert "Stopped" in quick.message

    assert stopper.heeded == [True]
    assert stopper.tokens == []
    assert not quick.busy
    assert quick.run is before
    assert quick.rows[0].cells["steps"] == "stopped"
    hook.remove()
    measure(quick)
    assert quick.run.repeats == [0, 1]


def test_pages_and_presets_run_one_after_another_and_a_bad_page_stops_none(
    quick: Explorer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "pages"
    folder.mkdir()
    shutil.copy(PAGES / "slide.png", folder)
    shutil.copy(PAGES / "slide.png", folder / "bad.png")
    browser = Browser(quick)
    browser.ask("path", value=str(folder))
    (folder / "bad.png").write_text("no image")  # after it was offered
    browser.fill_in(pages=["bad.png", "slide.png"], presets=["tiny"], preset="small")

    done_before: list[str] = []
    show_work = Live.doing

    def note_work(live: Live, work: str) -> None:
        done_before.append(work)
        show_work(live, work)

    def states() -> list[str]:
        return [row.cells["steps"].split(":")[0] for row in quick.rows[:4]]

    all_states: list[list[str]] = []
    monkeypatch.setattr(Live, "doing", note_work)
    quick.observe(lambda _: all_states.append(states()), "records")
    measure(quick)

    assert ["waiting", "running", "failed", "failed"] in all_states
    assert states()[2:] == ["failed", "failed"]
    assert "not an image" in quick.rows[3].cells["steps"]
    assert [run.page.preset for run in quick.runs[:2]] == ["tiny", "small"]
    assert len(kept_files(quick.folder)) == 2
    assert any(work.startswith("loading: tiny at small needs ") for work in done_before)
    quick.view = "records"  # with rows that have no file to read
    assert quick.records.index("slide.png") < quick.records.index("failed: ")


def test_a_servers_address_is_a_model(quick: Explorer) -> None:
    with served() as fake:
        Browser(quick).fill_in(model=f"{fake.url}#{fake.models[0]}", max_new_tokens=8)
        measure(quick)

    assert quick.message == ""
    assert quick.run.device.kind == "server"
    assert quick.run.result.token_texts == TOKENS
    assert quick.data["texts"] == TOKENS
    assert "Measure again" in quick.head


def test_finished_records_are_kept_and_the_newest_is_shown_after_a_restart(
    quick: Explorer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ocr_phases.collectors.machine.now", lambda: "2026-11-23T03:00:00")
    stem = "2026-11-23T03-00-00_receipt.png_tiny_tiny_eager_vision-eager_2-tokens"
    kept = tmp_path / "kept"

    measure(quick)
    measure(quick)
    assert sorted(path.name for path in kept.iterdir()) == [f"{stem}-2.json", f"{stem}.json"]
    assert says(quick.told, "2 records")
    assert quick.records.count("data-own") == 3

    MEASURED.clear()  # as a restart does
    old = kept / "old.json.gz"
    old.write_bytes(gzip.compress(quick.run.to_json()))
    os.utime(old, (0, 0))
    restarted = Explorer(keep=kept)
    names = [record.file.name for record in restarted.rows[:3]]
    assert names == [f"{stem}.json", f"{stem}-2.json", "old.json.gz"]
    assert restarted.run.to_dict() == quick.runs[1].to_dict()

    old_row = restarted.rows[2]
    assert "prefill_ms" not in old_row.cells
    restarted.view = "records"
    assert old_row.cells["prefill_ms"] == quick.run["prefill_ms"]
    assert len(restarted.runs) == 1  # the others are read for the table alone


def test_a_command_counts_the_values_that_the_browser_had_not_sent_yet(
    explorer: Explorer,
) -> None:
    browser = Browser(explorer)
    pictures = []

    def note_picture(bundle: dict[str, Any], raw: bool) -> None:
        pictures.append((explorer.token, bundle))

    explorer._handle = SimpleNamespace(update=note_picture)

    browser.ask("save", state={"token": 7, "color": "time"})
    content, _ = browser.answers[-1]
    assert pictures == [(7, explorer.picture())]
    assert content["saved"]

    browser.ask("code", state={"values": {**explorer.values, "seed": 12}})
    content, _ = browser.answers[-1]
    assert "seed=12" in content["copy"]


def test_confidential_records_are_kept_by_the_kernel_alone(quick: Explorer, tmp_path: Path) -> None:
    pictures: list[dict[str, Any]] = []

    def note_picture(bundle: dict[str, Any], raw: bool) -> None:
        pictures.append(bundle)

    quick._handle = SimpleNamespace(update=note_picture)

    quick.keeps = False
    assert "image/jpeg" not in pictures[-1]

    measure(quick)
    assert not (tmp_path / "kept").exists()
    again = Explorer(keep=None)  # the cell run again
    assert again.run is quick.run
    assert "image/jpeg" not in again.picture()  # nor is the page in the notebook's file

    again.keeps = True
    assert "image/jpeg" in again.picture()


def test_a_record_that_cannot_be_kept_is_shown(quick: Explorer, tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("a file")

    measure(quick)

    assert quick.run.token_count == 2
    assert says(quick.message, "cannot be written")


def test_paths_begin_in_the_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = tmp_path / "project"
    notebooks = project / "notebooks"
    notebooks.mkdir(parents=True)
    monkeypatch.chdir(notebooks)
    assert project_path("out") == notebooks / "out"

    (project / ".git").mkdir()
    (notebooks / "scan.pdf").touch()
    assert project_path("out") == project / "out"
    assert existing_path("scan.pdf#2") == notebooks / "scan.pdf#2"

    (project / "scan.pdf").touch()
    assert existing_path("scan.pdf#2") == project / "scan.pdf#2"
    assert existing_path("/a/b.png") == Path("/a/b.png")


def assert_refused(explorer: Explorer, sentence: str) -> None:
    """Run is answered with this sentence and a folded traceback, and the record stays."""
    before = explorer.run

    measure(explorer)

    said, _, details = explorer.message.partition("<details")
    assert sentence in said
    assert "Traceback (most recent call last)" in details
    assert explorer.run is before
    assert not explorer.busy


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        ("pages", [], "No page chosen"),
        ("prompt", "", "No prompt chosen"),
        ("model", "no/such folder", "no/such folder"),
        ("device", "", "No device chosen"),
    ],
)
def test_a_form_that_cannot_be_run_is_refused_in_a_sentence(
    field: str, value: object, sentence: str, quick: Explorer
) -> None:
    Browser(quick).fill_in(**{field: value})
    assert_refused(quick, sentence)


def test_an_error_of_any_kind_is_said_in_its_first_line_as_text(
    quick: Explorer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("<b>the device</b> went away\nand more")

    monkeypatch.setattr("ocr_phases.session.kept.kept_session", fail)
    assert_refused(quick, "RuntimeError: &lt;b&gt;the device&lt;/b&gt; went away</p>")


@pytest.mark.parametrize("script", ["explorer/panel.js", "view/view.js", "view/parts.js"])
def test_the_browser_gets_whatever_its_scripts_read_of_the_kernel(script: str) -> None:
    text = (resources.files("ocr_phases") / script).read_text(encoding="utf-8")
    read = set(re.findall(r'model\.get\("(\w+)"\)', text))
    assert read
    assert read <= set(Explorer().keys)
