"""Results of many ranks side by side: merge_result."""
