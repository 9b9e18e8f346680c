"""The parts of learner.py: batches, coefficients, losses, optimizers."""
