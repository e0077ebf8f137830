#include "connector/file_place.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <string_view>
#include <system_error>

namespace kvferry::connector {

FilePlace::FilePlace(const std::string& path, int root) {
  std::error_code problem;
  path_ = std::filesystem::absolute(path, problem).lexically_normal();
  if (problem) path_ = path;
  struct stat own{};
  struct stat found{};
  if (::fstat(root, &own) != 0) return;
  own_ = own.st_dev;
  number_ = own.st_ino;
  for (std::filesystem::path each = path_; each != each.parent_path();) {
    each = each.parent_path();
    if (::stat(each.c_str(), &found) == 0 && found.st_dev != own.st_dev) {
      above_.push_back(found.st_dev);
    }
  }
}

bool FilePlace::holds(int root) const {
  struct stat own{};
  struct stat found{};
  return ::fstat(root, &own) == 0 && ::stat(path_.c_str(), &found) == 0 &&
         own.st_dev == found.st_dev && own.st_ino == found.st_ino;
}

bool FilePlace::was(int root) const {
  struct stat found{};
  return ::fstat(root, &found) == 0 && found.st_dev == own_ && found.st_ino == number_;
}

dev_t FilePlace::device() const {
  struct stat found{};
  std::filesystem::path nearest = path_;
  while (::stat(nearest.c_str(), &found) != 0) {
    if (nearest == nearest.parent_path()) return 0;
    nearest = nearest.parent_path();
  }
  return found.st_dev;
}

bool FilePlace::usable() const {
  const dev_t found = device();
  return found != 0 && std::ranges::find(above_, found) == above_.end();
}

bool FilePlace::elsewhere() const { return device() != own_; }

bool FilePlace::vacant() const {
  struct stat found{};
  return ::lstat(path_.c_str(), &found) != 0;
}

bool FilePlace::removed(int root) {
  // The number of links says it only on some file systems.
  std::error_code problem;
  const std::string name =
      std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(root), problem);
  return std::string_view(name).ends_with(" (deleted)");
}

}  // namespace kvferry::connector
