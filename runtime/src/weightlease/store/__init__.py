"""Stores of published weight artifacts."""
