/* The panel around the linked view: form, progress, words, views, the table of records, and all events. */

const ACTS = { Download: "⤓", Report: "▤", Rename: "✎", Delete: "✕" };
const FILES = "image/*,.pdf,.tif,.tiff,.json,.gz";
const QUICK = new Set(["model", "preset"]); // settings in the first row
const OTHER = "other …";
const KEEPS = "data-lm-suppress-shortcuts"; // on what has the focus: JupyterLab takes no key of it
const INPUT_TYPES = { int: "number", bool: "checkbox" };
const PATHS = "application/x-jupyter-icontents"; // what JupyterLab's file browser drags
const DROPS = ["dragover", "drop", "paste", "lm-dragenter", "lm-dragover", "lm-drop"];

const part = (name) =>
  `<section class="opx-part" data-pane="${name}" aria-label="${name}"></section>`;
const panelHtml = () => `
  <p class="opx-dead" role="alert">Kernel restarted: run this cell</p>
  <div class="opx-inside"><div class="opx-bar"><span class="opx-quick"></span>
    <button class="opx-run" data-ask="run" title="Measure what is chosen">Run</button>
    <button class="opx-stop" data-ask="stop" title="End the measurement at its next token">Stop</button>
    <details class="opx-more"><summary>More</summary><div class="opx-form"><div class="opx-fields">
      <label class="opx-where">File or folder
        <input type="text" data-ask="path" placeholder="page.png, scan.pdf#3 or a folder"></label></div>
      <p class="opx-keep"><label><input type="checkbox" data-trait="keeps"> Keep records</label>
        <span class="opx-told"></span>
        <input type="file" data-files multiple accept="${FILES}" aria-label="Pages or records">
        <button data-ask="code" title="Copy the lines that measure this in a cell">Copy as code</button></p>
    </div></details></div>
  <div class="opx-message"></div><div class="opx-progress"></div><p class="opx-chosen" role="status"></p>
  <div class="opx-head"></div>
  ${tabs("opx-views", "data-trait=view", "View", ["Page", "Latency", "Stages", "Records", "Checks"])}
  ${viewHtml()}${part("latency")}${part("stages")}${part("checks")}
  <section data-pane="records" aria-label="records"><div class="opv-controls">
    <input type="search" class="opx-filter" placeholder="Filter the records" aria-label="Filter the records">
    <details class="opx-which"><summary>Columns</summary><div class="opx-optional"></div></details>
    <span class="opx-hint">Tick two or more to compare them; ★ is the baseline.</span></div>
    <div class="opx-table"></div>
    <div class="opx-compared"></div></section></div>`;

/** What the panel shows. It remembers what was set, until the kernel is asked for something. */
class PanelShown extends Shown {
  constructor(model) {
    super(model);
    this.touched = new Set();
  }

  set(values) {
    for (const name of Object.keys(values)) {
      this.touched.add(name);
    }
    super.set(values);
  }
}

class Panel extends View {
  constructor(model) {
    super(new PanelShown(model), panelHtml());
    this.model = model;
    this.id = String(Math.random());
    this.unwanted = new Set(); // the columns that a person took out of the table of records
  }

  start(el) {
    super.start(el);
    this.listen(DROPS, (event) => this.take(event));
    this.model.on("msg:custom", (content, buffers) => {
      if (content.to === this.id) {
        this.answer(content, buffers);
      }
    });
    // The kernel restarted.
    this.model.on("comm_live_update", () => this.root.classList.add("opx-gone"));
    return this;
  }

  set(values) {
    this.shown.set(values);
  }

  /** What has the focus, also in a shadow tree. */
  get focused() {
    return this.root.getRootNode().activeElement;
  }

  /** Ask the kernel, and tell it what was set before: while it is slow, changes are held back. */
  ask(what, content = {}, buffers = []) {
    const names = [...this.shown.touched];
    this.shown.touched.clear();
    const state = Object.fromEntries(names.map((name) => [name, this.model.get(name)]));
    this.model.send({ do: what, from: this.id, state, ...content }, undefined, buffers);
  }

  /** What is drawn again when a trait changes. */
  drawings() {
    const { model } = this;
    const html = (name) => this.fill(this[name], [model.get(name)]);
    return {
      fields: () => this.showForm(),
      "values told keeps": () => this.showValues(),
      "records ticked pinned": () => this.list(),
      bar: () => {
        this.bar.hidden = !model.get("bar");
      },
      busy: () => this.showBusy(),
      head: () => this.showHead(),
      parts: () => this.showParts(),
      message: () => html("message"),
      compared: () => html("compared"),
      view: () => {
        this.pause();
        turn(this.inside, this.views, model.get("view"));
      },
      ...super.drawings(),
      chosen_page: () => this.showChosenPage(),
      live: () => this.showLive(),
    };
  }

  click(event) {
    const { target } = event;
    const { ask, trait } = target.matches("button") ? target.dataset : {};
    const content = { key: target.value, label: target.textContent };
    if (ask === "rename") {
      content.value = prompt("Name of this record");
      if (content.value === null) {
        return;
      }
    }
    if (ask === "delete" && !confirm(`${target.ariaLabel}?`)) {
      return;
    }
    if (trait) {
      this.set({ [trait]: target.value });
    } else if (ask) {
      this.ask(ask, content);
    } else if (this.view.contains(target)) {
      super.click(event);
    }
  }

  input(event) {
    if (event.target === this.filter) {
      this.filterRows();
    }
    super.input(event);
  }

  /** A control was changed: its data attribute says what it stands for. */
  change({ target }) {
    const { type, checked, multiple, selectedOptions: chosen } = target;
    const typed = multiple ? Array.from(chosen, (each) => each.value) : target.value;
    const value = type === "checkbox" ? checked : typed;
    const calls = {
      trait: (name) => this.setTrait(name, value),
      name: (name) => this.choose(target, name, value),
      tick: (key) => this.tick(key, value),
      ask: (what) => this.ask(what, { value }),
      files: () => this.upload(target.files),
      column: (name) => this.chooseColumn(name, value),
      side: () => this.showBeside(value),
    };
    for (const [name, said] of Object.entries(target.dataset)) {
      calls[name]?.(said);
    }
  }

  /** Set a trait from a control, whose value is text also where it is a number. */
  setTrait(name, value) {
    const isNumber = typeof this.model.get(name) === "number";
    this.set({ [name]: isNumber ? Number(value) : value });
  }

  /** Tick a record for the comparison, or take its tick away. */
  tick(key, isTicked) {
    const others = this.model.get("ticked").filter((each) => each !== key);
    this.set({ ticked: isTicked ? [...others, key] : others });
  }

  fill(element, pieces) {
    element.innerHTML = pieces.join("");
    element.querySelectorAll("table.op-table").forEach(sortable);
  }

  /** Set a setting; in place of a list's last choice a person types what it does not have. */
  choose(control, name, value) {
    const chosen = name === "page" ? { pages: [value] } : { [name]: value };
    if (value !== OTHER) {
      this.set({ values: { ...this.model.get("values"), ...chosen } });
      return;
    }
    const typed = h("input", { type: "text", "data-name": name });
    control.replaceWith(typed);
    typed.focus();
  }

  showForm() {
    const fields = this.model.get("fields");
    const { name } = this.focused?.dataset ?? {};
    const made = Object.fromEntries(fields.map((field) => [field.name, this.field(field)]));
    const { model, preset } = made;
    const page = { ...fields[0], name: "page", label: "Page", kind: "str" };
    this.quick.replaceChildren(this.field(page), model, preset);
    this.fields.replaceChildren(...this.groups(fields, made));
    this.fields.querySelector("legend").after(this.where);
    this.showValues();
    this.root.querySelector(`[data-name="${name}"]`)?.focus();
  }

  /** The fields below the first row, each group under its name. */
  groups(fields, made) {
    const names = [...new Set(fields.map(({ group }) => group))];
    return names.map((group) => {
      const own = fields.filter((each) => each.group === group && !QUICK.has(each.name));
      return h("fieldset", h("legend", group), ...own.map(({ name }) => made[name]));
    });
  }

  /** A setting, from `Form.fields`: a list, a list that takes other words too, a tick, a number or words. */
  field({ name, label, kind, options: known, own, help }) {
    const many = kind === "many";
    const about = { title: `${name}: ${help}` };
    const title = h("span", label);
    let control;
    if (many || known.length) {
      const choices = own ? [...known, OTHER] : known;
      const options = choices.map((value) => option([value, value || "default"]));
      control = h("select", { "data-name": name, multiple: many, size: many && 4 }, ...options);
    } else {
      const type = INPUT_TYPES[kind] ?? "text";
      control = h("input", { "data-name": name, type, placeholder: "default" });
      if (type === "checkbox") {
        return h("label.opx-field.opx-tick", about, control, title);
      }
    }
    return h("label.opx-field", about, title, control);
  }

  showValues() {
    const values = this.model.get("values");
    const { pages } = values;
    const page = pages.length > 1 ? `${pages.length} pages` : (pages[0] ?? "");
    const shown = { ...values, page };
    for (const control of this.bar.querySelectorAll("[data-name]")) {
      if (control !== this.focused) {
        // what is being typed stays
        this.showValue(control, shown[control.dataset.name]);
      }
    }
    this.told.textContent = this.model.get("told");
    this.keep.querySelector("input").checked = this.model.get("keeps");
  }

  /** Show a setting's value in its control; a list gets a value that it does not have yet. */
  showValue(control, value) {
    const listed = [...(control.options ?? [])];
    if (control.multiple) {
      for (const each of listed) {
        each.selected = value.includes(each.value);
      }
      return;
    }
    if (control.options && !listed.some((each) => each.value === value)) {
      control.prepend(new Option(value, value));
    }
    if (control.type === "checkbox") {
      control.checked = value;
    } else {
      control.value = value;
    }
  }

  async upload(files) {
    const list = [...files];
    const buffers = await Promise.all(list.map((file) => file.arrayBuffer()));
    this.ask("files", { names: list.map(({ name }) => name) }, buffers);
  }

  /** What is dragged over the panel, dropped or pasted: files, or paths of JupyterLab's file browser. */
  take(event) {
    const { mimeData } = event;
    const transfer = event.dataTransfer ?? event.clipboardData;
    const isOurs = mimeData ? mimeData.hasData(PATHS) : transfer.types.includes("Files");
    if (!isOurs) {
      return;
    }
    event.preventDefault();
    event.stopPropagation();
    if (mimeData) {
      event.dropAction = event.proposedAction;
    }
    if (event.type === "lm-drop") {
      for (const value of mimeData.getData(PATHS)) {
        this.ask("path", { value });
      }
    } else if (["drop", "paste"].includes(event.type)) {
      this.upload(transfer.files);
    }
  }

  showBusy() {
    const busy = this.model.get("busy");
    const held = [this.run, this.stop].includes(this.focused);
    for (const each of this.root.querySelectorAll(".opx-run, .opx-next")) {
      each.disabled = busy;
    }
    this.stop.disabled = !busy;
    if (held) {
      const enabled = busy ? this.stop : this.run;
      enabled.focus(); // what is disabled loses the keys
    }
    if (busy) {
      this.more.open = false;
    }
  }

  showLive() {
    const live = this.model.get("live");
    const { doing, left, done, total, warning } = live;
    this.progress.hidden = doing === undefined;
    this.head.hidden = doing !== undefined; // of another record
    if (doing === undefined) {
      this.shown.live = false;
      if (this.watched) {
        this.load();
      }
      return;
    }
    const said = h("span", { role: "status" }, [doing, left].filter(Boolean).join(" · "));
    this.progress.replaceChildren(
      h("progress", { max: total, value: done, "aria-label": "Progress" }),
      said,
      h("p", { role: "status", hidden: !warning }, warning),
    );
    this.watch(live);
  }

  /** A page that has not been measured stands in place of the record's, whose result is grey. */
  showChosenPage() {
    const { said, size, href } = this.model.get("chosen_page");
    const isChosen = said !== undefined;
    const wasChosen = this.root.classList.contains("opx-stale");
    this.chosen.textContent = said ?? "";
    this.chosen.hidden = !isChosen;
    this.root.classList.toggle("opx-stale", isChosen);
    if (isChosen) {
      this.pause();
      this.page.root.hidden = false;
      this.page.show({ size, boxes: [], href });
    } else if (wasChosen) {
      this.load();
    }
  }

  /** The head's badge opens the checks. What passes needs no words. */
  showHead() {
    this.fill(this.head, [this.model.get("head")]);
    const status = this.head.querySelector(".op-status");
    if (!status) {
      this.showBusy();
      return; // there is no record yet
    }
    const { firstChild: badge, lastChild: said } = status;
    const opens = {
      class: badge.className,
      title: said.data,
      "data-trait": "view",
      value: "checks",
    };
    badge.replaceWith(h("button", opens, badge.textContent));
    if (badge.matches(".op-pass")) {
      said.remove();
    }
    this.showBusy();
  }

  showParts() {
    const parts = this.model.get("parts");
    for (const pane of this.root.querySelectorAll(".opx-part")) {
      const drawn = parts[pane.dataset.pane] ?? [];
      this.fill(pane, drawn.length ? drawn : ['<p class="op-note">Drawing …</p>']);
    }
  }

  /** The table of records, sorted and scrolled as it was, with the focus on the same tick. */
  list() {
    const { scrollLeft = 0, scrollTop = 0 } = this.table.querySelector(".op-scroll") ?? {};
    const { tick } = this.table.contains(this.focused) ? this.focused.dataset : {};
    const sorted = this.table.querySelector("[aria-sort$=ending]");
    this.fill(this.table, [this.model.get("records")]);
    for (const row of this.table.querySelectorAll("tbody tr")) {
      this.equip(row);
    }
    const again = this.table.querySelectorAll("th")[sorted?.cellIndex];
    while (again && again.ariaSort !== sorted.ariaSort) {
      again.firstChild.click();
    }
    this.filterRows();
    this.offerColumns();
    this.table.querySelector(".op-scroll")?.scrollTo(scrollLeft, scrollTop);
    if (tick) {
      this.table.querySelector(`[data-tick="${tick}"]`)?.focus({ preventScroll: true });
    }
  }

  /** The columns of the table by the first words of their headings. */
  headings() {
    const cells = [...this.table.querySelectorAll("th")];
    return cells.map((cell) => cell.textContent.replace("↕", "").trim());
  }

  /** Offer a tick for each column but the first two, which say which record a row is. */
  offerColumns() {
    const names = this.headings().slice(2);
    const ticks = names.map((name) => {
      const checked = !this.unwanted.has(name);
      return h("label", h("input", { type: "checkbox", checked, "data-column": name }), ` ${name}`);
    });
    this.optional.replaceChildren(...ticks);
    this.showColumns();
  }

  chooseColumn(name, isWanted) {
    if (isWanted) {
      this.unwanted.delete(name);
    } else {
      this.unwanted.add(name);
    }
    this.showColumns();
  }

  showColumns() {
    const hidden = this.headings().map((name) => this.unwanted.has(name));
    for (const row of this.table.querySelectorAll("tr")) {
      for (const [place, cell] of [...row.cells].entries()) {
        cell.hidden = hidden[place] ?? false;
      }
    }
  }

  filterRows() {
    const words = this.filter.value.toLowerCase();
    for (const row of this.table.querySelectorAll("tbody tr")) {
      row.hidden = !row.textContent.toLowerCase().includes(words);
    }
  }

  /** Put what can be done with a record into its row. */
  equip(row) {
    const {
      value,
      dataset: { own, read },
    } = row.querySelector("data");
    const [first, page] = row.cells;
    const name = page.textContent;
    const pinned = this.model.get("pinned") === value;
    const act = (sign, what, more) =>
      h("button.opx-act", { value, title: what, "aria-label": `${what} ${name}`, ...more }, sign);
    const star = {
      "data-trait": "pinned",
      value: pinned ? "" : value,
      "aria-pressed": String(pinned),
    };
    const checked = this.model.get("ticked").includes(value);
    const tick = { type: "checkbox", checked, "data-tick": value, "aria-label": `Compare ${name}` };
    if (read !== undefined) {
      first.replaceChildren(h("input", tick), act(pinned ? "★" : "☆", "Pin as the baseline", star));
      page.replaceChildren(h("button.opx-name", { value, "data-ask": "show" }, name));
    }
    const acts = [];
    if (read !== undefined) {
      acts.push("Download", "Report");
    }
    if (own !== undefined) {
      acts.push("Rename", "Delete");
    }
    for (const what of acts) {
      first.append(act(ACTS[what], what, { "data-ask": what.toLowerCase() }));
    }
  }

  answer({ file, copy, saved }, [data]) {
    if (saved) {
      this.save();
    }
    if (copy) {
      const code = h("pre.opx-code", { tabindex: 0 }, copy);
      this.message.replaceChildren(code);
      getSelection().selectAllChildren(code); // on a plain http address there is no clipboard: Ctrl+C does it
      navigator.clipboard?.writeText(copy);
    }
    if (!file) {
      return;
    }
    const link = h("a", { href: URL.createObjectURL(new Blob([data])), download: file });
    link.click();
    URL.revokeObjectURL(link.href);
  }

  /** JupyterLab gets the save that waited for the picture. */
  save() {
    const { saving: pressed, root } = this;
    this.saving = null;
    const target = root.contains(this.focused) ? this.focused : root;
    target.dispatchEvent(new KeyboardEvent("keydown", pressed));
  }

  keydown(event) {
    const { target, isTrusted, key } = event;
    target.toggleAttribute(KEEPS, isTrusted);
    if ((event.ctrlKey || event.metaKey) && key.toLowerCase() === "s") {
      if (!isTrusted || this.root.classList.contains("opx-gone")) {
        return;
      }
      event.preventDefault();
      event.stopImmediatePropagation();
      if (!this.saving) {
        this.ask("save");
      }
      this.saving = event;
    } else if (key === "Escape") {
      if (!this.escape()) {
        target.closest(".jp-Cell")?.focus();
      }
    } else if (this.steer(event)) {
      event.preventDefault();
    }
  }
}

function render({ model, el }) {
  const panel = new Panel(model).start(el);
  return () => {
    panel.end();
    model.off();
  };
}

export default { render };
