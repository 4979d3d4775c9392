// Threads that run one function together, phase by phase.

#pragma once

#include <immintrin.h>

#include <atomic>
#include <functional>
#include <thread>
#include <vector>

#include "denormals.h"

namespace jetflock {

constexpr int kSpinsBeforeYield = 4000;  // some 50 us: longer than any phase's imbalance
constexpr int kSpinsBeforeSleep = 2000;  // the head follows the layers at once

// The caller of `run` is rank 0; the others sleep between runs, after a moment, and spin between
// phases.
class ThreadTeam {
 public:
  explicit ThreadTeam(int num_threads) : size_(num_threads) {
    for (int rank = 1; rank < size_; ++rank) {
      threads_.emplace_back([this] { serve(); });
    }
  }

  ~ThreadTeam() {
    body_ = nullptr;
    wake();
    for (auto& thread : threads_) thread.join();
  }

  ThreadTeam(const ThreadTeam&) = delete;
  ThreadTeam& operator=(const ThreadTeam&) = delete;

  int size() const { return size_; }

  // One thread's view of a run. All threads must go through the same phases in the same order.
  class Member {
   public:
    explicit Member(ThreadTeam& team) : team_(team) {}

    // Each index of [0, num_tasks) goes to whichever thread is free; returns when all are done.
    // Tickets only grow: every thread draws exactly one too many in each phase, so all agree where
    // the next phase's tickets begin.
    template <class Task>
    void for_each(long num_tasks, const Task& task) {
      for_each(num_tasks, task, [] {});
    }

    // Whoever is the last one done does `last`, before anybody goes on.
    template <class Task, class Last>
    void for_each(long num_tasks, const Task& task, const Last& last) {
      for (;;) {
        const long ticket = team_.next_ticket_.fetch_add(1, std::memory_order_relaxed) - base_;
        if (ticket >= num_tasks) break;
        task(ticket);
      }
      base_ += num_tasks + team_.size_;
      barrier(last);
    }

   private:
    template <class Last>
    void barrier(const Last& last) {
      if (team_.size_ == 1) return last();
      const unsigned phase = team_.phase_.load(std::memory_order_relaxed);
      if (team_.num_arrived_.fetch_add(1, std::memory_order_acq_rel) == team_.size_ - 1) {
        last();
        team_.num_arrived_.store(0, std::memory_order_relaxed);
        team_.phase_.store(phase + 1, std::memory_order_release);
        return;
      }
      for (int spins = 0; team_.phase_.load(std::memory_order_acquire) == phase; ++spins) {
        if (spins < kSpinsBeforeYield) {
          _mm_pause();
        } else {
          std::this_thread::yield();
        }
      }
    }

    ThreadTeam& team_;
    long base_ = 0;
  };

  void run(const std::function<void(Member&)>& body) {
    next_ticket_.store(0, std::memory_order_relaxed);
    body_ = &body;
    num_running_.store(size_ - 1, std::memory_order_relaxed);
    wake();
    const DenormalsAreZeros denormals;
    Member member(*this);
    body(member);
    // A body may end with its last barrier: wait until nobody looks at `body` any more.
    while (num_running_.load(std::memory_order_acquire) != 0) _mm_pause();
  }

 private:
  void serve() {
    const DenormalsAreZeros denormals;
    unsigned seen = 0;
    for (;;) {
      for (int spins = 0; num_runs_.load(std::memory_order_relaxed) == seen; ++spins) {
        if (spins >= kSpinsBeforeSleep) num_runs_.wait(seen);
        _mm_pause();
      }
      seen = num_runs_.load(std::memory_order_acquire);
      const auto* body = body_;
      if (body == nullptr) return;
      Member member(*this);
      (*body)(member);
      num_running_.fetch_sub(1, std::memory_order_release);
    }
  }

  void wake() {
    num_runs_.fetch_add(1, std::memory_order_release);
    num_runs_.notify_all();
  }

  const int size_;
  const std::function<void(Member&)>* body_ = nullptr;
  std::vector<std::thread> threads_;
  alignas(64) std::atomic<unsigned> num_runs_{0};
  alignas(64) std::atomic<int> num_running_{0};
  alignas(64) std::atomic<long> next_ticket_{0};
  alignas(64) std::atomic<int> num_arrived_{0};
  alignas(64) std::atomic<unsigned> phase_{0};
};

}  // namespace jetflock
