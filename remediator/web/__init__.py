"""The controller's HTTP server: health, readiness, metrics. Nothing here changes anything."""
