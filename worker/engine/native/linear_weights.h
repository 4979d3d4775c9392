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
  kInt8,    // integers of 8 bits, for inputs that are rounded to such, too
  kInt4,
  kInt6,
};

// Of integers: four inputs of a block's columns.
constexpr int64_t quad_bytes(Layout layout) {
  return kBlockCols * (layout == kInt8 ? 4 : layout == kInt6 ? 3 : 2);
}

// weights of kBf16: [num_blocks][in_features / 2][kBlockCols][2], the pairs of two neighbouring
// inputs side by side, as the dot product instruction wants them. Columns beyond out_features are
// zero. Codes: [num_blocks][in_features / 2][bytes of a pair], see coded_weights.h. kInt8:
// [num_blocks][num_quads][kBlockCols][4] without signs; kInt4: [num_blocks][num_quads][kLanes][4],
// the left vector's in the lower halves of bytes, the right one's in the upper ones; kInt6: each
// quad's lower four bits so, then [kLanes / 2][4] bytes with the upper two of lanes 0 to 7, 8 to 15
// of the left vector and the same of the right one, the first ones lowest.
struct Linear {
  const void* weights;
  const float* bias;  // [num_blocks * kBlockCols], or null
  int64_t in_features;
  int64_t out_features;
  Layout layout;
  // From here on of codes alone.
  int64_t group_size;        // inputs that share a scale, even; the last group may have fewer
  int64_t num_groups;
  const float* scales;       // [num_blocks][num_groups][kBlockCols]
  const int8_t* zeros;       // [num_blocks][num_groups][2 * kBlockCols], each two times; or null.
                             // Of integers each once: what is added to `zero_point`
  const uint8_t* code_book;  // see coded_weights.h
  const float* minima;       // as scales: what the values of a group are lessened by; or null
  // Where there are steps, scales and minima are [num_blocks][num_groups >> share_bits][kBlockCols]:
  // a group's is the product of what it shares with others and its own step.
  const int8_t* scale_steps;  // [num_blocks][num_groups][kBlockCols], or null
  const int8_t* minimum_steps;
  int64_t share_bits;
  // Of integers alone: codes stand for what they are above their zero point.
  int64_t zero_point;
  int64_t span_size;    // inputs whose products are summed exactly: a divisor of group_size
  int64_t rounds_rows;  // a row's inputs are rounded together, else those of each span
  float input_scale;    // what inputs are rounded to; 0: what the largest of them needs
  // Of all else in a model that has integers: by vectors, in the order of sums that all kernel sets
  // without tiles share, so that such a model has the same bits by every set.
  int64_t by_vectors;
  const int64_t* order;  // of codes: the input that each place of theirs is for, or null

  bool has_integers() const { return layout >= kInt8; }
  long num_blocks() const { return (out_features + kBlockCols - 1) / kBlockCols; }
  int64_t num_spans() const { return (in_features + span_size - 1) / span_size; }
  // The group of weights that has a span of inputs.
  int64_t group_of_span(int64_t span) const {
    return span_size == group_size ? span : span * span_size / group_size;
  }
  int64_t num_quads() const { return (in_features + 3) / 4; }  // of four inputs side by side
  // From a row of integers to the next one, in bytes: rows begin in different sets of a cache.
  int64_t code_stride() const { return num_quads() * 4 + 64; }
};

}  // namespace jetflock
