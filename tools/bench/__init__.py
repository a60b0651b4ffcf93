"""The project's benchmarks: rows with limits, beside the attention kernels of other projects.

``python -m tools.bench NAME`` measures more than ``lazyrope bench``, by the same timer and in the same way:

- ``own`` is lazyrope's kernel with one setting changed, for example one document without rotation ("plain").
- Peers of other packages are measured where these are installed. They read keys that were rotated beforehand,
  contiguous or in pages of the row's size. ``lazy_on_flashinfer`` alone knows documents and rotates queries.
- A limit bounds a row's time by another time of the same row: required limits fail ``--check``, aims do not.
"""
