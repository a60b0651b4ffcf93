"""Checks and times lazy RoPE with a real model that answers questions about documents."""
