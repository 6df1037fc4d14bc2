// Makes a click on a column's heading sort its table. Knows nothing of what the table holds.
function sortable(table) {
  const body = table.tBodies[0];
  const original = Array.from(body.rows);
  if (original.length < 3) return;
  const headings = Array.from(table.tHead.rows[0].cells);
  const key = (row, column) => {
    const cell = row.cells[column];
    return cell.dataset.value === undefined ? cell.textContent.trim() : Number(cell.dataset.value);
  };
  const compare = (a, b) => {
    if (typeof a === typeof b) return typeof a === "number" ? a - b : a.localeCompare(b);
    return typeof a === "number" ? -1 : 1; // what has no value comes after what has one
  };
  headings.forEach((heading, column) => {
    if (!heading.textContent) return;
    const button = document.createElement("button");
    button.type = "button";
    button.append(...heading.childNodes);
    heading.append(button);
    heading.setAttribute("aria-sort", "none");
    button.addEventListener("click", () => {
      const next = { none: "ascending", ascending: "descending", descending: "none" }[heading.getAttribute("aria-sort")];
      headings.forEach((other) => other.setAttribute("aria-sort", "none"));
      heading.setAttribute("aria-sort", next);
      const rows = original.slice();
      if (next !== "none") rows.sort((a, b) => compare(key(a, column), key(b, column)) * (next === "ascending" ? 1 : -1));
      body.append(...rows);
    });
  });
}
