// The lanes of the kernel set that this library is compiled for. All else is written in their words:
// instructions of one processor stand in the files of its lanes, its codes and its tiles alone.

#pragma once

#if defined(JETFLOCK_AVX2)
#include "lanes_avx2.h"
#else
#include "lanes_avx512.h"
#endif
