// Puts weights into the layouts of linear_weights.h, once, when they are loaded.

#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <thread>
#include <vector>

#include "coded_weights.h"
#include "linear_weights.h"
#include "lanes_turning.h"

namespace jetflock {

constexpr size_t kHugePage = 2 << 20;

// Huge pages spare the translation of addresses while weights stream by. Null when memory is out.
inline void* allocate(size_t num_bytes) {
  const size_t size = (num_bytes + kHugePage - 1) / kHugePage * kHugePage;
  void* memory = std::aligned_alloc(kHugePage, size);
  if (memory != nullptr) madvise(memory, size, MADV_HUGEPAGE);
  return memory;
}

// Which row of [out_features, in_features] stands in which column of which block. With
// `interleaved` the first half of the rows are gates and the second values: a block then holds
// sixteen gates and the sixteen values that belong to them.
struct BlockedRows {
  int64_t out_features;
  bool interleaved;

  int64_t num_cols() const { return interleaved ? out_features / 2 : out_features; }
  int64_t cols_per_block() const { return interleaved ? kLanes : kBlockCols; }
  int64_t num_blocks() const { return (num_cols() + cols_per_block() - 1) / cols_per_block(); }

  // -1: none, the column is zero.
  int64_t row(int64_t block, int64_t lane) const {
    const int64_t col = block * cols_per_block() + (interleaved ? lane % kLanes : lane);
    if (col >= num_cols()) return -1;
    return interleaved && lane >= kLanes ? num_cols() + col : col;
  }
};

// Calls `task` with each of [0, num_tasks), from several threads.
template <class Task>
inline void divide(int64_t num_tasks, int64_t num_threads, const Task& task) {
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < num_threads; ++rank) {
    threads.emplace_back([&, rank] {
      const int64_t end = num_tasks * (rank + 1) / num_threads;
      for (int64_t idx = num_tasks * rank / num_threads; idx < end; ++idx) task(idx);
    });
  }
  for (auto& thread : threads) thread.join();
}

// The rows of a block by lane; null where a column is zero.
template <class Value>
struct BlockRows {
  const Value* rows[kBlockCols];

  BlockRows() = default;

  BlockRows(const BlockedRows& blocked, int64_t block, const Value* all, int64_t in_features) {
    for (int64_t lane = 0; lane < kBlockCols; ++lane) {
      const int64_t row = blocked.row(block, lane);
      rows[lane] = row < 0 ? nullptr : all + row * in_features;
    }
  }

  Value at(int64_t lane, int64_t input) const {
    return rows[lane] == nullptr ? Value{0} : rows[lane][input];
  }
};

// Words of a row: two bfloat16 values or four bytes; eight of eight lanes are turned at a time. The
// last word is filled with zeros. `stride`: of the words of a lane, in values.
template <class Value, class Load, class At>
inline void pack_words(int64_t num_lanes, int64_t stride, int64_t in_features,
                       const Load& load_lane, const At& at, Value* to) {
  constexpr int64_t kPerWord = sizeof(int32_t) / sizeof(Value);
  const int64_t num_whole = in_features / (kPerWord * kTurned) * (kPerWord * kTurned);
  for (int64_t input = 0; input < num_whole; input += kPerWord * kTurned) {
    for (int64_t lane = 0; lane < num_lanes; lane += kTurned) {
      Words32 words[kTurned];
      for (int idx = 0; idx < kTurned; ++idx) words[idx] = load_lane(lane + idx, input);
      turn(words);
      for (int idx = 0; idx < kTurned; ++idx) {
        store(to + (input / kPerWord + idx) * stride + lane * kPerWord, words[idx]);
      }
    }
  }
  const int64_t num_filled = (in_features + kPerWord - 1) / kPerWord * kPerWord;
  for (int64_t input = num_whole; input < num_filled; ++input) {
    for (int64_t lane = 0; lane < num_lanes; ++lane) {
      to[input / kPerWord * stride + lane * kPerWord + input % kPerWord] =
          input < in_features ? at(lane, input) : Value{0};
    }
  }
}

// One value after the other, as kBf16 and kInt8 have it.
template <class Value>
inline void pack_block(const BlockRows<Value>& from, int64_t in_features, Value* to) {
  const auto load_lane = [&](int64_t lane, int64_t input) {
    return load_words32(from.rows[lane] == nullptr ? nullptr : from.rows[lane] + input);
  };
  const auto at = [&](int64_t lane, int64_t input) { return from.at(lane, input); };
  constexpr int64_t kStride = kBlockCols * sizeof(int32_t) / sizeof(Value);
  pack_words<Value>(kBlockCols, kStride, in_features, load_lane, at, to);
}

// See kInt4 and kInt6.
inline void pack_small_integers(Layout layout, const BlockRows<uint8_t>& from, int64_t in_features,
                                uint8_t* to) {
  constexpr int64_t kParts = 4, kPartLanes = kBlockCols / kParts;
  const auto codes = [&](int64_t lane, int64_t input) {
    return load_words32(from.rows[lane] == nullptr ? nullptr : from.rows[lane] + input);
  };
  const auto lower = [&](int64_t lane, int64_t input) {
    return join_halves(and_bytes(codes(lane, input), 15),
                       and_bytes(codes(kLanes + lane, input), 15));
  };
  const auto lower_at = [&](int64_t lane, int64_t input) {
    return static_cast<uint8_t>((from.at(lane, input) & 15) | from.at(kLanes + lane, input) << 4);
  };
  const int64_t stride = quad_bytes(layout);
  pack_words<uint8_t>(kLanes, stride, in_features, lower, lower_at, to);
  if (layout == kInt4) return;
  const auto upper = [&](int64_t lane, int64_t input) {
    return join_upper_bits(codes(lane, input), codes(kPartLanes + lane, input),
                           codes(2 * kPartLanes + lane, input),
                           codes(3 * kPartLanes + lane, input));
  };
  const auto upper_at = [&](int64_t lane, int64_t input) {
    int bits = 0;
    for (int64_t part = 0; part < kParts; ++part) {
      bits |= from.at(part * kPartLanes + lane, input) >> 4 << 2 * part;
    }
    return static_cast<uint8_t>(bits);
  };
  pack_words<uint8_t>(kPartLanes, stride, in_features, upper, upper_at, to + 4 * kLanes);
}

// Eight pairs of codes of a row, or zeros.
inline __m128i load_codes(const uint8_t* row, int64_t input) {
  if (row == nullptr) return _mm_setzero_si128();
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(row + input));
}

// Turns eight pairs of codes of eight lanes, and puts each pair `stride` bytes after the last.
template <class Load>
inline void pack_turned(const Load& load_lane, int64_t stride, uint8_t* to) {
  __m128i pairs[kTurned];
  for (int idx = 0; idx < kTurned; ++idx) pairs[idx] = load_lane(idx);
  turn(pairs);
  for (int idx = 0; idx < kTurned; ++idx) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + idx * stride), pairs[idx]);
  }
}

// See codes8_position.
inline void pack_codes8(const BlockRows<uint8_t>& from, int64_t in_features, uint8_t* to) {
  constexpr int64_t kPairBytes = 2 * kBlockCols;
  const int64_t num_whole = in_features / (2 * kTurned) * (2 * kTurned);
  for (int64_t input = 0; input < num_whole; input += 2 * kTurned) {
    for (int64_t part = 0; part < kBlockCols / kTurned; ++part) {
      const auto lane = [&](int idx) {
        return load_codes(from.rows[idx / 4 * kLanes + part * 4 + idx % 4], input);
      };
      pack_turned(lane, kPairBytes, to + input / 2 * kPairBytes + part * 2 * kTurned);
    }
  }
  for (int64_t input = num_whole; input < in_features; ++input) {
    for (int64_t lane = 0; lane < kBlockCols; ++lane) {
      const int element = static_cast<int>(lane % kLanes * 2 + input % 2);
      to[input / 2 * kPairBytes + codes8_position(static_cast<int>(lane / kLanes), element)] =
          from.at(lane, input);
    }
  }
}

// The right vector's codes in the upper halves of the left one's bytes.
inline void pack_codes4(const BlockRows<uint8_t>& from, int64_t in_features, uint8_t* to) {
  constexpr int64_t kPairBytes = kBlockCols;
  const int64_t num_whole = in_features / (2 * kTurned) * (2 * kTurned);
  for (int64_t input = 0; input < num_whole; input += 2 * kTurned) {
    for (int64_t first = 0; first < kLanes; first += kTurned) {
      const auto lane = [&](int idx) {
        const __m128i left = load_codes(from.rows[first + idx], input);
        const __m128i right = load_codes(from.rows[kLanes + first + idx], input);
        return _mm_or_si128(left, _mm_slli_epi16(right, 4));
      };
      pack_turned(lane, kPairBytes, to + input / 2 * kPairBytes + 2 * first);
    }
  }
  for (int64_t input = num_whole; input < in_features; ++input) {
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      to[input / 2 * kPairBytes + lane * 2 + input % 2] = static_cast<uint8_t>(
          from.at(lane, input) | from.at(kLanes + lane, input) << 4);
    }
  }
}

inline void pack_block_of_codes(Layout layout, const BlockRows<uint8_t>& from, int64_t in_features,
                                uint8_t* to) {
  switch (layout) {
    case kCodes8: return pack_codes8(from, in_features, to);
    case kCodes4: return pack_codes4(from, in_features, to);
    case kInt8: return pack_block(from, in_features, to);
    case kInt4:
    case kInt6: return pack_small_integers(layout, from, in_features, to);
    case kBf16: break;
  }
}

inline int64_t block_bytes(Layout layout, int64_t in_features) {
  if (layout >= kInt8) return (in_features + 3) / 4 * quad_bytes(layout);
  return in_features * kBlockCols / (layout == kCodes8 ? 1 : 2);
}

}  // namespace jetflock
