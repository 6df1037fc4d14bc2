/* Elements, and the two drawings of the linked view: the latency curve and the page. `panel.py` joins the
   scripts of this folder to one module. What the model wrote enters the document as text nodes, and as the
   HTML of `markdown_html`. */

const SHAPES = new Set(["svg", "g", "rect", "polyline", "path", "image", "text"]);

const clamp = (value, least, most) => Math.min(Math.max(value, least), most);
const sum = (values) => values.reduce((total, value) => total + (value ?? 0), 0);
const plain = (text) => text.replaceAll("\n", "↵").replaceAll("\t", "⇥");

const { format: digits } = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });
const duration = (ms) => (ms >= 999.5 ? `${digits(ms / 1000)} s` : `${digits(ms)} ms`);

/** An HTML or SVG element by its tag and classes (`p.opx-note`), with attributes or without. */
function h(name, ...children) {
  const [tag, ...classes] = name.split(".");
  const kind = SHAPES.has(tag) ? "2000/svg" : "1999/xhtml";
  const element = document.createElementNS(`http://www.w3.org/${kind}`, tag);
  const attributes = children[0]?.constructor === Object ? children.shift() : {};
  element.classList.add(...classes);
  for (const [key, value] of Object.entries(attributes)) {
    if (value != null && value !== false) element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children);
  return element;
}

const option = ([value, text, more]) => h("option", { value, ...more }, text);

/** Our own HTML in an element; what has a class of ours becomes a property of `owner` by that name. */
function build(owner, root, html) {
  root.innerHTML = html;
  const named = root.querySelectorAll("[class^=opv-], [class^=opx-]");
  named.forEach((element) => (owner[element.classList[0].slice(4)] = element));
  return root;
}

/** HTML of a choice of one, as radio buttons that look like a row of tabs: a form, which keeps them apart. */
function tabs(name, data, label, names) {
  const radio = (value) => `<input type="radio" name="tab" ${data} value="${value.toLowerCase()}">`;
  const labels = names.map((each) => `<label>${radio(each)}${each}</label>`);
  return `<form class="${name} opx-tabs" method="dialog" aria-label="${label}">${labels.join("")}</form>`;
}

/** Show one of the panes in a box, and its tab. */
function turn(box, { elements }, name) {
  for (const each of elements) each.checked = each.value === name;
  for (const each of box.querySelectorAll(":scope > [data-pane]")) each.hidden = each.dataset.pane !== name;
}

/** Scroll a box, but not the notebook, as far as a child needs to be in sight. */
function reveal(box, child) {
  const [outer, inner] = [box, child].map((each) => each.getBoundingClientRect());
  const way = (first, last) => clamp(0, inner[last] - outer[last], inner[first] - outer[first]);
  box.scrollBy(way("left", "right"), way("top", "bottom"));
}

/** Give a class to some elements of a box and to no others. */
function light(box, name, elements) {
  for (const each of box.querySelectorAll(`.${name}`)) each.classList.remove(name);
  for (const each of elements) each.classList.add(name);
}

/** Rounded values from 0 to `top`, about `count` of them. */
function ticks(top, count) {
  const step = Number((top / count).toPrecision(1));
  return Array.from({ length: Math.floor(top / step) + 1 }, (_, at) => Number((at * step).toPrecision(3)));
}

/** The latency of each token: `lines` of `[token, ms]`, the last one strong. A unit across is a token, a unit
    down a millisecond; words and numbers stand beside the drawing. */
class Curve {
  constructor() {
    this.root = build(this, h("div.opv-plot"), `
      <span>ms per token</span><span class="opv-right">token</span><div class="opv-heights"></div>
      <div class="opv-curve" tabindex="0" role="group">
        <svg class="opv-svg" preserveAspectRatio="none"></svg><div class="opv-numbers"></div></div>`);
  }
  show(lines, count, top) {
    Object.assign(this, { count, top });
    const path = (name, d = "") => (this[name] = h(`path.opv-${name}`, { d }));
    const [heights, numbers] = [ticks(top, 4), ticks(count, Math.min(6, count)).slice(1)];
    const grid = path("grid", heights.map((ms) => `M0,${top - ms}H${count}`).join(""));
    const points = (line) => line.map(([token, ms]) => `${token + 0.5},${top - ms}`).join(" ");
    const curves = lines.map((line) => h("polyline.opv-line", { points: points(line) }));
    this.svg.setAttribute("viewBox", `0 0 ${count} ${top}`);
    this.svg.replaceChildren(path("band"), path("chosen"), grid, ...curves, path("cursor"), path("dot"));
    const at = (side, part, text) => h("span", { style: `${side}: ${100 * part}%` }, text);
    this.heights.replaceChildren(...heights.map((ms) => at("bottom", ms / top, ms)));
    // People count tokens from one.
    this.numbers.replaceChildren(...numbers.map((number) => at("left", (number - 0.5) / count, number)));
    this.curve.ariaLabel = `Latency of ${count} tokens, 0 to ${duration(top)}; what is higher is cut off`;
  }
  tokenAt({ clientX }) {
    const { left, width } = this.svg.getBoundingClientRect();
    return clamp(Math.floor(((clientX - left) / width) * this.count), 0, this.count - 1);
  }
  /** Lay one of the grounds over tokens. */
  span(ground, first, end) {
    ground.setAttribute("d", end > first ? `M${first},0H${end}V${this.top}H${first}` : "");
  }
  /** The cursor on a token, the band over the tokens of its region. */
  mark(token, ms, first, end) {
    this.cursor.setAttribute("d", `M${token + 0.5},0V${this.top}`);
    this.dot.setAttribute("d", ms == null ? "" : `M${token + 0.5},${this.top - ms}h0`);
    this.span(this.band, first, end - first < this.count ? end : first);
  }
}

/** A page under its boxes, in a box that scrolls it where wheel or keys have magnified it. */
class Page {
  constructor() {
    [this.svg, this.zoom] = [h("svg"), 1];
    this.root = h("div.opv-page", { tabindex: 0, role: "group" }, this.svg);
  }
  /** Zoom by a factor about the pointer, or about the middle; 0 shows all. */
  magnify(factor, pointer) {
    const { root, zoom } = this;
    const { left, top, width, height } = root.getBoundingClientRect();
    const [x, y] = pointer ? [pointer.clientX - left, pointer.clientY - top] : [width / 2, height / 2];
    this.zoom = factor ? clamp(zoom * factor, 1, 16) : 1;
    const [across, down] = [root.scrollLeft + x, root.scrollTop + y].map((way) => (way * this.zoom) / zoom);
    root.style.setProperty("--opv-zoom", this.zoom);
    root.scrollTo(across - x, down - y);
  }
  /** A page of `row_data`, with a colour for each region's time; `href` is its picture's, empty for none. */
  show({ size: [width, height], boxes, href }, times) {
    this.root.ariaLabel = `The page with ${boxes.length} boxes, ${width} by ${height} pixels`;
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    const image = href ? h("image", { href, width, height, preserveAspectRatio: "none" }) : "";
    this.svg.replaceChildren(h("rect", { width, height, fill: "#fff" }), image, (this.boxes = h("g")));
    this.showBoxes(boxes, times);
    this.magnify(0);
  }
  showBoxes(boxes, times = {}) {
    const draw = ({ region, colour, uncertain, tag, box: [x, y, right, bottom] }) => {
      const style = `--opv-kind: ${colour}; --opv-time: ${times[region]}; --opv-size: ${tag?.size}px`;
      const box = h("rect.opv-box", { x, y, width: right - x || 1, height: bottom - y || 1 });
      const words = tag ? h("text.opv-tag", { x: tag.start[0], y: tag.start[1] }, tag.text) : "";
      const name = uncertain ? "g.opv-region.opv-uncertain" : "g.opv-region";
      return h(name, { "data-region": region, style }, box, words);
    };
    this.boxes.replaceChildren(...boxes.map(draw));
  }
}
