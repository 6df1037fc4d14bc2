"""The explorer without a browser: its panel, its tabs, a real run in its thread, and what may go wrong."""

from __future__ import annotations

import asyncio
import base64
import contextlib
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
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timezone
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import ipywidgets as widgets
import nbformat
import numpy as np
import papermill
import pytest
from conftest import GOLDEN, GPU_RECORD, PAGES
from example_run import make_run, page_image, two_page_run
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from wording import says

from ocr_phases import OcrPhasesError, PhaseRun
from ocr_phases.analyse.grounding import parse_grounding
from ocr_phases.analyse.regions import region_pairs, region_table
from ocr_phases.analyse.stages import step_table, typical_repeat
from ocr_phases.analyse.statistics import LEAST_REPEATS
from ocr_phases.errors import stop_signals
from ocr_phases.explorer import Explorer
from ocr_phases.explorer.form import Asked
from ocr_phases.explorer.kept_records import (
    MEASURED,
    file_label,
    file_stem,
    found,
    label,
    placed,
    project_folder,
    shipped,
    shown_path,
)
from ocr_phases.explorer.panel import picture_bundle
from ocr_phases.explorer.running import Live, start
from ocr_phases.explorer.tabs import Pane, read_record
from ocr_phases.explorer.view import LiveView, View
from ocr_phases.explorer.view_data import markdown_html, row_data, timeline_data
from ocr_phases.families import FAMILIES
from ocr_phases.models.load import load_tokenizer
from ocr_phases.record import PHASES
from ocr_phases.settings import ModelSettings, Settings
from ocr_phases.show.results import Section
from ocr_phases.versions import asset

# Of these shapes the figures are drawn too; of all others the tests of the plots do that.

FIGURES_TOO = ({"cuda": True}, {"generate": True}, {"max_tokens": 1})


def everything(widget: widgets.Widget) -> str:
    """All HTML in a panel."""
    own = widget.value if isinstance(widget, widgets.HTML) else ""
    return own + "".join(everything(child) for child in getattr(widget, "children", ()))


def upload(name: str, data: bytes) -> tuple[dict]:
    """What a FileUpload holds once a file was chosen."""
    when = datetime(2026, 11, 21, tzinfo=timezone.utc)
    return (
        {"name": name, "content": memoryview(data), "type": "", "size": len(data), "last_modified": when},
    )


def open_all(explorer: Explorer, *names: str) -> None:
    """Open tabs one after the other, all of them unless named."""
    for number, name in enumerate(explorer.panes):
        if not names or name in names:
            explorer.tabs.selected_index = number
            assert explorer.messages.value == "", (name, explorer.messages.value)


@pytest.fixture(scope="module")
def run() -> PhaseRun:
    return make_run()


@pytest.fixture
def explorer(run: PhaseRun) -> Explorer:
    shown = Explorer(runs=[run])
    open_all(shown, "Page", "Record")
    return shown


# -- building -----------------------------------------------------------------------------------------


def test_an_empty_panel_offers_a_sample_and_no_record():
    explorer = Explorer()
    assert explorer.run is None
    assert explorer.form.jobs()[0].page == str(PAGES / "receipt.png")
    assert (explorer.run_button.disabled, explorer.stop_button.disabled) == (False, True)
    open_all(explorer)


def test_settings_are_what_the_widgets_say():
    explorer = Explorer(PAGES / "form.png", "models/DeepSeek-OCR")
    fields = explorer.form.fields
    fields["prompt"].known.value, fields["prompt"].own.value = "", " locate:Total "
    fields["preset"].value = "gundam"
    fields["max_new_tokens"].value = 77
    fields["infer"].value = "temperature=0.7"
    fields["grounding"].value = False
    asked = explorer.form.jobs()[0]
    settings = asked.settings
    assert asked.page == str(PAGES / "form.png")
    assert (settings.infer, settings.grounding, settings.autocast) == ("temperature=0.7", False, None)
    assert (settings.model, settings.prompt, settings.preset) == (
        "models/DeepSeek-OCR",
        "locate:Total",
        "gundam",
    )
    assert (settings.max_new_tokens, settings.repeats, settings.warmup) == (77, LEAST_REPEATS, 1)


def test_a_folder_offers_its_pages_and_an_upload_its_bytes():
    explorer = Explorer(PAGES)
    chooser = explorer.form.page
    assert [name for name, _ in chooser.file.options] == sorted(path.name for path in PAGES.glob("*.png"))
    assert explorer.form.jobs()[0].page == str(PAGES / "dense.png")
    chooser.file.value = [str(PAGES / "slide.png")]
    assert explorer.form.jobs()[0].page == str(PAGES / "slide.png")
    assert "<img" in chooser.thumbnail.value
    data = (PAGES / "paper.png").read_bytes()
    chooser.source.value = "Upload"
    chooser.upload.value = upload("mine.png", data)
    asked = explorer.form.jobs()[0]
    assert (asked.page, asked.page_name) == (data, "mine.png")


def test_a_record_is_shown_where_torch_cannot_be_imported(run: PhaseRun, tmp_path: Path):
    program = """
import sys
sys.modules["torch"] = sys.modules["transformers"] = None
from ocr_phases.explorer import Explorer
assert "ocr_phases.session" not in sys.modules
explorer = Explorer(record=sys.argv[1])
for number in range(len(explorer.panes)):
    explorer.tabs.selected_index = number
explorer.page_pane.token = 40
assert explorer.messages.value == "", explorer.messages.value
print(explorer.run.token_count, explorer.page_pane.region)
explorer.run_button.click()
print(explorer.messages.value)
"""
    command = [sys.executable, "-c", program, str(run.save(tmp_path / "run.json"))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    figures, message = done.stdout.split("\n", 1)
    assert figures == f"{run.token_count} {run.token_table['region'][40]}"
    assert "ModuleNotFoundError" in message


def test_a_record_is_listed_with_what_tells_it_apart():
    run = make_run(rows=2)
    run = replace(run, request={**run.request, "vision": "compiled"})
    assert {"vision compiled", "2 rows", str(run.page["preset"])} <= set(label(run).split(", "))
    assert file_label(Path(f"{file_stem(run)}.json")).split(", ")[0] == str(run.page["file"])


def test_rows_name_their_files():
    run = make_run(rows=2)
    assert row_data(run, 0)["rows"] == [f"{row}: {page['file']}" for row, page in enumerate(run.pages)]


def test_what_ships_are_records():
    runs = [PhaseRun.load(path) for path in shipped()]
    assert {run.model.get("family", "deepseek-ocr") for run in runs} == set(FAMILIES)


@pytest.mark.parametrize(
    "shape",
    [
        {"repeats": 1},
        {"cuda": True},
        {"rows": 3},
        {"embed": False},
        {"return_text": False},
        {"generate": True},
        {"first_token": "redecode"},
        {"max_tokens": 1},
        {"text": "no region at all"},
        {"memory": False, "crops": False},
    ],
    ids=str,
)
def test_every_shape_of_record_is_drawn(shape: dict):
    run = make_run(**shape)
    explorer = Explorer(runs=[run])
    open_all(explorer, *(() if shape in FIGURES_TOO else ("Page", "Text", "Checks", "Record")))
    pane = explorer.page_pane
    pane.token = 10**6
    assert explorer.messages.value == ""
    assert pane.token == run.token_count - 1
    json.dumps(pane.view.data, allow_nan=False)
    if len(run.results) > 1:
        pane.view.row = 2
        assert explorer.messages.value == ""
        assert pane.token == 0


def test_what_a_model_or_a_file_name_says_stays_text():
    attack = "<script>alert(1)</script><img src=x onerror=alert(1)>"
    text = f"<|ref|>{attack}<|/ref|><|det|>[[1, 2, 300, 400]]<|/det|>{attack}</style><script>"
    explorer = Explorer(runs=[make_run(text=text, page_name=f"{attack}.png"), make_run(text=text)])
    open_all(explorer)
    shown = everything(explorer)
    assert "<script" not in shown
    assert "<img src=x" not in shown


def test_the_roofline_and_the_kernels_are_shown_where_the_record_has_them(explorer: Explorer):
    open_all(explorer, "Latency", "Kernels")
    assert says(everything(explorer.panes["Kernels"]), "no kernel view", "kernels=True")
    explorer.add(PhaseRun.load(GPU_RECORD))
    open_all(explorer, "Latency", "Kernels")
    latency, kernels = (everything(explorer.panes[name]) for name in ("Latency", "Kernels"))
    assert 'aria-label="Roofline' in latency
    assert says(latency, "stage", "floor")
    assert 'aria-label="GPU busy time' in kernels
    assert 'aria-label="Idle time' in kernels


# -- the page and its scrubber -------------------------------------------------------------------------


def test_token_and_region_follow_each_other(explorer: Explorer, run: PhaseRun):
    pane, table = explorer.page_pane, run.token_table
    data = pane.view.data
    assert data["texts"] == table["text"].tolist()
    for token in range(0, run.token_count, 7):
        pane.token = token
        assert pane.region == data["region"][token] == int(table["region"][token])
    pane.token = -3
    assert pane.token == 0


def test_the_list_holds_all_decode_time(explorer: Explorer, run: PhaseRun):
    table = region_table(parse_grounding(run.text), run.token_table)
    regions = explorer.page_pane.view.data["regions"]
    assert len(regions) == len(table)
    assert table["decode_ms"].sum() == pytest.approx(run.token_table["device_ms"].sum(), rel=1e-12)
    for region, tokens in zip(regions, table["tokens"], strict=True):
        assert f"{tokens} tokens" in region["line"]
        first = run.token_table.query(f"region == {region['region']}")["index"].iloc[0]
        assert region["first"] == first


def test_the_slowest_tokens_come_first_and_the_prefill_s_has_no_time(explorer: Explorer, run: PhaseRun):
    data = explorer.page_pane.view.data
    times = run.token_table["device_ms"]
    assert data["ms"][0] is None
    assert data["steps"][:2] == [None, 0]
    assert data["slowest"] == times.nlargest(10).index.tolist()
    low, high = data["scale"]
    assert 0 < low < high <= times.max()


def test_boxes_crops_and_pages_are_those_of_the_record(explorer: Explorer):
    (page,) = explorer.page_pane.view.data["pages"]
    assert page["grid"] == [2, 3]
    assert {box["region"] for box in page["boxes"]} == {0, 1, 2, 3, 4}
    assert all(box["x"] >= 0 and box["x"] + box["width"] <= page["width"] for box in page["boxes"])
    kinds = [f"{kind['label']} ({kind['count']})" for kind in explorer.page_pane.view.data["kinds"]]
    assert kinds == ["title (1)", "text (2)", "image (1)", "table (1)"]
    (jpeg,) = explorer.page_pane.view.pages
    assert jpeg[:2] == b"\xff\xd8"


def test_a_record_without_its_page_gets_an_empty_sheet():
    explorer = Explorer(runs=[make_run(embed=False)])
    open_all(explorer, "Page")
    view = explorer.page_pane.view
    assert "no page image" in view.data["note"]
    assert view.pages == [b""]
    assert len(view.data["pages"][0]["boxes"]) == 5


def test_all_pages_of_a_prompt_are_there():
    run = two_page_run()
    data = row_data(run, 0)
    assert [[box["region"] for box in page["boxes"]] for page in data["pages"]] == [[0], [1]]
    assert [region["page"] for region in data["regions"]] == [None, 0, 1]
    assert data["rendered"] == [(-1, "<p>one</p>\n"), (0, "<p>a</p>\n"), (1, "<p>b</p>\n")]


def test_the_timeline_has_every_span_of_the_typical_repeat(run: PhaseRun):
    data, spans = timeline_data(run, 0), run.spans[run.spans["repeat"] == typical_repeat(run)]
    lanes = {lane["name"]: lane for lane in data["lanes"]}
    assert [name for name in lanes if name in PHASES] == ["prepare", "prefill", "decode"]
    assert {"SAM global", "SAM local", "decode step"} < set(lanes)
    assert sum(len(lane["ms"]) for lane in lanes.values()) == len(spans)
    assert data["end"] == (spans["device_start_ms"] + spans["device_ms"]).max()
    steps = lanes["decode step"]
    assert steps["tokens"] == list(range(1, run.token_count))
    assert steps["starts"] == sorted(steps["starts"])


def test_the_text_tab_stands_at_the_token_of_the_page(explorer: Explorer):
    explorer.page_pane.token = 30
    open_all(explorer, "Text")
    assert explorer.page_pane.view in explorer.panes["Text"].children
    assert explorer.page_pane.token == 30
    explorer.add(make_run(seed=1))
    assert explorer.page_pane.token == 0


def test_markdown_has_its_tables_and_nothing_of_html():
    shown = markdown_html(
        "# A *b*\n\n<table><tr><td colspan=2 onclick=x>x <b>y</b></td></tr></table>\n\n"
        "| p |\n|---|\n| q |\n\n"
        "![i](http://e/x.png) <img src=x>"
    )
    assert re.sub(r"\n *", "", shown) == (
        "<h1>A <em>b</em></h1>"
        '<table><tr><td colspan="2">x &lt;b&gt;y&lt;/b&gt;</td></tr></table>'
        "<table><thead><tr><th>p</th></tr></thead><tbody><tr><td>q</td></tr></tbody></table>"
        "<p>![i](http://e/x.png) &lt;img src=x&gt;</p>"
    )


_PIECES = ("<table>", "</table>", "<tr>", "<td>", "<td onclick=x colspan=3>", "<script>", "<!--", "&lt;")
_PIECES += ("# ", "| a |\n|--|\n", "[x](y)", "`", "**", "- ", "> ", "\n", "![", "$x_1$", "\\(")
_TIMES = st.lists(st.one_of(st.just(float("nan")), st.floats(0.01, 500)), max_size=900)
_MARKED = "<|ref|>title<|/ref|><|det|>[[1, 2, 300, 400]]<|/det|>x"


class _Tags(HTMLParser):
    """Holds a text to few elements and attributes."""

    allowed = {"p", "br", "hr", "pre", "code", "em", "strong", "blockquote", "ul", "ol", "li", "table"}
    allowed |= {"thead", "tbody", "tr", "td", "th", *(f"h{level}" for level in range(1, 7))}

    def handle_starttag(self, tag: str, attrs: list) -> None:
        assert tag in self.allowed
        for name, value in attrs:
            assert re.fullmatch(_VALUES[name], value)

    def handle_comment(self, data: str) -> None:
        raise AssertionError(data)

    handle_decl = handle_pi = unknown_decl = handle_comment


_VALUES = {"colspan": "[0-9]+", "rowspan": "[0-9]+", "start": "[0-9]+", "class": "language-.*"}
_VALUES["style"] = "text-align:(left|center|right)"


@given(st.lists(st.one_of(st.sampled_from(_PIECES), st.text(max_size=8))))
def test_any_text_becomes_html_of_few_names(pieces: list[str]):
    parser = _Tags()
    parser.feed(markdown_html("".join(pieces)))
    parser.close()


@given(st.lists(_TIMES, min_size=1, max_size=4))
def test_a_live_update_is_small_and_keeps_the_slowest_token(times: list[list[float]]):
    view = LiveView()
    view.begin(None)
    view.update(["a"], times, max(len(times[-1]), 32))
    assert len(view.live["lines"]) == min(len(times), 3)
    length, points = view.live["lines"][-1]
    known = [ms for ms in times[-1] if ms == ms]
    assert length == len(times[-1])
    assert len(points) <= 400
    assert max((ms for _, ms in points), default=0) == pytest.approx(max(known, default=0), abs=1e-4)
    assert len(json.dumps(view.live, allow_nan=False)) < 40_000


@pytest.mark.parametrize("text", [_MARKED, "<|det|>title [1, 2, 300, 400]<|/det|>"])
def test_boxes_appear_while_the_text_is_written(text: str):
    view = LiveView()
    view.begin(page_image(60, 80))
    view.update([text[:-12]], [[1.0]], 32)
    assert view.live["boxes"] == []
    view.update([text], [[1.0]], 32)
    assert [box["region"] for box in view.live["boxes"]] == [0]
    assert (view.data["width"], len(view.pages)) == (60, 1)


def test_the_docs_list_the_keys_that_the_view_lists():
    keys = re.findall(r'^  \["(.+?)", "(.+?)"\],$', View._esm, re.MULTILINE)
    assert len(keys) > 8
    docs = (PAGES.parents[1] / "docs" / "explore.md").read_text(encoding="utf-8")
    assert [f"| {key} | {what} |" for key, what in keys if f"| {key} | {what} |" not in docs] == []


# -- records ------------------------------------------------------------------------------------------


def test_records_are_loaded_and_carried_away(explorer: Explorer, run: PhaseRun, tmp_path: Path):
    pane = explorer.record_pane
    run.save(tmp_path / "kept.json")
    pane.path.value = str(tmp_path / "kept.json")
    pane.load.click()
    assert len(explorer.runs) == 2
    assert explorer.run is explorer.runs[1]
    assert explorer.run.result == run.result
    link = re.search(r'href="data:application/json;base64,([^"]+)"', everything(pane))
    assert read_record(base64.b64decode(link.group(1)), "it").to_dict() == explorer.run.to_dict()
    pane.upload.value = upload("up.json", (tmp_path / "kept.json").read_bytes())
    assert len(explorer.runs) == 3


@pytest.mark.parametrize("content", [None, b"{", b"{}", b'{"schema": 99}', b"\xff\xfe"])
def test_a_file_that_is_no_record_is_told_and_changes_nothing(explorer: Explorer, tmp_path: Path, content):
    before = everything(explorer.tabs)
    path = tmp_path / "wrong.json"
    if content is not None:
        path.write_bytes(content)
        explorer.record_pane.upload.value = upload("wrong.json", content)
        assert 'role="alert"' in explorer.messages.value
        assert "wrong.json" in explorer.messages.value
    explorer.record_pane.path.value = str(path)
    explorer.record_pane.load.click()
    assert 'role="alert"' in explorer.messages.value
    assert "OcrPhasesError" not in explorer.messages.value.split("<details>")[0]
    assert everything(explorer.tabs) == before
    assert len(explorer.runs) == 1
    with pytest.raises(OcrPhasesError):
        Explorer(record=path)


def test_a_bad_upload_keeps_none_of_the_others_back(explorer: Explorer, run: PhaseRun):
    good = json.dumps(run.to_dict()).encode()
    files = [("bad.json", b"{"), ("good.json", good), ("worse.json", b"{}")]
    explorer.record_pane.upload.value = tuple(file for name, data in files for file in upload(name, data))
    assert len(explorer.runs) == 2
    said = explorer.messages.value.split("<details>")[0]
    assert ("bad.json" in said, "worse.json" in said, "good.json" in said) == (True, True, False)


def test_what_was_said_goes_with_the_next_action():
    explorer = Explorer("/nonexistent/x.png")
    assert says(explorer.messages.value, "no file")
    explorer.form.page.path.value = str(PAGES)
    assert explorer.messages.value == ""
    chooser = explorer.form.page
    chooser.source.value = "Upload"
    chooser.upload.value = upload("notes.md", b"no image")
    assert "notes.md is not an image" in explorer.messages.value


def test_an_empty_panel_takes_every_choice():
    explorer = Explorer()
    explorer.page_pane.token = 5
    explorer.tabs.selected_index = list(explorer.panes).index("Compare")
    assert says(everything(explorer.compare_pane), "No record")
    assert explorer.messages.value == ""


def test_the_head_says_what_makes_a_record_doubtful(run: PhaseRun):
    quiet = Explorer(runs=[run], keep=None)._verdict.value
    assert says(quiet, "Decode is", "No check failed")
    assert "op-bar" in quiet
    row = {"wall_s": 4.0, "cpu_s": 4.0, "other_threads_s": 1.0, "waited_s": 0.0, "others": 0.0, "steal": 0.0}
    rows = [{"repeat": number, **row, "load_start": 1.0, "load_end": 1.0} for number in run.repeats]
    device = {**run.device, "conditions": {"repeats": rows, "gpu": None}}
    explorer = Explorer(runs=[replace(run, device=device)], keep=None)
    assert says(
        explorer._verdict.value,
        "Measured correctly, but on a busy machine",
        "panel or other cells",
        "25 % of a core",
    )
    assert 'op-noisy">noisy<' in explorer._verdict.value
    open_all(explorer, "Checks")
    assert 'op-noisy">noisy<' in everything(explorer.panes["Checks"])


def test_a_tab_never_shows_another_record(explorer: Explorer):
    open_all(explorer, "Timeline", "Text")
    timeline = explorer.panes["Timeline"]
    assert "<svg" in everything(timeline)
    explorer.add(make_run(seed=1))
    assert "<svg" not in everything(timeline)
    open_all(explorer, "Timeline")
    assert "<svg" in everything(timeline)


def test_the_slowest_steps_count_tokens_as_the_page_does(explorer: Explorer, run: PhaseRun):
    open_all(explorer, "Latency", "Page")
    slowest = step_table(run).nlargest(1, "device_ms").iloc[0]
    assert explorer.page_pane.view.data["slowest"][0] == slowest["index"]
    assert explorer.page_pane.view.data["steps"][slowest["index"]] == slowest["step"]
    cells = rf">{slowest['step']}</td><td [^>]*>{slowest['index'] + 1}</td>"
    assert re.search(cells, everything(explorer.panes["Latency"]))


def test_a_report_is_made_of_the_record_shown(run: PhaseRun, tmp_path: Path):
    report = run.report(tmp_path / "made")
    assert report.name == "report.html"
    explorer = Explorer(runs=[run])
    open_all(explorer, "Record")
    explorer.record_pane._made(report)
    link = re.search(r'download="made.html" href="data:text/html;base64,([^"]+)"', everything(explorer))
    assert base64.b64decode(link.group(1)) == report.read_bytes()


def test_records_are_compared_on_common_axes(run: PhaseRun):
    others = [make_run(seed=5, crops=False), make_run(seed=6, text=_MARKED)]
    explorer = Explorer(runs=[run])
    open_all(explorer, "Compare")
    assert says(everything(explorer.compare_pane), "one record")
    explorer.add(others[0])
    open_all(explorer, "Compare")
    pane = explorer.compare_pane
    assert (pane.base.value, pane.others.value) == (0, (1,))
    shown = everything(pane)
    assert shown.count('class="op-svg"') == 2
    assert says(shown, "same tokens", "Decode time of each region")
    ratio = others[0]["prefill_ms"] / run["prefill_ms"]
    assert says(shown, "Set Repeats (--repeats) to 5 or more")
    assert f'data-value="{ratio!r}"' in shown
    explorer.add(others[1])
    pane.others.value = (1, 2)
    shown = everything(pane)
    assert shown.count('class="op-svg"') == 2
    assert f'data-value="{ratio!r}"' in shown
    assert says(shown, "How the text differs")
    pane.others.value = (0,)
    assert says(everything(pane), "another record")
    explorer.shown.value = 0
    assert explorer.run is run


def test_regions_of_two_records_meet_where_they_lie_on_the_page(run: PhaseRun):
    assert region_pairs([run, run], ["a", "b"]).eval("a == b").all()
    moved = "<|ref|>{}<|/ref|><|det|>[[{}]]<|/det|>x"
    text = moved.format("image", "70, 340, 470, 610") + moved.format("title", "0, 0, 9, 9")
    pairs = region_pairs([run, make_run(seed=3, text=text)], ["a", "b"]).set_index("region")
    assert pairs["b"].dropna().index.tolist() == [2]
    assert pairs.loc[2, "label"] == "image"


# -- running ------------------------------------------------------------------------------------------


@pytest.fixture
def quick(tiny_session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Explorer]:
    """A panel that asks for little, where the kernel already holds the model."""
    kept = {ModelSettings(**Settings().of_model()): tiny_session}
    monkeypatch.setattr("ocr_phases.session._kept", kept)
    explorer = Explorer(PAGES / "receipt.png", keep=tmp_path / "kept")
    for name, value in {"max_new_tokens": 12, "repeats": 2, "warmup": 0}.items():
        explorer.form.fields[name].value = value
    yield explorer
    MEASURED.clear()


def test_a_run_is_measured_in_its_thread_watched_and_shown(quick: Explorer):
    seen = []
    quick.live.stream.observe(lambda change: seen.append(change["new"]), "value")
    threads = set()
    on_tokens = quick.live.on_tokens

    def watched(repeat, new):
        threads.add(threading.current_thread().name)
        assert quick.run_button.disabled
        assert not quick.stop_button.disabled
        on_tokens(repeat, new)

    quick.live.on_tokens = watched
    asyncio.run(quick.measure())
    assert quick.messages.value == ""
    assert quick.run.token_count == 12
    assert quick.run.repeats == [0, 1]
    assert quick.run.page["file"] == "receipt.png"
    assert len(threads) == 1
    assert threading.current_thread().name not in threads
    assert any("title" in text for text in seen)
    assert (quick.run_button.disabled, quick.stop_button.disabled) == (False, True)
    assert quick.live.layout.display == "none"
    first = quick.run
    asyncio.run(quick.measure())
    assert quick.runs[0] is first
    assert len(quick.runs) == 2


@pytest.mark.parametrize(("in_repeat", "kept"), [(0, 0), (1, 1)])
def test_stop_takes_effect_within_one_step(quick: Explorer, in_repeat: int, kept: int):
    quick.form.fields["max_new_tokens"].value = 60
    calls = []
    on_tokens = quick.live.on_tokens

    def watched(repeat, new):
        calls.append(repeat)
        if repeat == in_repeat and calls.count(repeat) == 9:
            quick.stop_button.click()
        on_tokens(repeat, new)

    quick.live.on_tokens = watched
    asyncio.run(quick.measure())
    assert calls.count(in_repeat) == 9
    assert len(quick.runs) == kept
    assert "Stopped" in quick.messages.value
    assert (
        ("The text so far is below" in quick.messages.value)
        == ("<pre" in quick.live.stream.value)
        == (not kept)
    )
    if kept:
        assert quick.run.repeats == [0]
        assert "1 of 2 repeats" in quick.messages.value
    assert (quick.run_button.disabled, quick.stop_button.disabled) == (False, True)
    quick.live.on_tokens = on_tokens
    asyncio.run(quick.measure())
    assert len(quick.runs) == kept + 1


@pytest.mark.parametrize("by", ["stop", "interrupt", "cancel"])
def test_a_prefill_is_stopped_between_its_layers(quick: Explorer, tiny_session, by: str):
    layers = tiny_session.model.model.vision_tower.sam_encoder.layers
    ran = []

    async def measure():
        task = asyncio.current_task()
        loop = asyncio.get_running_loop()

        def stop(*_):
            ran.append(1)
            how = {
                "stop": quick.stop_button.click,
                "interrupt": lambda: os.kill(os.getpid(), signal.SIGINT),
                "cancel": lambda: loop.call_soon_threadsafe(task.cancel),
            }[by]
            how()
            assert _until(quick.live._stop.is_set)

        handle = layers[0].register_forward_hook(stop)
        try:
            await quick.measure()
        finally:
            handle.remove()

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(asyncio.CancelledError) if by == "cancel" else contextlib.nullcontext():
        asyncio.run(measure())
    assert ran == [1]
    assert [job.state for job in quick.queue.jobs] == ["stopped"]
    assert (quick.run_button.disabled, quick.stop_button.disabled) == (False, True)
    assert not any(layer._forward_pre_hooks for layer in layers)
    assert signal.getsignal(signal.SIGINT) == before
    asyncio.run(quick.measure())  # which does not wait for the one before
    assert len(quick.runs) == 1


def _until(condition) -> bool:
    for _ in range(1000):
        if condition():
            return True
        time.sleep(0.01)
    return False


def test_a_kernel_that_ignores_interrupts_is_interrupted_all_the_same():
    told = []
    before = signal.getsignal(signal.SIGINT)
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for handled, code in ((signal.SIG_IGN, None), (signal.default_int_handler, KeyboardInterrupt)):
            signal.signal(signal.SIGINT, handled)  # between two cells, and in one
            interrupted = pytest.raises(code) if code else contextlib.nullcontext()
            with stop_signals(lambda *_: told.append(1), notebook=True), interrupted:
                signal.raise_signal(signal.SIGINT)
            assert signal.getsignal(signal.SIGINT) == handled
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        with stop_signals(lambda *_: told.append(1), notebook=True):
            signal.raise_signal(signal.SIGINT)
            signal.signal(signal.SIGINT, signal.default_int_handler)  # a cell begins
        assert signal.getsignal(signal.SIGINT) == signal.default_int_handler
        assert told == [1, 1]
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("stop", [False, True])
def test_the_set_up_of_a_strategy_is_named_and_can_be_stopped(
    quick: Explorer, tiny_session, monkeypatch: pytest.MonkeyPatch, stop: bool
):
    quick.form.fields["strategy"].value, quick.form.fields["repeats"].value = "compiled", 1
    named, tokens, statuses = threading.Event(), [], []

    def set_up(*_):  # nothing is compiled here: the steps run as in eager
        assert named.wait(30)
        if stop:
            quick.stop_button.click()

    def status_changed(change):
        statuses.append(change["new"])
        if "compiling / capturing the decode step" in change["new"]:
            named.set()

    on_tokens = quick.live.on_tokens
    quick.live.on_tokens = lambda repeat, new: (tokens.append(new), on_tokens(repeat, new))
    quick.live.status.observe(status_changed, "value")
    monkeypatch.setattr("ocr_phases.recorder.Measurement.set_up", set_up)
    asyncio.run(quick.measure())
    if stop:
        assert (tokens, quick.runs) == ([], [])
        assert "Stopped" in quick.messages.value
    else:
        assert [len(new[0]) for new in tokens] == [1] * 12
        assert quick.run.request["eos_check_every"] == 1
        assert any("repeat 1 of 1" in status for status in statuses)


def test_pages_and_presets_run_one_after_another(quick: Explorer, tmp_path: Path):
    folder = tmp_path / "pages"
    folder.mkdir()
    (folder / "bad.png").write_text("no image")
    shutil.copy(PAGES / "slide.png", folder)
    quick.form.page.source.value, quick.form.page.path.value = "File or folder", str(folder)
    quick.form.page.file.value = [str(folder / "bad.png"), str(folder / "slide.png")]
    quick.form.presets.value = ["tiny"]
    for name, value in {"max_new_tokens": 3, "repeats": 1, "preset": "small"}.items():
        quick.form.fields[name].value = value
    seen = []
    quick.queue.observe(lambda change: seen.append([job.state for job in quick.queue.jobs]), "value")
    asyncio.run(quick.measure())
    assert ["failed", "failed", "running", "waiting"] in seen
    assert [job.state for job in quick.queue.jobs] == ["failed", "failed", "done", "done"]
    assert says(quick.queue.value, "4 of 4", "bad.png, small", "not an image", "slide.png, tiny", "3 tokens")
    assert [run.page["preset"] for run in quick.runs] == ["small", "tiny"]
    assert len(quick.kept.files()) == 2


def test_stop_ends_the_queue(quick: Explorer):
    quick.form.presets.value = ["small", "tiny"]
    quick.form.fields["preset"].value = "small"
    quick.live.on_tokens = lambda *_: quick.stop_button.click() or quick.live.stop_if_asked()
    asyncio.run(quick.measure())
    assert [job.state for job in quick.queue.jobs] == ["stopped", "not run"]
    assert quick.runs == []


# -- records that outlive a kernel --------------------------------------------------------------------


def chosen(explorer: Explorer, text: str) -> None:
    """Choose the first record in the list whose line holds ``text``."""
    explorer.shown.value = next(value for name, value in explorer.shown.options if text in name)


def test_finished_records_are_kept_and_listed_again(quick: Explorer, tmp_path: Path, monkeypatch):
    for name, value in {"max_new_tokens": 2, "repeats": 1}.items():
        quick.form.fields[name].value = value
    for _ in range(2):
        monkeypatch.setattr("ocr_phases.collectors.machine.now", lambda: "2026-11-23T03:00:00")
        asyncio.run(quick.measure())
    stem = "2026-11-23T03-00-00_receipt.png_tiny_small_eager_vision-eager_2-tokens"
    kept = tmp_path / "kept"
    assert sorted(path.name for path in kept.iterdir()) == [f"{stem}-2.json", f"{stem}.json"]
    assert says(quick.kept._holds.value, "2 records")
    MEASURED.clear()  # as a restart does
    with monkeypatch.context() as patch:
        patch.setattr(PhaseRun, "load", lambda path: pytest.fail("a list needs no record"))
        again = Explorer(keep=kept)
    assert again.run is None
    assert [str(value) for _, value in again.shown.options[1:3]] == [
        str(kept / f"{stem}.json"),
        str(kept / f"{stem}-2.json"),
    ]
    chosen(again, "receipt.png, tiny, small, eager, vision-eager, 2-tokens, 2026")
    assert again.run.to_dict() == quick.runs[0].to_dict()
    assert len(again.runs) == 1
    chosen(again, "with the package: h200-dummy-gundam-compiled")
    assert again.run.model["strategy"] == "compiled"
    assert says(again._verdict.value, "NVIDIA H200")


def test_confidential_records_are_kept_by_the_kernel_alone(quick: Explorer, tmp_path: Path):
    quick.kept.on.value = False
    asyncio.run(quick.measure())
    assert not (tmp_path / "kept").exists()
    again = Explorer(keep=None)  # the cell run again
    assert again.run is quick.run
    assert again._pictured is None  # nor is the page in the notebook's file
    again.kept.on.value = True
    assert again._pictured is quick.run


def test_a_record_that_cannot_be_kept_is_shown(quick: Explorer, tmp_path: Path):
    (tmp_path / "kept").write_text("a file")
    asyncio.run(quick.measure())
    assert quick.run.token_count == 12
    assert says(quick.messages.value, "cannot be written")


def test_a_damaged_file_in_the_folder_changes_nothing(run: PhaseRun, tmp_path: Path):
    (tmp_path / "2026_bad.json").write_text("{")
    explorer = Explorer(runs=[run], keep=tmp_path)
    chosen(explorer, "bad, 2026")
    assert says(explorer.messages.value, "2026_bad.json")
    assert explorer.run is run
    assert explorer.shown.value == 0


def test_paths_begin_in_the_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    notebooks = tmp_path / "project" / "notebooks"
    notebooks.mkdir(parents=True)
    monkeypatch.chdir(notebooks)
    monkeypatch.setenv("JPY_PARENT_PID", str(os.getpid()))
    assert placed("out") == notebooks / "out"
    (tmp_path / "project" / ".git").mkdir()
    assert placed("out") == tmp_path / "project" / "out"
    (notebooks / "scan.pdf").touch()
    assert found("scan.pdf#2") == notebooks / "scan.pdf#2"
    (tmp_path / "project" / "scan.pdf").touch()
    assert found("scan.pdf#2") == tmp_path / "project" / "scan.pdf#2"
    assert found("/a/b.png") == Path("/a/b.png")
    assert shown_path(tmp_path / "project" / "out") == "out"


def test_paths_begin_where_jupyter_was_started_if_there_is_no_project(tmp_path: Path, monkeypatch):
    (tmp_path / "notebooks").mkdir()
    server = subprocess.Popen(["sleep", "60"], cwd=tmp_path)
    monkeypatch.chdir(tmp_path / "notebooks")
    monkeypatch.setenv("JPY_PARENT_PID", str(server.pid))
    try:
        assert project_folder() == tmp_path
    finally:
        server.kill()
        server.wait()


@pytest.mark.parametrize("shape", [{}, {"cuda": True, "crops": True}, {"generate": True}, {"embed": False}])
def test_a_picture_of_any_record_is_small(shape: dict):
    bundle = picture_bundle(make_run(**shape, page_name="<b>.png"))
    assert len(json.dumps(bundle)) < 300_000
    assert Image.open(io.BytesIO(base64.b64decode(bundle["image/png"]))).width > 700
    assert "<b>" not in bundle["text/html"]
    assert says(bundle["text/html"], 'alt="&lt;b&gt;.png')


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"path": "missing.png"}, "missing.png"),
        ({"path": ""}, "No page chosen"),
        ({"source": "Upload"}, "No page uploaded"),
        ({"prompt": ""}, "prompt is empty"),
        ({"prompt": "locate:"}, "locate"),
        ({"tokens": 999_999}, "positions"),
        ({"model": "no/such folder"}, "no/such folder"),
    ],
    ids=str,
)
def test_what_cannot_be_run_is_said_in_a_sentence(quick: Explorer, run: PhaseRun, change: dict, says: str):
    quick.add(run)
    name, value = next(iter(change.items()))
    if name in ("prompt", "model"):
        quick.form.fields[name].known.value, quick.form.fields[name].own.value = "", value
    elif "tokens" in change:
        quick.form.fields["max_new_tokens"].value = change["tokens"]
    else:
        getattr(quick.form.page, name).value = value
    asyncio.run(quick.measure())
    sentence, _, rest = quick.messages.value.partition("<details>")
    assert says in sentence
    assert "Traceback (most recent call last)" in rest
    assert quick.run is run
    assert not quick.run_button.disabled


def test_any_other_error_names_its_type(quick: Explorer, run: PhaseRun, monkeypatch: pytest.MonkeyPatch):
    quick.add(run)

    def fails(*_, **__):
        raise RuntimeError("<b>the device</b> went away\nand more")

    monkeypatch.setattr("ocr_phases.session.kept_session", fails)
    asyncio.run(quick.measure())
    sentence = quick.messages.value.partition("<details>")[0]
    assert "RuntimeError: &lt;b&gt;the device&lt;/b&gt; went away" in sentence
    assert "and more" not in sentence
    assert quick.run is run
    assert not quick.run_button.disabled


def test_live_shows_text_pace_and_progress_as_they_come():
    live = Live()
    live.begin(10, repeats=1, warmup=1)
    live.doing("loading tiny")
    live.refresh()
    assert "loading tiny" in live.status.value
    assert "value=" not in live.status.value  # how long loading takes is not known
    live.reader(lambda token: f"<{token}>")
    live.doing("")
    for token in range(4):
        live.on_tokens(-1, [[token]])
    live.refresh()
    assert says(live.status.value, "warm-up 1 of 1", "4 tokens")
    assert "&lt;0&gt;&lt;1&gt;&lt;2&gt;&lt;3&gt;" in live.stream.value
    ((count, points),) = live.view.live["lines"]
    assert (count, len(points)) == (4, 3)
    live.progress(1, 2)
    live.on_tokens(0, [[7]])
    live.refresh()
    assert says(live.status.value, "repeat 1 of 1", "1 tokens")
    assert 'value="11"' in live.status.value
    assert "&lt;0&gt;" not in live.stream.value
    assert not np.isfinite(live._times[-1]).any()


def test_a_run_s_half_character_is_not_shown_in_the_next_one(monkeypatch):
    tokenizer = load_tokenizer(GOLDEN / "checkpoint")

    def run_inference(page, *, on_tokens, progress, **options):
        for number in range(2):
            progress(number, 2)
            on_tokens(number, [[250]])  # the first byte of a longer character
        on_tokens(1, [tokenizer.encode("!", add_special_tokens=False)])

    session = SimpleNamespace(tokenizer=tokenizer, device="cuda", model=None, run_inference=run_inference)
    monkeypatch.setattr("ocr_phases.session.kept_session", lambda **_: session)
    live, asked = Live(), Asked("page.png", None, Settings())
    live.begin(2, repeats=2, warmup=0)
    start(asked, live).result()
    live.refresh()
    assert ET.fromstring(live.stream.value).find("pre").text == "\ufffd!"


def test_a_tab_shows_each_section_before_it_draws_the_next(run: PhaseRun):
    seen = []

    def second(_: PhaseRun) -> Section:
        seen.append(pane.children[0].value)
        return Section("<p>two</p>")

    pane = Pane("two", lambda _: Section("<p>one</p>"), second)
    pane.show(run)
    assert [child.value for child in pane.children] == ["", ""]
    pane.reveal()
    assert seen == ["<p>one</p>"]
    assert pane.children[1].value == "<p>two</p>"
    pane.show(make_run())
    assert [child.value for child in pane.children] == ["", ""]


# -- the notebook -------------------------------------------------------------------------------------


def test_the_notebook_runs_through_papermill(run: PhaseRun, tmp_path: Path):
    record = run.save(tmp_path / "run.json")
    done, source = tmp_path / "done.ipynb", asset("notebooks", "explore.ipynb")
    papermill.execute_notebook(source, done, {"record": str(record)}, kernel_name="python3")
    notebook = nbformat.read(done, as_version=4)
    panel = next(cell for cell in notebook.cells if cell.id == "panel")
    assert any("widget-view+json" in kind for kind in panel.outputs[0]["data"])
    shown = json.dumps(notebook.cells[-1].outputs)
    assert run.page["file"] in shown
