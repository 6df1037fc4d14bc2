/* The panel around the linked view: form, progress, words, views and the table of records, keys, drop and paste. */

const VIEWS = [["page", "Page"], ["latency", "Latency"], ["stages", "Stages"], ["records", "Records"]];
const COLUMNS = [["label", "label"], ["prefill_ms", "prefill", duration], ["inter_token_ms", "a token", duration], ["tokens_per_s", "tokens/s", digits],
  ["cer", "CER", (part) => `${digits(100 * part)} %`], ["energy_j", "energy", (joules) => `${digits(joules)} J`],
  ["page", "page"], ["model", "model"], ["preset", "preset"], ["how", "strategy"], ["created", "when"]];
const FILES = "image/*,.pdf,.tif,.tiff,.json,.gz";
const OTHER = "other …";
const KEEPS = "data-lm-suppress-shortcuts"; // on what has the focus: JupyterLab takes no key of it
const PATHS = "application/x-jupyter-icontents"; // what JupyterLab's file browser drags

/** The curve of a record in small: the shape of its steps, not their size. */
function sparkline(times) {
  const top = Math.max(...times);
  const points = times.map((ms, place) => `${place},${top - ms}`).join(" ");
  return h("svg", { class: "opx-spark", viewBox: `0 0 ${times.length} ${top}`, preserveAspectRatio: "none", role: "img", "aria-label": `Steps up to ${duration(top)}` },
    h("polyline", { class: "opv-line", points }));
}

class Panel {
  constructor(model, el) {
    Object.assign(this, { model, id: String(Math.random()), view: new View(model), controls: {}, undo: [] });
    this.build();
    el.append(this.root);
    this.follow();
  }

  ask(what, content = {}, buffers = []) {
    this.model.send({ do: what, from: this.id, ...content }, undefined, buffers);
  }

  build() {
    const part = (name, tag = "div", more = {}, ...inside) => (this[name] = h(tag, { class: `opx-${name}`, ...more }, ...inside));
    this.run = button("Run", "Measure what is chosen", () => this.ask("run"), { class: "opx-run" });
    this.stop = button("Stop", "End the measurement at its next token", () => this.ask("stop"), { class: "opx-stop" });
    this.more = h("details", { class: "opx-more" }, h("summary", {}, "More"), part("form"));
    part("bar", "div", {}, part("quick", "span"), this.run, this.stop, this.more);
    [part("message"), part("progress", "div", { hidden: true }), part("head", "header")];
    this.tabs = tabs("View", VIEWS, (name) => this.view.set("view", name));
    [this.livePage, this.liveCurve, this.liveText] = [new Page(), new Curve(), h("pre", { tabindex: 0, "aria-label": "The text so far" })];
    part("live", "div", { hidden: true }, this.livePage.box, h("div", {}, this.liveCurve.root, h("div", { class: "opx-stream" }, this.liveText)));
    part("filter", "input", { type: "search", placeholder: "Filter the records", "aria-label": "Filter the records", oninput: () => this.filterRows() });
    [part("table", "div", { class: "opx-table op", tabindex: 0, role: "region", "aria-label": "Records" }), part("compared")];
    const hint = h("span", { class: "opx-hint" }, "Tick two to compare them; ★ is the baseline.");
    const inside = { page: [this.live, this.view.root], latency: [], stages: [], checks: [],
      records: [h("div", { class: "opv-controls" }, this.filter, hint), this.table, this.compared] };
    this.panes = Object.fromEntries(Object.entries(inside).map(([name, content]) =>
      [name, h("section", { class: `opx-pane opx-pane-${name}`, "aria-label": name }, ...content)]));
    const dead = h("p", { class: "opx-dead", role: "alert" }, "Kernel restarted: run this cell");
    part("inside", "div", {}, this.bar, this.message, this.progress, this.head, this.tabs, ...Object.values(this.panes));
    this.root = h("div", { class: "opx op", tabindex: -1 }, dead, this.inside);
  }

  /** Draw what the model holds, now and whenever it changes. */
  follow() {
    const { model, view } = this;
    const draw = [
      ["fields", () => this.showForm()], ["values told keeps", () => this.showValues()], ["bar", () => (this.bar.hidden = !model.get("bar"))],
      ["head", () => this.showHead()], ["parts", () => this.showParts()], ["records ticked pinned", () => this.list()],
      ["message", () => (this.message.innerHTML = model.get("message"))], ["compared", () => this.fill(this.compared, [model.get("compared")])],
      ["live_page", () => this.showLivePage()], ["live", () => this.showLive()], ["view", () => this.turn()], ["busy", () => this.showBusy()],
      ["data", () => view.load()], ["sheet", () => view.showPage()], ["color", () => view.restyle()], ["token", () => view.mark()],
    ];
    const on = (name, call) => (model.on(name, call), this.undo.push(() => model.off(name, call)));
    for (const [names, call] of draw) names.split(" ").forEach((name) => on(`change:${name}`, call));
    on("msg:custom", (content, buffers) => content.to === this.id && this.answer(content, buffers));
    on("comm_live_update", () => this.root.classList.add("opx-gone")); // the kernel restarted
    draw.forEach(([, call]) => call());
    // Before JupyterLab, which listens at the document.
    const hear = (names, call) => names.split(" ").forEach((name) => {
      const mine = (event) => this.root.contains(event.target) && call(event);
      window.addEventListener(name, mine, true);
      this.undo.push(() => window.removeEventListener(name, mine, true));
    });
    hear("keydown", (event) => this.key(event));
    hear("dragover drop paste lm-dragenter lm-dragover lm-drop", (event) => this.take(event));
  }

  fill(element, pieces) {
    element.innerHTML = pieces.join("");
    element.querySelectorAll("table.op-table").forEach(sortable);
  }

  // -- the form ---------------------------------------------------------------------------------------

  send(name, value) {
    this.view.set("values", { ...this.model.get("values"), [name]: value });
  }

  showForm() {
    const fields = this.model.get("fields").map((field) => [field.name, this.field(field)]);
    const { pages, model, preset, ...others } = Object.fromEntries(fields);
    const held = document.activeElement?.closest?.(".opx-field")?.dataset.name;
    const files = h("input", { type: "file", multiple: true, accept: FILES, "aria-label": "Pages or records", onchange: () => this.upload(files.files) });
    this.quick.replaceChildren(this.field({ ...this.model.get("fields")[0], name: "page", kind: "str" }), model, preset);
    const where = h("input", { type: "text", placeholder: "page.png, scan.pdf#3 or a folder", onchange: () => this.ask("path", { value: where.value }) });
    this.keep = tick("Keep records", true, (on) => this.view.set("keeps", on));
    this.told = h("span");
    this.form.replaceChildren(h("div", { class: "opx-fields" }, h("label", { class: "opx-field" }, "File or folder", where), pages, ...Object.values(others)),
      h("p", { class: "opx-keep" }, this.keep, this.told, files, button("Copy as code", "Copy the lines that measure this in a cell", () => this.ask("code"))));
    this.showValues();
    this.root.querySelector(`[data-name="${held}"] :is(select, input)`)?.focus();
  }

  /** A setting, from `Form.fields`: a list, a list that takes other words too, a tick, a number or words. */
  field({ name, kind, options: known, own, help }) {
    const send = (value) => (name === "page" ? this.send("pages", [value]) : this.send(name, value));
    const words = (type) => h("input", { type, placeholder: help, onchange: ({ target }) =>
      send({ number: target.valueAsNumber, checkbox: target.checked }[type] ?? target.value) });
    let control = words({ int: "number", bool: "checkbox" }[kind] ?? "text");
    if (kind === "many") control = h("select", { multiple: true, size: 4, onchange: () => send([...control.selectedOptions].map(({ value }) => value)) });
    else if (known.length) control = h("select", { onchange: () => {
      if (control.value !== OTHER) return send(control.value);
      const typed = words("text");
      control.replaceWith(typed);
      typed.focus();
    } });
    if (control.options) control.append(...options([...known, ...(own ? [OTHER] : [])].map((value) => [value, value || "default"])));
    this.controls[name] = control;
    return h("label", { class: `opx-field opx-field-${name}`, "data-name": name, title: help }, h("span", {}, name.replaceAll("_", " ")), control);
  }

  showValues() {
    const [values, told, keeps] = ["values", "told", "keeps"].map((name) => this.model.get(name));
    for (const [name, control] of Object.entries(this.controls)) {
      if (control === document.activeElement) continue; // what is being typed stays
      const value = name !== "page" ? values[name] : values.pages.length > 1 ? `${values.pages.length} pages` : values.pages[0];
      if (control.multiple) for (const each of control.options) each.selected = value.includes(each.value);
      else if (control.type === "checkbox") control.checked = value;
      else if (control.options && ![...control.options].some((each) => each.value === String(value))) control.prepend(new Option(value, value, true, true));
      else control.value = value;
    }
    this.told.textContent = told;
    this.keep.firstChild.checked = keeps;
  }

  // -- pages and records come in ----------------------------------------------------------------------

  async upload(files) {
    const list = [...files];
    this.ask("files", { names: list.map(({ name }) => name) }, await Promise.all(list.map((file) => file.arrayBuffer())));
  }

  /** What is dragged over the panel, dropped on it or pasted: files, or paths of JupyterLab's file browser. */
  take(event) {
    const { mimeData } = event;
    const transfer = event.dataTransfer ?? event.clipboardData;
    if (mimeData ? !mimeData.hasData(PATHS) : !transfer.types.includes("Files")) return;
    event.preventDefault();
    event.stopPropagation();
    if (mimeData) event.dropAction = event.proposedAction;
    if (event.type === "lm-drop") mimeData.getData(PATHS).forEach((value) => this.ask("path", { value }));
    else if (["drop", "paste"].includes(event.type)) this.upload(transfer.files);
  }

  // -- running ----------------------------------------------------------------------------------------

  showBusy() {
    const busy = this.model.get("busy");
    const held = [this.run, this.stop].includes(document.activeElement);
    for (const each of [this.run, ...this.head.querySelectorAll(".opx-next")]) each.disabled = busy;
    this.stop.disabled = !busy;
    if (held) (busy ? this.stop : this.run).focus(); // what is disabled loses the keys
    if (busy) this.more.open = false;
  }

  showLivePage() {
    if (this.liveAddress) URL.revokeObjectURL(this.liveAddress);
    this.liveAddress = picture(this.model.get("live_page"));
    this.liveSize = null;
  }

  showLive() {
    const { doing, left, done, total, text, lines, count, top, boxes, size } = this.model.get("live");
    const going = doing !== undefined;
    this.live.hidden = this.progress.hidden = !going;
    this.head.hidden = going; // of another record
    this.view.root.classList.toggle("opx-behind", going);
    if (!going) return;
    this.progress.replaceChildren(h("progress", { max: total, value: done, "aria-label": "Progress" }), h("span", { role: "status" }, [doing, left].filter(Boolean).join(" · ")));
    if (size && !this.liveSize) this.livePage.show({ size, grid: [1, 1], boxes: [] }, this.liveAddress, "The page being read");
    this.liveSize = size;
    if (size) this.livePage.showBoxes(boxes);
    this.liveText.textContent = text;
    this.liveCurve.show(lines, count, top);
  }

  // -- the record shown -------------------------------------------------------------------------------

  showHead() {
    this.head.innerHTML = this.model.get("head");
    const status = this.head.querySelector(".op-status");
    if (!status) return;
    const [{ textContent, className }] = status.children;
    const badge = button(textContent, `${status.textContent} Click to see the checks.`, () => this.view.set("view", "checks"), { class: className });
    const next = this.model.get("next").map((label) => button(label, label, () => this.ask("again", { label }), { class: "opx-next" }));
    status.replaceChildren(badge, ...(textContent === "pass" ? [] : [status.lastChild]), ...next);
    this.showBusy();
  }

  turn() {
    const shown = this.model.get("view");
    check(this.tabs, shown);
    for (const [name, pane] of Object.entries(this.panes)) pane.hidden = name !== shown;
    this.view.pause();
  }

  showParts() {
    const parts = this.model.get("parts");
    for (const name of ["latency", "stages", "checks"]) this.fill(this.panes[name], parts[name]?.length ? parts[name] : ['<p class="op-note">Drawing …</p>']);
  }

  // -- the table of records ---------------------------------------------------------------------------

  list() {
    const { rows = [], shown } = this.model.get("records");
    const used = COLUMNS.filter(([name]) => rows.some((row) => row[name] != null && row[name] !== ""));
    const sorted = this.table.querySelector("[aria-sort$=ending]");
    const table = h("table", { class: "op-table" }, h("thead", {}, h("tr", {}, ...["", ...used.map(([, text]) => text), "steps", ""].map((text) => h("th", { scope: "col" }, text)))),
      h("tbody", {}, ...rows.map((row) => this.row(row, used, row.key === shown))));
    this.table.replaceChildren(table);
    sortable(table);
    const again = [...table.querySelectorAll("th")].find((heading) => sorted?.textContent === heading.textContent);
    while (again && again.getAttribute("aria-sort") !== sorted.getAttribute("aria-sort")) again.firstChild.click();
    this.filterRows();
  }

  filterRows() {
    const words = this.filter.value.toLowerCase();
    for (const row of this.table.querySelectorAll("tbody tr")) row.hidden = !row.textContent.toLowerCase().includes(words);
  }

  row(row, used, shown) {
    const { key } = row;
    const [ticked, pinned] = [this.model.get("ticked"), this.model.get("pinned") === key];
    const name = row.label || row.page || key;
    const act = (text, what, onclick, more) => button(text, what, onclick, { class: "opx-act", "aria-label": `${what} ${name}`, ...more });
    const box = h("input", { type: "checkbox", checked: ticked.includes(key), "aria-label": `Compare ${name}`,
      onchange: () => this.view.set("ticked", box.checked ? [...ticked, key] : ticked.filter((each) => each !== key)) });
    const star = act(pinned ? "★" : "☆", "Pin as the baseline:", () => this.view.set("pinned", pinned ? "" : key), { "aria-pressed": String(pinned) });
    const cells = used.map(([column, , write], place) => {
      const text = row[column] == null ? "" : write ? write(row[column]) : row[column];
      if (place || row.state) return h("td", write ? { class: "op-num", "data-value": row[column] ?? Infinity } : {}, text);
      return h("td", {}, h("button", { type: "button", class: "opx-name", "aria-current": shown, onclick: () => this.ask("show", { key }) }, text || name));
    });
    const rename = () => {
      const field = h("input", { type: "text", value: row.label ?? "", "aria-label": "Label", onkeydown: (event) => event.key === "Enter" && field.blur(), onblur: () => this.ask("rename", { key, value: field.value }) });
      line.querySelector(".opx-name").replaceWith(field);
      field.select();
    };
    const remove = ({ target }) => (target.textContent === "✕" ? (target.textContent = "Delete?") : this.ask("delete", { key }));
    const acts = row.spark?.length ? [act("⤓", "Download", () => this.ask("download", { key })), act("⎙", "Make a report of", () => this.ask("report", { key }))] : [];
    if (row.own) acts.push(act("✎", "Rename", rename), act("✕", "Delete", remove));
    const steps = row.state ? `${row.state} ${row.said ?? ""}` : row.spark ? sparkline(row.spark) : "…";
    const line = h("tr", { class: shown ? "op-strong" : "", "data-key": key }, h("td", {}, ...(row.state ? [] : [box, star])), ...cells, h("td", {}, steps), h("td", {}, ...acts));
    return line;
  }

  // -- answers and keys -------------------------------------------------------------------------------

  answer({ file, copy, saved }, [data]) {
    if (saved) this.save();
    if (copy) {
      const code = h("pre", { class: "opx-code", tabindex: 0 }, copy);
      this.message.replaceChildren(code);
      getSelection().selectAllChildren(code); // on a plain http address there is no clipboard: Ctrl+C does it
      navigator.clipboard?.writeText(copy);
    }
    if (!file) return;
    const link = h("a", { href: URL.createObjectURL(new Blob([data])), download: file });
    link.click();
    URL.revokeObjectURL(link.href);
  }

  /** JupyterLab gets the save that waited for the picture. */
  save() {
    const { ctrlKey, metaKey } = this.saving;
    this.saving = null;
    const target = this.root.contains(document.activeElement) ? document.activeElement : this.root;
    target.dispatchEvent(new KeyboardEvent("keydown", { key: "s", code: "KeyS", keyCode: 83, ctrlKey, metaKey, bubbles: true, cancelable: true }));
  }

  key(event) {
    const { target, isTrusted } = event;
    target.toggleAttribute(KEEPS, isTrusted);
    if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "s") {
      if (!isTrusted || this.root.classList.contains("opx-gone")) return;
      event.preventDefault();
      event.stopImmediatePropagation();
      if (!this.saving) this.ask("save");
      this.saving = event;
    } else if (event.key === "Escape") {
      if (!this.view.escape(event)) target.closest(".jp-Cell")?.focus();
    } else if (this.view.root.contains(target) && this.view.key(event)) event.preventDefault();
  }

  close() {
    this.view.close();
    this.undo.forEach((call) => call());
    if (this.liveAddress) URL.revokeObjectURL(this.liveAddress);
  }
}

export default {
  render({ model, el }) {
    const panel = new Panel(model, el);
    return () => panel.close();
  },
};
