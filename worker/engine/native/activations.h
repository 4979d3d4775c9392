// What stands between the projections of an MLP.

#pragma once

#include "vector_math.h"

namespace jetflock {

enum Activation : int64_t { kSilu, kGelu, kGeluTanh, kRelu, kSquaredRelu, kClampedGate };

// x * (1 + erf(x / sqrt(2))) / 2, by a polynomial of an exponential: its error is below 1e-6.
inline Floats gelu(Floats x) {
  const Floats size = larger(x, subtract(zeros(), x));
  const Floats root = multiply(size, all(0.70710678f));
  const Floats step = divide(all(1.0f), fmadd(root, all(0.3275911f), all(1.0f)));
  Floats sum = all(1.061405429f);
  sum = fmadd(sum, step, all(-1.453152027f));
  sum = fmadd(sum, step, all(1.421413741f));
  sum = fmadd(sum, step, all(-0.284496736f));
  sum = fmadd(sum, step, all(0.254829592f));
  const Floats power = exp2(multiply(multiply(root, root), all(-kLog2E)));
  const Floats missing = multiply(multiply(sum, step), power);  // 1 - erf
  // Positive x: x less x * missing / 2; negative ones: x * missing / 2.
  return subtract(larger(x, zeros()), multiply(multiply(size, all(0.5f)), missing));
}

// With tanh in the place of erf: x times a sigmoid.
inline Floats gelu_tanh(Floats x) {
  const Floats cube = multiply(multiply(x, x), x);
  const Floats inner = fmadd(cube, all(0.044715f), x);
  const Floats power = exp2(multiply(inner, all(-1.5957691216f * kLog2E)));
  return divide(x, add(all(1.0f), power));
}

struct Inner {
  Activation activation;
  int64_t is_gated;
  float slope;  // of kClampedGate, as its bound
  float bound;

  // Outputs of so many sums.
  int64_t size(int64_t num_sums) const { return is_gated ? num_sums / 2 : num_sums; }

  Floats of(Floats x) const {
    switch (activation) {
      case kGelu:
        return gelu(x);
      case kGeluTanh:
        return gelu_tanh(x);
      case kRelu:
        return larger(zeros(), x);  // in this order, not-a-number stays what it is
      case kSquaredRelu:
        return multiply(larger(zeros(), x), larger(zeros(), x));
      default:
        return silu(x);
    }
  }

  Floats of(Floats gate, Floats value) const {
    return activation == kClampedGate ? clamped(gate, value) : multiply(of(gate), value);
  }

  // GPT-OSS: gate and value are bounded, the gate's sigmoid is steeper, value + 1.
  Floats clamped(Floats gate, Floats value) const {
    // In this order, not-a-number stays what it is.
    gate = smaller(all(bound), gate);
    value = larger(all(-bound), smaller(all(bound), value));
    // silu(slope * gate) / slope is gate times the steeper sigmoid.
    const Floats exponential = exp2(multiply(multiply(gate, all(slope)), all(-kLog2E)));
    const Floats glu = divide(gate, add(all(1.0f), exponential));
    return multiply(add(value, all(1.0f)), glu);
  }
};

}  // namespace jetflock
