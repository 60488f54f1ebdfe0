"""The reference pages that are generated from the code: settings, options of commands, and types.

`python -m tests.reference` (`make reference`) writes them, and a test compares them with the code.
"""
