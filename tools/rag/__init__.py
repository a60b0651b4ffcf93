"""Lazy RoPE on a real model that answers questions about documents: what it needs, in parts."""
