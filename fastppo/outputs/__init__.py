"""The outputs of a run: metrics, sinks, evaluations, exports.

May import: files and what that may import.
"""
