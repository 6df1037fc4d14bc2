"""The record of a measurement: its data, its schema, its file, and the store that resumes."""

from ocr_phases.record.record import NO_PAGE as NO_PAGE
from ocr_phases.record.record import PHASES as PHASES
from ocr_phases.record.record import RANDOM_WEIGHTS as RANDOM_WEIGHTS
from ocr_phases.record.record import SCHEMA as SCHEMA
from ocr_phases.record.record import TEXT_ONLY as TEXT_ONLY
from ocr_phases.record.record import Record as Record
from ocr_phases.record.record import RecordType as RecordType
from ocr_phases.record.record import make_spans as make_spans
from ocr_phases.record.schema import SPAN_COLUMNS as SPAN_COLUMNS
from ocr_phases.record.schema import is_whole_phase as is_whole_phase
