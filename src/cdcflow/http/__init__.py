"""The parts of HTTP that the daemon and the push interface share: access, answers, problems, routes over a log."""
