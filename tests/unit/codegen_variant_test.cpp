// These tests register a RoPE variant and a mask, with one file and one row each. Their kernels
// must compile for a GPU without further code, and must be right.
#include <gtest/gtest.h>

#include <cmath>

#include "codegen/mask.h"
#include "codegen/template_text.h"
#include "runtime/attention/attention.h"
#include "tests/support/attention_case.h"
#include "tests/support/engines.h"
#include "tests/support/specs.h"

namespace lazyrope {
namespace {

constexpr double kTolerance = 0.03;  // absolute, for values around 1 in bfloat16
constexpr int kWindow = 32;

// GPT-J's pairing: column 2 i is rotated with column 2 i + 1.
constexpr const char* kInterleaved = R"(
#pragma once
#include "isa/launch.cuh"
namespace lazyrope {
template <int kRotaryDim>
struct RopePairing {
  static constexpr int kPairs = 4;
  static constexpr int kUnits = kRotaryDim / 8;
  LAZYROPE_DEVICE static constexpr int32 run_a(int32 unit) { return 2 * unit; }
  LAZYROPE_DEVICE static constexpr int32 run_b(int32 unit) { return 2 * unit + 1; }
  LAZYROPE_DEVICE static constexpr int first(int pair) { return 2 * pair; }
  LAZYROPE_DEVICE static constexpr int second(int pair) { return 2 * pair + 1; }
};
}  // namespace lazyrope
)";

constexpr const char* kSlidingWindow = R"(
#pragma once
#include "ops/mask/interval.cuh"
namespace lazyrope {
template <int... kNone>
struct Mask {
  LAZYROPE_DEVICE static int32 first_key(int32 query) { return query - 31; }
  LAZYROPE_DEVICE static int32 last_key(int32 query) { return query; }
};
}  // namespace lazyrope
)";

void register_once() {
  static const bool registered = [] {
    register_template({"ops/rope/test_interleaved.cuh", kInterleaved});
    RopeVariant rope = rope_variant("neox");
    rope.name = "test_gptj";
    rope.pairing = "ops/rope/test_interleaved.cuh";
    register_rope_variant(rope);
    register_template({"ops/mask/test_window.cuh", kSlidingWindow});
    register_mask_variant({"test_window", "the last 32 keys", "ops/mask/test_window.cuh"});
    return true;
  }();
  (void)registered;
}

AttentionSpec interleaved_spec(int rotary_dim) {
  register_once();
  AttentionSpec spec = small_spec();
  spec.rope = {"test_gptj", rotary_dim, {{"theta", 10000.0}}};
  return spec;
}

AttentionSpec window_spec() {
  register_once();
  AttentionSpec spec = small_spec();
  spec.mask = "test_window";
  return spec;
}

bool causal(std::int64_t query, std::int64_t key) { return key <= query; }
bool in_window(std::int64_t query, std::int64_t key) {
  return key <= query && query - key < kWindow;
}

// Returns a model whose pair i of rotary_dim / 2 has columns i * step and i * step + apart.
AttentionModel model_of(int rotary_dim, int step, int apart) {
  AttentionModel model;
  for (int i = 0; i < rotary_dim / 2; ++i) {
    model.pairs.emplace_back(i * step, i * step + apart);
    model.frequencies.push_back(std::pow(10000.0, -2.0 * i / rotary_dim));
  }
  model.visible = causal;
  return model;
}

AttentionModel interleaved(int rotary_dim) { return model_of(rotary_dim, 2, 1); }
AttentionModel half() { return model_of(64, 1, 32); }

std::shared_ptr<const Attention> compile_for(const AttentionSpec& spec, const char* arch) {
  return Attention::compile(shared_engine(), spec, find_arch(arch));
}

TEST(RegisteredRope, AgreesWithFp64InTheEmulator) {
  for (const int rotary_dim : {64, 32}) {
    AttentionCase steps(interleaved_spec(rotary_dim));
    steps.run(*compile_for(interleaved_spec(rotary_dim), "emu:sm_80"));
    EXPECT_LT(steps.error(interleaved(rotary_dim)), kTolerance) << rotary_dim;
    EXPECT_GT(steps.error(half()), 10 * kTolerance) << "the comparison would see another pairing";
  }
}

void expect_compiled_without_spills(const Attention& attention) {
  for (const auto& kernel : attention.kernels()) {
    EXPECT_GT(kernel->binary().registers, 0) << kernel->name();
    EXPECT_EQ(kernel->binary().spill_bytes, 0) << kernel->name();
  }
}

TEST(RegisteredRope, CompilesForAGpuWithoutSpills) {
  expect_compiled_without_spills(*compile_for(interleaved_spec(64), "sm_90a"));
}

TEST(RegisteredMask, AgreesWithFp64InTheEmulator) {
  AttentionModel windowed = half();
  windowed.visible = in_window;
  AttentionCase steps(window_spec());
  steps.run(*compile_for(window_spec(), "emu:sm_80"));
  EXPECT_LT(steps.error(windowed), kTolerance);
  EXPECT_GT(steps.error(half()), 10 * kTolerance) << "the comparison would see another mask";
}

TEST(RegisteredMask, CompilesForAGpuWithoutSpills) {
  expect_compiled_without_spills(*compile_for(window_spec(), "sm_90a"));
}

}  // namespace
}  // namespace lazyrope
