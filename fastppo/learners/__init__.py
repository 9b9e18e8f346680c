"""The update of learner.py computed by other means: compiled, and shared with workers.

May import: workers, learner and what these may import.
"""
