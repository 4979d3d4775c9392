// Denormal numbers as zeros, in what is read and in what is written.

#pragma once

#include <immintrin.h>

namespace jetflock {

// While it lives, in its thread. The products of bfloat16 by VDPBF16PS and TDPBF16PS have it so
// always; with the same for all else no kernel set tells denormals from zeros.
class DenormalsAreZeros {
 public:
  DenormalsAreZeros() : kept_(_mm_getcsr()) { _mm_setcsr(kept_ | 0x8040); }
  ~DenormalsAreZeros() { _mm_setcsr(kept_); }

  DenormalsAreZeros(const DenormalsAreZeros&) = delete;
  DenormalsAreZeros& operator=(const DenormalsAreZeros&) = delete;

 private:
  const unsigned kept_;
};

}  // namespace jetflock
