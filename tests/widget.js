/* Shows a widget of ocr_phases without a kernel: its script, the state of its model, and the data that it shares. */
async ([script, state, data]) => {
  const address = URL.createObjectURL(new Blob([script], { type: "text/javascript" }));
  const { default: widget } = await import(address);
  const calls = {};
  window.model = {
    get: (name) => state[name],
    set: (name, value) => {
      state[name] = value;
      for (const call of calls[`change:${name}`] ?? []) {
        call();
      }
    },
    save_changes: () => {},
    on: (event, call) => {
      calls[event] = [...(calls[event] ?? []), call];
    },
    off: () => {},
    send: () => {},
    widget_manager: { get_model: async () => ({ get: () => data }) },
  };
  await widget.render({ model: window.model, el: document.querySelector("main") ?? document.body });
}
