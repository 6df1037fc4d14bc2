// What is wrong with the words of the fragments within these elements: texts that lie on each other, that stick
// out of the box that holds them, or that are cut off without a way to scroll to them.
(selector) => {
  const SCROLLERS = ".op-scroll, .op-text, .figure, .opv-page, .opv-tokens, .opv-rendered, .opv-stream, .opx-form";
  const BOXES = ".op-card, .op-fold, .op-cards, .op-header, .op-pairs, table, tr, td, th, dt, dd, li, p, summary, caption, button, h1, h2, h3, .op-badge";
  const LEAST = 2; // CSS pixels: fonts and rounding differ by as much
  const wrong = [];
  const short = (text) => text.trim().replace(/\s+/g, " ").slice(0, 40);

  // The part of a rectangle that its scrollers leave in sight.
  const inSight = (rectangle, element) => {
    let { left, right, top, bottom } = rectangle;
    for (let each = element; each; each = each.parentElement) {
      const style = getComputedStyle(each);
      if (style.overflowX === "visible" && style.overflowY === "visible") continue;
      const frame = each.getBoundingClientRect();
      left = Math.max(left, frame.left);
      right = Math.min(right, frame.right);
      top = Math.max(top, frame.top);
      bottom = Math.min(bottom, frame.bottom);
    }
    return { left, right, top, bottom };
  };

  // The boxes around a text, from the inside, up to one that scrolls or that cuts its text with a sign.
  const boxesOf = (element, root) => {
    const boxes = [];
    for (let each = element; each && each !== root; each = each.parentElement) {
      if (each.matches(SCROLLERS) || getComputedStyle(each).textOverflow === "ellipsis") break;
      if (each.matches(BOXES)) boxes.push(each.getBoundingClientRect());
    }
    return boxes;
  };

  for (const root of document.querySelectorAll(selector)) {
    const texts = [];
    const range = document.createRange();
    const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
    const frame = root.getBoundingClientRect();
    while (walker.nextNode()) {
      const node = walker.currentNode;
      const element = node.parentElement;
      if (!node.textContent.trim() || element.closest("svg, style, script, option")) continue;
      if (!element.checkVisibility({ visibilityProperty: true, contentVisibilityAuto: true })) continue;
      range.selectNodeContents(node);
      const held = boxesOf(element, root);
      for (const line of range.getClientRects()) {
        if (line.width < 1) continue;
        for (const box of held) {
          const out = Math.max(box.left - line.left, line.right - box.right, box.top - line.top,
            line.bottom - box.bottom);
          if (out > LEAST) wrong.push(`out of its box by ${Math.round(out)}: ${short(node.textContent)}`);
        }
        const away = Math.max(frame.left - line.left, line.right - frame.right);
        if (away > LEAST && !element.closest(SCROLLERS)) {
          wrong.push(`out of the cell by ${Math.round(away)}: ${short(node.textContent)}`);
        }
        // Lines of one paragraph may touch: the letters themselves are smaller than their line.
        const seen = inSight(line, element);
        const spare = 0.15 * line.height;
        seen.top += spare;
        seen.bottom -= spare;
        if (seen.right - seen.left > LEAST && seen.bottom - seen.top > LEAST) texts.push([seen, node]);
      }
    }
    texts.sort(([one], [other]) => one.top - other.top);
    texts.forEach(([one, node], place) => {
      for (const [other, also] of texts.slice(place + 1)) {
        if (other.top >= one.bottom) break;
        const wide = Math.min(one.right, other.right) - Math.max(one.left, other.left);
        const high = Math.min(one.bottom, other.bottom) - other.top;
        if (wide > LEAST && high > LEAST) {
          wrong.push(`on each other: ${short(node.textContent)} | ${short(also.textContent)}`);
        }
      }
    });
    for (const element of [root, ...root.querySelectorAll("*")]) {
      if (element.closest(SCROLLERS) || element.closest("svg, select, input") || !element.checkVisibility()) continue;
      if (getComputedStyle(element).textOverflow === "ellipsis") continue;
      const over = element.scrollWidth - element.clientWidth;
      if (element.clientWidth && over > LEAST && getComputedStyle(element).display !== "inline") {
        wrong.push(`wider than itself by ${over}: ${element.outerHTML.slice(0, 120)}`);
      }
    }
  }
  return { wrong: [...new Set(wrong)], page: document.documentElement.scrollWidth - window.innerWidth };
}
