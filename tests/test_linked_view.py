"""The linked view of a finished record: its widgets, and its block in a report."""

import json
import re

import ipywidgets
import pytest
import traitlets
from conftest import RUNS
from elements import Elements
from example_run import make_run
from hypothesis import given
from hypothesis import strategies as st
from IPython.core.interactiveshell import InteractiveShell

from ocr_phases import OcrPhasesError, PhaseRun
from ocr_phases.text import ms_text
from ocr_phases.view.data import markdown_html
from ocr_phases.view.embed import VIEW_TYPE, LinkedPage, packed, view_block, view_script
from ocr_phases.view.widgets import LatencyCurve, PageView, RecordView, TokenStrip

RECORD = RUNS / "tiny-receipt.json.gz"
PARTS = (PageView, LatencyCurve, TokenStrip, RecordView)


@pytest.fixture(scope="module")
def run():
    return PhaseRun.load(RECORD)


def unpacked(column):
    """A column as report.js reads it."""
    if isinstance(column, list):
        return column
    values = []
    for first, step, length in column["runs"]:
        values += [first + step * at if step else first for at in range(length)]
    return values


def test_explore_gives_the_linked_view_of_the_record(run):
    view = run.explore()
    assert isinstance(view, RecordView)
    assert str(view).startswith("RecordView of receipt.png")


def test_parts_of_one_record_send_its_page_and_texts_once(run):
    widgets = [part(run) for part in PARTS]
    assert len({id(widget.source) for widget in widgets}) == 1
    assert all("data" not in widget.get_state() for widget in widgets)


def test_parts_of_two_records_do_not_share(run):
    other = PhaseRun.load(RECORD)
    assert PageView(run).source is not PageView(other).source


@pytest.mark.parametrize("part", PARTS)
def test_a_part_stands_in_a_box_and_is_linked(part, run):
    widget = part(run)
    curve = LatencyCurve(run)
    ipywidgets.HBox([widget, curve])
    traitlets.link((widget, "token"), (curve, "token"))
    widget.token = 40
    assert curve.token == 40
    assert widget.layout.min_width == "0"


@pytest.fixture
def shell(monkeypatch):
    """IPython, whose ``outputs`` are what it was told to display."""
    shell = InteractiveShell.instance()
    shell.outputs = []

    def publish(data, *_, update=False, **more):
        shell.outputs.append((data, update))

    monkeypatch.setattr(shell.display_pub, "publish", publish)
    yield shell
    InteractiveShell.clear_instance()


@pytest.mark.parametrize("box", [ipywidgets.VBox, ipywidgets.Tab])
def test_a_box_of_parts_leaves_their_picture_in_a_saved_notebook(box, run, shell):
    curve = LatencyCurve(run)
    inner = ipywidgets.HBox([PageView(run), curve])
    shell.display_formatter.format(box([ipywidgets.IntSlider(), inner]))
    (view, _), (still, _) = shell.outputs
    assert "application/vnd.jupyter.widget-view+json" in view
    assert still["text/html"].count("data:image/jpeg") == 1  # both have the same picture
    curve.token = 40
    curve.draw_still()
    newest, is_update = shell.outputs[-1]
    assert is_update
    assert newest["text/html"].count("data:image/jpeg") == 2


def test_a_box_of_other_widgets_is_shown_as_ever(run, shell):
    PageView(run)
    data, _ = shell.display_formatter.format(ipywidgets.VBox([ipywidgets.IntSlider()]))
    assert shell.outputs == []
    assert "application/vnd.jupyter.widget-view+json" in data


@pytest.mark.parametrize(("token", "becomes"), [(-5, 0), (0, 0), (197, 197), (10_000, 197)])
def test_a_token_outside_becomes_the_first_or_the_last(token, becomes, run):
    view = PageView(run)
    view.token = token
    assert view.token == becomes


@pytest.mark.parametrize("selection", [[3], [5, 5], [9, 2], [-1, 4], [0, 199], [1, 2, 3], ["a", 4]])
def test_a_selection_that_is_none_is_refused_in_a_sentence(selection, run):
    curve = LatencyCurve(run, selection=[1, 3])
    with pytest.raises(traitlets.TraitError):
        curve.selection = selection
    assert curve.selection == [1, 3]


def test_selected_has_the_brushed_tokens_with_their_share(run):
    curve = LatencyCurve(run, selection=[10, 40])
    tokens = run.token_table.iloc[10:40]
    assert curve.selected["index"].tolist() == tokens["index"].tolist()
    share = tokens["device_ms"].sum() / run.token_table["device_ms"].sum()
    assert curve.selected["share"].sum() == pytest.approx(share)
    curve.selection = []
    assert curve.selected.empty


def test_curves_of_other_records_are_drawn_with_its_own_under_their_names(run):
    other = make_run()
    view = run.explore(others=[other])
    own, drawn = view.curves
    times = run.token_table["device_ms"].dropna()
    assert [token for token, _ in own["points"]] == times.index.tolist()
    assert [ms for _, ms in own["points"]] == pytest.approx(times.tolist(), abs=1e-4)
    assert own["name"] != drawn["name"]
    assert own["median"] == f"median {ms_text(run['inter_token_ms'])}"
    assert (drawn["tokens"], len(drawn["points"])) == (other.token_count, other.token_count - 1)
    assert view.source is RecordView(run).source  # page and texts are sent once, whatever is drawn
    view.others = []
    assert view.curves == []


def test_curves_of_a_long_record_have_a_bounded_number_of_points_with_the_slowest(run):
    long = PhaseRun.load(RUNS / "families" / "h100-unlimited-ocr-8000-cuda-graph.json.gz")
    _, drawn = LatencyCurve(run, others=[long]).curves
    times = long.token_table["device_ms"]
    assert drawn["tokens"] == 8_000
    assert len(drawn["points"]) <= 2_000
    assert max(ms for _, ms in drawn["points"]) == pytest.approx(times.max(), abs=1e-4)


@pytest.mark.parametrize(
    ("others", "sentence"),
    [
        ("six", "others has 6 records: give at most 5"),
        ("no record", "others takes a list of records"),
        ("no list", "others takes a list of records"),
    ],
)
def test_what_cannot_be_drawn_over_a_curve_is_refused_in_a_sentence(run, others, sentence):
    given = {"six": [run] * 6, "no record": ["run.json"], "no list": run}[others]
    with pytest.raises(OcrPhasesError, match=sentence):
        run.explore(others=given)
    curve = LatencyCurve(run)
    with pytest.raises(OcrPhasesError, match=sentence):
        curve.others = given
    assert curve.curves == []


def test_a_row_that_another_record_lacks_is_compared_with_its_last_one(run):
    batch = make_run(rows=2)
    view = LatencyCurve(batch, others=[run])
    view.row = 1
    own, other = view.curves
    assert other["tokens"] == run.token_count
    assert own["tokens"] == len(batch.results[1].ids)


def test_another_row_brings_its_own_data_and_leaves_token_and_brush():
    run = make_run(rows=2)
    view = RecordView(run)
    first = view.source
    view.token = 2
    view.selection = [1, 3]
    view.row = 1
    assert view.source is not first
    assert (view.token, view.selection) == (0, [])
    view.row = 99
    assert view.row == 1


def test_the_block_of_a_report_has_all_that_the_view_draws_and_the_page_once(run):
    html = str(view_block(run))
    (text,) = re.findall(r'<script type="application/json">(.*?)</script>', html, re.DOTALL)
    (row,) = json.loads(text)["rows"]
    table = run.token_table
    assert row["texts"] == table["text"].tolist()
    assert unpacked(row["region"]) == table["region"].tolist()
    assert unpacked(row["ms"])[1:] == pytest.approx(table["device_ms"].tolist()[1:], abs=1e-4)
    assert html.count("data:image/jpeg") == 1
    assert f'id="{row["pages"][0]["picture"]}"' in html


def test_pages_of_two_records_in_one_notebook_have_different_names(run):
    names = [
        re.findall(r'id="(op-page-[^"]+)"', str(view_block(each)))[0] for each in (run, make_run())
    ]
    assert len(set(names)) == 2


def test_nothing_that_a_model_wrote_can_end_the_block_of_data():
    attack = "</script><script>alert(1)</script><!--<script>"
    text = f"<|ref|>{attack}<|/ref|><|det|>[[1, 2, 300, 400]]<|/det|>{attack}"
    html = str(view_block(make_run(text=text, page_name=f"{attack}.png")))
    assert html.count("<script") == html.count("</script") == 1
    assert "<!--" not in html


def test_a_notebook_shows_pictures_and_keeps_the_block_for_the_report(run, capsys, monkeypatch):
    shown = []
    monkeypatch.setattr("IPython.display.display", lambda data, **_: shown.append(data))
    LinkedPage(run)._ipython_display_()
    first = shown[0]
    assert first["text/html"].count("data:image/jpeg") == 2
    assert "application/json" in first[VIEW_TYPE]


COLUMNS = st.lists(st.one_of(st.none(), st.integers(-3, 9), st.floats(0, 9)), max_size=40)


@given(COLUMNS)
def test_a_packed_column_is_the_same_column(values):
    assert unpacked(packed(values)) == values


def test_a_long_even_column_is_short():
    assert len(json.dumps(packed(list(range(8_000))))) < 40


def test_the_scripts_of_a_report_have_no_comments():
    script = view_script()
    assert "/*" not in script
    assert not re.search(r"^\s*//", script, re.MULTILINE)
    assert "class View extends Linked" in script


#: The elements that Markdown is rendered to; any other one would be the text's own.
MARKDOWN_ELEMENTS = {"p", "br", "hr", "h3", "h4", "h5", "h6", "em", "strong", "code", "pre"}
MARKDOWN_ELEMENTS |= {"ul", "ol", "li", "blockquote"}
MARKDOWN_ELEMENTS |= {"table", "thead", "tbody", "tr", "td", "th"}
#: What of a text may stand in an attribute: a cell's spans and the name of a block's language.
MARKDOWN_ATTRIBUTES = {"colspan", "rowspan", "class"}
#: Pieces of which an element, an attribute or a table can be put together.
PIECES = [*"<>/='\"| \n", "td", "table", "tr", "script", "onload", "a", "&lt;"]

#: What a page could make a model write, with the elements that it may turn into.
HOSTILE = {
    "an element": ("<script>alert(1)</script>", {"p"}),
    "a handler": ("# <b onmouseover=alert(1)>x</b>", {"h3"}),
    "a link": ("[a](javascript:alert(1)) ![b](http://x.example/y.png)", {"p"}),
    "an address": ("<http://x.example> http://x.example a@x.example", {"p"}),
    "code": ("`<u>`\n\n```html\n<i>\n```", {"p", "code", "pre"}),
    "a formula": ("$$<svg onload=alert(1)>$$", {"p"}),
    "a cell of Markdown": (
        "|a|\n|-|\n|<img src=x onerror=alert(1)>|",
        {"table", "thead", "tbody", "tr", "th", "td"},
    ),
    "an attribute of a cell": (
        "<table onload=x><tr><td onclick=alert(1) style='position:fixed'>a</td></tr></table>",
        {"table", "tr", "td"},
    ),
    "an element in a cell": (
        "<table><tr><td>a<script>alert(1)</script></td></tr></table>",
        {"table", "tr", "td"},
    ),
    "an escaped element in a cell": (
        "<table><tr><td>&lt;script&gt;alert(1)&lt;/script&gt;</td></tr></table>",
        {"table", "tr", "td"},
    ),
    "a span that ends early": (
        "<table><tr><th rowspan='3\" onload=\"alert(1)'>a</th></tr></table>",
        {"table", "tr", "th"},
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_a_model_wrote_is_text_and_no_element_of_the_page(name):
    text, allowed = HOSTILE[name]
    for tag, attributes in Elements(markdown_html(text)).found:
        assert tag in allowed
        assert set(attributes) <= MARKDOWN_ATTRIBUTES


@given(st.lists(st.sampled_from(PIECES)))
def test_no_text_becomes_another_element_or_attribute(pieces):
    for tag, attributes in Elements(markdown_html("".join(pieces))).found:
        assert tag in MARKDOWN_ELEMENTS
        assert set(attributes) <= MARKDOWN_ATTRIBUTES
