"""Tables in mode history: their versions, and the oracle's."""
