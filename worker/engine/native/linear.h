// Linear layers over packed weights: bfloat16, or codes of 8, 6 or 4 bits.

#pragma once

#include <algorithm>

#include "activations.h"
#include "coded_products.h"
#include "dense_tiles.h"
#include "input_rows.h"
#include "integer_products.h"
#include "linear_weights.h"
#include "thread_team.h"
#include "tile_check.h"
#include "vector_math.h"

namespace jetflock {

constexpr int kPrefetchPairs = 24;

// What takes the sums of a block: vectors, or tiles where the kernel set has them.
#if defined(JETFLOCK_AMX)
constexpr bool kHasTiles = true;
using KernelTiles = InstructionTiles;
inline const char* prepare_kernels() { return prepare_tiles(); }
#elif defined(JETFLOCK_AMX_EMULATED)
constexpr bool kHasTiles = true;
using KernelTiles = EmulatedTiles;
inline const char* prepare_kernels() { return nullptr; }
#else
constexpr bool kHasTiles = false;
using KernelTiles = EmulatedTiles;
inline const char* prepare_kernels() { return nullptr; }
#endif

// What becomes of a row's sums with a block of columns, once the bias is added. `col` is the first
// of the block's; each of its two vectors has as many outputs as are left of `num_cols`.

template <class Write>
inline void with_outputs(int64_t num_cols, long col, int64_t row, const Write& write) {
  for (int part = 0; part < 2; ++part) {
    const long start = col + part * kLanes;
    if (start >= num_cols) return;
    write(part, row * num_cols + start, first_lanes(num_cols - start));
  }
}

struct Store {
  static constexpr long kLeastBlocks = 1;  // of a task
  bf16* output;                            // [num_rows][num_cols]

  void operator()(int64_t num_cols, long col, int64_t row, const Floats (&values)[2]) const {
    with_outputs(num_cols, col, row, [&](int part, int64_t at, Mask mask) {
      store_bf16(output + at, values[part], mask);
    });
  }
};

struct StoreFloats {
  static constexpr long kLeastBlocks = 1;
  float* output;  // [num_rows][num_cols]

  StoreFloats from(int64_t num_cols, int64_t row) const { return {output + row * num_cols}; }

  void operator()(int64_t num_cols, long col, int64_t row, const Floats (&values)[2]) const {
    with_outputs(num_cols, col, row,
                 [&](int part, int64_t at, Mask mask) { store(output + at, values[part], mask); });
  }
};

struct AddTo {
  static constexpr long kLeastBlocks = 1;
  float* output;  // [num_rows][num_cols]

  void operator()(int64_t num_cols, long col, int64_t row, const Floats (&values)[2]) const {
    with_outputs(num_cols, col, row, [&](int part, int64_t at, Mask mask) {
      store(output + at, add(values[part], load(output + at, mask)), mask);
    });
  }
};

// Times what the row counts.
struct AddShareTo {
  static constexpr long kLeastBlocks = 1;
  float* output;        // [num_rows][num_cols]
  const float* shares;  // [num_rows][stride]
  int64_t stride;

  void operator()(int64_t num_cols, long col, int64_t row, const Floats (&values)[2]) const {
    const Floats share = all(shares[row * stride]);
    with_outputs(num_cols, col, row, [&](int part, int64_t at, Mask mask) {
      store(output + at, fmadd(values[part], share, load(output + at, mask)), mask);
    });
  }
};

// Of an MLP's inner sums. Gated, a block's left vector has gates, the right one the values that they
// are multiplied with.
struct StoreInner {
  static constexpr long kLeastBlocks = 2;  // whose output shares a cache line: one thread writes it
  bf16* output;                            // [num_rows][Inner::size of num_cols]
  Inner inner;

  StoreInner from(int64_t num_cols, int64_t row) const {
    return {output + row * inner.size(num_cols), inner};
  }

  void operator()(int64_t num_cols, long col, int64_t row, const Floats (&values)[2]) const {
    if (!inner.is_gated) {
      return with_outputs(num_cols, col, row, [&](int part, int64_t at, Mask mask) {
        store_bf16(output + at, inner.of(values[part]), mask);
      });
    }
    const int64_t size = num_cols / 2;
    const long half = col / 2;
    store_bf16(output + row * size + half, inner.of(values[0], values[1]),
               first_lanes(size - half));
  }
};

// Each sum is taken over the inputs in their order, by itself: a row's result is the same, bit for
// bit, whatever other rows come with it.
template <int kRows>
inline void multiply_tile(const bf16* rows, int64_t stride, const bf16* weights, int64_t num_pairs,
                          Floats (&sums)[kMaxTileRows][2]) {
  Floats acc[kRows][2];
#pragma GCC unroll 12
  for (int row = 0; row < kRows; ++row) acc[row][0] = acc[row][1] = zeros();
  for (int64_t pair = 0; pair < num_pairs; ++pair) {
    const bf16* at = weights + pair * 2 * kBlockCols;
    if constexpr (kRows <= 12) {
      _mm_prefetch(reinterpret_cast<const char*>(at + kPrefetchPairs * 2 * kBlockCols), _MM_HINT_T0);
      _mm_prefetch(reinterpret_cast<const char*>(at + (kPrefetchPairs * 2 + 1) * kBlockCols),
                   _MM_HINT_T0);
    }
    const Pairs left = load_pairs(at);
    const Pairs right = load_pairs(at + kBlockCols);
#pragma GCC unroll 12
    for (int row = 0; row < kRows; ++row) {
      const Pairs input = broadcast_pair(rows + row * stride + 2 * pair);
      acc[row][0] = add_products(acc[row][0], input, left);
      acc[row][1] = add_products(acc[row][1], input, right);
    }
  }
#pragma GCC unroll 12
  for (int row = 0; row < kRows; ++row) {
    sums[row][0] = acc[row][0];
    sums[row][1] = acc[row][1];
  }
}

template <class Finish>
inline void finish_row(const Linear& linear, long block, const Floats (&sums)[2],
                       const Finish& finish, int64_t row) {
  Floats values[2] = {sums[0], sums[1]};
  const long col = block * kBlockCols;
  if (linear.bias != nullptr) {
    values[0] = add(values[0], load(linear.bias + col));
    values[1] = add(values[1], load(linear.bias + col + kLanes));
  }
  finish(linear.out_features, col, row, values);
}

template <class Finish>
inline void multiply_bf16_block(const Linear& linear, long block, const bf16* rows,
                                int64_t slab_start, int64_t slab_rows, const Finish& finish) {
  const bf16* weights =
      static_cast<const bf16*>(linear.weights) + block * kBlockCols * linear.in_features;
  const int64_t num_tiles = (slab_rows + kMaxTileRows - 1) / kMaxTileRows;
  int64_t row = slab_start;
  for (int64_t tile = 0; tile < num_tiles; ++tile) {
    const int tile_rows = static_cast<int>((slab_rows * (tile + 1)) / num_tiles -
                                           (slab_rows * tile) / num_tiles);
    Floats sums[kMaxTileRows][2];
    with_num_rows<kMaxTileRows>(tile_rows, [&]<int kRows>() {
      multiply_tile<kRows>(rows + row * linear.in_features, linear.in_features, weights,
                           linear.in_features / 2, sums);
    });
    for (int idx = 0; idx < tile_rows; ++idx) {
      finish_row(linear, block, sums[idx], finish, row + idx);
    }
    row += tile_rows;
  }
}

template <class Finish>
inline void multiply_codes(const Linear& linear, long block, const InputRows& inputs,
                           int64_t slab_start, int64_t slab_rows, const Finish& finish) {
  GroupedSums sums[kSlabRows];
  const InputRows slab = inputs.from(linear, slab_start);
  if (linear.layout == kCodes8) {
    multiply_coded_block<Codes8>(linear, block, slab, slab_rows, sums);
  } else if (linear.zeros == nullptr) {
    multiply_coded_block<Codes4<false>>(linear, block, slab, slab_rows, sums);
  } else {
    multiply_coded_block<Codes4<true>>(linear, block, slab, slab_rows, sums);
  }
  for (int64_t row = 0; row < slab_rows; ++row) {
    finish_row(linear, block, sums[row].total, finish, slab_start + row);
  }
}

template <class Finish>
inline void multiply_tiles(const Linear& linear, long block, const InputRows& inputs,
                           int64_t slab_start, int64_t slab_rows, const Finish& finish) {
  BlockSums sums;
  multiply_by_tiles<KernelTiles>(linear, block, inputs.from(linear, slab_start), slab_rows, sums);
  for (int64_t row = 0; row < slab_rows; ++row) {
    const float* from = sums.values[row];
    finish_row(linear, block, {load(from), load(from + kLanes)}, finish,
                          slab_start + row);
  }
}

template <class Finish>
inline void multiply_integers(const Linear& linear, long block, const InputRows& inputs,
                              int64_t slab_start, int64_t slab_rows, const Finish& finish) {
  RowTotals totals[kSlabRows];
  const InputRows slab = inputs.from(linear, slab_start);
  if (linear.layout == kInt8) {
    multiply_integer_block<kInt8>(linear, block, slab, slab_rows, totals);
  } else if (linear.layout == kInt6) {
    multiply_integer_block<kInt6>(linear, block, slab, slab_rows, totals);
  } else {
    multiply_integer_block<kInt4>(linear, block, slab, slab_rows, totals);
  }
  for (int64_t row = 0; row < slab_rows; ++row) {
    finish_row(linear, block, totals[row].of, finish, slab_start + row);
  }
}

// Of integers tiles and vectors have the same sums; vectors need not widen what few rows read once.
inline bool are_few_integers(const Linear& linear, int64_t num_rows) {
  return linear.has_integers() && num_rows <= kIntegerTileRows;
}

// Whether tiles take the sums of a layer's values, and of its attention.
inline bool is_by_tiles(const Linear& linear) {
  return kHasTiles && !linear.has_integers() && !linear.by_vectors;
}

inline bool is_dense_by_tiles(const Linear& linear) {
  return is_by_tiles(linear) && linear.layout == kBf16;
}

// A slab's rows with a block, by what the kernel set has for the layout.
template <class Finish>
inline void multiply_block(const Linear& linear, long block, const InputRows& inputs,
                           int64_t slab_start, int64_t slab_rows, const Finish& finish) {
  if constexpr (kHasTiles) {
    if (!linear.by_vectors && !are_few_integers(linear, slab_rows)) {
      return multiply_tiles(linear, block, inputs, slab_start, slab_rows, finish);
    }
  }
  if (linear.has_integers()) {
    multiply_integers(linear, block, inputs, slab_start, slab_rows, finish);
  } else if (linear.layout == kBf16) {
    multiply_bf16_block(linear, block, inputs.values, slab_start, slab_rows, finish);
  } else {
    multiply_codes(linear, block, inputs, slab_start, slab_rows, finish);
  }
}

// Blocks [first, end).
template <class Finish>
inline void multiply_blocks(const Linear& linear, long first, long end, const InputRows& inputs,
                            int64_t slab_start, int64_t slab_rows, const Finish& finish) {
  if (is_dense_by_tiles(linear)) {
    const auto finish_sums = [&](long block, int64_t row, const Floats(&sums)[2]) {
      finish_row(linear, block, sums, finish, slab_start + row);
    };
    DensePasses<KernelTiles, decltype(finish_sums)> passes(
        linear, inputs.values + slab_start * linear.in_features, finish_sums);
    for (long block = first; block < end; ++block) passes.multiply(block, slab_rows);
    return;
  }
  for (long block = first; block < end; ++block) {
    multiply_block(linear, block, inputs, slab_start, slab_rows, finish);
  }
}

// Gives each row's products with the weights, and the bias, to `finish`.
template <class Finish>
void multiply(ThreadTeam::Member& member, int team_size, const Linear& linear,
              const InputRows& inputs, int64_t num_rows, const Finish& finish) {
  if (must_prepare(linear)) {
    member.for_each(num_rows, [&](int64_t row) { prepare_row(linear, inputs, row); });
  }
  const int64_t most_rows = is_dense_by_tiles(linear)
                                ? dense_slab_rows(linear.in_features, num_rows)
                                : kSlabRows;
  const long num_slabs = (num_rows + most_rows - 1) / most_rows;
  const long num_blocks = linear.num_blocks();
  // Large layers on few rows: several blocks a task, but enough tasks that no thread waits long.
  constexpr long least = Finish::kLeastBlocks;
  const long blocks_per_task =
      num_slabs > 1 ? least : (1 + num_blocks / (team_size * 32 * least)) * least;
  const long tasks_per_slab = (num_blocks + blocks_per_task - 1) / blocks_per_task;
  member.for_each(num_slabs * tasks_per_slab, [&](long task) {
    const int64_t slab_start = task / tasks_per_slab * most_rows;
    const int64_t slab_rows = std::min(most_rows, num_rows - slab_start);
    const long first_block = task % tasks_per_slab * blocks_per_task;
    const long end_block = std::min(first_block + blocks_per_task, num_blocks);
    multiply_blocks(linear, first_block, end_block, inputs, slab_start, slab_rows, finish);
  });
}

}  // namespace jetflock
