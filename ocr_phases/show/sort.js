// Makes a click on a column's heading sort its table. Knows nothing of what the table holds.

/** What a click on a heading does next, by how its column is sorted now. */
const NEXT_ORDER = { none: "ascending", ascending: "descending", descending: "none" };
const SIGNS = { none: 0, ascending: 1, descending: -1 }; // the sort is stable: 0 is the first order

/** What a row is sorted by: the number that a cell carries, else its words. */
function sortKey(row, column) {
  const cell = row.cells[column];
  const { value } = cell.dataset;
  if (value === undefined) {
    return cell.textContent.trim();
  }
  return Number(value);
}

function compareKeys(first, second) {
  if (typeof first !== typeof second) {
    return typeof first === "number" ? -1 : 1; // what has no value comes after what has one
  }
  if (typeof first === "number") {
    return first - second;
  }
  return first.localeCompare(second);
}

function sortable(table) {
  const body = table.tBodies[0];
  const headings = [...table.tHead.rows[0].cells];
  const original = [...body.rows];
  if (original.length < 3) {
    return;
  }
  for (const [column, heading] of headings.entries()) {
    if (!heading.textContent) {
      continue;
    }
    const button = document.createElement("button");
    button.append(...heading.childNodes);
    heading.append(button);
    heading.ariaSort = "none";
    button.onclick = () => {
      const order = NEXT_ORDER[heading.ariaSort];
      for (const each of headings) {
        each.ariaSort = "none";
      }
      heading.ariaSort = order;
      const sign = SIGNS[order];
      const sorted = original.toSorted((first, second) => {
        return sign * compareKeys(sortKey(first, column), sortKey(second, column));
      });
      body.append(...sorted);
    };
  }
}
