"""Where concrete sources, sinks and the pipeline meet: the only place that knows all of them."""
