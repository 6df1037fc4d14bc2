/* One row of a record as one linked view: the parts of parts.js with a scrubber, a readout and lists. */

const viewHtml = () => `<section class="opv-view opv" data-pane="page" aria-label="page">
  <p class="opv-readout"></p>
  <div class="opv-controls"><label class="opv-rows">Row <select data-trait="row"></select></label>
    <label class="opv-sheets">Page <select data-trait="sheet"></select></label></div>
  <p class="opv-note"></p>
  <div class="opv-columns"><div class="opv-left"><div class="opv-legends"></div></div><div class="opv-beside">
    <div class="opv-controls">
      ${tabs("opv-side", "data-side", "Beside the page", ["Curve", "Tokens", "Markdown"])}
      <label>Colours <select class="opv-colours" data-trait="color"><option>type<option>time</select></label>
      <button type="button" class="opv-play">Play</button>
      <details class="opv-help"><summary>Keys</summary><p>← and →: previous and next token
        (with Shift: ten tokens). P and N: previous and next region. S: slowest token. K: play or pause.
        Z: zoom the curve to the selected tokens. +, − and 0: zoom the page, as Ctrl and the mouse wheel
        do. Esc: stop playing, and drop the selection.</p></details></div>
    <input type="range" class="opv-scrubber" min="0" aria-label="Token">
    <div class="opv-curves" data-pane="curve">
      <div class="opv-lists"><label>Regions<select class="opv-regions" size="5"></select></label>
        <label>Slowest tokens<select class="opv-slowest" size="5"></select></label></div>
      <div class="opv-stream"><pre class="opv-text" tabindex="0" role="group"
        aria-label="The text"></pre></div></div>
    <div class="opv-strip" data-pane="tokens"></div>
    <div class="opv-document" data-pane="markdown"></div>
  </div></div></section>`;

/** The linked view in an element of this HTML, which has `viewHtml` in it. */
class View extends Linked {
  constructor(shown, html = viewHtml()) {
    const page = new PagePart(shown);
    const curve = new CurvePart(shown);
    const tokens = new TokensPart(shown);
    const markdown = new MarkdownPart(shown);
    super(shown, h("div.opx.op", { tabindex: -1 }), [page, curve, tokens, markdown]);
    build(this, this.root, html);
    this.page = page.page;
    this.curve = curve.curve;
    this.left.prepend(page.root);
    this.curves.prepend(curve.root);
    this.strip.append(tokens.root);
    this.document.append(markdown.root);
    this.playing = null;
    this.watched = ""; // the page of the running measurement that is shown
    this.brushed = false; // the readout is about the brush, until another token is chosen
    turn(this.beside, this.side, "curve");
  }

  end() {
    this.pause();
    super.end();
  }

  drawings() {
    const token = () => {
      this.brushed = false;
      this.mark();
    };
    return { ...super.drawings(), token };
  }

  showBeside(name) {
    turn(this.beside, this.side, name);
    this.mark();
  }

  load(Kind = Part) {
    if (Kind === Part) {
      this.pause();
    }
    const { data, model } = this.shown;
    if (!data) {
      return;
    }
    if (Kind === Part) {
      this.watched = "";
      this.view.classList.remove("opv-live");
      this.scrubber.max = data.texts.length - 1;
      this.note.textContent = data.note;
      const rows = data.rows.map((name, place) => `${place + 1}: ${name}`);
      this.offer(this.rows, rows, model.get("row"));
      this.showLists(data);
    }
    const sheets = data.pages.map((_, number) => `${number + 1} of ${data.pages.length}`);
    this.offer(this.sheets, sheets, model.get("sheet"));
    super.load(Kind);
  }

  /** Show a running measurement in place of the row, until its record is loaded. */
  watch({ text, lines, count, top, boxes, size }) {
    const href = this.shown.model.get("live_page");
    if (this.watched === href) {
      this.page.showBoxes(boxes);
    } else {
      this.page.show({ size, boxes, href });
    }
    if (!this.watched) {
      turn(this.beside, this.side, "curve");
    }
    this.page.root.hidden = false;
    this.shown.live = true;
    this.watched = href;
    this.text.textContent = text;
    this.view.classList.add("opv-live");
    const drawn = lines.map((points) => ({ points }));
    this.curve.show(drawn, count, top);
  }

  /** The lists of regions and slowest tokens, and what the colours mean. */
  showLists({ regions, slowest, texts, ms, palette, scale, uncertain }) {
    const listed = regions.map(({ region, line }) => {
      return option([region, line, { "data-region": region }]);
    });
    this.regions.replaceChildren(...listed);
    const tokens = slowest.map((index) => {
      const words = `${duration(ms[index])} token ${index + 1} ${plain(texts[index])}`;
      return option([index, words, { "data-index": index }]);
    });
    this.slowest.replaceChildren(...tokens);
    const times = regions.filter(({ region }) => region >= 0).map((each) => each.ms);
    const longest = Math.max(0, ...times);
    const legends = [legend(palette, scale, "Time per token")];
    if (longest) {
      legends.unshift(legend(palette, [0, longest], "Time of a region"));
    }
    if (uncertain.regions.length) {
      legends.push(h("div.opv-doubt", uncertain.legend));
    }
    this.legends.replaceChildren(...legends);
  }

  offer(label, names, chosen) {
    label.control.replaceChildren(...names.map((name, place) => option([place, name])));
    label.control.value = chosen;
    label.hidden = names.length < 2;
  }

  describe(token) {
    const { texts, step, ms, cache_len: cache, probability, region, first } = this.shown.data;
    const number = region[token];
    const words = [`Token ${token + 1} of ${texts.length}`];
    words.push(texts[token] ? `“${plain(texts[token])}”` : "no text");
    if (ms[token] != null) {
      words.push(duration(ms[token]));
    }
    if (step[token] == null) {
      words.push(first);
    }
    if (cache[token] != null) {
      words.push(`cache length ${cache[token]}`);
    }
    if (probability[token] != null) {
      words.push(`probability ${Math.round(100 * probability[token])} %`);
    }
    const unnamed = number < 0 ? "preamble" : `region ${number}`;
    words.push(this.shown.regions.get(number)?.name ?? unnamed);
    return words.join(" · ");
  }

  /** What the brushed tokens are and cost, in two lines. */
  describeRange([first, end]) {
    const { ms, texts } = this.shown.data;
    const own = sum(ms.slice(first, end));
    const share = `${digits((100 * own) / (sum(ms) || 1))} % of the time of all tokens`;
    const tokens = end - first === 1 ? "1 token" : `${end - first} tokens`;
    const said = `Tokens ${first + 1} to ${end}: ${tokens}, ${duration(own)}, ${share}`;
    return [said, `“${plain(texts.slice(first, end).join(""))}”`];
  }

  mark() {
    super.mark();
    const { shown } = this;
    if (!shown.data) {
      return;
    }
    const { token } = shown;
    const region = shown.data.region[token];
    const said = this.describe(token);
    this.scrubber.value = token;
    this.scrubber.ariaValueText = said;
    if (this.brushed && shown.peeked === null) {
      this.say(...this.describeRange(shown.range));
    } else {
      this.say(said, shown.regions.get(region)?.facts ?? "");
    }
    this.regions.value = region;
    this.slowest.value = token;
  }

  select() {
    super.select();
    this.brushed = Boolean(this.shown.range);
    this.mark();
  }

  say(words, more) {
    this.readout.replaceChildren(h("strong", words), h("br"), more);
  }

  colour() {
    super.colour();
    this.view.dataset.color = this.shown.model.get("color");
    this.colours.value = this.shown.model.get("color");
  }

  /** Show the tokens one after the other, each for as long as it took. */
  toggle() {
    if (this.playing) {
      this.pause();
      return;
    }
    const { ms } = this.shown.data;
    const last = ms.length - 1;
    let token = this.shown.token === last ? 0 : this.shown.token;
    let due = performance.now();
    const frame = (now) => {
      while (token < last && due <= now) {
        token += 1;
        due += ms[token] ?? 0;
      }
      this.shown.go(token);
      if (token === last) {
        this.pause();
      } else {
        this.playing = requestAnimationFrame(frame);
      }
    };
    this.play.textContent = "Pause";
    this.playing = requestAnimationFrame(frame);
  }

  pause() {
    cancelAnimationFrame(this.playing);
    this.playing = null;
    this.play.textContent = "Play";
  }

  click(event) {
    if (event.target === this.play) {
      this.toggle();
      return;
    }
    if (this.partOf(event.target)) {
      this.pause();
    }
    super.click(event);
  }

  input({ target }) {
    if (target === this.scrubber) {
      this.pause();
      this.shown.go(Number(target.value));
    }
    if (target === this.slowest) {
      this.shown.go(Number(target.value));
    }
    if (target === this.regions) {
      this.shown.go(this.shown.regions.get(Number(target.value))?.first ?? 0);
    }
  }

  change({ target }) {
    const { trait, side } = target.dataset;
    if (side !== undefined) {
      this.showBeside(target.value);
    }
    if (trait === "row" || trait === "sheet") {
      this.shown.set({ [trait]: Number(target.value) });
    }
    if (trait === "color") {
      this.shown.set({ color: target.value });
    }
  }

  keys(many) {
    const keys = super.keys(many);
    const moves = Object.entries(keys).map(([key, call]) => {
      const paused =
        call &&
        (() => {
          this.pause();
          call();
        });
      return [key, paused];
    });
    return { ...Object.fromEntries(moves), k: () => this.toggle() };
  }

  steer(event) {
    const { target } = event;
    return (target === this.root || this.view.contains(target)) && super.steer(event);
  }

  /** Leave the playing, and the brush. Whether there was one of them. */
  escape() {
    const playing = Boolean(this.playing);
    this.pause();
    return super.escape() || playing;
  }
}
