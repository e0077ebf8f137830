#pragma once
// Slot: one value of the file driver that is being read or written.
//
// Lifetime: a thread's of the driver, or the kernel's while its operation is under way.

#include <string>

#include "connector/file.hpp"

namespace kvferry::connector {

struct FileConnector::Slot : IoOperation {
  Task task;
  std::shared_ptr<FileStore> store;  // as it was when this began
  std::string key;                   // with the prefix
  std::string name;                  // of the file
  UniqueFd fd;                       // that is read
  FileStore::Temporary temporary;    // that is written
  bool syncing = false;
  std::size_t expected = 0;  // bytes that the operation should move
  alignas(kFileBlockBytes) std::array<std::byte, kFileBlockBytes> head;
  alignas(kFileBlockBytes) std::array<std::byte, kFileBlockBytes> tail;

  // The pieces of the whole file: head, the payload's whole blocks in place, the rest in `tail`.
  void lay_out(Kind what, int file, MutableBytes payload) {
    kind = what;
    fd_set(file);
    const std::size_t whole = payload.size() / kFileBlockBytes * kFileBlockBytes;
    add(head.data(), head.size());
    if (whole > 0) add(payload.data(), whole);
    if (whole < payload.size()) add(tail.data(), tail.size());
    expected = file_size(payload.size(), false);
  }
  void fd_set(int file) {
    IoOperation::fd = file;
    piece_count = 0;
    offset = 0;
    moved = 0;
    error = 0;
  }
};

}  // namespace kvferry::connector
