"""Current-state tables and the cuts over them: the Spark job. The only room that names pyspark or Delta."""
