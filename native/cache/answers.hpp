#pragma once
// Answers: what a store says of the chunks that one request asks for, key by key.
//
// A key that was not asked for yet is written down for the next question, which take() hands out;
// what comes back is written here, and later asks find it. Nothing is ever removed but by
// take_back(): a request is forgotten as a whole.
//
// Threads: one at a time. Failure: std::bad_alloc, with nothing changed.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cache/hashes.hpp"

namespace kvferry::cache {

enum class Answer : std::uint8_t { kNo, kYes, kPending, kNew };

class Answers {
 public:
  Answers();

  // The answer; kNew the first time, and from then on kPending until there is one.
  Answer ask(const ChunkHash& hash);
  // Undoes the last ask(). Requires: that was kNew, and nothing has been called since.
  void take_back();
  // What is new since the last call, in the order in which it was asked for.
  std::vector<ChunkHash> take();
  // Of a chunk that was asked for; of any other nothing is written down.
  void answer(const ChunkHash& hash, bool is_there);

 private:
  struct Cell {
    ChunkHash hash;
    Answer answer = Answer::kNew;  // an empty cell
  };

  // The cell of this hash, or the empty one where it would be.
  [[nodiscard]] Cell& cell_of(const ChunkHash& hash) noexcept;
  void grow();

  std::vector<Cell> cells_;  // a power of two, at most half of them taken
  std::size_t taken_ = 0;
  std::vector<ChunkHash> fresh_;
};

}  // namespace kvferry::cache
