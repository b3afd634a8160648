"""Looks at results: tables and plots. Never trains."""
