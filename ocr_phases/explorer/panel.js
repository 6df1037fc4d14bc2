/* The panel around the linked view: bar, progress, words, views and the table of records, keys, drop and paste. */

const VIEWS = [["page", "Page"], ["latency", "Latency"], ["stages", "Stages"], ["records", "Records"]];
const COLUMNS = [["label", "label"], ["page", "page"], ["model", "model"], ["preset", "preset"], ["how", "strategy"],
  ["prefill_ms", "prefill"], ["inter_token_ms", "a token"], ["tokens_per_s", "tokens/s"], ["cer", "CER"], ["energy_j", "energy"], ["created", "when"]];
const WRITE = { prefill_ms: duration, inter_token_ms: duration, tokens_per_s: digits, cer: (part) => `${digits(100 * part)} %`, energy_j: (joule) => `${digits(joule)} J` };
const FILES = "image/*,.pdf,.tif,.tiff,.json,.gz";
const KEEPS = "data-lm-suppress-shortcuts"; // on what has the focus: JupyterLab takes no key of it
const PATHS = "application/x-jupyter-icontents"; // what JupyterLab's file browser drags

/** One choice of a few, as a row of buttons that is one stop of the Tab key. */
class Switch {
  constructor(label, options, choose, role = "radio") {
    this.buttons = new Map(options.map(([name, text]) => [name, make("button", { type: "button", role, on: { click: () => choose(name) } }, text)]));
    this.state = role === "tab" ? "aria-selected" : "aria-checked";
    this.element = make("div", { class: "opx-switch", role: role === "tab" ? "tablist" : "radiogroup", "aria-label": label, on: { keydown: (event) => {
      const names = [...this.buttons.keys()];
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key] ?? { Home: -names.length, End: names.length }[event.key];
      if (!step) return;
      const at = [...this.buttons.values()].indexOf(event.target);
      const name = names[Math.abs(step) > 1 ? clamp(at + step, 0, names.length - 1) : (at + step + names.length) % names.length];
      choose(name);
      this.buttons.get(name).focus();
      event.preventDefault();
    } } }, ...this.buttons.values());
  }
  mark(chosen) {
    const names = [...this.buttons.keys()];
    for (const [name, each] of this.buttons) {
      each.setAttribute(this.state, name === chosen);
      each.tabIndex = name === chosen || (!names.includes(chosen) && name === names[0]) ? 0 : -1;
    }
  }
}

/** Put text on the clipboard, which is not there on a plain http address, else select it. */
async function copied(control, text, element) {
  const before = control.textContent;
  try {
    await navigator.clipboard.writeText(text);
    control.textContent = "Copied";
  } catch {
    getSelection().selectAllChildren(element);
    control.textContent = "Selected: press Ctrl+C";
  }
  setTimeout(() => (control.textContent = before), 2000);
}

class Panel {
  constructor(model, el) {
    Object.assign(this, { model, el, id: Math.random().toString(36).slice(2), sorted: ["", 1], wanted: "" });
    this.view = new View(model);
    this.build();
    this.follow();
  }

  ask(what, content = {}, buffers = []) {
    this.message.replaceChildren();
    this.model.send({ do: what, from: this.id, ...content }, undefined, buffers);
  }

  build() {
    const part = (name, tag = "div", more = {}) => (this[name] = make(tag, { class: `opx-${name}`, ...more }));
    this.run = make("button", { type: "button", class: "opx-run", on: { click: () => this.ask("run") } }, "Run");
    this.stop = make("button", { type: "button", class: "opx-stop", on: { click: () => this.ask("stop") } }, "Stop");
    this.more = make("button", { type: "button", class: "opx-open", "aria-expanded": false, on: { click: () => this.unfold() } }, "More");
    this.file = make("input", { type: "file", class: "opx-file", multiple: true, accept: FILES, hidden: true, "aria-label": "Choose files", on: { change: () => {
      this.take(this.file.files);
      this.file.value = "";
    } } });
    part("quick", "span");
    part("bar").append(this.quick, this.run, this.stop, this.more, this.file);
    part("form", "div", { hidden: true });
    part("message");
    part("progress", "div", { hidden: true });
    part("head", "header");
    this.switch = new Switch("View", VIEWS, (name) => this.view.set("view", name), "tab");
    for (const [name] of VIEWS) {
      this.switch.buttons.get(name).id = `${this.id}-${name}`;
      this.switch.buttons.get(name).setAttribute("aria-controls", `${this.id}-of-${name}`);
    }
    part("live", "div", { hidden: true });
    this.livePage = new Page({});
    this.liveCurve = new Curve({});
    this.liveText = make("pre", { tabindex: 0, "aria-label": "The text so far" });
    this.live.append(this.livePage.svg, make("div", {}, this.liveCurve.svg, make("div", { class: "opx-stream" }, this.liveText)));
    this.found = make("input", { type: "search", placeholder: "Filter the records", "aria-label": "Filter the records", on: { input: () => this.list() } });
    part("table", "div", { class: "opx-table op", tabindex: 0, role: "region", "aria-label": "Records" });
    part("compared");
    this.parts = { latency: make("div"), stages: make("div"), checks: make("div") };
    const contents = {
      page: [this.live, this.view.root], latency: [this.parts.latency],
      stages: [this.parts.stages],
      records: [make("div", { class: "opv-controls" }, this.found, make("span", { class: "opx-hint" }, "Tick two to compare them; ★ is the baseline.")), this.table, this.compared],
      checks: [this.parts.checks],
    };
    this.panes = Object.fromEntries(Object.entries(contents).map(([name, inside]) => [name, make("section", {
      class: `opx-pane opx-pane-${name}`, id: `${this.id}-of-${name}`, role: name === "checks" ? "region" : "tabpanel",
      "aria-label": name === "checks" ? "Checks" : null, "aria-labelledby": name === "checks" ? null : `${this.id}-${name}` }, ...inside)]));
    const dead = make("p", { class: "opx-dead", role: "alert" }, "Kernel restarted: run this cell");
    this.inside = make("div", { class: "opx-inside" }, this.bar, this.form, this.message, this.progress, this.head, this.switch.element, ...Object.values(this.panes), this.view.tip);
    this.root = make("div", { class: "opx", tabindex: -1 }, dead, this.inside);
    this.el.append(this.root);
  }

  /** Draw what the model holds, now and whenever it changes. */
  follow() {
    const { model, view } = this;
    const draw = {
      form: () => this.showForm(), head: () => this.showHead(), parts: () => this.showParts(), records: () => this.list(),
      message: () => (this.message.innerHTML = model.get("message")), compared: () => this.fill(this.compared, [model.get("compared")]),
      live: () => this.showLive(), view: () => this.turn(), busy: () => this.showBusy(), keeps: () => this.showForm(), bar: () => (this.bar.hidden = !model.get("bar")),
      data: () => view.load(), sheet: () => view.showPage(), color: () => view.restyle(), token: () => view.mark(),
      ticked: () => this.list(), pinned: () => this.list(), live_page: () => this.showLivePage(),
    };
    this.changes = Object.entries(draw).map(([name, call]) => [`change:${name}`, call]);
    this.changes.push(["msg:custom", (content, buffers) => content.to === this.id && this.answer(content, buffers)]);
    this.changes.push(["comm_live_update", () => this.root.classList.add("opx-gone")]); // the kernel restarted
    for (const [name, call] of this.changes) model.on(name, call);
    Object.values(draw).forEach((call) => call());
    const on = (target, names, call, capture = false) => names.split(" ").forEach((name) => {
      target.addEventListener(name, call, capture);
      this.undo.push(() => target.removeEventListener(name, call, capture));
    });
    this.undo = [];
    on(window, "keydown", (event) => this.key(event), true); // before JupyterLab, which listens at the document
    const mine = (call) => (event) => this.root.contains(event.target) && call(event);
    on(window, "dragover lm-dragenter lm-dragover", mine((event) => this.over(event)), true);
    on(window, "dragleave lm-dragleave", () => this.root.classList.remove("opx-over"), true);
    on(window, "drop lm-drop", mine((event) => this.drop(event)), true);
    on(window, "paste", mine((event) => event.clipboardData.files.length && (this.take(event.clipboardData.files), event.preventDefault())), true);
  }

  fill(element, pieces) {
    element.innerHTML = pieces.join("");
    element.querySelectorAll("table.op-table").forEach(sortable);
  }

  // -- the form ---------------------------------------------------------------------------------------

  showForm() {
    const { fields, values, pages, folder, told, thumb } = this.model.get("form");
    if (!fields) return;
    const send = (name, value) => this.ask("form", { name, value });
    // What a person is in is not made anew for what they changed in it themselves.
    const shape = JSON.stringify([fields, pages, values.pages.length > 1, folder, told, this.typing]);
    if (shape === this.shape) {
      this.form.querySelector("img").src = thumb;
      for (const select of this.quick.querySelectorAll("select"))
        select.value = select.closest(".opx-field").dataset.name === "page" ? values.pages[0] : values[select.closest(".opx-field").dataset.name];
      return;
    }
    this.shape = shape;
    const held = document.activeElement?.closest?.(".opx-field")?.dataset.name;
    const controls = Object.fromEntries(fields.map((field) => [field.name, this.field(field, values[field.name], send)]));
    const [first] = values.pages;
    const several = values.pages.length > 1 ? [["", `${values.pages.length} pages`]] : [];
    const page = this.list_of("page", "Page", [...several, ...pages.map((name) => [name, name])], several.length ? "" : first, (name) => name && send("pages", [name]));
    this.quick.replaceChildren(page, controls.model, controls.preset);
    const many = (name, label, options) => {
      const select = make("select", { multiple: true, size: 4, on: { change: () => send(name, [...select.selectedOptions].map((each) => each.value)) } },
        ...options.map((value) => make("option", { value, selected: values[name].includes(value) }, value)));
      return this.labelled(name, label, select);
    };
    const presets = fields.find(({ name }) => name === "preset").options.map(([name]) => name).filter(Boolean);
    const path = this.words("path", "File or folder", "", "page.png, scan.pdf#3 or a folder", (value) => this.ask("path", { value }));
    const keep = tick("Keep records", this.model.get("keeps"), (on) => this.view.set("keeps", on));
    keep.classList.add("opx-keep");
    const others = fields.filter(({ name }) => !["model", "preset"].includes(name)).map(({ name }) => controls[name]);
    this.form.replaceChildren(make("img", { src: thumb, alt: "The chosen page", hidden: !thumb }), make("div", { class: "opx-fields" }, path, many("pages", "Pages, one after another", pages),
      many("presets", "Further presets", presets), ...others, this.words("folder", "Folder of records", folder, "", (value) => this.ask("folder", { value }))),
      make("p", {}, keep, ` ${told} `, button("Choose files …", "Choose pages or records", () => this.file.click()), button("Copy as code", "Copy the lines that measure this in a cell", () => this.ask("code"))));
    if (held) this.root.querySelector(`[data-name="${held}"] :is(select, input)`)?.focus();
  }

  labelled(name, label, control, help = "") {
    return make("label", { class: `opx-field opx-field-${name}`, "data-name": name, title: help }, make("span", {}, label), control);
  }

  list_of(name, label, options, value, change, help = "") {
    const select = make("select", { on: { change: () => change(select.value) } }, ...options.map(([each, text]) => make("option", { value: each }, text)));
    select.value = value;
    return this.labelled(name, label, select, help);
  }

  words(name, label, value, placeholder, change, help = "") {
    return this.labelled(name, label, make("input", { type: "text", value, placeholder, on: { change: (event) => change(event.target.value) } }), help);
  }

  field({ name, label, help, options, own, kind, least }, value, send) {
    if (options.length) {
      if (this.typing === name) return this.words(name, label, value, help, (text) => ((this.typing = ""), send(name, text)), help);
      const known = options.some(([each]) => each === value) ? options : [[value, value], ...options];
      return this.list_of(name, label, own ? [...known, ["…", "other …"]] : options, value, (text) => {
        if (text !== "…" || !own) return send(name, text);
        this.typing = name;
        this.showForm();
        this.root.querySelector(`.opx-field-${name} input`).select();
      }, help);
    }
    if (kind === "tick") {
      const box = tick(label, value, (on) => send(name, on));
      return make("span", { class: `opx-field-${name}`, "data-name": name, title: help }, box);
    }
    if (kind === "text") return this.words(name, label, value, help, (text) => send(name, text), help);
    const number = make("input", { type: "number", value, min: least, on: { change: () => number.reportValidity() && send(name, number.valueAsNumber) } });
    return this.labelled(name, label, number, help);
  }

  unfold() {
    this.form.hidden = !this.form.hidden;
    this.more.setAttribute("aria-expanded", !this.form.hidden);
    this.more.textContent = this.form.hidden ? "More" : "Less";
  }

  // -- pages and records come in ----------------------------------------------------------------------

  async take(files) {
    const list = [...files];
    this.ask("files", { names: list.map(({ name }) => name) }, await Promise.all(list.map((file) => file.arrayBuffer())));
  }

  over(event) {
    if (event.type.startsWith("lm-") ? !event.mimeData.hasData(PATHS) : !event.dataTransfer.types.includes("Files")) return;
    event.preventDefault();
    event.stopPropagation();
    if (event.type === "lm-dragover") event.dropAction = event.proposedAction;
    this.root.classList.add("opx-over");
  }

  drop(event) {
    this.root.classList.remove("opx-over");
    const paths = event.mimeData?.hasData(PATHS) ? event.mimeData.getData(PATHS) : null;
    if (!paths && !event.dataTransfer?.files.length) return;
    event.preventDefault();
    event.stopPropagation();
    if (paths) event.dropAction = event.proposedAction;
    paths ? paths.forEach((value) => this.ask("path", { value })) : this.take(event.dataTransfer.files);
  }

  // -- running ----------------------------------------------------------------------------------------

  showBusy() {
    const busy = this.model.get("busy");
    const held = [this.run, this.stop].includes(document.activeElement);
    this.run.disabled = busy;
    this.stop.disabled = !busy;
    if (held) (busy ? this.stop : this.run).focus(); // what is disabled loses the keys
    for (const each of this.head.querySelectorAll("button.opx-next")) each.disabled = busy;
    if (busy && !this.form.hidden) this.unfold();
  }

  showLivePage() {
    const bytes = this.model.get("live_page");
    if (this.liveAddress) URL.revokeObjectURL(this.liveAddress);
    this.liveAddress = picture(bytes);
    this.liveSize = null;
  }

  showLive() {
    const live = this.model.get("live");
    const going = live.doing !== undefined;
    this.live.hidden = this.progress.hidden = !going;
    this.head.hidden = going; // of another record
    this.view.root.classList.toggle("opx-behind", going);
    if (!going) return;
    const bar = make("progress", { max: live.total, value: live.done, "aria-label": "Progress" });
    this.progress.replaceChildren(bar, make("span", { role: "status" }, [live.doing, live.left].filter(Boolean).join(" · ")));
    if (live.size && !this.liveSize) {
      [this.liveSize] = [live.size];
      this.livePage.show({ width: live.size[0], height: live.size[1], grid: [1, 1], boxes: [] }, this.liveAddress, "The page being read");
    }
    if (live.size) this.livePage.showBoxes(live.boxes);
    this.liveText.textContent = live.text;
    const whole = live.lines.map(([length, points]) => points.reduce((line, [token, ms]) => ((line[token] = ms), line), Array(length)));
    this.liveCurve.show(whole, live.count, live.top);
  }

  // -- the record shown -------------------------------------------------------------------------------

  showHead() {
    const head = this.model.get("head");
    if (!head.title) return void this.head.replaceChildren();
    const bar = make("div", { class: "op" });
    bar.innerHTML = head.bar;
    const badge = make("button", { type: "button", class: `opx-badge op-badge op-${head.verdict}`, title: `${head.said} Click to see the checks.`, on: { click: () => this.view.set("view", "checks") } }, head.verdict);
    const next = head.next.map((label) => make("button", { type: "button", class: "opx-next", on: { click: () => this.ask("again", { label }) } }, label));
    this.head.replaceChildren(make("p", { class: "opx-about", title: head.subject }, make("strong", {}, head.title), ` · ${head.about}`),
      make("p", { class: "opx-headline" }, head.headline), bar, make("p", { class: "opx-status" }, badge, head.verdict === "pass" ? "" : ` ${head.said}`, ...next));
    this.showBusy();
  }

  turn() {
    const shown = this.model.get("view");
    this.switch.mark(shown);
    for (const [name, pane] of Object.entries(this.panes)) pane.hidden = name !== shown;
    this.view.pause();
    this.showParts();
  }

  showParts() {
    const parts = this.model.get("parts");
    for (const [name, element] of Object.entries(this.parts)) {
      const pieces = parts[name] ?? [];
      if (element.pieces === pieces) continue;
      element.pieces = pieces;
      this.fill(element, pieces.length ? pieces : ['<p class="op-note">Drawing …</p>']);
    }
  }

  // -- the table of records ---------------------------------------------------------------------------

  list() {
    const { rows = [], jobs = [], shown } = this.model.get("records");
    const [column, way] = this.sorted;
    const words = this.found.value.toLowerCase();
    const found = rows.filter((row) => Object.values(row).join(" ").toLowerCase().includes(words));
    if (column) found.sort((one, other) => way * ((one[column] ?? "") === "" ? 1 : (other[column] ?? "") === "" ? -1 : one[column] > other[column] ? 1 : one[column] < other[column] ? -1 : 0));
    const used = COLUMNS.filter(([name]) => rows.some((row) => row[name] != null && row[name] !== ""));
    const headings = used.map(([name, text]) => make("th", { scope: "col", "aria-sort": column === name ? (way > 0 ? "ascending" : "descending") : "none" },
      make("button", { type: "button", on: { click: () => {
        this.sorted = [name, column === name ? -way : 1];
        this.list();
        this.table.querySelectorAll("thead button")[used.findIndex(([each]) => each === name)].focus();
      } } }, text)));
    const waiting = jobs.filter(({ state }) => jobs.length > 1 || state !== "done").map((job) => this.jobRow(job, used));
    this.table.replaceChildren(make("table", { class: "op-table" }, make("thead", {}, make("tr", {}, make("td"), ...headings, make("th", { scope: "col" }, "steps"), make("td"))),
      make("tbody", {}, ...waiting, ...found.map((row) => this.recordRow(row, used, row.key === shown)))));
  }

  jobRow(job, used) {
    const cells = used.map(([name]) => make("td", {}, name === "label" ? job.state : (job[name] ?? "")));
    const said = job.record ? make("button", { type: "button", class: "opx-name", on: { click: () => this.show(job.record) } }, job.said || "show") : job.said;
    const words = job.state === "running" && this.model.get("live").doing ? this.model.get("live").doing : said;
    return make("tr", { class: `opx-job opx-${job.state.replace(" ", "-")}` }, make("td"), ...cells, make("td", { colspan: 2 }, used.some(([name]) => name === "label") ? "" : `${job.state} `, words));
  }

  recordRow(row, used, shown) {
    const { key } = row;
    const ticked = this.model.get("ticked");
    const name = row.label || row.page || key;
    const box = make("input", { type: "checkbox", checked: ticked.includes(key), "aria-label": `Compare ${name}`,
      on: { change: () => this.view.set("ticked", box.checked ? [...ticked, key] : ticked.filter((each) => each !== key)) } });
    const pinned = this.model.get("pinned") === key;
    const act = (text, label, call) => make("button", { type: "button", class: "opx-act", "aria-label": `${label} ${name}`, title: label, on: { click: call } }, text);
    const star = act(pinned ? "★" : "☆", pinned ? "Unpin the baseline" : "Pin as the baseline:", () => this.view.set("pinned", pinned ? "" : key));
    star.setAttribute("aria-pressed", pinned);
    const cells = used.map(([column], place) => {
      const text = row[column] == null || row[column] === "" ? "" : (WRITE[column]?.(row[column]) ?? String(row[column]));
      if (place) return make("td", { class: WRITE[column] ? "op-num" : "" }, text);
      return make("td", {}, make("button", { type: "button", class: "opx-name", "aria-current": shown, on: { click: () => this.show(key) } }, text || row.page || "record"));
    });
    const acts = [act("⤓", "Download", () => this.ask("download", { key })), act("⎙", "Make a report of", () => this.ask("report", { key }))];
    if (row.own) {
      acts.push(act("✎", "Rename", () => this.rename(row)));
      const sure = this.wanted === key;
      acts.push(act(sure ? "Delete?" : "✕", "Delete", () => (sure ? this.ask("delete", { key }) : ((this.wanted = key), this.list()))));
    }
    const curve = row.said ?? (row.spark ? sparkline(row.spark) : "…");
    return make("tr", { class: shown ? "op-strong" : "", "data-key": key }, make("td", {}, box, star), ...cells, make("td", {}, curve), make("td", { class: "opx-acts" }, ...acts));
  }

  rename(row) {
    const field = make("input", { type: "text", value: row.label ?? "", "aria-label": "Label", on: {
      keydown: (event) => event.key === "Enter" && field.blur(), blur: () => (field.value !== (row.label ?? "") ? this.ask("rename", { key: row.key, value: field.value }) : this.list()) } });
    this.table.querySelector(`[data-key="${row.key}"] .opx-name`).replaceWith(field);
    field.select();
  }

  show(key) {
    this.ask("show", { key });
    this.view.set("view", "page");
  }

  // -- answers and keys -------------------------------------------------------------------------------

  answer({ file, copy, saved }, [data]) {
    if (saved) this.save();
    if (copy) {
      const code = make("pre", { class: "opx-code", tabindex: 0 }, copy);
      this.message.replaceChildren(code);
      copied(this.form.querySelector("button:last-of-type"), copy, code);
    }
    if (!file) return;
    const link = make("a", { href: URL.createObjectURL(new Blob([data])), download: file });
    link.click();
    URL.revokeObjectURL(link.href);
  }

  /** JupyterLab gets the save that waited for the picture. */
  save() {
    const { ctrlKey, metaKey } = this.saving;
    this.saving = null;
    (this.root.contains(document.activeElement) ? document.activeElement : this.root).dispatchEvent(
      new KeyboardEvent("keydown", { key: "s", code: "KeyS", keyCode: 83, ctrlKey, metaKey, bubbles: true, cancelable: true }));
  }

  key(event) {
    const { target } = event;
    if (!(target instanceof Element) || !this.root.contains(target)) return;
    target.toggleAttribute(KEEPS, event.isTrusted);
    if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "s") {
      if (!event.isTrusted || this.root.classList.contains("opx-gone")) return;
      event.preventDefault();
      event.stopImmediatePropagation();
      if (!this.saving) this.ask("save");
      this.saving = event;
    } else if (event.key === "Escape") {
      if (!this.view.escape(event)) target.closest(".jp-Cell")?.focus();
    } else if (this.view.root.contains(target)) {
      if (!event.defaultPrevented && this.view.key(event)) event.preventDefault();
    }
  }

  close() {
    this.view.close();
    this.liveCurve.close();
    this.undo.forEach((call) => call());
    for (const [name, call] of this.changes) this.model.off(name, call);
    if (this.liveAddress) URL.revokeObjectURL(this.liveAddress);
  }
}

function sparkline(times) {
  const top = Math.max(...times);
  const points = times.map((ms, place) => `${((place * 80) / Math.max(times.length - 1, 1)).toFixed(1)},${(19 - (18 * ms) / top).toFixed(1)}`);
  return draw("svg", { class: "opx-spark", viewBox: "0 0 80 20", role: "img", "aria-label": `${times.length} medians up to ${duration(top)}` }, draw("polyline", { points: points.join(" ") }));
}

export default {
  render({ model, el }) {
    const panel = new Panel(model, el);
    return () => panel.close();
  },
};
