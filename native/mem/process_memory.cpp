#include "mem/process_memory.hpp"

#include <sys/prctl.h>
#include <sys/uio.h>

#include <cerrno>
#include <string>

namespace kvferry::mem {

Outcome read_process(pid_t process, std::uint64_t address, MutableBytes target) {
  while (!target.empty()) {
    const iovec here{.iov_base = target.data(), .iov_len = target.size()};
    const iovec there{.iov_base = reinterpret_cast<void*>(static_cast<std::uintptr_t>(address)),
                      .iov_len = target.size()};
    const ssize_t got = ::process_vm_readv(process, &here, 1, &there, 1, 0);
    if (got <= 0) {
      return system_error("cannot read the memory of process " + std::to_string(process),
                          got < 0 ? errno : EFAULT);
    }
    target = target.subspan(static_cast<std::size_t>(got));
    address += static_cast<std::uint64_t>(got);
  }
  return Done{};
}

void admit_readers() noexcept {
  ::prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);  // fails where there is no Yama
}

}  // namespace kvferry::mem
