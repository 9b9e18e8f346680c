"""The outputs of a run: metrics, sinks, evaluations, policy files, exports.

May import: build and what that may import.
"""
