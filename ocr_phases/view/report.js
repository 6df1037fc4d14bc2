/* The linked view in a file: what stands for a kernel's model, and where the report has put its data. */

/** Values, and who listens to them: as much of a widget's model as the view uses. */
class Values {
  constructor(values) {
    const start = { token: 0, row: 0, sheet: 0, selection: [], color: "type" };
    this.values = { ...start, ...values };
    this.calls = new Map();
  }

  get(name) {
    return this.values[name];
  }

  set(name, value) {
    this.setAll({ [name]: value });
  }

  /** All are set before anyone hears of one of them. */
  setAll(values) {
    const changed = Object.keys(values).filter((name) => values[name] !== this.values[name]);
    Object.assign(this.values, values);
    for (const name of changed) {
      for (const call of this.calls.get(`change:${name}`) ?? []) {
        call();
      }
    }
  }

  on(event, call) {
    this.calls.set(event, [...(this.calls.get(event) ?? []), call]);
  }

  save_changes() {}
}

/** A column that was written as runs of `[first, step, length]`. */
function unpacked(runs) {
  return runs.flatMap(([first, step, length]) => {
    return Array.from({ length }, (_, at) => (step ? first + step * at : first));
  });
}

function rowsOf(place) {
  const { rows } = JSON.parse(place.querySelector("script").textContent);
  for (const row of rows) {
    for (const [name, value] of Object.entries(row)) {
      if (value?.runs) {
        row[name] = unpacked(value.runs);
      }
    }
    for (const page of row.pages) {
      const picture = document.getElementById(page.picture);
      page.href = picture?.getAttribute("href") ?? "";
    }
  }
  return rows;
}

/** The token that an address ends with, as in `report.html#token=163`, counted from 0; else null. */
function askedToken() {
  const [, number] = /^#token=(\d+)$/.exec(location.hash) ?? [];
  return number ? Number(number) - 1 : null;
}

/** One view of all rows, beside the pictures that a file shows without scripts. */
function linkedView(place) {
  const rows = rowsOf(place);
  const model = new Values({ data: rows[0] });
  model.on("change:row", () => {
    model.setAll({ token: 0, sheet: 0, selection: [], data: rows[model.get("row")] });
  });
  document.documentElement.classList.add("opv-on");
  return new View(new Shown(model)).start(place);
}

function showAsked(view) {
  const token = askedToken();
  if (token === null) {
    return;
  }
  view.shown.go(token);
  view.root.scrollIntoView({ block: "nearest" });
}

// After the first paint: until then the pictures show.
const soon = window.requestIdleCallback ?? ((call) => setTimeout(call, 1));
soon(() => {
  const places = [...document.querySelectorAll(".opv-report")];
  const views = places.map(linkedView);
  if (!views.length) {
    return;
  }
  showAsked(views[0]);
  window.addEventListener("hashchange", () => showAsked(views[0]));
});
