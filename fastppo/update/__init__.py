"""The parts of learner.py: batches, coefficients, losses, optimizers.

May import: networks, policy, collect and what these may import.
"""
