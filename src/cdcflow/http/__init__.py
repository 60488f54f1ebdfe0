"""HTTP as the daemon and the push interface share it: who may ask, answers, problems, routes over a log."""
