#include "runtime/base/overlap.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <numeric>
#include <span>
#include <utility>

namespace lazyrope {
namespace {

__extension__ using Int128 = __int128;

constexpr std::int64_t kMaxSpan = ByteRange::kMaxSpan;
constexpr std::size_t kMaxTerms = 2 * (std::size_t{TensorView::kMaxRank} + 1);  // two tensors

// Stands for the numbers stride * x with 0 <= x <= last.
struct Term {
  std::int64_t stride;
  std::int64_t last;

  std::int64_t reach() const { return stride * last; }
};

bool is_shorter(const Term& a, const Term& b) { return a.stride < b.stride; }

// Returns the number y in [0, modulus) for which number * y - 1 is a multiple of the modulus. The
// two have no common divisor.
std::int64_t inverse(std::int64_t number, std::int64_t modulus) {
  std::int64_t remainder = modulus, next_remainder = number % modulus;
  std::int64_t factor = 0, next_factor = 1;
  while (next_remainder != 0) {
    const std::int64_t quotient = remainder / next_remainder;
    remainder = std::exchange(next_remainder, remainder - quotient * next_remainder);
    factor = std::exchange(next_factor, factor - quotient * next_factor);
  }
  return factor < 0 ? factor + modulus : factor;
}

// The set of all sums of one number of each term. Its members solve a bounded linear equation in
// whole numbers, and a search over the terms from the longest stride down finds them.
class Sums {
 public:
  explicit Sums(std::span<const Term> terms) {
    std::array<Term, kMaxTerms> sorted;
    const auto end = std::copy_if(terms.begin(), terms.end(), sorted.begin(), [](const Term& term) {
      return term.stride > 0 && term.last > 0;
    });
    std::sort(sorted.begin(), end, is_shorter);
    std::for_each(sorted.begin(), end, [&](const Term& term) { add(term); });
  }

  bool contain(std::int64_t target) {
    const std::int64_t reach = count_ == 0 ? 0 : levels_[count_ - 1].reach;
    if (target < 0 || target > reach) return false;
    if (count_ == 0 || target % levels_[count_ - 1].divisor != 0) return target == 0;
    steps_ = 0;
    return search(count_ - 1, target);
  }

 private:
  static constexpr int kMaxSteps = 4096;

  struct Level {
    Term term;
    std::int64_t reach;    // the largest sum of this term and of those below
    std::int64_t divisor;  // the greatest common divisor of their strides
  };

  // Adds a term whose stride is at least those of earlier terms.
  void add(const Term& term) {
    if (count_ > 0 && extend(levels_[count_ - 1], term)) return;
    const bool is_first = count_ == 0;
    levels_[count_] = {term, term.reach() + (is_first ? 0 : levels_[count_ - 1].reach),
                       is_first ? term.stride : std::gcd(term.stride, levels_[count_ - 1].divisor)};
    ++count_;
  }

  // If the numbers of `term` continue those of the level without a gap, both become one term.
  static bool extend(Level& level, const Term& term) {
    if (term.stride % level.term.stride != 0) return false;
    const std::int64_t ratio = term.stride / level.term.stride;
    if (ratio > level.term.last + 1) return false;
    level.term.last += ratio * term.last;
    level.reach += term.reach();
    return true;
  }

  // Returns true if `rest` is a sum of the terms up to `level`. It is a multiple of the level's
  // divisor from 0 to its reach, which suffices if the level is the lowest.
  bool search(std::size_t level, std::int64_t rest) {
    if (level == 0) return true;
    const auto& [term, reach, divisor] = levels_[level];
    const Level& below = levels_[level - 1];
    const std::int64_t first = rest > below.reach ? (rest - below.reach - 1) / term.stride + 1 : 0;
    const std::int64_t last = std::min(term.last, rest / term.stride);
    if (first > last) return false;
    // Only every `step`-th number leaves a rest that is a multiple of the divisor below.
    const std::int64_t step = below.divisor / divisor;
    const std::int64_t start = step == 1 ? 0 : solve(rest / divisor, term.stride / divisor, step);
    for (std::int64_t x = first + ((start - first) % step + step) % step; x <= last; x += step) {
      if (++steps_ > kMaxSteps) return true;
      if (search(level - 1, rest - x * term.stride)) return true;
    }
    return false;
  }

  // Returns the number x in [0, modulus) for which stride * x - rest is a multiple of the modulus.
  static std::int64_t solve(std::int64_t rest, std::int64_t stride, std::int64_t modulus) {
    const Int128 product = Int128{rest % modulus} * inverse(stride % modulus, modulus);
    return static_cast<std::int64_t>(product % modulus);
  }

  std::array<Level, kMaxTerms> levels_;
  std::size_t count_ = 0;
  int steps_ = 0;
};

// Adds the terms of a tensor's bytes, counted from the lowest, to `terms` and returns their end.
// The first term counts the bytes of an element.
Term* add_terms(const TensorView& tensor, Term* terms) {
  const std::int64_t size = bytes_of(tensor.type);
  *terms++ = {1, size - 1};
  for (std::size_t i = 0; std::cmp_less(i, tensor.rank); ++i)
    if (tensor.shape[i] > 1) *terms++ = {std::abs(tensor.strides[i]) * size, tensor.shape[i] - 1};
  return terms;
}

}  // namespace

bool share_memory(const TensorView& a, const TensorView& b) {
  if (a.is_empty() || b.is_empty()) return false;
  const ByteRange of_a = byte_range(a);
  const ByteRange of_b = byte_range(b);
  if (of_a.span >= kMaxSpan || of_b.span >= kMaxSpan) return true;
  const auto up = static_cast<std::int64_t>(of_b.lowest - of_a.lowest);
  if (up > of_a.span || -up > of_b.span) return false;
  // The way up from the lowest byte of `a` and the way down from the highest byte of `b` must meet.
  // The terms of both ways then add up to the distance of these two bytes.
  std::array<Term, kMaxTerms> terms;
  const Term* end = add_terms(b, add_terms(a, terms.data()));
  return Sums({terms.data(), end}).contain(up + of_b.span);
}

bool overlaps_itself(const TensorView& tensor) {
  if (tensor.is_empty()) return false;
  if (byte_range(tensor).span >= kMaxSpan) return true;
  std::array<Term, kMaxTerms> terms;
  Term* const end = add_terms(tensor, terms.data());
  std::sort(terms.data() + 1, end, is_shorter);
  // Two elements that differ last in the dimension of `term` are 1 to `last` strides apart there,
  // and up to `last` strides in either direction in each dimension below.
  std::int64_t below = terms[0].reach();
  terms[0].last *= 2;
  for (Term* term = terms.data() + 1; term != end; ++term) {
    const Term whole = *term;
    term->last = whole.last - 1;
    if (whole.stride <= below && Sums({terms.data(), term + 1}).contain(below - whole.stride))
      return true;
    term->last = 2 * whole.last;
    below += whole.reach();
  }
  return false;
}

}  // namespace lazyrope
