"""Triton's runtime."""
