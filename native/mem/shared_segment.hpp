#pragma once
// SharedSegment: a file in memory (tmpfs or hugetlbfs) that one owner and its clients have mapped.
//
// Who: the owner creates it, or opens one that a former owner left, and holds an exclusive lock on
//   byte kOwnerLock for as long as it lives. A file whose owner lock is free has no owner. Clients
//   attach, each with the lock of a byte of its own.
// Locks are those of open file descriptions. The kernel ends one when the descriptor AND every
//   mapping made through it are gone, in whatever way the process ended. So lock_is_held() tells
//   exactly until when that client may still touch the memory.
// Memory: a new segment has none. commit() backs a range, from then on touching it cannot fail;
//   discard() gives the memory back, and the range reads as zeros. Touching what is not backed
//   takes memory behind the owner's back, or is a SIGBUS where there is none.
// Trust: whoever runs as the same user can do anything to it, shortening the file included. Files
//   of others, links, and files that others may open are refused.
// Fork: a child shares mapping and descriptor, and so keeps the locks until it ends or calls
//   exec(). Only the process that made the object removes the file.
// Threads: any, once made; close_descriptor() and keep() belong to one.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/bytes.hpp"
#include "base/result.hpp"
#include "base/unique_fd.hpp"
#include "mem/arena.hpp"

namespace kvferry::mem {

class SharedSegment {
 public:
  static constexpr std::uint64_t kOwnerLock = std::uint64_t{1} << 60;  // far behind any end

  // A new file of mode 0600 at `path`, as long as asked for, rounded up to whole blocks, and
  // without memory.
  // Fails with: kInvalidArgument for a size that cannot be; kSystem when the file exists or the
  // system refuses.
  static Result<std::unique_ptr<SharedSegment>> create(std::string path, std::size_t size_bytes);
  // The file of a former owner, with its content and memory.
  // Fails with: kInvalidArgument for a file that is not ours, not private, or not `size_bytes`
  // long; kCapacity when it has an owner; kSystem.
  static Result<std::unique_ptr<SharedSegment>> open(std::string path, std::size_t size_bytes);
  // For clients: takes the lock on byte `lock`, then maps. Never removes the file.
  // Fails with: as open(); kCapacity when somebody else has that lock.
  static Result<std::unique_ptr<SharedSegment>> attach(std::string path, std::size_t size_bytes,
                                                       std::uint64_t lock);

  SharedSegment(const SharedSegment&) = delete;
  SharedSegment& operator=(const SharedSegment&) = delete;
  // An owner removes the file, unless it is to be kept.
  ~SharedSegment();

  [[nodiscard]] MutableBytes bytes() const noexcept { return arena_.bytes(); }
  [[nodiscard]] const Arena& arena() const noexcept { return arena_; }
  [[nodiscard]] std::size_t size_bytes() const noexcept { return arena_.size_bytes(); }
  // What commit() and discard() deal in: 4096 mostly, on hugetlbfs its huge pages.
  [[nodiscard]] std::size_t block_size_bytes() const noexcept { return block_size_bytes_; }
  [[nodiscard]] const std::string& path() const noexcept { return path_; }

  // Backs the blocks that the range touches; content that is there stays.
  // Fails with: kInvalidArgument for a range outside; kSystem where there is not enough memory.
  Outcome commit(std::size_t offset, std::size_t size_bytes);
  // Takes the memory of the blocks that lie wholly in the range.
  // Fails with: kInvalidArgument for a range outside; kSystem.
  Outcome discard(std::size_t offset, std::size_t size_bytes);

  // Maps the blocks that the range touches at once: else the first use of each costs a page fault,
  // and the very first one clears it. Does nothing on kernels before 5.14.
  // Fails with: kInvalidArgument for a range outside; kSystem where a touch would be a SIGBUS.
  Outcome populate(std::size_t offset, std::size_t size_bytes) const;

  // Drops the page tables of this process; content and memory stay, and the next touch of a page
  // maps it again. For whoever may be killed: the kernel takes down what is mapped, 80 ms for each
  // GB of small pages, before it closes the sockets by which others see that we are gone.
  void forget() const noexcept;

  // Whether anybody else holds the lock on a byte; held[i] becomes 0 or 1.
  // Fails with: kInvalidArgument for a byte of 2^63 - 1 or more; kClosed after close_descriptor();
  // kSystem. Take a failure for "held".
  Outcome locks_held(std::span<const std::uint64_t> bytes, std::span<std::uint8_t> held) const;
  [[nodiscard]] Result<bool> lock_is_held(std::uint64_t byte) const;

  // Whether an owner leaves the file behind at the end. At first it does not.
  void keep(bool kept) noexcept { kept_ = kept; }
  [[nodiscard]] bool kept() const noexcept { return kept_; }
  // Removes the name now, if it still names this file and this process is the owner; mappings
  // live on. Whether it did.
  bool unlink() noexcept;
  // The mapping stays, and so does the lock. Requires: no other call is under way or comes, except
  // bytes() and those beside it.
  void close_descriptor() noexcept { file_.reset(); }

 private:
  enum class Role : std::uint8_t { kOwner, kClient };

  SharedSegment(UniqueFd file, std::string path, Arena arena, std::size_t block_size_bytes,
                Role role) noexcept;
  static Result<std::unique_ptr<SharedSegment>> take(UniqueFd file, std::string path,
                                                     std::size_t size_bytes, std::uint64_t lock,
                                                     Role role);
  [[nodiscard]] bool contains(std::size_t offset, std::size_t size_bytes) const noexcept;

  UniqueFd file_;
  const std::string path_;
  const Arena arena_;
  const std::size_t block_size_bytes_;
  const Role role_;
  const int process_;  // that made it; forked children are others
  bool kept_ = false;
};

}  // namespace kvferry::mem
