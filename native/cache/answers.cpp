#include "cache/answers.hpp"

#include <utility>

namespace kvferry::cache {
namespace {

constexpr std::size_t kCellsMin = 64;

}  // namespace

Answers::Answers() : cells_(kCellsMin) {}

Answer Answers::ask(const ChunkHash& hash) {
  Cell* cell = &cell_of(hash);
  if (cell->answer != Answer::kNew) return cell->answer;
  if (2 * (taken_ + 1) > cells_.size()) {
    grow();
    cell = &cell_of(hash);
  }
  fresh_.push_back(hash);
  *cell = {hash, Answer::kPending};
  ++taken_;
  return Answer::kNew;
}

void Answers::take_back() {
  // It was put into the first empty cell of its run, so no other cell was placed behind it.
  cell_of(fresh_.back()) = Cell{};
  fresh_.pop_back();
  --taken_;
}

std::vector<ChunkHash> Answers::take() { return std::exchange(fresh_, {}); }

void Answers::answer(const ChunkHash& hash, bool is_there) {
  Cell& cell = cell_of(hash);
  if (cell.answer != Answer::kNew) cell.answer = is_there ? Answer::kYes : Answer::kNo;
}

Answers::Cell& Answers::cell_of(const ChunkHash& hash) noexcept {
  std::size_t at = hash.mixed() & (cells_.size() - 1);
  while (cells_[at].answer != Answer::kNew && cells_[at].hash != hash) {
    at = (at + 1) & (cells_.size() - 1);
  }
  return cells_[at];
}

void Answers::grow() {
  std::vector<Cell> old(2 * cells_.size());
  cells_.swap(old);
  for (const Cell& cell : old) {
    if (cell.answer != Answer::kNew) cell_of(cell.hash) = cell;
  }
}

}  // namespace kvferry::cache
