// Products of one layer after the other, for a model whose other parts are computed by somebody else.

#pragma once

#include "experts.h"
#include "input_rows.h"
#include "linear.h"
#include "thread_team.h"

namespace jetflock {

class ProductTeam {
 public:
  explicit ProductTeam(int num_threads) : team_(num_threads) {}

  // inputs: [num_rows, in_features]; outputs: [num_rows, out_features].
  void multiply_rows(const Linear& linear, const bf16* inputs, int64_t num_rows, bf16* outputs) {
    prepared_.note(linear);
    prepared_.reserve(num_rows);
    const InputRows rows = prepared_.rows(inputs, 0);
    team_.run([&](ThreadTeam::Member& member) {
      multiply(member, team_.size(), linear, rows, num_rows, Store{outputs});
    });
  }

  // outputs: [num_tokens, hidden_size].
  void forward(const Experts& experts, const ExpertStep& step, bf16* outputs) {
    rows_.note(experts);
    rows_.reserve(step.num_tokens * step.num_chosen);
    rows_.plan(experts, step);
    const int64_t size = experts.down[0].out_features;
    team_.run([&](ThreadTeam::Member& member) {
      rows_.multiply(member, team_.size(), experts, step);
      member.for_each(step.num_tokens, [&](int64_t token) {
        rows_.add_up(experts, step.num_chosen, token, [&](int64_t at, Floats sum, Mask mask) {
          store_bf16(outputs + token * size + at, sum, mask);
        });
      });
    });
  }

 private:
  ThreadTeam team_;
  ExpertRows rows_;
  InputBuffers prepared_;  // of `multiply_rows`
};

}  // namespace jetflock
