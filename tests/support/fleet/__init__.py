"""A fleet of simulated members."""
