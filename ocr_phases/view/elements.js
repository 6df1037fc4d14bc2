/* Elements, numbers in words, and small helpers that all scripts of the linked view use. Python joins
   the scripts of this folder to one module. What a model wrote enters the document as text nodes, and
   as the HTML that `markdown_html` makes. */

const SHAPES = new Set(["svg", "g", "rect", "polyline", "path", "image", "text"]);

const clamp = (value, min, max) => Math.min(Math.max(value, min), max);
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
    if (value != null && value !== false) {
      element.setAttribute(key, value === true ? "" : value);
    }
  }
  element.append(...children);
  return element;
}

function option([value, text, attributes]) {
  return h("option", { value, ...attributes }, text);
}

/** Put HTML of ours into an element. What has a class of ours becomes a property of `owner` by that
    name: `opv-note` becomes `owner.note`. */
function build(owner, root, html) {
  root.innerHTML = html;
  for (const element of root.querySelectorAll("[class^=opv-], [class^=opx-]")) {
    const name = element.classList[0].slice("opv-".length);
    owner[name] = element;
  }
  return root;
}

/** HTML of a choice of one, as radio buttons that look like a row of tabs. It is a form, which keeps
    its buttons apart from those of another view. */
function tabs(name, data, label, names) {
  const labels = names.map((each) => {
    const value = each.toLowerCase();
    return `<label><input type="radio" name="tab" ${data} value="${value}">${each}</label>`;
  });
  return `<form class="${name} opx-tabs" aria-label="${label}">${labels.join("")}</form>`;
}

/** Show one of the panes in a box, and choose its tab. */
function turn(box, { elements }, name) {
  for (const each of elements) {
    each.checked = each.value === name;
  }
  for (const each of box.querySelectorAll(":scope > [data-pane]")) {
    each.hidden = each.dataset.pane !== name;
  }
}

/** Scroll a box, but not what is around it, as far as a child needs to be in sight. */
function reveal(box, child) {
  const outer = box.getBoundingClientRect();
  const inner = child.getBoundingClientRect();
  const across = clamp(0, inner.right - outer.right, inner.left - outer.left);
  const down = clamp(0, inner.bottom - outer.bottom, inner.top - outer.top);
  box.scrollBy(across, down);
}

/** Give a class to some elements of a box, and take it from all others. */
function light(box, name, elements) {
  for (const each of box.querySelectorAll(`.${name}`)) {
    each.classList.remove(name);
  }
  for (const each of elements) {
    each.classList.add(name);
  }
}

/** Round values between two, about `count` of them: multiples of 1, 2 or 5 of a power of ten. */
function ticks(from, to, count) {
  const rough = (to - from) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * ([1, 2, 5, 10].find((each) => each * power >= 0.99 * rough) ?? 10);
  const values = [];
  for (let at = Math.ceil(from / step); at * step <= to; at += 1) {
    values.push(Number((at * step).toPrecision(5)));
  }
  return values;
}

/** The colour of a time on a scale, and that of words on it. */
function shade(palette, [low, high], ms) {
  const last = palette.length - 1;
  const place = Math.round(((ms - low) / (high - low || 1)) * last);
  return palette[clamp(place, 0, last)];
}

/** A bar of times in the colours of `palette`. */
function legend(palette, [low, high], what) {
  const colours = palette.map(([colour]) => colour).join(", ");
  const bar = h("span.opv-bar", { style: `background: linear-gradient(to right, ${colours})` });
  return h("div.opv-legend", `${what}: ${duration(low)}`, bar, duration(high));
}
