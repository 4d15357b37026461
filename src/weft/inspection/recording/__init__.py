"""Recording: what attention was given, kept while a model runs."""
