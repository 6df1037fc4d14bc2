/* One row of a record as one linked view: page, latency curve, tokens and lists share the token shown.
   `view.py` says what the traits hold; the drawings come from drawings.js. */

const KEYS = [
  ["← →", "previous, next token; with Shift ten tokens"],
  ["Home, End", "first, last token"],
  ["P, N", "previous, next region"],
  ["S", "slowest token"],
  ["K", "play and pause"],
  ["+ − 0", "zoom in, zoom out, fit the drawing that has the focus, else the curve or timeline"],
  ["Ctrl or Alt with an arrow", "move that drawing"],
  ["/", "search the tokens; Enter and Shift+Enter go to the next and previous match"],
  ["Esc", "pause, and leave the search"],
];

/** All tokens as text, one span each, in one span a stretch of a region. */
class Tokens {
  constructor(view) {
    this.view = view;
    const number = (event) => event.target.closest?.(".opv-token")?.dataset.token;
    this.element = make("pre", { class: "opv-tokens", tabindex: 0, role: "group", "aria-label": "The tokens as written", on: {
      click: (event) => number(event) !== undefined && view.go(Number(number(event))),
      pointermove: (event) => view.peek(number(event) === undefined ? null : Number(number(event)), event),
      pointerleave: () => view.peek(null),
    } });
    this.hits = [];
  }
  show(data) {
    this.spans = data.texts.map((text, token) =>
      make("span", { class: "opv-token", "data-token": token }, text.replaceAll("\n", "↵\n")));
    const stretches = [];
    data.region.forEach((region, token) => {
      if (!token || region !== data.region[token - 1])
        stretches.push(make("span", { class: "opv-stretch", "data-region": region }));
      stretches.at(-1).append(this.spans[token]);
    });
    [this.stretches, this.hits, this.now] = [stretches, [], null];
    this.element.replaceChildren(...stretches);
  }
  colour(colours) {
    this.spans.forEach((span, token) => {
      span.style.background = colours?.[token]?.[0] ?? "";
      span.style.color = colours?.[token]?.[1] ?? "";
    });
  }
  mark(token) {
    this.now?.classList.remove("opv-now");
    this.now?.parentElement.classList.remove("opv-now");
    this.now = this.spans[token];
    this.now?.classList.add("opv-now");
    this.now?.parentElement.classList.add("opv-now");
    if (this.now && !this.element.matches(":hover")) scrollTo(this.element, this.now);
  }
  /** Tokens that hold a match, as pairs of the first and the last one. */
  find(words, texts) {
    for (const [first, last] of this.hits)
      for (let token = first; token <= last; token++) this.spans[token].classList.remove("opv-hit");
    this.hits = [];
    if (!words) return;
    const ends = [];
    texts.reduce((end, text) => (ends.push(end + text.length), ends.at(-1)), 0);
    const pattern = new RegExp(words.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"), "gi");
    let token = 0;
    for (const match of texts.join("").matchAll(pattern)) {
      while (ends[token] <= match.index) token++;
      let last = token;
      while (ends[last] < match.index + match[0].length) last++;
      this.hits.push([token, last]);
      for (let each = token; each <= last; each++) this.spans[each].classList.add("opv-hit");
    }
  }
}

function scrollTo(box, child) {
  const top = child.offsetTop - box.offsetTop;
  if (top < box.scrollTop || top + child.offsetHeight > box.scrollTop + box.clientHeight)
    box.scrollTop = top - box.clientHeight / 2;
}

/** A list that is one stop of the Tab key; arrows choose. Options are `[key, text, token]`. */
class List {
  constructor(view, name, label) {
    this.view = view;
    this.name = `${name}-${Math.random().toString(36).slice(2)}`; // ids are the whole document's
    const option = (event) => this.options[event.target.closest?.("[role=option]")?.dataset.place];
    this.element = make("div", { class: `opv-list opv-${name}`, role: "listbox", tabindex: 0, "aria-label": label, on: {
      click: (event) => option(event) && view.go(option(event)[2]),
      pointermove: (event) => view.peek(option(event)?.[2] ?? null, event),
      pointerleave: () => view.peek(null),
      keydown: (event) => this.key(event),
    } });
  }
  show(options) {
    this.options = options;
    this.element.replaceChildren(...options.map(([, text], place) =>
      make("div", { role: "option", id: `${this.name}-${place}`, "data-place": place }, text)));
    this.at = -1;
  }
  key(event) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step || event.ctrlKey || event.altKey || !this.options.length) return;
    this.view.go(this.options[clamp(this.at + step, 0, this.options.length - 1)][2]);
    event.preventDefault();
  }
  mark(key) {
    this.at = this.options.findIndex((option) => option[0] === key);
    [...this.element.children].forEach((child, place) => child.setAttribute("aria-selected", place === this.at));
    const child = this.element.children[this.at];
    if (child) this.element.setAttribute("aria-activedescendant", child.id);
    else this.element.removeAttribute("aria-activedescendant");
    if (child && !this.element.matches(":hover")) scrollTo(this.element, child);
  }
}

/** A bar of times in the colours of `palette`. */
function legend(palette, [low, high], what) {
  const bar = make("span", { class: "opv-bar" });
  bar.style.background = `linear-gradient(to right, ${palette.map(([colour]) => colour).join(", ")})`;
  return make("div", { class: "opv-legend", role: "img", "aria-label": `${what}: light is ${duration(low)}, dark ${duration(high)}` },
    what, make("span", {}, duration(low)), bar, make("span", {}, duration(high)));
}

class View {
  constructor(model, el, mode) {
    Object.assign(this, { model, el, mode, peeked: null, addresses: [], playing: null, style:
      { opacity: 0.12, labels: true, crops: true, hidden: new Set(), byTime: mode === "text" } });
    this.curve = new Curve(this);
    this.page = new Page(this);
    this.timeline = new Timeline(this);
    this.tokens = new Tokens(this);
    this.regions = new List(this, "regions", "Regions");
    this.slowest = new List(this, "slowest", "Slowest tokens");
    this.rendered = make("div", { class: "opv-rendered", tabindex: 0, role: "group", "aria-label": "The text as Markdown" });
    this.rendered.addEventListener("click", (event) => {
      const section = event.target.closest("[data-region]");
      if (section) this.goRegion(Number(section.dataset.region));
    });
    this.tip = make("div", { class: "opv-tip", role: "tooltip", hidden: true });
    this.root = make("div", { class: `opv opv-mode-${this.mode}`, on: { keydown: (event) => this.key(event) } });
    this.build();
    el.append(this.root);
    this.changes = { "change:token": () => this.shown && this.mark(), "change:data": () => this.renew() };
    for (const [name, call] of Object.entries(this.changes)) model.on(name, call);
    this.stale = true;
  }

  /** Show what came while the tab was closed. */
  see(shown) {
    this.shown = shown;
    if (shown) this.stale ? this.load() : this.mark();
  }

  renew() {
    this.pause(false);
    this.stale = true;
    if (this.shown) this.load();
  }

  build() {
    this.scrubber = make("input", { type: "range", class: "opv-scrubber", min: 0, "aria-label": "Token",
      on: { input: () => this.go(Number(this.scrubber.value)) } });
    this.play = button("Play", "Play at recorded speed", () => this.toggle());
    const [rows, row] = choice("Row", [], (value) => {
      this.model.set("row", Number(value));
      this.model.save_changes();
    });
    [this.rows, this.row] = [rows, row];
    const controls = make("div", { class: "opv-controls" }, this.play,
      button("Previous region", "Previous region", () => this.step(-1)), button("Next region", "Next region", () => this.step(1)),
      button("Slowest token", "Go to the slowest token", () => this.slow()), rows);
    this.readout = make("p", { class: "opv-readout" });
    const keys = make("dl", {}, ...KEYS.flatMap(([key, what]) => [make("dt", {}, key), make("dd", {}, what)]));
    this.keys = make("details", { class: "opv-keys" }, make("summary", {}, "Keys"), keys);
    this.note = make("p", { class: "opv-note" });
    this.search = make("input", { type: "search", placeholder: "Search the tokens", "aria-label": "Search the tokens",
      on: { input: () => this.seek(), keydown: (event) => {
        if (event.key === "Enter") this.nextHit(event.shiftKey ? -1 : 1);
      } } });
    this.count = make("span", { class: "opv-count", role: "status" });
    this.copy = button("Copy text", "Copy the text as the model wrote it", () => this.copyText());
    this.finding = make("div", { class: "opv-controls opv-find" }, this.search, this.count,
      button("↑", "Previous match", () => this.nextHit(-1)), button("↓", "Next match", () => this.nextHit(1)), this.copy);
    const [colour, colours] = choice("Colour by", [["type", "region type"], ["time", "decode time"]], (value) => {
      this.style.byTime = value === "time";
      this.restyle();
    });
    colours.value = this.style.byTime ? "time" : "type";
    this.legends = make("div", { class: "opv-legends" });
    const head = [this.scrubber, this.readout, controls];
    if (this.mode === "text") {
      const sides = make("div", { class: "opv-sides" }, this.rendered, this.tokens.element);
      this.root.append(...head, this.finding, this.note, make("div", { class: "opv-controls" }, colour, this.legends), sides, this.keys, this.tip);
      return;
    }
    if (this.mode === "timeline") {
      this.root.append(...head, this.note, this.timeline.zoom.buttons("timeline"), this.timeline.svg, this.keys, this.tip);
      return;
    }
    this.where = make("span");
    this.pager = make("span", { class: "opv-pager" }, button("‹", "Previous page", () => this.turn(-1)), this.where,
      button("›", "Next page", () => this.turn(1)));
    const opacity = make("input", { type: "range", min: 0, max: 0.8, step: 0.04, value: this.style.opacity, "aria-label": "Opacity of the boxes",
      on: { input: () => this.restyle({ opacity: opacity.value }) } });
    this.crops = tick("Crops", true, (crops) => this.restyle({ crops }));
    this.types = make("div", { class: "opv-controls" });
    const left = make("div", { class: "opv-left" },
      make("div", { class: "opv-controls" }, this.page.zoom.buttons("page"), this.pager), this.page.svg,
      make("div", { class: "opv-controls" }, colour, make("label", {}, "Opacity ", opacity),
        tick("Labels", true, (labels) => this.restyle({ labels })), this.crops),
      this.legends, this.types);
    const right = make("div", { class: "opv-right" },
      this.curve.svg, this.finding, this.tokens.element,
      make("div", { class: "opv-lists" }, make("div", {}, make("h4", {}, "Regions"), this.regions.element),
        make("div", {}, make("h4", {}, "Slowest tokens"), this.slowest.element)));
    this.root.append(...head, this.note, make("div", { class: "opv-columns" }, left, right), this.keys, this.tip);
  }

  /** Show the row in `data`. */
  load() {
    this.stale = false;
    const data = this.model.get("data");
    this.data = data;
    this.root.hidden = !data.texts?.length;
    if (this.root.hidden) return;
    this.peeked = null;
    this.turned = false;
    this.style.hidden = new Set();
    this.byRegion = new Map(data.regions.map((region) => [region.region, region]));
    this.scrubber.max = data.texts.length - 1;
    this.note.textContent = this.mode === "timeline" ? data.timeline.note : data.note;
    this.row.replaceChildren(...data.rows.map((name, row) => make("option", { value: row }, name)));
    this.row.value = this.model.get("row");
    this.rows.hidden = data.rows.length < 2;
    this.tokens.show(data);
    if (this.mode === "timeline") {
      this.timeline.show(data.timeline);
    } else if (this.mode === "text") {
      this.rendered.replaceChildren(...data.rendered.map(([region, html]) => {
        const section = make("section", { "data-region": region, class: data.uncertain.regions.includes(region) ? "opv-uncertain" : "" });
        section.innerHTML = html; // of `markdown_html`, which lets no tag of the model's text through but a table's
        return section;
      }));
    } else {
      this.addresses.forEach((address) => address && URL.revokeObjectURL(address));
      this.addresses = this.model.get("pages").map(picture);
      this.curve.marked = null;
      this.curve.show([data.ms], data.texts.length, data.top);
      this.regions.show(data.regions.map((region) => [region.region, region.line, region.first]));
      this.slowest.show(data.slowest.map((token) =>
        [token, `${duration(data.ms[token])} · token ${token + 1} · ${visible(data.texts[token])}`, token]));
      this.crops.hidden = !data.pages.some(({ grid }) => grid[0] * grid[1] > 1);
      this.types.replaceChildren(...data.kinds.map(({ label, count, colour }, kind) =>
        tick(`${label} (${count})`, true, (on) => {
          this.style.hidden[on ? "delete" : "add"](kind);
          this.restyle();
        }, `--opv-kind: ${colour}`)));
      this.showPage(0);
    }
    this.seek();
    this.restyle();
    this.mark();
  }

  showPage(number) {
    const { pages } = this.data;
    this.shownPage = number;
    const several = pages.length > 1 ? ` ${number + 1} of ${pages.length}` : "";
    const what = `The page${several} with ${pages[number].boxes.length} boxes, ${pages[number].width} by ${pages[number].height} pixels`;
    this.page.show(pages[number], this.addresses[number], what);
    this.pager.hidden = !several;
    this.where.textContent = ` Page${several} `;
  }

  turn(step) {
    this.turned = true; // the page stays until the scrubber moves
    this.showPage(clamp(this.shownPage + step, 0, this.data.pages.length - 1));
    this.restyle();
    this.page.mark(this.data.region[this.token]);
  }

  restyle(changed = {}) {
    Object.assign(this.style, changed);
    const { data, style } = this;
    const { palette } = data;
    const last = palette.length - 1;
    const pick = (ms, [low, high]) => palette[clamp(Math.round(((ms - low) / (high - low || 1)) * last), 0, last)];
    this.tokens.colour(style.byTime ? data.ms.map((ms) => (ms == null ? null : pick(ms, data.scale))) : null);
    const legends = style.byTime ? [legend(palette, data.scale, "Decode time of a token")] : [];
    if (this.mode === "page") {
      const slowest = [0, Math.max(...data.regions.map(({ region, ms }) => (region < 0 ? 0 : ms)), 0)];
      const colours = Object.fromEntries(data.regions.map(({ region, ms }) => [region, pick(ms, slowest)[0]]));
      this.page.restyle({ ...style, colours: style.byTime ? colours : null });
      if (style.byTime && slowest[1]) legends.unshift(legend(palette, slowest, "Decode time of a region"));
    }
    if (data.uncertain.regions.length) legends.push(make("div", { class: "opv-legend opv-doubt" }, data.uncertain.legend));
    this.legends.replaceChildren(...legends);
  }

  // -- the token shown --------------------------------------------------------------------------------

  get token() {
    return this.peeked ?? clamp(this.model.get("token"), 0, this.data.texts.length - 1);
  }

  /** Move the scrubber: drawn at once, and told to the kernel. */
  go(token) {
    if (this.playing) this.pause(false);
    this.peeked = null;
    this.turned = false;
    const next = clamp(token, 0, this.data.texts.length - 1);
    if (next === this.model.get("token")) return this.mark();
    this.model.set("token", next); // which calls `mark`, in every view of this model
    this.model.save_changes();
  }

  /** Show a token while the pointer is over something of it, with its values beside the pointer. */
  peek(token, event = null, said = token === null ? "" : this.describe(token)) {
    this.tip.hidden = !said;
    if (said) {
      this.tip.textContent = said;
      const box = this.root.getBoundingClientRect();
      const left = clamp(event.clientX - box.left + 14, 0, box.width - this.tip.offsetWidth - 4);
      this.tip.style.transform = `translate(${left}px, ${event.clientY - box.top + 18}px)`;
    }
    if (this.peeked === token || this.playing) return;
    this.peeked = token;
    this.mark();
  }

  firstToken(region) {
    return this.byRegion.get(region)?.first ?? 0;
  }

  /** To a region's first token, unless the scrubber stands in it. */
  goRegion(region) {
    const at = this.model.get("token");
    this.go(this.data.region[at] === region ? at : this.firstToken(region));
  }

  step(way) {
    const starts = this.data.regions.map(({ first }) => first).sort((one, other) => one - other);
    const next = way > 0 ? starts.find((start) => start > this.token) : starts.findLast((start) => start < this.token);
    if (next !== undefined) this.go(next);
  }

  slow() {
    if (this.data.slowest.length) this.go(this.data.slowest[0]);
  }

  describe(token) {
    const { data } = this;
    const step = data.steps[token] == null ? "from the prefill" : `decode step ${data.steps[token]}`;
    const parts = [`Token ${token + 1} of ${data.texts.length}`, visible(data.texts[token])];
    parts.push(...(data.ms[token] == null ? [step] : [duration(data.ms[token]), step]));
    if (data.cache[token] != null) parts.push(`cache length ${data.cache[token]}`);
    if (data.probability[token] != null) parts.push(`probability ${Math.round(100 * data.probability[token])} %`);
    return [...parts, this.byRegion.get(data.region[token])?.name ?? "preamble"].join(" · ");
  }

  mark() {
    if (this.root.hidden) return;
    const { data, token } = this;
    const region = data.region[token];
    this.scrubber.value = token;
    this.scrubber.setAttribute("aria-valuetext", this.describe(token));
    this.readout.replaceChildren(make("strong", {}, this.describe(token)), make("br"), this.byRegion.get(region)?.facts ?? "");
    if (this.mode === "timeline") return this.timeline.mark(token);
    this.tokens.mark(token);
    if (this.mode === "text") {
      for (const section of this.rendered.children) {
        const own = Number(section.dataset.region) === region;
        if (own && !section.classList.contains("opv-now") && !this.rendered.matches(":hover")) scrollTo(this.rendered, section);
        section.classList.toggle("opv-now", own);
      }
      return;
    }
    const home = clamp(this.byRegion.get(region)?.page ?? this.shownPage, 0, data.pages.length - 1);
    if (home !== this.shownPage && !this.turned) {
      this.showPage(home);
      this.restyle();
    }
    let [first, end] = [token, token + 1];
    while (first > 0 && data.region[first - 1] === region) first--;
    while (end < data.texts.length && data.region[end] === region) end++;
    if (this.peeked === null && this.curve.window.width < this.curve.window.size) {
      this.curve.window.show(token, token + 1);
      this.curve.redraw();
    }
    this.curve.mark(token, first, end);
    this.page.mark(region);
    this.regions.mark(region);
    this.slowest.mark(token);
  }

  // -- playing ----------------------------------------------------------------------------------------

  toggle() {
    if (this.playing) return this.pause();
    this.go(this.token === this.data.texts.length - 1 ? 0 : this.token);
    let [last, owed, token] = [performance.now(), 0, this.token];
    const frame = (now) => {
      owed += Math.max(now - last, 0);
      last = now;
      while (token < this.data.texts.length - 1 && owed >= (this.data.ms[token + 1] ?? 0))
        owed -= this.data.ms[++token] ?? 0;
      if (token !== this.peeked) {
        this.peeked = token; // the kernel hears of the last one only
        this.mark();
      }
      this.playing = requestAnimationFrame(frame);
      if (token === this.data.texts.length - 1) this.pause();
    };
    this.play.textContent = "Pause";
    this.playing = requestAnimationFrame(frame);
  }

  pause(stay = true) {
    if (!this.playing) return;
    cancelAnimationFrame(this.playing);
    this.playing = null;
    this.play.textContent = "Play";
    if (stay) this.go(this.token);
  }

  // -- text -------------------------------------------------------------------------------------------

  seek() {
    this.tokens.find(this.search.value, this.data.texts);
    this.hit = -1;
    const { length } = this.tokens.hits;
    this.count.textContent = this.search.value ? (length === 1 ? "1 match" : `${length || "no"} matches`) : "";
  }

  nextHit(way) {
    const { hits } = this.tokens;
    if (!hits.length) return;
    this.hit = this.hit < 0 && way < 0 ? hits.length - 1 : (this.hit + way + hits.length) % hits.length;
    this.count.textContent = `${this.hit + 1} of ${hits.length}`;
    this.go(hits[this.hit][0]);
    scrollTo(this.tokens.element, this.tokens.spans[hits[this.hit][0]]);
  }

  async copyText() {
    const text = this.data.texts.join("");
    try {
      await navigator.clipboard.writeText(text); // not there on a plain http address
      this.copy.textContent = "Copied";
    } catch {
      const range = document.createRange();
      range.selectNodeContents(this.tokens.element);
      getSelection().removeAllRanges();
      getSelection().addRange(range);
      this.copy.textContent = "Selected: press Ctrl+C";
    }
    setTimeout(() => (this.copy.textContent = "Copy text"), 2000);
  }

  // -- keys -------------------------------------------------------------------------------------------

  key(event) {
    event.stopPropagation();
    if (event.key === "Escape") {
      this.pause();
      if (event.target === this.search) this.scrubber.focus();
      return;
    }
    if (event.defaultPrevented || event.metaKey || event.target.matches("input[type=search], select")) return;
    const drawings = { page: [this.curve, this.page], timeline: [this.timeline], text: [] }[this.mode];
    const drawing = drawings.find(({ svg }) => svg === event.target) ?? drawings[0];
    const zoomed = drawing?.zoom.key(event);
    if (!zoomed && (event.ctrlKey || event.altKey || !this.moves(event))) return;
    event.preventDefault();
  }

  /** Whether a key was one of the view's own. A slider of its own keeps the arrows. */
  moves(event) {
    const [at, many] = [this.token, event.shiftKey ? 10 : 1];
    const own = event.target.matches("input[type=range]:not(.opv-scrubber)");
    const keys = {
      ArrowLeft: () => this.go(at - many), ArrowRight: () => this.go(at + many),
      Home: () => this.go(0), End: () => this.go(this.data.texts.length - 1),
      p: () => this.step(-1), n: () => this.step(1), s: () => this.slow(), k: () => this.toggle(),
      "/": () => this.mode !== "timeline" && this.search.focus(),
    };
    const call = keys[event.key.length === 1 ? event.key.toLowerCase() : event.key];
    if (!call || (own && event.key.length > 1)) return false;
    call();
    return true;
  }

  close() {
    this.pause(false);
    for (const { sizes } of [this.curve, this.timeline]) sizes.disconnect();
    for (const [name, call] of Object.entries(this.changes)) this.model.off(name, call);
    this.addresses.forEach((address) => address && URL.revokeObjectURL(address));
  }
}

/** A running measurement: the page with the boxes so far, and the latency curves. */
class Live {
  constructor(model, el) {
    Object.assign(this, { model, page: new Page(this), curve: new Curve(this) });
    el.append(make("div", { class: "opv opv-mode-live", on: { keydown: (event) => event.stopPropagation() } }, this.curve.svg, this.page.svg));
    this.changes = { "change:pages": () => this.load(), "change:live": () => this.news() };
    for (const [name, call] of Object.entries(this.changes)) model.on(name, call);
    this.load();
  }
  load() {
    if (this.address) URL.revokeObjectURL(this.address);
    this.address = picture(this.model.get("pages")[0]);
    this.page.svg.style.display = this.address ? "" : "none";
    if (this.address) this.page.show({ ...this.model.get("data"), grid: [1, 1], boxes: [] }, this.address, "The page being read");
    this.news();
  }
  news() {
    const { lines = [[0, []]], count = 1, top = 1, boxes = [] } = this.model.get("live");
    const whole = lines.map(([length, points]) => points.reduce((line, [token, ms]) => ((line[token] = ms), line), Array(length)));
    this.curve.show(whole, count, top);
    if (this.address) this.page.showBoxes(boxes);
  }
  close() {
    this.curve.sizes.disconnect();
    for (const [name, call] of Object.entries(this.changes)) this.model.off(name, call);
    if (this.address) URL.revokeObjectURL(this.address);
  }
}

export default {
  render({ model, el }) {
    if (model.get("live")) {
      const live = new Live(model, el);
      return () => live.close();
    }
    // One model in several tabs: each draws its part of it, and only while it is open.
    let view = null;
    const sizes = new ResizeObserver(() => {
      const shown = el.clientWidth > 0;
      if (shown) view ??= new View(model, el, ["text", "timeline"].find((tab) => el.closest(`.opx-pane-${tab}`)) ?? "page");
      if (view && view.shown !== shown) view.see(shown);
    });
    sizes.observe(el);
    return () => {
      sizes.disconnect();
      view?.close();
    };
  },
};
