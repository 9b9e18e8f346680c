"""From an id, a class or a callable to an environment: makes, wraps and lists environments."""
