#include "connector/file_usage.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "base/unique_fd.hpp"

namespace kvferry::connector {
namespace {

constexpr std::uint64_t kMagic = 0x3153554546565646;  // "FVVFEUS1": another layout gets another
constexpr std::size_t kMappedBytes = 4096;

}  // namespace

FileUsage::FileUsage(int directory, const char* name) {
  const UniqueFd fd(::openat(directory, name, O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  struct stat facts{};
  if (!fd || ::fstat(fd.get(), &facts) != 0) return;
  // Written, not extended: a mapping without blocks behind it would end us on a disk that is full.
  static constexpr std::array<std::byte, kMappedBytes> kZeros{};
  if (facts.st_size < off_t{kMappedBytes} &&
      ::pwrite(fd.get(), kZeros.data(), kZeros.size(), 0) != ssize_t{kMappedBytes}) {
    return;
  }
  void* const memory =
      ::mmap(nullptr, kMappedBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (memory == MAP_FAILED) return;
  counters_ = static_cast<Counters*>(memory);
  const std::atomic_ref magic(counters_->magic);
  if (magic.load(std::memory_order_acquire) == kMagic) return;
  // New, or damaged: the scan that follows counts anew.
  for (std::int64_t* counter : {&counters_->stored_bytes, &counters_->stored_keys,
                                &counters_->reserved_bytes, &counters_->scanned_at_ms}) {
    std::atomic_ref(*counter).store(0, std::memory_order_relaxed);
  }
  magic.store(kMagic, std::memory_order_release);
}

FileUsage::~FileUsage() {
  if (counters_ != &own_) ::munmap(counters_, kMappedBytes);
}

bool FileUsage::reserve(std::int64_t bytes, std::uint64_t capacity) noexcept {
  const std::int64_t reserved =
      bytes +
      std::atomic_ref(counters_->reserved_bytes).fetch_add(bytes, std::memory_order_relaxed);
  const std::int64_t wanted = reserved + load(counters_->stored_bytes);
  if (capacity == 0 || wanted <= static_cast<std::int64_t>(capacity)) return true;
  give_back(bytes);
  return false;
}

void FileUsage::stored(std::int64_t bytes, std::int64_t replaced) noexcept {
  add(counters_->stored_bytes, bytes - std::max<std::int64_t>(replaced, 0));
  if (replaced < 0) add(counters_->stored_keys, 1);
  give_back(bytes);
}

void FileUsage::removed(std::int64_t bytes) noexcept {
  add(counters_->stored_bytes, -bytes);
  add(counters_->stored_keys, -1);
}

std::int64_t FileUsage::bytes() const noexcept {
  return std::max<std::int64_t>(0, load(counters_->stored_bytes) + load(counters_->reserved_bytes));
}

std::int64_t FileUsage::keys() const noexcept {
  return std::max<std::int64_t>(0, load(counters_->stored_keys));
}

void FileUsage::forget_reservations() noexcept {
  std::atomic_ref(counters_->reserved_bytes).store(0, std::memory_order_relaxed);
}

FileUsage::Counters FileUsage::note() const noexcept {
  return {.magic = kMagic,
          .stored_bytes = load(counters_->stored_bytes),
          .stored_keys = load(counters_->stored_keys),
          .reserved_bytes = load(counters_->reserved_bytes),
          .scanned_at_ms = load(counters_->scanned_at_ms)};
}

void FileUsage::correct(const Counters& before, std::int64_t bytes, std::int64_t keys,
                        std::int64_t now_ms) noexcept {
  // By the difference: what others counted meanwhile stays counted.
  add(counters_->stored_bytes, bytes - before.stored_bytes);
  add(counters_->stored_keys, keys - before.stored_keys);
  std::atomic_ref(counters_->scanned_at_ms).store(now_ms, std::memory_order_relaxed);
}

}  // namespace kvferry::connector
