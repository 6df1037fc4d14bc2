/* The parts of the linked view, and what links them: each part shows the token, the selection and the
   colours that `Shown` holds, and tells it what a person points at. */

const EVENTS = ["keydown", "click", "input", "change", "pointerdown", "pointermove", "wheel"];
const SETTLED = 500; // ms until all is drawn that came into sight
const DRAG = 5; // pixels that a pointer moves before a click becomes a drag

/** What is shown of a record. `model` is a widget's model, or `Values` in a file; it has the traits
    `data`, `token`, `row`, `sheet`, `selection` and `color`, and may have `curves`. */
class Shown {
  constructor(model) {
    this.model = model;
    this.peeked = null; // the token under the pointer
    this.live = false; // a running measurement is shown in place of a record
    this.redraw = () => {}; // called where only `peeked` changed
  }

  get data() {
    const data = this.model.get("data");
    return this.live || !data?.texts ? null : data;
  }

  get token() {
    return this.peeked ?? this.model.get("token");
  }

  /** The brushed tokens, as the first and the one behind the last; null for none. */
  get range() {
    const selection = this.model.get("selection") ?? [];
    return selection.length === 2 ? selection : null;
  }

  /** The curves to be drawn over one another, from `overlaid_curves`: the record's own first. Empty
      where it stands alone. */
  get curves() {
    return this.model.get("curves") ?? [];
  }

  /** The regions of the row by their numbers. */
  get regions() {
    if (this.numbered?.data !== this.data) {
      const entries = this.data.regions.map((region) => [region.region, region]);
      this.numbered = { data: this.data, regions: new Map(entries) };
    }
    return this.numbered.regions;
  }

  set(values) {
    // One by one: a model in marimo takes no object. Each calls what listens to it.
    for (const [name, value] of Object.entries(values)) {
      this.model.set(name, value);
    }
    this.model.save_changes();
  }

  /** Choose a token, and the page that it is on. */
  go(to) {
    if (!this.data) {
      return;
    }
    const token = clamp(to, 0, this.data.texts.length - 1);
    const sheet = this.regions.get(this.data.region[token])?.page ?? this.model.get("sheet");
    const stays = token === this.model.get("token");
    this.peeked = null;
    this.set({ sheet, token });
    if (stays) {
      this.redraw();
    }
  }

  /** Select tokens; the keys go on from the first of them. */
  brush(first, end) {
    this.peeked = null;
    this.set({ token: first, selection: [first, end] });
  }

  peek(token) {
    if (token === this.peeked) {
      return;
    }
    this.peeked = token;
    this.redraw();
  }

  /** The first token of the next region (1) or of the one before (-1). */
  step(way) {
    const starts = this.data.regions.map(({ first }) => first);
    starts.sort((one, other) => way * (one - other));
    this.go(starts.find((start) => way * (start - this.token) > 0) ?? this.token);
  }
}

/** One part. `load`, `mark` and `select` draw it anew when the record, the token or the brush changed. */
class Part {
  constructor(shown, root) {
    this.shown = shown;
    this.root = root;
  }

  load() {}

  mark() {}

  select() {}

  /** The token that stands under the pointer; null for none. */
  under({ target }) {
    const { index, region } = target.closest?.("[data-index], [data-region]")?.dataset ?? {};
    if (index !== undefined) {
      return Number(index);
    }
    if (region === undefined) {
      return null;
    }
    return this.shown.regions.get(Number(region))?.first ?? 0;
  }

  /** The pointer is dragged from where it was pressed. */
  drag() {}

  /** The pointer moved over this part; null where it is elsewhere. */
  hover() {}

  /** The drawing that zooms by keys and by the wheel; null for none. */
  get magnified() {
    return null;
  }

  /** What keys of its own do. */
  keys() {
    return {};
  }

  /** Scroll to what is lit, unless a person is pointing there. */
  follow() {
    const now = this.root.querySelector(".opv-now");
    if (now && !this.root.matches(":hover")) {
      reveal(this.root, now);
    }
  }
}

/** What stands for the page of a prompt without an image; it is not seen. */
const NO_SHEET = { size: [1, 1], boxes: [], href: "" };

class PagePart extends Part {
  constructor(shown) {
    const page = new Page();
    super(shown, page.root);
    this.page = page;
  }

  load() {
    const { regions, palette, pages } = this.shown.data;
    const longest = Math.max(0, ...regions.filter(({ region }) => region >= 0).map(({ ms }) => ms));
    const times = regions.map(({ region, ms }) => [region, shade(palette, [0, longest], ms)[0]]);
    const sheet = pages[this.shown.model.get("sheet")] ?? pages[0] ?? NO_SHEET;
    this.page.show(sheet, Object.fromEntries(times));
    this.root.hidden = !sheet.href && !sheet.boxes.length && !pages.some(({ href }) => href);
    this.select();
    this.mark();
  }

  mark() {
    const region = this.shown.data.region[this.shown.token];
    light(this.root, "opv-now", this.root.querySelectorAll(`[data-region="${region}"]`));
    this.follow();
  }

  select() {
    const [first, end] = this.shown.range ?? [0, 0];
    const regions = new Set(this.shown.data.region.slice(first, end).map(String));
    const boxes = [...this.page.boxes.children];
    light(
      this.root,
      "opv-also",
      boxes.filter(({ dataset }) => regions.has(dataset.region)),
    );
  }

  get magnified() {
    return this.page;
  }

  drag(event) {
    this.root.scrollBy(-event.movementX, -event.movementY);
  }
}

class CurvePart extends Part {
  constructor(shown) {
    const curve = new Curve();
    const legend = h("ul.opv-key", { "aria-label": "Curves" });
    super(shown, h("div", curve.root, legend));
    this.curve = curve;
    this.legend = legend;
  }

  /** The curve of the record on top of those of others, if there are any. */
  load() {
    const { ms, texts, top } = this.shown.data;
    const [, ...others] = this.shown.curves;
    const points = ms.map((each, token) => [token, each]).filter(([, each]) => each != null);
    const lines = others.map((other, place) => ({ ...other, style: `opv-other-${place + 1}` }));
    const tokens = Math.max(texts.length, ...others.map((other) => other.tokens));
    this.curve.show(
      [...lines, { points }],
      tokens,
      Math.max(top, ...others.map((each) => each.top)),
    );
    this.showLegend();
    this.select();
    this.mark();
  }

  /** Which line is whose, by colour and dashes, with the median of each. */
  showLegend() {
    const entries = this.shown.curves.map(({ name, median }, place) => {
      const style = place ? `opv-other-${place}` : "opv-own";
      const line = h(`path.opv-line.${style}`, { d: "M0,5H34" });
      const sample = h("svg", { viewBox: "0 0 34 10", "aria-hidden": "true" }, line);
      return h("li", sample, h(place ? "span" : "strong", name), median && ` · ${median}`);
    });
    this.legend.replaceChildren(...entries);
    this.legend.hidden = !entries.length;
    this.root.classList.toggle("opv-overlaid", entries.length > 0);
  }

  mark() {
    const { data, token } = this.shown;
    const region = data.region[token];
    let first = token;
    let end = token + 1;
    while (first > 0 && data.region[first - 1] === region) {
      first -= 1;
    }
    while (end < data.region.length && data.region[end] === region) {
      end += 1;
    }
    this.curve.mark(token, data.ms[token], first, end);
  }

  select() {
    const [first, end] = this.shown.range ?? [0, 0];
    this.curve.span(this.curve.chosen, first, end);
  }

  under(event) {
    return this.curve.svg.contains(event.target) ? this.tokenAt(event) : null;
  }

  /** The record's token under the pointer, its last one where only another record has more. */
  tokenAt(event) {
    return Math.min(this.curve.tokenAt(event), this.shown.data.texts.length - 1);
  }

  drag(event, pressed) {
    if (!this.curve.curve.contains(pressed.target)) {
      return;
    }
    const one = this.tokenAt(pressed);
    const other = this.tokenAt(event);
    this.shown.brush(Math.min(one, other), Math.max(one, other) + 1);
  }

  /** Show the brushed tokens across the whole width, or all of them again. */
  zoom() {
    const { range } = this.shown;
    const whole = this.curve.end - this.curve.first === this.curve.count;
    const [first, end] = range && whole ? range : [0, this.curve.count];
    this.curve.zoom(first, end);
    this.mark();
  }
}

class TokensPart extends Part {
  constructor(shown) {
    const label = "The tokens as written";
    super(shown, h("pre.opv-tokens", { tabindex: 0, role: "group", "aria-label": label }));
    this.spans = [];
    this.marked = 0; // when a token was marked
    // What was far away has its true height only once it is drawn. Later, a person scrolls.
    const settle = () => performance.now() - this.marked < SETTLED && this.reveal();
    this.root.addEventListener("contentvisibilityautostatechange", settle, true);
  }

  /** The tokens in stretches of one region. */
  load() {
    const { texts, region, ms, palette, scale } = this.shown.data;
    const stretches = [];
    this.spans = texts.map((text, index) => {
      const colours = ms[index] == null ? null : shade(palette, scale, ms[index]);
      const style = colours && `--opv-ground: ${colours[0]}; --opv-ink: ${colours[1]}`;
      const words = text.replaceAll("\n", "↵\n");
      const span = h("span.opv-token", { "data-index": index, style }, words);
      if (region[index] !== region[index - 1]) {
        stretches.push(h("span.opv-stretch", { "data-region": region[index] }));
      }
      stretches.at(-1).append(span);
      return span;
    });
    this.root.replaceChildren(...stretches);
    this.select();
    this.mark();
  }

  mark() {
    const span = this.spans[this.shown.token];
    light(this.root, "opv-now", [span, span.parentElement]);
    this.marked = performance.now();
    this.reveal();
  }

  reveal() {
    const span = this.spans[this.shown.token];
    if (span && !this.root.matches(":hover")) {
      reveal(this.root, span);
    }
  }

  select() {
    const [first, end] = this.shown.range ?? [0, 0];
    light(this.root, "opv-also", this.spans.slice(first, end));
  }
}

class MarkdownPart extends Part {
  constructor(shown) {
    super(shown, h("div.opv-rendered", { tabindex: 0, role: "group", "aria-label": "Markdown" }));
  }

  load() {
    // `markdown_html` made it: of the model's own tags only those of a table get through.
    this.root.innerHTML = this.shown.data.rendered;
    this.mark();
  }

  mark() {
    const region = this.shown.data.region[this.shown.token];
    light(this.root, "opv-now", this.root.querySelectorAll(`section[data-region="${region}"]`));
    this.follow();
  }
}

/** Parts in one element that follow one `Shown`: they draw what changes, and hear keys and pointer. */
class Linked {
  constructor(shown, root, parts) {
    Object.assign(this, { shown, root, parts });
    this.ended = new AbortController();
    this.pressed = null;
    this.held = null; // the part in which the pointer was pressed
    this.dragged = false; // the click at the end of a drag is none
    shown.redraw = () => this.mark();
  }

  start(el) {
    el.append(this.root);
    this.follow(this.drawings());
    this.listen(EVENTS, (event) => this[event.type](event));
    return this;
  }

  end() {
    this.ended.abort();
  }

  /** What is drawn again when a trait changes. */
  drawings() {
    return {
      data: () => this.load(),
      curves: () => this.load(CurvePart),
      sheet: () => this.load(PagePart),
      token: () => this.mark(),
      selection: () => this.select(),
      color: () => this.colour(),
    };
  }

  /** Draw what the model holds, now and whenever it changes. */
  follow(drawings) {
    for (const [names, draw] of Object.entries(drawings)) {
      draw();
      for (const name of names.split(" ")) {
        this.shown.model.on(`change:${name}`, draw);
      }
    }
  }

  /** Hear what happens here before what is around it does: JupyterLab listens at the document. In a
      shadow tree, as in marimo, only its root knows what was pointed at. */
  listen(names, call) {
    const around = this.root.getRootNode();
    const place = around instanceof ShadowRoot ? around : window;
    const how = { capture: true, passive: false, signal: this.ended.signal };
    const hear = (event) => {
      if (this.root.contains(event.target) || event.type.startsWith("pointer")) {
        call(event);
      }
    };
    for (const name of names) {
      place.addEventListener(name, hear, how);
    }
  }

  /** Draw the record anew, or the parts of one kind. */
  load(Kind = Part) {
    if (!this.shown.data) {
      return;
    }
    for (const part of this.parts) {
      if (part instanceof Kind) {
        part.load();
      }
    }
    if (Kind === Part) {
      this.mark();
    }
  }

  mark() {
    if (!this.shown.data) {
      return;
    }
    this.root.dataset.token = this.shown.model.get("token") + 1;
    for (const part of this.parts) {
      part.mark();
    }
  }

  select() {
    if (!this.shown.data) {
      return;
    }
    for (const part of this.parts) {
      part.select();
    }
  }

  colour() {
    this.root.dataset.color = this.shown.model.get("color");
  }

  partOf(target) {
    return this.parts.find((part) => part.root.contains(target));
  }

  pointerdown(event) {
    this.pressed = event;
    this.held = this.partOf(event.target);
    this.dragged = false;
  }

  /** A token is shown while the pointer is over something of it; a drag is its part's. */
  pointermove(event) {
    if (!this.shown.data || this.playing) {
      return;
    }
    if (!event.buttons) {
      const part = this.partOf(event.target);
      for (const each of this.parts) {
        each.hover(each === part ? event : null);
      }
      this.shown.peek(part ? part.under(event) : null);
      return;
    }
    if (!this.held) {
      return;
    }
    const across = event.clientX - this.pressed.clientX;
    const down = event.clientY - this.pressed.clientY;
    if (!this.dragged && Math.hypot(across, down) < DRAG) {
      return;
    }
    this.dragged = true;
    this.held.root.setPointerCapture(event.pointerId);
    this.held.drag(event, this.pressed);
  }

  click(event) {
    const token = this.dragged ? null : (this.partOf(event.target)?.under(event) ?? null);
    if (token !== null) {
      this.shown.go(token);
    }
  }

  input() {}

  change() {}

  /** The wheel scrolls what is around; with Ctrl it zooms the page or the timeline. */
  wheel(event) {
    const drawing = this.partOf(event.target)?.magnified;
    if (!drawing || !(event.ctrlKey || event.metaKey)) {
      return;
    }
    event.preventDefault();
    drawing.magnify(event.deltaY < 0 ? 1.25 : 0.8, event);
  }

  keydown(event) {
    const used = event.key === "Escape" ? this.escape() : this.steer(event);
    if (used) {
      event.preventDefault();
    }
  }

  /** What each key does. */
  keys(many) {
    const { shown } = this;
    const curve = this.parts.find((part) => part instanceof CurvePart);
    const drawing = this.parts.find((part) => part.magnified)?.magnified;
    return {
      arrowleft: () => shown.go(shown.token - many),
      arrowright: () => shown.go(shown.token + many),
      home: () => shown.go(0),
      end: () => shown.go(shown.data.texts.length - 1),
      p: () => shown.step(-1),
      n: () => shown.step(1),
      s: () => shown.go(shown.data.slowest[0] ?? shown.token),
      z: curve && (() => curve.zoom()),
      "+": drawing && (() => drawing.magnify(1.5)),
      "=": drawing && (() => drawing.magnify(1.5)),
      "-": drawing && (() => drawing.magnify(1 / 1.5)),
      0: drawing && (() => drawing.magnify(0)),
      ...Object.assign({}, ...this.parts.map((part) => part.keys())),
    };
  }

  /** Whether a key was one of ours. What is typed into, and lists, keep theirs. */
  steer({ target, key, shiftKey, ctrlKey, altKey, metaKey }) {
    if (!this.shown.data || ctrlKey || altKey || metaKey) {
      return false;
    }
    if (target.matches("input:not([type=range], [type=checkbox]), select")) {
      return false;
    }
    const call = this.keys(shiftKey ? 10 : 1)[key.toLowerCase()];
    if (call) {
      call();
    }
    return Boolean(call);
  }

  /** Leave the brush. Whether there was one. */
  escape() {
    const found = Boolean(this.shown.range);
    if (found) {
      this.shown.set({ selection: [] });
    }
    return found;
  }
}
