"""A JupyterLab of its own and a browser on it: for the browser tests and the pictures in docs."""

import contextlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[1]
CHROMIUM = Path("/usr/bin/chromium")
TOKEN = "tests-only"
_START_S = 60.0

#: The notebook in front of the others.
FRONT = ".jp-NotebookPanel:not(.lm-mod-hidden)"

# The page says "Idle" before its session is there, and running a cell then asks for a kernel.
READY = """() => {
  const session = window.jupyterapp?.shell.currentWidget?.sessionContext;
  return session?.isReady && session.session?.kernel?.connectionStatus === 'connected'
    && session.session.kernel.status === 'idle';
}"""


def missing() -> str | None:
    """What a browser test lacks here, as the reason to skip it; None where all is there."""
    if not CHROMIUM.exists():
        return f"there is no {CHROMIUM}"
    if importlib.util.find_spec("playwright") is None:
        return "playwright is not installed"
    return None


@contextlib.contextmanager
def jupyter_lab(folder: Path) -> Iterator[str]:
    """A server with the shipped notebooks and sample pages in ``folder``; yields its address."""
    root = folder / "root"
    shutil.copytree(REPOSITORY / "notebooks", root)
    shutil.copytree(REPOSITORY / "data" / "pages", root / "pages")
    config = folder / "jupyter_config_path" / "labconfig"
    config.mkdir(parents=True)
    quiet = {"fetchNews": "false", "checkForUpdates": False}
    (config / "default_setting_overrides.json").write_text(
        json.dumps({"@jupyterlab/apputils-extension:notification": quiet})
    )
    names = [f"JUPYTER_{name}_DIR" for name in ("CONFIG", "DATA", "RUNTIME")]
    names += ["JUPYTERLAB_SETTINGS_DIR", "JUPYTERLAB_WORKSPACES_DIR", "IPYTHONDIR"]
    own = {name: str(folder / name.lower()) for name in names}
    own["JUPYTER_CONFIG_PATH"] = str(config.parent)
    options = {
        "ServerApp.ip": "127.0.0.1",
        "ServerApp.port": 0,
        "IdentityProvider.token": TOKEN,
        "ServerApp.root_dir": root,
        "ServerApp.terminals_enabled": False,
        "LabApp.extension_manager": "readonly",
        "LabApp.expose_app_in_browser": True,
    }
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root"]
    command += [f"--{name}={value}" for name, value in options.items()]
    with (folder / "server.log").open("w") as log:
        server = subprocess.Popen(command, env={**os.environ, **own}, stdout=log, stderr=log)
    try:
        yield _address(server, own["JUPYTER_RUNTIME_DIR"], folder / "server.log")
    finally:
        server.terminate()  # the server ends its kernels
        try:
            server.wait(10)
        except subprocess.TimeoutExpired:  # one that is starting a kernel does not hear it
            server.kill()


def _address(server: subprocess.Popen[bytes], runtime: str, log: Path) -> str:
    """The address that a server writes down once it listens."""
    from jupyter_server.serverapp import list_running_servers

    end = time.monotonic() + _START_S
    while time.monotonic() < end and server.poll() is None:
        for running in list_running_servers(runtime):
            return str(running["url"]).rstrip("/")
        time.sleep(0.2)
    raise RuntimeError(f"JupyterLab did not start:\n{log.read_text()[-2000:]}")


@contextlib.contextmanager
def chromium() -> Iterator[Any]:
    """A headless Chromium, as a playwright browser."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        yield browser
        browser.close()


def open_notebook(page: Any, address: str, name: str = "explore.ipynb") -> None:
    """Open a notebook in a fresh workspace and wait for its kernel."""
    page.goto(f"{address}/doc/tree/{name}?token={TOKEN}&reset")
    page.wait_for_function(READY, timeout=60_000)


@contextlib.contextmanager
def notebook_beside(page: Any, name: str) -> Iterator[Any]:
    """Another notebook in front of the open one, with its kernel; yields its panel, and closes it
    at the end.
    """
    page.evaluate(
        """async (path) => {
      const { context, sessionContext } = jupyterapp.shell.currentWidget;
      window.behind = context.path;
      const kernel = sessionContext.session.kernel.model;
      await jupyterapp.commands.execute('docmanager:open', { path, kernel });
    }""",
        name,
    )
    page.wait_for_function(READY)
    try:
        yield page.locator(FRONT)
    finally:
        page.evaluate("""async () => {
          jupyterapp.shell.currentWidget.dispose();
          await jupyterapp.commands.execute('docmanager:open', { path: window.behind });
        }""")
        page.wait_for_function(READY)


def reopen(page: Any) -> None:
    """Save and close the notebook, and open its file as another browser would."""
    page.evaluate("""async () => {
      const { context } = jupyterapp.shell.currentWidget;
      await context.save();
      jupyterapp.shell.currentWidget.dispose();
      await jupyterapp.commands.execute('docmanager:open', { path: context.path });
    }""")
    page.wait_for_function(READY)


def run_all(page: Any) -> None:
    """Run every cell, to the end."""
    page.evaluate("jupyterapp.commands.execute('notebook:run-all-cells')")


def set_theme(page: Any, theme: str) -> None:
    """``JupyterLab Light`` or ``JupyterLab Dark``."""
    page.evaluate("(theme) => jupyterapp.commands.execute('apputils:change-theme', {theme})", theme)
    light = str(theme.endswith("Light")).lower()
    page.wait_for_selector(f"body[data-jp-theme-light={light}]", state="attached")


def open_view(page: Any, name: str) -> None:
    """Bring a view of the explorer to the front."""
    page.click(f".opx-inside > .opx-tabs label:has-text('{name}')")
    page.wait_for_selector(f"[data-pane={name.lower()}]", state="visible")
