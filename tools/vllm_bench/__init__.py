"""Measures vLLM over documents: stock, with lazyrope's kernels, with copies of documents, and with shared documents."""
