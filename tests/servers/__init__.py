"""Every server that cdcflow is for, and what is tested on each: `make test-servers`."""
