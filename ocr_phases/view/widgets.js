/* The widgets of a finished record. Several of one record share its data, which is a model of its own. */

const SHARED = "IPY_MODEL_"; // what stands before the id of a model in a trait that holds one

/** A widget's model, whose `data` another model has. */
class Sharing {
  constructor(model) {
    this.model = model;
    this.source = null;
    this.calls = [];
  }

  async connect() {
    const id = this.model.get("source").slice(SHARED.length);
    const source = await this.model.widget_manager.get_model(id);
    if (source === this.source) {
      return;
    }
    this.source = source;
    for (const call of this.calls) {
      call();
    }
  }

  get(name) {
    return name === "data" ? this.source?.get("data") : this.model.get(name);
  }

  set(name, value) {
    this.model.set(name, value);
  }

  save_changes() {
    this.model.save_changes();
  }

  on(event, call) {
    if (event === "change:data") {
      this.calls.push(call);
    } else {
      this.model.on(event, call);
    }
  }
}

const PARTS = {
  page: PagePart,
  curve: CurvePart,
  tokens: TokensPart,
  timeline: TimelinePart,
};

function linkedOf(shown, kind) {
  if (kind === "record") {
    return new View(shown);
  }
  const part = new PARTS[kind](shown);
  return new Linked(shown, h("div.opx.op.opv", part.root), [part]);
}

async function render({ model, el }) {
  const sharing = new Sharing(model);
  await sharing.connect();
  model.on("change:source", () => sharing.connect());
  const linked = linkedOf(new Shown(sharing), model.get("kind")).start(el);
  model.on("comm_live_update", () => linked.root.classList.add("opx-gone")); // the kernel restarted
  return () => {
    linked.end();
    model.off();
  };
}

export default { render };
