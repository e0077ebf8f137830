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
  // Whether it is the directory of which this was made: what is in it then, is of its store.
  [[nodiscard]] bool was(int root) const;
  // Whether a store may be opened here, or made.
  [[nodiscard]] bool usable() const;
  // Whether that would be on another file system than before.
  [[nodiscard]] bool elsewhere() const;
  // Whether there is nothing.
  [[nodiscard]] bool vacant() const;
  // Whether a directory that is open was removed, and not only moved.
  [[nodiscard]] static bool removed(int root);

 private:
  // Of the path, or of the nearest directory above it that is there; 0: of none.
  [[nodiscard]] dev_t device() const;

  std::filesystem::path path_;
  dev_t own_ = 0;
  ino_t number_ = 0;
  std::vector<dev_t> above_;  // file systems of the directories above it, without its own
};

}  // namespace kvferry::connector
