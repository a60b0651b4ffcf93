"""The rows that ``lazyrope bench`` measures."""

from __future__ import annotations

from .shapes import Shape

# Requests and context of decode, as (batch, context).
DECODE_SIZES = ((1, 16384), (8, 16384), (64, 4096), (64, 16384))
# Chunks of one request, as (query tokens, context).
CHUNK_SIZES = ((64, 8192), (256, 8192), (512, 32768), (2048, 8192))

TABLES = {
    "decode": [Shape("decode", batch, 1, context) for batch, context in DECODE_SIZES],
    "prefill": [Shape("prefill", 1, query_tokens, context) for query_tokens, context in CHUNK_SIZES],
    "append": [Shape("append", 64, 1, 0), Shape("append", 1, 16384, 0)],
    "reposition": [Shape("reposition", 1, 1024, 0), Shape("reposition", 1, 16384, 0)],
}
TABLES["all"] = [shape for table in TABLES.values() for shape in table]

# The name of the steps whose requests share documents. Their shapes come from options, not from a table.
SHARED = "shared"
