"""The earlier name of `cdcflow.demo.load`, for containers and scripts that run it."""
