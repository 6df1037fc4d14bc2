// Makes a click on a column's heading sort its table. Knows nothing of what the table holds.
const NEXT = { none: ["ascending", 1], ascending: ["descending", -1], descending: ["none", 0] };

function sortable(table) {
  const [body, headings] = [table.tBodies[0], [...table.tHead.rows[0].cells]];
  const original = [...body.rows];
  if (original.length < 3) return;
  const key = ({ cells }, column) => {
    const { textContent, dataset: { value } } = cells[column];
    return value === undefined ? textContent.trim() : Number(value);
  };
  const compare = (a, b) => {
    if (typeof a === typeof b) return typeof a === "number" ? a - b : a.localeCompare(b);
    return typeof a === "number" ? -1 : 1; // what has no value comes after what has one
  };
  headings.forEach((heading, column) => {
    if (!heading.textContent) return;
    const button = document.createElement("button");
    button.append(...heading.childNodes);
    heading.append(button);
    heading.ariaSort = "none";
    button.onclick = () => {
      const [next, sign] = NEXT[heading.ariaSort]; // the sort is stable
      headings.forEach((each) => (each.ariaSort = each === heading ? next : "none"));
      body.append(...original.toSorted((a, b) => sign * compare(key(a, column), key(b, column))));
    };
  });
}
