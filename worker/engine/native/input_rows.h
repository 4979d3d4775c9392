// What is made of rows of inputs before they are multiplied: the inputs in the order of the weights,
// sums of groups for weights with minima, and for weights of integers the inputs as integers.

#pragma once

#include <algorithm>

#include "buffer.h"
#include "linear_weights.h"
#include "vector_math.h"

namespace jetflock {

// Of the inputs of a span as integers.
struct SpanInput {
  float scale;     // what codes are multiplied with
  float sum;       // of the inputs: of their codes, times the scale
  int32_t start;   // of a sum of products: takes away the zero point of each weight
  int32_t code_sum;
};

// Rows of inputs, and what a Linear needs of them.
struct InputRows {
  const bf16* values;  // [num_rows][in_features]
  float* sums;         // of 16-bit inputs where there are minima: [num_rows][num_groups]
  // Where weights are integers:
  int8_t* codes;     // [num_rows][code_stride]
  SpanInput* spans;  // [num_rows][num_spans]
  bf16* ordered;     // where weights have an order of their own: [num_rows][in_features]

  // Once they are prepared.
  InputRows from(const Linear& linear, int64_t row) const {
    InputRows rows = *this;
    rows.values += row * linear.in_features;
    if (linear.order != nullptr) {
      rows.ordered += row * linear.in_features;
      rows.values = rows.ordered;
    }
    if (linear.has_integers()) {
      rows.codes += row * linear.code_stride();
      rows.spans += row * linear.num_spans();
    } else if (linear.minima != nullptr) {
      rows.sums += row * linear.num_groups;
    }
    return rows;
  }
};

// Of one row, each in one order, whatever other rows there are.
inline void sum_groups(const Linear& linear, const bf16* row, float* sums) {
  constexpr int kValues = 2 * kLanes;
  const Pairs ones = all_pairs(0x3f80);
  for (int64_t begin = 0; begin < linear.in_features; begin += linear.group_size) {
    const int64_t end = std::min(begin + linear.group_size, linear.in_features);
    Floats sum = zeros();
    for (int64_t at = begin; at < end; at += kValues) {
      sum = add_products(sum, load_pairs(row + at, end - at), ones);
    }
    sums[begin / linear.group_size] = sum_of_lanes(sum);
  }
}

// Without its sign, in the bits of bfloat16, which are in the order of what they stand for.
inline uint16_t largest_input(const bf16* inputs, int64_t num_inputs) {
  uint16_t largest = 0;
  for (int64_t at = 0; at < num_inputs; ++at) {
    largest = std::max(largest, static_cast<uint16_t>(inputs[at] & 0x7fff));
  }
  return largest;
}

// The largest of the inputs becomes 127.
inline float scale_for(uint16_t largest) { return to_float(largest) / 127.0f; }

// Rounds inputs to whole numbers of `scale`, and fills the last quad with zeros.
inline void round_inputs(const bf16* inputs, int64_t num_inputs, float scale, int8_t* codes) {
  const int64_t num_codes = (num_inputs + 3) / 4 * 4;
  const Floats divisor = all(scale);
  for (int64_t at = 0; at < num_codes; at += kLanes) {
    if (num_inputs - at >= kLanes) {
      store_int8(codes + at, divide(load_bf16(inputs + at), divisor));
      continue;
    }
    int8_t rest[kLanes];
    const Mask mask = first_lanes(num_inputs - at);
    store_int8(rest, divide(load_bf16(inputs + at, mask), divisor));
    std::copy_n(rest, num_codes - at, codes + at);
  }
}

// `rows`: of which this is one. Where an input is no finite number its span's scale is none either,
// so that no sum of the row is one.
inline void round_row(const Linear& linear, const InputRows& rows, int64_t row) {
  constexpr uint16_t kInfinity = 0x7f80;
  const InputRows one = rows.from(linear, row);
  const uint16_t row_largest =
      linear.rounds_rows ? largest_input(one.values, linear.in_features) : 0;
  for (int64_t span = 0; span < linear.num_spans(); ++span) {
    const int64_t begin = span * linear.span_size;
    const int64_t count = std::min(linear.span_size, linear.in_features - begin);
    const int64_t num_codes = (count + 3) / 4 * 4;
    int8_t* codes = one.codes + begin;
    const uint16_t largest = largest_input(one.values + begin, count);
    float scale = linear.input_scale;
    if (scale == 0.0f) scale = scale_for(linear.rounds_rows ? row_largest : largest);
    if (largest >= kInfinity) scale = __builtin_nanf("");
    if (scale > 0.0f) {
      round_inputs(one.values + begin, count, scale, codes);
    } else {
      std::fill_n(codes, num_codes, int8_t{0});
    }
    int32_t sum = 0;
    for (int64_t at = 0; at < num_codes; ++at) sum += codes[at];
    one.spans[span] = {scale, static_cast<float>(sum) * scale,
                       static_cast<int32_t>(-linear.zero_point * sum), sum};
  }
}

inline bool must_prepare(const Linear& linear) {
  return linear.has_integers() || linear.minima != nullptr || linear.order != nullptr;
}

inline void prepare_row(const Linear& linear, const InputRows& rows, int64_t row) {
  if (linear.order != nullptr) {
    const bf16* from = rows.values + row * linear.in_features;
    bf16* to = rows.ordered + row * linear.in_features;
    for (int64_t at = 0; at < linear.in_features; ++at) to[at] = from[linear.order[at]];
  }
  if (linear.has_integers()) {
    round_row(linear, rows, row);
  } else if (linear.minima != nullptr) {
    const InputRows one = rows.from(linear, row);
    sum_groups(linear, one.values, one.sums);
  }
}

// Memory for the rows of a step, enough for each of some linears.
class InputBuffers {
 public:
  void note(const Linear& linear) {
    if (linear.order != nullptr) row_ordered_ = std::max(row_ordered_, linear.in_features);
    if (linear.has_integers()) {
      row_codes_ = std::max(row_codes_, linear.code_stride());
      row_spans_ = std::max(row_spans_, linear.num_spans());
    } else if (linear.minima != nullptr) {
      row_groups_ = std::max(row_groups_, linear.num_groups);
    }
  }

  void reserve(int64_t num_rows) {
    sums_.reserve(num_rows * row_groups_);
    spans_.reserve(num_rows * row_spans_);
    codes_.reserve(num_rows * row_codes_ + kReadBytes);
    ordered_.reserve(num_rows * row_ordered_);
  }

  // Those of one linear, from the `first` of the step's rows on; linears may take rows in turns.
  InputRows rows(const bf16* values, int64_t first) const {
    return {values, sums_.data() + first * row_groups_, codes_.data() + first * row_codes_,
            spans_.data() + first * row_spans_, ordered_.data() + first * row_ordered_};
  }

 private:
  static constexpr int64_t kReadBytes = 64;  // at once, of tiles: what follows a row is read

  int64_t row_groups_ = 0;
  int64_t row_spans_ = 0;
  int64_t row_codes_ = 0;
  int64_t row_ordered_ = 0;
  Buffer<float> sums_;
  Buffer<SpanInput> spans_;
  Buffer<int8_t> codes_;
  Buffer<bf16> ordered_;
};

}  // namespace jetflock
