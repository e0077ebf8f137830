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

nb::object readable(std::string_view text) {
  const auto size = static_cast<Py_ssize_t>(text.size());
  nb::object decoded = nb::steal(PyUnicode_DecodeUTF8(text.data(), size, "backslashreplace"));
  if (!decoded.is_valid()) throw nb::python_error();
  return decoded;
}

nb::object exception_class(Errc code) {
  return nb::module_::import_("kvferry.base.errors").attr(python_class(code));
}

void raise(const Error& error) {
  PyErr_SetObject(exception_class(error.code).ptr(), readable(error.context).ptr());
  throw nb::python_error();
}

}  // namespace kvferry
