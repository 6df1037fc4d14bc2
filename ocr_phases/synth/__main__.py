"""``python -m ocr_phases.synth OUT_DIR``."""

from ocr_phases.synth import main

if __name__ == "__main__":
    main()
