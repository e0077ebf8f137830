#pragma once
// Thread: a named std::thread that its owner must join; all signals are blocked inside, because
// they belong to the host program.

#include <pthread.h>

#include <csignal>
#include <functional>
#include <string>
#include <thread>

namespace kvferry {

class Thread {
 public:
  Thread() = default;
  // `name` is cut to the kernel's 15 characters. Throws std::system_error without resources.
  Thread(const std::string& name, std::function<void()> body) {
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
      thread_ = std::thread(std::move(body));
    } catch (...) {
      pthread_sigmask(SIG_SETMASK, &before, nullptr);
      throw;
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    pthread_setname_np(thread_.native_handle(), name.substr(0, 15).c_str());
  }

  void join() {
    if (thread_.joinable()) thread_.join();
  }
  void detach() {
    if (thread_.joinable()) thread_.detach();
  }

 private:
  std::thread thread_;
};

}  // namespace kvferry
