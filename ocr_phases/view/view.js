/* One row of a record as one linked view: page, latency curve, tokens and lists share the token shown.
   `panel.py` says what the traits hold; the drawings come from drawings.js, events from panel.js. */

const viewHtml = () => `<section class="opv-view opv" data-pane="page" aria-label="page">
  <input type="range" class="opv-scrubber" min="0" aria-label="Token"><p class="opv-readout"></p>
  <div class="opv-controls"><label class="opv-rows">Row <select data-trait="row"></select></label>
    <label class="opv-sheets">Page <select data-trait="sheet"></select></label></div>
  <p class="opv-note"></p>
  <div class="opv-columns"><div class="opv-left"><div class="opv-legends"></div></div><div class="opv-beside">
    <div class="opv-controls">
      ${tabs("opv-side", "data-side", "Beside the page", ["Curve", "Tokens", "Markdown"])}
      <label>Colours <select class="opv-colours" data-trait="color"><option>type<option>time</select></label>
      <button class="opv-play">Play</button>
      <details class="opv-keys"><summary>Keys</summary><p>← → token, with Shift ten; P N region;
        S slowest; K play; + − 0 zoom of the page; Esc leaves</p></details></div>
    <div data-pane="curve">
      <div class="opv-lists"><label>Regions<select class="opv-regions" size="6"></select></label>
        <label>Slowest tokens<select class="opv-slowest" size="6"></select></label></div>
      <div class="opv-stream"><pre class="opv-text" tabindex="0" aria-label="The text"></pre></div></div>
    <pre class="opv-tokens" data-pane="tokens" tabindex="0" aria-label="The tokens as written"></pre>
    <div class="opv-rendered" data-pane="markdown" tabindex="0" role="group" aria-label="Markdown"></div>
  </div></div></section>`;

/** A bar of times in the colours of `palette`. */
function legend(palette, [low, high], what) {
  const style = `background: linear-gradient(to right, ${palette.map(([colour]) => colour).join(", ")})`;
  return h("div.opv-legend", `${what}: ${duration(low)}`, h("span.opv-bar", { style }), duration(high));
}

/** The colour of a time on a scale, and that of words on it. */
function shade(palette, [low, high], ms) {
  const last = palette.length - 1;
  return palette[clamp(Math.round(((ms - low) / (high - low || 1)) * last), 0, last)];
}

/** The linked view in a panel of this HTML, which has `viewHtml` in it. */
class View {
  constructor(model, html) {
    Object.assign(this, { model, curve: new Curve(), page: new Page(), touched: [] });
    this.root = build(this, h("div.opx.op", { tabindex: -1 }), html);
    this.left.prepend(this.page.root);
    this.lists.before(this.curve.root);
    turn(this.beside, this.side, "curve");
  }

  set(values) {
    this.touched = [...new Set([...this.touched, ...Object.keys(values)])];
    this.model.set(values); // which calls what listens, in every place of this model
    this.model.save_changes();
  }

  showBeside(name) {
    turn(this.beside, this.side, name);
    this.mark();
  }

  /** Show the row in `data`. */
  load() {
    this.pause();
    const data = this.model.get("data");
    Object.assign(this, { data, watched: "", peeked: null, range: null });
    this.byRegion = new Map(data.regions.map((region) => [region.region, region]));
    this.view.classList.remove("opv-live");
    this.scrubber.max = data.texts.length - 1;
    this.note.textContent = data.note;
    this.offer(this.rows, data.rows.map((name, at) => `${at + 1}: ${name}`), this.model.get("row"));
    this.showText(data);
    this.showLists(data);
    const line = (times) => times.map((ms, token) => [token, ms]).filter(([, ms]) => ms != null);
    const lines = [data.before, data.ms].filter((times) => times.length).map(line);
    this.curve.show(lines, data.texts.length, data.top);
    this.showPage();
  }

  /** Show a running measurement in place of the row, until `load`. */
  watch({ text, lines, count, top, boxes, size }) {
    const href = this.model.get("live_page");
    if (this.watched === href) this.page.showBoxes(boxes);
    else this.page.show({ size, boxes, href });
    if (!this.watched) this.showBeside("curve");
    Object.assign(this, { data: null, range: null, watched: href });
    this.text.textContent = text;
    this.view.classList.add("opv-live");
    this.curve.show(lines, count, top);
  }

  /** The tokens in stretches of one region, and the Markdown of each region. */
  showText({ texts, region, ms, palette, scale, rendered }) {
    this.spans = texts.map((text, at) => {
      const [ground, ink] = ms[at] == null ? [] : shade(palette, scale, ms[at]);
      const style = ground && `--opv-ground: ${ground}; --opv-ink: ${ink}`;
      return h("span.opv-token", { "data-token": at, style }, text.replaceAll("\n", "↵\n"));
    });
    const stretches = [];
    this.spans.forEach((span, at) => {
      if (region[at] !== region[at - 1]) stretches.push(h("span.opv-stretch", { "data-region": region[at] }));
      stretches.at(-1).append(span);
    });
    this.tokens.replaceChildren(...stretches);
    this.rendered.innerHTML = rendered; // of `markdown_html`: of the model's tags only a table's get through
  }

  /** The lists of regions and slowest tokens, and what the colours mean. */
  showLists({ regions, slowest, texts, ms, palette, scale, uncertain }) {
    const of = ({ region, line }) => option([region, line, { "data-region": region }]);
    const slow = (at) => `${duration(ms[at])} token ${at + 1} ${plain(texts[at])}`;
    this.regions.replaceChildren(...regions.map(of));
    this.slowest.replaceChildren(...slowest.map((at) => option([at, slow(at), { "data-token": at }])));
    const most = [0, Math.max(0, ...regions.filter(({ region }) => region >= 0).map((each) => each.ms))];
    this.times = Object.fromEntries(regions.map((each) => [each.region, shade(palette, most, each.ms)[0]]));
    const legends = [legend(palette, scale, "Time of a token")];
    if (most[1]) legends.unshift(legend(palette, most, "Time of a region"));
    if (uncertain.regions.length) legends.push(h("div.opv-doubt", uncertain.legend));
    this.legends.replaceChildren(...legends);
  }

  offer(label, names, chosen) {
    label.control.replaceChildren(...names.map((name, place) => option([place, name])));
    label.control.value = chosen;
    label.hidden = names.length < 2;
  }

  showPage() {
    if (!this.data) return;
    const [{ pages }, sheet] = [this.data, this.model.get("sheet")];
    this.offer(this.sheets, pages.map((_, number) => `${number + 1} of ${pages.length}`), sheet);
    this.page.show(pages[sheet], this.times);
    this.select(this.range);
  }

  get token() {
    return this.peeked ?? this.model.get("token");
  }

  /** Move the scrubber: drawn at once, and told to the kernel. */
  go(to, playing = false) {
    if (!this.data) return;
    if (!playing) this.pause();
    const token = clamp(to, 0, this.data.texts.length - 1);
    const sheet = this.byRegion.get(this.data.region[token])?.page ?? this.model.get("sheet");
    const stays = token === this.model.get("token");
    this.peeked = null;
    this.set({ sheet, token });
    if (stays) this.mark();
  }

  /** Select the tokens that were brushed, and say what they are and cost; null for none. */
  select(range) {
    this.range = range;
    const [first, end] = range ?? [0, 0];
    const regions = new Set(this.data.region.slice(first, end).map(String));
    const boxes = [...this.page.boxes.children].filter(({ dataset }) => regions.has(dataset.region));
    light(this.view, "opv-also", [...this.spans.slice(first, end), ...boxes]);
    this.curve.span(this.curve.chosen, first, end);
    this.mark();
  }

  step(way) {
    const starts = this.data.regions.map(({ first }) => first).sort((one, other) => way * (one - other));
    this.go(starts.find((start) => way * (start - this.token) > 0) ?? this.token);
  }

  describe(token) {
    const { texts, step, ms, cache_len: cache, probability, region } = this.data;
    return [
      `Token ${token + 1} of ${texts.length}`,
      texts[token] ? `“${plain(texts[token])}”` : "no text",
      ms[token] != null && duration(ms[token]),
      step[token] == null && this.data.first,
      cache[token] != null && `cache length ${cache[token]}`,
      probability[token] != null && `probability ${Math.round(100 * probability[token])} %`,
      this.byRegion.get(region[token])?.name ?? (region[token] < 0 ? "preamble" : `region ${region[token]}`),
    ].filter(Boolean).join(" · ");
  }

  /** What the readout says: of the brushed tokens, else of the token shown. */
  words(token, region) {
    if (!this.range) return [this.describe(token), this.byRegion.get(region)?.facts ?? ""];
    const { ms, texts } = this.data;
    const [first, end] = this.range;
    const own = sum(ms.slice(first, end));
    const share = `${digits((100 * own) / (sum(ms) || 1))} % of the decode`;
    return [`Tokens ${first + 1} to ${end}: ${end - first} tokens, ${duration(own)}, ${share}`,
      `“${plain(texts.slice(first, end).join(""))}”`];
  }

  mark() {
    if (!this.data) return;
    const { token, data: { ms } } = this;
    const region = this.data.region[token];
    this.scrubber.value = token;
    this.scrubber.ariaValueText = this.describe(token);
    const [said, more] = this.words(token, region);
    this.readout.replaceChildren(h("strong", said), h("br"), more);
    const parts = `[data-token="${token}"], [data-region="${region}"]`;
    light(this.view, "opv-now", this.view.querySelectorAll(parts));
    for (const box of [this.tokens, this.rendered, this.page.root]) {
      const now = box.querySelector(":is(.opv-token, section, .opv-region).opv-now");
      if (now && !box.matches(":hover")) reveal(box, now);
    }
    const { firstChild, lastChild } = this.spans[token].parentElement;
    const [first, last] = [firstChild, lastChild].map((each) => Number(each.dataset.token));
    this.curve.mark(token, ms[token], first, last + 1);
    [this.regions.value, this.slowest.value] = [region, token];
  }

  /** Show the tokens one after the other, each for as long as it took. */
  toggle() {
    if (this.playing) return this.pause();
    const { ms } = this.data;
    const last = ms.length - 1;
    let [token, due] = [this.token === last ? 0 : this.token, performance.now()];
    const frame = (now) => {
      while (token < last && due <= now) due += ms[++token] ?? 0;
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

  /** The token for which what is under the pointer stands; null for none. */
  under(event) {
    if (this.curve.svg.contains(event.target)) return this.curve.tokenAt(event);
    const { token, region } = event.target.closest?.("[data-token], [data-region]")?.dataset ?? {};
    if (token ?? region) return Number(token ?? this.byRegion.get(Number(region))?.first ?? 0);
    return null;
  }

  pointerdown(event) {
    this.pressed = event;
    this.held = [this.curve.curve, this.page.root].find((box) => box.contains(event.target));
    this.dragged = false; // the click at the end of a drag is none
  }

  /** Show a token while the pointer is over something of it; a drag brushes the curve or moves the page. */
  pointermove(event) {
    const { pressed, held } = this;
    if (!this.data || this.playing || (event.buttons && !held)) return;
    if (!event.buttons) return this.peek(this.view.contains(event.target) ? this.under(event) : null);
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

  pick(event) {
    if (event.target === this.play) return this.toggle();
    const token = this.dragged ? null : this.under(event);
    if (token !== null) this.go(token);
  }

  /** Without Ctrl the notebook scrolls, until the page was clicked. */
  wheel(event) {
    const { root: box } = this.page;
    const { target, ctrlKey, metaKey, deltaY } = event;
    if (!box.contains(target) || !(ctrlKey || metaKey || document.activeElement === box)) return;
    event.preventDefault();
    this.page.magnify(deltaY < 0 ? 1.25 : 0.8, event);
  }

  /** Whether a key was one of the view's own. What is typed into, and lists, keep theirs. */
  steer({ target, key, shiftKey, ctrlKey, altKey, metaKey }) {
    if (!this.data || ctrlKey || altKey || metaKey) return false;
    const [at, many, zoom] = [this.token, shiftKey ? 10 : 1, (factor) => () => this.page.magnify(factor)];
    const calls = {
      arrowleft: () => this.go(at - many), arrowright: () => this.go(at + many),
      home: () => this.go(0), end: () => this.go(this.data.texts.length - 1),
      p: () => this.step(-1), n: () => this.step(1), k: () => this.toggle(),
      s: () => this.go(this.data.slowest[0] ?? at),
      "+": zoom(1.5), "=": zoom(1.5), "-": zoom(1 / 1.5), 0: zoom(0),
    };
    const typed = target.matches("input:not([type=range], [type=checkbox]), select");
    const call = typed ? null : calls[key.toLowerCase()];
    if (call) call();
    return Boolean(call);
  }

  /** Whether there was something to leave: playing, or a selection. */
  escape() {
    const found = this.playing || this.range;
    this.pause();
    if (this.range) this.select(null);
    return Boolean(found);
  }
}
