/* Elements, and the two drawings of the linked view: the latency curve and the page. `panel.py` joins the
   scripts of this folder to one module. What the model wrote enters the document as text nodes, and as the
   HTML of `markdown_html`. */

const SHAPES = new Set(["svg", "g", "rect", "line", "polyline", "path", "image", "text", "title"]);

const clamp = (value, least, most) => Math.min(Math.max(value, least), most);
const digits = (value) => (value === 0 ? "0" : Math.abs(value) >= 99.95 ? value.toFixed(0) : value.toPrecision(3));
const duration = (ms) => (ms == null ? "n/a" : Math.abs(ms) >= 999.5 ? `${digits(ms / 1000)} s` : `${digits(ms)} ms`);
const visible = (text) => (text === "" ? "no text" : `“${text.replaceAll("\n", "↵").replaceAll("\t", "⇥")}”`);

/** An HTML or SVG element: functions among the attributes are listeners, such as `onclick`. */
function h(tag, attributes = {}, ...children) {
  const element = SHAPES.has(tag) ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name.slice(2), value);
    else if (value != null && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children);
  return element;
}

const button = (text, title, onclick, more = {}) => h("button", { type: "button", title, "aria-label": title, onclick, ...more }, text);

const tick = (label, checked, change, style) =>
  h("label", { class: "opv-tick", style }, h("input", { type: "checkbox", checked, onchange: (event) => change(event.target.checked) }), label);

const options = (pairs) => pairs.map(([value, text]) => h("option", { value }, text));

/** One of a few, as radio buttons that look like a row of tabs. */
function tabs(label, pairs, choose) {
  const name = `opx-${Math.random()}`; // a group of radio buttons is the whole document's
  const choices = pairs.map(([value, text]) => h("label", {}, h("input", { type: "radio", name, value, onchange: () => choose(value) }), text));
  return h("fieldset", { class: "opx-tabs", "aria-label": label }, ...choices);
}

const check = (group, value) => group.querySelectorAll("input").forEach((input) => (input.checked = input.value === value));

/** Scroll a box, but not the notebook, until a child is in sight. */
function reveal(box, child) {
  const [outer, inner] = [box, child].map((each) => each.getBoundingClientRect());
  if (inner.top < outer.top || inner.bottom > outer.bottom) box.scrollTop += inner.top - outer.top - outer.height / 2;
  if (inner.left < outer.left || inner.right > outer.right) box.scrollLeft += inner.left - outer.left - outer.width / 2;
}

/** Rounded values from 0 to `top`, about `count` of them. */
function ticks(top, count) {
  const step = Number((top / count).toPrecision(1));
  return Array.from({ length: Math.floor(top / step) + 1 }, (_, place) => Number((place * step).toPrecision(3)));
}

/** An SVG in a box that scrolls it where keys or a double click have magnified it. */
class Drawing {
  constructor(name) {
    this.svg = h("svg", { preserveAspectRatio: name === "curve" ? "none" : "xMidYMid" });
    this.box = h("div", { class: `opv-${name}`, tabindex: 0, role: "group", ondblclick: () => this.magnify(0) }, this.svg);
    this.zoom = 1;
    let start = null;
    this.box.addEventListener("pointerdown", (event) => (start = this.start = event));
    this.box.addEventListener("pointermove", (event) => {
      if (event.buttons && start && Math.hypot(event.clientX - start.clientX, event.clientY - start.clientY) > 4) start = null;
      if (!event.buttons || start || !this.start) return;
      this.box.setPointerCapture(event.pointerId);
      this.drag(event);
    });
    // The click at the end of a drag is none.
    this.box.addEventListener("click", (event) => !start && event.detail && event.stopPropagation(), true);
  }
  /** Zoom by a factor about a spot, in shares of the box; 0 shows all. */
  magnify(factor, [x, y] = [0.5, 0.5]) {
    const { box, zoom } = this;
    const [left, top] = [box.scrollLeft + x * box.clientWidth, box.scrollTop + y * box.clientHeight];
    this.zoom = factor ? clamp(zoom * factor, 1, 16) : 1;
    box.style.setProperty("--opv-zoom", this.zoom);
    box.scrollTo((left * this.zoom) / zoom - x * box.clientWidth, (top * this.zoom) / zoom - y * box.clientHeight);
  }
  key({ key, ctrlKey, altKey }) {
    const way = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[key];
    const factor = { "+": 1.5, "=": 1.5, "-": 1 / 1.5, 0: 0 }[key];
    if (way && (ctrlKey || altKey)) this.box.scrollBy(0.2 * way[0] * this.box.clientWidth, 0.2 * way[1] * this.box.clientHeight);
    else if (factor !== undefined) this.magnify(factor);
    else return false;
    return true;
  }
}

/** The latency of each token: `lines` of `[token, ms]`, the last one strong. A unit across is a token, a unit down a
    millisecond; words and numbers stand beside the drawing. */
class Curve extends Drawing {
  constructor(view) {
    super("curve");
    [this.heights, this.numbers] = [h("div", { class: "opv-heights" }), h("div", { class: "opv-numbers" })];
    this.box.replaceChildren(h("div", { class: "opv-wide" }, this.svg, this.numbers));
    this.root = h("div", { class: "opv-plot" }, h("span", {}, "ms per token"), h("span", { class: "opv-right" }, "token"), this.heights, this.box);
    this.view = view;
  }
  tokenAt({ clientX }) {
    const { left, width } = this.svg.getBoundingClientRect();
    return clamp(Math.floor(((clientX - left) / width) * this.count), 0, this.count - 1);
  }
  drag(event) {
    this.view?.select([this.tokenAt(this.start), this.tokenAt(event)].sort((one, other) => one - other));
  }
  show(lines, count, top) {
    Object.assign(this, { count, top });
    const rect = (name) => h("rect", { class: name, height: top, width: 0 });
    [this.band, this.chosen] = [rect("opv-band"), rect("opv-chosen")];
    [this.cursor, this.dot] = [h("line", { class: "opv-cursor", x1: -1, x2: -1, y2: top }), h("path", { class: "opv-dot" })];
    const heights = ticks(top, 4);
    this.svg.setAttribute("viewBox", `0 0 ${count} ${top}`);
    this.svg.replaceChildren(this.band, this.chosen, ...heights.map((ms) => h("line", { class: "opv-grid", x2: count, y1: top - ms, y2: top - ms })),
      ...lines.map((line) => h("polyline", { class: "opv-line", points: line.map(([token, ms]) => `${token + 0.5},${this.y(ms)}`).join(" ") })), this.cursor, this.dot);
    this.heights.replaceChildren(...heights.map((ms) => h("span", { style: `bottom: ${(100 * ms) / top}%` }, String(ms))));
    this.box.setAttribute("aria-label", `Latency of each of ${count} tokens, 0 to ${duration(top)}; higher ones are cut off`);
    this.magnify(0);
  }
  magnify(factor, spot) {
    super.magnify(factor, spot);
    const numbers = ticks(this.count, Math.min(6 * this.zoom, this.count)); // people count tokens from one
    this.numbers.replaceChildren(...numbers.slice(1).map((number) => h("span", { style: `left: ${(100 * (number - 0.5)) / this.count}%` }, String(number))));
  }
  y(ms) {
    return Math.max(this.top - ms, 0);
  }
  /** Lay the band over the tokens of a region, or the ground of a selection. */
  span(rectangle, first, end) {
    rectangle.setAttribute("x", first);
    rectangle.setAttribute("width", end - first);
  }
  /** The cursor on a token, the band over the tokens of its region. */
  mark(token, ms, first, end) {
    for (const name of ["x1", "x2"]) this.cursor.setAttribute(name, token + 0.5);
    this.dot.setAttribute("d", ms == null ? "" : `M${token + 0.5},${this.y(ms)}h0`);
    this.span(this.band, first, end - first < this.count ? end : first);
    if (this.zoom > 1 && !this.box.matches(":hover")) reveal(this.box, this.cursor);
  }
}

/** The address of a JPEG's bytes; null for none. */
const picture = (bytes) => (bytes?.byteLength ? URL.createObjectURL(new Blob([bytes], { type: "image/jpeg" })) : null);

/** A page under its boxes. */
class Page extends Drawing {
  constructor() {
    super("page");
    this.box.addEventListener("wheel", (event) => {
      // Without Ctrl the notebook scrolls, until the page was clicked.
      if (!event.ctrlKey && !event.metaKey && document.activeElement !== this.box) return;
      event.preventDefault();
      const { left, top, width, height } = this.box.getBoundingClientRect();
      this.magnify(event.deltaY < 0 ? 1.25 : 0.8, [(event.clientX - left) / width, (event.clientY - top) / height]);
    }, { passive: false });
  }
  drag(event) {
    this.box.scrollBy(-event.movementX, -event.movementY);
  }
  /** The first argument is a page of `row_data`; `address` is the picture's, or null for an empty sheet. */
  show({ size: [width, height], grid: [columns, rows], boxes }, address, label, hints = new Map()) {
    this.box.setAttribute("aria-label", label);
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.svg.replaceChildren(h("rect", { class: "opv-sheet", width, height }));
    if (address) this.svg.append(h("image", { href: address, width, height, preserveAspectRatio: "none" }));
    const [across, down] = [width / columns, height / rows];
    const crop = (_, at) => h("rect", { class: "opv-crops", x: (at % columns) * across, y: Math.floor(at / columns) * down, width: across, height: down });
    const crops = columns * rows > 1 ? Array.from({ length: columns * rows }, crop) : [];
    this.svg.append(...crops, (this.boxes = h("g")));
    this.showBoxes(boxes, hints);
    this.magnify(0);
  }
  showBoxes(boxes, hints = new Map()) {
    // Small boxes last, so that a large one does not keep the pointer from them.
    const size = ({ box: [left, top, right, bottom] }) => (right - left) * (bottom - top);
    const drawn = [...boxes].sort((one, other) => size(other) - size(one));
    this.boxes.replaceChildren(...drawn.map(({ region, kind, colour, uncertain, tag, box: [x, y, right, bottom] }) => {
      const style = `--opv-kind: ${colour}`;
      const group = h("g", { class: `opv-region${uncertain ? " opv-uncertain" : ""}`, "data-region": region, "data-kind": kind, style },
        h("rect", { class: "opv-box", x, y, width: right - x || 1, height: bottom - y || 1 }), h("title", {}, hints.get(region)?.hint ?? ""));
      if (tag) group.append(h("text", { class: "opv-tag", x: tag.start[0], y: tag.start[1], style: `--opv-size: ${tag.size}px` }, tag.text));
      return group;
    }));
  }
  mark(region, also = new Set()) {
    let own = null;
    for (const group of this.boxes.children) {
      const number = Number(group.dataset.region);
      group.classList.toggle("opv-also", also.has(number));
      if (group.classList.toggle("opv-now", number === region)) own ??= group;
    }
    if (own && this.zoom > 1 && !this.box.matches(":hover")) reveal(this.box, own);
  }
  /** `colours` are those of each region's time, or null; `hidden` are kinds. */
  restyle(colours, hidden) {
    this.box.classList.toggle("opv-timed", colours !== null);
    for (const group of this.boxes.children) {
      group.style.display = hidden.has(group.dataset.kind) ? "none" : "";
      group.style.setProperty("--opv-time", colours?.[group.dataset.region] ?? "");
    }
  }
}
