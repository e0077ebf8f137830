#include "mem/process_memory.hpp"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <vector>

#include "base/unique_fd.hpp"

namespace kvferry::mem {
namespace {

constexpr std::size_t kSize = 3 * 4096;

std::uint64_t address_of(const void* memory) { return reinterpret_cast<std::uintptr_t>(memory); }

// A process with a copy of ours, whose pages from `memory` on are filled with a letter, until it is
// killed.
class Owner {
 public:
  Owner(std::byte* memory, char letter) {
    int ends[2];
    EXPECT_EQ(::pipe(ends), 0);
    const UniqueFd heard(ends[0]), said(ends[1]);
    process_ = ::fork();
    if (process_ == 0) {
      admit_readers();
      std::memset(memory, letter, kSize);
      (void)!::write(said.get(), "r", 1);
      for (;;) ::pause();
    }
    char word = 0;
    EXPECT_EQ(::read(heard.get(), &word, 1), 1);
  }
  ~Owner() { end(); }
  void end() {
    if (process_ == 0) return;
    ::kill(process_, SIGKILL);
    ::waitpid(process_, nullptr, 0);
    process_ = 0;
  }
  [[nodiscard]] pid_t process() const { return process_; }

 private:
  pid_t process_ = 0;
};

class ProcessMemory : public ::testing::Test {
 protected:
  void SetUp() override {
    void* base =
        ::mmap(nullptr, kSize + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(base, MAP_FAILED);
    memory_ = static_cast<std::byte*>(base);
    ASSERT_EQ(::munmap(memory_ + kSize, 4096), 0);  // nothing lies behind it
    std::memset(base, 'o', kSize);
  }
  void TearDown() override { ::munmap(memory_, kSize); }

  std::byte* memory_ = nullptr;
};

TEST_F(ProcessMemory, IsReadAsItsOwnerHasIt) {
  const Owner owner(memory_, 'x');
  std::vector<std::byte> target(kSize - 100);
  ASSERT_TRUE(read_process(owner.process(), address_of(memory_ + 100), target));
  for (const std::byte byte : target) ASSERT_EQ(byte, std::byte{'x'});
  EXPECT_EQ(memory_[0], std::byte{'o'});
  EXPECT_TRUE(read_process(owner.process(), address_of(memory_), {}));
}

TEST_F(ProcessMemory, ThatIsNotThereIsAnError) {
  const Owner owner(memory_, 'x');
  std::vector<std::byte> target(kSize);
  for (const std::uint64_t address :
       {address_of(memory_ + 100), std::uint64_t{0}, ~std::uint64_t{0} - 100}) {
    const auto read = read_process(owner.process(), address, target);
    ASSERT_FALSE(read) << address;
    EXPECT_EQ(read.error().code, Errc::kSystem);
  }
}

TEST_F(ProcessMemory, OfAProcessThatEndedIsAnError) {
  Owner owner(memory_, 'x');
  const pid_t process = owner.process();
  owner.end();
  std::vector<std::byte> target(kSize);
  EXPECT_FALSE(read_process(process, address_of(memory_), target));
  EXPECT_FALSE(read_process(0, address_of(memory_), target));
  EXPECT_FALSE(read_process(-1, address_of(memory_), target));
}

}  // namespace
}  // namespace kvferry::mem
