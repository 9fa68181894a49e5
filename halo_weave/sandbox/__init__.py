"""Runs untrusted work (chat templates, jq filters, documents) in a subprocess with limits on time, memory and files."""
