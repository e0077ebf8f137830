#include "node/state_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>

#include "base/unique_fd.hpp"
#include "codec/checksum.hpp"

namespace kvferry::node {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr std::string_view kMagic = "KVFNODE1";
constexpr std::uint32_t kEnd = UINT32_MAX;
constexpr std::uint32_t kKeyBytesMax = 1 << 20;

struct Head {
  std::uint32_t key_bytes;
  std::uint64_t value_bytes;
  std::int64_t expires;
  std::uint64_t checksum;
};
constexpr std::size_t kSummedBytes = 4 + 8 + 8;  // of the head
constexpr std::size_t kHeadBytes = kSummedBytes + 8;

std::array<std::byte, kHeadBytes> packed(const Head& head) {
  std::array<std::byte, kHeadBytes> out;
  std::memcpy(out.data(), &head.key_bytes, 4);
  std::memcpy(out.data() + 4, &head.value_bytes, 8);
  std::memcpy(out.data() + 12, &head.expires, 8);
  std::memcpy(out.data() + kSummedBytes, &head.checksum, 8);
  return out;
}

bool write_all(int fd, ByteView bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::write(fd, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
  return true;
}

bool read_all(int fd, MutableBytes bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::read(fd, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
  return true;
}

bool write_value(int fd, const ValueStore::Kept& kept) {
  const std::size_t size = kept.value->size_bytes();
  Head head{.key_bytes = static_cast<std::uint32_t>(kept.key.size()),
            .value_bytes = size,
            .expires = kept.expires,
            .checksum = 0};
  codec::Xxh3 sum;
  sum.update(ByteView(packed(head)).first(kSummedBytes));
  sum.update(as_bytes(kept.key));
  for (std::size_t offset = 0; offset < size;) {
    const MutableBytes piece = kept.value->piece(offset);
    sum.update(piece);
    offset += piece.size();
  }
  head.checksum = sum.digest();
  if (!write_all(fd, packed(head)) || !write_all(fd, as_bytes(kept.key))) return false;
  for (std::size_t offset = 0; offset < size;) {
    const MutableBytes piece = kept.value->piece(offset);
    if (!write_all(fd, piece)) return false;
    offset += piece.size();
  }
  return true;
}

// One value; false: the file ends here, as it should or not.
bool read_value(int fd, ValueStore& store, UnixMs now, Loaded& loaded) {
  std::array<std::byte, kHeadBytes> bytes;
  Head head{};
  if (!read_all(fd, MutableBytes(bytes).first(4))) return false;
  std::memcpy(&head.key_bytes, bytes.data(), 4);
  if (head.key_bytes == kEnd || head.key_bytes > kKeyBytesMax) return false;
  if (!read_all(fd, MutableBytes(bytes).subspan(4))) return false;
  std::memcpy(&head.value_bytes, bytes.data() + 4, 8);
  std::memcpy(&head.expires, bytes.data() + 12, 8);
  std::memcpy(&head.checksum, bytes.data() + kSummedBytes, 8);
  std::string key(head.key_bytes, '\0');
  if (!read_all(fd, {reinterpret_cast<std::byte*>(key.data()), key.size()})) return false;
  codec::Xxh3 sum;
  sum.update(ByteView(bytes).first(kSummedBytes));
  sum.update(as_bytes(key));

  auto value = store.reserve(head.value_bytes);
  if (!value) {
    ++loaded.left_out;
    const auto length = static_cast<off_t>(head.value_bytes);
    return length >= 0 && ::lseek(fd, length, SEEK_CUR) >= 0;
  }
  for (std::size_t offset = 0; offset < head.value_bytes;) {
    const MutableBytes piece = (*value)->piece(offset);
    if (!read_all(fd, piece)) return false;
    sum.update(piece);
    offset += piece.size();
  }
  if (sum.digest() != head.checksum) {
    ++loaded.left_out;
    return true;
  }
  if (head.expires <= now) return true;
  store.commit(key, std::move(*value), {.expires = head.expires}, now);
  ++loaded.values;
  return true;
}

}  // namespace

Result<std::size_t> save_state(const ValueStore& store, const std::string& path, UnixMs now) {
  const std::string beside = path + ".new";
  const auto failed = [&] {
    const int why = errno;
    ::unlink(beside.c_str());
    return system_error("write " + path, why);
  };
  UniqueFd fd(::open(beside.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!fd) return failed();
  if (!write_all(fd.get(), as_bytes(kMagic))) return failed();
  const auto all = store.all(now);
  for (const ValueStore::Kept& kept : all) {
    if (!write_value(fd.get(), kept)) return failed();
  }
  const std::uint32_t end = kEnd;
  if (!write_all(fd.get(), {reinterpret_cast<const std::byte*>(&end), sizeof end}) ||
      ::fsync(fd.get()) != 0 || ::rename(beside.c_str(), path.c_str()) != 0) {
    return failed();
  }
  return all.size();
}

Result<Loaded> load_state(ValueStore& store, const std::string& path, UnixMs now) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
  if (!fd && errno == ENOENT) return Loaded{};
  if (!fd) return system_error("read " + path, errno);
  std::array<char, kMagic.size()> magic{};
  const MutableBytes first{reinterpret_cast<std::byte*>(magic.data()), magic.size()};
  if (!read_all(fd.get(), first) || std::string_view(magic.data(), magic.size()) != kMagic) {
    return Error{Errc::kInvalidArgument, path + " is no state of a node; name another file"};
  }
  if (::unlink(path.c_str()) != 0) return system_error("remove " + path, errno);
  Loaded loaded;
  while (read_value(fd.get(), store, now, loaded)) {
  }
  return loaded;
}

}  // namespace kvferry::node
