"""How fast the linked view of a report answers: ``python -m benchmarks.interaction``, a table on
the terminal.

Two reports are opened from their files in a headless Chromium: the receipt that comes with the
package, and a record of 8,000 tokens with 160 regions, whose times are of a real measurement and
whose text is made up. Each interaction is done many times; ``script`` is the time until the view
has changed the document, ``painted`` the time until the browser has shown it, of which up to
16.7 ms are the wait for the next frame.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ocr_phases.results.run import PhaseRun
from ocr_phases.versions import asset

CHROMIUM = "/usr/bin/chromium"
REGIONS = 160
COLUMNS = 8  # of regions on the made-up page
TIMES = 25  # how often each interaction is done
GOAL_MS = 50.0

#: What is done, and how: the body of a function of `view`, the document's part of the view, and
#: `turn`, the number of the repetition.
INTERACTIONS = {
    "next token": "key('ArrowRight')",
    "ten tokens further": "key('ArrowRight', { shiftKey: true })",
    "next region": "key('n')",
    "first and last token": "key(turn % 2 ? 'Home' : 'End')",
    "click on a box": "press(boxes[turn % boxes.length])",
    "click on a token": "tab('tokens'); press(tokens[(turn * 331) % tokens.length])",
    "point at the curve": "tab('curve'); point(curve, (turn % 20) / 20, 'pointermove')",
    "brush a part of the curve": "tab('curve'); brush(0.1, 0.2 + (turn % 20) / 30)",
    "zoom the curve": "key('z')",
    "colours by time and by type": "choose('[data-trait=color]', turn % 2 ? 'time' : 'type')",
    "show the tokens": "tab('curve'); tab('tokens')",
    "show the Markdown": "tab('curve'); tab('markdown')",
}

#: Defines what the interactions call, then does one and gives its two times in ms.
_SCRIPT = """async ([body, turn]) => {
  const view = document.querySelector('.opv');
  const find = (selector) => view.querySelector(selector);
  const scrubber = find('.opv-scrubber');
  const curve = find('.opv-svg');
  const boxes = [...view.querySelectorAll('.opv-box')];
  const tokens = [...view.querySelectorAll('.opv-token')];
  const event = (Kind, type, more) => new Kind(type, { bubbles: true, cancelable: true, ...more });
  const key = (name, more) =>
    scrubber.dispatchEvent(event(KeyboardEvent, 'keydown', { key: name, ...more }));
  const press = (target) => {
    target.dispatchEvent(event(PointerEvent, 'pointerdown', { buttons: 1 }));
    target.dispatchEvent(event(MouseEvent, 'click'));
  };
  const point = (target, share, type, more) => {
    const { left, top, width, height } = target.getBoundingClientRect();
    const place = { clientX: left + share * width, clientY: top + height / 2 };
    target.dispatchEvent(event(PointerEvent, type, { ...place, ...more }));
  };
  const brush = (first, end) => {
    Element.prototype.setPointerCapture = () => {};  // events of a script have no pointer
    point(curve, first, 'pointerdown', { buttons: 1 });
    point(curve, end, 'pointermove', { buttons: 1 });
  };
  const tab = (name) => {
    const input = find(`[data-side][value=${name}]`);
    if (!input.checked) { input.click(); }
  };
  const choose = (selector, value) => {
    find(selector).value = value;
    find(selector).dispatchEvent(event(Event, 'change'));
  };
  const act = new Function('key', 'press', 'point', 'brush', 'tab', 'choose', 'curve', 'boxes',
    'tokens', 'turn', body);
  await new Promise(requestAnimationFrame);
  const start = performance.now();
  act(key, press, point, brush, tab, choose, curve, boxes, tokens, turn);
  document.body.getBoundingClientRect();
  const script = performance.now() - start;
  await new Promise((done) => requestAnimationFrame(() => {
    const { port1, port2 } = new MessageChannel();
    port1.onmessage = done;
    port2.postMessage(0);
  }));
  return [script, performance.now() - start];
}"""


def long_record() -> PhaseRun:
    """A record of 8,000 tokens with the times of an H100, a made-up text and a page from the
    package.
    """
    source = asset("data", "runs", "families", "h100-deepseek-ocr-8000-cuda-graph.json.gz")
    record = PhaseRun.load(source).to_dict()
    receipt = PhaseRun.load(asset("data", "runs", "tiny-receipt.json.gz")).to_dict()
    result = record["results"][0]
    tokens = len(result["ids"])
    each = tokens // REGIONS
    texts = [f"word{number % 97} " for number in range(tokens)]
    for region in range(REGIONS):
        left = 10 + region % COLUMNS * 120
        top = 10 + region // COLUMNS * 48
        box = f"[[{left}, {top}, {left + 110}, {top + 44}]]"
        mark = f"<|ref|>text<|/ref|><|det|>{box}<|/det|>\n"
        texts[region * each] = mark if region == 0 else f"\n\n{mark}"
    result["token_texts"] = texts
    result["text"] = "".join(texts)
    page = record["pages"][0]
    for name in ("file", "sha256", "width", "height", "data"):
        page[name] = receipt["pages"][0][name]
    return PhaseRun.from_dict(record)


def measure(page: Any, file: Path) -> pd.DataFrame:
    """The times of each interaction with a report, as a row each."""
    page.goto(file.as_uri())
    page.wait_for_selector(".opv-on .opv .opv-token", state="attached")
    rows: list[dict[str, object]] = []
    for name, body in INTERACTIONS.items():
        times = np.array([page.evaluate(_SCRIPT, [body, turn]) for turn in range(TIMES)])
        script, painted = np.median(times, axis=0)
        slowest = np.quantile(times, 0.95, axis=0)[1]
        rows.append(
            {
                "interaction": name,
                "script": f"{script:.1f}",
                "painted": f"{painted:.1f}",
                "painted, 95 %": f"{slowest:.1f}",
                f"under {GOAL_MS:.0f} ms": "yes" if painted < GOAL_MS else "no",
            }
        )
    return pd.DataFrame(rows)


def main(argv: Sequence[str] | None = None) -> int:
    """Write both reports, measure, print; 0."""
    from playwright.sync_api import sync_playwright

    command = argparse.ArgumentParser(prog="python -m benchmarks.interaction", description=__doc__)
    command.parse_args(argv)
    receipt = PhaseRun.load(asset("data", "runs", "tiny-receipt.json.gz"))
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 800}, bypass_csp=True)
        for run in (receipt, long_record()):
            tokens = len(run.results[0].token_texts)
            file = run.report(Path(folder) / str(tokens))
            print(f"\n{tokens:,} tokens: report.html has {file.stat().st_size:,} bytes")
            print(measure(page, file).to_string(index=False))
        browser.close()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
