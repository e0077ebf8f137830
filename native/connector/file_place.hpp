#pragma once
// FilePlace: where the directory of a file store is, and whether it is still there.
//
// A directory that was removed may be made anew, and another one in its place may be used, but
// never on a file system that lies above the one it was on: what a mount point leaves behind when
// its file system goes must not be filled.
//
// Threads: any. Each call asks the kernel.

#include <sys/types.h>

#include <filesystem>
#include <string>
#include <vector>

namespace kvferry::connector {

class FilePlace {
 public:
  // Of a directory that is open as `root`.
  FilePlace(const std::string& path, int root);

  // Whether the path leads to that directory.
  [[nodiscard]] bool holds(int root) const;
  // Whether something was in this place, or is, that a store may be opened in, or made.
  [[nodiscard]] bool usable() const;
  // Whether there is nothing.
  [[nodiscard]] bool vacant() const;
  // Whether a directory that is open was removed, and not only moved.
  [[nodiscard]] static bool removed(int root);

 private:
  std::filesystem::path path_;
  std::vector<dev_t> above_;  // file systems of the directories above it, without its own
};

}  // namespace kvferry::connector
