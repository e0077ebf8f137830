// Credentials that Python provides: a thread of Python's waits here until a connection asks.

#include "credentials.hpp"

#include <nanobind/stl/string.h>

#include "gil.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace kvferry {

// 1: somebody asks; 0: nobody did in time; -1: the client is closed.
int PyCredentials::wait(double timeout_s) const {
  const GilRelease released;
  if (source_->await_request(add_time(monotonic_ns(), from_seconds(timeout_s)))) return 1;
  return source_->closed() ? -1 : 0;
}

void PyCredentials::provide(std::string username, std::string password) const {
  const GilRelease released;
  source_->provide(redis::Credentials{std::move(username), std::move(password)});
}

void PyCredentials::refuse(std::string why) const {
  const GilRelease released;
  source_->provide(Error{Errc::kAuth, std::move(why)});
}

void bind_credentials(nb::module_& module) {
  nb::class_<PyCredentials>(module, "CredentialSource",
                            "Where connections ask for user and password. See kvferry.Credentials.")
      .def(nb::init<>())
      .def("wait", &PyCredentials::wait, "timeout_s"_a,
           "1: a connection asks; 0: none did in time; -1: the client is closed.")
      .def("provide", &PyCredentials::provide, "username"_a, "password"_a)
      .def("refuse", &PyCredentials::refuse, "why"_a, "There are none now; `why` holds no secret.");
}

}  // namespace kvferry
