// Memory of a step.

#pragma once

#include <cstdlib>
#include <new>

namespace jetflock {

// Grows, never shrinks. Aligned, so that rows computed by different threads share no cache line.
template <class T>
class Buffer {
 public:
  ~Buffer() { std::free(data_); }

  T* data() const { return data_; }

  void reserve(size_t size) {
    if (size <= size_) return;
    std::free(data_);
    data_ = static_cast<T*>(std::aligned_alloc(64, (size * sizeof(T) + 63) / 64 * 64));
    if (data_ == nullptr) throw std::bad_alloc();
    size_ = size;
  }

 private:
  T* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace jetflock
