/* One row of a record as one linked view: page, latency curve, tokens and lists share the token shown.
   `panel.py` says what the traits hold; the drawings come from drawings.js. */

const KEYS = "← → token, with Shift ten; P N region; S slowest; K play; + − 0 zoom; Ctrl with an arrow moves; / search; Esc leaves";

/** A bar of times in the colours of `palette`. */
function legend(palette, [low, high], what) {
  const style = `background: linear-gradient(to right, ${palette.map(([colour]) => colour).join(", ")})`;
  const said = { class: "opv-legend", role: "img", "aria-label": `${what}: light is ${duration(low)}, dark ${duration(high)}` };
  return h("div", said, what, h("span", {}, duration(low)), h("span", { class: "opv-bar", style }), h("span", {}, duration(high)));
}

/** The Page view. */
class View {
  constructor(model) {
    Object.assign(this, { model, peeked: null, addresses: [], playing: null, range: null, hidden: new Set(), hits: [] });
    [this.curve, this.page] = [new Curve(this), new Page()];
    const box = (tag, name, label, more = {}) => h(tag, { class: `opv-${name}`, tabindex: 0, "aria-label": label, ...more });
    this.tokens = box("pre", "tokens", "The tokens as written", { role: "group" });
    this.rendered = box("div", "rendered", "The text as Markdown", { role: "group" });
    this.regions = box("select", "regions", "Regions", { size: 6 });
    this.slowest = box("select", "slowest", "Slowest tokens", { size: 6 });
    const number = (name) => ({ target }) => target.closest?.(`[data-${name}]`)?.dataset[name];
    const first = (region) => (region === undefined ? null : this.byRegion.get(Number(region))?.first ?? 0);
    this.link(this.curve.svg, (event) => this.curve.tokenAt(event));
    this.link(this.page.svg, (event) => first(number("region")(event)));
    this.link(this.rendered, (event) => first(number("region")(event)));
    for (const each of [this.tokens, this.regions, this.slowest]) this.link(each, (event) => number("token")(event) ?? null);
    for (const list of [this.regions, this.slowest]) list.oninput = () => this.go(Number(list.selectedOptions[0].dataset.token));
    this.build();
  }

  /** Show a token while the pointer is over something of it, and go there by a click. */
  link(element, token) {
    const found = (event) => (token(event) === null ? null : Number(token(event)));
    element.addEventListener("pointermove", (event) => event.buttons || this.peek(found(event)));
    element.addEventListener("pointerleave", () => this.peek(null));
    element.addEventListener("click", (event) => found(event) !== null && this.go(found(event)));
  }

  build() {
    this.scrubber = h("input", { type: "range", class: "opv-scrubber", min: 0, "aria-label": "Token", oninput: () => this.go(Number(this.scrubber.value)) });
    [this.readout, this.note] = [h("p", { class: "opv-readout" }), h("p", { class: "opv-note" })];
    const choice = (label, trait, pairs = []) => {
      const select = h("select", { onchange: () => this.set(trait, trait === "color" ? select.value : Number(select.value)) }, ...options(pairs));
      return [h("label", {}, `${label} `, select), select];
    };
    [this.rows, this.row] = choice("Row", "row");
    [this.sheets, this.sheet] = choice("Page", "sheet");
    const [colour, colours] = choice("Colour by", "color", [["type", "region type"], ["time", "decode time"]]);
    this.colours = colours;
    const { box } = this.page;
    const opacity = h("input", { type: "range", min: 0, max: 0.8, step: 0.04, value: 0.12, oninput: () => box.style.setProperty("--opv-fill", opacity.value) });
    this.crops = tick("Crops", true, (on) => box.classList.toggle("opv-uncropped", !on));
    const labels = tick("Labels", true, (on) => box.classList.toggle("opv-unlabelled", !on));
    this.play = button("Play", "Play at recorded speed", () => this.toggle());
    [this.types, this.legends] = [h("div", { class: "opv-controls" }), h("div", { class: "opv-legends" })];
    const menu = h("details", { class: "opv-menu" }, h("summary", {}, "Show"), h("div", {},
      h("div", { class: "opv-controls" }, colour, h("label", {}, "Opacity ", opacity), labels, this.crops, this.play), this.types, h("p", {}, `Keys: ${KEYS}`)));
    this.search = h("input", { type: "search", placeholder: "Search the tokens", "aria-label": "Search the tokens", oninput: () => this.seek(),
      onkeydown: (event) => event.key === "Enter" && this.nextHit(event.shiftKey ? -1 : 1) });
    this.count = h("span", { class: "opv-count", role: "status" });
    const list = (title, select) => h("div", {}, h("h4", {}, title), select);
    this.sides = {
      curve: h("div", {}, this.curve.root, h("div", { class: "opv-lists" }, list("Regions", this.regions), list("Slowest tokens", this.slowest))),
      tokens: h("div", {}, h("div", { class: "opv-controls" }, this.search, this.count), this.tokens),
      markdown: this.rendered,
    };
    this.side = tabs("What stands beside the page", [["curve", "Curve"], ["tokens", "Tokens"], ["markdown", "Markdown"]], (name) => this.turn(name));
    this.root = h("div", { class: "opv" }, this.scrubber, this.readout, h("div", { class: "opv-controls" }, this.rows, this.sheets), this.note,
      h("div", { class: "opv-columns" }, h("div", {}, box, this.legends),
        h("div", {}, h("div", { class: "opv-controls" }, this.side, menu), ...Object.values(this.sides))));
    this.turn("curve");
  }

  set(name, value) {
    if (this.model.get(name) === value) return;
    this.model.set(name, value); // which calls what listens, in every place of this model
    this.model.save_changes();
  }

  turn(name) {
    check(this.side, name);
    for (const [each, element] of Object.entries(this.sides)) element.hidden = each !== name;
    this.mark();
  }

  /** Show the row in `data`. */
  load() {
    this.pause();
    const data = this.model.get("data");
    this.data = data.texts?.length ? data : null;
    this.root.hidden = !this.data;
    if (!this.data) return;
    Object.assign(this, { peeked: null, range: null, hidden: new Set(), byRegion: new Map(data.regions.map((region) => [region.region, region])) });
    this.scrubber.max = data.texts.length - 1;
    this.note.textContent = data.note;
    this.fill(this.rows, this.row, data.rows.map((name, place) => `${place + 1}: ${name}`), this.model.get("row"));
    this.spans = data.texts.map((text, token) => h("span", { class: "opv-token", "data-token": token }, text.replaceAll("\n", "↵\n")));
    const stretches = [];
    data.region.forEach((region, token) => {
      if (region !== data.region[token - 1]) stretches.push(h("span", { class: "opv-stretch", "data-region": region }));
      stretches.at(-1).append(this.spans[token]);
    });
    this.tokens.replaceChildren(...stretches);
    this.rendered.replaceChildren(...data.rendered.map(([region, html]) => {
      const section = h("section", { "data-region": region, class: data.uncertain.regions.includes(region) ? "opv-uncertain" : "" });
      section.innerHTML = html; // of `markdown_html`, which lets no tag of the model's text through but a table's
      return section;
    }));
    this.close();
    this.addresses = this.model.get("pages").map(picture);
    const line = (times) => times.map((ms, token) => [token, ms]).filter(([, ms]) => ms != null);
    this.curve.show([data.before, data.ms].filter((times) => times.length).map(line), data.texts.length, data.top);
    this.regions.replaceChildren(...data.regions.map(({ region, line, first }) => h("option", { value: region, "data-token": first }, line)));
    const told = (token) => `${duration(data.ms[token])} token ${token + 1} ${visible(data.texts[token])}`;
    this.slowest.replaceChildren(...data.slowest.map((token) => h("option", { value: token, "data-token": token }, told(token))));
    this.crops.hidden = !data.pages.some(({ grid }) => grid[0] * grid[1] > 1);
    this.types.replaceChildren(...data.kinds.map(([label, count, colour]) => tick(`${label} (${count})`, true, (on) => {
      this.hidden[on ? "delete" : "add"](label);
      this.restyle();
    }, `--opv-kind: ${colour}`)));
    this.seek();
    this.showPage();
  }

  fill(label, select, names, chosen) {
    select.replaceChildren(...options(names.map((name, place) => [place, name])));
    select.value = chosen;
    label.hidden = names.length < 2;
  }

  showPage() {
    if (!this.data) return;
    const { pages } = this.data;
    this.sheetShown = clamp(this.model.get("sheet"), 0, pages.length - 1);
    this.fill(this.sheets, this.sheet, pages.map((_, number) => `${number + 1} of ${pages.length}`), this.sheetShown);
    const page = pages[this.sheetShown];
    const what = `The page with ${page.boxes.length} boxes, ${page.size.join(" by ")} pixels`;
    this.page.show(page, this.addresses[this.sheetShown], what, this.byRegion);
    this.restyle();
    this.mark();
  }

  restyle() {
    if (!this.data) return;
    const { regions, palette, scale, ms, uncertain } = this.data;
    const byTime = (this.colours.value = this.model.get("color")) === "time";
    const last = palette.length - 1;
    const pick = (time, [low, high]) => (time == null ? ["", ""] : palette[clamp(Math.round(((time - low) / (high - low || 1)) * last), 0, last)]);
    this.spans.forEach((span, token) => ([span.style.background, span.style.color] = byTime ? pick(ms[token], scale) : ["", ""]));
    const slowest = [0, Math.max(0, ...regions.filter(({ region }) => region >= 0).map((region) => region.ms))];
    const colours = Object.fromEntries(regions.map((region) => [region.region, pick(region.ms, slowest)[0]]));
    this.page.restyle(byTime ? colours : null, this.hidden);
    const legends = byTime ? [legend(palette, scale, "Decode time of a token")] : [];
    if (byTime && slowest[1]) legends.unshift(legend(palette, slowest, "Decode time of a region"));
    if (uncertain.regions.length) legends.push(h("div", { class: "opv-legend opv-doubt" }, uncertain.legend));
    this.legends.replaceChildren(...legends);
  }

  // -- the token shown --------------------------------------------------------------------------------

  get token() {
    return this.peeked ?? clamp(this.model.get("token"), 0, this.data.texts.length - 1);
  }

  /** Move the scrubber: drawn at once, and told to the kernel. */
  go(token, playing = null) {
    if (!this.data) return;
    if (playing === null) this.pause();
    this.peeked = null;
    const next = clamp(token, 0, this.data.texts.length - 1);
    this.set("sheet", this.byRegion.get(this.data.region[next])?.page ?? this.sheetShown);
    this.set("token", next);
    this.mark();
  }

  peek(token) {
    if (this.peeked === token || this.playing) return;
    this.peeked = token;
    this.mark();
  }

  /** Select the tokens that were brushed, and say what they are and cost; null for none. */
  select(range) {
    const toggle = (on) => this.range && this.spans.slice(this.range[0], this.range[1] + 1).forEach((span) => span.classList.toggle("opv-picked", on));
    toggle(false);
    this.range = range;
    toggle(true);
    this.curve.span(this.curve.chosen, ...(range ? [range[0], range[1] + 1] : [0, 0]));
    this.mark();
  }

  step(way) {
    const starts = this.data.regions.map(({ first }) => first).sort((one, other) => one - other);
    const next = way > 0 ? starts.find((start) => start > this.token) : starts.findLast((start) => start < this.token);
    if (next !== undefined) this.go(next);
  }

  describe(token) {
    const { texts, steps, ms, cache, probability, region } = this.data;
    const parts = [`Token ${token + 1} of ${texts.length}`, visible(texts[token])];
    if (ms[token] != null) parts.push(duration(ms[token]));
    parts.push(steps[token] == null ? "from the prefill" : `decode step ${steps[token]}`);
    if (cache[token] != null) parts.push(`cache length ${cache[token]}`);
    if (probability[token] != null) parts.push(`probability ${Math.round(100 * probability[token])} %`);
    return [...parts, this.byRegion.get(region[token])?.name ?? "preamble"].join(" · ");
  }

  /** What the readout says: of the brushed tokens, else of the token shown. */
  told(token, region) {
    if (!this.range) return [this.describe(token), this.byRegion.get(region)?.facts ?? ""];
    const [first, end] = [this.range[0], this.range[1] + 1];
    const sum = (times) => times.reduce((total, ms) => total + (ms ?? 0), 0);
    const own = sum(this.data.ms.slice(first, end));
    const text = this.data.texts.slice(first, end).join("");
    const share = digits((100 * own) / (sum(this.data.ms) || 1));
    return [`Tokens ${first + 1} to ${end}: ${end - first} tokens, ${duration(own)}, ${share} % of the decode`,
      visible(text.length > 160 ? `${text.slice(0, 159)}…` : text)];
  }

  mark() {
    if (!this.data) return;
    const { data, token } = this;
    const region = data.region[token];
    this.scrubber.value = token;
    this.scrubber.setAttribute("aria-valuetext", this.describe(token));
    const [said, more] = this.told(token, region);
    this.readout.replaceChildren(h("strong", {}, said), h("br"), more);
    const span = this.spans[token];
    const section = [...this.rendered.children].find((each) => Number(each.dataset.region) === region);
    this.lit?.forEach((each) => each.classList.remove("opv-now"));
    this.lit = [span, span.parentElement, section].filter(Boolean);
    this.lit.forEach((each) => each.classList.add("opv-now"));
    for (const [box, child] of [[this.tokens, span], [this.rendered, section]]) if (child && !box.matches(":hover")) reveal(box, child);
    let [first, end] = [token, token + 1];
    while (first > 0 && data.region[first - 1] === region) first--;
    while (end < data.texts.length && data.region[end] === region) end++;
    this.curve.mark(token, data.ms[token], first, end);
    this.page.mark(region, new Set(this.range ? data.region.slice(this.range[0], this.range[1] + 1) : []));
    this.regions.value = region;
    this.slowest.value = token;
  }

  // -- playing ----------------------------------------------------------------------------------------

  toggle() {
    if (this.playing) return this.pause();
    const { ms } = this.data;
    const [start, began] = [this.token === ms.length - 1 ? 0 : this.token, performance.now()];
    const frame = (now) => {
      let [token, left] = [start, now - began];
      while (token < ms.length - 1 && (left -= ms[token + 1] ?? 0) >= 0) token++;
      this.playing = requestAnimationFrame(frame);
      this.go(token, true);
      if (token === ms.length - 1) this.pause();
    };
    this.play.textContent = "Pause";
    this.playing = requestAnimationFrame(frame);
  }

  pause() {
    cancelAnimationFrame(this.playing);
    this.playing = null;
    this.play.textContent = "Play";
  }

  // -- text -------------------------------------------------------------------------------------------

  /** Mark the tokens that hold a match; `hits` are the first and the last of each. */
  seek() {
    for (const span of this.tokens.querySelectorAll(".opv-hit")) span.classList.remove("opv-hit");
    const words = this.search.value.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
    const token = this.data.texts.flatMap((text, place) => Array(text.length).fill(place)); // of each character
    const matches = words ? [...this.data.texts.join("").matchAll(new RegExp(words, "gi"))] : [];
    this.hits = matches.map(({ index, 0: { length } }) => [token[index], token[index + length - 1]]);
    for (const [first, last] of this.hits) this.spans.slice(first, last + 1).forEach((span) => span.classList.add("opv-hit"));
    [this.hit, this.count.textContent] = [-1, words && `${this.hits.length} found`];
  }

  nextHit(way) {
    const { length } = this.hits;
    if (!length) return;
    this.hit = (Math.max(this.hit, way < 0 ? 0 : -1) + way + length) % length;
    this.count.textContent = `${this.hit + 1} of ${length}`;
    this.go(this.hits[this.hit][0]);
  }

  // -- keys -------------------------------------------------------------------------------------------

  /** Whether a key was one of the view's own. What is typed into, and other sliders, keep theirs. */
  key(event) {
    const { target } = event;
    if (!this.data || event.metaKey || target.matches("input:not([type=range], [type=checkbox]), select")) return false;
    const drawing = target === this.page.box ? this.page : this.curve;
    if (drawing.key(event)) return true;
    if (event.ctrlKey || event.altKey) return false;
    const [at, many] = [this.token, event.shiftKey ? 10 : 1];
    const keys = {
      ArrowLeft: () => this.go(at - many), ArrowRight: () => this.go(at + many),
      Home: () => this.go(0), End: () => this.go(this.data.texts.length - 1),
      p: () => this.step(-1), n: () => this.step(1), k: () => this.toggle(),
      s: () => this.data.slowest.length && this.go(this.data.slowest[0]),
      "/": () => (this.turn("tokens"), this.search.focus()),
    };
    const call = keys[event.key.length === 1 ? event.key.toLowerCase() : event.key];
    if (!call || (event.key.length > 1 && target.matches("[type=range]") && target !== this.scrubber)) return false;
    call();
    return true;
  }

  /** Whether there was something to leave: playing, a selection, the search. */
  escape({ target }) {
    const found = this.playing || this.range || target === this.search;
    this.pause();
    if (this.range) this.select(null);
    if (target === this.search) this.scrubber.focus();
    return Boolean(found);
  }

  close() {
    cancelAnimationFrame(this.playing);
    this.addresses.forEach((address) => address && URL.revokeObjectURL(address));
  }
}
