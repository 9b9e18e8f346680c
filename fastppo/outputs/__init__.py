"""The outputs of a run: metrics, sinks, evaluations, exports.

May import: build and what that may import.
"""
