// Mixtures of experts: each token goes through the few experts that its router has chosen.

#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "buffer.h"
#include "input_rows.h"
#include "linear.h"
#include "thread_team.h"
#include "vector_math.h"

namespace jetflock {

enum ExpertGate : int64_t {
  kSiluGate,     // silu(gate) * value
  kClampedGate,  // GPT-OSS: gate and value are bounded, the gate's sigmoid is steeper, value + 1
};

// Of a layer. The outputs of gate_up are interleaved, see pack_linear; all experts have one shape.
struct Experts {
  const Linear* gate_up;  // [num_experts]
  const Linear* down;     // [num_experts]
  int64_t num_experts;
  ExpertGate gate;
  float slope;  // of kClampedGate, as its bound
  float bound;
};

// Tokens and what their router says of them. Expert ids that are no expert's are passed over.
struct ExpertStep {
  int64_t num_tokens;
  int64_t num_chosen;         // experts of a token
  const bf16* inputs;         // [num_tokens, hidden_size]
  const int64_t* expert_ids;  // [num_tokens, num_chosen]
  const float* shares;        // the same: what each of a token's experts counts
  bf16* outputs;              // [num_tokens, hidden_size]
};

// Computes the experts of one layer after the other. A token's outputs are the same, bit for bit,
// whatever other tokens there are: its products are, and they are added by the experts' numbers.
class ExpertTeam {
 public:
  explicit ExpertTeam(int num_threads) : team_(num_threads) {}

  void forward(const Experts& experts, const ExpertStep& step) {
    const Linear& up = experts.gate_up[0];
    const Linear& down = experts.down[0];
    plan(experts, step);
    const int64_t num_rows = static_cast<int64_t>(rows_.size());
    inputs_.reserve(num_rows * up.in_features);
    gate_up_.reserve(num_rows * stride_of(up));
    activated_.reserve(num_rows * down.in_features);
    outputs_.reserve(num_rows * down.out_features);
    for (int64_t expert = 0; expert < experts.num_experts; ++expert) {
      prepared_.note(experts.gate_up[expert]);
      prepared_.note(experts.down[expert]);
    }
    prepared_.reserve(num_rows);
    team_.run([&](ThreadTeam::Member& member) {
      member.for_each(num_rows, [&](int64_t row) {
        std::copy_n(step.inputs + rows_[row].token * up.in_features, up.in_features,
                    inputs_.data() + row * up.in_features);
      });
      multiply(member, experts.gate_up, inputs_.data(), gate_up_.data(), stride_of(up));
      member.for_each(num_rows, [&](int64_t row) { activate(experts, row); });
      multiply(member, experts.down, activated_.data(), outputs_.data(), down.out_features);
      member.for_each(step.num_tokens, [&](int64_t token) { add_up(experts, step, token); });
    });
  }

 private:
  // A token and one of its experts.
  struct Row {
    int64_t expert;
    int64_t token;
    float share;
  };

  // Rows of one expert that are multiplied together.
  struct Slab {
    int64_t expert;
    int64_t start;
    int64_t num_rows;
  };

  // Whole blocks: gates and values stay interleaved.
  static int64_t stride_of(const Linear& gate_up) { return gate_up.num_blocks() * kBlockCols; }

  // Rows by expert, an expert's by token; and where those of each token stand, by expert.
  void plan(const Experts& experts, const ExpertStep& step) {
    rows_.clear();
    for (int64_t at = 0; at < step.num_tokens * step.num_chosen; ++at) {
      const int64_t expert = step.expert_ids[at];
      if (expert < 0 || expert >= experts.num_experts) continue;
      rows_.push_back({expert, at / step.num_chosen, step.shares[at]});
    }
    std::stable_sort(rows_.begin(), rows_.end(),
                     [](const Row& one, const Row& other) { return one.expert < other.expert; });
    const int64_t num_rows = static_cast<int64_t>(rows_.size());
    slabs_.clear();
    for (int64_t row = 0; row < num_rows; ++row) {
      const bool begins = slabs_.empty() || slabs_.back().expert != rows_[row].expert ||
                          slabs_.back().num_rows == kSlabRows;
      if (begins) slabs_.push_back({rows_[row].expert, row, 0});
      ++slabs_.back().num_rows;
    }
    rows_of_tokens_.assign(step.num_tokens * step.num_chosen, -1);
    std::vector<int64_t> num_found(step.num_tokens, 0);
    for (int64_t row = 0; row < num_rows; ++row) {
      const int64_t token = rows_[row].token;
      rows_of_tokens_[token * step.num_chosen + num_found[token]++] = row;
    }
  }

  // outputs[row] = inputs[row] x its expert's weights + bias, `stride` values for each row.
  void multiply(ThreadTeam::Member& member, const Linear* linears, const bf16* inputs,
                float* outputs, int64_t stride) {
    member.for_each(slabs_.size(), [&](int64_t idx) {
      const Slab& slab = slabs_[idx];
      const Linear& linear = linears[slab.expert];
      const InputRows rows = rows_of(slab, linear, inputs);
      for (int64_t row = 0; row < slab.num_rows; ++row) prepare_row(linear, rows, row);
    });
    const long num_blocks = linears[0].num_blocks();
    const long num_slabs = static_cast<long>(slabs_.size());
    const long blocks_per_task =
        std::clamp(num_blocks * num_slabs / (team_.size() * 32L), 1L, kMaxTaskBlocks);
    const long tasks_per_slab = (num_blocks + blocks_per_task - 1) / blocks_per_task;
    member.for_each(num_slabs * tasks_per_slab, [&](long task) {
      const Slab& slab = slabs_[task / tasks_per_slab];
      Linear linear = linears[slab.expert];
      linear.out_features = stride;
      const InputRows rows = rows_of(slab, linear, inputs);
      float* to = outputs + slab.start * stride;
      const long first = task % tasks_per_slab * blocks_per_task;
      for (long block = first; block < std::min(first + blocks_per_task, num_blocks); ++block) {
        multiply_block<Epilogue::kStoreFloat>(linear, block, rows, 0, slab.num_rows, to);
      }
    });
  }

  InputRows rows_of(const Slab& slab, const Linear& linear, const bf16* inputs) const {
    return prepared_.rows(inputs + slab.start * linear.in_features, slab.start);
  }

  void activate(const Experts& experts, int64_t row) {
    const int64_t size = experts.down[0].in_features;
    const float* from = gate_up_.data() + row * stride_of(experts.gate_up[0]);
    for (int64_t at = 0; at < size; at += kLanes) {
      const Floats gate = load(from + 2 * at);
      const Floats value = load(from + 2 * at + kLanes);
      store_bf16(activated_.data() + row * size + at,
                 experts.gate == kSiluGate ? jetflock::multiply(silu(gate), value)
                                           : clamped(experts, gate, value),
                 first_lanes(size - at));
    }
  }

  static Floats clamped(const Experts& experts, Floats gate, Floats value) {
    const Floats bound = all(experts.bound), slope = all(experts.slope);
    // In this order, not-a-number stays what it is.
    gate = smaller(bound, gate);
    value = larger(all(-experts.bound), smaller(bound, value));
    // silu(slope * gate) / slope is gate times the steeper sigmoid.
    const Floats exponential = exp2(jetflock::multiply(jetflock::multiply(gate, slope), all(-kLog2E)));
    const Floats glu = divide(gate, add(all(1.0f), exponential));
    return jetflock::multiply(add(value, all(1.0f)), glu);
  }

  void add_up(const Experts& experts, const ExpertStep& step, int64_t token) {
    const int64_t size = experts.down[0].out_features;
    for (int64_t at = 0; at < size; at += kLanes) {
      const Mask mask = first_lanes(size - at);
      Floats sum = zeros();
      for (int64_t place = 0; place < step.num_chosen; ++place) {
        const int64_t row = rows_of_tokens_[token * step.num_chosen + place];
        if (row < 0) break;
        sum = fmadd(load(outputs_.data() + row * size + at, mask), all(rows_[row].share), sum);
      }
      store_bf16(step.outputs + token * size + at, sum, mask);
    }
  }

  static constexpr long kMaxTaskBlocks = 8;

  ThreadTeam team_;
  std::vector<Row> rows_;
  std::vector<Slab> slabs_;
  std::vector<int64_t> rows_of_tokens_;  // [num_tokens, num_chosen], -1 after the last
  Buffer<bf16> inputs_;     // [num_rows, hidden_size]
  Buffer<float> gate_up_;   // [num_rows, stride_of(gate_up)]
  Buffer<bf16> activated_;  // [num_rows, intermediate_size]
  Buffer<float> outputs_;   // [num_rows, hidden_size]
  InputBuffers prepared_;   // for the linears of experts, which may have groups of other sizes
};

}  // namespace jetflock
