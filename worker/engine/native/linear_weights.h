// The weights of a linear layer, packed, and how many rows are multiplied with them at a time.

#pragma once

#include "vector_math.h"

namespace jetflock {

constexpr int kSlabRows = 96;     // rows of a task: its weights stay in the second-level cache
constexpr int kBlockCols = 32;    // output features that are computed together: two vectors

enum Layout : int64_t {
  kBf16,    // see Linear
  kCodes8,  // a sign and 7 bits: int8, float8
  kCodes4,  // int4, float4 and other sets of sixteen values
};

// weights of kBf16: [num_blocks][in_features / 2][kBlockCols][2], the pairs of two neighbouring
// inputs side by side, as the dot product instruction wants them. Columns beyond out_features are
// zero. Codes: [num_blocks][in_features / 2][bytes of a pair], see coded_weights.h.
struct Linear {
  const void* weights;
  const float* bias;  // [num_blocks * kBlockCols], or null
  int64_t in_features;
  int64_t out_features;
  Layout layout;
  // From here on of codes alone.
  int64_t group_size;        // inputs that share a scale, even; the last group may have fewer
  const float* scales;       // [num_blocks][num_groups][kBlockCols]
  const int8_t* zeros;       // [num_blocks][num_groups][2 * kBlockCols], each two times; or null
  const uint8_t* code_book;  // see coded_weights.h
  const float* minima;       // as scales: what the values of a group are lessened by; or null
  // Where there are steps, scales and minima are [num_blocks][num_groups / groups_per_scale]
  // [kBlockCols]: a group's is the product of what it shares with others and its own step.
  const int8_t* scale_steps;  // [num_blocks][num_groups][kBlockCols], or null
  const int8_t* minimum_steps;
  int64_t groups_per_scale;

  long num_blocks() const { return (out_features + kBlockCols - 1) / kBlockCols; }
  int64_t num_groups() const { return (in_features + group_size - 1) / group_size; }
};

}  // namespace jetflock
