"""Measures what documents that were computed alone cost in quality, and what each level of recovery wins and takes."""
