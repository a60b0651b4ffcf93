"""Documents in any order inside an unmodified vLLM."""
