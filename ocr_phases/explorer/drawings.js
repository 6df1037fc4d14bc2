/* The drawings of the linked view (elements, zoom, latency curve, page). `panel.py` joins the scripts of
   this folder to one module. What the model wrote enters the document as text nodes, and as the HTML of
   `markdown_html`. */

const SVG = "http://www.w3.org/2000/svg";
const PLOT = { height: 200, left: 46, right: 10, top: 10, bottom: 32 };

const clamp = (value, least, most) => Math.min(Math.max(value, least), most);
const digits = (value) => (value === 0 ? "0" : Math.abs(value) >= 99.95 ? value.toFixed(0) : value.toPrecision(3));
const duration = (ms) =>
  ms == null ? "n/a" : Math.abs(ms) >= 999.5 ? `${digits(ms / 1000)} s` : `${digits(ms)} ms`;
const visible = (text) => (text === "" ? "no text" : `“${text.replaceAll("\n", "↵").replaceAll("\t", "⇥")}”`);

/** An HTML element; `on` holds its listeners. */
function make(tag, { on = {}, ...attributes } = {}, ...children) {
  return fill(document.createElement(tag), attributes, on, children);
}

function draw(tag, { on = {}, ...attributes } = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, on, children);
}

function fill(element, attributes, on, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  for (const [name, listener] of Object.entries(on)) element.addEventListener(name, listener);
  element.append(...children);
  return element;
}

const button = (text, label, click) =>
  make("button", { type: "button", "aria-label": label, title: label, on: { click } }, text);

function choice(label, options, change) {
  const names = options.map(([value, text]) => make("option", { value }, text));
  const select = make("select", { on: { change: () => change(select.value) } }, ...names);
  return [make("label", {}, `${label} `, select), select];
}

function tick(label, checked, change, style = null) {
  const box = make("input", { type: "checkbox", checked, on: { change: () => change(box.checked) } });
  return make("label", { class: "opv-tick", style }, box, label);
}

/** Rounded values from 0 to `top`, about `count` of them; whole ones if asked. */
function ticks(from, to, count, whole = false) {
  const raw = (to - from) / count || 1;
  const power = 10 ** Math.floor(Math.log10(raw));
  let step = [1, 2, 5, 10].map((unit) => unit * power).find((unit) => unit >= raw);
  if (whole) step = Math.max(1, Math.round(step));
  const found = [];
  for (let value = Math.ceil(from / step) * step; value <= to + step * 1e-9; value += step) found.push(value);
  return found.map((value) => Number(value.toPrecision(12)));
}

/** The part of `0..size` in sight. */
class Window {
  constructor(size, least) {
    [this.size, this.least] = [size, Math.min(least, size)];
    this.reset();
  }
  reset() {
    [this.from, this.width] = [0, this.size];
  }
  at(share) {
    return this.from + share * this.width;
  }
  zoom(factor, share = 0.5) {
    const [spot, width] = [this.at(share), clamp(this.width / factor, this.least, this.size)];
    this.place(spot - share * width, width);
  }
  place(from, width = this.width) {
    [this.from, this.width] = [clamp(from, 0, this.size - width), width];
  }
  show(from, to) {
    if (from < this.from || to > this.from + this.width) this.place((from + to - this.width) / 2);
  }
}

/** Drag, double click and keys of a drawing whose `windows` (x, or x and y) move; a drag moves it, or is `brush`'s.
    `locate` gives an event's share of each window. */
class Zoom {
  constructor(svg, windows, locate, redraw, click, brush = null) {
    Object.assign(this, { svg, windows, redraw });
    let start = null;
    svg.addEventListener("pointerdown", (event) => {
      start = { at: locate(event), x: event.clientX, y: event.clientY, target: event.target, dragged: false };
    });
    svg.addEventListener("pointermove", (event) => {
      if (!start || !event.buttons) return;
      start.dragged ||= Math.hypot(event.clientX - start.x, event.clientY - start.y) > 4;
      if (!start.dragged) return;
      svg.setPointerCapture(event.pointerId);
      const now = locate(event);
      if (brush) return brush(start.at[0], now[0]);
      this.pan(...now.map((share, axis) => start.at[axis] - share));
      start.at = now;
    });
    svg.addEventListener("pointerup", (event) => {
      if (start && !start.dragged) click(event, start.target);
      start = null;
    });
    svg.addEventListener("dblclick", () => this.reset());
  }
  zoom(factor, spot = []) {
    this.windows().forEach((window, axis) => window.zoom(factor, spot[axis]));
    this.redraw();
  }
  pan(...shares) {
    this.windows().forEach((window, axis) => window.place(window.from + shares[axis] * window.width));
    this.redraw();
  }
  reset() {
    this.windows().forEach((window) => window.reset());
    this.redraw();
  }
  key(event) {
    const arrows = { ArrowLeft: [-0.2, 0], ArrowRight: [0.2, 0], ArrowUp: [0, -0.2], ArrowDown: [0, 0.2] };
    if ((event.ctrlKey || event.altKey) && arrows[event.key]) this.pan(...arrows[event.key]);
    else if (event.key === "+" || event.key === "=") this.zoom(1.5);
    else if (event.key === "-") this.zoom(1 / 1.5);
    else if (event.key === "0") this.reset();
    else return false;
    return true;
  }
}

const share = (svg, event) => {
  const point = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
  return [point.x, point.y];
};

/** The latency of each token: `lines` of ms a token, the last one strong. It is as wide as its place, one unit a
    pixel, so that words can be read at any width. */
class Curve {
  constructor(view) {
    const inside = draw("g");
    const band = draw("rect", { class: "opv-band", y: PLOT.top, height: PLOT.height - PLOT.top - PLOT.bottom });
    const cursor = draw("line", { class: "opv-cursor", y1: PLOT.top, y2: PLOT.height - PLOT.bottom });
    const dot = draw("circle", { class: "opv-dot", r: 4 });
    const chosen = draw("rect", { class: "opv-chosen", y: PLOT.top, height: PLOT.height - PLOT.top - PLOT.bottom });
    this.svg = draw("svg", { class: "opv-curve", tabindex: 0, role: "group" }, band, chosen, inside, cursor, dot);
    Object.assign(this, { inside, band, chosen, cursor, dot, across: 640 });
    this.sizes = new ResizeObserver(() => this.resize());
    this.sizes.observe(this.svg);
    const locate = (event) => [clamp((share(this.svg, event)[0] - PLOT.left) / this.across, 0, 1)];
    const tokenAt = (share) => clamp(Math.floor(this.window.at(share)), 0, this.lines.at(-1).length - 1);
    const token = (event) => tokenAt(locate(event)[0]);
    const brush = (from, to) => view.select?.(...[tokenAt(from), tokenAt(to)].sort((one, other) => one - other));
    this.zoom = new Zoom(this.svg, () => [this.window], locate, () => this.redraw(), (event) => view.go?.(token(event)), brush);
    if (!view.go) return;
    this.svg.addEventListener("pointermove", (event) => event.buttons || view.peek(token(event), event));
    this.svg.addEventListener("pointerleave", () => view.peek(null));
  }
  show(lines, count, top) {
    Object.assign(this, { lines, top, window: new Window(Math.max(count, 1), 8) });
    const label = `Latency of each of ${lines.at(-1)?.length ?? 0} tokens, 0 to ${duration(top)}; higher ones are cut off`;
    this.svg.setAttribute("aria-label", label);
    this.redraw();
    this.resize();
  }
  resize() {
    const { clientWidth } = this.svg;
    if (!clientWidth || !this.window) return;
    this.across = Math.max(clientWidth - PLOT.left - PLOT.right, 144);
    this.svg.setAttribute("viewBox", `0 0 ${this.right + PLOT.right} ${PLOT.height}`);
    this.redraw();
  }
  get right() {
    return PLOT.left + this.across;
  }
  close() {
    this.sizes.disconnect();
  }
  x(token) {
    return PLOT.left + ((token + 0.5 - this.window.from) / this.window.width) * this.across;
  }
  y(ms) {
    const height = PLOT.height - PLOT.top - PLOT.bottom;
    return PLOT.height - PLOT.bottom - Math.min(ms / this.top, 1) * height;
  }
  redraw() {
    const { from, width } = this.window;
    const { right } = this;
    const floor = PLOT.height - PLOT.bottom;
    const parts = [];
    for (const ms of ticks(0, this.top, 4)) {
      parts.push(draw("line", { class: "opv-grid", x1: PLOT.left, x2: right, y1: this.y(ms), y2: this.y(ms) }));
      parts.push(draw("text", { x: PLOT.left - 6, y: this.y(ms) + 4, "text-anchor": "end" }, String(ms)));
    }
    for (const number of ticks(from + 1, from + width, 6, true)) // people count tokens from one
      parts.push(draw("text", { x: this.x(number - 1), y: floor + 14, "text-anchor": "middle" }, String(number)));
    parts.push(draw("text", { x: right, y: PLOT.height - 4, "text-anchor": "end" }, "token"));
    parts.push(draw("text", { x: PLOT.left - 40, y: PLOT.height - 4 }, "ms per token"));
    this.lines.forEach((line, place) => {
      const strong = place === this.lines.length - 1 ? "" : " opv-faint";
      parts.push(draw("polyline", { class: `opv-line${strong}`, points: this.points(line) }));
    });
    this.inside.replaceChildren(...parts);
    this.choose(this.range);
    if (this.marked) this.mark(...this.marked);
    else this.cursor.style.display = this.dot.style.display = this.band.style.display = "none";
  }
  /** Of many values the slowest of each few: no slow step goes missing. */
  points(line) {
    const [first, end] = [Math.max(0, Math.floor(this.window.from) - 1), Math.ceil(this.window.from + this.window.width) + 1];
    const bunch = Math.max(1, Math.ceil((end - first) / 600));
    const points = [];
    for (let start = first; start < Math.min(end, line.length); start += bunch) {
      let slowest = null;
      for (let token = start; token < Math.min(start + bunch, line.length); token++)
        if (line[token] != null && (slowest === null || line[token] > line[slowest])) slowest = token;
      const inside = slowest !== null && this.x(slowest) >= PLOT.left && this.x(slowest) <= this.right;
      if (inside) points.push(`${this.x(slowest).toFixed(1)},${this.y(line[slowest]).toFixed(1)}`);
    }
    return points.join(" ");
  }
  /** The brushed tokens, from the first to the last of `range`; null for none. */
  choose(range) {
    this.range = range;
    this.span(this.chosen, ...(range ? [range[0], range[1] + 1] : [0, 0]));
  }
  span(rectangle, first, end) {
    const [left, right] = [first - 0.5, end - 0.5].map((edge) => clamp(this.x(edge), PLOT.left, this.right));
    rectangle.style.display = first < end ? "" : "none";
    rectangle.setAttribute("x", left);
    rectangle.setAttribute("width", Math.max(right - left, 1));
  }
  /** The cursor on a token, the band over the tokens of its region. */
  mark(token, first, end) {
    this.marked = [token, first, end];
    const ms = this.lines.at(-1)[token];
    const at = this.x(token);
    const outside = at < PLOT.left || at > this.right;
    this.cursor.style.display = outside ? "none" : "";
    this.cursor.style.transform = `translateX(${at}px)`;
    this.dot.style.display = outside || ms == null ? "none" : "";
    if (ms != null) this.dot.style.transform = `translate(${at}px, ${this.y(ms)}px)`;
    this.span(this.band, first, end - first < this.window.size ? end : first);
  }
}

/** The address of a JPEG's bytes; null for none. */
const picture = (bytes) => (bytes?.byteLength ? URL.createObjectURL(new Blob([bytes], { type: "image/jpeg" })) : null);

/** A page under its boxes. */
class Page {
  constructor(view) {
    this.view = view;
    this.svg = draw("svg", { class: "opv-page", tabindex: 0, role: "group" });
    const locate = (event) => {
      const [x, y] = share(this.svg, event);
      return [clamp((x - this.across.from) / this.across.width, 0, 1), clamp((y - this.down.from) / this.down.width, 0, 1)];
    };
    const region = (target) => target.closest?.(".opv-region")?.dataset.region;
    this.zoom = new Zoom(this.svg, () => [this.across, this.down], locate, () => this.redraw(), (_, target) => {
      if (view.go && region(target) !== undefined) view.goRegion(Number(region(target)));
    });
    this.svg.addEventListener("wheel", (event) => {
      // Without Ctrl the notebook scrolls, until the page was clicked.
      if (!event.ctrlKey && !event.metaKey && document.activeElement !== this.svg) return;
      event.preventDefault();
      this.zoom.zoom(event.deltaY < 0 ? 1.25 : 0.8, locate(event));
    }, { passive: false });
    if (!view.go) return;
    this.svg.addEventListener("pointermove", (event) => {
      const found = region(event.target);
      const known = found !== undefined && view.byRegion.get(Number(found));
      if (!event.buttons) view.peek(known ? known.first : null, event, known?.hint);
    });
    this.svg.addEventListener("pointerleave", () => view.peek(null));
  }
  /** `page` holds size, boxes and grid; `address` is the picture's, or null for an empty sheet. */
  show(page, address, label) {
    const { width, height } = page;
    [this.page, this.across, this.down] = [page, new Window(width, width / 16), new Window(height, height / 16)];
    this.svg.setAttribute("aria-label", label);
    this.svg.style.aspectRatio = `${width} / ${height}`;
    const parts = [draw("rect", { class: "opv-sheet", width, height })];
    if (address) parts.push(draw("image", { href: address, width, height, preserveAspectRatio: "none" }));
    const [columns, rows] = page.grid;
    if (columns * rows > 1) {
      const path = [];
      for (let at = 0; at <= columns; at++) path.push(`M${(at * width) / columns},0V${height}`);
      for (let at = 0; at <= rows; at++) path.push(`M0,${(at * height) / rows}H${width}`);
      parts.push(draw("path", { class: "opv-crops", d: path.join("") }));
    }
    this.boxes = draw("g");
    this.svg.replaceChildren(...parts, this.boxes);
    this.showBoxes(page.boxes);
    this.redraw();
  }
  showBoxes(boxes) {
    // Small boxes last, so that a large one does not keep the pointer from them.
    const drawn = [...boxes].sort((one, other) => other.width * other.height - one.width * one.height);
    this.boxes.replaceChildren(...drawn.map((box) => {
      const group = draw("g", { class: "opv-region", "data-region": box.region, "data-kind": box.kind });
      group.style.setProperty("--opv-kind", box.colour);
      group.classList.toggle("opv-uncertain", box.uncertain);
      group.append(draw("rect", { class: "opv-box", x: box.x, y: box.y, width: box.width, height: box.height }));
      if (box.tag)
        group.append(draw("text", { class: "opv-tag", x: box.tag.x, y: box.tag.y, style: `--opv-size: ${box.tag.size}px` }, box.tag.text));
      return group;
    }));
  }
  redraw() {
    this.svg.setAttribute("viewBox", `${this.across.from} ${this.down.from} ${this.across.width} ${this.down.width}`);
    this.svg.style.setProperty("--opv-scale", this.across.width / this.across.size); // labels keep their size
  }
  mark(region, also = new Set()) {
    let box = null;
    for (const group of this.boxes.children) {
      const own = Number(group.dataset.region) === region;
      group.classList.toggle("opv-also", also.has(Number(group.dataset.region)));
      group.classList.toggle("opv-now", own);
      if (own) box ??= this.page.boxes.find((each) => each.region === region);
    }
    if (!box || this.across.width === this.across.size) return;
    this.across.show(box.x, Math.min(box.x + box.width, box.x + this.across.width));
    this.down.show(box.y, Math.min(box.y + box.height, box.y + this.down.width));
    this.redraw();
  }
  restyle({ opacity, labels, crops, hidden, colours }) {
    this.svg.style.setProperty("--opv-fill", opacity);
    this.svg.classList.toggle("opv-unlabelled", !labels);
    this.svg.classList.toggle("opv-uncropped", !crops);
    this.svg.classList.toggle("opv-timed", colours !== null);
    for (const group of this.boxes.children) {
      group.style.display = hidden.has(Number(group.dataset.kind)) ? "none" : "";
      const colour = colours?.[group.dataset.region];
      if (colour) group.style.setProperty("--opv-time", colour);
      else group.style.removeProperty("--opv-time");
    }
  }
}
