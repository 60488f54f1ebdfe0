"""The earlier name of `cdcflow.demo.load`, for containers and scripts that run it."""

import runpy

if __name__ == "__main__":
    runpy.run_module("cdcflow.demo.load", run_name="__main__", alter_sys=True)
