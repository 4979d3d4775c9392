// Puts weights into the layouts of linear_weights.h, once, when they are loaded.

#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <thread>
#include <vector>

#include "coded_weights.h"
#include "linear_weights.h"

namespace jetflock {

constexpr size_t kHugePage = 2 << 20;
constexpr int64_t kTileBytes = 64;  // of a row, read while the lines that it is spread over are near

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

// Calls `task` with each lane of a block, its row or -1, and the part [begin, end) of the row.
template <class Task>
inline void for_each_part(const BlockedRows& blocked, int64_t block, int64_t in_features,
                          int64_t part_size, const Task& task) {
  for (int64_t begin = 0; begin < in_features; begin += part_size) {
    const int64_t end = std::min(begin + part_size, in_features);
    for (int64_t lane = 0; lane < kBlockCols; ++lane) {
      task(lane, blocked.row(block, lane), begin, end);
    }
  }
}

// in_features is even: inputs go in pairs.
inline void pack_block(const BlockedRows& blocked, int64_t block, const bf16* rows,
                       int64_t in_features, bf16* to) {
  constexpr size_t kPairBytes = 2 * sizeof(bf16);
  for_each_part(blocked, block, in_features, kTileBytes / sizeof(bf16),
                [&](int64_t lane, int64_t row, int64_t begin, int64_t end) {
                  for (int64_t at = begin; at < end; at += 2) {
                    bf16* pair = to + at * kBlockCols + lane * 2;
                    if (row < 0) {
                      __builtin_memset(pair, 0, kPairBytes);
                    } else {
                      __builtin_memcpy(pair, rows + row * in_features + at, kPairBytes);
                    }
                  }
                });
}

inline void pack_block_of_codes(Layout layout, const BlockedRows& blocked, int64_t block,
                                const uint8_t* codes, int64_t in_features, int64_t pair_bytes,
                                uint8_t* to) {
  std::fill_n(to, in_features / 2 * pair_bytes, 0);
  for_each_part(blocked, block, in_features, kTileBytes,
                [&](int64_t lane, int64_t row, int64_t begin, int64_t end) {
                  if (row < 0) return;
                  const int vector = static_cast<int>(lane / kLanes);
                  for (int64_t at = begin; at < end; ++at) {
                    const int element = static_cast<int>(lane % kLanes * 2 + at % 2);
                    uint8_t* pair = to + at / 2 * pair_bytes;
                    const uint8_t code = codes[row * in_features + at];
                    if (layout == kCodes8) {
                      pair[codes8_position(vector, element)] = code;
                    } else {
                      pair[element] |= vector == 0 ? code : code << 4;
                    }
                  }
                });
}

}  // namespace jetflock
