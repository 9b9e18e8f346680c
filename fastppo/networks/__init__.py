"""The parts of policy.py: normaliser, networks, action heads."""
