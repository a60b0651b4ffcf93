"""Removes or weakens each wait, fence and barrier of the templates, one at a time, and runs the kernels.

`python -m tests.mutation` prints what caught each mutant, and `--keep` writes it to results.csv.
"""
