#pragma once
// For tests of connectors: jobs of text, values that are different for each key and version, a
// directory that goes.

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/test_names.hpp"
#include "connector/connector.hpp"

namespace kvferry::connector {

inline constexpr Nanos kPatience = 30 * kSecond;

inline Space test_space(std::size_t value_size_bytes, unsigned identity = 1,
                        std::string prefix = "p:") {
  Space space{.prefix = std::move(prefix),
              .identity = {},
              .value_size_bytes = value_size_bytes,
              .description = "n=" + std::to_string(identity) + "\n"};
  space.identity.fill(static_cast<std::byte>(identity));
  return space;
}

// A value and a target for one, on a 4 KiB boundary unless it is moved by `shift`.
class Buffer {
 public:
  explicit Buffer(std::size_t size, std::size_t shift = 0)
      : memory_(
            static_cast<std::byte*>(std::aligned_alloc(4096, (size + shift + 4095) / 4096 * 4096)),
            &std::free),
        size_(size),
        shift_(shift) {
    std::fill_n(memory_.get(), size + shift, std::byte{0xee});
  }
  [[nodiscard]] MutableBytes bytes() const { return {memory_.get() + shift_, size_}; }
  [[nodiscard]] std::string text() const { return std::string(as_text(bytes())); }
  void fill(unsigned seed) const {
    std::uint64_t state = seed * 0x9e3779b97f4a7c15ull + 1;
    for (std::byte& byte : bytes()) {
      state = state * 6364136223846793005ull + 1442695040888963407ull;
      byte = static_cast<std::byte>(state >> 56);
    }
  }

 private:
  std::unique_ptr<std::byte, void (*)(void*)> memory_;
  std::size_t size_;
  std::size_t shift_;
};

inline std::string value_of(std::size_t size, unsigned seed) {
  const Buffer buffer(size);
  buffer.fill(seed);
  return buffer.text();
}

inline std::shared_ptr<Job> make_job(const Job::Options& options,
                                     const std::vector<std::string>& keys,
                                     const std::vector<Buffer>* buffers = nullptr) {
  auto job = std::make_shared<Job>(options);
  for (std::size_t index = 0; index < keys.size(); ++index) {
    job->add(keys[index], buffers != nullptr ? (*buffers)[index].bytes() : MutableBytes());
  }
  job->quiet = true;
  return job;
}

// "OK MISS ..." of a job that was submitted and waited for.
inline std::string run(Connector& connector, const std::shared_ptr<Job>& job) {
  if (const auto id = connector.submit(job); !id) return id.error().context;
  if (!job->wait(monotonic_ns() + kPatience)) return "HANGS";
  std::string text;
  for (std::size_t index = 0; index < job->size(); ++index) {
    text += (index > 0 ? " " : "") + std::string(name(job->status(index)));
  }
  return text;
}

inline std::string set(Connector& connector, const std::string& key, unsigned seed,
                       std::size_t shift = 0) {
  std::vector<Buffer> buffers;
  buffers.emplace_back(connector.space().value_size_bytes, shift);
  buffers[0].fill(seed);
  return run(connector, make_job({.verb = Verb::kSet}, {key}, &buffers));
}

inline std::string get(Connector& connector, const std::string& key, std::string* value = nullptr,
                       std::size_t shift = 0) {
  std::vector<Buffer> buffers;
  buffers.emplace_back(connector.space().value_size_bytes, shift);
  const std::string status = run(connector, make_job({.verb = Verb::kGet}, {key}, &buffers));
  if (value != nullptr) *value = buffers[0].text();
  return status;
}

// The value under `key` is exactly the one of `seed`.
inline void expect_value(Connector& connector, const std::string& key, unsigned seed,
                         std::size_t shift = 0) {
  std::string value;
  EXPECT_EQ(get(connector, key, &value, shift), "OK") << key;
  EXPECT_TRUE(value == value_of(connector.space().value_size_bytes, seed)) << key;
}

inline std::uint64_t refused(const Connector& connector, codec::FrameFault fault) {
  return connector.stats().faults[static_cast<std::size_t>(fault)].load();
}

// Closes what it has: threads of a connector share it until then.
class Open {
 public:
  explicit Open(Result<std::shared_ptr<Connector>> opened) {
    EXPECT_TRUE(opened) << (opened ? "" : opened.error().context);
    connector_ = *opened;
  }
  ~Open() { connector_->close(); }
  Open(const Open&) = delete;
  Open& operator=(const Open&) = delete;
  Connector& operator*() const { return *connector_; }
  Connector* operator->() const { return connector_.get(); }

 private:
  std::shared_ptr<Connector> connector_;
};

class TestDirectory {
 public:
  TestDirectory() {
    std::string pattern = (std::filesystem::temp_directory_path() / "kvferry-test-XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
  }
  ~TestDirectory() { std::filesystem::remove_all(path_); }
  TestDirectory(const TestDirectory&) = delete;
  TestDirectory& operator=(const TestDirectory&) = delete;
  [[nodiscard]] std::string path() const { return (path_ / "kv").string(); }
  [[nodiscard]] std::filesystem::path file(const std::string& name) const {
    return path_ / "kv" / name;
  }

 private:
  std::filesystem::path path_;
};

}  // namespace kvferry::connector
