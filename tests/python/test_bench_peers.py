"""The peers of ``python -m tools.bench``, without their packages: their arguments, and the rows that they refuse."""

from __future__ import annotations

import gc
import sys
import unittest.mock
import weakref
from dataclasses import replace

import pytest
import torch
from lazyrope.bench.peers import UnsupportedShape, peer_calls
from lazyrope.bench.timer import Memory

from tests.support.bench import SMALL
from tools.bench import fa3_peer, host, package_peers
from tools.bench.kv import Pages
from tools.bench.peers import PEERS, importable
from tools.bench.prefix_peers import PREFIX_PEERS
from tools.bench.shapes import DECODE_PEERS, PREFILL_PEERS, Shape
from tools.bench.shared import SharedShape, shared

MAKERS = {name: peer.make for name, peer in PEERS.items()}


def one_document(requests: int) -> SharedShape:
    return SharedShape("decode", requests, 1, 96, doc_tokens=96, stored=1, **SMALL)


class TestPeers:
    @pytest.fixture
    def flashinfer(self, monkeypatch):
        """A stand-in for the package. Calls are not captured as graphs."""
        module = unittest.mock.MagicMock()
        monkeypatch.setitem(sys.modules, "flashinfer", module)
        monkeypatch.setattr(package_peers, "Captured", lambda call: call)
        monkeypatch.setattr(package_peers, "WORKSPACE", 1 << 10)
        return module

    def test_rows_name_every_peer(self):
        assert {*DECODE_PEERS, *PREFILL_PEERS, *PREFIX_PEERS} == set(PEERS)
        assert {name for shape in shared() for name in shape.peers} == {*PREFIX_PEERS}

    def test_a_missing_package_is_named(self, monkeypatch, capsys):
        for name, package in {"cudnn": "no_such_package", "cudnn_paged": "no_such.package"}.items():
            monkeypatch.setitem(PEERS, name, replace(PEERS[name], package=package))
        assert [*importable(("cudnn", "cudnn_paged", "flash_attention_2"))] == ["flash_attention_2"]
        errors = capsys.readouterr().err
        assert "cudnn is left out: the Python package no_such_package is not installed" in errors
        assert "cudnn_paged is left out: the Python package no_such.package is not installed" in errors

    def test_no_two_requests_share_a_page(self):
        pages = Pages([100, 40, 48], Shape("decode", 3, 1, 40, **SMALL), Memory("cpu"))
        assert pages.k.shape == pages.v.shape == (7 + 3 + 3, 16, 2, 64)
        assert pages.table.shape == (3, 7) and pages.indptr.tolist() == [0, 7, 10, 13]
        assert sorted(pages.indices.tolist()) == list(range(13))
        for row, (begin, end) in enumerate(((0, 7), (7, 10), (10, 13))):
            assert pages.table[row, : end - begin].tolist() == pages.indices[begin:end].tolist()
        assert pages.last.tolist() == [4, 8, 16] and pages.lengths.tolist() == [100, 40, 48]

    def test_pytorch_has_no_requests_of_different_lengths(self, capsys):
        shape = Shape("decode", 2, 1, 32, first_context=64)
        assert peer_calls(shape, Memory("cpu"), importable(["cudnn", "flash_attention_2"])) == {}
        assert capsys.readouterr().err.count("has no requests of different lengths") == 2

    def test_cudnn_gets_pages_of_the_row_s_size(self, monkeypatch):
        """The frontend takes pools as [pages, heads, page_size, head_dim] and page tables of four dimensions."""
        graph = unittest.mock.MagicMock()
        graph.tensor_like.side_effect = lambda tensor: tensor
        graph.get_workspace_size.return_value = 0
        result = unittest.mock.MagicMock()
        graph.sdpa.return_value = result, None
        module = unittest.mock.MagicMock(**{"pygraph.return_value": graph})
        monkeypatch.setitem(sys.modules, "cudnn", module)
        shape = Shape("decode", 3, 4, 96, page_size=32, first_context=200, **SMALL)
        PEERS["cudnn_paged"].make(shape, Memory("cpu"))()
        given = graph.sdpa.call_args.kwargs
        assert given["q"].shape == (3, 4, 4, 64)
        assert given["k"].shape == given["v"].shape == (7 + 3 + 3, 2, 32, 64)
        assert given["k"].stride() == (2 * 32 * 2 * 64, 64, 2 * 64, 1)  # NHD, like the row's own pool
        assert given["paged_attention_k_table"].shape == (3, 1, 7, 1)
        assert given["seq_len_kv"].flatten().tolist() == [200, 96, 96]
        assert given["paged_attention_max_seq_len_kv"] == 200 and given["attn_scale"] == 1 / 8
        (tensors, _), _ = graph.execute.call_args
        assert tensors[result].shape == (3, 4, 4, 64)

    def test_xqa_gets_lengths_and_pages(self, flashinfer):
        shape = Shape("decode", 3, 1, 96, page_size=32, first_context=200, **SMALL)
        PEERS["flashinfer_xqa"].make(shape, Memory("cpu"))()
        (q, (k, _), _, table, lengths, longest), options = flashinfer.decode.xqa_batch_decode_with_kv_cache.call_args
        assert q.shape == (3, 4, 64) and k.shape == (13, 32, 2, 64) and table.shape == (3, 7) and longest == 200
        assert lengths.dtype == torch.uint32 and lengths.tolist() == [200, 96, 96]
        assert options == {"bmm1_scale": 1 / 8, "kv_layout": "NHD"}

    def test_flashinfer_fa2_plans_what_it_runs(self, flashinfer):
        PEERS["flashinfer_fa2"].make(Shape("decode", 2, 4, 96, mask="causal", **SMALL), Memory("cpu"))()
        wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper.return_value
        (indptr, indices, last, *sizes), options = wrapper.plan.call_args
        assert indptr.tolist() == [0, 6, 12] and len(indices) == 12 and last.tolist() == [16, 16]
        assert sizes == [4, 2, 64, 16] and options["q_len_per_req"] == 4
        (q, (k, _)), _ = wrapper.run.call_args
        assert q.shape == (8, 4, 64) and k.shape == (12, 16, 2, 64)

    def test_flash_attention_4_gets_lengths_and_pages(self, monkeypatch):
        module = unittest.mock.MagicMock()
        monkeypatch.setitem(sys.modules, "flash_attn", unittest.mock.MagicMock())
        monkeypatch.setitem(sys.modules, "flash_attn.cute", module)
        module.flash_attn_varlen_func.return_value = ("out", "lse")
        shape = Shape("decode", 2, 4, 96, mask="causal", **SMALL)
        assert PEERS["flash_attention_4"].make(shape, Memory("cpu"))() == "out"
        (q, k, _), options = module.flash_attn_varlen_func.call_args
        assert q.shape == (2, 4, 4, 64) and k.shape == (12, 16, 2, 64) and options["causal"]
        assert options["page_table"].shape == (2, 6) and options["seqused_k"].tolist() == [96, 96]

    def test_lazy_decode_on_flashinfer_attends_to_each_document_apart(self, flashinfer):
        """Each document is a request, with queries rotated by their distance from the document's first token."""
        wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper.return_value
        wrapper.run.side_effect = lambda q, kv, return_lse: (q, q[..., 0].float())
        flashinfer.merge_states.side_effect = lambda out, lse: (out.sum(1), lse.sum(1))
        shape = Shape("decode", 2, 1, 96, doc_tokens=40, **SMALL)
        call = PEERS["lazy_on_flashinfer"].make(shape, Memory("cpu"))
        assert call().shape == (2, 4, 64)
        (indptr, _, last, *_), options = wrapper.plan.call_args
        assert indptr.tolist() == [0, 3, 6, 7, 10, 13, 14] and last.tolist() == [8, 8, 16] * 2
        assert options["q_len_per_req"] == 1
        (rotated, keys, distances), options = flashinfer.apply_rope_pos_ids_inplace.call_args
        assert distances.tolist() == [96, 56, 16] * 2 and options == {"interleave": False}
        assert torch.equal(rotated[0], rotated[2]) and not torch.equal(rotated[0], rotated[3])
        assert rotated.shape == (6, 4, 64) and keys.shape == (6, 1, 64)

    def test_lazy_chunks_on_flashinfer_merge_the_outputs_of_documents(self, flashinfer):
        """Outputs are merged token by token."""
        wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper.return_value
        wrapper.run.side_effect = lambda q, kv, return_lse: (q, q[..., 0].float())
        flashinfer.merge_states.side_effect = lambda out, lse: (out.sum(1), lse.sum(1))
        shape = Shape("prefill", 2, 3, 80, doc_tokens=40, **SMALL)
        result = PEERS["lazy_on_flashinfer"].make(shape, Memory("cpu"))()
        (tokens, indptr, *_), options = wrapper.plan.call_args
        assert tokens.tolist() == [0, 3, 6, 9, 12] and indptr.tolist() == [0, 3, 6, 9, 12] and not options["causal"]
        (rotated, keys, distances), _ = flashinfer.apply_rope_pos_ids_inplace.call_args
        assert distances.tolist() == [80, 81, 82, 40, 41, 42] * 2 and keys.shape == (12, 1, 64)
        assert rotated.shape == (12, 4, 64) and torch.equal(rotated[:3], rotated[3:6])
        assert torch.equal(result, 2 * torch.cat([rotated[:3], rotated[6:9]]))

    def test_flashinfer_s_cascade_has_all_queries_over_the_pages_of_the_prefix(self, flashinfer):
        PEERS["flashinfer_cascade"].make(one_document(6), Memory("cpu"))()
        assert flashinfer.MultiLevelCascadeAttentionWrapper.call_args.args[0] == 1
        wrapper = flashinfer.MultiLevelCascadeAttentionWrapper.return_value
        (tokens, indptr, indices, last, *sizes), options = wrapper.plan.call_args
        assert [x.tolist() for (x,) in (tokens, indptr, last)] == [[0, 6], [0, 6], [16]] and len(indices[0]) == 6
        assert sizes == [4, 2, 64, 16] and options == {"q_data_type": torch.bfloat16, "kv_data_type": torch.bfloat16}
        (q, (k, v)), _ = wrapper.run.call_args
        assert q.shape == (6, 4, 64) and k.shape == v.shape == (6, 16, 2, 64)

    def test_vllm_s_attention_has_all_queries_as_one_sequence(self, monkeypatch, tmp_path):
        """The schema of the operators is vLLM 0.26.0's."""
        ops = unittest.mock.MagicMock()
        monkeypatch.setattr(fa3_peer, "load_vllm_ops", lambda: ops)
        out = PEERS["vllm_flash_attention_3"].make(one_document(6), Memory("cpu"))()
        sizes = ops.get_scheduler_metadata.call_args.args
        assert sizes[:7] == (1, 6, 96, 4, 2, 64, 64) and len(sizes) == 23 and sizes[14] == 16
        given = ops.fwd.call_args.args
        assert len(given) == 37 and given[6] is out and out.shape == given[0].shape == (6, 4, 64)
        assert given[7].tolist() == [0, 6] and given[11].tolist() == [96] and given[12:14] == (6, 96)
        assert given[14].shape == (1, 6) and given[23:25] == (1 / 8, False)
        assert given[29] is ops.get_scheduler_metadata.return_value

    @pytest.mark.parametrize("kv_dtype", ["bfloat16", "float8_e4m3fn"])
    def test_flash_attention_3_reads_pages_or_contiguous_keys(self, monkeypatch, kv_dtype):
        """With keys of 8 bits, the queries have 8 bits, too."""
        ops = unittest.mock.MagicMock()
        monkeypatch.setattr(fa3_peer, "load_vllm_ops", lambda: ops)
        shape = replace(Shape("prefill", 3, 4, 96, mask="causal", **SMALL), kv_dtype=kv_dtype)
        out = PEERS["flash_attention_3"].make(shape, Memory("cpu"))()
        paged = ops.fwd.call_args.args
        assert ops.get_scheduler_metadata.call_args.args[:8] == (3, 4, 96, 4, 2, 64, 64, getattr(torch, kv_dtype))
        assert paged[7].tolist() == [0, 4, 8, 12] and paged[11].tolist() == [96] * 3 and paged[14].shape == (3, 6)
        assert paged[1].shape == (18, 16, 2, 64) and paged[24] and len(paged) == 37
        PEERS["flash_attention_3_contiguous"].make(shape, Memory("cpu"))()
        contiguous = ops.fwd.call_args.args
        assert contiguous[1].shape == (288, 2, 64) and contiguous[8].tolist() == [0, 96, 192, 288]
        assert contiguous[11] is contiguous[14] is contiguous[29] is None and len(contiguous) == 37
        for given in (paged, contiguous):
            assert given[0].dtype == getattr(torch, kv_dtype) and out.dtype == torch.bfloat16
            assert [x if x is None else x.shape for x in given[20:23]] == [
                None if kv_dtype == "bfloat16" else (3, 2)
            ] * 3

    def test_vllm_s_library_is_loaded_without_importing_vllm(self, monkeypatch, tmp_path):
        (tmp_path / "vllm/vllm_flash_attn").mkdir(parents=True)
        (tmp_path / "vllm/__init__.py").write_text("raise ImportError('was imported')")
        monkeypatch.syspath_prepend(str(tmp_path))
        loaded = []
        monkeypatch.setattr(torch.ops, "load_library", loaded.append)
        with pytest.raises(UnsupportedShape, match=r"has no vllm_flash_attn/_vllm_fa3_C\.abi3\.so in the package vllm"):
            fa3_peer.load_vllm_ops()
        library = tmp_path / "vllm/vllm_flash_attn/_vllm_fa3_C.abi3.so"
        library.touch()
        fa3_peer.load_vllm_ops()
        assert loaded == [library]

    @pytest.mark.parametrize("name", PREFIX_PEERS)
    def test_requests_with_documents_in_other_orders_have_no_common_prefix(self, flashinfer, capsys, name):
        two = replace(one_document(6), stored=2, zipf="any order", doc_tokens=48, peers=(name,))
        assert peer_calls(two, Memory("cpu"), MAKERS) == {}
        assert f"{name} is left out: shares only a prefix that all requests have" in capsys.readouterr().err

    @pytest.mark.parametrize("backend", ["fa2", "fa3"])
    def test_flashinfer_plans_the_queries_and_pages_of_chunks(self, flashinfer, backend):
        shape = Shape("prefill", 2, 20, 96, mask="causal", **SMALL)
        PEERS[f"flashinfer_{backend}"].make(shape, Memory("cpu"))()
        assert flashinfer.BatchPrefillWithPagedKVCacheWrapper.call_args.kwargs["backend"] == backend
        wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper.return_value
        (tokens, indptr, *_), options = wrapper.plan.call_args
        assert tokens.tolist() == [0, 20, 40] and indptr.tolist() == [0, 6, 12] and options["causal"]

    def test_flashinfer_gets_contiguous_keys_of_chunks(self, flashinfer):
        PEERS["flashinfer_contiguous"].make(Shape("prefill", 2, 20, 96, **SMALL), Memory("cpu"))()
        wrapper = flashinfer.BatchPrefillWithRaggedKVCacheWrapper.return_value
        (tokens, keys, *sizes), options = wrapper.plan.call_args
        assert tokens.tolist() == [0, 20, 40] and keys.tolist() == [0, 96, 192]
        assert sizes == [4, 2, 64] and not options["causal"]
        (q, k, v), _ = wrapper.run.call_args
        assert q.shape == (40, 4, 64) and k.shape == v.shape == (192, 2, 64)

    def test_flash_attention_4_gets_contiguous_keys_of_chunks(self, monkeypatch):
        module = unittest.mock.MagicMock()
        monkeypatch.setitem(sys.modules, "flash_attn", unittest.mock.MagicMock())
        monkeypatch.setitem(sys.modules, "flash_attn.cute", module)
        module.flash_attn_func.return_value = ("out", "lse")
        shape = Shape("prefill", 2, 96, 96, mask="causal", **SMALL)
        assert PEERS["flash_attention_4_contiguous"].make(shape, Memory("cpu"))() == "out"
        (q, k, v), options = module.flash_attn_func.call_args
        assert q.shape == (2, 96, 4, 64) and k.shape == v.shape == (2, 96, 2, 64) and options == {"causal": True}

    def test_rows_that_flashinfer_cannot_compute_have_no_calls(self, flashinfer, capsys):
        several = Shape("decode", 1, 4, 96, peers=("flashinfer_xqa", "lazy_on_flashinfer"), **SMALL)
        causal = Shape("prefill", 1, 96, 96, mask="causal", peers=("lazy_on_flashinfer",), **SMALL)
        unequal = Shape("decode", 8, 1, 960, doc_tokens=40, ragged=True, peers=("lazy_on_flashinfer",), **SMALL)
        other_rope = replace(several, query_tokens=1, rope="gptj", peers=("lazy_on_flashinfer",))
        for shape in (several, causal, unequal, other_rope):
            assert peer_calls(shape, Memory("cpu"), MAKERS) == {}
        assert capsys.readouterr().err.count("left out") == 5

    def test_a_graph_keeps_the_tensors_that_it_reads(self, monkeypatch):
        for name in ("synchronize", "CUDAGraph", "graph"):
            monkeypatch.setattr(torch.cuda, name, unittest.mock.MagicMock())
        tensor = torch.zeros(4)
        alive = weakref.ref(tensor)
        graph = package_peers.Captured(lambda tensor=tensor: tensor.sum())
        del tensor
        gc.collect()
        assert alive() is not None and graph() is graph.result


def test_versions_of_installed_packages_are_recorded(monkeypatch):
    versions = {"nvidia-cudnn-frontend": "1.32.0"}

    def version(package):
        if package not in versions:
            raise host.importlib.metadata.PackageNotFoundError(package)
        return versions[package]

    monkeypatch.setattr(host.importlib.metadata, "version", version)
    assert host.versions_of_packages() == versions
