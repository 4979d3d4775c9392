// What the LoRA adapters of a step add to a projection: x -> x * down * up, for each row by its own
// adapter.

#pragma once

#include <algorithm>
#include <type_traits>
#include <vector>

#include "buffer.h"
#include "thread_team.h"
#include "vector_math.h"

namespace jetflock {

constexpr int kMaxLoraParts = 4;
constexpr int kLoraSlabRows = 48;    // of one adapter, in one task
constexpr int kLoraDownRows = 6;     // 6 rows x 4 vectors of sums
constexpr int kLoraUpRows = 12;
constexpr int kLoraBlocksPerTask = 8;  // of sixteen outputs
constexpr int kLoraSums = 4;         // that run side by side: one alone waits for itself

// One module of a projection: its outputs come sixteen at a time.
struct LoraPart {
  int64_t start;         // of the first sixteen outputs, in a row of the projection
  int64_t block_stride;  // from sixteen outputs to the next
  int64_t out_features;
  int64_t rank;
  const bf16* down;  // [ceil(rank / 16)][in_features / 2][16][2]
  const bf16* up;    // [ceil(out_features / 16)][ceil(rank / 2)][16][2]

  int64_t num_rank_blocks() const { return (rank + kLanes - 1) / kLanes; }
  int64_t num_rank_pairs() const { return (rank + 1) / 2; }
  int64_t num_blocks() const { return (out_features + kLanes - 1) / kLanes; }
};

// num_parts 0: the adapter leaves the projection as it is.
struct LoraProjection {
  int64_t num_parts;
  LoraPart parts[kMaxLoraParts];
};

// The tokens of a step that belong to one adapter.
struct LoraGroup {
  int64_t num_tokens;
  const int64_t* tokens;              // [num_tokens], of the step
  const LoraProjection* projections;  // of all layers, in the order of ProjectionId
};

struct LoraStep {
  int64_t num_groups;
  const LoraGroup* groups;
};

// Sums over the inputs in their order, pair by pair in turns over kLoraSums: the same for any number
// of rows.
template <int kRows>
inline void lora_down_tile(const bf16* const* rows, const bf16* down, int64_t num_pairs,
                           bf16* inner, int64_t inner_stride) {
  Floats acc[kRows][kLoraSums];
  for (int row = 0; row < kRows; ++row) {
    for (int sum = 0; sum < kLoraSums; ++sum) acc[row][sum] = zeros();
  }
  const auto add_pair = [&](int64_t pair, int sum) {
    const Pairs weights = load_pairs(down + pair * 2 * kLanes);
#pragma GCC unroll 6
    for (int row = 0; row < kRows; ++row) {
      acc[row][sum] = add_products(acc[row][sum], broadcast_pair(rows[row] + 2 * pair), weights);
    }
  };
  int64_t pair = 0;
  for (; pair + kLoraSums <= num_pairs; pair += kLoraSums) {
#pragma GCC unroll 4
    for (int sum = 0; sum < kLoraSums; ++sum) add_pair(pair + sum, sum);
  }
  for (; pair < num_pairs; ++pair) add_pair(pair, 0);
  for (int row = 0; row < kRows; ++row) {
    store_bf16(inner + row * inner_stride,
               add(add(acc[row][0], acc[row][1]), add(acc[row][2], acc[row][3])));
  }
}

template <class Out>
inline void add_to(Out* out, Floats values, Mask mask) {
  if constexpr (std::is_same_v<Out, float>) {
    store(out, add(load(out, mask), values), mask);
  } else {
    store_bf16(out, add(load_bf16(out, mask), values), mask);
  }
}

template <int kRows, class Out>
inline void lora_up_tile(const bf16* inner, int64_t inner_stride, const bf16* up, int64_t num_pairs,
                         Out* const* outputs, Mask mask) {
  Floats acc[kRows];
  for (int row = 0; row < kRows; ++row) acc[row] = zeros();
  for (int64_t pair = 0; pair < num_pairs; ++pair) {
    const Pairs weights = load_pairs(up + pair * 2 * kLanes);
#pragma GCC unroll 12
    for (int row = 0; row < kRows; ++row) {
      acc[row] =
          add_products(acc[row], broadcast_pair(inner + row * inner_stride + 2 * pair), weights);
    }
  }
  for (int row = 0; row < kRows; ++row) add_to(outputs[row], acc[row], mask);
}

// A step's rows with adapters. A row's result depends on its inputs and its adapter alone.
class StepLoras {
 public:
  // Before the threads run. `step` null: there are none.
  void plan(const LoraStep* step, int64_t num_projections) {
    step_ = step;
    slabs_.clear();
    if (step == nullptr) return;
    num_rank_blocks_ = num_out_blocks_ = 1;
    int64_t place = 0;
    for (int64_t idx = 0; idx < step->num_groups; ++idx) {
      const LoraGroup& group = step->groups[idx];
      note_sizes(group, num_projections);
      for (int64_t first = 0; first < group.num_tokens; first += kLoraSlabRows) {
        const int64_t size = std::min<int64_t>(kLoraSlabRows, group.num_tokens - first);
        slabs_.push_back({&group, group.tokens + first, size, place + first});
      }
      place += group.num_tokens;
    }
    inner_.reserve(place * inner_stride());
  }

  bool has_any() const { return step_ != nullptr; }

  // To the rows with adapters of outputs, [num_tokens][out_stride]; inputs: [num_tokens][in_features].
  template <class Out>
  void add(ThreadTeam::Member& member, int64_t projection, const bf16* inputs, int64_t in_features,
           Out* outputs, int64_t out_stride) {
    if (!has_projection(projection)) return;
    const int64_t num_downs = kMaxLoraParts * num_rank_blocks_;
    member.for_each(slabs_.size() * num_downs, [&](int64_t task) {
      const int64_t part = task % num_downs / num_rank_blocks_;
      go_down(slabs_[task / num_downs], projection, part, task % num_rank_blocks_, inputs,
              in_features);
    });
    const int64_t num_chunks = (num_out_blocks_ + kLoraBlocksPerTask - 1) / kLoraBlocksPerTask;
    const int64_t num_ups = kMaxLoraParts * num_chunks;
    member.for_each(slabs_.size() * num_ups, [&](int64_t task) {
      const int64_t part = task % num_ups / num_chunks;
      go_up(slabs_[task / num_ups], projection, part, task % num_chunks, outputs, out_stride);
    });
  }

 private:
  // Up to kLoraSlabRows tokens of an adapter.
  struct Slab {
    const LoraGroup* group;
    const int64_t* tokens;
    int64_t num_tokens;
    int64_t place;  // of the first one, among all tokens with adapters
  };

  void note_sizes(const LoraGroup& group, int64_t num_projections) {
    for (int64_t idx = 0; idx < num_projections; ++idx) {
      const LoraProjection& projection = group.projections[idx];
      for (int64_t part = 0; part < projection.num_parts; ++part) {
        const LoraPart& each = projection.parts[part];
        num_rank_blocks_ = std::max(num_rank_blocks_, each.num_rank_blocks());
        num_out_blocks_ = std::max(num_out_blocks_, each.num_blocks());
      }
    }
  }

  bool has_projection(int64_t projection) const {
    if (step_ == nullptr) return false;
    return std::any_of(step_->groups, step_->groups + step_->num_groups, [&](const auto& group) {
      return group.projections[projection].num_parts > 0;
    });
  }

  int64_t inner_stride() const { return kMaxLoraParts * num_rank_blocks_ * kLanes; }

  // Where the inner values of a part begin.
  bf16* inner_at(int64_t place, int64_t part) const {
    return inner_.data() + place * inner_stride() + part * num_rank_blocks_ * kLanes;
  }

  void go_down(const Slab& slab, int64_t projection, int64_t part_idx, int64_t block,
               const bf16* inputs, int64_t in_features) {
    const LoraProjection& adapter = slab.group->projections[projection];
    if (part_idx >= adapter.num_parts) return;
    const LoraPart& part = adapter.parts[part_idx];
    if (block >= part.num_rank_blocks()) return;
    const bf16* down = part.down + block * in_features * kLanes;
    for (int64_t row = 0; row < slab.num_tokens; row += kLoraDownRows) {
      const int64_t num_rows = std::min<int64_t>(kLoraDownRows, slab.num_tokens - row);
      const bf16* rows[kLoraDownRows];
      for (int64_t idx = 0; idx < num_rows; ++idx) {
        rows[idx] = inputs + slab.tokens[row + idx] * in_features;
      }
      with_num_rows<kLoraDownRows>(static_cast<int>(num_rows), [&]<int kRows>() {
        lora_down_tile<kRows>(rows, down, in_features / 2,
                              inner_at(slab.place + row, part_idx) + block * kLanes,
                              inner_stride());
      });
    }
  }

  template <class Out>
  void go_up(const Slab& slab, int64_t projection, int64_t part_idx, int64_t chunk, Out* outputs,
             int64_t out_stride) {
    const LoraProjection& adapter = slab.group->projections[projection];
    if (part_idx >= adapter.num_parts) return;
    const LoraPart& part = adapter.parts[part_idx];
    const int64_t first = chunk * kLoraBlocksPerTask;
    const int64_t end = std::min(first + kLoraBlocksPerTask, part.num_blocks());
    for (int64_t row = 0; row < slab.num_tokens; row += kLoraUpRows) {
      const int64_t num_rows = std::min<int64_t>(kLoraUpRows, slab.num_tokens - row);
      for (int64_t block = first; block < end; ++block) {
        Out* to[kLoraUpRows];
        for (int64_t idx = 0; idx < num_rows; ++idx) {
          to[idx] = outputs + slab.tokens[row + idx] * out_stride + part.start +
                    block * part.block_stride;
        }
        with_num_rows<kLoraUpRows>(static_cast<int>(num_rows), [&]<int kRows>() {
          lora_up_tile<kRows>(inner_at(slab.place + row, part_idx), inner_stride(),
                              part.up + block * part.num_rank_pairs() * 2 * kLanes,
                              part.num_rank_pairs(), to,
                              first_lanes(part.out_features - block * kLanes));
        });
      }
    }
  }

  const LoraStep* step_ = nullptr;
  int64_t num_rank_blocks_ = 1;  // of a part, at most
  int64_t num_out_blocks_ = 1;
  std::vector<Slab> slabs_;
  Buffer<bf16> inner_;  // [tokens with adapters][kMaxLoraParts][num_rank_blocks_ * 16]
};

}  // namespace jetflock
