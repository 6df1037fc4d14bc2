"""The wheel, built from the source distribution, carries what a person without the source tree
needs.
"""

import re
import shutil
import subprocess
import sys
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder

from ocr_phases.versions import __version__

ROOT = Path(__file__).parents[1]
HOME = "https://forge.example/someone/ocr_phases"


def test_the_wheel_works_without_the_source_tree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (source,) = map(Path, SdistBuilder(str(ROOT)).build(directory=str(tmp_path)))
    shutil.unpack_archive(source, tmp_path)
    unpacked = str(source).removesuffix(".tar.gz")
    monkeypatch.setenv("REPOSITORY_URL", HOME)
    (wheel,) = map(Path, WheelBuilder(unpacked).build(directory=str(tmp_path)))
    assert wheel.stat().st_size <= 19_000_000 and source.stat().st_size <= 25_000_000
    archive = zipfile.ZipFile(wheel)
    names = archive.namelist()
    check_metadata(archive.read(f"ocr_phases-{__version__}.dist-info/METADATA").decode())
    wanted = {"notebooks/page_report.ipynb", "data/pages/receipt.png", "data/pages/receipt.json"}
    wanted |= {"data/tiny/model.safetensors", "data/tiny/tokenizer.json"}
    assert {f"ocr_phases/_assets/{name}" for name in wanted} | {"ocr_phases/py.typed"} <= set(names)
    assert not [
        name for name in names if "checkpoints" in name or "reads.png" in name or "tests" in name
    ]

    site = tmp_path / "site"
    archive.extractall(site)
    page = site / "ocr_phases" / "_assets" / "data" / "pages" / "slide.png"
    quick = ["--preset=tiny", "--max-new-tokens=3", "--repeats=1", "--warmup=0", "--no-ceilings"]
    command = [
        sys.executable,
        "-m",
        "ocr_phases.cli",
        "profile",
        str(page),
        *quick,
        "--save=run.json",
    ]
    own = {"PYTHONPATH": str(site), "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"}
    answer = subprocess.run(
        command, cwd=tmp_path, env=own, capture_output=True, text=True, check=True
    )
    assert answer.stdout.splitlines()[-1].startswith("Wrote")


def check_metadata(text: str) -> None:
    """The package's page on an index links into the repository, to files that are there."""
    metadata = Parser().parsestr(text)
    urls = dict(url.split(", ") for url in metadata.get_all("Project-URL", []))
    assert set(urls) == {"Source", "Documentation", "Issues", "Changelog"}
    assert all(url.startswith(HOME) for url in urls.values())
    links = re.findall(r"\]\(([^)\s]+)\)", str(metadata.get_payload()))
    assert len(links) > 20
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for link in links:
        if link.startswith("#"):
            words = link.removeprefix("#").replace("-", " ")
            assert f"\n## {words.capitalize()}\n" in readme, link
            continue
        kind = "raw" if link.endswith(".png") else "blob"
        place, _, file = link.partition(f"/{kind}/v{__version__}/")
        assert place == HOME and (ROOT / file.partition("#")[0]).exists(), link
