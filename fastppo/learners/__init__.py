"""Learning and central acting by other means than torch's plain ones: compiled, or on a device.

May import: workers, learner and what these may import.
"""
