"""``python -m ocr_phases`` is ``ocr-phases``."""

import sys

from ocr_phases.cli import main

sys.exit(main())
