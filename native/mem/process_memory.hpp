#pragma once
// Memory of another process of this user, read without its help: the kernel copies it, once.
//
// Whoever may trace a process may read it: of the same user, in a PID namespace that we see. Yama,
// where a kernel has it, wants the process to allow that as well; see admit_readers().
// What is read may change or go at any time: the owner says until when it does not, and a checksum
// decides. Memory that is not there is an error, and never a signal.
// Threads: any.
// Source: process_vm_readv(2), ptrace(2).

#include <sys/types.h>

#include <cstdint>

#include "base/bytes.hpp"
#include "base/result.hpp"

namespace kvferry::mem {

// All of `target`, from there on. Fails with: kSystem; parts of the target may be written then.
Outcome read_process(pid_t process, std::uint64_t address, MutableBytes target);

// Lets other processes of this user read this one, where the kernel would let only its parents.
void admit_readers() noexcept;

}  // namespace kvferry::mem
