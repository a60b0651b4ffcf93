// A case for append and attend kernels in the emulator, with a reference in fp64. The reference
// rotates the key of token j of a document at base b by b + j, and a query at position p by p.
#pragma once

#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "runtime/base/half.h"
#include "runtime/lazyrope.h"
#include "tests/support/host_tensor.h"
#include "tests/support/metadata.h"

namespace lazyrope {

// The rotation and the mask of the reference.
struct AttentionModel {
  std::vector<std::pair<int, int>> pairs;  // columns that rotate together
  std::vector<double> frequencies;         // radians per token, for each pair
  std::function<bool(std::int64_t query, std::int64_t key)> visible;
};

inline std::uint16_t to_bf16(double x) {
  const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(x));
  return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

class AttentionCase {
 public:
  static constexpr int kTokens = 142;  // tokens of all documents

  explicit AttentionCase(const AttentionSpec& spec) : spec_(spec) {
    std::mt19937 random(2606);
    for (HostTensor* tensor : {&q_, &k_, &v_}) fill(*tensor, random);
  }

  // Appends the documents and attends to them with kernels of the same spec.
  void run(const Attention& attention) {
    const auto writes =
        plan_append(attention, documents.tensors(), {kTokens}, {}, nullptr, /*check=*/true);
    append(attention, k(), v(), pool(), *writes);
    const auto planned = plan(attention, step.tensors(), {}, {}, nullptr, /*check=*/true);
    attend(attention, q(), pool(), *planned, out(), lse());
  }

  PoolTensors pool() const { return {k_pool_.view(), v_pool_.view()}; }
  const TensorView& q() const { return q_.view(); }
  const TensorView& out() const { return out_.view(); }
  const TensorView& lse() const { return lse_.view(); }
  const TensorView& k() const { return k_.view(); }
  const TensorView& v() const { return v_.view(); }

  // Returns the largest absolute error of any element of out or lse.
  double error(const AttentionModel& model) {
    double worst = 0;
    for (int r = 0; r + 1 < std::ssize(step.q_indptr); ++r)
      for (int token = step.q_indptr[index(r)]; token < step.q_indptr[index(r + 1)]; ++token)
        for (int head = 0; head < spec_.num_q_heads; ++head)
          worst = std::max(worst, error_of_row(model, r, token, head));
    return worst;
  }

  // Request 0 has the last 12 positions of two consecutive documents. Request 1 has one token near
  // position 1000000, with part of a document and a whole one. Request 2 has two tokens: one is
  // before every key of its document, and one is after.
  StepArrays step = {
      .q_indptr = {0, 12, 13, 15},
      .q_position = {97, 98, 99, 100, 101, 102, 103, 104, 105, 106, 107, 108, 1000030, -60, 20},
      .segment_indptr = {0, 2, 4, 5},
      .base = {0, 100, 1000000, 999910, -20},
      .start = {0, 0, 18, 0, 0},
      .length = {100, 9, 14, 100, 33},
      .first_page = {0, 7, 10, 0, 9},
      .pages = {11, 3, 7, 0, 9, 5, 1, 8, 2, 4, 10, 6},
      .lead = {0, 13, 2, 0, 0}};

  // Three documents of 100, 9 and 33 tokens. The second one begins inside a page.
  AppendArrays documents = {.indptr = {0, 100, 109, kTokens},
                            .start = {0, 0, 0},
                            .first_page = {0, 7, 9},
                            .lead = {0, 13, 0},
                            .pages = step.pages};

 private:
  using Row = std::vector<double>;

  static std::size_t index(int i) { return static_cast<std::size_t>(i); }

  static void fill(HostTensor& tensor, std::mt19937& random) {
    std::normal_distribution<double> normal;
    for (std::int64_t i = 0; i < tensor.view().elements(); ++i)
      tensor.data<std::uint16_t>()[i] = to_bf16(normal(random));
  }

  Row row(HostTensor& tensor, int token, int head) const {
    const std::int64_t heads = tensor.view().shape[1];
    const std::uint16_t* from =
        tensor.data<std::uint16_t>() + (token * heads + head) * spec_.head_dim;
    Row result;
    for (int i = 0; i < spec_.head_dim; ++i) result.push_back(from_bf16(from[i]));
    return result;
  }

  static Row rotated(const AttentionModel& model, const Row& x, std::int64_t position) {
    Row y = x;
    for (std::size_t i = 0; i < model.pairs.size(); ++i) {
      const auto [a, b] = std::pair(index(model.pairs[i].first), index(model.pairs[i].second));
      const double angle = static_cast<double>(position) * model.frequencies[i];
      y[a] = x[a] * std::cos(angle) - x[b] * std::sin(angle);
      y[b] = x[b] * std::cos(angle) + x[a] * std::sin(angle);
    }
    return y;
  }

  static double dot(const Row& x, const Row& y) {
    double sum = 0;
    for (std::size_t i = 0; i < x.size(); ++i) sum += x[i] * y[i];
    return sum;
  }

  double error_of_row(const AttentionModel& model, int request, int token, int head) {
    const std::int64_t position = step.q_position[index(token)];
    const int kv_head = head / spec_.group_size();
    const Row query = rotated(model, row(q_, token, head), position);
    Row sum(index(spec_.head_dim), 0.0);
    double weights = 0;
    for (int s = step.segment_indptr[index(request)]; s < step.segment_indptr[index(request + 1)];
         ++s)
      for (int i = 0; i < step.length[index(s)]; ++i) {
        const int in_document = step.start[index(s)] + i;
        const std::int64_t key_position = std::int64_t{step.base[index(s)]} + in_document;
        if (!model.visible(position, key_position)) continue;
        const int k_row = documents.indptr[index(document_of_segment_[index(s)])] + in_document;
        const Row key = rotated(model, row(k_, k_row, kv_head), key_position);
        const double weight = std::exp(dot(query, key) * spec_.softmax_scale());
        const Row value = row(v_, k_row, kv_head);
        for (std::size_t c = 0; c < sum.size(); ++c) sum[c] += weight * value[c];
        weights += weight;
      }
    const Row out = row(out_, token, head);
    double worst =
        lse_error(std::log(weights), lse_.data<float>()[token * spec_.num_q_heads + head]);
    for (std::size_t c = 0; c < sum.size(); ++c)
      worst = std::max(worst, std::abs(out[c] - (weights > 0 ? sum[c] / weights : 0.0)));
    return worst;
  }

  static double lse_error(double exact, double given) {
    return exact == given ? 0.0 : std::abs(exact - given);  // both may be -infinity
  }

  AttentionSpec spec_;

  const std::vector<int> document_of_segment_ = {0, 1, 2, 0, 2};

  HostTensor q_{ElementType::kBf16, {15, spec_.num_q_heads, spec_.head_dim}};
  HostTensor k_{ElementType::kBf16, {kTokens, spec_.num_kv_heads, spec_.head_dim}};
  HostTensor v_{ElementType::kBf16, {kTokens, spec_.num_kv_heads, spec_.head_dim}};
  HostTensor k_pool_{ElementType::kBf16, {12, 16, spec_.num_kv_heads, spec_.head_dim}};
  HostTensor v_pool_{ElementType::kBf16, {12, 16, spec_.num_kv_heads, spec_.head_dim}};
  HostTensor out_{ElementType::kBf16, {15, spec_.num_q_heads, spec_.head_dim}};
  HostTensor lse_{ElementType::kFp32, {15, spec_.num_q_heads}};
};

}  // namespace lazyrope
