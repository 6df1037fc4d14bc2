"""The wheel carries what a person without the source tree needs."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_wheel_works_without_the_source_tree(tmp_path):
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assets = [name.removeprefix("ocr_phases/_assets/") for name in names if "/_assets/" in name]
    for wanted in (
        "notebooks/page_report.ipynb",
        "data/tiny/model.safetensors",
        "data/tiny/tokenizer.json",
        "data/pages/receipt.png",
        "data/pages/receipt.json",
    ):
        assert wanted in assets
    assert "ocr_phases/py.typed" in names
    assert not [name for name in names if "checkpoints" in name or "reads.png" in name or "tests" in name]

    site = tmp_path / "site"
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(site), str(wheel)]
    subprocess.run(install, check=True, capture_output=True)
    page = site / "ocr_phases" / "_assets" / "data" / "pages" / "slide.png"
    run = [sys.executable, "-m", "ocr_phases.cli", "profile", str(page), "--max-new-tokens", "3"]
    answer = subprocess.run(
        [*run, "--repeats", "1", "--warmup", "0", "--save", str(tmp_path / "run.json")],
        cwd=tmp_path,
        env={"PYTHONPATH": str(site), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert answer.stdout.splitlines()[-1].startswith("Wrote")
