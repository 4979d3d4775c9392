// Brings vectors to one length.

#pragma once

#include <cmath>
#include <type_traits>

#include "vector_math.h"

namespace jetflock {

enum NormKind : int64_t {
  kRootMeanSquare,
  kVariance,  // of what is left without their mean
};

struct NormRule {
  NormKind kind;
  float eps;
};

struct Norm {
  const float* weight;  // null: there is no norm at this place
  const float* bias;    // or null

  bool exists() const { return weight != nullptr; }
  Norm from(int64_t at) const { return {weight + at, bias == nullptr ? nullptr : bias + at}; }
};

// What a vector is brought to one length by.
struct Measure {
  float mean;
  float scale;
};

inline Floats load_floats(const float* from, Mask mask) { return load(from, mask); }
inline Floats load_floats(const bf16* from, Mask mask) { return load_bf16(from, mask); }

template <class In>
inline Measure measure(const NormRule& rule, const In* x, int64_t size) {
  float mean = 0.0f;
  if (rule.kind == kVariance) {
    Floats sums = zeros();
    for (int64_t at = 0; at < size; at += kLanes) {
      sums = add(sums, load_floats(x + at, first_lanes(size - at)));
    }
    mean = sum_of_lanes(sums) / static_cast<float>(size);
  }
  Floats squares = zeros();
  for (int64_t at = 0; at < size; at += kLanes) {
    const Mask mask = first_lanes(size - at);
    const Floats rest = select(mask, subtract(load_floats(x + at, mask), all(mean)), zeros());
    squares = fmadd(rest, rest, squares);
  }
  const float mean_square = sum_of_lanes(squares) / static_cast<float>(size);
  return {mean, 1.0f / std::sqrt(mean_square + rule.eps)};
}

template <class In, class Out>
inline void apply(const Measure& measure, const Norm& norm, const In* x, int64_t size, Out* out) {
  const Floats mean = all(measure.mean), scale = all(measure.scale);
  for (int64_t at = 0; at < size; at += kLanes) {
    const Mask mask = first_lanes(size - at);
    Floats values = multiply(subtract(load_floats(x + at, mask), mean), scale);
    values = multiply(values, load(norm.weight + at, mask));
    if (norm.bias != nullptr) values = add(values, load(norm.bias + at, mask));
    if constexpr (std::is_same_v<Out, float>) {
      store(out + at, values, mask);
    } else {
      store_bf16(out + at, values, mask);
    }
  }
}

template <class In, class Out>
inline void normalise(const NormRule& rule, const Norm& norm, const In* x, int64_t size,
                      Out* out) {
  apply(measure(rule, x, size), norm, x, size, out);
}

}  // namespace jetflock
