"""Presets, schedules, metric names, and the spelling and values of settings, as data.

May import: nothing of fastppo.
"""
