"""The project's benchmarks, which compare its kernels with limits and with the kernels of other projects.

``python -m tools.bench NAME`` measures more than ``lazyrope bench``, by the same timer and in the same way:

- ``own`` is lazyrope's kernel with one setting changed, for example one document without rotation ("plain").
- Peers of other packages are measured where these are installed. They read keys that were rotated beforehand,
  contiguous or in pages of the row's size. ``lazy_on_flashinfer`` alone knows documents and rotates queries.
  ``flashinfer_cascade`` and ``vllm_flash_attention_3`` share a prefix that all requests have at the same positions.
- A limit bounds a row's time by another time of the same row. An unmet required limit fails ``--check``, an unmet aim
  does not.
"""
