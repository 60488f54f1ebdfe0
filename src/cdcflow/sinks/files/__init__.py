"""The change log in a directory: the default sink; also the history of a log in Kafka in a folder."""
