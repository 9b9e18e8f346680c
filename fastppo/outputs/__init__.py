"""What a run reports and leaves: metrics, sinks, evaluations, policy files, exports.

May import: build and what that may import.
"""
