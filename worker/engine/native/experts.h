// Mixtures of experts: each token goes through the few experts that its router has chosen.

#pragma once

#include <algorithm>
#include <vector>

#include "buffer.h"
#include "input_rows.h"
#include "linear.h"
#include "router.h"
#include "thread_team.h"
#include "vector_math.h"

namespace jetflock {

// Of a layer. Gated, the outputs of gate_up are interleaved, see pack_linear; all experts have one
// shape.
struct Experts {
  const Linear* gate_up;  // [num_experts]
  const Linear* down;     // [num_experts]
  int64_t num_experts;
  Inner inner;
};

// Tokens and what their router says of them. Expert ids that are no expert's are passed over.
struct ExpertStep {
  int64_t num_tokens;
  int64_t num_chosen;         // experts of a token
  const bf16* inputs;         // [num_tokens, hidden_size]
  const int64_t* expert_ids;  // [num_tokens, num_chosen]
  const float* shares;        // the same: what each of a token's experts counts
};

// Computes the experts of one layer after the other, within the run of a team. A token's outputs
// are the same, bit for bit, whatever other tokens there are: its products are, and they are added
// by the experts' numbers.
class ExpertRows {
 public:
  void note(const Experts& experts) {
    for (int64_t expert = 0; expert < experts.num_experts; ++expert) {
      prepared_.note(experts.gate_up[expert]);
      prepared_.note(experts.down[expert]);
    }
    if (experts.num_experts == 0) return;
    const Linear& down = experts.down[0];
    hidden_size_ = std::max(hidden_size_, down.out_features);
    inner_size_ = std::max(inner_size_, down.in_features);
  }

  // Before the run: num_rows are tokens times experts of each.
  void reserve(int64_t num_rows) {
    inputs_.reserve(num_rows * hidden_size_);
    activated_.reserve(num_rows * inner_size_);
    outputs_.reserve(num_rows * hidden_size_);
    prepared_.reserve(num_rows);
  }

  // By one thread: rows by expert, an expert's by token; and where those of each token stand, by
  // expert.
  void plan(const Experts& experts, const ExpertStep& step) {
    const int64_t num_places = step.num_tokens * step.num_chosen;
    const auto is_expert = [&](int64_t id) { return id >= 0 && id < experts.num_experts; };
    ends_.assign(experts.num_experts + 1, 0);
    for (int64_t at = 0; at < num_places; ++at) {
      const int64_t expert = step.expert_ids[at];
      if (is_expert(expert)) ++ends_[expert + 1];
    }
    for (int64_t expert = 0; expert < experts.num_experts; ++expert) {
      ends_[expert + 1] += ends_[expert];
    }
    rows_.resize(ends_.back());
    slabs_.clear();
    gathers_ = prepares_ups_ = prepares_downs_ = false;
    for (int64_t expert = 0; expert < experts.num_experts; ++expert) {
      const int64_t start = ends_[expert], end = ends_[expert + 1];
      for (int64_t row = start; row < end; row += kSlabRows) {
        slabs_.push_back({expert, row, std::min<int64_t>(kSlabRows, end - row)});
      }
      if (start == end) continue;
      gathers_ |= end - start > 1;
      prepares_ups_ |= must_prepare(experts.gate_up[expert]);
      prepares_downs_ |= must_prepare(experts.down[expert]);
    }
    // From here on ends_[expert] is where its next row comes.
    for (int64_t at = 0; at < num_places; ++at) {
      const int64_t expert = step.expert_ids[at];
      if (is_expert(expert)) rows_[ends_[expert]++] = {at / step.num_chosen, step.shares[at]};
    }
    rows_of_tokens_.assign(num_places, -1);
    num_found_.assign(step.num_tokens, 0);
    for (int64_t row = 0; row < static_cast<int64_t>(rows_.size()); ++row) {
      const int64_t token = rows_[row].token;
      rows_of_tokens_[token * step.num_chosen + num_found_[token]++] = row;
    }
  }

  // Once it is planned.
  void multiply(ThreadTeam::Member& member, int team_size, const Experts& experts,
                const ExpertStep& step) {
    const int64_t size = experts.gate_up[0].in_features;
    const auto token_of = [&](int64_t row) { return step.inputs + rows_[row].token * size; };
    if (gathers_) {
      member.for_each(rows_.size(), [&](int64_t row) {
        std::copy_n(token_of(row), size, inputs_.data() + row * size);
      });
    }
    const auto inputs = [&](const Slab& slab) {  // one row is where its token is
      return slab.num_rows == 1 ? token_of(slab.start) : inputs_.data() + slab.start * size;
    };
    if (prepares_ups_) prepare(member, experts.gate_up, inputs);
    multiply(member, team_size, experts.gate_up, inputs,
             StoreInner{activated_.data(), experts.inner});
    const auto activated = [&](const Slab& slab) {
      return activated_.data() + slab.start * experts.down[0].in_features;
    };
    if (prepares_downs_) prepare(member, experts.down, activated);
    multiply(member, team_size, experts.down, activated, StoreFloats{outputs_.data()});
  }

  // Calls `take` with what a token's experts give: where, and the values there.
  template <class Take>
  void add_up(const Experts& experts, int64_t num_chosen, int64_t token, const Take& take) const {
    const int64_t size = experts.down[0].out_features;
    for (int64_t at = 0; at < size; at += kLanes) {
      const Mask mask = first_lanes(size - at);
      Floats sum = zeros();
      for (int64_t place = 0; place < num_chosen; ++place) {
        const int64_t row = rows_of_tokens_[token * num_chosen + place];
        if (row < 0) break;
        sum = fmadd(load(outputs_.data() + row * size + at, mask), all(rows_[row].share), sum);
      }
      take(at, sum, mask);
    }
  }

 private:
  // A token and one of its experts.
  struct Row {
    int64_t token;
    float share;
  };

  // Rows of one expert that are multiplied together.
  struct Slab {
    int64_t expert;
    int64_t start;
    int64_t num_rows;
  };

  // inputs: gives those of a slab.
  template <class Inputs>
  void prepare(ThreadTeam::Member& member, const Linear* linears, const Inputs& inputs) {
    member.for_each(slabs_.size(), [&](int64_t idx) {
      const Slab& slab = slabs_[idx];
      const Linear& linear = linears[slab.expert];
      const InputRows rows = prepared_.rows(inputs(slab), slab.start);
      for (int64_t row = 0; row < slab.num_rows; ++row) prepare_row(linear, rows, row);
    });
  }

  // Each row with its expert's weights.
  template <class Inputs, class Finish>
  void multiply(ThreadTeam::Member& member, int team_size, const Linear* linears,
                const Inputs& inputs, const Finish& finish) {
    const long num_blocks = linears[0].num_blocks();
    const long num_slabs = static_cast<long>(slabs_.size());
    constexpr long least = Finish::kLeastBlocks;
    const long blocks_per_task =
        std::clamp(num_blocks * num_slabs / (team_size * 32L) / least, 1L, kMaxTaskBlocks / least) *
        least;
    const long tasks_per_slab = (num_blocks + blocks_per_task - 1) / blocks_per_task;
    member.for_each(num_slabs * tasks_per_slab, [&](long task) {
      const Slab& slab = slabs_[task / tasks_per_slab];
      const Linear& linear = linears[slab.expert];
      const InputRows rows = prepared_.rows(inputs(slab), slab.start);
      const Finish own = finish.from(linear.out_features, slab.start);
      const long first = task % tasks_per_slab * blocks_per_task;
      const long end = std::min(first + blocks_per_task, num_blocks);
      multiply_blocks(linear, first, end, rows, 0, slab.num_rows, own);
    });
  }

  static constexpr long kMaxTaskBlocks = 8;

  int64_t hidden_size_ = 0;
  int64_t inner_size_ = 0;
  std::vector<Row> rows_;
  std::vector<Slab> slabs_;
  std::vector<int64_t> rows_of_tokens_;  // [num_tokens, num_chosen], -1 after the last
  std::vector<int64_t> ends_;            // of plan alone
  std::vector<int64_t> num_found_;       // the same
  bool gathers_ = false;                 // some slab has rows of several tokens
  bool prepares_ups_ = false;
  bool prepares_downs_ = false;
  Buffer<bf16> inputs_;     // [num_rows, hidden_size]
  Buffer<bf16> activated_;  // [num_rows, inner_size]
  Buffer<float> outputs_;   // [num_rows, hidden_size]
  InputBuffers prepared_;   // for the linears of experts, which may have groups of other sizes
};

}  // namespace jetflock
