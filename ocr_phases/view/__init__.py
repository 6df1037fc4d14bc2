"""The linked view: page, latency curve, tokens and text of one record, which show the same
token.
"""
