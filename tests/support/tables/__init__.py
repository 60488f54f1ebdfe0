"""Current-state tables: their histories, folds, files and damages."""
