"""What the build knows and the tree does not: where the repository is.

``REPOSITORY_URL`` (``https://HOST/OWNER/NAME``) gives the package its links, and makes those of the
README absolute, so that it reads on a package index. Without it both stay as they are.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK = re.compile(r"(!?)\[((?:!?\[[^\]]*\]\([^)]*\)|[^\]])*)\]\((?!\w+:|#)([^)\s]+)\)")


def absolute(markdown: str, home: str, version: str) -> str:
    """The text with its relative links and pictures at the tag of this version."""

    def link(match: re.Match[str]) -> str:
        picture, text, target = match.groups()
        kind = "raw" if picture else "blob"
        return f"{picture}[{absolute(text, home, version)}]({home}/{kind}/v{version}/{target})"

    return _LINK.sub(link, markdown)


class Links(MetadataHookInterface):
    """The dynamic entries ``readme`` and ``urls``."""

    def update(self, metadata: dict) -> None:
        """Fill them in."""
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        if home := os.environ.get("REPOSITORY_URL", "").rstrip("/"):
            text = absolute(text, home, metadata["version"])
            places = {"Source": "", "Documentation": "/tree/main/docs", "Issues": "/issues"}
            places["Changelog"] = "/blob/main/CHANGELOG.md"
            metadata["urls"] = {name: home + place for name, place in places.items()}
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
