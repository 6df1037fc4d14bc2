"""The linked view of a finished record: its widgets, and its block in a report."""

import base64
import io
import itertools
import json
import re
from collections.abc import Iterator
from typing import Any

import ipywidgets
import numpy as np
import pytest
import traitlets
from conftest import RUNS
from elements import Elements
from example_run import make_run, paced
from hypothesis import given
from hypothesis import strategies as st
from IPython.core.interactiveshell import InteractiveShell
from PIL import Image, ImageColor

from ocr_phases import OcrPhasesError, PhaseRun
from ocr_phases.text import ms_text
from ocr_phases.view.curves import curve_top
from ocr_phases.view.embed import VIEW_TYPE, LinkedPage, packed, view_block, view_script
from ocr_phases.view.markdown import markdown_html
from ocr_phases.view.overlay import MOST_OTHERS
from ocr_phases.view.still_picture import still_bundle
from ocr_phases.view.widgets import LatencyCurve, PageView, RecordView, TokenStrip

RECORD = RUNS / "tiny-receipt.json.gz"
PARTS = (PageView, LatencyCurve, TokenStrip, RecordView)

Column = list[Any]


@pytest.fixture(scope="module")
def run() -> PhaseRun:
    """A record of one page with a text of 198 tokens."""
    return PhaseRun.load(RECORD)


def unpacked(column: Column | dict[str, Any]) -> Column:
    """A column as report.js reads it."""
    if isinstance(column, list):
        return column
    values: Column = []
    for first, step, length in column["runs"]:
        if step:
            values += [first + step * place for place in range(length)]
        else:
            values += [first] * length
    return values


def test_a_curve_has_room_above_its_usual_times_and_none_for_a_single_slow_one() -> None:
    usual = [2.0] * 99

    assert 2.0 < curve_top(usual) < 4.0
    assert curve_top([*usual, 500.0]) == curve_top(usual)


# -- widgets ---------------------------------------------------------------------------------------


def test_explore_gives_the_linked_view_of_the_record(run: PhaseRun) -> None:
    view = run.explore()
    assert isinstance(view, RecordView)
    assert str(view).startswith("RecordView of receipt.png")


def test_parts_of_one_record_send_its_page_and_texts_once(run: PhaseRun) -> None:
    widgets = [part(run) for part in PARTS]
    for widget in widgets:
        assert widget.source is widgets[0].source
        assert "data" not in widget.get_state()


def test_parts_of_two_records_do_not_share(run: PhaseRun) -> None:
    other = PhaseRun.load(RECORD)
    assert PageView(run).source is not PageView(other).source


@pytest.mark.parametrize("part", PARTS)
def test_a_part_stands_in_a_box_and_is_linked(part: type, run: PhaseRun) -> None:
    widget = part(run)
    curve = LatencyCurve(run)
    ipywidgets.HBox([widget, curve])
    traitlets.link((widget, "token"), (curve, "token"))

    widget.token = 40

    assert curve.token == 40
    assert widget.layout.min_width == "0"


class Notebook:
    """IPython, with what it was told to display."""

    def __init__(self, shell: InteractiveShell) -> None:
        self.shell = shell
        #: Each output, and whether it took the place of one before.
        self.outputs: list[tuple[dict[str, Any], bool]] = []

    def publish(self, data: dict[str, Any], *_: Any, update: bool = False, **__: Any) -> None:
        self.outputs.append((data, update))

    def show(self, result: object) -> dict[str, Any]:
        """What the last line of a cell shows, besides what was displayed meanwhile."""
        data, _ = self.shell.display_formatter.format(result)
        return data


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> Iterator[Notebook]:
    notebook = Notebook(InteractiveShell.instance())
    monkeypatch.setattr(notebook.shell.display_pub, "publish", notebook.publish)
    yield notebook
    InteractiveShell.clear_instance()


@pytest.mark.parametrize("box", [ipywidgets.VBox, ipywidgets.Tab])
def test_a_box_of_parts_leaves_their_picture_in_a_saved_notebook(
    box: type, run: PhaseRun, notebook: Notebook
) -> None:
    curve = LatencyCurve(run)
    inner = ipywidgets.HBox([PageView(run), curve])

    notebook.show(box([ipywidgets.IntSlider(), inner]))

    (view, _), (still, _) = notebook.outputs
    assert "application/vnd.jupyter.widget-view+json" in view
    assert still["text/html"].count("data:image/jpeg") == 1  # both have the same picture

    curve.token = 40
    curve.draw_still()
    newest, is_update = notebook.outputs[-1]
    assert is_update
    assert newest["text/html"].count("data:image/jpeg") == 2


def test_a_box_of_other_widgets_is_shown_as_ever(run: PhaseRun, notebook: Notebook) -> None:
    PageView(run)
    shown = notebook.show(ipywidgets.VBox([ipywidgets.IntSlider()]))
    assert notebook.outputs == []
    assert "application/vnd.jupyter.widget-view+json" in shown


@pytest.mark.parametrize(("token", "becomes"), [(-5, 0), (0, 0), (197, 197), (10_000, 197)])
def test_a_token_outside_becomes_the_first_or_the_last(
    token: int, becomes: int, run: PhaseRun
) -> None:
    view = PageView(run)
    view.token = token
    assert view.token == becomes


@pytest.mark.parametrize("selection", [[3], [5, 5], [9, 2], [-1, 4], [0, 199], [1, 2, 3], ["a", 4]])
def test_a_selection_that_is_none_is_refused_in_a_sentence(
    selection: list[Any], run: PhaseRun
) -> None:
    curve = LatencyCurve(run, selection=[1, 3])
    with pytest.raises(traitlets.TraitError):
        curve.selection = selection
    assert curve.selection == [1, 3]


def test_selected_has_the_brushed_tokens_with_their_share(run: PhaseRun) -> None:
    curve = LatencyCurve(run, selection=[10, 40])

    tokens = run.token_table.iloc[10:40]
    share = tokens["device_ms"].sum() / run.token_table["device_ms"].sum()
    assert curve.selected["index"].tolist() == tokens["index"].tolist()
    assert curve.selected["share"].sum() == pytest.approx(share)

    curve.selection = []
    assert curve.selected.empty


def test_curves_of_other_records_are_drawn_with_its_own_under_their_names(run: PhaseRun) -> None:
    other = make_run()

    view = run.explore(others=[other])

    own_curve, other_curve = view.curves
    own_tokens = [token for token, _ in own_curve["points"]]
    own_times = [ms for _, ms in own_curve["points"]]
    times = run.token_table["device_ms"].dropna()
    assert own_tokens == times.index.tolist()
    assert own_times == pytest.approx(times.tolist(), abs=1e-4)
    assert own_curve["name"] != other_curve["name"]
    assert own_curve["median"] == f"median {ms_text(run['inter_token_ms'])}"
    assert other_curve["tokens"] == other.token_count
    assert len(other_curve["points"]) == other.token_count - 1
    assert view.source is RecordView(run).source  # page and texts are sent once, whatever is drawn

    view.others = []
    assert view.curves == []


def test_curves_of_a_long_record_have_a_bounded_number_of_points_with_the_slowest(
    run: PhaseRun,
) -> None:
    long = PhaseRun.load(RUNS / "families" / "h100-unlimited-ocr-8000-cuda-graph.json.gz")

    _, curve = LatencyCurve(run, others=[long]).curves

    slowest = max(ms for _, ms in curve["points"])
    assert curve["tokens"] == 8_000
    assert len(curve["points"]) <= 2_000
    assert slowest == pytest.approx(long.token_table["device_ms"].max(), abs=1e-4)


LOADED = PhaseRun.load(RECORD)


@pytest.mark.parametrize(
    ("others", "sentence"),
    [
        pytest.param([LOADED] * 6, "others has 6 records: give at most 5", id="six"),
        pytest.param(["run.json"], "others takes a list of records", id="no record"),
        pytest.param(LOADED, "others takes a list of records", id="no list"),
    ],
)
def test_what_cannot_be_drawn_over_a_curve_is_refused_in_a_sentence(
    run: PhaseRun, others: Any, sentence: str
) -> None:
    with pytest.raises(OcrPhasesError, match=sentence):
        run.explore(others=others)
    curve = LatencyCurve(run)
    with pytest.raises(OcrPhasesError, match=sentence):
        curve.others = others
    assert curve.curves == []


def test_a_row_that_another_record_lacks_is_compared_with_its_last_one(run: PhaseRun) -> None:
    batch = make_run(rows=2)
    view = LatencyCurve(batch, others=[run])

    view.row = 1

    own, other = view.curves
    assert other["tokens"] == run.token_count
    assert own["tokens"] == len(batch.results[1].ids)


def test_another_row_brings_its_own_data_and_leaves_token_and_brush() -> None:
    view = RecordView(make_run(rows=2))
    first_source = view.source
    view.token = 2
    view.selection = [1, 3]

    view.row = 1

    assert view.source is not first_source
    assert view.token == 0
    assert view.selection == []


def test_a_row_that_a_record_lacks_becomes_its_last_one() -> None:
    view = RecordView(make_run(rows=2))
    view.row = 99
    assert view.row == 1


def test_the_browser_hears_and_tells_what_is_chosen() -> None:
    assert {"token", "row", "sheet", "selection", "color"} <= set(RecordView(make_run()).keys)


def tallest_red_line(run: PhaseRun, token: int) -> int:
    """How many pixels of one column are red in the picture of a curve at a token."""
    jpeg = base64.b64decode(still_bundle(run, 0, token, "type", "page")["image/jpeg"])
    pixels = np.asarray(Image.open(io.BytesIO(jpeg)).convert("RGB")).astype(int)[:, -600:]
    red, green, blue = np.moveaxis(pixels, 2, 0)
    return int(((red > 150) & (green < 120) & (blue < 120)).sum(axis=0).max())


def test_a_line_marks_the_token_s_step_in_the_picture_of_a_curve(run: PhaseRun) -> None:
    assert tallest_red_line(run, 40) > 200
    assert tallest_red_line(run, 0) < 20  # the prefill makes it


def has_colour(bundle: dict[str, Any], colour: str) -> bool:
    """Whether the figure in a picture has pixels that are nearly of a colour, as ``#007a5a``."""
    jpeg = base64.b64decode(bundle["image/jpeg"])
    pixels = np.asarray(Image.open(io.BytesIO(jpeg)).convert("RGB")).astype(int)[:, -600:]
    distance = np.abs(pixels - ImageColor.getrgb(colour)).max(axis=2)
    return bool((distance < 24).sum() > 20)


#: The colours of the first and of the fourth other curve in view.css.
OF_FIRST_OTHER = "#007a5a"
OF_FOURTH_OTHER = "#5b5fc7"


def test_the_picture_in_a_saved_notebook_has_the_curves_of_other_records_too(run: PhaseRun) -> None:
    slower = paced(run, 1.5)
    curve = LatencyCurve(run)
    alone = curve.picture()
    curve.others = [slower]

    assert not has_colour(alone, OF_FIRST_OTHER)
    assert has_colour(curve.picture(), OF_FIRST_OTHER)
    assert has_colour(RecordView(run, others=[slower]).picture(), OF_FIRST_OTHER)
    curve.others = []
    assert curve.picture() == alone


def test_the_picture_of_most_curves_is_small(run: PhaseRun) -> None:
    others = [paced(run, 1.0 + place) for place in range(MOST_OTHERS)]

    bundle = RecordView(run, others=others).picture()

    assert has_colour(bundle, OF_FOURTH_OTHER)
    assert len(bundle["text/html"]) < 300_000


@pytest.mark.parametrize("others", [1, MOST_OTHERS])
def test_up_to_five_records_are_drawn_over_a_curve(run: PhaseRun, others: int) -> None:
    assert len(LatencyCurve(run, others=[run] * others).curves) == 1 + others


# -- the block of a report -------------------------------------------------------------------------


def test_the_words_of_a_box_stand_amid_their_ground(run: PhaseRun) -> None:
    marks = Elements(view_block(run)).found
    tags = [
        (ground, words)
        for (_, ground), (_, words) in itertools.pairwise(marks)
        if "textlength" in words
    ]
    assert tags
    for ground, words in tags:
        before = float(words["x"]) - float(ground["x"])
        behind = float(ground["width"]) - before - float(words["textlength"])
        assert behind == before > 0


def test_the_block_of_a_report_has_all_that_the_view_draws_and_the_page_once(
    run: PhaseRun,
) -> None:
    html = str(view_block(run))

    (data,) = re.findall(r'<script type="application/json">(.*?)</script>', html, re.DOTALL)
    (row,) = json.loads(data)["rows"]
    table = run.token_table
    assert row["texts"] == table["text"].tolist()
    assert unpacked(row["region"]) == table["region"].tolist()
    assert unpacked(row["ms"])[1:] == pytest.approx(table["device_ms"].tolist()[1:], abs=1e-4)
    assert html.count("data:image/jpeg") == 1
    assert f'id="{row["pages"][0]["picture"]}"' in html


def page_id(run: PhaseRun) -> str:
    """The name of a record's page in its block."""
    first, *_ = re.findall(r'id="(op-page-[^"]+)"', str(view_block(run)))
    return first


def test_pages_of_two_records_in_one_notebook_have_different_names(run: PhaseRun) -> None:
    assert page_id(run) != page_id(make_run())


def test_nothing_that_a_model_wrote_can_end_the_block_of_data() -> None:
    attack = "</script><script>alert(1)</script><!--<script>"
    text = f"<|ref|>{attack}<|/ref|><|det|>[[1, 2, 300, 400]]<|/det|>{attack}"

    html = str(view_block(make_run(text=text, page_name=f"{attack}.png")))

    assert html.count("<script") == html.count("</script") == 1
    assert "<!--" not in html


def test_a_notebook_shows_pictures_and_keeps_the_block_for_the_report(
    run: PhaseRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[dict[str, Any]] = []

    def display(data: dict[str, Any], **_: object) -> None:
        shown.append(data)

    monkeypatch.setattr("IPython.display.display", display)

    LinkedPage(run)._ipython_display_()

    first = shown[0]
    assert first["text/html"].count("data:image/jpeg") == 2
    assert "application/json" in first[VIEW_TYPE]


VALUES = st.one_of(st.none(), st.integers(-3, 9), st.floats(0, 9))


@given(st.lists(VALUES, max_size=40))
def test_a_packed_column_is_the_same_column(column: Column) -> None:
    assert unpacked(packed(column)) == column


def test_a_long_even_column_is_short() -> None:
    column = list(range(8_000))
    assert len(json.dumps(packed(column))) < 40


def test_the_scripts_of_a_report_have_no_comments() -> None:
    script = view_script()
    assert "/*" not in script
    assert not re.search(r"^\s*//", script, re.MULTILINE)
    assert "class View extends Linked" in script


# -- Markdown --------------------------------------------------------------------------------------


#: The elements that Markdown is rendered to; any other one would be the text's own.
MARKDOWN_ELEMENTS = {"p", "br", "hr", "h3", "h4", "h5", "h6", "em", "strong", "code", "pre"}
MARKDOWN_ELEMENTS |= {"ul", "ol", "li", "blockquote"}
MARKDOWN_ELEMENTS |= {"table", "thead", "tbody", "tr", "td", "th"}
#: What of a text may stand in an attribute: a cell's spans and the name of a block's language.
MARKDOWN_ATTRIBUTES = {"colspan", "rowspan", "class"}
#: Pieces of which an element, an attribute or a table can be put together.
PIECES = [*"<>/='\"| \n", "td", "table", "tr", "script", "onload", "a", "&lt;"]


def assert_only(html: str, elements: set[str]) -> None:
    """Some HTML has no other elements than these, and no attribute that a text could choose."""
    for tag, attributes in Elements(html).found:
        assert tag in elements
        assert set(attributes) <= MARKDOWN_ATTRIBUTES


@pytest.mark.parametrize(
    ("text", "elements"),
    [
        pytest.param("<script>alert(1)</script>", {"p"}, id="an element"),
        pytest.param("# <b onmouseover=alert(1)>x</b>", {"h3"}, id="a handler"),
        pytest.param("[a](javascript:alert(1)) ![b](http://x.example/y.png)", {"p"}, id="a link"),
        pytest.param("<http://x.example> http://x.example a@x.example", {"p"}, id="an address"),
        pytest.param("`<u>`\n\n```html\n<i>\n```", {"p", "code", "pre"}, id="code"),
        pytest.param("$$<svg onload=alert(1)>$$", {"p"}, id="a formula"),
        pytest.param(
            "|a|\n|-|\n|<img src=x onerror=alert(1)>|",
            {"table", "thead", "tbody", "tr", "th", "td"},
            id="a cell of Markdown",
        ),
        pytest.param(
            "<table onload=x><tr><td onclick=alert(1) style='position:fixed'>a</td></tr></table>",
            {"table", "tr", "td"},
            id="an attribute of a cell",
        ),
        pytest.param(
            "<table><tr><td>a<script>alert(1)</script></td></tr></table>",
            {"table", "tr", "td"},
            id="an element in a cell",
        ),
        pytest.param(
            "<table><tr><td>&lt;script&gt;alert(1)&lt;/script&gt;</td></tr></table>",
            {"table", "tr", "td"},
            id="an escaped element in a cell",
        ),
        pytest.param(
            "<table><tr><th rowspan='3\" onload=\"alert(1)'>a</th></tr></table>",
            {"table", "tr", "th"},
            id="a span that ends early",
        ),
    ],
)
def test_what_a_model_wrote_is_text_and_no_element_of_the_page(
    text: str, elements: set[str]
) -> None:
    """What a page could make a model write, with the elements that it may turn into."""
    assert_only(markdown_html(text), elements)


@given(st.lists(st.sampled_from(PIECES)))
def test_no_text_becomes_another_element_or_attribute(pieces: list[str]) -> None:
    assert_only(markdown_html("".join(pieces)), MARKDOWN_ELEMENTS)
