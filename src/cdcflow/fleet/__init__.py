"""A fleet: the reports that its members publish, where they publish them, and the resulting row for each pipeline."""
