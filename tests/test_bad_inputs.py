"""One table of bad inputs: each is refused in one sentence or read as far as it can be, and nothing else is lost.

A section is a room or a kind of input; each row is one bad input.
"""

from __future__ import annotations

# -- text of a model or a truth: read within two seconds of CPU, or refused ---------------------------------


# -- lists of pages: a bad line fails alone -------------------------------------------------------------------


# -- records, settings and names ------------------------------------------------------------------------------


# -- calls in a notebook cell ---------------------------------------------------------------------------------


# -- command lines --------------------------------------------------------------------------------------------


# -- the environment: streams, backends, the current folder ---------------------------------------------------
