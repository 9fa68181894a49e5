"""The addresses of the API, by family."""
