// Runs a fuzz entry point over files: what a fuzzer found once, or a seed corpus, as a test that
// any compiler can build.
//
// Usage: <name>_fuzz PATH...  with files, or folders of which every file is taken.
// Exit: 0 when every input passed, 2 when there was none; an input that fails aborts by its name.
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

namespace fs = std::filesystem;

bool replay(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string input((std::istreambuf_iterator<char>(file)), {});
  if (!file.good() && !file.eof()) {
    std::fprintf(stderr, "replay: cannot read %s\n", path.c_str());
    return false;
  }
  std::fprintf(stderr, "replay: %s (%zu bytes)\n", path.c_str(), input.size());
  LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(input.data()), input.size());
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  std::size_t count = 0;
  LLVMFuzzerTestOneInput(nullptr, 0);
  for (int index = 1; index < argc; ++index) {
    const fs::path path(argv[index]);
    if (fs::is_directory(path)) {
      for (const auto& entry : fs::recursive_directory_iterator(path)) {
        if (entry.is_regular_file()) count += replay(entry.path()) ? 1u : 0u;
      }
    } else {
      count += replay(path) ? 1u : 0u;
    }
  }
  if (count == 0) {
    std::fprintf(stderr, "replay: no input; name a file or a folder\n");
    return 2;
  }
  return 0;
}
