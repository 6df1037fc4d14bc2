"""Runs a shipped notebook with papermill and renders it as one HTML file without requests."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ocr_phases import errors
from ocr_phases.assets import asset
from ocr_phases.catalogue import FAMILIES
from ocr_phases.errors import NotebookFailed, OcrPhasesError
from ocr_phases.files import only_writer, output_file, output_folder, read_regular, write_atomic
from ocr_phases.plain_text import plain
from ocr_phases.show.web import document_html
