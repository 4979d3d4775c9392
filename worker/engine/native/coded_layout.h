// How codes of 8 and 4 bits lie in memory, and what they are decoded to.

#pragma once

#include "linear_weights.h"

namespace jetflock {

// What the codes stand for, as bfloat16. Of kCodes8: the lower bytes of the 128 codes without a
// sign, their upper bytes, and the upper byte of code 0x80, whose lower one is zero. Of kCodes4: the
// sixteen values two times; with zero points those of 5 bits, 0 to 15 and -16 to -1.
constexpr int kCodes8Values = 128;

// A block of kCodes8 has 64 bytes a pair of inputs. Byte p is column and input
// lane * 8 + p % 8 of the left vector (p % 16 < 8) or the right one, with lane = p / 16: so that
// joining low and high bytes within 128 bits puts them in order.
inline int codes8_position(int vector, int element) {
  return element / 8 * 16 + vector * 8 + element % 8;
}

// Two neighbouring inputs (element = 2 * column + input) of the sixteen columns of each vector.
struct DecodedPairs {
  Pairs left;
  Pairs right;
};

}  // namespace jetflock
