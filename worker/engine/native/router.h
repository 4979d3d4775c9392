// Chooses experts for tokens, in float32.

#pragma once

#include <algorithm>
#include <limits>

#include "buffer.h"
#include "thread_team.h"
#include "vector_math.h"

namespace jetflock {

constexpr int kRouterRows = kMaxTileRows / 2;  // of a task, with up to four vectors of sums each
constexpr int kRouterVectors = 4;

enum Scoring : int64_t { kSoftmax, kSigmoid };

// How the experts of a layer are chosen; models/experts/expert_router.py tells what each means. A
// gate of an MLP that is beside the experts is one output more, behind them.
struct Router {
  const float* weights;     // [num_vectors()][hidden_size][kLanes]
  const float* bias;        // [num_vectors() * kLanes], or null
  const float* correction;  // the same
  int64_t num_experts;
  int64_t has_shared_gate;
  int64_t num_chosen;
  Scoring scoring;
  int64_t num_groups;
  int64_t num_chosen_groups;
  int64_t num_group_scores;
  int64_t is_normed;
  float norm_eps;
  float scale;

  int64_t num_vectors() const { return (num_experts + has_shared_gate + kLanes - 1) / kLanes; }
  int64_t stride() const { return num_vectors() * kLanes; }  // of a token's scores
};

// Sums over the inputs in their order. logits: of the first row's first vector.
template <int kRows, int kVectors>
inline void route_tile(const bf16* rows, const float* weights, int64_t hidden_size, float* logits,
                       int64_t stride) {
  Floats sums[kRows][kVectors];
  for (int row = 0; row < kRows; ++row) {
    for (int part = 0; part < kVectors; ++part) sums[row][part] = zeros();
  }
  for (int64_t at = 0; at < hidden_size; ++at) {
    Floats weight[kVectors];
#pragma GCC unroll 4
    for (int part = 0; part < kVectors; ++part) {
      weight[part] = load(weights + (part * hidden_size + at) * kLanes);
    }
#pragma GCC unroll 6
    for (int row = 0; row < kRows; ++row) {
      const Floats input = all(to_float(rows[row * hidden_size + at]));
#pragma GCC unroll 4
      for (int part = 0; part < kVectors; ++part) {
        sums[row][part] = fmadd(input, weight[part], sums[row][part]);
      }
    }
  }
  for (int row = 0; row < kRows; ++row) {
    for (int part = 0; part < kVectors; ++part) {
      store(logits + row * stride + part * kLanes, sums[row][part]);
    }
  }
}

struct Scored {
  float score;
  int64_t id;
};

// The best of what it is shown, the best one first; of equals the one that it was shown first.
class Best {
 public:
  Best(Scored* best, int64_t limit) : best_(best), limit_(limit) {}

  void show(Scored one) {
    if (count_ == limit_ && !(one.score > best_[limit_ - 1].score)) return;
    int64_t at = count_ < limit_ ? count_++ : limit_ - 1;
    for (; at > 0 && one.score > best_[at - 1].score; --at) best_[at] = best_[at - 1];
    best_[at] = one;
  }

  Scored* begin() const { return best_; }
  Scored* end() const { return best_ + count_; }

  bool has(int64_t id) const {
    return std::any_of(begin(), end(), [&](const Scored& each) { return each.id == id; });
  }

  // One after the other.
  float sum() const {
    float sum = 0.0f;
    for (const Scored& each : *this) sum += each.score;
    return sum;
  }

 private:
  Scored* best_;
  int64_t limit_;
  int64_t count_ = 0;
};

// What the tokens of a step have chosen, of one layer after the other. A token's choice does not
// depend on the tokens beside it.
class Routing {
 public:
  const int64_t* expert_ids() const { return expert_ids_.data(); }  // [num_tokens][num_chosen]
  const float* shares() const { return shares_.data(); }            // the same

  // Of the MLP beside the experts: one for each token, `stride()` of the router apart.
  const float* shared_gates(const Router& router) const {
    return scores_.data() + router.num_experts;
  }

  void note(const Router& router) {
    stride_ = std::max(stride_, router.stride());
    num_chosen_ = std::max(num_chosen_, router.num_chosen);
    num_best_ = std::max(num_best_, num_best(router));
  }

  void reserve(int64_t num_tokens) {
    scores_.reserve(num_tokens * stride_);
    preferred_.reserve(num_tokens * stride_);
    best_.reserve(num_tokens * num_best_);
    expert_ids_.reserve(num_tokens * num_chosen_);
    shares_.reserve(num_tokens * num_chosen_);
  }

  // rows: [num_tokens, hidden_size]. The last thread that is done does `last`.
  template <class Last>
  void choose(ThreadTeam::Member& member, const Router& router, const bf16* rows,
              int64_t num_tokens, int64_t hidden_size, const Last& last) {
    const int64_t num_slabs = (num_tokens + kRouterRows - 1) / kRouterRows;
    const int64_t num_parts = (router.num_vectors() + kRouterVectors - 1) / kRouterVectors;
    member.for_each(num_slabs * num_parts, [&](int64_t task) {
      const int64_t first = task / num_parts * kRouterRows;
      const int64_t vector = task % num_parts * kRouterVectors;
      const int64_t num_rows = std::min<int64_t>(kRouterRows, num_tokens - first);
      const int64_t count = std::min<int64_t>(kRouterVectors, router.num_vectors() - vector);
      with_num_rows<kRouterVectors>(static_cast<int>(count), [&]<int kVectors>() {
        with_num_rows<kRouterRows>(static_cast<int>(num_rows), [&]<int kRows>() {
          route_tile<kRows, kVectors>(rows + first * hidden_size,
                                      router.weights + vector * hidden_size * kLanes, hidden_size,
                                      scores_.data() + first * router.stride() + vector * kLanes,
                                      router.stride());
        });
      });
    });
    member.for_each(num_tokens, [&](int64_t token) { choose_for(router, token); }, last);
  }

 private:
  // Places for the best of a token: experts, groups, and experts of one group.
  static int64_t num_best(const Router& router) {
    return router.num_chosen + router.num_chosen_groups + router.num_group_scores;
  }

  void choose_for(const Router& router, int64_t token) {
    float* scores = scores_.data() + token * router.stride();
    score(router, scores);
    const float* preferred = scores;
    if (router.correction != nullptr) {
      float* corrected = preferred_.data() + token * router.stride();
      for (int64_t at = 0; at < router.stride(); at += kLanes) {
        store(corrected + at, add(load(scores + at), load(router.correction + at)));
      }
      preferred = corrected;
    }
    Best best(best_.data() + token * num_best(router), router.num_chosen);
    show_experts(router, preferred, best);
    std::sort(best.begin(), best.end(),
              [](const Scored& one, const Scored& other) { return one.id < other.id; });
    for (Scored& each : best) each.score = scores[each.id];
    const float divisor = router.is_normed ? best.sum() + router.norm_eps : 1.0f;
    int64_t at = token * router.num_chosen;
    for (const Scored& each : best) {
      expert_ids_.data()[at] = each.id;
      shares_.data()[at++] = each.score / divisor * router.scale;
    }
  }

  // In the place of logits.
  void score(const Router& router, float* logits) const {
    const Floats least = all(-std::numeric_limits<float>::infinity());
    if (router.bias != nullptr) {
      for (int64_t at = 0; at < router.stride(); at += kLanes) {
        store(logits + at, add(load(logits + at), load(router.bias + at)));
      }
    }
    const float gate = logits[router.num_experts];
    if (router.scoring == kSigmoid) {
      for (int64_t at = 0; at < router.stride(); at += kLanes) {
        store(logits + at, sigmoid(load(logits + at)));
      }
      return;
    }
    Floats largest = least;
    const auto logit = [&](int64_t at) {
      return select(first_lanes(std::max<int64_t>(0, router.num_experts - at)),
                    load(logits + at), least);
    };
    for (int64_t at = 0; at < router.stride(); at += kLanes) largest = larger(largest, logit(at));
    const Floats base = all(largest_lane(largest));
    Floats sums = zeros();
    for (int64_t at = 0; at < router.stride(); at += kLanes) {
      const Floats value = exp2(multiply(subtract(logit(at), base), all(kLog2E)));
      sums = add(sums, value);
      store(logits + at, value);
    }
    const Floats sum = all(sum_of_lanes(sums));
    for (int64_t at = 0; at < router.stride(); at += kLanes) {
      store(logits + at, divide(load(logits + at), sum));
    }
    if (router.has_shared_gate) logits[router.num_experts] = first_lane(sigmoid(all(gate)));
  }

  void show_experts(const Router& router, const float* scores, Best& best) const {
    if (router.num_chosen_groups == router.num_groups) {
      for (int64_t id = 0; id < router.num_experts; ++id) best.show({scores[id], id});
      return;
    }
    const int64_t size = router.num_experts / router.num_groups;
    Best groups(best.begin() + router.num_chosen, router.num_chosen_groups);
    for (int64_t group = 0; group < router.num_groups; ++group) {
      Best of_group(best.begin() + router.num_chosen + router.num_chosen_groups,
                    router.num_group_scores);
      for (int64_t at = 0; at < size; ++at) of_group.show({scores[group * size + at], at});
      groups.show({of_group.sum(), group});
    }
    for (int64_t id = 0; id < router.num_experts; ++id) {
      if (groups.has(id / size)) best.show({scores[id], id});
    }
  }

  int64_t stride_ = 0;
  int64_t num_chosen_ = 0;
  int64_t num_best_ = 0;
  Buffer<float> scores_;     // [num_tokens][stride()]
  Buffer<float> preferred_;  // the same
  Buffer<Scored> best_;      // [num_tokens][num_best()]
  Buffer<int64_t> expert_ids_;
  Buffer<float> shares_;
};

}  // namespace jetflock
