// What the panel needs of the browser: its keys stay in it, its tables sort.
// `sortable` stands in front of this file.

// JupyterLab takes no shortcut from an element with this attribute.
const KEEPS = "data-lm-suppress-shortcuts";

function keepKeys(event) {
  const target = event.target;
  if (!(target instanceof Element) || !target.closest(".opx")) return;
  const saves = (event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "s"; // the notebook
  target.toggleAttribute(KEEPS, !saves);
  if (event.key === "Escape") target.closest(".jp-Cell")?.focus();
}

function sortTables(panel) {
  for (const table of panel.querySelectorAll("table.op-table:not([data-sortable])")) {
    table.dataset.sortable = "";
    sortable(table);
  }
}

function render({ el }) {
  // Before JupyterLab, which listens at the document.
  window.addEventListener("keydown", keepKeys, true);
  let panel = null;
  const seen = new MutationObserver(() => sortTables(panel));
  const begin = () => {
    panel = el.isConnected ? el.closest(".opx") : null;
    if (panel === null) return void (waiting = requestAnimationFrame(begin));
    sortTables(panel);
    seen.observe(panel, { childList: true, subtree: true });
  };
  let waiting = requestAnimationFrame(begin);
  return () => {
    cancelAnimationFrame(waiting);
    seen.disconnect();
    window.removeEventListener("keydown", keepKeys, true);
  };
}

export default { render };
