/* The timeline of one repeat: a lane for each phase and each stage, which zooms and moves. Only the
   widgets have it. */

const ACROSS = 1000; // units of the drawing across, whatever its width in pixels
const LANE = 18; // pixels

/** Lanes of bars over the time of one repeat, in ms. Only what is in sight is drawn. */
class Timeline {
  constructor() {
    const html = `
      <div class="opv-names"></div>
      <div class="opv-lanes" tabindex="0" role="group">
        <svg class="opv-bars" preserveAspectRatio="none" aria-hidden="true"></svg>
        <div class="opv-marks"></div></div>`;
    this.root = build(this, h("div.opv-timeline"), html);
  }

  /** Draw the lanes that `timeline_data` gives. */
  show(data) {
    this.data = data;
    const { lanes: rows, title, total } = data;
    const names = rows.map(({ name, time, whole }) => {
      return h(whole ? "div.opv-whole" : "div", h("span", name), h("span", time));
    });
    this.names.replaceChildren(...names);
    this.bands = h("path.opv-band");
    this.chosen = h("path.opv-chosen");
    this.grid = h("path.opv-grid");
    this.pauses = h("path.opv-pauses");
    this.shapes = rows.map(({ colour }) => h("path", { fill: colour }));
    this.bars.replaceChildren(this.chosen, this.grid, ...this.shapes, this.pauses, this.bands);
    this.bars.setAttribute("viewBox", `0 0 ${ACROSS} ${Math.max(rows.length, 1)}`);
    this.bars.style.height = `${LANE * Math.max(rows.length, 1)}px`;
    this.lanes.ariaLabel = `${title}, ${duration(total)}, in ${rows.length} lanes`;
    this.look(0, total || 1);
  }

  /** Show the time from `first` to `end`, in ms, across the whole width. */
  look(first, end) {
    const { total } = this.data;
    const whole = total || 1;
    const width = clamp(end - first, whole * 2e-6, whole); // less than that no number can tell apart
    this.first = clamp(first, 0, whole - width);
    this.end = this.first + width;
    this.draw();
  }

  /** Where a time lies across. */
  place(ms) {
    return ((ms - this.first) / (this.end - this.first)) * ACROSS;
  }

  draw() {
    const { lanes, pauses } = this.data;
    for (const [lane, shape] of this.shapes.entries()) {
      shape.setAttribute("d", this.barsOf(lanes[lane], lane));
    }
    const at = ticks(this.first, this.end, 6);
    const rule = (ms) => `M${this.place(ms)},0V${lanes.length}`;
    this.grid.setAttribute("d", at.map(rule).join(""));
    const inside = pauses.filter((ms) => ms >= this.first && ms <= this.end);
    this.pauses.setAttribute("d", inside.map(rule).join(""));
    const labels = at.map((ms, place) => {
      const left = this.place(ms) / ACROSS;
      const words =
        place === at.length - 1 ? `${ms.toLocaleString("en")} ms` : ms.toLocaleString("en");
      let side = "opv-number";
      if (left > 0.93) {
        side = "opv-last"; // else the edge cuts it
      } else if (left < 0.02) {
        side = "opv-start";
      }
      return h(`span.${side}`, { style: `left: ${100 * left}%` }, words);
    });
    this.marks.replaceChildren(...labels);
    this.span(this.bands, this.band);
    this.span(this.chosen, this.selected);
  }

  /** The path of the bars of a lane that are in sight. What is narrower than a line is one with its
      neighbours, so a long run has no more bars than the drawing has lines. */
  barsOf({ start, ms }, lane) {
    const parts = [];
    let painted = -1; // where the last bar ends
    for (let at = firstAfter(start, ms, this.first); at < start.length; at += 1) {
      if (start[at] > this.end) {
        break;
      }
      const left = Math.max(this.place(start[at]), 0);
      const right = Math.min(this.place(start[at] + ms[at]), ACROSS);
      const gap = right - left > 4 ? 0.7 : 0; // wide neighbours stand apart
      const end = Math.max(right - gap, left + 0.7);
      if (end - painted >= 0.7) {
        parts.push(`M${left.toFixed(2)},${lane + 0.14}H${end.toFixed(2)}v0.72H${left.toFixed(2)}z`);
        painted = end;
      }
    }
    return parts.join("");
  }

  /** Lay a ground over a stretch of time, `[first, end]` in ms; null takes it away. */
  span(ground, stretch) {
    if (!stretch) {
      ground.setAttribute("d", "");
      return;
    }
    const left = this.place(stretch[0]);
    const right = Math.max(this.place(stretch[1]), left + 1);
    ground.setAttribute("d", `M${left},0H${right}V${this.data.lanes.length}H${left}z`);
  }

  timeAt({ clientX }) {
    const { left, width } = this.bars.getBoundingClientRect();
    return this.first + ((clientX - left) / width) * (this.end - this.first);
  }

  /** The bar under the pointer, or the nearest within three pixels, as its lane and number; else null. */
  barAt(event) {
    const box = this.bars.getBoundingClientRect();
    const lane = this.data.lanes[Math.floor((event.clientY - box.top) / LANE)];
    if (!lane) {
      return null;
    }
    const reach = (3 / box.width) * (this.end - this.first);
    const ms = this.timeAt(event);
    const at = firstAfter(lane.start, lane.ms, ms - reach);
    return at < lane.start.length && lane.start[at] <= ms + reach ? { lane, at } : null;
  }

  /** Zoom by a factor about the pointer, or about the middle; 0 shows all. */
  magnify(factor, pointer) {
    if (!factor) {
      this.look(0, this.data.total);
      return;
    }
    const about = pointer ? this.timeAt(pointer) : (this.first + this.end) / 2;
    this.look(about - (about - this.first) / factor, about + (this.end - about) / factor);
  }

  /** Move by a share of what is in sight; to later with a positive one. */
  pan(share) {
    const way = share * (this.end - this.first);
    const first = clamp(this.first + way, 0, this.data.total - (this.end - this.first));
    this.look(first, first + this.end - this.first);
  }

  /** Bring a stretch of time into sight without a change of the zoom. */
  reach([first, end]) {
    if (first >= this.first && end <= this.end) {
      return;
    }
    const width = this.end - this.first;
    const start = (first + end - width) / 2;
    this.look(start, start + width);
  }
}

/** The first of the spans of a lane that ends after a time; spans follow each other. */
function firstAfter(start, ms, time) {
  let low = 0;
  let high = start.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (start[middle] + ms[middle] < time) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

class TimelinePart extends Part {
  constructor(shown) {
    const timeline = new Timeline();
    const html = `<div class="opv-controls"><button type="button" class="opv-prefill">Prefill</button>
      <button type="button" class="opv-all">Whole repeat</button>
      <span class="opv-hint">Drag, or A and D, moves; Ctrl and the wheel, or + and −, zooms; 0 shows all;
        ← and → go to the next step.</span></div>
      <p class="opv-moment"></p>`;
    super(shown, h("div"));
    build(this, this.root, html);
    this.root.append(timeline.root);
    this.timeline = timeline;
    this.stretches = []; // of each decode step, its first and last ms
    this.tokens = []; // of each decode step, the token that it made
    this.prefill.addEventListener("click", () => this.showPrefill());
    this.all.addEventListener("click", () => timeline.magnify(0));
  }

  get magnified() {
    return this.timeline;
  }

  load() {
    const data = this.shown.model.get("timeline");
    this.tokens = [];
    for (const [token, step] of this.shown.data.step.entries()) {
      if (step != null) {
        this.tokens[step] = token;
      }
    }
    if (data === this.drawn) {
      this.select();
      this.mark();
      return; // another row of the same run
    }
    this.drawn = data;
    this.stretches = [];
    for (const { start, ms, step } of data.lanes) {
      for (const [at, number] of step.entries()) {
        if (number != null) {
          const [first, end] = this.stretches[number] ?? [start[at], 0];
          this.stretches[number] = [Math.min(first, start[at]), Math.max(end, start[at] + ms[at])];
        }
      }
    }
    this.prefill.hidden = !data.prefill.length;
    this.timeline.band = null;
    this.timeline.selected = null;
    this.timeline.show(data);
    this.select();
    this.mark();
    this.showPrefill();
  }

  /** The prefill across the whole width, with a little around it. */
  showPrefill() {
    const [first, end] = this.drawn.prefill;
    if (end > first) {
      const margin = 0.02 * (end - first);
      this.timeline.look(first - margin, end + margin);
    }
  }

  mark() {
    const { timeline, shown } = this;
    const step = shown.data.step[shown.token];
    timeline.band = this.stretches[step] ?? null;
    if (timeline.band && shown.peeked === null) {
      timeline.reach(timeline.band);
    }
    timeline.span(timeline.bands, timeline.band);
    if (!this.pointed) {
      this.moment.textContent = this.describeToken(shown.token);
    }
  }

  select() {
    const [first, end] = this.shown.range ?? [0, 0];
    const stretches = this.shown.data.step.slice(first, end).map((step) => this.stretches[step]);
    const known = stretches.filter(Boolean);
    this.timeline.selected = known.length ? [known[0][0], known.at(-1)[1]] : null;
    this.timeline.span(this.timeline.chosen, this.timeline.selected);
  }

  under(event) {
    if (!this.timeline.bars.contains(event.target)) {
      return null;
    }
    const bar = this.timeline.barAt(event);
    return bar ? (this.tokens[bar.lane.step[bar.at]] ?? null) : null;
  }

  hover(event) {
    const inside = event && this.timeline.bars.contains(event.target);
    this.pointed = inside ? this.timeline.barAt(event) : null;
    this.moment.textContent = this.pointed
      ? this.describeBar(this.pointed)
      : this.describeToken(this.shown.token);
  }

  describeBar({ lane, at }) {
    const { start, ms, step, name } = lane;
    const share = digits((100 * ms[at]) / (this.drawn.total || 1));
    const words = [
      name,
      `${duration(ms[at])}, ${share} % of the repeat`,
      `from ${duration(start[at])}`,
    ];
    if (step[at] != null) {
      words.push(this.describeStep(step[at]));
    }
    return words.join(" · ");
  }

  describeStep(step) {
    const token = this.tokens[step];
    const text = this.shown.data.texts[token];
    const made = token === undefined ? "" : `, which made token ${token + 1}`;
    return `decode step ${step + 1}${made}${text ? ` “${plain(text)}”` : ""}`;
  }

  describeToken(token) {
    const { step, first } = this.shown.data;
    const stretch = this.stretches[step[token]];
    if (!stretch) {
      return `Token ${token + 1} · ${first}`;
    }
    const words = this.describeStep(step[token]);
    const length = duration(stretch[1] - stretch[0]);
    return `${words[0].toUpperCase()}${words.slice(1)} · ${length}, from ${duration(stretch[0])}`;
  }

  drag(event) {
    const { width } = this.timeline.bars.getBoundingClientRect();
    this.timeline.pan(-event.movementX / width);
  }

  keys() {
    return { a: () => this.timeline.pan(-0.2), d: () => this.timeline.pan(0.2) };
  }
}
