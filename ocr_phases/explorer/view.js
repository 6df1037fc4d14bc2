/* One row of a record as one linked view: page, latency curve, tokens and lists share the token shown.
   `panel.py` says what the traits hold; the drawings come from drawings.js, events from panel.js. */

const list = (name, label) => `<label>${label}<select class="opv-${name}" size="6"></select></label>`;
const BOX = 'tabindex="0" role="group" aria-label';
const viewHtml = () => `
  <input type="range" class="opv-scrubber" min="0" aria-label="Token"><p class="opv-readout"></p>
  <div class="opv-controls"><label class="opv-rows">Row <select data-trait="row"></select></label>
    <label class="opv-sheets">Page <select data-trait="sheet"></select></label></div>
  <p class="opv-note"></p>
  <div class="opv-columns"><div class="opv-left"></div><div>
    <div class="opv-controls">${tabs("data-side", "Beside the page", ["Curve", "Tokens", "Markdown"])}
      <label>Colours <select class="opv-colours" data-trait="color"><option>type<option>time</select></label>
      <button class="opv-play">Play</button>
      <details class="opv-keys"><summary>Keys</summary><p>← → token, with Shift ten; P N region;
        S slowest; K play; + − 0 zoom of the page; / search; Esc leaves</p></details></div>
    <div data-shows="curve">
      <div class="opv-lists">${list("regions", "Regions")}${list("slowest", "Slowest tokens")}</div>
      <div class="opv-stream"><pre class="opv-text" tabindex="0" aria-label="The text"></pre></div></div>
    <div data-shows="tokens"><div class="opv-controls">
      <input type="search" class="opv-search" placeholder="Search the tokens" aria-label="Search the tokens">
      <span class="opv-found" role="status"></span></div>
      <pre class="opv-tokens" ${BOX}="The tokens as written"></pre></div>
    <div class="opv-rendered" data-shows="markdown" ${BOX}="The text as Markdown"></div></div></div>`;

/** A bar of times in the colours of `palette`. */
function legend(palette, [low, high], what) {
  const style = `background: linear-gradient(to right, ${palette.map(([colour]) => colour).join(", ")})`;
  const label = `${what}: light is ${duration(low)}, dark ${duration(high)}`;
  const bar = [h("span", duration(low)), h("span.opv-bar", { style }), h("span", duration(high))];
  return h("div.opv-legend", { role: "img", "aria-label": label }, what, ...bar);
}

/** The Page view. */
class View {
  constructor(model) {
    Object.assign(this, { model, byRegion: new Map(), peeked: null, playing: null, range: null });
    [this.curve, this.page, this.legends] = [new Curve(), new Page(), h("div.opv-legends")];
    this.root = build(this, h("div.opv"), viewHtml());
    this.left.append(this.page.root, this.legends);
    this.lists.before(this.curve.root);
    this.turn("curve");
  }

  set(name, value) {
    if (this.model.get(name) === value) return;
    this.model.set(name, value); // which calls what listens, in every place of this model
    this.model.save_changes();
  }

  turn(name) {
    check(this.tabs, name);
    for (const each of this.root.querySelectorAll("[data-shows]")) each.hidden = each.dataset.shows !== name;
    this.mark();
  }

  /** Show the row in `data`. */
  load() {
    this.pause();
    this.watched = "";
    this.root.classList.remove("opv-live");
    const data = this.model.get("data");
    this.data = data.texts?.length ? data : null;
    this.root.hidden = !this.data;
    if (!this.data) return;
    const byRegion = new Map(data.regions.map((region) => [region.region, region]));
    Object.assign(this, { peeked: null, range: null, byRegion });
    this.scrubber.max = data.texts.length - 1;
    this.note.textContent = data.note;
    this.fill(this.rows, data.rows.map((name, at) => `${at + 1}: ${name}`), this.model.get("row"));
    this.showText(data);
    const line = (times) => times.map((ms, token) => [token, ms]).filter(([, ms]) => ms != null);
    const lines = [data.before, data.ms].filter((times) => times.length).map(line);
    this.curve.show(lines, data.texts.length, data.top);
    const regions = data.regions.map(({ region, line, first }) => [region, line, { "data-token": first }]);
    this.regions.replaceChildren(...regions.map(option));
    const slow = (token) => `${duration(data.ms[token])} token ${token + 1} ${plain(data.texts[token])}`;
    this.slowest.replaceChildren(...data.slowest.map((at) => option([at, slow(at), { "data-token": at }])));
    this.showPage();
  }

  /** Show a running measurement in place of the row, until `load`. */
  watch({ text, lines, count, top, boxes, size }) {
    const href = this.model.get("live_page");
    if (this.watched === href) this.page.showBoxes(boxes);
    else this.page.show({ size, boxes, href });
    if (!this.watched) this.turn("curve");
    [this.data, this.watched, this.root.hidden, this.text.textContent] = [null, href, false, text];
    this.root.classList.add("opv-live");
    this.curve.show(lines, count, top);
  }

  /** The tokens in stretches of one region, and the Markdown of each region. */
  showText({ texts, region, rendered, uncertain }) {
    const token = (text, at) => h("span.opv-token", { "data-token": at }, text.replaceAll("\n", "↵\n"));
    this.spans = texts.map(token);
    const stretches = [];
    this.spans.forEach((span, at) => {
      if (region[at] !== region[at - 1]) stretches.push(h("span.opv-stretch", { "data-region": region[at] }));
      stretches.at(-1).append(span);
    });
    this.tokens.replaceChildren(...stretches);
    this.rendered.replaceChildren(...rendered.map(([number, html]) => {
      const name = uncertain.regions.includes(number) ? "section.opv-uncertain" : "section";
      const section = h(name, { "data-region": number });
      section.innerHTML = html; // of `markdown_html`: no tag of the model's text gets through but a table's
      return section;
    }));
  }

  fill(label, names, chosen) {
    label.control.replaceChildren(...names.map((name, place) => option([place, name])));
    label.control.value = chosen;
    label.hidden = names.length < 2;
  }

  showPage() {
    if (!this.data) return;
    const { pages } = this.data;
    const sheet = (this.sheetShown = clamp(this.model.get("sheet"), 0, pages.length - 1));
    this.fill(this.sheets, pages.map((_, number) => `${number + 1} of ${pages.length}`), sheet);
    this.page.show(pages[sheet]);
    this.restyle();
    this.mark();
  }

  restyle() {
    if (!this.data) return;
    const { regions, palette, scale, ms, uncertain } = this.data;
    const byTime = (this.colours.value = this.model.get("color")) === "time";
    const pick = (time, [low, high]) => {
      const place = ((time - low) / (high - low || 1)) * (palette.length - 1);
      return byTime && time != null ? palette[clamp(Math.round(place), 0, palette.length - 1)] : ["", ""];
    };
    this.spans.forEach(({ style }, token) => ([style.background, style.color] = pick(ms[token], scale)));
    const slowest = [0, Math.max(0, ...regions.filter(({ region }) => region >= 0).map((each) => each.ms))];
    const colours = Object.fromEntries(regions.map((region) => [region.region, pick(region.ms, slowest)[0]]));
    this.page.restyle(byTime ? colours : null);
    const legends = [];
    if (byTime && slowest[1]) legends.push(legend(palette, slowest, "Decode time of a region"));
    if (byTime) legends.push(legend(palette, scale, "Decode time of a token"));
    if (uncertain.regions.length) legends.push(h("div.opv-legend.opv-doubt", uncertain.legend));
    this.legends.replaceChildren(...legends);
  }

  get token() {
    return this.peeked ?? clamp(this.model.get("token"), 0, this.data.texts.length - 1);
  }

  /** Move the scrubber: drawn at once, and told to the kernel. */
  go(token, playing = false) {
    if (!this.data) return;
    if (!playing) this.pause();
    this.peeked = null;
    const next = clamp(token, 0, this.data.texts.length - 1);
    this.set("sheet", this.byRegion.get(this.data.region[next])?.page ?? this.sheetShown);
    this.set("token", next);
    this.mark();
  }

  /** Select the tokens that were brushed, and say what they are and cost; null for none. */
  select(range) {
    this.range = range;
    const [first, end] = range ?? [0, 0];
    this.spans.forEach((span, token) => span.classList.toggle("opv-picked", token >= first && token < end));
    this.curve.span(this.curve.chosen, first, end);
    this.mark();
  }

  step(way) {
    const starts = this.data.regions.map(({ first }) => first).sort((one, other) => one - other);
    const beyond = starts.filter((start) => way * (start - this.token) > 0);
    if (beyond.length) this.go(beyond.at(way > 0 ? 0 : -1));
  }

  describe(token) {
    const { texts, steps, ms, cache, probability, region } = this.data;
    const known = (value, words) => (value == null ? [] : [words(value)]);
    const said = texts[token] ? `“${plain(texts[token])}”` : "no text";
    return [`Token ${token + 1} of ${texts.length}`, said,
      ...known(ms[token], duration),
      steps[token] == null ? "from the prefill" : `decode step ${steps[token]}`,
      ...known(cache[token], (length) => `cache length ${length}`),
      ...known(probability[token], (part) => `probability ${Math.round(100 * part)} %`),
      this.byRegion.get(region[token])?.name ?? "preamble"].join(" · ");
  }

  /** What the readout says: of the brushed tokens, else of the token shown. */
  told(token, region) {
    if (!this.range) return [this.describe(token), this.byRegion.get(region)?.facts ?? ""];
    const { ms, texts } = this.data;
    const [first, end] = this.range;
    const own = sum(ms.slice(first, end));
    const text = texts.slice(first, end).join("");
    const share = `${digits((100 * own) / (sum(ms) || 1))} % of the decode`;
    return [`Tokens ${first + 1} to ${end}: ${end - first} tokens, ${duration(own)}, ${share}`,
      `“${plain(text.length > 160 ? `${text.slice(0, 159)}…` : text)}”`];
  }

  mark() {
    if (!this.data) return;
    const { data, token, range } = this;
    const region = data.region[token];
    this.scrubber.value = token;
    this.scrubber.setAttribute("aria-valuetext", this.describe(token));
    const [said, more] = this.told(token, region);
    this.readout.replaceChildren(h("strong", said), h("br"), more);
    const span = this.spans[token];
    const section = this.rendered.querySelector(`[data-region="${region}"]`);
    this.lit?.forEach((each) => each.classList.remove("opv-now"));
    this.lit = [span, span.parentElement, section].filter(Boolean);
    this.lit.forEach((each) => each.classList.add("opv-now"));
    for (const [box, child] of [[this.tokens, span], [this.rendered, section]]) {
      if (child && !box.matches(":hover")) reveal(box, child);
    }
    const { firstChild, lastChild } = span.parentElement;
    const [first, last] = [firstChild, lastChild].map((each) => Number(each.dataset.token));
    this.curve.mark(token, data.ms[token], first, last + 1);
    this.page.mark(region, range ? data.region.slice(...range) : []);
    [this.regions.value, this.slowest.value] = [region, token];
  }

  /** Show the tokens one after the other, each for as long as it took. */
  toggle() {
    if (this.playing) return this.pause();
    const { ms } = this.data;
    const last = ms.length - 1;
    const [start, began] = [this.token === last ? 0 : this.token, performance.now()];
    const frame = (now) => {
      let [token, left] = [start, now - began];
      while (token < last && (left -= ms[token + 1] ?? 0) >= 0) token++;
      this.go(token, true);
      if (token === last) this.pause();
      else this.playing = requestAnimationFrame(frame);
    };
    this.play.textContent = "Pause";
    this.playing = requestAnimationFrame(frame);
  }

  pause() {
    cancelAnimationFrame(this.playing);
    this.playing = null;
    this.play.textContent = "Play";
  }

  /** Go to the next token, or the one before, where the words sought begin; from the end on to the start. */
  seek(way) {
    const [words, text] = [this.search.value, this.data.texts.join("")].map((each) => each.toLowerCase());
    let length = 0;
    const starts = this.data.texts.map((token) => (length += token.length) - token.length);
    const find = (from) => (way > 0 ? text.indexOf(words, from) : text.lastIndexOf(words, from));
    const from = starts[this.token] + way;
    const place = Math.max(from < 0 ? -1 : find(from), -1) < 0 ? find(way > 0 ? 0 : length) : find(from);
    this.found.textContent = place < 0 ? "not found" : "";
    if (place >= 0) this.go(starts.findLastIndex((start) => start <= place));
  }

  /** The token for which what is under the pointer stands; null for none. */
  under(event) {
    if (this.curve.svg.contains(event.target)) return this.curve.tokenAt(event);
    const { token, region } = event.target.closest?.("[data-token], [data-region]")?.dataset ?? {};
    if (token ?? region) return Number(token ?? this.byRegion.get(Number(region))?.first ?? 0);
    return null;
  }

  press(event) {
    this.pressed = event;
    this.held = [this.curve.curve, this.page.root].find((box) => box.contains(event.target));
    this.dragged = false; // the click at the end of a drag is none
  }

  /** Show a token while the pointer is over something of it; a drag brushes the curve or moves the page. */
  move(event) {
    const { pressed, held } = this;
    if (!this.data || this.playing || (event.buttons && !held)) return;
    if (!event.buttons) return this.peek(this.root.contains(event.target) ? this.under(event) : null);
    const way = Math.hypot(event.clientX - pressed.clientX, event.clientY - pressed.clientY);
    if (!this.dragged && way < 5) return;
    this.dragged = true;
    held.setPointerCapture(event.pointerId);
    if (held === this.page.root) return held.scrollBy(-event.movementX, -event.movementY);
    const [one, other] = [pressed, event].map((each) => this.curve.tokenAt(each));
    this.select([Math.min(one, other), Math.max(one, other) + 1]);
  }

  peek(token) {
    if (token === this.peeked) return;
    this.peeked = token;
    this.mark();
  }

  click(event) {
    if (event.target === this.play) return this.toggle();
    const token = this.dragged ? null : this.under(event);
    if (token !== null) this.go(token);
  }

  /** Without Ctrl the notebook scrolls, until the page was clicked. */
  wheel(event) {
    const { root: box } = this.page;
    const { target, ctrlKey, metaKey, clientX, clientY, deltaY } = event;
    if (!box.contains(target) || !(ctrlKey || metaKey || document.activeElement === box)) return;
    event.preventDefault();
    const { left, top, width, height } = box.getBoundingClientRect();
    this.page.magnify(deltaY < 0 ? 1.25 : 0.8, (clientX - left) / width, (clientY - top) / height);
  }

  input(target) {
    if (target === this.scrubber) this.go(Number(target.value));
    if (target.matches("select[size]")) this.go(Number(target.selectedOptions[0].dataset.token));
  }

  /** Whether a key was one of the view's own. What is typed into, and lists, keep theirs. */
  key({ target, key, shiftKey, ctrlKey, altKey, metaKey }) {
    if (!this.data || ctrlKey || altKey || metaKey) return false;
    const [at, many, zoom] = [this.token, shiftKey ? 10 : 1, (factor) => () => this.page.magnify(factor)];
    const calls = {
      arrowleft: () => this.go(at - many), arrowright: () => this.go(at + many),
      home: () => this.go(0), end: () => this.go(this.data.texts.length - 1),
      p: () => this.step(-1), n: () => this.step(1), k: () => this.toggle(),
      s: () => this.go(this.data.slowest[0] ?? at), "/": () => (this.turn("tokens"), this.search.focus()),
      "+": zoom(1.5), "=": zoom(1.5), "-": zoom(1 / 1.5), 0: zoom(0),
    };
    const typed = target.matches("input:not([type=range], [type=checkbox]), select");
    const sought = target === this.search && key === "Enter" && (() => this.seek(shiftKey ? -1 : 1));
    const call = typed ? sought : calls[key.toLowerCase()];
    if (call) call();
    return Boolean(call);
  }

  /** Whether there was something to leave: playing, a selection, the search. */
  escape({ target }) {
    const found = this.playing || this.range || target === this.search;
    this.pause();
    if (this.range) this.select(null);
    if (target === this.search) this.scrubber.focus();
    return Boolean(found);
  }
}
