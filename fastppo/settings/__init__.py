"""Settings as data: presets, values and their rules, names."""
