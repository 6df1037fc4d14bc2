// What a report in a browser looks like, as numbers. Contrast is WCAG 2.1's:
// https://www.w3.org/TR/WCAG21/#dfn-contrast-ratio, 4.5 for text and 3 for large text.
() => {
  const every = (selector) => [...document.querySelectorAll(selector)];
  const rgba = (text) => {
    const found = text.match(/[\d.]+/g).map(Number);
    return [...found.slice(0, 3), found[3] ?? 1];
  };
  const over = (top, under) => under.map((value, i) => top[i] * top[3] + value * (1 - top[3]));
  const linear = (value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
  const luminance = (colour) => {
    const [red, green, blue] = colour.map((value) => linear(value / 255));
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  const ratio = (one, other) => {
    const [low, high] = [luminance(one), luminance(other)].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  };
  const ground = (element) => {
    if (!element) return [255, 255, 255];
    const own = rgba(getComputedStyle(element).backgroundColor);
    return own[3] === 0 ? ground(element.parentElement) : over(own, ground(element.parentElement));
  };

  const visible = { opacityProperty: true, visibilityProperty: true, contentVisibilityAuto: true };
  const faint = [];
  const sizes = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    const said = walker.currentNode.textContent.trim();
    // A figure's words are as large as its scale makes them, and its inks are looked at below.
    if (!said || element.closest("svg") || !element.checkVisibility(visible)) continue;
    const style = getComputedStyle(element);
    const size = parseFloat(style.fontSize);
    const large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    const under = ground(element);
    const found = ratio(over(rgba(style.color), under), under);
    sizes.push(size);
    if (found < (large ? 3 : 4.5)) faint.push([said.slice(0, 30), found]);
  }

  const drawn = (name) => {
    const figure = document.querySelector(".figure.drawn");
    if (!figure) return null;
    const probe = figure.appendChild(document.createElement("i"));
    probe.style.color = `var(--op-${name})`;
    const found = ratio(rgba(getComputedStyle(probe).color).slice(0, 3), ground(probe));
    probe.remove();
    return found;
  };
  const ids = new Set(every("[id]").map((element) => element.id));
  // Figures share a shape of the same content under the same id.
  const shapes = new Set(every("[id]").map((element) => element.id + element.outerHTML));
  const named = (svg) => svg.getAttribute("role") === "img" && svg.getAttribute("aria-label");
  const scoped = (table) => table.caption && [...table.querySelectorAll("th")].every((cell) => cell.scope);
  return {
    texts: sizes.length,
    smallest: Math.min(...sizes),
    faint,
    width: document.documentElement.scrollWidth,
    headings: every("h1, h2, h3, h4").map((heading) => Number(heading.tagName[1])),
    mute:
      [...document.images].filter((image) => !image.alt || !image.naturalWidth).length +
      every("svg:not([aria-hidden])").filter((svg) => !named(svg)).length,
    // A table that the model wrote has the heads that the model gave it.
    tables: every("table")
      .filter((table) => !table.closest(".opv-rendered"))
      .filter((table) => !scoped(table)).length,
    figures: every("svg.op-svg")
      .filter((svg) => svg.checkVisibility())
      .map((svg) => svg.getBoundingClientRect().width / svg.viewBox.baseVal.width),
    contrast: { ink: drawn("ink"), muted: drawn("muted") },
    language: document.documentElement.lang,
    mains: every("main").length,
    repeatedIds: shapes.size - ids.size,
  };
};
