"""The linked view in a shadow tree, in which marimo shows a widget: its style, clicks and keys."""

import lab
import pytest
from conftest import RUNS

from ocr_phases import PhaseRun
from ocr_phases.explorer import Explorer

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(bool(lab.missing()), reason=str(lab.missing())),
]

SHOW = """async ([script, style, state, data]) => {
  const tree = document.body.attachShadow({ mode: 'open' });
  tree.innerHTML = `<style>${style}</style><main></main>`;
  const values = { ...state };
  const calls = {};
  const model = {
    get: (name) => values[name],
    set: (name, value) => {  // as marimo's: no object of values
      values[name] = value;
      (calls[`change:${name}`] ?? []).forEach((call) => call());
    },
    save_changes: () => {},
    on: (event, call) => { calls[event] = [...(calls[event] ?? []), call]; },
    off: () => {},
    send: () => {},
    widget_manager: { get_model: async () => ({ get: () => data }) },
  };
  const address = URL.createObjectURL(new Blob([script], { type: 'text/javascript' }));
  const { default: widget } = await import(address);
  await widget.render({ model, el: tree.querySelector('main') });
}"""


@pytest.fixture
def page():
    with lab.chromium() as browser:
        yield browser.new_page()


def test_a_view_in_a_shadow_tree_has_its_style_and_hears_clicks_and_keys(page):
    view = PhaseRun.load(RUNS / "tiny-receipt.json.gz").explore()
    state = {name: value for name, value in view.get_state().items() if name != "layout"}
    page.evaluate(SHOW, [str(view._esm), str(view._css), state, view.source.data])
    columns = page.locator(".opv-columns")
    assert columns.evaluate("(box) => getComputedStyle(box).display") == "grid"
    assert page.locator(".opx").evaluate("(box) => getComputedStyle(box).fontSize") == "13px"
    page.locator(".opv-region[data-region='2'] .opv-box").click(position={"x": 5, "y": 5})
    page.mouse.move(0, 0)
    chosen = int(page.locator(".opx").get_attribute("data-token"))
    page.locator(".opv-scrubber").focus()
    page.keyboard.press("ArrowRight")
    assert int(page.locator(".opx").get_attribute("data-token")) == chosen + 1 > 1


def test_html_is_sent_as_plain_text():
    explorer = Explorer(record=RUNS / "tiny-receipt.json.gz", keep=None)
    for name in ("head", "records", "message", "compared"):
        assert type(getattr(explorer, name)) is str, name
    assert type(explorer.data["rendered"]) is str
