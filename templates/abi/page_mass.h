// The attention mass of pages: how much a request's query tokens attend to each run of 16 slots.
// The mass of a run is the sum of its softmax weights over the query tokens and the query heads of
// the request, after division by each row's sum. The caller may choose that only the last query
// tokens of a request count.
//
// Runs are those of each segment's page list, whatever the size of the pool's pages. A segment's
// first run has its first token, and the runs of a step's segments are numbered one after the
// other. Runs, not pages: a page of the pool may belong to several requests, and a segment may
// begin and end inside a page.
//
// The final sum of a row is not known until all its keys have been read. So the attend kernels
// store terms, one for each row and run (ops/page_mass/measured.cuh), and sum_page_mass adds them
// up after them. plan_page_mass assigns the terms' places once a step, and clears them: attend
// stores only the terms of blocks that it visits, which are the same in all calls of a step.
#pragma once

#include "abi/attend.h"
#include "abi/plan.h"

namespace lazyrope {

// The term of a run of which a row sees no slot: -infinity.
inline constexpr uint32 kNoTerm = 0xff800000u;

inline constexpr int kPlanPageMassThreads = 256;
inline constexpr int kPlanPageMassSharedBytes = kPlanPageMassThreads / 32 * 4;
// A CTA of sum_page_mass sums kSumRuns runs at a time: a sector of each row's terms. Its threads
// divide the rows.
inline constexpr int kSumPageMassThreads = 512;
inline constexpr int kSumPageMassCtasPerSm = 2;
inline constexpr int kSumRuns = 8;
inline constexpr int kSumPageMassSharedBytes = kSumPageMassThreads / 32 * kSumRuns * 4;

// The threads of plan_page_mass clear this many chunks of terms each.
inline constexpr int kClearedChunks = 8;

// The most pairs of a query token and a run that a step has room for. The kernels count up to one
// more in each of kPlanPageMassThreads threads, which int32 can hold.
inline constexpr int32 kMaxTokenRuns = 1 << 22;

// The runs and the terms of a request.
struct alignas(16) PageMassRequest {
  int32 first_run;  // number of the request's first run in the step
  int32 num_runs;
  int32 first_term;   // term of the first token's row 0 and first run; -1: the terms have no room
  int32 first_token;  // the query tokens that count
  int32 num_tokens;
  int32 unused[3];
};
static_assert(sizeof(PageMassRequest) == 32);

struct alignas(8) PageMassHeader {
  int32 num_runs;      // runs of the step
  int32 num_requests;  // 0: the step has no room for so many runs
};

struct PlanPageMassParams {
  StepInputs inputs;
  const int32* mass_tokens;  // [num_requests]: the last query tokens that count; null: all
  int32 num_heads;           // query heads
  int32 max_token_runs;
  int32* run_indptr;          // [num_segments + 1]: number of each segment's first run in the step
  int32* first_runs;          // [num_segments]: the same, counted from the request's first run
  PageMassRow* rows;          // [num_tokens]
  PageMassRequest* requests;  // [num_requests]
  PageMassHeader* header;
  uint32* terms;  // [max_token_runs][num_heads], with room for whole chunks of 16 bytes
};
static_assert(sizeof(PlanPageMassParams) == 96 + 8 + 8 + 6 * 8);

struct SumPageMassParams {
  const PageMassHeader* header;
  const PageMassRequest* requests;
  const uint32* terms;
  LseTensor lse;
  float* mass;  // [max_runs]
  int32 max_runs;
  int32 num_heads;
};
static_assert(sizeof(SumPageMassParams) == 3 * 8 + 24 + 8 + 8);

}  // namespace lazyrope
