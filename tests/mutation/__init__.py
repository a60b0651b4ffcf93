"""Removes or weakens each wait, fence and barrier of the templates, one at a time, and runs the kernels.

`python -m tests.mutation` says what became of each mutant; results.csv keeps it.
"""
