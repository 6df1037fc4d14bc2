/* One row of a record as one linked view: page, latency curve, tokens and lists share the token shown.
   `panel.py` says what the traits hold; the drawings come from drawings.js. */

const KEYS = [
  ["← →", "previous, next token; with Shift ten tokens"],
  ["Home, End", "first, last token"],
  ["P, N", "previous, next region"],
  ["S", "slowest token"],
  ["K", "play and pause"],
  ["+ − 0", "zoom in, zoom out, fit the drawing that has the focus, else the curve"],
  ["Ctrl or Alt with an arrow", "move that drawing"],
  ["/", "search the tokens; Enter and Shift+Enter go to the next and previous match"],
  ["Esc", "pause, drop the selection, then leave the panel"],
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
    [this.hits, this.now, this.range] = [[], null, null];
    this.element.replaceChildren(...stretches);
  }
  colour(colours) {
    this.spans.forEach((span, token) => {
      span.style.background = colours?.[token]?.[0] ?? "";
      span.style.color = colours?.[token]?.[1] ?? "";
    });
  }
  mark(token) {
    for (const each of [this.now, this.now?.parentElement]) each?.classList.remove("opv-now");
    this.now = this.spans[token];
    for (const each of [this.now, this.now?.parentElement]) each?.classList.add("opv-now");
    if (this.now && !this.element.matches(":hover")) scrollTo(this.element, this.now);
  }
  choose(range) {
    for (const [each, on] of [[this.range, false], [range, true]])
      if (each) for (let token = each[0]; token <= each[1]; token++) this.spans[token].classList.toggle("opv-picked", on);
    this.range = range;
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

/** The Page view. */
class View {
  constructor(model) {
    Object.assign(this, { model, peeked: null, addresses: [], playing: null, range: null, style:
      { opacity: 0.12, labels: true, crops: true, hidden: new Set() } });
    this.curve = new Curve(this);
    this.page = new Page(this);
    this.tokens = new Tokens(this);
    this.regions = new List(this, "regions", "Regions");
    this.slowest = new List(this, "slowest", "Slowest tokens");
    this.rendered = make("div", { class: "opv-rendered", tabindex: 0, role: "group", "aria-label": "The text as Markdown", on: { click: (event) => {
      const section = event.target.closest("[data-region]");
      if (section) this.goRegion(Number(section.dataset.region));
    } } });
    this.tip = make("div", { class: "opv-tip", role: "tooltip", hidden: true });
    this.build();
  }

  build() {
    this.scrubber = make("input", { type: "range", class: "opv-scrubber", min: 0, "aria-label": "Token",
      on: { input: () => this.go(Number(this.scrubber.value)) } });
    this.readout = make("p", { class: "opv-readout" });
    this.note = make("p", { class: "opv-note" });
    [this.rows, this.row] = choice("Row", [], (value) => this.set("row", Number(value)));
    [this.sheets, this.sheet] = choice("Page", [], (value) => this.set("sheet", Number(value)));
    this.search = make("input", { type: "search", placeholder: "Search the tokens", "aria-label": "Search the tokens",
      on: { input: () => this.seek(), keydown: (event) => {
        if (event.key === "Enter") this.nextHit(event.shiftKey ? -1 : 1);
      } } });
    this.count = make("span", { class: "opv-count", role: "status" });
    this.copy = button("Copy text", "Copy the text as the model wrote it", () => this.copyText());
    const [colour, colours] = choice("Colour by", [["type", "region type"], ["time", "decode time"]], (value) => this.set("color", value));
    this.colours = colours;
    const opacity = make("input", { type: "range", min: 0, max: 0.8, step: 0.04, value: this.style.opacity, "aria-label": "Opacity of the boxes",
      on: { input: () => this.restyle({ opacity: opacity.value }) } });
    this.crops = tick("Crops", true, (crops) => this.restyle({ crops }));
    this.types = make("div", { class: "opv-controls" });
    this.legends = make("div", { class: "opv-legends" });
    this.play = button("Play", "Play at recorded speed", () => this.toggle());
    const keys = make("dl", { class: "opv-keys" }, ...KEYS.flatMap(([key, what]) => [make("dt", {}, key), make("dd", {}, what)]));
    const menu = make("details", { class: "opv-menu" }, make("summary", {}, "Show"), make("div", {},
      make("div", { class: "opv-controls" }, colour, make("label", {}, "Opacity ", opacity),
        tick("Labels", true, (labels) => this.restyle({ labels })), this.crops, this.play), this.types, keys));
    this.sides = {
      curve: ["Curve", make("div", {}, this.curve.svg, make("div", { class: "opv-lists" },
        make("div", {}, make("h4", {}, "Regions"), this.regions.element),
        make("div", {}, make("h4", {}, "Slowest tokens"), this.slowest.element)))],
      tokens: ["Tokens", make("div", {}, make("div", { class: "opv-controls opv-find" }, this.search, this.count, this.copy), this.tokens.element)],
      markdown: ["Markdown", make("div", {}, this.rendered)],
    };
    this.side = new Switch("What stands beside the page", Object.entries(this.sides).map(([name, [text]]) => [name, text]), (name) => this.turn(name));
    const right = make("div", { class: "opv-right" }, make("div", { class: "opv-controls" }, this.side.element, menu),
      ...Object.values(this.sides).map(([, element]) => element));
    this.root = make("div", { class: "opv" }, this.scrubber, this.readout,
      make("div", { class: "opv-controls" }, this.rows, this.sheets), this.note,
      make("div", { class: "opv-columns" }, make("div", { class: "opv-left" }, this.page.svg, this.legends), right));
    this.turn("curve");
  }

  set(name, value) {
    if (this.model.get(name) === value) return false;
    this.model.set(name, value); // which calls what listens, in every place of this model
    this.model.save_changes();
    return true;
  }

  turn(name) {
    this.side.mark(name);
    for (const [each, [, element]] of Object.entries(this.sides)) element.hidden = each !== name;
    if (this.data) this.mark();
  }

  /** Show the row in `data`. */
  load() {
    this.pause(false);
    const data = this.model.get("data");
    this.data = data.texts?.length ? data : null;
    this.root.hidden = !this.data;
    if (!this.data) return;
    Object.assign(this, { peeked: null, range: null });
    this.style.hidden = new Set();
    this.byRegion = new Map(data.regions.map((region) => [region.region, region]));
    this.scrubber.max = data.texts.length - 1;
    this.note.textContent = data.note;
    this.fill(this.rows, this.row, data.rows, this.model.get("row"));
    this.tokens.show(data);
    this.rendered.replaceChildren(...data.rendered.map(([region, html]) => {
      const section = make("section", { "data-region": region, class: data.uncertain.regions.includes(region) ? "opv-uncertain" : "" });
      section.innerHTML = html; // of `markdown_html`, which lets no tag of the model's text through but a table's
      return section;
    }));
    this.addresses.forEach((address) => address && URL.revokeObjectURL(address));
    this.addresses = this.model.get("pages").map(picture);
    Object.assign(this.curve, { marked: null, range: null });
    this.curve.show(data.before.length ? [data.before, data.ms] : [data.ms], data.texts.length, data.top);
    this.regions.show(data.regions.map((region) => [region.region, region.line, region.first]));
    this.slowest.show(data.slowest.map((token) =>
      [token, `${duration(data.ms[token])} · token ${token + 1} · ${visible(data.texts[token])}`, token]));
    this.crops.hidden = !data.pages.some(({ grid }) => grid[0] * grid[1] > 1);
    this.types.replaceChildren(...data.kinds.map(({ label, count, colour }, kind) =>
      tick(`${label} (${count})`, true, (on) => {
        this.style.hidden[on ? "delete" : "add"](kind);
        this.restyle();
      }, `--opv-kind: ${colour}`)));
    this.seek();
    this.showPage();
  }

  fill(label, select, names, chosen) {
    select.replaceChildren(...names.map((name, value) => make("option", { value }, name)));
    select.value = chosen;
    label.hidden = names.length < 2;
  }

  showPage() {
    if (!this.data) return;
    const { pages } = this.data;
    this.shownPage = clamp(this.model.get("sheet"), 0, pages.length - 1);
    this.fill(this.sheets, this.sheet, pages.map((_, number) => `${number + 1} of ${pages.length}`), this.shownPage);
    const page = pages[this.shownPage];
    const what = `The page with ${page.boxes.length} boxes, ${page.width} by ${page.height} pixels`;
    this.page.show(page, this.addresses[this.shownPage], what);
    this.restyle();
    this.mark();
  }

  restyle(changed = {}) {
    Object.assign(this.style, changed);
    if (!this.data) return;
    const { data, style } = this;
    const { palette } = data;
    const byTime = this.model.get("color") === "time";
    this.colours.value = this.model.get("color");
    const last = palette.length - 1;
    const pick = (ms, [low, high]) => palette[clamp(Math.round(((ms - low) / (high - low || 1)) * last), 0, last)];
    if (byTime || this.timed) this.tokens.colour(byTime ? data.ms.map((ms) => (ms == null ? null : pick(ms, data.scale))) : null);
    this.timed = byTime;
    const legends = byTime ? [legend(palette, data.scale, "Decode time of a token")] : [];
    const slowest = [0, Math.max(...data.regions.map(({ region, ms }) => (region < 0 ? 0 : ms)), 0)];
    const colours = Object.fromEntries(data.regions.map(({ region, ms }) => [region, pick(ms, slowest)[0]]));
    this.page.restyle({ ...style, colours: byTime ? colours : null });
    if (byTime && slowest[1]) legends.unshift(legend(palette, slowest, "Decode time of a region"));
    if (data.uncertain.regions.length) legends.push(make("div", { class: "opv-legend opv-doubt" }, data.uncertain.legend));
    this.legends.replaceChildren(...legends);
  }

  // -- the token shown --------------------------------------------------------------------------------

  get token() {
    return this.peeked ?? clamp(this.model.get("token"), 0, this.data.texts.length - 1);
  }

  /** Move the scrubber: drawn at once, and told to the kernel. */
  go(token) {
    if (!this.data) return;
    if (this.playing) this.pause(false);
    this.peeked = null;
    const next = clamp(token, 0, this.data.texts.length - 1);
    const home = this.byRegion.get(this.data.region[next])?.page;
    if (home != null && home !== this.shownPage) this.set("sheet", home);
    if (!this.set("token", next)) this.mark();
  }

  /** Show a token while the pointer is over something of it, with its values beside the pointer. */
  peek(token, event = null, said = token === null ? "" : this.describe(token)) {
    this.tip.hidden = !said;
    if (said) {
      this.tip.textContent = said;
      const box = this.tip.offsetParent.getBoundingClientRect();
      const left = clamp(event.clientX - box.left + 14, 0, box.width - this.tip.offsetWidth - 4);
      this.tip.style.transform = `translate(${left}px, ${event.clientY - box.top + 18}px)`;
    }
    if (this.peeked === token || this.playing) return;
    this.peeked = token;
    this.mark();
  }

  /** Select the tokens that were brushed, and say what they are and cost; none without a range. */
  select(first, last) {
    this.range = last === undefined ? null : [first, last];
    this.curve.choose(this.range);
    this.tokens.choose(this.range);
    this.mark();
  }

  /** To a region's first token, unless the scrubber stands in it. */
  goRegion(region) {
    const at = this.model.get("token");
    this.go(this.data.region[at] === region ? at : (this.byRegion.get(region)?.first ?? 0));
  }

  step(way) {
    const starts = this.data.regions.map(({ first }) => first).sort((one, other) => one - other);
    const next = way > 0 ? starts.find((start) => start > this.token) : starts.findLast((start) => start < this.token);
    if (next !== undefined) this.go(next);
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

  /** What the readout says: of the brushed tokens, else of the token shown. */
  told(token, region) {
    if (!this.range) return [make("strong", {}, this.describe(token)), make("br"), this.byRegion.get(region)?.facts ?? ""];
    const [first, last] = this.range;
    const sum = (times) => times.reduce((total, ms) => total + (ms ?? 0), 0);
    const [own, all] = [sum(this.data.ms.slice(first, last + 1)), sum(this.data.ms)];
    const said = `Tokens ${first + 1} to ${last + 1}: ${last - first + 1} tokens, ${duration(own)}, ${digits((100 * own) / (all || 1))} % of the decode`;
    const text = this.data.texts.slice(first, last + 1).join("");
    return [make("strong", {}, said), make("br"), visible(text.length > 160 ? `${text.slice(0, 159)}…` : text)];
  }

  mark() {
    if (!this.data) return;
    const { data, token } = this;
    const region = data.region[token];
    this.scrubber.value = token;
    this.scrubber.setAttribute("aria-valuetext", this.describe(token));
    this.readout.replaceChildren(...this.told(token, region));
    this.tokens.mark(token);
    for (const section of this.rendered.children) {
      const own = Number(section.dataset.region) === region;
      if (own && !section.classList.contains("opv-now") && !this.rendered.matches(":hover")) scrollTo(this.rendered, section);
      section.classList.toggle("opv-now", own);
    }
    let [first, end] = [token, token + 1];
    while (first > 0 && data.region[first - 1] === region) first--;
    while (end < data.texts.length && data.region[end] === region) end++;
    if (this.peeked === null && this.curve.window.width < this.curve.window.size) {
      this.curve.window.show(token, token + 1);
      this.curve.redraw();
    }
    this.curve.mark(token, first, end);
    this.page.mark(region, new Set(this.range ? data.region.slice(this.range[0], this.range[1] + 1) : []));
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

  copyText() {
    copied(this.copy, this.data.texts.join(""), this.tokens.element);
  }

  // -- keys -------------------------------------------------------------------------------------------

  /** Whether a key was one of the view's own. A slider of its own keeps the arrows. */
  key(event) {
    if (!this.data || event.metaKey || event.target.matches("input:not([type=range], [type=checkbox]), select, [role=tab], [role=radio]")) return false;
    const drawing = [this.curve, this.page].find(({ svg }) => svg === event.target) ?? this.curve;
    if (drawing.zoom.key(event)) return true;
    if (event.ctrlKey || event.altKey) return false;
    const [at, many] = [this.token, event.shiftKey ? 10 : 1];
    const own = event.target.matches("input[type=range]:not(.opv-scrubber)");
    const keys = {
      ArrowLeft: () => this.go(at - many), ArrowRight: () => this.go(at + many),
      Home: () => this.go(0), End: () => this.go(this.data.texts.length - 1),
      p: () => this.step(-1), n: () => this.step(1), k: () => this.toggle(),
      s: () => this.data.slowest.length && this.go(this.data.slowest[0]),
      "/": () => (this.turn("tokens"), this.search.focus()),
    };
    const call = keys[event.key.length === 1 ? event.key.toLowerCase() : event.key];
    if (!call || (own && event.key.length > 1)) return false;
    call();
    return true;
  }

  /** Whether there was something to leave: playing, a selection, the search. */
  escape(event) {
    const [playing, range, searching] = [this.playing, this.range, event.target === this.search];
    this.pause();
    if (range) this.select();
    if (searching) this.scrubber.focus();
    return Boolean(playing || range || searching);
  }

  close() {
    this.pause(false);
    this.curve.close();
    this.addresses.forEach((address) => address && URL.revokeObjectURL(address));
  }
}
