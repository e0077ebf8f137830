#include "errors.hpp"

#include <nanobind/nanobind.h>

namespace nb = nanobind;

namespace kvferry {
namespace {

const char* python_class(Errc code) noexcept {
  switch (code) {
    case Errc::kInvalidArgument:
      return "UsageError";
    case Errc::kClosed:
      return "ClosedError";
    case Errc::kForked:
      return "ClosedError";
    case Errc::kCapacity:
      return "CapacityError";
    case Errc::kTimeout:
      return "DeadlineExceeded";
    case Errc::kResolve:
      return "UnavailableError";
    case Errc::kConnect:
      return "UnavailableError";
    case Errc::kDisconnect:
      return "UnavailableError";
    case Errc::kProtocol:
      return "UnavailableError";
    case Errc::kAuth:
      return "AuthError";
    case Errc::kServer:
      return "ServerError";
    case Errc::kSystem:
      return "SystemResourceError";
    case Errc::kCertificate:
      return "TlsError";
  }
  return "KVFerryError";
}

}  // namespace

void raise(const Error& error) {
  const nb::object kind = nb::module_::import_("kvferry.errors").attr(python_class(error.code));
  PyErr_SetString(kind.ptr(), error.context.c_str());
  throw nb::python_error();
}

}  // namespace kvferry
