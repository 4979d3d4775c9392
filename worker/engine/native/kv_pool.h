// The paged memory of keys and values, in bfloat16 or in 8 bits: how they are written and read.

#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <type_traits>

#include "vector_math.h"

namespace jetflock {

constexpr int kGroupTokens = 16;  // tokens whose keys and values lie interleaved
constexpr int kNumGroups = 4;     // groups of a block: the unit in which a softmax proceeds
constexpr int kBlockTokens = kGroupTokens * kNumGroups;
constexpr int kMaxHeadDim = 512;
constexpr float kLargestCode = 127.0f;
constexpr float kLeastMagnitude = 1e-30f;  // below, a vector counts as zeros

enum KVFormat : int64_t { kKVBf16, kKVInt8 };

// Within a page and head, tokens come in groups of sixteen:
//   keys    [head_dim / 2][16 tokens][2]  two neighbouring values of each token side by side
//   values  [8 pairs of tokens][head_dim][2]  a value of each of two neighbouring tokens
// so that both products are dot products of pairs without any shuffling. head_dim and page_size are
// multiples of sixteen.
struct PoolShape {
  int64_t num_kv_heads;
  int64_t head_dim;
  int64_t page_size;
};

struct Block {
  const bf16* keys[kNumGroups];
  const bf16* values[kNumGroups];
};

// Calls `visit` with each group of the block that begins at `start`, its page and its first token's
// offset there. Groups beyond the end are masked later: any group that exists will do.
template <class Visit>
inline void for_each_group(const PoolShape& shape, const int32_t* pages, int64_t start,
                           int64_t last_position, const Visit& visit) {
  for (int group = 0; group < kNumGroups; ++group) {
    const int64_t position = std::min(start + group * kGroupTokens, last_position);
    const int64_t offset = position % shape.page_size / kGroupTokens * kGroupTokens;
    visit(group, pages[position / shape.page_size], offset);
  }
}

// One layer's keys and values: [num_pages][num_kv_heads][page_size * head_dim] each.
struct Bf16Pool {
  bf16* keys;
  bf16* values;
  PoolShape shape;

  // Of the group that begins at `offset` of a page.
  int64_t group_start(int64_t page, int64_t kv_head, int64_t offset) const {
    return ((page * shape.num_kv_heads + kv_head) * shape.page_size + offset) * shape.head_dim;
  }

  void write(int64_t slot, int64_t kv_head, const bf16* key, const bf16* value) const {
    const int64_t head_dim = shape.head_dim, offset = slot % shape.page_size;
    const int64_t token = offset % kGroupTokens;
    const int64_t start = group_start(slot / shape.page_size, kv_head, offset - token);
    bf16* to = keys + start + token * 2;
    for (int64_t dim = 0; dim < head_dim; dim += 2) {
      __builtin_memcpy(to + dim * kGroupTokens, key + dim, 2 * sizeof(bf16));
    }
    to = values + start + token / 2 * head_dim * 2;
    for (int64_t dim = 0; dim < head_dim; dim += kLanes) {
      store_every_second(to + dim * 2 + token % 2, value + dim);
    }
  }

  // Goes through the blocks of a request and a KV head.
  class Reader {
   public:
    Reader(const Bf16Pool& pool, const int32_t* pages, int64_t kv_head, int64_t first_start,
           int64_t last_position)
        : pool_(pool), pages_(pages), kv_head_(kv_head), last_position_(last_position) {
      next_ = find(first_start);
    }

    Block read(int64_t start) {
      const Block block = next_;
      next_ = find(std::min(start + kBlockTokens, last_position_));
      return block;
    }

    // To be fetched while the block that was read is computed.
    const Block& next() const { return next_; }

    void scale_scores(Floats (&)[kNumGroups]) const {}
    Floats scaled_weight(Floats weight, int) const { return weight; }

   private:
    Block find(int64_t start) const {
      Block block;
      for_each_group(pool_.shape, pages_, start, last_position_,
                     [&](int group, int64_t page, int64_t offset) {
                       const int64_t at = pool_.group_start(page, kv_head_, offset);
                       block.keys[group] = pool_.keys + at;
                       block.values[group] = pool_.values + at;
                     });
      return block;
    }

    const Bf16Pool& pool_;
    const int32_t* pages_;
    const int64_t kv_head_;
    const int64_t last_position_;
    Block next_;
  };
};

// The codes of a vector: whole numbers up to 127, each times the scale that is returned. What is
// not finite makes a scale that is not a number.
inline float to_codes(const bf16* values, int64_t size, int8_t* codes) {
  float largest = 0.0f;
  bool is_finite = true;
  for (int64_t at = 0; at < size; ++at) {
    const float magnitude = std::fabs(to_float(values[at]));
    largest = std::max(largest, magnitude);
    is_finite &= magnitude <= std::numeric_limits<float>::max();
  }
  if (!is_finite || largest < kLeastMagnitude) {
    std::fill_n(codes, size, 0);
    return is_finite ? 0.0f : std::numeric_limits<float>::quiet_NaN();
  }
  const float inverse = kLargestCode / largest;
  for (int64_t at = 0; at < size; ++at) {
    codes[at] = static_cast<int8_t>(std::nearbyint(to_float(values[at]) * inverse));
  }
  return largest / kLargestCode;
}

// Exact: bfloat16 holds every code.
inline void from_codes(const int8_t* codes, int64_t size, bf16* values) {
  for (int64_t at = 0; at < size; ++at) {
    values[at] = static_cast<bf16>(std::bit_cast<uint32_t>(static_cast<float>(codes[at])) >> 16);
  }
}

// The same in codes of 8 bits: [num_pages][num_kv_heads][page_size * (head_dim + 4)] bytes each. A
// page of a head has the codes, placed as Bf16Pool places values, then a float scale of each token.
// A vector's codes depend on it alone, and whoever attends to it reads them, also in the step that
// wrote them.
struct Int8Pool {
  int8_t* keys;
  int8_t* values;
  PoolShape shape;

  int64_t page_start(int64_t page, int64_t kv_head) const {
    const int64_t token_bytes = shape.head_dim + static_cast<int64_t>(sizeof(float));
    return (page * shape.num_kv_heads + kv_head) * shape.page_size * token_bytes;
  }

  // Of the token at `offset` of a page; `page` is where a head's page begins.
  template <class Byte>
  auto* scale_at(Byte* page, int64_t offset) const {
    using Scale = std::conditional_t<std::is_const_v<Byte>, const float, float>;
    return reinterpret_cast<Scale*>(page + shape.page_size * shape.head_dim) + offset;
  }

  void write(int64_t slot, int64_t kv_head, const bf16* key, const bf16* value) const {
    const int64_t head_dim = shape.head_dim, offset = slot % shape.page_size;
    const int64_t token = offset % kGroupTokens, group = (offset - token) * head_dim;
    const int64_t page = page_start(slot / shape.page_size, kv_head);
    int8_t codes[kMaxHeadDim];
    *scale_at(keys + page, offset) = to_codes(key, head_dim, codes);
    int8_t* to = keys + page + group + token * 2;
    for (int64_t dim = 0; dim < head_dim; dim += 2) {
      __builtin_memcpy(to + dim * kGroupTokens, codes + dim, 2);
    }
    *scale_at(values + page, offset) = to_codes(value, head_dim, codes);
    to = values + page + group + token / 2 * head_dim * 2 + token % 2;
    for (int64_t dim = 0; dim < head_dim; ++dim) to[dim * 2] = codes[dim];
  }

  // Goes through the blocks of a request and a KV head, each decoded to where `block` points.
  class Reader {
   public:
    Reader(const Int8Pool& pool, const int32_t* pages, int64_t kv_head, int64_t,
           int64_t last_position)
        : pool_(pool), pages_(pages), kv_head_(kv_head), last_position_(last_position) {
      for (int group = 0; group < kNumGroups; ++group) {
        block_.keys[group] = keys_ + group * group_size();
        block_.values[group] = values_ + group * group_size();
      }
    }

    Block read(int64_t start) {
      for_each_group(pool_.shape, pages_, start, last_position_,
                     [&](int group, int64_t page, int64_t offset) { decode(group, page, offset); });
      for_each_group(pool_.shape, pages_, std::min(start + kBlockTokens, last_position_),
                     last_position_,
                     [&](int, int64_t page, int64_t offset) { fetch(page, offset); });
      return block_;
    }

    const Block& next() const { return block_; }

    void scale_scores(Floats (&scores)[kNumGroups]) const {
      for (int group = 0; group < kNumGroups; ++group) {
        scores[group] = multiply(scores[group], load(key_scales_ + group * kGroupTokens));
      }
    }

    Floats scaled_weight(Floats weight, int group) const {
      return multiply(weight, load(value_scales_ + group * kGroupTokens));
    }

   private:
    int64_t group_size() const { return kGroupTokens * pool_.shape.head_dim; }

    void decode(int group, int64_t page, int64_t offset) {
      const int64_t start = pool_.page_start(page, kv_head_);
      const int8_t* keys = pool_.keys + start;
      const int8_t* values = pool_.values + start;
      const int64_t codes = offset * pool_.shape.head_dim;
      from_codes(keys + codes, group_size(), keys_ + group * group_size());
      from_codes(values + codes, group_size(), values_ + group * group_size());
      std::copy_n(pool_.scale_at(keys, offset), kGroupTokens, key_scales_ + group * kGroupTokens);
      std::copy_n(pool_.scale_at(values, offset), kGroupTokens,
                  value_scales_ + group * kGroupTokens);
    }

    void fetch(int64_t page, int64_t offset) const {
      const int64_t start = pool_.page_start(page, kv_head_) + offset * pool_.shape.head_dim;
      for (int64_t at = 0; at < group_size(); at += 64) {
        prefetch(pool_.keys + start + at);
        prefetch(pool_.values + start + at);
      }
    }

    const Int8Pool& pool_;
    const int32_t* pages_;
    const int64_t kv_head_;
    const int64_t last_position_;
    Block block_;
    alignas(64) float key_scales_[kBlockTokens];
    alignas(64) float value_scales_[kBlockTokens];
    alignas(64) bf16 keys_[kBlockTokens * kMaxHeadDim];
    alignas(64) bf16 values_[kBlockTokens * kMaxHeadDim];
  };
};

}  // namespace jetflock
