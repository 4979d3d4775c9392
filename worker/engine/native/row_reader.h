// Reads single rows of packed weights, as numbers: embeddings lie in memory as a head does.

#pragma once

#include "coded_layout.h"
#include "vector_math.h"

namespace jetflock {

// To the nearest bfloat16, ties to even. Not-a-number stays what it is.
inline float rounded_to_bf16(float value) {
  if (value != value) return value;
  uint32_t bits;
  __builtin_memcpy(&bits, &value, sizeof(bits));
  bits += 0x7fff + (bits >> 16 & 1);
  return to_float(static_cast<bf16>(bits >> 16));
}

class RowReader {
 public:
  RowReader(const Linear& linear, int64_t row)
      : linear_(linear), block_(row / kBlockCols), lane_(static_cast<int>(row % kBlockCols)) {}

  // to: [in_features], each value rounded once to bfloat16, and again where it is scaled.
  void read(float scale, float* to) const {
    switch (linear_.layout) {
      case kBf16: return read_plain(scale, to);
      case kCodes8: return read_codes(scale, to, [&](int64_t at, int64_t) { return code8(at); });
      case kCodes4: return read_codes(scale, to, [&](int64_t at, int64_t group) {
        return code4(at, group);
      });
      case kInt8:
      case kInt4:
      case kInt6: return read_codes(scale, to, [&](int64_t at, int64_t group) {
        return integer(at, group);
      });
    }
  }

 private:
  static float scaled(float value, float scale) {
    return scale == 1.0f ? value : rounded_to_bf16(value * scale);
  }

  void read_plain(float scale, float* to) const {
    const bf16* pairs = static_cast<const bf16*>(linear_.weights) +
                        block_ * linear_.in_features * kBlockCols + lane_ * 2;
    for (int64_t at = 0; at < linear_.in_features; ++at) {
      to[at] = scaled(to_float(pairs[at / 2 * 2 * kBlockCols + at % 2]), scale);
    }
  }

  template <class Decode>
  void read_codes(float scale, float* to, const Decode& decode) const {
    const int64_t num_groups = linear_.num_groups;
    for (int64_t group = 0; group < num_groups; ++group) {
      const float of_group = group_value(linear_.scales, linear_.scale_steps, group);
      const float minimum = linear_.minima == nullptr
                                ? 0.0f
                                : group_value(linear_.minima, linear_.minimum_steps, group);
      const int64_t begin = group * linear_.group_size;
      const int64_t rest = linear_.in_features - begin;
      const int64_t end = begin + (rest < linear_.group_size ? rest : linear_.group_size);
      for (int64_t at = begin; at < end; ++at) {
        const int64_t place = linear_.order == nullptr ? at : linear_.order[at];
        to[place] = scaled(rounded_to_bf16(decode(at, group) * of_group - minimum), scale);
      }
    }
  }

  float code8(int64_t input) const {
    const uint8_t code = byte(2 * kBlockCols, input,
                              codes8_position(lane_ / kLanes, element(input)));
    const uint8_t* book = linear_.code_book;
    if (code == 0x80) return to_float(static_cast<bf16>(book[2 * kCodes8Values] << 8));
    const int magnitude = code & 0x7f;
    const int high = book[kCodes8Values + magnitude] | (code & 0x80);
    return to_float(static_cast<bf16>(book[magnitude] | high << 8));
  }

  float code4(int64_t input, int64_t group) const {
    const uint8_t both = byte(kBlockCols, input, element(input));
    int code = lane_ < kLanes ? both & 15 : both >> 4;
    if (linear_.zeros != nullptr) {
      code -= linear_.zeros[(block_ * linear_.num_groups + group) * 2 * kBlockCols + lane_ * 2];
    }
    bf16 value;
    __builtin_memcpy(&value, linear_.code_book + (code & 31) * sizeof(bf16), sizeof(value));
    return to_float(value);
  }

  float integer(int64_t input, int64_t group) const {
    const int64_t quad = block_ * linear_.num_quads() + input / 4;
    const uint8_t* codes =
        static_cast<const uint8_t*>(linear_.weights) + quad * quad_bytes(linear_.layout);
    int64_t code = -linear_.zero_point;
    if (linear_.zeros != nullptr) {
      code -= linear_.zeros[(block_ * linear_.num_groups + group) * kBlockCols + lane_];
    }
    if (linear_.layout == kInt8) {
      code += codes[lane_ * 4 + input % 4];
    } else {
      const uint8_t both = codes[lane_ % kLanes * 4 + input % 4];
      code += lane_ < kLanes ? both & 15 : both >> 4;
    }
    if (linear_.layout == kInt6) {
      constexpr int kPartLanes = kLanes / 2;
      const uint8_t bits = codes[(kLanes + lane_ % kPartLanes) * 4 + input % 4];
      code += (bits >> lane_ / kPartLanes * 2 & 3) << 4;
    }
    return static_cast<float>(code);
  }

  int element(int64_t input) const { return static_cast<int>(lane_ % kLanes * 2 + input % 2); }

  uint8_t byte(int64_t pair_bytes, int64_t input, int position) const {
    const int64_t pair = block_ * linear_.in_features / 2 + input / 2;
    return static_cast<const uint8_t*>(linear_.weights)[pair * pair_bytes + position];
  }

  // See GroupScales of coded_products.h.
  float group_value(const float* values, const int8_t* steps, int64_t group) const {
    const int64_t at = block_ * linear_.num_groups + group;
    if (steps == nullptr) return values[at * kBlockCols + lane_];
    return values[(at >> linear_.share_bits) * kBlockCols + lane_] *
           static_cast<float>(steps[at * kBlockCols + lane_]);
  }

  const Linear& linear_;
  int64_t block_;
  int lane_;
};

}  // namespace jetflock
