// The few functions that the kernels need, sixteen lanes at a time.

#pragma once

#include "lanes.h"

namespace jetflock {

inline float to_float(bf16 value) {
  const uint32_t bits = static_cast<uint32_t>(value) << 16;
  float result;
  __builtin_memcpy(&result, &bits, sizeof(result));
  return result;
}

inline void prefetch(const void* at) {
  _mm_prefetch(static_cast<const char*>(at), _MM_HINT_T1);
}

// 2^x for x up to 127, relative error below 3e-6: far below bfloat16's. 0 from -160 on. A minimax
// polynomial on [-1/2, 1/2], then scaling by the integer part.
inline Floats exp2(Floats x) {
  x = larger(all(-160.0f), x);  // in this order, not-a-number stays what it is
  const Floats whole = whole_part(x);
  const Floats rest = subtract(x, whole);
  Floats value = all(9.570101433278185e-3f);
  value = fmadd(value, rest, all(5.591786028190548e-2f));
  value = fmadd(value, rest, all(2.402474483966416e-1f));
  value = fmadd(value, rest, all(6.931218147436762e-1f));
  value = fmadd(value, rest, all(1.0f));
  return scale_by_power(value, whole);
}

constexpr float kLog2E = 1.4426950408889634f;

// By a division: estimates of a reciprocal differ between makers of processors.
inline Floats silu(Floats x) {
  const Floats exponential = exp2(multiply(x, all(-kLog2E)));
  return divide(x, add(all(1.0f), exponential));
}

// tanh(x / (2 * log2(e))), to within 1e-6.
inline Floats tanh_of_power(Floats x) {
  const Floats power = exp2(x);
  return subtract(all(1.0f), divide(all(2.0f), add(all(1.0f), power)));
}

inline Floats sigmoid(Floats x) {
  const Floats exponential = exp2(multiply(x, all(-kLog2E)));
  return divide(all(1.0f), add(all(1.0f), exponential));
}

// Calls `call` with the number of rows, 1 to kMax, as a constant.
template <int kMax, int kRows = 1, class Call>
inline void with_num_rows(int num_rows, const Call& call) {
  if constexpr (kRows <= kMax) {
    if (num_rows == kRows) {
      call.template operator()<kRows>();
    } else {
      with_num_rows<kMax, kRows + 1>(num_rows, call);
    }
  }
}

}  // namespace jetflock
