/* The two drawings of the linked view, which know nothing of a model: the latency curve and the page. */

/** The latency of each token. A unit across is a token, a unit down a millisecond; words and numbers
    stand beside the drawing. */
class Curve {
  constructor() {
    const html = `
      <span>ms per token</span><span class="opv-right">token</span><div class="opv-heights"></div>
      <div class="opv-curve" tabindex="0" role="group">
        <svg class="opv-svg" preserveAspectRatio="none" aria-hidden="true"></svg>
        <div class="opv-numbers"></div></div>`;
    this.root = build(this, h("div.opv-plot"), html);
  }

  /** Draw lines, the last one on top, of `count` tokens up to `top` ms. The `points` of a line are
      `[token, ms]`; its `style` is a class. */
  show(lines, count, top) {
    Object.assign(this, { count, top });
    // Where no time is known yet, a scale would be invented.
    const heights = lines.some(({ points }) => points.length) ? ticks(0, top, 4) : [];
    const rules = heights.map((ms) => `M0,${top - ms}H${count}`).join("");
    this.grid = h("path.opv-grid", { d: rules });
    this.band = h("path.opv-band");
    this.chosen = h("path.opv-chosen");
    this.cursor = h("path.opv-cursor");
    this.dot = h("path.opv-dot");
    const curves = lines.map(({ points, style = "opv-own" }) => {
      const places = points.map(([token, ms]) => `${token + 0.5},${top - ms}`);
      return h(`polyline.opv-line.${style}`, { points: places.join(" ") });
    });
    this.svg.replaceChildren(this.band, this.chosen, this.grid, ...curves, this.cursor, this.dot);
    const labels = heights.map((ms) => h("span", { style: `bottom: ${(100 * ms) / top}%` }, ms));
    this.heights.replaceChildren(...labels);
    this.zoom(0, count);
    const cut = "what is higher is cut off";
    this.curve.ariaLabel = `Latency of ${count} tokens, 0 to ${duration(top)}; ${cut}`;
  }

  /** Show the tokens from `first` to before `end` across the whole width. */
  zoom(first, end) {
    this.first = first;
    this.end = end;
    const width = end - first;
    this.svg.setAttribute("viewBox", `${first} 0 ${width} ${this.top}`);
    // People count tokens from one.
    const whole = ticks(first, end, Math.min(6, width)).filter(Number.isInteger);
    const numbers = whole.filter((number) => number > first);
    const labels = numbers.map((number) => {
      const place = (number - 0.5 - first) / width;
      const side = place > 0.94 ? "opv-last" : "opv-number"; // else the edge cuts the last one
      return h(`span.${side}`, { style: `left: ${100 * place}%` }, number.toLocaleString("en"));
    });
    this.numbers.replaceChildren(...labels);
    this.root.classList.toggle("opv-zoomed", width < this.count);
  }

  tokenAt({ clientX }) {
    const { left, width } = this.svg.getBoundingClientRect();
    const across = ((clientX - left) / width) * (this.end - this.first);
    return clamp(Math.floor(this.first + across), this.first, this.end - 1);
  }

  /** Lay one of the grounds over tokens. */
  span(ground, first, end) {
    ground.setAttribute("d", end > first ? `M${first},0H${end}V${this.top}H${first}` : "");
  }

  /** Put the cursor on a token, and the band over the tokens of its region. */
  mark(token, ms, first, end) {
    if (token < this.first || token >= this.end) {
      const width = this.end - this.first;
      const start = clamp(token - Math.floor(width / 2), 0, this.count - width);
      this.zoom(start, start + width);
    }
    this.cursor.setAttribute("d", `M${token + 0.5},0V${this.top}`);
    this.dot.setAttribute("d", ms == null ? "" : `M${token + 0.5},${this.top - ms}h0`);
    const all = end - first >= this.count;
    this.span(this.band, first, all ? first : end);
  }
}

/** The words of a tag. One that ends where its box or the page ends does so at any size. */
function tagText({ text, ground, start }, ends) {
  const [x, y] = start;
  const end = ground[2];
  if (!ends.includes(end)) {
    return h("text.opv-tag", { x, y }, text);
  }
  const margin = x - ground[0];
  return h("text.opv-tag", { x: end - margin, y, "text-anchor": "end" }, text);
}

/** A page under its boxes, in a box that scrolls it where it has been magnified. */
class Page {
  constructor() {
    this.svg = h("svg", { "aria-hidden": "true" });
    this.zoom = 1;
    this.root = h("div.opv-page", { tabindex: 0, role: "group" }, this.svg);
    new ResizeObserver(() => this.sizeType()).observe(this.root);
  }

  /** Tell the style sheet how much of the page is a pixel of the screen: its tags are as large
      there however small or magnified the page is shown. */
  sizeType() {
    const scale = this.svg.getScreenCTM()?.a; // none where it is not shown
    if (scale) {
      this.root.style.setProperty("--opv-pixel", `${1 / scale}px`);
    }
  }

  /** Zoom by a factor about the pointer, or about the middle; 0 shows all. */
  magnify(factor, pointer) {
    const { root, zoom } = this;
    const { left, top, width, height } = root.getBoundingClientRect();
    const x = pointer ? pointer.clientX - left : width / 2;
    const y = pointer ? pointer.clientY - top : height / 2;
    this.zoom = factor ? clamp(zoom * factor, 1, 16) : 1;
    const across = ((root.scrollLeft + x) * this.zoom) / zoom;
    const down = ((root.scrollTop + y) * this.zoom) / zoom;
    root.style.setProperty("--opv-zoom", this.zoom);
    root.scrollTo(across - x, down - y);
    this.sizeType();
  }

  /** Draw a page of `row_data`. `href` is its picture's address, empty for none; `times` has a colour
      for each region. */
  show({ size: [width, height], boxes, href }, times) {
    this.root.ariaLabel = `The page with ${boxes.length} boxes, ${width} by ${height} pixels`;
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.width = width;
    this.root.style.setProperty("--opv-shape", `${width} / ${height}`);
    this.boxes = h("g");
    const sheet = h("rect", { width, height, fill: "#fff" });
    const image = href ? h("image", { href, width, height, preserveAspectRatio: "none" }) : "";
    this.svg.replaceChildren(sheet, image, this.boxes);
    this.showBoxes(boxes, times);
    this.magnify(0);
  }

  showBoxes(boxes, times = {}) {
    const drawn = boxes.map(({ region, colour, uncertain, tag, box }) => {
      const [x, y, right, bottom] = box;
      const style = `--opv-kind: ${colour}; --opv-time: ${times[region]}`;
      const shape = { x, y, width: right - x || 1, height: bottom - y || 1 };
      const words = tag ? tagText(tag, [right, this.width]) : "";
      const name = uncertain ? "g.opv-region.opv-uncertain" : "g.opv-region";
      return h(name, { "data-region": region, style }, h("rect.opv-box", shape), words);
    });
    this.boxes.replaceChildren(...drawn);
  }
}
