"""Spaces, observations and actions as arrays."""
