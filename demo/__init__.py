"""The main job, shown on a real API server: ``make demo``."""
