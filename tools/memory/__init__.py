"""Measures memories of documents (lazyrope.memory) on SmolLM2-135M."""
