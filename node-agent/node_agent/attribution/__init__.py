"""Which pods use which GPU, MIG instance and process: the kubelet, /proc and the API server."""
